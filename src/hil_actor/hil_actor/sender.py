"""Acknowledged streaming of steps to the learner, on a thread of its own. No ROS.

The learner accepts only the step after the last one that it has stored. The sender sends what is
committed, at once and in batches, believes nothing but the learner's answer, goes on where the
answer says, and repeats a call whose answer did not come: repeats are harmless. What earlier
sessions of the actor left goes first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from hil_actor.step_store import Committed, LeftSteps, StepSource, StepStore, Stream

# Pause after a call that failed (s): first and longest.
_BACK_OFF = (0.1, 2.0)
# Between two looks for a learner that is not there, and for one that may have gone (s).
_LOOK_EVERY = 0.1
_WATCH_EVERY = 1.0
# How long a flush waits for a learner that is not there (s).
_FLUSH_ABSENT = 0.5
# Between two questions to a learner that trains something else (s).
_ASK_AGAIN = 2.0


class Status(IntEnum):
    """Values of InsertSteps.status."""

    OK = 0
    GAP = 1
    WRONG_RUN = 2
    WRONG_SPEC = 3
    MALFORMED = 4
    BUSY = 5


@dataclass(frozen=True)
class Reply:
    """The learner's answer, see InsertSteps."""

    status: int
    reason: str
    run_id: str
    last_seq: int
    wanted_seq: int


class Transport(Protocol):
    """The way to the learner. Used by the sender's thread only."""

    def ready(self) -> bool:
        """The learner can be reached now."""

    def insert(self, stream: Stream, steps: Sequence[Committed], timeout: float) -> Reply:
        """Send steps and wait for the answer; raises TimeoutError."""

    def interrupt(self) -> None:
        """Break off a call under way, and all further ones. From any thread."""


@dataclass(frozen=True)
class SenderOptions:
    """Bounds of one call, and its deadline (s). interval: shortest time between two calls, s."""

    max_steps: int = 200
    max_bytes: int = 4 * 2**20
    interval: float = 0.05
    timeout: float = 5.0


class Sender:
    """Moves steps from a store to the learner.

    Attributes:
        stalled: why steps wait now, although it will be tried again; "" if they do not.
        refused: why the learner does not take this stream; "" if it does. Sending has stopped.
        abandoned: why steps of earlier sessions will never be taken, one text for each session.

    Args:
        store: of the session's steps.
        transport: the way to the learner.
        stream: identity of the steps.
        left: what earlier sessions left, oldest first.
        options: see SenderOptions.
        clock: steady, s.
        on_exchange: called after every call, on the sender's thread.
    """

    def __init__(
        self,
        store: StepStore,
        transport: Transport,
        stream: Stream,
        left: Sequence[tuple[Stream, LeftSteps]] = (),
        options: SenderOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_exchange: Callable[[], None] | None = None,
    ) -> None:
        self.stalled = ""
        self.refused = ""
        self.abandoned: list[str] = []
        self._store = store
        self._transport = transport
        self._left = deque(left)
        self._own: tuple[Stream, StepSource] = (stream, store)
        self._options = options or SenderOptions()
        self._clock = clock
        self._on_exchange = on_exchange or (lambda: None)
        self._final = False
        self._more = False
        """The last call could not take everything that waited."""
        self._take_up()
        self._absent = False
        self._failures = 0
        self._wake = threading.Event()
        self._urgent = threading.Event()
        self._stopped = threading.Event()
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)

    # ------------------------------------------------------------------ from other threads

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def notify(self) -> None:
        """There are new steps."""
        self._wake.set()

    def hurry(self) -> None:
        """Send now, without waiting for more: somebody waits for the learner."""
        self._urgent.set()
        self._wake.set()

    def flush(self, timeout: float) -> bool:
        """Wait until the learner has everything, at most `timeout` s; return whether it has.

        A learner that is not there is not waited for so long.
        """
        self.hurry()
        end = self._clock() + timeout
        with self._progress:
            self._progress.wait_for(self._flushed, min(timeout, _FLUSH_ABSENT))
            self._progress.wait_for(
                lambda: self._flushed() or self._absent, max(end - self._clock(), 0.0)
            )
        return not self._store.pending

    def stop(self, timeout: float) -> bool:
        """End the thread, also in the middle of a call; return whether it has ended.

        What is not acknowledged stays in the store.
        """
        self._stopped.set()
        self.hurry()
        self._transport.interrupt()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _flushed(self) -> bool:
        """Nothing is left that could be sent."""
        return not self._store.pending or self._final

    # ---------------------------------------------------------------------- sender's thread

    @property
    def _current(self) -> tuple[Stream, StepSource]:
        """What is sent now."""
        return self._left[0] if self._left else self._own

    def _take_up(self) -> None:
        """Begin with what is sent now."""
        self._next = self._current[1].acknowledged + 1
        self._ask = bool(self._left)
        """What does the learner have now? It may be more than was noted, or less."""

    def _run(self) -> None:
        while not self._stopped.is_set():
            if not self.due():
                self._wake.wait(_WATCH_EVERY)
                self._wake.clear()
                continue
            began = self._clock()
            pause = self.exchange()
            with self._progress:
                self._progress.notify_all()
            self._on_exchange()
            if pause > 0.0:
                self._stopped.wait(pause)
            elif self._urgent.is_set():
                self._urgent.clear()
            elif not self._more:
                self._urgent.wait(self._options.interval - (self._clock() - began))

    def due(self) -> bool:
        """There is something to say to the learner, or to ask it."""
        if self._final:
            return False
        if not self._transport.ready():
            self._ask = True
        return bool(self.refused) or self._ask or self._next <= self._current[1].committed

    def exchange(self) -> float:
        """Make one call and believe its answer; return how long to pause before the next, s."""
        if not self._transport.ready():
            self._ask = self._absent = True
            self.stalled = "the learner is not there"
            return _LOOK_EVERY
        self._absent = False
        try:
            steps = self._choose()
        except LookupError as error:
            return self._give_up(f"the learner lost steps that it had acknowledged: {error}")
        try:
            reply = self._transport.insert(self._current[0], steps, self._options.timeout)
        except TimeoutError as error:
            return self._fail(str(error) or "the learner did not answer")
        return self._believe(reply, steps)

    def _choose(self) -> Sequence[Committed]:
        """Steps of the next call; none asks what the learner has."""
        self._more = False
        source, options = self._current[1], self._options
        if self.refused or self._ask or self._next > source.committed:
            return ()
        last = source.committed
        steps = source.batch(self._next, options.max_steps, options.max_bytes)
        self._more = steps[-1].seq < last
        return steps

    def _believe(self, reply: Reply, steps: Sequence[Committed]) -> float:
        status = reply.status
        if status in (Status.WRONG_RUN, Status.WRONG_SPEC):
            self.refused = reply.reason or f"the learner trains run {reply.run_id!r}"
            return _ASK_AGAIN
        source = self._current[1]
        if reply.last_seq > source.committed:
            return self._give_up(
                f"the learner has step {reply.last_seq} of this session, which has only "
                f"{source.committed}"
            )
        source.acknowledge(reply.last_seq)
        self.refused = ""
        if status == Status.MALFORMED:
            return self._give_up(f"the learner calls a step malformed: {reply.reason}")
        if status == Status.BUSY:
            return self._fail(reply.reason or "the learner is busy")
        if status not in (Status.OK, Status.GAP):
            return self._give_up(f"the learner answers with unknown status {status}")
        before, self._next = self._next, reply.last_seq + 1
        if steps and self._next == before:
            return self._fail(reply.reason or "the learner does not store what it is sent")
        self.stalled = ""
        self._ask = False
        self._failures = 0
        if self._left and reply.last_seq == source.committed:
            self._left.popleft()
            self._take_up()
        return 0.0

    def _fail(self, reason: str) -> float:
        """Note a call that will be made again."""
        self.stalled = reason
        first, longest = _BACK_OFF
        pause = min(first * 2.0**self._failures, longest)
        self._failures = min(self._failures + 1, 16)
        return pause

    def _give_up(self, reason: str) -> float:
        """Stop with this session for good: sending on could only do harm."""
        if self._left:
            stream, steps = self._left.popleft()
            steps.refuse(reason)
            self.abandoned.append(f"steps of session {stream.session} stay here: {reason}")
            self._take_up()
            return 0.0
        self.refused = reason
        self._final = True
        return 0.0
