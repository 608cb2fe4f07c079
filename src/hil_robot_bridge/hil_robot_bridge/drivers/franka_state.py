"""Mode, errors and success rate out of a serialized franka_msgs/FrankaRobotState.

The message costs almost two milliseconds to deserialize in Python and comes at 1 kHz. What the
bridge needs of it stands in its tail, which has a fixed size: time and success rate (float64),
mode (uint8), current errors and last motion errors (36 bool each).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum

from hil_robot_bridge.drivers.base import RobotMode

ERROR_NAMES = (
    "joint_position_limits_violation",
    "cartesian_position_limits_violation",
    "self_collision_avoidance_violation",
    "joint_velocity_violation",
    "cartesian_velocity_violation",
    "force_control_safety_violation",
    "joint_reflex",
    "cartesian_reflex",
    "max_goal_pose_deviation_violation",
    "max_path_pose_deviation_violation",
    "cartesian_velocity_profile_safety_violation",
    "joint_position_motion_generator_start_pose_invalid",
    "joint_motion_generator_position_limits_violation",
    "joint_motion_generator_velocity_limits_violation",
    "joint_motion_generator_velocity_discontinuity",
    "joint_motion_generator_acceleration_discontinuity",
    "cartesian_position_motion_generator_start_pose_invalid",
    "cartesian_motion_generator_elbow_limit_violation",
    "cartesian_motion_generator_velocity_limits_violation",
    "cartesian_motion_generator_velocity_discontinuity",
    "cartesian_motion_generator_acceleration_discontinuity",
    "cartesian_motion_generator_elbow_sign_inconsistent",
    "cartesian_motion_generator_start_elbow_invalid",
    "cartesian_motion_generator_joint_position_limits_violation",
    "cartesian_motion_generator_joint_velocity_limits_violation",
    "cartesian_motion_generator_joint_velocity_discontinuity",
    "cartesian_motion_generator_joint_acceleration_discontinuity",
    "cartesian_position_motion_generator_invalid_frame",
    "force_controller_desired_force_tolerance_violation",
    "controller_torque_discontinuity",
    "start_elbow_sign_inconsistent",
    "communication_constraints_violation",
    "power_limit_violation",
    "joint_p2p_insufficient_torque_for_planning",
    "tau_j_range_violation",
    "instability_detected",
)
"""Fields of franka_msgs/Errors in their order."""

_HEADER = 4  # encapsulation of CDR
_TAIL = 8 + 8 + 1 + 2 * len(ERROR_NAMES)
_MOST_PADDING = 3  # payloads are padded to four bytes


class FrankaMode(IntEnum):
    """Values of franka_msgs/FrankaRobotState.robot_mode."""

    OTHER = 0
    IDLE = 1
    MOVE = 2
    GUIDING = 3
    REFLEX = 4
    USER_STOPPED = 5
    AUTOMATIC_ERROR_RECOVERY = 6


_MODES: dict[FrankaMode, tuple[RobotMode, str]] = {
    FrankaMode.OTHER: (
        RobotMode.IDLE,
        "the robot is not ready: open the brakes and activate FCI in Desk, then call recover",
    ),
    FrankaMode.IDLE: (
        RobotMode.IDLE,
        "the robot is idle: open the brakes and activate FCI in Desk, then call recover",
    ),
    FrankaMode.GUIDING: (
        RobotMode.GUIDING,
        "the robot is being guided by hand: let go of the guiding button, then call recover",
    ),
    FrankaMode.REFLEX: (
        RobotMode.REFLEX,
        "the robot stopped by reflex: make sure that the way is clear, then call recover",
    ),
    FrankaMode.USER_STOPPED: (
        RobotMode.USER_STOPPED,
        "user stop: release the external activation device at the robot, then call recover",
    ),
    FrankaMode.AUTOMATIC_ERROR_RECOVERY: (RobotMode.REFLEX, "the robot is recovering: wait"),
}


@dataclass(frozen=True)
class FrankaStatus:
    """What the robot says of itself.

    Attributes:
        time: of the robot, s.
        success_rate: share of control commands that arrived in time, 0..1.
        mode: robot mode.
        errors: names of the current errors.
    """

    time: float
    success_rate: float
    mode: FrankaMode
    errors: tuple[str, ...]

    @property
    def judgement(self) -> tuple[RobotMode, str]:
        """Mode for the bridge, and what a person has to do; MOVE is HOLD with nothing to do."""
        if self.mode == FrankaMode.MOVE:
            return RobotMode.HOLD, ""
        mode, text = _MODES[self.mode]
        return mode, f"{text} ({', '.join(self.errors)})" if self.errors else text


def parse(data: bytes) -> FrankaStatus:
    """Status from a serialized FrankaRobotState.

    Raises:
        ValueError: the bytes are not such a message; says what is wrong.
    """
    size = len(data)
    if size < _HEADER + _TAIL:
        raise ValueError(f"FrankaRobotState of {size} bytes is too short")
    if data[0] != 0 or data[1] not in (0, 1):
        raise ValueError("FrankaRobotState is not plain CDR")
    order = "<" if data[1] == 1 else ">"
    padding = (size - _HEADER - _TAIL) % 8
    if padding > _MOST_PADDING:
        raise ValueError(f"FrankaRobotState of {size} bytes has its tail at no multiple of 8")
    end = size - padding
    time, rate, mode = struct.unpack_from(order + "ddB", data, end - _TAIL)
    flags = data[end - 2 * len(ERROR_NAMES) : end]
    if any(flag > 1 for flag in flags):
        raise ValueError("FrankaRobotState has error flags that are no booleans")
    if mode > max(FrankaMode):
        raise ValueError(f"FrankaRobotState has unknown mode {mode}")
    if not (math.isfinite(time) and math.isfinite(rate)):
        raise ValueError("FrankaRobotState has a time or success rate that is not finite")
    current = flags[: len(ERROR_NAMES)]
    errors: tuple[str, ...] = ()
    if any(current):
        errors = tuple(name for name, flag in zip(ERROR_NAMES, current, strict=True) if flag)
    return FrankaStatus(time, rate, FrankaMode(mode), errors)
