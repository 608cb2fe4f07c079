"""What 200,000 steps with two 128x128 cameras take: on disk, in memory, and in the bag.

Measured on a sample and scaled:

* `store.disk_gb_200k`: what sampling needs: the file of features (two random shifts per frame,
  64 channels in half precision) and its index, and state, actions and labels. A store with a
  capacity of --steps is filled until it wraps around. Random numbers stand in for the backbone:
  a row has the same size whatever is in it.
* `store.resident_gb_200k`: memory that the process gained while the store was filled and sampled
  until its pages had been touched. Most of it are mapped pages, which the kernel may take back.
* `store.bag_gb_200k`: the images in the step log. Rendered frames of an expert's episodes, each
  step compressed on its own as the log does it. Real cameras are noisy and compress less:
  `store.bag_raw_gb_200k`, the size of the pixels, is the upper bound.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _figures import Report
from _local_env import LocalEnv
from _steps import EPISODE, PROPRIOCEPTION, TWO_CAMERAS, random_steps
from numpy.typing import NDArray

import hil_tasks
from hil_bringup.graph import config_folder
from hil_learner.mcap_file import new_compressor
from hil_rl.config import VisionConfig
from hil_rl.features import FeatureCache, Projection
from hil_rl.spaces import Spaces
from hil_rl.store import EpisodeStore
from hil_rl.vision import shift_frames
from hil_teleop.expert import ExpertConfig, ScriptedExpert

TARGET = 200_000
GB = 1e9
SPACES = Spaces({**PROPRIOCEPTION, **TWO_CAMERAS}, 6, 1)


class RandomFeatures:
    """Encoder with the sizes of EfficientNet-Lite0 and its projection, without the computation."""

    def __init__(self, channels: int, seed: int) -> None:
        self.backbone_channels, self.positions, self.channels = 1280, 16, channels
        weight = np.zeros((channels, self.backbone_channels), np.float32)
        self.projection: Projection | None = Projection(weight[0], weight)
        self._rng = np.random.default_rng(seed)

    def full(self, images: NDArray[Any]) -> NDArray[Any]:
        """Not asked for: there is a projection."""
        raise NotImplementedError

    def __call__(self, images: NDArray[Any]) -> NDArray[Any]:
        """Random features in half precision."""
        size = (len(images), self.channels, self.positions)
        return self._rng.standard_normal(size, np.float32).astype(np.float16)


def fill(folder: Path, steps: int, seed: int) -> tuple[float, float]:
    """Gigabytes on disk and in memory of a full store with that many slots."""
    process, vision = psutil.Process(), VisionConfig()
    before = process.memory_info().rss
    frames = FeatureCache(
        folder, RandomFeatures(vision.channels, seed), shift_frames, "", steps,
        len(SPACES.images), vision.augmentations, vision.shift, seed,
    )  # fmt: skip
    store = EpisodeStore(SPACES, steps, frames=frames)
    for step in random_steps(SPACES, steps, seed):  # final observations wrap it around
        store.add(step)
    rng, batch = np.random.default_rng(seed), store.batch(256)
    for _ in range(3 * steps // len(batch)):
        store.sample(len(batch), "all", rng, out=batch)
    resident = process.memory_info().rss - before
    memory = store.nbytes  # state, actions, labels; the log has them on disk
    return (frames.disk_bytes + memory) / GB, resident / GB


def bag_bytes(frames: int, seed: int) -> float:
    """Bytes per step of two cameras' images in the log."""
    task = hil_tasks.load("peg_insert")
    settings = ExpertConfig.load(config_folder() / "teleop" / "scripted_expert.yaml")
    env, expert = LocalEnv(task, seed), ScriptedExpert(task, settings, seed)
    compressor, total, count = new_compressor(), 0, 0
    cameras = env.world.cameras[:2]
    while count < frames:
        env.reset(seed=seed + count)
        expert.begin(seed + count, demo=True)
        for _ in range(min(EPISODE, frames - count)):
            action = np.array(expert.act(env.reading).twist, np.float32)
            _, _, terminated, truncated, _ = env.step(action)
            images = b"".join(env.world.render(camera).tobytes() for camera in cameras)
            total += len(compressor.compress(images))
            count += 1
            if terminated or truncated:
                break
    env.close()
    return total / count


def main() -> None:
    """Run and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20_000, help="sample; scaled to 200,000")
    parser.add_argument("--frames", type=int, default=300, help="rendered steps for the bag")
    options = parser.parse_args()
    report, scale = Report(options.seed, options.json), TARGET / options.steps
    with tempfile.TemporaryDirectory(prefix="bench_store_") as folder:
        disk, resident = fill(Path(folder), options.steps, options.seed)
    report.add("store.disk_gb_200k", disk * scale, "GB", options.steps)
    report.add("store.resident_gb_200k", resident * scale, "GB", options.steps)
    bag = bag_bytes(options.frames, options.seed) * TARGET / GB
    report.add("store.bag_gb_200k", bag, "GB", options.frames)
    pixels = sum(int(np.prod(shape)) for shape in SPACES.images.values())
    report.add("store.bag_raw_gb_200k", pixels * TARGET / GB, "GB", 1)


if __name__ == "__main__":
    main()
