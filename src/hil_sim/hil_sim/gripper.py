"""The hand's motion in simulated time: width, speed, and what is between the fingers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mujoco

from hil_sim.fr3 import FINGER_JOINTS, GRASP_FORCE, GRIPPER_WIDTH

_STILL = 2e-3  # m/s; slower fingers are at rest
_ARRIVED = 1e-3  # m
_START = 0.1  # s after a command in which fingers that are not where they should be set off


class Hand(Protocol):
    """What moves the fingers."""

    @property
    def width(self) -> float:
        """Gap between the fingers, m."""

    @property
    def moving(self) -> bool:
        """Whether the width still changes."""

    @property
    def blocked(self) -> bool:
        """Whether an object keeps the fingers from their goal."""

    def move(self, width: float, speed: float) -> None:
        """Begin a motion to a width (m) at a speed (m/s).

        Raises:
            ValueError: the width is outside the stroke, or the speed is not positive.
        """

    def stop(self) -> None:
        """Stay at the present width."""

    def advance(self, seconds: float) -> None:
        """Time has passed."""

    def reset(self) -> None:
        """Be as at the beginning of an episode."""


@dataclass
class Gripper:
    """Kinematic gripper: the width goes to its goal at a speed and stops at a held object.

    Attributes:
        object_width: of what the fingers hold from the start, m; 0: nothing.
    """

    object_width: float = 0.0

    def __post_init__(self) -> None:
        self.width = self.object_width if self.object_width > 0.0 else GRIPPER_WIDTH
        self.goal = self.width
        self.speed = 0.1

    def move(self, width: float, speed: float) -> None:
        """Begin a motion to a width (m) at a speed (m/s).

        Raises:
            ValueError: the width is outside the stroke, or the speed is not positive.
        """
        _check(width, speed)
        self.goal, self.speed = width, speed

    def stop(self) -> None:
        """Stay at the present width."""
        self.goal = self.width

    @property
    def moving(self) -> bool:
        """Whether the width still changes."""
        return self._next(1e-6) != self.width

    @property
    def blocked(self) -> bool:
        """Whether an object keeps the fingers from their goal."""
        return not self.moving and self.width > self.goal + 1e-6

    def advance(self, seconds: float) -> None:
        """Move for a time (s)."""
        self.width = self._next(self.speed * seconds)

    def reset(self) -> None:
        """Nothing: what the hand holds it holds from the start."""

    def _next(self, step: float) -> float:
        if self.goal > self.width:
            return min(self.goal, self.width + step)
        return max(self.goal, self.object_width, self.width - step)


class Fingers:
    """Fingers that move under physics and grasp what is between them (`Scene.grasping`).

    Args:
        model, data: the simulation, with the finger joints behind those of the arm.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._model, self._data = model, data
        joints = [model.joint(name) for name in FINGER_JOINTS]
        self._at = [int(joint.qposadr[0]) for joint in joints]
        self._dof = [int(joint.dofadr[0]) for joint in joints]
        self.reset()

    @property
    def width(self) -> float:
        """Gap between the fingers, m."""
        left, right = self._data.qpos[self._at]
        return float(min(max(left + right, 0.0), GRIPPER_WIDTH))

    @property
    def moving(self) -> bool:
        """Whether the width still changes."""
        setting_off = self._since < _START and abs(self.width - self._goal) > _ARRIVED
        return setting_off or abs(float(self._data.qvel[self._dof].sum())) > _STILL

    @property
    def blocked(self) -> bool:
        """Whether an object keeps the fingers from their goal."""
        return not self.moving and abs(self.width - self._goal) > _ARRIVED

    def move(self, width: float, speed: float) -> None:
        """Begin a motion to a width (m) at a speed (m/s).

        Raises:
            ValueError: the width is outside the stroke, or the speed is not positive.
        """
        _check(width, speed)
        self._goal, self._since = width, 0.0
        self._data.ctrl[:2] = width / 2
        self._model.dof_damping[self._dof] = 2.0 * GRASP_FORCE / speed

    def stop(self) -> None:
        """Stay at the present width."""
        self.move(self.width, 0.1)

    def advance(self, seconds: float) -> None:
        """Time has passed."""
        self._since += seconds

    def reset(self) -> None:
        """Open, at once."""
        self.move(GRIPPER_WIDTH, 0.1)
        self._data.qpos[self._at] = GRIPPER_WIDTH / 2
        self._data.qvel[self._dof] = 0.0


def _check(width: float, speed: float) -> None:
    if not 0.0 <= width <= GRIPPER_WIDTH:
        raise ValueError(f"width {width} m is outside [0, {GRIPPER_WIDTH}]")
    if not speed > 0.0:
        raise ValueError(f"speed {speed} m/s must be > 0")
