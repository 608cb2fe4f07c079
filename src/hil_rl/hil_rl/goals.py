"""Goal-conditioned tasks as plain data and functions, and what their episodes come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .spaces import Array, Spaces
from .store import FLAG_DEMO, FLAG_EVALUATION, Step

Parts = Mapping[str, Array]
GoalFunction = Callable[[Parts, Parts], Array]

WINDOW = 100
"""Finished episodes that statistics look back on."""


class GoalError(ValueError):
    """A task that has no goals in the sense of hindsight replay; the text says what is wrong."""


@dataclass(frozen=True)
class GoalTask:
    """What hindsight replay has to know of a task. No environment is needed.

    A goal has one or more named parts (the pose of an object, the opening of a gripper). A part
    that was achieved and the part that was desired are two tensors of the observation with the
    same shape and meaning. The functions get name -> (n, *shape) float32 of n transitions: the
    achieved parts of the state that an action led to, and the desired parts.

    Attributes:
        achieved: names of the achieved parts.
        desired: names of the desired parts, in the same order.
        reward: (achieved, desired) -> (n,) reward.
        terminated: (achieved, desired) -> (n,) bool: the goal ends the episode. None: never.
        distance: (achieved, desired) -> (n,), for filters and statistics. None: Euclidean over
            all parts, in the units of the tensors.
        tolerance: distance at which the goal counts as reached, if there is one; 0: not known.
        stage: name of a tensor of one element that numbers the sub-task (pick, move, tilt), never
            falling within an episode. Goals are then taken from the transition's own sub-task, up
            to the state that completed it. Empty: the task has one stage.
    """

    achieved: tuple[str, ...]
    desired: tuple[str, ...]
    reward: GoalFunction
    terminated: GoalFunction | None = None
    distance: GoalFunction | None = None
    tolerance: float = 0.0
    stage: str = ""


class GoalSpace:
    """Where the goal's parts are in a state vector, and the task's functions on such vectors.

    Args:
        task: see `GoalTask`.
        spaces: of the states.

    Raises:
        GoalError: a part is missing, or two that belong together differ in shape.
    """

    def __init__(self, task: GoalTask, spaces: Spaces) -> None:
        self.task = task
        self._shapes = spaces.vectors
        self._slices: dict[str, slice] = {}
        at = 0
        for name, shape in self._shapes.items():
            size = math.prod(shape)
            self._slices[name] = slice(at, at + size)
            at += size
        if not task.achieved or len(task.achieved) != len(task.desired):
            raise GoalError(
                f"a goal needs as many achieved as desired parts, and at least one: "
                f"{list(task.achieved)}, {list(task.desired)}"
            )
        for achieved, desired in zip(task.achieved, task.desired, strict=True):
            if self._shape(achieved) != self._shape(desired):
                raise GoalError(
                    f"{achieved!r} has shape {self._shape(achieved)}, "
                    f"{desired!r} has {self._shape(desired)}: they must be the same"
                )
        if task.stage and math.prod(self._shape(task.stage)) != 1:
            raise GoalError(f"stage {task.stage!r} must have one element")
        self.achieved = self._columns(task.achieved)
        self.desired = self._columns(task.desired)

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._shapes:
            raise GoalError(
                f"the observation has no vector {name!r}, it has {sorted(self._shapes)}: "
                "policy and critic must see the goal, what is achieved and what is desired"
            )
        return self._shapes[name]

    def _columns(self, names: tuple[str, ...]) -> Array:
        parts = [np.arange(self._slices[name].start, self._slices[name].stop) for name in names]
        return np.concatenate(parts)

    def pairs(self, parts: tuple[str, ...]) -> tuple[Array, Array]:
        """Columns of some desired parts (all if empty), and of their achieved counterparts.

        Raises:
            GoalError: no such part.
        """
        wrong = [name for name in parts if name not in self.task.desired]
        if wrong:
            raise GoalError(f"no desired part {wrong[0]!r}, there are {list(self.task.desired)}")
        pairs = zip(self.task.achieved, self.task.desired, strict=True)
        chosen = [(a, d) for a, d in pairs if not parts or d in parts]
        return self._columns(tuple(a for a, _ in chosen)), self._columns(
            tuple(d for _, d in chosen)
        )

    def _parts(self, states: Array, names: tuple[str, ...]) -> dict[str, Array]:
        n = len(states)
        return {m: states[:, self._slices[m]].reshape(n, *self._shapes[m]) for m in names}

    def _call(self, function: GoalFunction, name: str, achieved: Array, desired: Array) -> Array:
        task, n = self.task, len(achieved)
        parts = self._parts(achieved, task.achieved), self._parts(desired, task.desired)
        result = np.asarray(function(*parts))
        if result.shape != (n,):
            raise GoalError(f"{name} of {n} pairs must have shape ({n},), not {result.shape}")
        return result

    def reward(self, reached: Array, asked: Array) -> Array:
        """(n,) reward: achieved in states `reached`, desired in `asked`, each (n, vector_size)."""
        return self._call(self.task.reward, "reward", reached, asked)

    def terminated(self, reached: Array, asked: Array) -> Array:
        """(n,) bool, see `reward`."""
        if self.task.terminated is None:
            return np.zeros(len(reached), np.bool_)
        return self._call(self.task.terminated, "terminated", reached, asked).astype(np.bool_)

    def distance(self, reached: Array, asked: Array) -> Array:
        """(n,) distance, see `reward`."""
        if self.task.distance is None:
            difference = reached[:, self.achieved] - asked[:, self.desired]
            return np.sqrt(np.einsum("ij,ij->i", difference, difference))
        return self._call(self.task.distance, "distance", reached, asked)

    def stage(self, states: Array) -> Array:
        """(n,) stage numbers."""
        return states[:, self._slices[self.task.stage].start]


@dataclass(frozen=True)
class GoalEpisode:
    """One finished training episode, measured on the goal that it really had.

    Attributes:
        success: of the task.
        start, nearest, end: distance to the goal at the beginning, at its least, at the end.
        goal: (goal size,) desired at the beginning.
    """

    success: bool
    start: float
    nearest: float
    end: float
    goal: Array


@dataclass
class _Running:
    episode: int
    start: float
    nearest: float
    end: float
    goal: Array


class GoalStatistics:
    """Success and distance of the newest training episodes, on original goals only.

    Args:
        space: see `GoalSpace`.
        spaces: of the observations.
        window: episodes to look back on.
    """

    def __init__(self, space: GoalSpace, spaces: Spaces, window: int = WINDOW) -> None:
        self.episodes: tuple[GoalEpisode, ...] = ()  # replaced, not changed: others read it
        self._window = window
        self.finished = 0
        self._space, self._spaces = space, spaces
        self._running: dict[str, _Running] = {}

    def add(self, step: Step) -> None:
        """Take a step in; demonstrations and evaluation do not count."""
        if step.flags & (FLAG_DEMO | FLAG_EVALUATION):
            return
        state = self._spaces.flatten(step.observation)[None]
        distance = float(self._space.distance(state, state)[0])
        running = self._running.get(step.stream)
        if running is None or running.episode != step.episode:
            goal = state[0, self._space.desired].copy()
            running = _Running(step.episode, distance, distance, distance, goal)
            self._running[step.stream] = running
        if step.final_observation is not None:
            final = self._spaces.flatten(step.final_observation)[None]
            running.nearest = min(running.nearest, distance)
            distance = float(self._space.distance(final, final)[0])
        running.nearest, running.end = min(running.nearest, distance), distance
        if step.terminated or step.truncated:
            del self._running[step.stream]
            self.finished += 1
            r = running
            done = GoalEpisode(bool(step.success), r.start, r.nearest, r.end, r.goal)
            self.episodes = (*self.episodes, done)[-self._window :]

    def success(self) -> float:
        """Share of successful episodes; NaN before the first one."""
        return _mean([float(e.success) for e in self.episodes])

    def figures(self) -> dict[str, float]:
        """Means over the window, for a metrics row; empty before the first episode."""
        if not self.episodes:
            return {}
        return {
            "goal_success": self.success(),
            "goal_distance": _mean([e.end for e in self.episodes]),
            "goal_nearest": _mean([e.nearest for e in self.episodes]),
        }

    def goal_spread(self) -> float:
        """Largest standard deviation of any element of the goals in the window; NaN of none."""
        if not self.episodes:
            return math.nan
        return float(np.stack([e.goal for e in self.episodes]).std(0).max())


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan
