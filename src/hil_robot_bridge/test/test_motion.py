"""Own motions, without gate and robot."""

from __future__ import annotations

import itertools
import math

import pytest

from hil_robot_bridge.limits import Limits, Span
from hil_robot_bridge.motion import (
    Targets,
    outside,
    reset_waypoints,
    straight,
    through,
    to_go,
)
from hil_robot_bridge.poses import RigidPose, from_rotation_vector, product

DOWN = (1.0, 0.0, 0.0, 0.0)
A = RigidPose((0.5, 0.0, 0.2), DOWN)
TURNED = product(from_rotation_vector((0.0, 0.0, 0.4)), DOWN)
B = RigidPose((0.6, 0.1, 0.2), TURNED)
SPEED = Span(0.1, 0.5)
LIMITS = Limits(
    (0.3, -0.2, 0.0),
    (0.7, 0.2, 0.4),
    DOWN,
    0.3,
    0.5,
    Span(0.02, 0.2),
    False,
    Span(1.0, 1.0),
    Span(1.0, 1.0),
)


def run(path: Targets, start: RigidPose, share: float = 1.0) -> list[RigidPose]:
    """Targets as applied by someone who grants only a share of every step."""
    way = [start]
    wanted = next(path, None)
    while wanted is not None:
        step = tuple(
            a + (b - a) * share for a, b in zip(way[-1].position, wanted.position, strict=True)
        )
        last = to_go(wanted, B).translation < 1e-9
        applied = wanted if share == 1.0 or last else RigidPose(step, wanted.quaternion)
        way.append(applied)
        assert len(way) < 10_000
        try:
            wanted = path.send(applied)
        except StopIteration:
            break
    return way


def test_straight_slow_and_complete() -> None:
    way = run(straight(A, B, SPEED, 0.02), A)
    assert to_go(way[-1], B) == (0.0, 0.0)
    steps = [to_go(a, b) for a, b in itertools.pairwise(way)]
    assert max(step.translation for step in steps) <= 0.1 * 0.02 + 1e-9
    assert max(step.rotation for step in steps) <= 0.5 * 0.02 + 1e-9
    assert steps[0].translation < 0.3 * 0.1 * 0.02
    assert steps[-1].translation < 0.5 * 0.1 * 0.02
    for pose in way:
        assert pose.position[0] - 0.5 == pytest.approx(pose.position[1], abs=1e-9)
    total = to_go(A, B)
    for pose in way:
        done = to_go(A, pose)
        assert done.translation / total.translation == pytest.approx(
            done.rotation / total.rotation, abs=1e-6
        )


def test_it_goes_on_from_what_was_applied() -> None:
    way = run(straight(A, B, SPEED, 0.1, ramp=0.0), A, share=0.5)
    steps = [to_go(a, b).translation for a, b in itertools.pairwise(way)]
    assert max(steps) <= 0.1 * 0.1 + 1e-9
    assert to_go(way[-1], B).translation < 1e-6


def test_nothing_to_do() -> None:
    assert list(straight(A, A, SPEED, 0.1)) == []
    assert run(through(A, [A, A], SPEED, 0.1), A) == [A]


def test_reset_lifts_first() -> None:
    ways = reset_waypoints(LIMITS, A, B, lift=0.1)
    assert ways == [A, RigidPose((0.5, 0.0, pytest.approx(0.3)), DOWN), B]
    corners = run(through(A, ways, SPEED, 0.1), A)
    lifted = max(corners, key=lambda pose: pose.position[2])
    assert lifted.position[2] == pytest.approx(0.3)
    assert corners[-1] == B


def test_lift_ends_at_the_top_of_the_box() -> None:
    assert reset_waypoints(LIMITS, A, B, lift=5.0)[1].position[2] == 0.4
    assert reset_waypoints(LIMITS, A, B, lift=-1.0)[1] == A


def test_reset_from_outside_goes_inside_first() -> None:
    ways = reset_waypoints(LIMITS, RigidPose((0.9, 0.0, -0.1), DOWN), B, lift=0.1)
    assert ways[0].position == (0.7, 0.0, 0.0)
    assert ways[1].position == (0.7, 0.0, 0.1)


def test_goals_outside_have_a_reason() -> None:
    assert outside(LIMITS, B) == ""
    assert "mm outside" in outside(LIMITS, RigidPose((0.71, 0.0, 0.2), DOWN))
    tipped = product(from_rotation_vector((math.pi / 2, 0.0, 0.0)), DOWN)
    assert "rad outside" in outside(LIMITS, RigidPose((0.5, 0.0, 0.2), tipped))
