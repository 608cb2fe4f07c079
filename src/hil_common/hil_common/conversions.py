"""Poses, twists and stamps between plain values and messages."""

from __future__ import annotations

import numpy as np
from builtin_interfaces.msg import Time
from geometry_msgs.msg import Pose as PoseMsg
from geometry_msgs.msg import Twist, Wrench
from numpy.typing import NDArray

from hil_tasks.geometry import Pose

NANOSECONDS = 1_000_000_000


def to_ns(stamp: Time) -> int:
    """Stamp in nanoseconds."""
    return int(stamp.sec) * NANOSECONDS + int(stamp.nanosec)


def from_ns(nanoseconds: int) -> Time:
    """Stamp from nanoseconds."""
    return Time(sec=nanoseconds // NANOSECONDS, nanosec=nanoseconds % NANOSECONDS)


def pose_to_msg(pose: Pose) -> PoseMsg:
    """Pose as geometry_msgs/Pose."""
    message = PoseMsg()
    fill_pose(message, pose.position, pose.xyzw)
    return message


def fill_pose(message: PoseMsg, position: NDArray[np.float64], xyzw: NDArray[np.float64]) -> None:
    """Write position (3,) m and quaternion (4,) into a message that is used again."""
    point, quaternion = message.position, message.orientation
    point.x, point.y, point.z = map(float, position)
    quaternion.x, quaternion.y, quaternion.z, quaternion.w = map(float, xyzw)


def pose_from_msg(message: PoseMsg) -> Pose:
    """Pose from geometry_msgs/Pose.

    Raises:
        ValueError: a value that is not finite, or a quaternion whose norm is not near 1.
    """
    values = pose_values(message)
    if not np.isfinite(values).all():
        raise ValueError("pose has a value that is not finite")
    norm = float(np.linalg.norm(values[3:]))
    if abs(norm - 1.0) > 1e-2:
        raise ValueError(f"pose has a quaternion of norm {norm:.3g}, not 1")
    return Pose.from_xyzw(values[:3], values[3:])


def pose_values(message: PoseMsg) -> NDArray[np.float64]:
    """The seven numbers of a pose, as they came: x y z, quaternion xyzw."""
    p, q = message.position, message.orientation
    return np.array([p.x, p.y, p.z, q.x, q.y, q.z, q.w])


def twist_values(message: Twist) -> NDArray[np.float64]:
    """Twist (6,): linear (m/s), angular (rad/s)."""
    v, w = message.linear, message.angular
    return np.array([v.x, v.y, v.z, w.x, w.y, w.z])


def wrench_values(message: Wrench) -> NDArray[np.float64]:
    """Wrench (6,): force (N), torque (Nm)."""
    f, t = message.force, message.torque
    return np.array([f.x, f.y, f.z, t.x, t.y, t.z])
