"""Coroutines on the executor's thread that sleep until what they wait for is there.

rclpy polls a coroutine that awaits a future: it keeps a core busy in every executor of Jazzy, and
service callbacks cannot be coroutines at all in the EventsExecutor. Here a coroutine awaits a
`Promise` and is resumed by whoever keeps it, on the same thread, so no locks are needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Cancelled(Exception):
    """The fiber was told to stop."""


class TimedOut(Exception):
    """What a fiber waited for did not come in time."""


class Promise(Generic[T]):
    """A value that will be there once. Only the first answer counts; many may wait for it."""

    def __init__(self) -> None:
        self.done = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._waiting: list[Callable[[], None]] = []

    def keep(self, value: T) -> None:
        """Give the value; whoever waits goes on at once."""
        self._settle(value, None)

    def fail(self, error: Exception) -> None:
        """Give an error instead; it is raised where the value is awaited."""
        self._settle(None, error)

    def _settle(self, value: T | None, error: Exception | None) -> None:
        if self.done:
            return
        self.done, self._value, self._error = True, value, error
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()

    def when_done(self, resume: Callable[[], None]) -> None:
        """Have something called once the promise is kept or has failed."""
        self._waiting.append(resume)

    def forget(self, resume: Callable[[], None]) -> None:
        """Do not call it any more."""
        if resume in self._waiting:
            self._waiting.remove(resume)

    def __await__(self) -> Generator[Promise[T], None, T]:
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Fiber:
    """One running coroutine."""

    def __init__(
        self,
        coroutine: Coroutine[Any, None, Any],
        finished: Callable[[Any, Exception | None], None],
    ) -> None:
        self.alive = True
        self._coroutine = coroutine
        self._finished = finished
        self._waits_for: Promise[Any] | None = None
        self._running = False
        self._cancel_when_waiting = False
        self._step(None)

    def cancel(self) -> None:
        """Raise `Cancelled` where the coroutine waits."""
        if not self.alive:
            return
        if self._running:
            self._cancel_when_waiting = True
            return
        if self._waits_for is not None:
            self._waits_for.forget(self._go_on)
        self._step(Cancelled())

    def _step(self, error: Exception | None) -> None:
        self._running, self._waits_for = True, None
        try:
            waits_for = (
                self._coroutine.throw(error) if error is not None else self._coroutine.send(None)
            )
        except StopIteration as end:
            self._end(end.value, None)
            return
        except Exception as failure:
            self._end(None, failure)
            return
        self._running = False
        self._waits_for = waits_for
        if self._cancel_when_waiting:
            self._cancel_when_waiting = False
            self._step(Cancelled())
        elif waits_for.done:
            self._step(None)
        else:
            waits_for.when_done(self._go_on)

    def _go_on(self) -> None:
        self._step(None)

    def _end(self, value: Any, error: Exception | None) -> None:
        self.alive, self._running = False, False
        self._finished(value, error)


class Timeouts:
    """Deadlines of promises, on the steady clock; `check` has to be called now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deadlines: dict[int, tuple[float, Promise[Any], str]] = {}
        self._next = 0

    async def wait(self, promise: Promise[T], seconds: float, what: str) -> T:
        """Value of a promise.

        Raises:
            TimedOut: it was not kept within `seconds`; names `what`.
        """
        self._next += 1
        key = self._next
        text = f"no answer from {what} within {seconds:g} s"
        self._deadlines[key] = (self._clock() + seconds, promise, text)
        try:
            return await promise
        finally:
            self._deadlines.pop(key, None)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        nothing: Promise[None] = Promise()
        self._next += 1
        key = self._next
        self._deadlines[key] = (self._clock() + seconds, nothing, "")
        try:
            await nothing
        finally:
            self._deadlines.pop(key, None)

    def check(self) -> None:
        """Let go what has waited long enough."""
        if not self._deadlines:
            return
        now = self._clock()
        for deadline, promise, text in list(self._deadlines.values()):
            if now < deadline:
                continue
            if text:
                promise.fail(TimedOut(text))
            else:
                promise.keep(None)
