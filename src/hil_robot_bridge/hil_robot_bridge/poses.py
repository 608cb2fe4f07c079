"""Poses as plain tuples for the control path: no allocation of arrays, a few microseconds each.

The rest of the project uses `hil_tasks.geometry.Pose`; `RigidPose` is its lean twin for code that
runs on every command and every state. SI units, quaternions xyzw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hil_tasks.geometry import Pose

Vector3 = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]

IDENTITY: Quaternion = (0.0, 0.0, 0.0, 1.0)


class RigidPose(NamedTuple):
    """Position (m) and unit quaternion (xyzw) of a frame in its parent."""

    position: Vector3
    quaternion: Quaternion

    @classmethod
    def of(cls, pose: Pose) -> RigidPose:
        """From a `hil_tasks.geometry.Pose`."""
        return cls(vector3(pose.position), quaternion(pose.xyzw))

    @property
    def pose(self) -> Pose:
        """As a `hil_tasks.geometry.Pose`."""
        return Pose.from_xyzw(self.position, self.quaternion)


def vector3(values: Iterable[float]) -> Vector3:
    """Tuple of three floats."""
    x, y, z = map(float, values)
    return x, y, z


def quaternion(values: Iterable[float]) -> Quaternion:
    """Tuple of four floats (not normalised)."""
    x, y, z, w = map(float, values)
    return x, y, z, w


def all_finite(values: Sequence[float]) -> bool:
    """Whether no value is NaN or infinite."""
    return all(map(math.isfinite, values))


def distance(a: Vector3, b: Vector3) -> float:
    """Distance of two points, m."""
    return math.dist(a, b)


def along(a: Vector3, b: Vector3, fraction: float) -> Vector3:
    """Point on the way from `a` (0) to `b` (1)."""
    if fraction >= 1.0:
        return b
    return (
        a[0] + (b[0] - a[0]) * fraction,
        a[1] + (b[1] - a[1]) * fraction,
        a[2] + (b[2] - a[2]) * fraction,
    )


def normalised(q: Quaternion) -> Quaternion:
    """Unit quaternion of a nonzero one."""
    x, y, z, w = q
    norm = math.sqrt(x * x + y * y + z * z + w * w)
    return x / norm, y / norm, z / norm, w / norm


def product(a: Quaternion, b: Quaternion) -> Quaternion:
    """Rotation `b`, then rotation `a`."""
    ax, ay, az, aw = a
    bx, by, bz, bw = b
    return (
        aw * bx + ax * bw + ay * bz - az * by,
        aw * by - ax * bz + ay * bw + az * bx,
        aw * bz + ax * by - ay * bx + az * bw,
        aw * bw - ax * bx - ay * by - az * bz,
    )


def conjugate(q: Quaternion) -> Quaternion:
    """Inverse of a unit quaternion."""
    return -q[0], -q[1], -q[2], q[3]


def rotate(q: Quaternion, v: Vector3) -> Vector3:
    """Vector `v` turned by `q`."""
    x, y, z, w = q
    tx = 2.0 * (y * v[2] - z * v[1])
    ty = 2.0 * (z * v[0] - x * v[2])
    tz = 2.0 * (x * v[1] - y * v[0])
    return (
        v[0] + w * tx + y * tz - z * ty,
        v[1] + w * ty + z * tx - x * tz,
        v[2] + w * tz + x * ty - y * tx,
    )


def angle_between(a: Quaternion, b: Quaternion) -> float:
    """Geodesic angle between two orientations, rad in [0, pi]. Accurate near 0."""
    if a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3] < 0.0:
        b = (-b[0], -b[1], -b[2], -b[3])
    return 4.0 * math.asin(min(1.0, 0.5 * math.dist(a, b)))


def rotation_vector(q: Quaternion) -> Vector3:
    """Rotation vector of a unit quaternion, length in [0, pi]."""
    x, y, z, w = q if q[3] >= 0.0 else (-q[0], -q[1], -q[2], -q[3])
    sine = math.sqrt(x * x + y * y + z * z)
    if sine < 1e-12:
        return 2.0 * x, 2.0 * y, 2.0 * z
    scale = 2.0 * math.atan2(sine, w) / sine
    return x * scale, y * scale, z * scale


def from_rotation_vector(v: Vector3) -> Quaternion:
    """Unit quaternion of a rotation vector."""
    angle = math.sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2])
    if angle < 1e-12:
        return normalised((0.5 * v[0], 0.5 * v[1], 0.5 * v[2], 1.0))
    scale = math.sin(0.5 * angle) / angle
    return v[0] * scale, v[1] * scale, v[2] * scale, math.cos(0.5 * angle)


def slerp(a: Quaternion, b: Quaternion, fraction: float) -> Quaternion:
    """Orientation on the shortest way from `a` (0) to `b` (1)."""
    if fraction >= 1.0:
        return b
    cosine = a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]
    if cosine < 0.0:
        b = (-b[0], -b[1], -b[2], -b[3])
    angle = 2.0 * math.asin(min(1.0, 0.5 * math.dist(a, b)))
    if angle < 1e-9:
        return a
    sine = math.sin(angle)
    s, t = math.sin((1.0 - fraction) * angle) / sine, math.sin(fraction * angle) / sine
    return normalised(
        (
            s * a[0] + t * b[0],
            s * a[1] + t * b[1],
            s * a[2] + t * b[2],
            s * a[3] + t * b[3],
        )
    )


def interpolate(a: RigidPose, b: RigidPose, fraction: float) -> RigidPose:
    """Pose on the straight way from `a` (0) to `b` (1), orientation by slerp."""
    return RigidPose(
        along(a.position, b.position, fraction), slerp(a.quaternion, b.quaternion, fraction)
    )
