"""Node: `joy` of one device per arm -> `operator_command`, at least 50 Hz, also at rest.

A device that falls silent is lost, not "at rest": one last message says so (nobody engaged, source
"lost"), then this node is silent too, until the device is back. Drop-in devices that publish only
changes (spacenav) need `silence_is_loss: false`; then a device is lost when its publisher is gone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from builtin_interfaces.msg import Time
from rclpy.experimental import EventsExecutor
from sensor_msgs.msg import Joy

from hil_common import qos
from hil_common.lifecycle import HilNode
from hil_common.params import NodeParams, ParameterError, param
from hil_common.run import main as run
from hil_teleop.mapping import MODES, ArmInput, Mapping, MappingConfig
from hil_teleop.operator_publisher import LOST, OperatorPublisher

_DEFAULTS = MappingConfig()


@dataclass(frozen=True)
class TeleopParams(NodeParams):
    """Parameters of the teleop node."""

    arms: tuple[str, ...] = param(
        ("",), "arms that are driven; arm X listens to X/joy, the single arm '' to joy"
    )
    source: str = param("spacemouse", "name of the device in operator_command")
    frame_id: str = param("base", "frame of the twists: the arm's base frame")
    rate_hz: float = param(100.0, "heartbeat, also at rest", low=50.0, high=500.0)
    silence_is_loss: bool = param(
        True,
        "a device that sends nothing for joy_timeout is lost; false for devices that publish only "
        "changes: then it is at rest, and lost when nobody publishes its topic",
    )
    joy_timeout: float = param(0.2, "s of silence, see silence_is_loss", low=0.02, high=5.0)
    mode: str = param(
        _DEFAULTS.mode,
        "how the person takes over: by touching, or by holding a button",
        choices=MODES,
    )
    dead_zone: float = param(
        _DEFAULTS.dead_zone, "axis values up to this are zero", low=0.0, high=0.9
    )
    expo: float = param(_DEFAULTS.expo, "0: linear, 1: cubic", low=0.0, high=1.0)
    translation_scale: float = param(
        _DEFAULTS.translation_scale, "share of the task's step at full deflection", low=0, high=1
    )
    rotation_scale: float = param(
        _DEFAULTS.rotation_scale, "the same for rotation; 0 locks the orientation", low=0, high=1
    )
    frame_yaw: float = param(
        _DEFAULTS.frame_yaw,
        "rad about base z from the operator's frame (x away from the person) to the base frame; "
        "pi: the person stands in front of the robot and faces it",
        low=-6.3,
        high=6.3,
    )
    axes: tuple[int, ...] = param(
        _DEFAULTS.axes, "index of the device's axis for x, y, z, roll, pitch, yaw"
    )
    signs: tuple[float, ...] = param(_DEFAULTS.signs, "+1 or -1 for each of these")
    engage_threshold: float = param(
        _DEFAULTS.engage_threshold, "deflection that takes over (touch mode)", low=0, high=1
    )
    release_threshold: float = param(
        _DEFAULTS.release_threshold, "deflection below which the device is at rest", low=0, high=1
    )
    hold_time: float = param(
        _DEFAULTS.hold_time, "s at rest until the person has let go (touch mode)", low=0, high=10
    )
    intervene_button: int = param(
        _DEFAULTS.intervene_button, "button of hold mode; not a gripper button then", low=0
    )
    close_button: int = param(_DEFAULTS.close_button, "closes the gripper; -1: none", low=-1)
    open_button: int = param(_DEFAULTS.open_button, "opens the gripper; -1: none", low=-1)

    def mapping(self) -> MappingConfig:
        """The part that shapes the input.

        Raises:
            ParameterError: values that cannot work together.
        """
        try:
            return MappingConfig(
                **{name: getattr(self, name) for name in MappingConfig.__dataclass_fields__}
            )
        except ValueError as error:
            raise ParameterError(str(error)) from error


class _Device:
    """One arm's device: its mapping and when it was last heard of."""

    def __init__(self, arm: str, config: MappingConfig) -> None:
        self.arm = arm
        self.topic = f"{arm}/joy" if arm else "joy"
        self.mapping = Mapping(config, arm)
        self.axes: tuple[float, ...] = (0.0,) * (1 + max(config.axes))
        self.buttons: tuple[int, ...] = ()
        self.heard: float | None = None
        self.input = ArmInput(arm)


class TeleopNode(HilNode):
    """Maps devices to operator commands."""

    Params = TeleopParams
    params: TeleopParams

    def __init__(self, **options: Any) -> None:
        super().__init__("teleop", **options)
        self._config = self.params.mapping()

    def on_setup(self) -> None:
        """Open the topics."""
        p = self.params
        self._devices = [_Device(arm, self._config) for arm in p.arms]
        self._operator = OperatorPublisher(self, p.source, p.frame_id)
        self._lost = True
        self._sent = 0.0
        self._stamp = Time()
        self._subscriptions_open = [
            self.subscribe(Joy, device.topic, partial(self._on_joy, device), qos.STATE)
            for device in self._devices
        ]
        self._timer = self.every(1.0 / p.rate_hz, self._heartbeat)

    def on_hold(self) -> None:
        """Let go."""
        self._let_go()

    def on_close(self) -> None:
        """Close the topics."""
        self.destroy_timer(self._timer)
        for subscription in self._subscriptions_open:
            self.destroy_subscription(subscription)
        self._operator.close()

    def _on_joy(self, device: _Device, message: Joy) -> None:
        device.heard = time.monotonic()
        device.axes, device.buttons = tuple(message.axes), tuple(message.buttons)
        self._stamp = message.header.stamp
        self.diagnostics.tick(device.topic)
        if self.active:
            self._update(device)
            self._send_unless_lost()

    def _heartbeat(self) -> None:
        if not self.active:
            return
        for device in self._devices:
            if device.heard is not None and self._silent(device):
                device.axes = (0.0,) * len(device.axes)
                device.buttons = (0,) * len(device.buttons)
                self._stamp = Time()
                self._update(device)
        if time.monotonic() - self._sent >= 0.9 / self.params.rate_hz:
            self._send_unless_lost()

    def _update(self, device: _Device) -> None:
        device.input = device.mapping.update(device.axes, device.buttons, time.monotonic())

    def _silent(self, device: _Device) -> bool:
        return device.heard is None or time.monotonic() - device.heard > self.params.joy_timeout

    def _gone(self, device: _Device) -> bool:
        if not self._silent(device):
            return False
        if self.params.silence_is_loss or device.heard is None:
            return True
        return bool(self.count_publishers(device.topic) == 0)

    def _send_unless_lost(self) -> None:
        gone = [device.topic for device in self._devices if self._gone(device)]
        if gone:
            self.diagnostics.warn(f"no device on {', '.join(gone)}: nobody can take over")
            if not self._lost:
                self._let_go()
            return
        if self._lost:
            self._lost = False
            self.diagnostics.warn("")
        self._sent = time.monotonic()
        buttons = [b for device in self._devices for b in device.buttons]
        self._operator.publish([d.input for d in self._devices], self._time(), buttons)
        self.diagnostics.tick("operator_command")
        self.diagnostics.set(engaged=any(d.input.engaged for d in self._devices))

    def _let_go(self) -> None:
        """One last message: nobody drives, the device is lost. Then silence."""
        self._lost = True
        for device in self._devices:
            device.mapping.reset()
            device.input = ArmInput(device.arm)
        stamp = self.get_clock().now().to_msg()
        self._operator.publish([d.input for d in self._devices], stamp, source=LOST)
        self.diagnostics.set(engaged=False)

    def _time(self) -> Time:
        """When the input was read; devices that do not stamp count as read now."""
        stamped = self._stamp.sec or self._stamp.nanosec
        return self._stamp if stamped else self.get_clock().now().to_msg()


def main() -> None:
    """Run the node."""
    run(TeleopNode, executor_class=EventsExecutor)
