"""SpaceMouse node and teleop node, through ROS."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import Joy

from hil_common import qos
from hil_common.params import ParameterError
from hil_common.testing import Ros, ros  # noqa: F401
from hil_interfaces.msg import OperatorCommand
from hil_teleop.spacemouse import UDEV_RULE
from hil_teleop.spacemouse_node import SpaceMouseNode
from hil_teleop.teleop_node import TeleopNode

sys.path.insert(0, str(Path(__file__).parent))

from fake_hid import Bus, install
from listener import Listener, diagnosed

REST = [0.0] * 6
FORWARD = [1.0] + [0.0] * 5


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bus:
    return install(monkeypatch, tmp_path)


def test_spacemouse_node_publishes_at_rest_and_falls_silent_when_lost(
    ros: Ros,  # noqa: F811
    bus: Bus,
) -> None:
    plug = bus.plug(serial="A1")
    joy = Listener(ros, Joy, "joy", qos.STATE)
    news = Listener(ros, DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
    node = ros.start(SpaceMouseNode, serial="A1", retry_min=0.05, retry_max=0.1)
    ros.wait_for(lambda: len(joy.messages) > 20)
    first, last = joy.messages[0], joy.messages[-1]
    assert list(last.axes) == REST and list(last.buttons) == [0, 0]
    assert last.header.frame_id == "spacemouse"
    stamps = [m.header.stamp.sec * 10**9 + m.header.stamp.nanosec for m in joy.messages[:20]]
    assert stamps == sorted(stamps) and first.header.stamp.sec > 0

    plug.translation(y=-350)
    plug.buttons(2)
    moved = joy.wait(lambda m: m.axes[0] == 1.0 and list(m.buttons) == [0, 1])
    assert list(moved.axes)[1:] == [0.0] * 5

    bus.unplug(plug)
    ros.wait_for(lambda: not node.mouse.connected)
    count = len(joy.messages)
    news.wait(lambda m: diagnosed(m, "/spacemouse", "lost SpaceMouse Compact"), "the loss")
    assert len(joy.messages) <= count + 1  # one may have been on its way

    bus.plug(serial="A1")
    assert list(joy.wait(lambda m: True, "joy after plugging in").axes) == REST
    news.wait(lambda m: any(s.message == "ok" for s in m.status), "all well again")


def test_spacemouse_node_says_which_udev_rule_is_missing(ros: Ros, bus: Bus) -> None:  # noqa: F811
    bus.plug(openable=False)
    joy = Listener(ros, Joy, "joy", qos.STATE)
    news = Listener(ros, DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
    ros.start(SpaceMouseNode)
    rule = UDEV_RULE.splitlines()[0]
    news.wait(lambda m: diagnosed(m, "/spacemouse", rule), "the rule")
    assert not joy.messages


def test_spacemouse_node_is_silent_until_activated(ros: Ros, bus: Bus) -> None:  # noqa: F811
    plug = bus.plug()
    joy = Listener(ros, Joy, "joy", qos.STATE)
    node = ros.make(SpaceMouseNode)
    node.trigger_configure()
    reads = plug.reads
    ros.wait_for(lambda: plug.reads > reads + 20)  # it polls, so no reports pile up
    assert not joy.messages
    node.trigger_activate()
    ros.wait_for(lambda: joy.messages)
    node.trigger_deactivate()
    node.trigger_cleanup()
    assert not node.mouse.connected


class Joystick:
    """A device on `joy` that sends when it is told to, or continuously."""

    def __init__(self, ros: Ros, topic: str = "joy", hz: float = 0.0) -> None:  # noqa: F811
        self.node = ros.node(f"device_{topic.replace('/', '_')}")
        self.publisher = self.node.create_publisher(Joy, topic, qos.STATE)
        self.axes, self.buttons, self.on = list(REST), [0, 0], True
        if hz:
            self.node.create_timer(1.0 / hz, self.send)

    def send(self) -> None:
        if self.on:
            message = Joy(axes=self.axes, buttons=self.buttons)
            message.header.stamp = self.node.get_clock().now().to_msg()
            self.publisher.publish(message)


def test_teleop_heartbeat_takeover_and_release(ros: Ros) -> None:  # noqa: F811
    command = Listener(ros, OperatorCommand, "operator_command", qos.OPERATOR)
    device = Joystick(ros, hz=100.0)
    ros.start(TeleopNode, hold_time=0.05, dead_zone=0.0, expo=0.0)
    resting = command.wait(lambda m: True, "the heartbeat")
    assert resting.source == "spacemouse" and resting.header.frame_id == "base"
    assert [a.arm for a in resting.arms] == [""] and not resting.arms[0].engaged
    assert resting.session

    device.axes, device.buttons = [0.5, -0.25, 0.0, 0.0, 0.0, 1.0], [1, 0]
    driving = command.wait(lambda m: m.arms[0].engaged)
    assert list(driving.arms[0].twist) == pytest.approx([0.5, -0.25, 0, 0, 0, 1])
    assert driving.arms[0].gripper == -1 and list(driving.buttons) == [True, False]

    device.axes, device.buttons = list(REST), [0, 0]
    command.wait(lambda m: not m.arms[0].engaged)
    seqs = [m.seq for m in command.messages]
    assert seqs == sorted(set(seqs)) and len({m.session for m in command.messages}) == 1


def test_silence_of_the_device_is_a_loss(ros: Ros) -> None:  # noqa: F811
    command = Listener(ros, OperatorCommand, "operator_command", qos.OPERATOR)
    news = Listener(ros, DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
    device = Joystick(ros, hz=100.0)
    device.axes = list(FORWARD)
    ros.start(TeleopNode, joy_timeout=0.1)
    command.wait(lambda m: m.arms[0].engaged)
    device.on = False
    lost = command.wait(lambda m: m.source == "lost")
    assert not lost.arms[0].engaged and list(lost.arms[0].twist) == REST
    news.wait(lambda m: diagnosed(m, "/teleop", "no device on joy"))
    assert command.messages[-1].seq == lost.seq  # the last one: silence
    device.on = True
    assert command.wait(lambda m: m.arms[0].engaged).source == "spacemouse"


def test_no_device_no_command(ros: Ros) -> None:  # noqa: F811
    command = Listener(ros, OperatorCommand, "operator_command", qos.OPERATOR)
    news = Listener(ros, DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
    ros.start(TeleopNode)
    news.wait(lambda m: diagnosed(m, "/teleop", "no device on joy"))
    assert not command.messages


def test_a_device_that_sends_only_changes_rests_in_silence(ros: Ros) -> None:  # noqa: F811
    command = Listener(ros, OperatorCommand, "operator_command", qos.OPERATOR)
    device = Joystick(ros)
    node = ros.start(
        TeleopNode, source="spacenav", silence_is_loss=False, joy_timeout=0.05, hold_time=0.0
    )
    ros.wait_for(lambda: device.publisher.get_subscription_count() > 0)
    device.axes = list(FORWARD)
    device.send()
    command.wait(lambda m: m.arms[0].engaged)
    command.wait(lambda m: not m.arms[0].engaged)
    seq = command.messages[-1].seq
    command.wait(lambda m: m.seq > seq + 20 and m.source == "spacenav", "the heartbeat goes on")
    device.node.destroy_publisher(device.publisher)
    command.wait(lambda m: m.source == "lost")
    assert node.active


def test_two_arms_have_two_devices_and_one_loss_stops_both(ros: Ros) -> None:  # noqa: F811
    command = Listener(ros, OperatorCommand, "operator_command", qos.OPERATOR)
    left, right = (Joystick(ros, f"{arm}/joy", hz=100.0) for arm in ("left", "right"))
    left.axes = list(FORWARD)
    ros.start(TeleopNode, arms=["left", "right"], joy_timeout=0.1)
    driving = command.wait(lambda m: m.arms[0].engaged)
    assert [a.arm for a in driving.arms] == ["left", "right"]
    assert not driving.arms[1].engaged  # touching one does not touch the other
    right.on = False
    assert command.wait(lambda m: m.source == "lost").arms[0].engaged is False


def test_hold_button_that_is_also_the_gripper_is_refused(ros: Ros) -> None:  # noqa: F811
    with pytest.raises(ParameterError, match="intervene_button"):
        ros.make(TeleopNode, mode="hold")


def test_a_device_that_does_not_fit_faults_the_node(ros: Ros) -> None:  # noqa: F811
    news = Listener(ros, DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
    device = Joystick(ros, hz=100.0)
    device.axes = [0.0, 0.0]
    node = ros.start(TeleopNode)
    ros.wait_for(lambda: not node.active)
    news.wait(lambda m: diagnosed(m, "/teleop", "the device has 2 axes"))


def test_deactivation_lets_go(ros: Ros) -> None:  # noqa: F811
    command = Listener(ros, OperatorCommand, "operator_command", qos.OPERATOR)
    device = Joystick(ros, hz=100.0)
    device.axes = list(FORWARD)
    node = ros.start(TeleopNode)
    command.wait(lambda m: m.arms[0].engaged)
    node.trigger_deactivate()
    ros.wait_for(lambda: command.messages[-1].source == "lost")
