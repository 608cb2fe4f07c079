"""Delta actions: from [-1, 1] to a target pose, and back.

A target is seen as an offset (translation, rotation vector) from the measured pose, in the axes
of the action frame. An action adds to that offset; then each axis is held to the leash. So a
blocked axis stops where the leash ends and the others still move, nothing winds up, and the
executed action that `target_to_delta` returns is never larger than the one that was asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.transform import Rotation

from hil_tasks.geometry import Array, Pose

Frame = Literal["base", "ee"]
Reference = Literal["target", "measured"]


class Scale(Protocol):
    """What an action of 1 means."""

    @property
    def translation(self) -> float:
        """Metres per step."""

    @property
    def rotation(self) -> float:
        """Radians per step."""


@dataclass(frozen=True)
class ActionScale:
    """What an action of 1 means: metres and radians per control step."""

    translation: float
    rotation: float


def delta_to_target(
    action: ArrayLike,
    previous_target: Pose,
    measured: Pose,
    scale: Scale,
    frame: Frame = "base",
    reference: Reference = "target",
    leash_translation: ArrayLike = np.inf,
    leash_rotation: ArrayLike = np.inf,
) -> Pose:
    """Target pose that an action asks for.

    Args:
        action: (6,) in [-1, 1]: translation, then rotation vector. Larger values are clipped.
        previous_target: last commanded target, base frame.
        measured: measured pose of the tool centre point, base frame.
        scale: metres and radians of an action of 1.
        frame: axes of the action. "base": the rotation is multiplied from the left; "ee": axes of
            the measured tool centre point, the rotation is multiplied from the right.
        reference: pose that the action is added to: the last "target", or the "measured" pose.
        leash_translation: largest offset of the target from the measured pose, m, for each axis
            of the frame (scalar or (3,)).
        leash_rotation: the same for the rotation vector, rad.

    Raises:
        ValueError: the action has a wrong shape or is not finite.
    """
    vector = _checked(action)
    leash = _leash(leash_translation, leash_rotation)
    offset = _start(previous_target, measured, frame, reference, leash)
    offset[:3] += vector[:3] * scale.translation
    offset[3:] += vector[3:] * scale.rotation
    return _at(np.clip(offset, -leash, leash), measured, frame)


def target_to_delta(
    applied: Pose,
    previous_target: Pose,
    measured: Pose,
    scale: Scale,
    frame: Frame = "base",
    reference: Reference = "target",
    leash_translation: ArrayLike = np.inf,
    leash_rotation: ArrayLike = np.inf,
) -> Array:
    """Executed action (6,) in [-1, 1] of a target that was applied: inverse of `delta_to_target`.

    With the same arguments as the forward call it is exact: it returns the action as executed
    (what the leash cut off is missing), and applying it again gives the same target. A pose that
    no action reaches (a gate moved it further) gives the nearest action.
    """
    leash = _leash(leash_translation, leash_rotation)
    offset = _offset(applied, measured, frame)
    offset -= _start(previous_target, measured, frame, reference, leash)
    offset[:3] /= scale.translation
    offset[3:] /= scale.rotation
    return np.clip(offset, -1.0, 1.0)


def change_frame(vector: ArrayLike, rotation: Rotation) -> Array:
    """Turn each 3-block of an action or twist (6,) by a rotation: never an adjoint mixing them.

    With the orientation of the end effector this takes an end-effector-frame action to the base
    frame, with its inverse the other way. Components may leave [-1, 1] (a cube turned): scale or
    clip at the source.
    """
    blocks = np.asarray(vector, dtype=np.float64).reshape(2, 3)
    return rotation.apply(blocks).reshape(6)


def _checked(action: ArrayLike) -> Array:
    vector = np.asarray(action, dtype=np.float64)
    if vector.shape != (6,):
        raise ValueError(f"action must have shape (6,), not {vector.shape}")
    if not np.isfinite(vector).all():
        raise ValueError(f"action must be finite, not {vector}")
    return np.clip(vector, -1.0, 1.0)


def _leash(translation: ArrayLike, rotation: ArrayLike) -> Array:
    leash = np.empty(6)
    leash[:3] = translation
    leash[3:] = rotation
    if not (leash > 0.0).all():
        raise ValueError(f"leash must be positive, not {leash}")
    return leash


def _start(
    previous_target: Pose, measured: Pose, frame: Frame, reference: Reference, leash: Array
) -> Array:
    """Offset (6,) from the measured pose that an action is added to."""
    if reference == "measured":
        return np.zeros(6)
    if reference != "target":
        raise ValueError(f"reference must be 'target' or 'measured', not {reference!r}")
    return np.clip(_offset(previous_target, measured, frame), -leash, leash)


def _offset(pose: Pose, measured: Pose, frame: Frame) -> Array:
    offset = np.empty(6)
    offset[:3] = pose.position - measured.position
    if frame == "base":
        offset[3:] = (pose.rotation * measured.rotation.inv()).as_rotvec()
    elif frame == "ee":
        inverse = measured.rotation.inv()
        offset[:3] = inverse.apply(offset[:3])
        offset[3:] = (inverse * pose.rotation).as_rotvec()
    else:
        raise ValueError(f"frame must be 'base' or 'ee', not {frame!r}")
    return offset


def _at(offset: Array, measured: Pose, frame: Frame) -> Pose:
    rotation = Rotation.from_rotvec(offset[3:])
    if frame == "base":
        return Pose(measured.position + offset[:3], rotation * measured.rotation)
    position = measured.position + measured.rotation.apply(offset[:3])
    return Pose(position, measured.rotation * rotation)
