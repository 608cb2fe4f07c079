"""What every node says of itself on /diagnostics, once a second: state, rates, ages, errors."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from hil_common import qos

STEADY = Clock(clock_type=ClockType.STEADY_TIME)


@dataclass
class _Meter:
    """Arrivals of one stream between two reports."""

    count: int = 0
    total: int = 0
    last: float = 0.0
    longest_gap: float = 0.0


class Diagnostics:
    """Collects values of a node and publishes them at 1 Hz. Safe to call from any thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._values: dict[str, Any] = {}
        self._meters: dict[str, _Meter] = {}
        self._warning = ""
        self._error = ""
        self._waiting = ""
        self._reported = time.monotonic()
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self._timer = node.create_timer(1.0, self.publish, clock=STEADY)

    def set(self, **values: Any) -> None:
        """Values to show beside the state, by name."""
        with self._lock:
            self._values.update(values)

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._values[name] = self._values.get(name, 0) + by

    def tick(self, name: str) -> None:
        """Note that an item of the stream `name` arrived: rate, age and longest gap are shown."""
        now = time.monotonic()
        with self._lock:
            meter = self._meters.setdefault(name, _Meter())
            if meter.total:
                meter.longest_gap = max(meter.longest_gap, now - meter.last)
            meter.count, meter.total, meter.last = meter.count + 1, meter.total + 1, now

    def warn(self, text: str) -> None:
        """Set the warning (empty: none)."""
        with self._lock:
            changed, self._warning = text != self._warning, text
        if text and changed:
            self._node.get_logger().warning(text)

    def error(self, text: str) -> None:
        """Set the error (empty: none)."""
        with self._lock:
            changed, self._error = text != self._error, text
        if text and changed:
            self._node.get_logger().error(text)

    def waiting_for(self, text: str) -> None:
        """Say what the node waits for (empty: nothing)."""
        with self._lock:
            changed, self._waiting = text != self._waiting, text
        if text and changed:
            self._node.get_logger().info(f"waiting for {text}")

    def publish(self) -> None:
        """Publish now (the 1 Hz timer does)."""
        array = DiagnosticArray()
        array.header.stamp = self._node.get_clock().now().to_msg()
        array.status = [self._status()]
        self._publisher.publish(array)

    def _status(self) -> DiagnosticStatus:
        now = time.monotonic()
        with self._lock:
            values = dict(self._values)
            span, self._reported = max(now - self._reported, 1e-3), now
            for name, meter in self._meters.items():
                values[f"{name}.rate_hz"] = f"{meter.count / span:.1f}"
                values[f"{name}.age_s"] = f"{now - meter.last:.3f}"
                values[f"{name}.longest_gap_ms"] = f"{meter.longest_gap * 1e3:.1f}"
                meter.count, meter.longest_gap = 0, 0.0
            level, message = self._summary()
        return DiagnosticStatus(
            level=level,
            name=self._node.get_fully_qualified_name(),
            message=message,
            values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
        )

    def _summary(self) -> tuple[bytes, str]:
        if self._error:
            return DiagnosticStatus.ERROR, self._error
        if self._warning:
            return DiagnosticStatus.WARN, self._warning
        if self._waiting:
            return DiagnosticStatus.OK, f"waiting for {self._waiting}"
        return DiagnosticStatus.OK, "ok"
