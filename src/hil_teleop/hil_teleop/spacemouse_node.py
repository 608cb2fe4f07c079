"""Node: a SpaceMouse -> `joy` (sensor_msgs/Joy), also at rest; nothing while it is lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rclpy.experimental import EventsExecutor
from sensor_msgs.msg import Joy

from hil_common import qos
from hil_common.lifecycle import HilNode
from hil_common.params import NodeParams, param
from hil_common.run import main as run
from hil_teleop.spacemouse import SpaceMouse, SpaceMouseConfig, SpaceMouseError, list_devices

_DEFAULTS = SpaceMouseConfig()


@dataclass(frozen=True)
class SpaceMouseParams(NodeParams):
    """Parameters of the SpaceMouse node."""

    serial: str = param("", "serial number of the device; empty: any")
    path: str = param(
        "",
        "hidraw path of the device or a udev link to it; empty: any. Two devices without serial "
        "numbers are told apart by a link that udev makes for each USB port",
    )
    rate_hz: float = param(100.0, "messages per second, also at rest", low=50.0, high=1000.0)
    report_timeout: float = param(
        _DEFAULTS.report_timeout,
        "s without a report after which a deflected cap counts as released",
        low=0.05,
        high=5.0,
    )
    retry_min: float = param(
        _DEFAULTS.retry_min, "s until a lost device is looked for again", low=0.05, high=60.0
    )
    retry_max: float = param(
        _DEFAULTS.retry_max, "s between attempts at most", low=0.05, high=600.0
    )
    led: bool = param(True, "light the device's LED while it is in use")
    frame_id: str = param("spacemouse", "frame_id of the messages")


class SpaceMouseNode(HilNode):
    """Reads the device at `rate_hz` and publishes its state while active."""

    Params = SpaceMouseParams
    params: SpaceMouseParams

    def __init__(self, **options: Any) -> None:
        super().__init__("spacemouse", **options)

    def on_setup(self) -> None:
        """Start to look for the device. It may be plugged in later."""
        p = self.params
        self.mouse = SpaceMouse(
            SpaceMouseConfig(p.serial, p.path, p.report_timeout, p.retry_min, p.retry_max, p.led)
        )
        self._publisher = self.create_publisher(Joy, "joy", qos.STATE)
        self._timer = self.every(1.0 / p.rate_hz, self._tick)

    def on_close(self) -> None:
        """Release the device."""
        self.destroy_timer(self._timer)
        self.destroy_publisher(self._publisher)
        self.mouse.close()

    def _tick(self) -> None:
        sample = self.mouse.poll()
        self._report()
        if sample is None or not self.active:
            return
        message = Joy(axes=sample.axes, buttons=sample.buttons)
        message.header.stamp = self.get_clock().now().to_msg()
        message.header.frame_id = self.params.frame_id
        self._publisher.publish(message)
        self.diagnostics.tick("joy")

    def _report(self) -> None:
        mouse = self.mouse
        self.diagnostics.set(device=mouse.device or "none", losses=mouse.losses)
        if not mouse.connected:
            self.diagnostics.warn(f"{mouse.problem}: {mouse.advice}")
        elif mouse.stale:
            self.diagnostics.warn(
                "the cap is deflected but its reports have stopped (wireless link?); "
                "it counts as released"
            )
        else:
            self.diagnostics.warn("")


def self_test() -> str:
    """What is connected, in words, for `hil doctor`.

    Raises:
        SpaceMouseError: the HID library is missing; has an advice.
    """
    return "; ".join(str(device) for device in list_devices()) or "no SpaceMouse is connected"


def main() -> None:
    """Run the node."""
    run(SpaceMouseNode, executor_class=EventsExecutor)


__all__ = ["SpaceMouseError", "SpaceMouseNode", "SpaceMouseParams", "main", "self_test"]
