"""Shape, frame and grip of the operator's input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hil_teleop.mapping import Mapping, MappingConfig, deflection, shape_axis, shape_twist

unit = st.floats(-1.0, 1.0)
axes6 = st.lists(unit, min_size=6, max_size=6)
yaw = st.floats(-math.pi, math.pi)
dead_zone = st.floats(0.0, 0.5)
expo = st.floats(0.0, 1.0)

REST = (0.0,) * 6
FORWARD = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@given(unit, unit, dead_zone, expo)
def test_shape_is_odd_monotone_and_bounded(a: float, b: float, zone: float, curve: float) -> None:
    low, high = sorted((shape_axis(a, zone, curve), shape_axis(b, zone, curve)))
    assert -1.0 <= low <= high <= 1.0
    assert shape_axis(-a, zone, curve) == -shape_axis(a, zone, curve)
    if a <= b:
        assert shape_axis(a, zone, curve) <= shape_axis(b, zone, curve)


@given(dead_zone, expo)
def test_shape_starts_at_zero_and_ends_at_one(zone: float, curve: float) -> None:
    assert shape_axis(zone, zone, curve) == 0.0
    assert shape_axis(zone + 1e-6, zone, curve) < 1e-5
    assert shape_axis(1.0, zone, curve) == pytest.approx(1.0)
    assert shape_axis(7.0, zone, curve) == pytest.approx(1.0)


@given(axes6, yaw, dead_zone, expo)
def test_twist_stays_in_the_unit_box_and_keeps_its_direction(
    axes: list[float], angle: float, zone: float, curve: float
) -> None:
    straight = shape_twist(np.array(axes), MappingConfig(dead_zone=zone, expo=curve))
    turned = shape_twist(
        np.array(axes), MappingConfig(dead_zone=zone, expo=curve, frame_yaw=angle)
    )
    assert np.abs(turned).max() <= 1.0
    matrix = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    for i in (0, 3):
        wanted = np.append(matrix @ straight[i : i + 2], straight[i + 2])
        assert np.linalg.norm(np.cross(wanted, turned[i : i + 3])) < 1e-9  # parallel
        assert wanted @ turned[i : i + 3] >= 0.0
        assert np.linalg.norm(turned[i : i + 3]) <= np.linalg.norm(wanted) + 1e-12


def test_facing_the_robot_turns_by_half_a_turn() -> None:
    config = MappingConfig(dead_zone=0.0, expo=0.0, frame_yaw=math.pi)
    twist = shape_twist(np.array([0.5, 0.2, 0.3, 0.1, -0.4, 0.6]), config)
    assert twist == pytest.approx([-0.5, -0.2, 0.3, -0.1, 0.4, 0.6])


def test_scales_and_locked_orientation() -> None:
    config = MappingConfig(dead_zone=0.0, expo=0.0, translation_scale=0.5, rotation_scale=0.0)
    assert shape_twist(np.ones(6), config) == pytest.approx([0.5] * 3 + [0.0] * 3)
    assert deflection(np.array([0.0, 0, 0, 1, 1, 1]), config) == 0.0
    locked = Mapping(config).update((0.0, 0.0, 0.0, 0.0, 0.0, 1.0), (0, 0), 0.0)
    assert not locked.engaged


def test_drop_in_axes_order_and_signs() -> None:
    config = MappingConfig(
        dead_zone=0.0, expo=0.0, axes=(4, 3, 1, 0, 2, 5), signs=(1, -1, 1, 1, 1, 1)
    )
    command = Mapping(config).update((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), (0, 0), 0.0)
    assert command.twist == pytest.approx((0.5, -0.4, 0.2, 0.1, 0.3, 0.6))


def test_touch_takes_over_and_rest_lets_go_after_the_hold_time() -> None:
    mapping = Mapping(MappingConfig(hold_time=0.3))
    assert not mapping.update(REST, (0, 0), 0.0).engaged
    assert mapping.update(FORWARD, (0, 0), 0.1).engaged
    resting = mapping.update(REST, (0, 0), 0.3)
    assert resting.engaged and resting.twist == REST
    assert mapping.update(REST, (0, 0), 0.39).engaged
    assert not mapping.update(REST, (0, 0), 0.41).engaged


def test_hysteresis_in_deflection() -> None:
    config = MappingConfig(
        dead_zone=0.0, expo=0.0, engage_threshold=0.2, release_threshold=0.1, hold_time=0.0
    )
    mapping = Mapping(config)

    def at(v: float, now: float) -> bool:
        return mapping.update((v, 0, 0, 0, 0, 0), (0, 0), now).engaged

    assert not at(0.15, 0.0)
    assert at(0.25, 0.1)
    assert at(0.15, 0.2)
    assert not at(0.05, 0.3)
    assert not at(0.15, 0.4)


@given(st.lists(st.tuples(st.floats(0.0, 0.2), st.booleans()), min_size=1, max_size=60))
@settings(max_examples=50)
def test_grip_never_chatters(moves: list[tuple[float, bool]]) -> None:
    """Between taking over and letting go at least the hold time passes."""
    mapping = Mapping(MappingConfig(hold_time=0.3))
    now, engaged, taken_at = 0.0, False, 0.0
    for wait, moving in moves:
        now += wait
        command = mapping.update(FORWARD if moving else REST, (0, 0), now)
        if command.engaged and not engaged:
            taken_at = now
        if engaged and not command.engaged:
            assert now - taken_at >= 0.3 - 1e-9
        if not command.engaged:
            assert command.twist == REST and command.gripper == 0
        engaged = command.engaged


def test_gripper_buttons_take_over() -> None:
    mapping = Mapping(MappingConfig(hold_time=0.0))
    assert mapping.update(REST, (1, 0), 0.0).gripper == -1
    assert mapping.update(REST, (0, 1), 0.1).gripper == 1
    both = mapping.update(REST, (1, 1), 0.2)
    assert both.gripper == 0
    assert mapping.update(REST, (1, 0), 0.3).engaged


def test_hold_to_intervene() -> None:
    mapping = Mapping(
        MappingConfig(mode="hold", intervene_button=2, close_button=0, open_button=1)
    )
    assert not mapping.update(FORWARD, (0, 0, 0), 0.0).engaged
    assert not mapping.update(FORWARD, (1, 0, 0), 0.1).engaged
    held = mapping.update(FORWARD, (1, 0, 1), 0.2)
    assert held.engaged and held.gripper == -1 and held.twist[0] == 1.0
    assert mapping.update(REST, (0, 0, 1), 5.0).engaged
    assert not mapping.update(FORWARD, (0, 0, 0), 5.1).engaged


def test_a_lost_device_ends_the_grip() -> None:
    mapping = Mapping(MappingConfig(hold_time=1.0))
    assert mapping.update(FORWARD, (0, 0), 0.0).engaged
    mapping.reset()
    assert not mapping.update(REST, (0, 0), 0.1).engaged


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dead_zone", 1.0),
        ("expo", -0.1),
        ("release_threshold", 0.9),
        ("hold_time", math.nan),
        ("axes", (0, 1, 2)),
        ("signs", (1, 1, 1, 1, 1, 0)),
        ("mode", "grab"),
        ("frame_yaw", math.inf),
    ],
)
def test_settings_that_cannot_work_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        MappingConfig(**{field: value})  # type: ignore[arg-type]


def test_hold_button_may_not_be_a_gripper_button() -> None:
    with pytest.raises(ValueError, match="intervene_button"):
        MappingConfig(mode="hold", intervene_button=0)


def test_a_device_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="2 axes"):
        Mapping(MappingConfig()).update((0.0, 0.0), (0, 0), 0.0)
    with pytest.raises(ValueError, match="open_button"):
        Mapping(MappingConfig()).update(REST, (0,), 0.0)
    with pytest.raises(ValueError, match="not finite"):
        Mapping(MappingConfig()).update((math.nan, *REST[1:]), (0, 0), 0.0)
