"""The console as an input device: one browser drives at a time. No ROS.

A device that is held reports what its browser sends and nothing else: when the browser falls
silent (a lost connection, a page without focus, a stopped timer) the device is silent too, which
teleop takes for a loss, and the arm holds. A device that was given back is at rest.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

AXES = 6
BUTTONS = 3
"""close gripper, open gripper, hold to intervene."""
REST = ((0.0,) * AXES, (0,) * BUTTONS)
Sample = tuple[tuple[float, ...], tuple[int, ...]]


class InputError(ValueError):
    """Input that is not one; the text says why."""


class ConsoleDevice:
    """Who drives from the console, and what comes out. Any thread.

    Args:
        publish: gets every sample: axes (6,) in [-1, 1] as x y z roll pitch yaw, buttons (3,).
    """

    def __init__(self, publish: Callable[[Sample], None]) -> None:
        self._publish = publish
        self._lock = threading.Lock()
        self._holder = ""
        self._resting = False

    @property
    def holder(self) -> str:
        """Browser that has the device; empty: none."""
        return self._holder

    def take(self, client: str) -> str:
        """Have a browser drive; return why not, or ""."""
        with self._lock:
            if self._holder not in ("", client):
                return "another browser has the controls"
            self._holder, self._resting = client, False
        return ""

    def give_back(self, client: str) -> None:
        """The browser has let go on purpose: the device is at rest from now on."""
        with self._lock:
            if self._holder != client:
                return
            self._holder, self._resting = "", True
        self._publish(REST)

    def lose(self, client: str) -> None:
        """The browser is gone: the device falls silent."""
        with self._lock:
            if self._holder == client:
                self._holder, self._resting = "", False

    def feed(self, client: str, axes: Any, buttons: Any) -> None:
        """Publish what the browser sends.

        Raises:
            InputError: it does not have the device, or sends something else than axes and buttons.
        """
        sample = (_axes(axes), _buttons(buttons))
        if self._holder != client:
            raise InputError("take the controls first")
        self._publish(sample)

    def rest(self) -> None:
        """Called regularly: a device at rest says so."""
        if self._resting:
            self._publish(REST)


def _axes(values: Any) -> tuple[float, ...]:
    if not _numbers(values, AXES):
        raise InputError(f"axes must be {AXES} numbers")
    return tuple(max(-1.0, min(1.0, float(v))) for v in values)


def _buttons(values: Any) -> tuple[int, ...]:
    if not _numbers(values, BUTTONS):
        raise InputError(f"buttons must be {BUTTONS} numbers")
    return tuple(int(bool(v)) for v in values)


def _numbers(values: Any, count: int) -> bool:
    return (
        isinstance(values, Sequence)
        and len(values) == count
        and all(isinstance(v, (int, float)) and math.isfinite(v) for v in values)
    )
