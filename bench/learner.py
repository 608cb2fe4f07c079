"""What an update of the learner costs: milliseconds of CPU on one thread, batch 256.

A full update is what training repeats: sample a batch (half demonstrations and interventions),
critic, actor, temperature, target networks. Three agents with HIL-SERL's widths: state vectors
only; with a gripper's critic beside; with two cameras whose features are stored. The last one also
without stored features: the frozen backbone runs for every frame of the batch, as in HIL-SERL.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _figures import Report, percentile
from _steps import PROPRIOCEPTION, TWO_CAMERAS, random_steps

from hil_rl.config import SACConfig, VisionConfig
from hil_rl.features import FeatureCache, Frames, ImageRing
from hil_rl.sac import SACAgent
from hil_rl.spaces import Spaces
from hil_rl.store import EpisodeStore
from hil_rl.vision import shift_frames

BATCH = 256
CAPACITY = 2_000
STEPS = 300
"""Stored steps. A batch is drawn with replacement; more steps would not change what it costs."""
MILLISECONDS = 1e3


class Case:
    """An agent with its store, and the CPU times of its updates so far, ms."""

    def __init__(self, spaces: Spaces, seed: int, folder: Path | None = None) -> None:
        """folder: of the stored features; None: images are stored, if there are any."""
        vision = VisionConfig() if spaces.images else None
        agent = SACAgent(spaces, SACConfig(), seed, vision=vision)
        frames: Frames | None = None
        if vision is not None and agent.frame_encoder is not None:
            if folder is not None:
                weights = agent.frame_encoder.backbone.weights
                frames = FeatureCache(
                    folder, agent.frame_encoder, shift_frames, weights, CAPACITY,
                    len(spaces.images), vision.augmentations, vision.shift, seed,
                )  # fmt: skip
            else:
                shape = (len(spaces.images), *spaces.image_size, 3)
                frames = ImageRing(CAPACITY, shape, vision.augmentations, vision.shift, seed)
        self.agent, self.store = agent, EpisodeStore(spaces, CAPACITY, frames=frames)
        for step in random_steps(spaces, STEPS, seed):
            self.store.add(step)
        self._rng = np.random.default_rng(seed)
        self._batch = self.store.batch(BATCH)
        self.sampling: list[float] = []
        self.updates: list[float] = []

    def run(self, updates: int) -> None:
        """Some updates, each with its sampling."""
        for _ in range(updates):
            sampling = _cpu(self._sample)
            self.sampling.append(sampling)
            self.updates.append(sampling + _cpu(lambda: self.agent.update(self._batch)))

    def _sample(self) -> None:
        half = BATCH // 2
        self.store.sample(half, "demo", self._rng, out=self._batch.rows(0, half))
        self.store.sample(BATCH - half, "all", self._rng, out=self._batch.rows(half, BATCH))

    @property
    def milliseconds(self) -> float:
        """Median of a full update."""
        return percentile(self.updates, 50)

    @property
    def sampling_percent(self) -> float:
        """Share of sampling in it."""
        return 100.0 * percentile(self.sampling, 50) / self.milliseconds


def _cpu(work: Callable[[], object]) -> float:
    """Milliseconds of CPU that this thread spends on something."""
    begin = time.thread_time()
    work()
    return (time.thread_time() - begin) * MILLISECONDS


def main() -> None:
    """Run and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=6, help="the agents take turns")
    parser.add_argument("--updates", type=int, default=30, help="per agent and round")
    parser.add_argument("--uncached", type=int, default=3, help="updates without stored features")
    options = parser.parse_args()
    torch.set_num_threads(1)  # all work is in the calling thread: its CPU time is the cost
    report, seed = Report(options.seed, options.json), options.seed
    camera_spaces = {**PROPRIOCEPTION, **TWO_CAMERAS}
    with tempfile.TemporaryDirectory(prefix="bench_learner_") as folder:
        cases = {
            "state": Case(Spaces(PROPRIOCEPTION, 6), seed),
            "hybrid": Case(Spaces(PROPRIOCEPTION, 6, 1), seed),
            "cameras": Case(Spaces(camera_spaces, 6), seed, Path(folder, "one")),
            "cameras_hybrid": Case(Spaces(camera_spaces, 6, 1), seed, Path(folder, "two")),
        }
        uncached = Case(Spaces(camera_spaces, 6), seed)
        for case in cases.values():
            case.run(3)
            case.sampling, case.updates = [], []  # the first ones set kernels up
        for _ in range(options.rounds):
            for case in cases.values():
                case.run(options.updates)
        uncached.run(options.uncached + 1)
        del uncached.updates[0]
    for name, case in cases.items():
        report.add(f"learner.{name}_cpu_ms", case.milliseconds, "ms", len(case.updates))
    n = len(uncached.updates)
    report.add("learner.uncached_cpu_ms", uncached.milliseconds, "ms", n)
    ratio = uncached.milliseconds / cases["cameras"].milliseconds
    report.add("learner.cache_ratio", ratio, "1", n)
    worst = max(cases.values(), key=lambda case: case.sampling_percent)
    report.add("learner.sampling_pct", worst.sampling_percent, "%", len(worst.sampling))


if __name__ == "__main__":
    main()
