"""Geometry of the gate: box, orientation cone, leash and step, applied to one target pose.

All of it is convex or made so: the applied pose lies on the way from the present target to the
admissible part of the wanted one, so no limit can undo another. A target that is outside the box
or the cone to begin with may only move inward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from hil_robot_bridge.poses import (
    Quaternion,
    RigidPose,
    Vector3,
    along,
    angle_between,
    conjugate,
    distance,
    from_rotation_vector,
    normalised,
    product,
    quaternion,
    rotate,
    rotation_vector,
    slerp,
    vector3,
)
from hil_tasks.spec import TaskSpec

TOLERANCE = 1e-6
"""Differences below this (m, rad) are no clip and no violation."""

# From outside, at least this share of a motion must lead inward.
_INWARD = 0.5

# Tries to find a short enough piece of a curved way; each one is shorter.
_ATTEMPTS = 10


class Span(NamedTuple):
    """A translation (m) and a rotation (rad)."""

    translation: float
    rotation: float


@dataclass(frozen=True)
class Limits:
    """Limits on the target of one arm.

    Attributes:
        box_low, box_high: (3,) corners of the workspace, base frame, m.
        reference: quaternion xyzw of the tool in the middle of the cone.
        cone: largest angle between tool axis (z) and that of the reference, rad.
        twist: largest turn about the tool axis, rad.
        leash: largest offset of the target from the measured pose, per axis.
        leash_in_tool: whether the axes of the leash are those of the tool (else the base's).
        step: largest change of the target by one command.
        speed: of the target, m/s and rad/s.
    """

    box_low: Vector3
    box_high: Vector3
    reference: Quaternion
    cone: float
    twist: float
    leash: Span
    leash_in_tool: bool
    step: Span
    speed: Span

    @classmethod
    def from_spec(cls, spec: TaskSpec) -> Limits:
        """Limits of a task.

        The step limit is what an action can ask for at most: the diagonal of its scale, and with
        `reference: measured` that of the leash on top.
        """
        lead = spec.leash if spec.reference == "measured" else None
        step = Span(
            math.sqrt(3.0) * (spec.action_scale.translation + (lead.translation if lead else 0.0)),
            math.sqrt(3.0) * (spec.action_scale.rotation + (lead.rotation if lead else 0.0)),
        )
        return cls(
            box_low=vector3(spec.workspace.low),
            box_high=vector3(spec.workspace.high),
            reference=normalised(quaternion(spec.orientation.reference)),
            cone=spec.orientation.cone,
            twist=spec.orientation.twist,
            leash=Span(spec.leash.translation, spec.leash.rotation),
            leash_in_tool=spec.action_frame == "ee",
            step=step,
            speed=Span(spec.speed.linear, spec.speed.angular),
        )


class Limited(NamedTuple):
    """Outcome of `limit`.

    Attributes:
        pose: the target that may be applied.
        moved: how far the target moves by command (not by the pull of the leash).
        clipped: names of the limits that changed what was wanted.
        refused: why nothing may be applied; "" if something may.
    """

    pose: RigidPose
    moved: Span
    clipped: tuple[str, ...]
    refused: str


class Deviation(NamedTuple):
    """Tilt of the tool axis from the reference's, and turn about it, rad."""

    tilt: float
    twist: float


def deviation(limits: Limits, q: Quaternion) -> Deviation:
    """Deviation of an orientation from the reference."""
    x, y, z, w = product(conjugate(limits.reference), q)
    twist = math.remainder(2.0 * math.atan2(z, w), 2.0 * math.pi) if z or w else 0.0
    return Deviation(2.0 * math.atan2(math.hypot(x, y), math.hypot(z, w)), twist)


def box_excess(limits: Limits, p: Vector3) -> float:
    """Distance of a point from the box, m; 0 inside."""
    return math.dist(p, _clamp(p, limits.box_low, limits.box_high))


def cone_excess(limits: Limits, q: Quaternion) -> float:
    """How far an orientation is outside its limits, rad; 0 inside."""
    tilt, twist = deviation(limits, q)
    return max(0.0, tilt - limits.cone) + max(0.0, abs(twist) - limits.twist)


def nearest_inside(limits: Limits, pose: RigidPose) -> RigidPose:
    """Nearest pose inside box and cone."""
    return RigidPose(
        _clamp(pose.position, limits.box_low, limits.box_high),
        _into_cone(limits, pose.quaternion, limits.cone, limits.twist),
    )


def never_further_out(limits: Limits, pose: RigidPose, target: RigidPose) -> RigidPose:
    """Nearest pose that is inside box and cone, or no further outside than `target`."""
    low, high = _hull(limits, target.position)
    cone, twist = _widened(limits, target.quaternion)
    return RigidPose(
        _clamp(pose.position, low, high), _into_cone(limits, pose.quaternion, cone, twist)
    )


def limit(
    limits: Limits,
    target: RigidPose,
    wanted: RigidPose,
    measured: RigidPose,
    budget: Span,
    leash: Span | None = None,
) -> Limited:
    """Target that may be applied for a wanted one.

    Args:
        limits: of the arm.
        target: in force now.
        wanted: finite, with a unit quaternion.
        measured: finite, with a unit quaternion.
        budget: what the speed limit leaves for this command.
        leash: instead of `limits.leash`.
    """
    leash = leash or limits.leash
    clipped: list[str] = []
    position, moved = _limit_position(limits, target, wanted, measured, budget, leash, clipped)
    orientation, turned = _limit_orientation(
        limits, target, wanted, measured, budget, leash, clipped
    )
    pose = RigidPose(position, orientation)
    refused = _outward(limits, target, pose)
    if refused:
        return Limited(target, Span(0.0, 0.0), (), refused)
    return Limited(pose, Span(moved, turned), tuple(clipped), "")


# -- position ------------------------------------------------------------------------------------


def _limit_position(
    limits: Limits,
    target: RigidPose,
    wanted: RigidPose,
    measured: RigidPose,
    budget: Span,
    leash: Span,
    clipped: list[str],
) -> tuple[Vector3, float]:
    low, high = _hull(limits, target.position)
    goal = _clamp(wanted.position, low, high)
    if goal != wanted.position and distance(goal, wanted.position) > TOLERANCE:
        clipped.append("workspace box")
    leashed = _leash_position(limits, goal, measured, leash.translation)
    if leashed != goal:
        if distance(leashed, goal) > TOLERANCE:
            clipped.append("leash")
        goal = _clamp(leashed, low, high)
    start = _clamp(
        _leash_position(limits, target.position, measured, leash.translation), low, high
    )
    way = distance(start, goal)
    allowed = min(limits.step.translation, budget.translation)
    if way > allowed:
        if way > allowed + TOLERANCE:
            _note_step(clipped, limits.step.translation <= budget.translation)
        goal, way = along(start, goal, allowed / way), allowed
    return goal, way


def _leash_position(limits: Limits, point: Vector3, measured: RigidPose, leash: float) -> Vector3:
    """Point on the way to the measured position, within the leash."""
    origin = measured.position
    offset = (point[0] - origin[0], point[1] - origin[1], point[2] - origin[2])
    if limits.leash_in_tool:
        offset = rotate(conjugate(measured.quaternion), offset)
    longest = max(abs(offset[0]), abs(offset[1]), abs(offset[2]))
    return along(origin, point, leash / longest) if longest > leash * (1.0 + 1e-9) else point


def _hull(limits: Limits, p: Vector3) -> tuple[Vector3, Vector3]:
    """The box, widened to contain the point."""
    low, high = limits.box_low, limits.box_high
    if p == _clamp(p, low, high):
        return low, high
    return (
        (min(low[0], p[0]), min(low[1], p[1]), min(low[2], p[2])),
        (max(high[0], p[0]), max(high[1], p[1]), max(high[2], p[2])),
    )


def _clamp(p: Vector3, low: Vector3, high: Vector3) -> Vector3:
    return (
        min(max(p[0], low[0]), high[0]),
        min(max(p[1], low[1]), high[1]),
        min(max(p[2], low[2]), high[2]),
    )


# -- orientation ---------------------------------------------------------------------------------


def _limit_orientation(
    limits: Limits,
    target: RigidPose,
    wanted: RigidPose,
    measured: RigidPose,
    budget: Span,
    leash: Span,
    clipped: list[str],
) -> tuple[Quaternion, float]:
    cone, twist = _widened(limits, target.quaternion)
    goal = _into_cone(limits, wanted.quaternion, cone, twist)
    if goal is not wanted.quaternion and angle_between(goal, wanted.quaternion) > TOLERANCE:
        clipped.append("orientation cone")
    leashed = _leash_orientation(limits, goal, measured, leash.rotation, cone, twist)
    if leashed is not goal:
        if "leash" not in clipped and angle_between(leashed, goal) > TOLERANCE:
            clipped.append("leash")
        goal = leashed
    start = _leash_orientation(limits, target.quaternion, measured, leash.rotation, cone, twist)
    way = angle_between(start, goal)
    allowed = min(limits.step.rotation, budget.rotation)
    if way > allowed:
        if way > allowed + TOLERANCE:
            _note_step(clipped, limits.step.rotation <= budget.rotation)
        goal = _turn_inside(limits, start, goal, allowed, cone, twist)
        way = allowed
    return goal, way


def _leash_orientation(
    limits: Limits,
    q: Quaternion,
    measured: RigidPose,
    leash: float,
    cone: float,
    twist: float,
) -> Quaternion:
    """Orientation on the way to the measured one, within the leash and inside the cone.

    The axes of the leash do not matter: they are turned by the very rotation that is limited.
    """
    longest = _longest_turn(q, measured.quaternion)
    if longest <= leash * (1.0 + 1e-9):
        return q
    direct = slerp(measured.quaternion, q, leash / longest)
    if _inside(limits, direct, cone, twist):
        return direct
    if not _inside(limits, measured.quaternion, cone, twist):
        return _into_cone(limits, direct, cone, twist)
    way = _Way(limits, measured.quaternion, q, twist)
    fraction = leash / longest
    for _ in range(_ATTEMPTS):
        candidate = way.at(fraction)
        longest = _longest_turn(candidate, measured.quaternion)
        if longest <= leash:
            return candidate
        fraction *= 0.95 * leash / longest
    return measured.quaternion


def _longest_turn(a: Quaternion, b: Quaternion) -> float:
    """Largest component of the rotation vector between two orientations, rad."""
    vector = rotation_vector(product(a, conjugate(b)))
    return max(abs(vector[0]), abs(vector[1]), abs(vector[2]))


def _widened(limits: Limits, q: Quaternion) -> tuple[float, float]:
    """Cone and twist limit, widened to contain the orientation."""
    tilt, twist = deviation(limits, q)
    return max(limits.cone, tilt), max(limits.twist, abs(twist))


def _into_cone(limits: Limits, q: Quaternion, cone: float, twist: float) -> Quaternion:
    """Return the orientation itself if it is inside, else with its tilt and twist shrunk."""
    if _inside(limits, q, cone, twist):
        return q
    sx, sy, turn = _coordinates(limits, q)
    tilt = math.hypot(sx, sy)
    if tilt > cone:
        scale = cone / tilt
        sx, sy = sx * scale, sy * scale
    return _orientation(limits, (sx, sy, min(max(turn, -twist), twist)))


def _turn_inside(
    limits: Limits, start: Quaternion, goal: Quaternion, angle: float, cone: float, twist: float
) -> Quaternion:
    """Turn from `start` towards `goal` by at most `angle`, without leaving the cone on the way.

    The shortest way between two orientations inside can lead outside by a little. Then the way
    that is straight in tilt and twist is taken, which cannot.
    """
    if angle <= 0.0:
        return start
    fraction = angle / angle_between(start, goal)
    direct = slerp(start, goal, fraction)
    if _inside(limits, direct, cone, twist):
        return direct
    way = _Way(limits, start, goal, twist)
    for _ in range(_ATTEMPTS):
        candidate = way.at(fraction)
        reached = angle_between(start, candidate)
        if reached <= angle:
            return candidate
        fraction *= 0.95 * angle / reached
    return start


class _Way:
    """Way between two orientations inside the cone that is straight in tilt and twist."""

    def __init__(self, limits: Limits, start: Quaternion, goal: Quaternion, twist: float) -> None:
        self._limits = limits
        self._start = _coordinates(limits, start)
        end = _coordinates(limits, goal)
        x, y, turn = (b - a for a, b in zip(self._start, end, strict=True))
        if twist >= math.pi:
            turn = math.remainder(turn, 2.0 * math.pi)
        self._offset = (x, y, turn)

    def at(self, fraction: float) -> Quaternion:
        """Orientation at a fraction of the way."""
        (ax, ay, at), (x, y, turn) = self._start, self._offset
        return _orientation(
            self._limits, (ax + x * fraction, ay + y * fraction, at + turn * fraction)
        )


def _inside(limits: Limits, q: Quaternion, cone: float, twist: float) -> bool:
    tilt, turn = deviation(limits, q)
    return tilt <= cone and abs(turn) <= twist


def _coordinates(limits: Limits, q: Quaternion) -> Vector3:
    """Rotation vector of the tilt (x, y of the reference) and the turn about the tool axis."""
    relative = product(conjugate(limits.reference), q)
    turn = deviation(limits, q).twist
    swing = product(relative, from_rotation_vector((0.0, 0.0, -turn)))
    x, y, _ = rotation_vector(swing)
    return x, y, turn


def _orientation(limits: Limits, coordinates: Vector3) -> Quaternion:
    x, y, turn = coordinates
    swing = from_rotation_vector((x, y, 0.0))
    relative = product(swing, from_rotation_vector((0.0, 0.0, turn)))
    return normalised(product(limits.reference, relative))


# -- both ----------------------------------------------------------------------------------------


def _note_step(clipped: list[str], by_step: bool) -> None:
    name = "step limit" if by_step else "speed limit"
    if name not in clipped:
        clipped.append(name)


def _outward(limits: Limits, target: RigidPose, pose: RigidPose) -> str:
    """Why a motion from outside is refused: it does not lead inward."""
    before = box_excess(limits, target.position)
    if before > TOLERANCE:
        way = distance(target.position, pose.position)
        if not _leads_inward(before - box_excess(limits, pose.position), way):
            return f"{before * 1e3:.1f} mm outside the workspace box: only inward motion is taken"
    before = cone_excess(limits, target.quaternion)
    if before > TOLERANCE:
        way = angle_between(target.quaternion, pose.quaternion)
        if not _leads_inward(before - cone_excess(limits, pose.quaternion), way):
            return f"{before:.3f} rad outside the orientation cone: only inward motion is taken"
    return ""


def _leads_inward(gain: float, way: float) -> bool:
    return gain >= _INWARD * way - 1e-9
