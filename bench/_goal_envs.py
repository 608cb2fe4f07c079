"""Goal-conditioned environments of the HER benchmark, as the learning library sees them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hil_rl.goals import GoalTask
from hil_rl.spaces import Spaces

Array = NDArray[Any]
Observation = Mapping[str, Array]


class GoalEnv(Protocol):
    """What a training loop needs."""

    spaces: Spaces
    task: GoalTask

    def reset(self, seed: int | None = None) -> Observation:
        """Begin an episode; the seed also fixes those that follow."""
        ...

    def step(self, action: Array) -> tuple[Observation, float, bool, bool, bool]:
        """Observation, reward, terminated, truncated, and whether the goal is reached now."""
        ...


def make_fetch(name: str) -> Any:
    """A Fetch environment of gymnasium-robotics, for example FetchReach-v4."""
    gymnasium = importlib.import_module("gymnasium")
    gymnasium.register_envs(importlib.import_module("gymnasium_robotics"))
    return gymnasium.make(name)


class Fetch:
    """A Fetch task. The achieved goal is the part of the observation that has the same numbers.

    Args:
        name: of the environment.
        achieved: "gripper" or "object".
    """

    def __init__(self, name: str, achieved: str) -> None:
        self._env = make_fetch(name)
        self._parts = ["gripper", *(["object"] if achieved == "object" else [])]
        self._size = self._env.observation_space["observation"].shape[0]
        rest = self._size - 3 * len(self._parts)
        shapes = {part: ((3,), "float32") for part in self._parts}
        spaces = {**shapes, "rest": ((rest,), "float32"), "goal": ((3,), "float32")}
        self.spaces = Spaces(spaces, action_dim=self._env.action_space.shape[0])
        judge = self._env.unwrapped.compute_reward
        self.task = GoalTask(
            achieved=(achieved,),
            desired=("goal",),
            reward=lambda a, d: judge(a[achieved], d["goal"], {}),
            tolerance=self._env.unwrapped.distance_threshold,
        )

    def _observation(self, raw: Mapping[str, Array]) -> Observation:
        values = raw["observation"].astype(np.float32)
        parts = {part: values[3 * i : 3 * i + 3] for i, part in enumerate(self._parts)}
        rest = values[3 * len(self._parts) :]
        return {**parts, "rest": rest, "goal": raw["desired_goal"].astype(np.float32)}

    def reset(self, seed: int | None = None) -> Observation:
        """See `GoalEnv`."""
        return self._observation(self._env.reset(seed=seed)[0])

    def step(self, action: Array) -> tuple[Observation, float, bool, bool, bool]:
        """See `GoalEnv`."""
        raw, reward, terminated, truncated, info = self._env.step(action)
        success = bool(info["is_success"])
        return self._observation(raw), float(reward), terminated, truncated, success


class BitFlip:
    """Flip one of n bits per step until they are the goal's; n steps; reward -1, on the goal 0.

    The action has n elements, the largest one says which bit (Andrychowicz et al., 2017).
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        shape = ((bits,), "float32")
        self.spaces = Spaces({"bits": shape, "goal": shape}, action_dim=bits)

        def same(achieved: Mapping[str, Array], desired: Mapping[str, Array]) -> Array:
            return np.asarray((achieved["bits"] == desired["goal"]).all(-1))

        self.task = GoalTask(
            achieved=("bits",),
            desired=("goal",),
            reward=lambda a, d: same(a, d).astype(np.float32) - 1.0,
            terminated=same,
        )
        self._rng = np.random.default_rng(0)
        self._state = self._goal = np.zeros(bits, np.float32)
        self._count = 0

    def _observation(self) -> Observation:
        return {"bits": self._state.copy(), "goal": self._goal}

    def reset(self, seed: int | None = None) -> Observation:
        """See `GoalEnv`."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._state, self._goal = self._rng.integers(0, 2, (2, self.bits)).astype(np.float32)
        while (self._state == self._goal).all():
            self._goal = self._rng.integers(0, 2, self.bits).astype(np.float32)
        self._count = 0
        return self._observation()

    def step(self, action: Array) -> tuple[Observation, float, bool, bool, bool]:
        """See `GoalEnv`."""
        at = int(action.argmax())
        self._state[at] = 1.0 - self._state[at]
        self._count += 1
        success = bool((self._state == self._goal).all())
        truncated = not success and self._count >= self.bits
        return self._observation(), float(success) - 1.0, success, truncated, success
