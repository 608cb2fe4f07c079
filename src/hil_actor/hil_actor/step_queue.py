"""Steps on their way to the learner: bounded, in order, kept until acknowledged. No ROS.

`StepStore` is what recorder and sender need; a store on disk can take the place of `StepQueue`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class StoreFull(Exception):
    """No room: the caller has to wait, nothing was dropped."""


@dataclass(frozen=True)
class Committed:
    """One step of this session. data: its CDR serialization."""

    seq: int
    data: bytes


class StepStore(Protocol):
    """Steps of one session, seq 1, 2, 3, ..."""

    @property
    def full(self) -> bool:
        """The next step may find no room."""

    @property
    def pending(self) -> int:
        """Number of steps that are not acknowledged."""

    @property
    def last_seq(self) -> int:
        """Number of the last committed step; 0: none."""

    @property
    def acknowledged(self) -> int:
        """Number of the last acknowledged step; 0: none."""

    def append(self, data: bytes) -> int:
        """Commit the next step and return its number; raises StoreFull."""

    def batch(self, first: int, max_steps: int, max_bytes: int) -> Sequence[Committed]:
        """Steps from number `first` on, at least one if there is one.

        Raises:
            LookupError: the step `first` is not kept any more.
        """

    def acknowledge(self, seq: int) -> None:
        """The learner has everything up to `seq`, and no more."""


class StepQueue:
    """Steps in memory.

    Acknowledged steps stay as long as there is room, for a learner that comes back with less than
    it had acknowledged. Thread-safe.

    Args:
        max_steps: bound of the number of steps kept.
        max_bytes: bound of their size; one step may exceed it if it is alone.
        on_append: called after every commit, on the committing thread.
    """

    def __init__(
        self, max_steps: int, max_bytes: int, on_append: Callable[[], None] | None = None
    ) -> None:
        self._max_steps = max_steps
        self._max_bytes = max_bytes
        self._on_append = on_append or (lambda: None)
        self._lock = threading.Lock()
        self._steps: deque[bytes] = deque()
        self._first = 1
        self._acknowledged = 0
        self._bytes = 0
        self._pending_bytes = 0

    @property
    def full(self) -> bool:
        """As many steps, or bytes, wait for the learner as may."""
        with self._lock:
            return self._full()

    @property
    def pending(self) -> int:
        """Number of steps that are not acknowledged."""
        with self._lock:
            return self._last() - self._acknowledged

    @property
    def last_seq(self) -> int:
        """Number of the last committed step; 0: none."""
        with self._lock:
            return self._last()

    @property
    def acknowledged(self) -> int:
        """Number of the last acknowledged step; 0: none."""
        with self._lock:
            return self._acknowledged

    @property
    def kept_bytes(self) -> int:
        """Size of everything kept."""
        with self._lock:
            return self._bytes

    def append(self, data: bytes) -> int:
        """Commit the next step and return its number.

        Raises:
            StoreFull: as many steps wait for the learner as may.
        """
        with self._lock:
            if self._full():
                raise StoreFull(f"{self._last() - self._acknowledged} steps wait for the learner")
            self._steps.append(data)
            self._bytes += len(data)
            self._pending_bytes += len(data)
            self._trim()
            seq = self._last()
        self._on_append()
        return seq

    def batch(self, first: int, max_steps: int, max_bytes: int) -> list[Committed]:
        """Steps from number `first` on; at least one if there is one.

        Raises:
            LookupError: the step `first` is not kept any more.
        """
        with self._lock:
            if first < self._first:
                raise LookupError(f"step {first} is not kept any more, {self._first} is the first")
            chosen: list[Committed] = []
            size = 0
            for seq in range(first, min(first + max_steps, self._last() + 1)):
                data = self._steps[seq - self._first]
                size += len(data)
                if chosen and size > max_bytes:
                    break
                chosen.append(Committed(seq, data))
            return chosen

    def acknowledge(self, seq: int) -> None:
        """The learner has everything up to `seq`, and no more: it may have fallen back.

        Raises:
            ValueError: there is no such step yet.
        """
        with self._lock:
            if seq > self._last():
                raise ValueError(f"step {seq} is acknowledged, {self._last()} is the last")
            before, now = self._acknowledged, max(seq, self._first - 1)
            low, high = sorted((before, now))
            size = sum(len(self._steps[k - self._first]) for k in range(low + 1, high + 1))
            self._pending_bytes -= size if now > before else -size
            self._acknowledged = now

    def _last(self) -> int:
        return self._first + len(self._steps) - 1

    def _full(self) -> bool:
        pending = self._last() - self._acknowledged
        return pending >= self._max_steps or (
            pending > 0 and self._pending_bytes >= self._max_bytes
        )

    def _trim(self) -> None:
        """Drop acknowledged steps that exceed the bounds."""
        while self._first <= self._acknowledged and (
            len(self._steps) > self._max_steps or self._bytes > self._max_bytes
        ):
            self._bytes -= len(self._steps.popleft())
            self._first += 1
