"""Measured state of one arm."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hil_robot_bridge.poses import RigidPose, all_finite

Six = tuple[float, float, float, float, float, float]

_NORM_TOLERANCE = 1e-2


@dataclass(frozen=True)
class ArmState:
    """What is measured of one arm at one moment, as it came: nothing is checked yet.

    Attributes:
        stamp_ns: of the measurement.
        pose: tool centre point in the base frame.
        twist: of the tool centre point, base axes, m/s and rad/s.
        wrench: external, on the tool centre point, base axes, N and Nm.
        q, dq: joint positions (rad) and velocities (rad/s).
        gripper_width: gap between the fingers, m; 0 without a gripper.
    """

    stamp_ns: int
    pose: RigidPose
    twist: Six = (0.0,) * 6
    wrench: Six = (0.0,) * 6
    q: tuple[float, ...] = (0.0,) * 7
    dq: tuple[float, ...] = (0.0,) * 7
    gripper_width: float = 0.0

    def fault(self) -> str:
        """Why the state cannot be used; "" if it can."""
        if not all_finite((*self.pose.position, *self.pose.quaternion)):
            return "measured pose is not finite"
        if abs(math.hypot(*self.pose.quaternion) - 1.0) > _NORM_TOLERANCE:
            return "measured orientation is no unit quaternion"
        if not all_finite((*self.twist, *self.wrench)):
            return "measured twist or wrench is not finite"
        if not all_finite((*self.q, *self.dq)):
            return "measured joint state is not finite"
        return ""
