"""The hand's motion in simulated time: width, speed, and what is between the fingers."""

from __future__ import annotations

from dataclasses import dataclass

from hil_sim.fr3 import GRIPPER_WIDTH


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
        if not 0.0 <= width <= GRIPPER_WIDTH:
            raise ValueError(f"width {width} m is outside [0, {GRIPPER_WIDTH}]")
        if not speed > 0.0:
            raise ValueError(f"speed {speed} m/s must be > 0")
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

    def _next(self, step: float) -> float:
        if self.goal > self.width:
            return min(self.goal, self.width + step)
        return max(self.goal, self.object_width, self.width - step)
