"""Base class of tasks: what is observed, what is rewarded, how an episode starts."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hil_tasks.geometry import Array, Pose
from hil_tasks.overrides import OverrideError, apply_overrides
from hil_tasks.scene import Scene
from hil_tasks.spec import TaskSpec

Observation = dict[str, NDArray[np.float32]]

_SPEC_FIXED = ("name", "arms", "grippers", "observation", "frame_id")


@dataclass(frozen=True, eq=False)
class Reading:
    """What is measured of one arm at one moment, and the objects it works on.

    Attributes:
        pose: tool centre point in the base frame.
        twist: (6,) of the tool centre point, base axes: m/s, rad/s.
        wrench: (6,) external, on the tool centre point, base axes: N, Nm.
        q, dq: (7,) joint positions (rad) and velocities (rad/s).
        gripper_width: gap between the fingers, m.
        objects: pose of each known object in the base frame.
        target: pose that the controller is held to, base frame; None where it is not known.
    """

    pose: Pose
    twist: Array
    wrench: Array
    q: Array
    dq: Array
    gripper_width: float
    objects: Mapping[str, Pose] = field(default_factory=dict)
    target: Pose | None = None


@dataclass(frozen=True)
class Outcome:
    """Judgement of a reading: reward, end of the task (never a time-out), success."""

    reward: float = 0.0
    terminated: bool = False
    success: bool = False


GoalFunction = Callable[[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]]], NDArray[Any]]


@dataclass(frozen=True)
class Goals:
    """The goal of a goal-conditioned task, for hindsight replay: see hil_rl.goals.GoalTask.

    The functions take name -> (n, ...) tensors as observed: the achieved parts of the state that
    an action led to, and the desired parts.

    Attributes:
        achieved, desired: names of the tensors that belong together, in the same order.
        reward: (n,) reward.
        terminated: (n,) bool, the goal ends the episode.
        distance: (n,) distance to the goal.
        tolerance: distance at which the goal is reached.
    """

    achieved: tuple[str, ...]
    desired: tuple[str, ...]
    reward: GoalFunction
    terminated: GoalFunction
    distance: GoalFunction
    tolerance: float


class MissingObject(KeyError):
    """A reading lacks an object that the task needs."""

    def __str__(self) -> str:
        """Message without the quotes of KeyError."""
        return str(self.args[0])


class Task(abc.ABC):
    """A task. Subclasses are found by the entry-point group "hil_tasks".

    A subclass names its parameters in `Params`, a frozen dataclass of the task's own numbers, and
    builds its specification from them in `build_spec`. Overrides are nested mappings: keys are
    fields of `TaskSpec`, and "params" holds fields of `Params`.

    Args:
        overrides: what differs from the defaults.

    Raises:
        OverrideError: unknown setting or wrong type.
    """

    name: ClassVar[str]
    Params: ClassVar[type]

    def __init__(self, overrides: Mapping[str, Any] | None = None) -> None:
        settings = dict(overrides or {})
        where = f"{self.name}."
        params = settings.pop("params", {})
        if not isinstance(params, Mapping):
            raise OverrideError(f"{where}params must be a mapping, not {params!r}")
        self.params = apply_overrides(self.Params(), params, f"{where}params.")
        spec = self.build_spec()
        self.spec: TaskSpec = apply_overrides(spec, settings, where, fixed=_SPEC_FIXED)

    @abc.abstractmethod
    def build_spec(self) -> TaskSpec:
        """Specification with this task's parameters, before overrides."""

    @abc.abstractmethod
    def observe(self, reading: Reading) -> Observation:
        """Observation of a reading, without images: float32, in the order of the specification.

        Raises:
            MissingObject: an object is not in the reading.
        """

    @abc.abstractmethod
    def reward(self, reading: Reading) -> Outcome:
        """Judge the state that an action led to.

        Raises:
            MissingObject: an object is not in the reading.
        """

    def goals(self) -> Goals | None:
        """Goal, where reward and end follow from tensors of the observation; None: no such goal.

        Must agree with `reward`, or hindsight teaches something else than the task.
        """
        return None

    @abc.abstractmethod
    def sample_start(self, rng: np.random.Generator) -> Pose:
        """Random start of the tool centre point for an episode, base frame."""

    @abc.abstractmethod
    def sample_world(self, rng: np.random.Generator) -> dict[str, Pose]:
        """Random object poses for an episode, base frame (simulation)."""

    @abc.abstractmethod
    def scene(self) -> Scene:
        """Objects, tool and cameras for the simulator."""

    def episode(self, seed: int, index: int) -> tuple[Pose, int]:
        """Start pose, and seed for the world, of an episode of a seeded run.

        Whoever runs episode `index` of a run with this seed gets the same one.
        """
        rng = np.random.default_rng([seed, index])
        return self.sample_start(rng), int(rng.integers(1 << 63))

    def object_pose(self, reading: Reading, name: str) -> Pose:
        """Pose of an object of a reading; raises MissingObject with what is there."""
        try:
            return reading.objects[name]
        except KeyError:
            there = ", ".join(sorted(reading.objects)) or "none"
            message = f"task {self.name} needs the pose of object {name!r}; there are: {there}"
            raise MissingObject(message) from None

    def tensors(self, values: Mapping[str, Array]) -> Observation:
        """Scale SI values to the specification's tensors and clip them to their bounds."""
        observation: Observation = {}
        for name, spec in self.spec.observation.items():
            scaled = np.asarray(values[name] / np.asarray(spec.scale), dtype=np.float32)
            observation[name] = np.clip(scaled, spec.low, spec.high).reshape(spec.shape)
        return observation


def uniform(rng: np.random.Generator, bound: float) -> float:
    """Draw one value from [-bound, bound]."""
    return float(rng.uniform(-bound, bound))
