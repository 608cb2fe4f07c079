"""Poses and small rigid-body helpers. SI units, quaternions xyzw, rotations are scipy's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pose:
    """Position and orientation of a frame in a parent frame.

    Attributes:
        position: (3,) float64, m.
        rotation: orientation of the frame's axes in the parent.
    """

    position: Array
    rotation: Rotation

    def __post_init__(self) -> None:
        position = np.asarray(self.position, dtype=np.float64)
        if position.shape != (3,):
            raise ValueError(f"position must have shape (3,), not {position.shape}")
        object.__setattr__(self, "position", position)

    @classmethod
    def identity(cls) -> Pose:
        """Pose of the parent frame itself."""
        return cls(np.zeros(3), Rotation.identity())

    @classmethod
    def from_xyzw(cls, position: ArrayLike, quaternion: Sequence[float] | Array) -> Pose:
        """Pose from a position (3,) in m and a quaternion (4,) xyzw (normalised here)."""
        return cls(np.array(position, dtype=np.float64), Rotation.from_quat(quaternion))

    @property
    def xyzw(self) -> Array:
        """Unit quaternion (4,) xyzw with w >= 0."""
        return self.rotation.as_quat(canonical=True)

    def inverse(self) -> Pose:
        """Pose of the parent frame in this frame."""
        inverse = self.rotation.inv()
        return Pose(-inverse.apply(self.position), inverse)

    def __mul__(self, other: Pose) -> Pose:
        """Compose: pose of `other`, given in this frame, in this frame's parent."""
        position = self.position + self.rotation.apply(other.position)
        return Pose(position, self.rotation * other.rotation)

    def apply(self, point: ArrayLike) -> Array:
        """Point (3,) of this frame in the parent frame."""
        return self.position + self.rotation.apply(np.asarray(point, dtype=np.float64))

    def distance(self, other: Pose) -> tuple[float, float]:
        """Translation (m) and angle (rad) between two poses of one parent."""
        offset = self.position - other.position
        angle = (self.rotation * other.rotation.inv()).magnitude()
        return math.sqrt(float(offset @ offset)), float(angle)

    def almost_equal(self, other: Pose, translation: float = 1e-9, angle: float = 1e-7) -> bool:
        """Whether two poses differ by no more than the tolerances (m, rad)."""
        metres, radians = self.distance(other)
        return metres <= translation and radians <= angle


def pose_offset(pose: Pose, origin: Pose) -> Array:
    """Offset (6,) of `pose` from `origin` in parent axes: translation (m), rotation vector (rad).

    The rotation vector turns `origin` into `pose` by left multiplication.
    """
    rotvec = (pose.rotation * origin.rotation.inv()).as_rotvec()
    return np.concatenate((pose.position - origin.position, rotvec))


def add_offset(origin: Pose, offset: ArrayLike) -> Pose:
    """Inverse of `pose_offset`: the pose at an offset (6,) from `origin`, in parent axes."""
    vector = np.asarray(offset, dtype=np.float64)
    rotation = Rotation.from_rotvec(vector[3:]) * origin.rotation
    return Pose(origin.position + vector[:3], rotation)


def step_towards(start: Pose, goal: Pose, max_translation: float, max_angle: float) -> Pose:
    """Pose on the straight line from `start` to `goal`, within both limits (m, rad).

    Translation and rotation keep their ratio, so both arrive together.
    """
    offset = pose_offset(goal, start)
    translation = math.sqrt(float(offset[:3] @ offset[:3]))
    angle = math.sqrt(float(offset[3:] @ offset[3:]))
    fraction = max(translation / max_translation, angle / max_angle)
    return goal if fraction <= 1.0 else add_offset(start, offset / fraction)


def tilt_and_twist(rotation: Rotation, reference: Rotation) -> tuple[float, float]:
    """Deviation from a reference orientation, split at the tool axis (z).

    Returns:
        tilt: angle between the two tool axes, rad in [0, pi].
        twist: signed turn about the reference's tool axis that remains, rad in (-pi, pi]
            (swing-twist decomposition).
    """
    x, y, z, w = (reference.inv() * rotation).as_quat(canonical=True)
    twist = 2.0 * math.atan2(z, w) if (z or w) else 0.0
    twist = math.remainder(twist, 2.0 * math.pi)
    tilt = 2.0 * math.atan2(math.hypot(x, y), math.hypot(z, w))
    return tilt, twist


def limit_orientation(
    rotation: Rotation, reference: Rotation, cone: float, twist: float
) -> Rotation:
    """Orientation within limits; unchanged if it is inside them already.

    The tilt of the tool axis away from `reference` is shrunk to `cone`, the turn about it to
    `twist`, both rad.
    """
    tilted, turned = tilt_and_twist(rotation, reference)
    if tilted <= cone and abs(turned) <= twist:
        return rotation
    swing = reference.inv() * rotation * Rotation.from_rotvec([0.0, 0.0, -turned])
    if tilted > cone:
        swing = Rotation.from_rotvec(swing.as_rotvec() * (cone / tilted))
    turned = min(max(turned, -twist), twist)
    return reference * swing * Rotation.from_rotvec([0.0, 0.0, turned])
