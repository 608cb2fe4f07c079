"""Properties of delta actions: exact inverse, bounds, frames, leash."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.transform import Rotation

from hil_tasks.actions import ActionScale, change_frame, delta_to_target, target_to_delta
from hil_tasks.geometry import Pose, pose_offset

SCALE = ActionScale(0.01, 0.05)
LEASH = {"leash_translation": 0.015, "leash_rotation": 0.12}

frames = st.sampled_from(["base", "ee"])
references = st.sampled_from(["target", "measured"])
actions = arrays(np.float64, 6, elements=st.floats(-1.0, 1.0))


def vectors(size: float) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float64, 3, elements=st.floats(-size, size))


@st.composite
def pose_pairs(draw: st.DrawFn) -> tuple[Pose, Pose]:
    """Return a measured pose anywhere and a previous target near it (also beyond the leash)."""
    measured = Pose(draw(vectors(1.0)), Rotation.from_rotvec(draw(vectors(1.7))))
    turn = Rotation.from_rotvec(draw(vectors(0.2)))
    return measured, Pose(measured.position + draw(vectors(0.03)), turn * measured.rotation)


@settings(max_examples=300, deadline=None)
@given(pose_pairs(), actions, frames, references)
def test_round_trip_is_exact_and_bounded(pair, action, frame, reference):
    measured, previous = pair
    arguments = (previous, measured, SCALE, frame, reference)
    target = delta_to_target(action, *arguments, **LEASH)
    executed = target_to_delta(target, *arguments, **LEASH)
    assert np.all(np.abs(executed) <= 1.0)
    # The leash only takes away from an action, axis by axis.
    assert np.all(np.abs(executed) <= np.abs(action) + 1e-9)
    assert np.all(executed * action >= -1e-9)
    again = delta_to_target(executed, *arguments, **LEASH)
    assert again.almost_equal(target, 1e-9, 1e-7)


@settings(max_examples=200, deadline=None)
@given(pose_pairs(), actions, frames)
def test_target_stays_on_the_leash(pair, action, frame):
    measured, previous = pair
    target = delta_to_target(action, previous, measured, SCALE, frame, "target", **LEASH)
    offset = pose_offset(target, measured)
    if frame == "ee":
        offset = change_frame(offset, measured.rotation.inv())
    assert np.all(np.abs(offset[:3]) <= 0.015 + 1e-9)
    assert np.all(np.abs(offset[3:]) <= 0.12 + 1e-7)


@settings(max_examples=100, deadline=None)
@given(pose_pairs(), actions)
def test_measured_reference_is_the_textbook_delta(pair, action):
    measured, previous = pair
    delta = Rotation.from_rotvec(action[3:] * SCALE.rotation)
    base = delta_to_target(action, previous, measured, SCALE, "base", "measured")
    expected = Pose(measured.position + action[:3] * SCALE.translation, delta * measured.rotation)
    assert base.almost_equal(expected)
    ee = delta_to_target(action, previous, measured, SCALE, "ee", "measured")
    step = measured.rotation.apply(action[:3] * SCALE.translation)
    assert ee.almost_equal(Pose(measured.position + step, measured.rotation * delta))


@settings(max_examples=100, deadline=None)
@given(pose_pairs(), actions)
def test_frames_agree_after_turning_the_action(pair, action):
    measured, previous = pair
    ee = delta_to_target(action, previous, measured, SCALE, "ee", "target")
    turned = pose_offset(ee, measured) - pose_offset(previous, measured)
    expected = change_frame(action, measured.rotation)
    assert np.allclose(turned[:3] / SCALE.translation, expected[:3], atol=1e-9)
    assert np.allclose(turned[3:] / SCALE.rotation, expected[3:], atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(pose_pairs(), frames)
def test_zero_action_keeps_the_target(pair, frame):
    measured, previous = pair
    target = delta_to_target(np.zeros(6), previous, measured, SCALE, frame)
    assert target.almost_equal(previous)


@settings(max_examples=100, deadline=None)
@given(arrays(np.float64, 6, elements=st.floats(-2.0, 2.0)), vectors(3.0))
def test_change_of_frame_never_mixes_blocks(vector, rotvec):
    rotation = Rotation.from_rotvec(rotvec)
    turned = change_frame(vector, rotation)
    assert np.allclose(np.linalg.norm(turned[:3]), np.linalg.norm(vector[:3]))
    assert np.allclose(np.linalg.norm(turned[3:]), np.linalg.norm(vector[3:]))
    assert np.allclose(change_frame(turned, rotation.inv()), vector)


def test_blocked_axis_does_not_stop_the_others_nor_wind_up():
    measured = Pose.identity()
    target = measured
    press = np.array([0.3, 0.0, -1.0, 0.0, 0.0, 0.0])
    for _ in range(20):
        target = delta_to_target(press, target, measured, SCALE, **LEASH)
    assert target.position[2] == pytest.approx(-0.015)
    lift = delta_to_target([0, 0, 1.0, 0, 0, 0], target, measured, SCALE, **LEASH)
    assert lift.position[2] == pytest.approx(-0.005)
    assert target.position[0] == pytest.approx(0.015)


def test_actions_are_clipped_and_checked():
    pose = Pose.identity()
    far = delta_to_target([9, 0, 0, 0, 0, 0], pose, pose, SCALE)
    assert far.position[0] == pytest.approx(SCALE.translation)
    with pytest.raises(ValueError, match="finite"):
        delta_to_target([np.nan, 0, 0, 0, 0, 0], pose, pose, SCALE)
    with pytest.raises(ValueError, match="shape"):
        delta_to_target(np.zeros(7), pose, pose, SCALE)
    with pytest.raises(ValueError, match="'base' or 'ee'"):
        delta_to_target(np.zeros(6), pose, pose, SCALE, frame="tool")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reference"):
        delta_to_target(np.zeros(6), pose, pose, SCALE, reference="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="leash"):
        delta_to_target(np.zeros(6), pose, pose, SCALE, leash_rotation=0.0)


def test_a_pose_out_of_reach_gives_the_nearest_action():
    pose = Pose.identity()
    executed = target_to_delta(Pose(np.array([0.5, -0.005, 0]), pose.rotation), pose, pose, SCALE)
    assert executed == pytest.approx([1.0, -0.5, 0, 0, 0, 0])
