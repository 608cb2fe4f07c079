"""Straight, speed-limited motions of the bridge itself, one target per period.

The generators here know nothing of limits: every target they yield passes through the gate, and
they go on from what the gate applied.
"""

from __future__ import annotations

import math
from collections.abc import Generator

from hil_robot_bridge.limits import Limits, Span, box_excess, cone_excess, nearest_inside
from hil_robot_bridge.poses import RigidPose, angle_between, distance, interpolate

Targets = Generator[RigidPose, RigidPose, None]
"""Yields wanted targets; is sent the applied ones."""

_SAME = Span(1e-6, 1e-6)  # m, rad: two poses that count as one
_LEAST_RATE = 0.1  # of the full speed, so that the ramp comes to its end


def to_go(pose: RigidPose, goal: RigidPose) -> Span:
    """Distance (m) and angle (rad) from a pose to a goal."""
    return Span(
        distance(pose.position, goal.position), angle_between(pose.quaternion, goal.quaternion)
    )


def straight(
    start: RigidPose, goal: RigidPose, speed: Span, period: float, ramp: float = 0.2
) -> Targets:
    """Straight to a goal, orientation by slerp; both arrive together.

    Args:
        start: applied target at the beginning.
        goal: where to.
        speed: full speed, m/s and rad/s.
        period: time between two targets, s.
        ramp: time from rest to full speed and back, s.
    """
    applied, rate = start, 0.0
    while True:
        left = _seconds_left(applied, goal, speed)
        if left <= 0.0:
            return
        rate = min(1.0, rate + period / max(ramp, period))
        if ramp > 0.0:
            rate = min(rate, math.sqrt(2.0 * left / ramp))
        rate = max(rate, _LEAST_RATE)
        applied = yield interpolate(applied, goal, min(1.0, rate * period / left))


def through(
    start: RigidPose, waypoints: list[RigidPose], speed: Span, period: float, ramp: float = 0.2
) -> Targets:
    """Straight from waypoint to waypoint, with a stop at each."""
    applied = start
    for goal in waypoints:
        leg = straight(applied, goal, speed, period, ramp)
        try:
            wanted = next(leg)
            while True:
                applied = yield wanted
                wanted = leg.send(applied)
        except StopIteration:
            continue


def reset_waypoints(
    limits: Limits, present: RigidPose, start: RigidPose, lift: float
) -> list[RigidPose]:
    """Way to the start of an episode: inside first, straight up by `lift`, straight to `start`.

    The lift ends at the top of the box.
    """
    inside = nearest_inside(limits, present)
    x, y, z = inside.position
    top = min(z + max(0.0, lift), limits.box_high[2])
    return [inside, RigidPose((x, y, max(z, top)), inside.quaternion), start]


def outside(limits: Limits, goal: RigidPose) -> str:
    """Why a goal cannot be gone to: it is outside the box or the cone; "" if it is inside."""
    excess = box_excess(limits, goal.position)
    if excess > _SAME.translation:
        return f"goal is {excess * 1e3:.1f} mm outside the workspace box"
    excess = cone_excess(limits, goal.quaternion)
    if excess > _SAME.rotation:
        return f"goal is {excess:.3f} rad outside the orientation cone"
    return ""


def _seconds_left(pose: RigidPose, goal: RigidPose, speed: Span) -> float:
    left = to_go(pose, goal)
    if left.translation <= _SAME.translation and left.rotation <= _SAME.rotation:
        return 0.0
    return max(left.translation / speed.translation, left.rotation / speed.rotation)
