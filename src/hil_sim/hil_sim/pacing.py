"""Pace: a thread that calls a function at a fixed rate on the steady clock, and a countdown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Pacer:
    """Calls `step` every `period` seconds from `start` until `stop`.

    A call that comes late is followed by others at once until time has caught up; after more than
    `slack` seconds the lost time is given up, and counted.

    Args:
        step: called in the thread.
        period: s.
        failed: called with an exception that `step` raised; the thread then ends.
        name: of the thread.
        slack: s that may be caught up.

    Attributes:
        lost_ns: time that was given up, ns.
    """

    def __init__(
        self,
        step: Callable[[], None],
        period: float,
        failed: Callable[[Exception], None],
        name: str,
        slack: float = 0.1,
    ) -> None:
        self._step, self._period, self._failed, self._slack = step, period, failed, slack
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.lost_ns = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._stop.is_set():
                self._step()
                due += self._period
                early = due - time.monotonic()
                if early > 0.0:
                    self._stop.wait(early)
                elif -early > self._slack:
                    self.lost_ns += round(-early * 1e9)
                    due = time.monotonic()
        except Exception as error:
            self._failed(error)


class Countdown:
    """Is due in every n-th call, beginning with the n-th.

    Args:
        n: at least 1 (smaller values count as 1).
    """

    def __init__(self, n: int) -> None:
        self._n = max(1, n)
        self._left = self._n

    def due(self) -> bool:
        """Count one call."""
        self._left -= 1
        if self._left:
            return False
        self._left = self._n
        return True
