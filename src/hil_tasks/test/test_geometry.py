"""Poses and rotations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from hil_tasks.geometry import (
    Pose,
    add_offset,
    limit_orientation,
    pose_offset,
    step_towards,
    tilt_and_twist,
)


def random_pose(rng: np.random.Generator) -> Pose:
    return Pose(rng.normal(size=3), Rotation.random(random_state=rng.integers(1 << 31)))


def test_composition_and_inverse():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = random_pose(rng), random_pose(rng)
        point = rng.normal(size=3)
        assert np.allclose((a * b).apply(point), a.apply(b.apply(point)))
        assert (a * a.inverse()).almost_equal(Pose.identity())


def test_offsets_are_inverse_to_each_other():
    rng = np.random.default_rng(1)
    for _ in range(20):
        a, b = random_pose(rng), random_pose(rng)
        assert add_offset(a, pose_offset(b, a)).almost_equal(b)


def test_step_towards_respects_both_limits_and_arrives():
    start = Pose.identity()
    goal = Pose(np.array([0.1, 0.0, 0.0]), Rotation.from_rotvec([0.0, 0.0, 0.95]))
    pose, steps = start, 0
    while pose is not goal:
        following = step_towards(pose, goal, 0.02, 0.1)
        metres, radians = following.distance(pose)
        assert metres <= 0.02 + 1e-9 and radians <= 0.1 + 1e-9
        pose, steps = following, steps + 1
    assert steps == 10


@pytest.mark.parametrize("tilt", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("twist", [-2.0, 0.0, 0.4])
def test_tilt_and_twist(tilt, twist):
    reference = Rotation.from_rotvec([0.3, -0.2, 0.9])
    axis = Rotation.from_rotvec([0.0, 0.0, 0.7]).apply([tilt, 0.0, 0.0])
    rotation = reference * Rotation.from_rotvec(axis) * Rotation.from_rotvec([0.0, 0.0, twist])
    assert tilt_and_twist(rotation, reference) == pytest.approx((tilt, twist))


def test_tilt_is_the_angle_between_tool_axes():
    rng = np.random.default_rng(2)
    for _ in range(20):
        a, b = random_pose(rng).rotation, random_pose(rng).rotation
        cosine = float(a.apply([0, 0, 1]) @ b.apply([0, 0, 1]))
        assert tilt_and_twist(a, b)[0] == pytest.approx(math.acos(max(-1.0, min(1.0, cosine))))


def test_orientations_are_limited_in_tilt_and_twist():
    rng = np.random.default_rng(3)
    for _ in range(50):
        rotation, reference = random_pose(rng).rotation, random_pose(rng).rotation
        limited = limit_orientation(rotation, reference, 0.3, 0.5)
        tilt, twist = tilt_and_twist(limited, reference)
        assert tilt <= 0.3 + 1e-9 and abs(twist) <= 0.5 + 1e-9
        before = tilt_and_twist(rotation, reference)
        assert tilt == pytest.approx(min(0.3, before[0]), abs=1e-7)
        assert twist == pytest.approx(float(np.clip(before[1], -0.5, 0.5)), abs=1e-7)
        assert limit_orientation(limited, reference, 0.31, 0.51) is limited


def test_pose_checks_its_shape():
    with pytest.raises(ValueError, match="shape"):
        Pose(np.zeros(2), Rotation.identity())
