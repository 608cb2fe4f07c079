"""Steps with random contents, for benchmarks of the learning library. No ROS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hil_rl.spaces import Spaces
from hil_rl.store import Step

Array = NDArray[Any]
EPISODE = 60
"""Steps per episode."""
PROPRIOCEPTION = {"proprioception": ((19,), "float32")}
"""As many numbers as HIL-SERL's pose, velocity, force, torque and gripper."""
TWO_CAMERAS = {"wrist": ((128, 128, 3), "uint8"), "side": ((128, 128, 3), "uint8")}


def random_steps(spaces: Spaces, n: int, seed: int, images: int = 64) -> Iterator[Step]:
    """Episodes of `EPISODE` steps, the first half of each intervened; success at the end.

    Args:
        spaces: what the steps are made of.
        n: number of steps.
        seed: of the contents.
        images: number of different frames, which are used in turns.
    """
    rng = np.random.default_rng(seed)
    frames = {
        name: rng.integers(0, 256, (images, *shape), dtype=np.uint8)
        for name, shape in spaces.images.items()
    }

    def observe(at: int) -> dict[str, Array]:
        seen = {name: rng.normal(size=s).astype(np.float32) for name, s in spaces.vectors.items()}
        return seen | {name: stack[at % images] for name, stack in frames.items()}

    for i in range(n):
        episode, number = divmod(i, EPISODE)
        last = number == EPISODE - 1
        action = rng.uniform(-1.0, 1.0, spaces.action_size).astype(np.float32)
        for gripper in spaces.gripper_indices:
            action[gripper] = rng.integers(-1, 2)
        yield Step(
            "bench/0", i + 1, episode, number, 0, observe(i), action,
            intervened=number < EPISODE // 2, reward=float(last), terminated=last, success=last,
            final_observation=observe(i + 1) if last else None,
        )  # fmt: skip
