"""Reading FrankaRobotState's tail, and the parameters of crisp's controller."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from franka_msgs.msg import Errors, FrankaRobotState
from rcl_interfaces.msg import ParameterType, ParameterValue
from rclpy.serialization import serialize_message

import hil_tasks
from hil_robot_bridge.drivers import crisp
from hil_robot_bridge.drivers.franka_state import ERROR_NAMES, FrankaMode, parse

SPEC = hil_tasks.load("peg_insert").spec


def message(names: list[str], frame: str = "base") -> FrankaRobotState:
    state = FrankaRobotState(time=12.5, control_command_success_rate=0.75, robot_mode=4)
    state.header.frame_id = frame
    state.measured_joint_state.name = names
    state.measured_joint_state.position = [0.1] * len(names)
    state.current_errors.cartesian_reflex = True
    state.current_errors.instability_detected = True
    state.last_motion_errors.joint_reflex = True
    return state


def on_the_wire(state: FrankaRobotState) -> bytes:
    """Serialized, without what rclpy's serialize_message appends."""
    data: bytes = serialize_message(state)
    tail = data.rindex(struct.pack("<dd", state.time, state.control_command_success_rate))
    return data[: tail + 8 + 8 + 1 + 2 * len(ERROR_NAMES)]


def test_names_are_those_of_the_message() -> None:
    assert tuple(Errors.get_fields_and_field_types()) == ERROR_NAMES
    for mode in FrankaMode:
        assert getattr(FrankaRobotState, f"ROBOT_MODE_{mode.name}") == mode


@pytest.mark.parametrize("length", range(9))
def test_the_tail_is_found_whatever_comes_before(length: int) -> None:
    data = on_the_wire(message([f"joint{'x' * length}{i}" for i in range(7)], "b" * length))
    for padding in range(4):
        status = parse(data + bytes(padding))
        assert (status.time, status.success_rate) == (12.5, 0.75)
        assert status.mode == FrankaMode.REFLEX
        assert status.errors == ("cartesian_reflex", "instability_detected")


def test_what_is_no_such_message_is_refused() -> None:
    data = bytearray(on_the_wire(message(["a"])))
    tail = len(data) - 72
    for position, value, words in (
        (0, 7, "plain CDR"),
        (tail - 1, 9, "unknown mode"),
        (tail + 3, 2, "no booleans"),
    ):
        broken = bytearray(data)
        broken[position] = value
        with pytest.raises(ValueError, match=words):
            parse(bytes(broken))
    with pytest.raises(ValueError, match="too short"):
        parse(bytes(data[:80]))
    with pytest.raises(ValueError, match="multiple of 8"):
        parse(bytes(data) + bytes(5))
    not_a_number = message(["a"])
    not_a_number.time = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        parse(on_the_wire(not_a_number))


def test_every_gain_and_clip_is_set() -> None:
    values = crisp.parameters(SPEC.compliance["policy"])
    axes = ("x", "y", "z")
    for stem in (
        "task.k_pos_",
        "task.d_pos_",
        "task.k_rot_",
        "task.d_rot_",
        "task.error_clip.",
        "task.error_clip.r",
    ):
        assert all(f"{stem}{axis}" in values for axis in axes)
    assert values["nullspace.damping"] >= 0.0
    assert values["limit_error"] is True
    assert len(values) == 6 * 3 + 3 + 2
    other = dataclasses.replace(
        SPEC.compliance["policy"], error_clip=(0.001, 0.002, 0.003, 0.1, 0.2, 0.3)
    )
    assert crisp.parameters(other)["task.error_clip.ry"] == 0.2


def test_read_back_values_are_compared() -> None:
    wanted = crisp.parameters(SPEC.compliance["policy"])
    answered = [each.value for each in crisp.to_messages(wanted)]
    assert crisp.mismatch(wanted, answered) == ""
    assert "of 23 parameters" in crisp.mismatch(wanted, answered[:-1])
    index = list(wanted).index("task.k_pos_x")
    answered[index] = ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=900.0)
    assert crisp.mismatch(wanted, answered) == "task.k_pos_x is 900.0 instead of 2000.0"
    answered[index] = ParameterValue(type=ParameterType.PARAMETER_INTEGER, integer_value=2000)
    assert crisp.mismatch(wanted, answered) == ""
    answered[index] = ParameterValue()
    assert "not set" in crisp.mismatch(wanted, answered)
