"""What a person asks of the episodes that run: hold between two steps, end this one. No ROS."""

from __future__ import annotations

import threading
from collections.abc import Callable

PAUSED = "paused by the person"


class Interference:
    """A pause that stays until it is ended, and a request to end the present episode. Any thread.

    Args:
        wake: has the control thread look.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._paused = threading.Event()
        self._skipping = threading.Event()

    @property
    def paused(self) -> bool:
        """Whether steps wait."""
        return self._paused.is_set()

    def pause(self, paused: bool) -> None:
        """Hold before the next step or reset, or go on."""
        if paused:
            self._paused.set()
        else:
            self._paused.clear()
        self._wake()

    def skip(self) -> None:
        """End the present episode without another step; the next begins after a reset."""
        self._skipping.set()
        self._wake()

    def begin_episode(self) -> None:
        """Requests that came before concern an episode that is over."""
        self._skipping.clear()

    @property
    def skipping(self) -> bool:
        """Whether the present episode is to end."""
        return self._skipping.is_set()
