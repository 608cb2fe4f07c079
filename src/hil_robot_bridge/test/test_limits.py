"""Geometry of the limits, with generated poses."""

from __future__ import annotations

import math
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

import hil_tasks
from hil_robot_bridge.limits import (
    Limits,
    Span,
    box_excess,
    cone_excess,
    deviation,
    limit,
    nearest_inside,
)
from hil_robot_bridge.poses import (
    RigidPose,
    angle_between,
    distance,
    from_rotation_vector,
    interpolate,
    normalised,
    product,
    quaternion,
    rotation_vector,
    slerp,
    vector3,
)
from hil_tasks.geometry import Pose, limit_orientation, tilt_and_twist

DOWN = (1.0, 0.0, 0.0, 0.0)
INFINITE = Span(math.inf, math.inf)

coordinate = st.floats(-0.6, 0.6)
number = st.floats(-1.0, 1.0)


@st.composite
def quaternions(draw: st.DrawFn) -> tuple[float, float, float, float]:
    values = draw(st.tuples(number, number, number, number).filter(lambda q: math.hypot(*q) > 0.1))
    return normalised(values)


poses = st.builds(RigidPose, st.tuples(coordinate, coordinate, coordinate), quaternions())
spans = st.builds(Span, st.floats(1e-4, 1.0), st.floats(1e-4, 3.0))


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    low = draw(st.tuples(*[st.floats(-0.5, 0.0)] * 3))
    size = draw(st.tuples(*[st.floats(0.01, 0.5)] * 3))
    return Limits(
        box_low=low,
        box_high=vector3(a + b for a, b in zip(low, size, strict=True)),
        reference=draw(quaternions()),
        cone=draw(st.floats(0.0, math.pi)),
        twist=draw(st.floats(0.0, math.pi)),
        leash=draw(spans),
        leash_in_tool=draw(st.booleans()),
        step=draw(spans),
        speed=Span(1.0, 1.0),
    )


@given(limits(), poses, poses, poses, spans)
@settings(max_examples=120, deadline=None)
def test_promises(
    bounds: Limits, target: RigidPose, wanted: RigidPose, measured: RigidPose, budget: Span
) -> None:
    result = limit(bounds, target, wanted, measured, budget)
    pose = result.pose
    assert box_excess(bounds, pose.position) <= box_excess(bounds, target.position) + 1e-9
    assert cone_excess(bounds, pose.quaternion) <= cone_excess(bounds, target.quaternion) + 1e-7
    assert result.moved.translation <= min(bounds.step.translation, budget.translation) + 1e-9
    assert result.moved.rotation <= min(bounds.step.rotation, budget.rotation) + 1e-7
    assert abs(math.hypot(*pose.quaternion) - 1.0) < 1e-9
    if result.refused:
        assert pose == target
        assert not result.clipped
    # The target moves by command, or because the leash pulls it towards the arm, or both.
    pulled = distance(pose.position, target.position) - result.moved.translation
    assert pulled <= distance(target.position, measured.position) + 1e-9


@given(limits(), poses, poses)
@settings(max_examples=60, deadline=None)
def test_what_is_admissible_is_left_alone(
    bounds: Limits, first: RigidPose, second: RigidPose
) -> None:
    target = nearest_inside(bounds, first)
    goal = nearest_inside(bounds, second)
    wanted = RigidPose(
        interpolate(target, goal, 1e-3).position,
        target.quaternion,
    )
    free = Limits(**{**vars(bounds), "leash": Span(10.0, 10.0), "step": INFINITE})
    result = limit(free, target, wanted, target, INFINITE)
    assert result.clipped == ()
    assert not result.refused
    assert distance(result.pose.position, wanted.position) < 1e-9
    assert angle_between(result.pose.quaternion, wanted.quaternion) < 1e-7


@given(limits(), poses)
@settings(max_examples=60, deadline=None)
def test_nearest_inside_agrees_with_hil_tasks(bounds: Limits, pose: RigidPose) -> None:
    inside = nearest_inside(bounds, pose)
    assert box_excess(bounds, inside.position) == 0.0
    assert cone_excess(bounds, inside.quaternion) < 1e-7
    reference = Rotation.from_quat(bounds.reference)
    rotation = Rotation.from_quat(pose.quaternion)
    tilt, twist = tilt_and_twist(rotation, reference)
    found = deviation(bounds, pose.quaternion)
    assert abs(found.tilt - tilt) < 1e-7
    if tilt < math.pi - 1e-3:
        assert abs(math.remainder(found.twist - twist, 2 * math.pi)) < 1e-6
        same = limit_orientation(rotation, reference, bounds.cone, bounds.twist)
        assert angle_between(inside.quaternion, quaternion(same.as_quat())) < 1e-5


@given(quaternions(), quaternions(), st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None)
def test_quaternions_agree_with_scipy(
    a: tuple[float, float, float, float], b: tuple[float, float, float, float], share: float
) -> None:
    first, second = Rotation.from_quat(a), Rotation.from_quat(b)
    np.testing.assert_allclose(
        Rotation.from_quat(product(a, b)).as_matrix(), (first * second).as_matrix(), atol=1e-9
    )
    between = (first * second.inv()).magnitude()
    assert abs(angle_between(a, b) - between) < 1e-7
    if between < math.pi - 1e-3:
        half = slerp(a, b, share)
        assert abs(angle_between(a, half) - share * between) < 1e-6
        assert abs(angle_between(half, b) - (1 - share) * between) < 1e-6
    assert angle_between(from_rotation_vector(rotation_vector(a)), a) < 1e-7


def test_the_way_stays_inside_the_cone() -> None:
    """The shortest way between two orientations inside can lead outside: it is not taken."""
    source = random.Random(0)
    left_by_slerp = 0
    for _ in range(2000):
        cone, twist = source.uniform(0.05, 1.5), source.uniform(0.05, 2.5)
        ends = []
        for _ in range(2):
            towards = source.uniform(-math.pi, math.pi)
            tilt = from_rotation_vector((cone * math.cos(towards), cone * math.sin(towards), 0.0))
            turn = from_rotation_vector((0.0, 0.0, source.choice((-twist, twist))))
            ends.append(normalised(product(DOWN, product(tilt, turn))))
        start, goal = (RigidPose((0.5, 0.5, 0.5), q) for q in ends)
        angle = source.uniform(0.0, 1.0) * angle_between(*ends)
        bounds = Limits(
            (0.0, 0.0, 0.0),
            (1.0, 1.0, 1.0),
            DOWN,
            cone + 1e-9,
            twist + 1e-9,
            Span(9.0, 9.0),
            False,
            Span(9.0, angle),
            Span(1.0, 1.0),
        )
        if angle_between(*ends) > 1e-3:
            direct = slerp(*ends, angle / angle_between(*ends))
            left_by_slerp += cone_excess(bounds, direct) > 1e-6
        result = limit(bounds, start, goal, start, INFINITE)
        assert cone_excess(bounds, result.pose.quaternion) < 1e-6
        assert angle_between(start.quaternion, result.pose.quaternion) <= angle + 1e-7
    assert left_by_slerp > 100


def test_limits_of_a_task() -> None:
    spec = hil_tasks.load("peg_insert").spec
    bounds = Limits.from_spec(spec)
    assert bounds.box_low == spec.workspace.low
    assert bounds.speed == (spec.speed.linear, spec.speed.angular)
    assert bounds.step.translation == math.sqrt(3) * spec.action_scale.translation
    start = RigidPose.of(spec.reset.pose)
    assert box_excess(bounds, start.position) == 0.0
    assert cone_excess(bounds, start.quaternion) == 0.0
    assert start.pose.almost_equal(Pose.from_xyzw(start.position, start.quaternion))


def test_reasons_name_the_limits() -> None:
    bounds = Limits(
        (0.0, 0.0, 0.0),
        (1.0, 1.0, 1.0),
        DOWN,
        0.3,
        0.3,
        Span(0.1, 0.1),
        False,
        Span(0.05, 0.05),
        Span(1.0, 1.0),
    )
    at = RigidPose((0.9, 0.5, 0.5), DOWN)
    turned = RigidPose((0.9, 0.5, 0.5), product(from_rotation_vector((0.9, 0.0, 0.0)), DOWN))
    assert limit(bounds, at, at, at, INFINITE).clipped == ()
    far = RigidPose((2.0, 0.5, 0.5), DOWN)
    assert limit(bounds, at, far, at, INFINITE).clipped == ("workspace box", "step limit")
    assert limit(bounds, at, far, at, Span(0.01, 1.0)).clipped == ("workspace box", "speed limit")
    away = RigidPose((0.3, 0.5, 0.5), DOWN)
    assert limit(bounds, at, away, at, INFINITE).clipped == ("leash", "step limit")
    assert limit(bounds, at, turned, at, INFINITE).clipped == (
        "orientation cone",
        "leash",
        "step limit",
    )
