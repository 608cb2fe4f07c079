"""Steps on their way to the learner: on disk until it has them, over the actor's death. No ROS.

The control thread hands a step over and goes on; a writer thread commits what waits, and only what
is committed goes to the learner. A successor finds the sessions of its predecessors here and sends
them first. A file of another run or specification is set aside, never sent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hil_actor.spool_file import (
    MAX_STEP_BYTES,
    Owner,
    SessionRow,
    SpoolError,
    SpoolFile,
    SpoolFileError,
    SpoolLock,
    delete,
    set_aside,
    spool_path,
)
from hil_actor.step_store import Committed, StoreFull, Stream

# Steps that may wait for the writer.
QUEUE_STEPS = 256
QUEUE_BYTES = 64 * 2**20
# Before a commit that failed is tried again, and between two notes of what was acknowledged (s).
_RETRY_EVERY = 1.0
_TIDY_EVERY = 1.0


@dataclass(frozen=True)
class SpoolOptions:
    """Bounds of a spool.

    Attributes:
        max_steps, max_bytes: that wait for the learner; more blocks the actor.
        keep_steps, keep_bytes: acknowledged ones of this session that are kept, for a learner
            that comes back with less than it had acknowledged.
        fsync: a committed step survives a power loss.
    """

    max_steps: int = 200_000
    max_bytes: int = 4 * 2**30
    keep_steps: int = 2000
    keep_bytes: int = 64 * 2**20
    fsync: bool = False


class Backlog:
    """What an earlier session left. A StepSource."""

    def __init__(self, file: SpoolFile, row: SessionRow, lock: threading.Condition) -> None:
        self.key = row.id
        self.bytes = row.waiting_bytes
        self.refused = ""
        """Why the learner will never take the rest; it stays in the file."""
        self.dirty = False
        """What was acknowledged is not noted in the file yet."""
        self._file = file
        self._lock = lock
        self._acknowledged = row.acknowledged
        self._last = row.last

    @property
    def committed(self) -> int:
        """Number of the last step."""
        return self._last

    @property
    def acknowledged(self) -> int:
        """Number of the last acknowledged step; 0: none."""
        return self._acknowledged

    @property
    def pending(self) -> int:
        """Number of steps that the learner has still to take."""
        return 0 if self.refused else self._last - self._acknowledged

    def batch(self, first: int, max_steps: int, max_bytes: int) -> Sequence[Committed]:
        """See StepSource."""
        return _batch(self._file, self.key, first, max_steps, max_bytes)

    def acknowledge(self, seq: int) -> None:
        """See StepSource."""
        with self._lock:
            self._acknowledged = seq
            self.dirty = True

    def refuse(self, reason: str) -> None:
        """Leave the rest in the file."""
        self.refused = reason


@dataclass
class _Own:
    """The session that is being recorded. All numbers are those of steps."""

    key: int
    sizes: deque[int] = field(default_factory=deque)
    """Of the committed steps that are kept; the first is that of step `first`."""
    first: int = 1
    committed: int = 0
    acknowledged: int = 0
    kept_bytes: int = 0
    pending_bytes: int = 0
    """Committed, not acknowledged."""
    dirty: bool = False


class Spool:
    """The steps of one actor, on disk. A StepStore; thread-safe.

    Nothing can be appended before `begin`.

    Args:
        folder: of the spool files.
        actor_id: whose.
        options: bounds.
        on_commit: called after every commit, and when writing becomes possible again; on the
            writer's thread.
        warn: told what becomes a notice.

    Attributes:
        path: of the file.
        problem: why nothing can be written now; "" if it can. Steps wait in memory meanwhile.
        notices: what a person should know of files that were set aside.

    Raises:
        SpoolError: another process has the spool, or the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        actor_id: str,
        options: SpoolOptions | None = None,
        on_commit: Callable[[], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.path = spool_path(folder.expanduser().absolute(), actor_id)
        self.problem = ""
        self.notices: list[str] = []
        self._options = options or SpoolOptions()
        self._on_commit = on_commit or (lambda: None)
        self._warn = warn or (lambda _: None)
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._own: _Own | None = None
        self._backlog: list[Backlog] = []
        self._closing = False
        self._thread = threading.Thread(target=self._write, name="spool", daemon=True)
        self._lock_file = SpoolLock(self.path)
        try:
            self._file = self._open_left()
        except BaseException:
            self._lock_file.close()
            raise

    def begin(self, stream: Stream) -> list[tuple[Stream, Backlog]]:
        """Open the session of a stream; return what earlier ones of its run left, in order.

        A file with waiting steps of another run or specification is set aside.

        Raises:
            SpoolError: it cannot be written.
        """
        owner = Owner(stream.run_id, stream.fingerprint, stream.actor_id)
        rows = self._rows_left(owner)
        if self._file is None:
            self._file = SpoolFile.create(self.path, owner, fsync=self._options.fsync)
        file = self._file
        left = [row for row in rows if row.waiting]
        backlog = [Backlog(file, row, self._changed) for row in left]
        file.commit(0, 1, (), done=[row.id for row in rows if not row.waiting])
        own = _Own(file.add_session(stream.session))
        with self._changed:
            self._backlog, self._own = backlog, own
        self._thread.start()
        names = (row.name for row in left)
        return [
            (Stream(owner.run_id, owner.fingerprint, owner.actor_id, name), steps)
            for name, steps in zip(names, backlog, strict=True)
        ]

    # --------------------------------------------------------------------------- StepStore

    @property
    def blocked(self) -> str:
        """Why the next step finds no room now; "" if it does."""
        with self._changed:
            return self._blocked()

    @property
    def pending(self) -> int:
        """Number of steps, also of earlier sessions, that the learner has still to take."""
        with self._changed:
            return self._pending()

    @property
    def last_seq(self) -> int:
        """Number of the last step that was handed over; 0: none."""
        with self._changed:
            return self._last()

    @property
    def committed(self) -> int:
        """Number of the last step that is in the file; 0: none."""
        own = self._own
        return own.committed if own is not None else 0

    @property
    def acknowledged(self) -> int:
        """Number of the last acknowledged step; 0: none."""
        own = self._own
        return own.acknowledged if own is not None else 0

    @property
    def pending_bytes(self) -> int:
        """Size of what the learner has still to take, or refused for good."""
        with self._changed:
            return self._pending_bytes()

    def append(self, data: bytes) -> int:
        """Hand over the next step and return its number; a thread commits it.

        Raises:
            StoreFull: no room; nothing was handed over.
            ValueError: too large for any spool.
        """
        if len(data) > MAX_STEP_BYTES:
            raise ValueError(f"a step of {len(data)} bytes, at most {MAX_STEP_BYTES} are possible")
        with self._changed:
            blocked = self._blocked()
            if blocked:
                raise StoreFull(blocked)
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self._changed.notify_all()
            return self._last()

    def batch(self, first: int, max_steps: int, max_bytes: int) -> Sequence[Committed]:
        """See StepSource."""
        own = self._begun()
        # The file may be a commit further than this object says.
        known = own.committed - first + 1
        if known < 1:
            return ()
        return _batch(self._opened(), own.key, first, min(max_steps, known), max_bytes)

    def acknowledge(self, seq: int) -> None:
        """The learner has everything up to `seq`, and no more: it may have fallen back.

        Raises:
            ValueError: there is no such step yet.
        """
        with self._changed:
            own = self._begun()
            if seq > own.committed:
                raise ValueError(f"step {seq} is acknowledged, {own.committed} is the last")
            before, now = own.acknowledged, max(seq, own.first - 1)
            low, high = sorted((before, now))
            size = sum(own.sizes[k - own.first] for k in range(low + 1, high + 1))
            own.pending_bytes -= size if now > before else -size
            own.acknowledged = now
            own.dirty = own.dirty or now != before

    def settle(self, timeout: float) -> bool:
        """Wait until everything handed over is committed, at most `timeout` s."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting or not self._thread.is_alive(), timeout
            )

    def close(self, timeout: float) -> int:
        """Commit what waits, note what was acknowledged, and let go of the file.

        Returns:
            Number of steps that could not be committed.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if self._thread.is_alive():
            # A disk that does not answer: the lock stays, so that nobody else writes beside us.
            return len(self._waiting)
        if self._file is not None:
            self._file.close()
        self._lock_file.close()
        return len(self._waiting)

    # ------------------------------------------------------------------------------- opening

    def _open_left(self) -> SpoolFile | None:
        """The predecessor's file; None without one. A damaged one is set aside."""
        if not self.path.exists():
            return None
        try:
            return SpoolFile(self.path, fsync=self._options.fsync)
        except SpoolFileError as error:
            self._set_aside("damaged", str(error))
            return None

    def _rows_left(self, owner: Owner) -> list[SessionRow]:
        """Sessions in the file, if it is one of this owner; another file is got out of the way."""
        if self._file is None:
            return []
        try:
            rows = self._file.sessions()
        except SpoolFileError as error:
            self._drop_file()
            self._set_aside("damaged", str(error))
            return []
        left = self._file.owner
        if left == owner:
            return rows
        waiting = sum(row.waiting for row in rows)
        self._drop_file()
        if waiting:
            what = f"run {left.run_id}"
            if left.run_id == owner.run_id:
                what += " with another task specification"
            self._set_aside(left.run_id, f"{waiting} steps of {what} wait in {self.path}")
        else:
            delete(self.path)
        return []

    def _set_aside(self, label: str, why: str) -> None:
        target = set_aside(self.path, label)
        advice = "" if label == "damaged" else f"; to send them: hil spool import {target}"
        notice = f"{why}: set aside as {target}{advice}"
        self.notices.append(notice)
        self._warn(notice)

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # --------------------------------------------------------------------------- bookkeeping

    def _begun(self) -> _Own:
        if self._own is None:
            raise SpoolError(f"spool {self.path}: no session has begun")
        return self._own

    def _opened(self) -> SpoolFile:
        if self._file is None:
            raise SpoolError(f"spool {self.path}: not open")
        return self._file

    def _last(self) -> int:
        return (self._own.committed if self._own is not None else 0) + len(self._waiting)

    def _pending(self) -> int:
        own = self._last() - self.acknowledged
        return own + sum(backlog.pending for backlog in self._backlog)

    def _pending_bytes(self) -> int:
        own = self._own.pending_bytes if self._own is not None else 0
        return own + self._waiting_bytes + sum(b.bytes for b in self._backlog)

    def _blocked(self) -> str:
        if self._own is None:
            return f"spool {self.path}: no session has begun"
        if self.problem:
            return self.problem
        options, steps, size = self._options, self._pending(), self._pending_bytes()
        if steps >= options.max_steps or (steps and size >= options.max_bytes):
            return f"the spool is full: {steps} steps, {size / 2**20:.0f} MB wait for the learner"
        if len(self._waiting) >= QUEUE_STEPS or self._waiting_bytes >= QUEUE_BYTES:
            return f"the disk is too slow: {len(self._waiting)} steps wait to be written"
        return ""

    # ----------------------------------------------------------------------- writer's thread

    def _write(self) -> None:
        """Commit what waits until closed; a commit that fails is tried again."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing, _TIDY_EVERY)
                closing, steps = self._closing, tuple(self._waiting)
            if not (steps or closing or self._dirty()):
                continue
            try:
                self._commit(steps)
            except Exception as error:  # whatever it is, a person has to know, and steps wait
                self._fail(error)
                if closing:
                    return
                continue
            recovered, self.problem = bool(self.problem), ""
            if steps or recovered:
                self._on_commit()
            if closing:
                return

    def _fail(self, error: Exception) -> None:
        """Say why nothing can be written, and pause before the next attempt."""
        damaged = isinstance(error, SpoolFileError)
        advice = "; a restart of the actor sets the file aside" if damaged else ""
        self.problem = f"{error}{advice}"
        self._on_commit()
        with self._changed:
            self._changed.wait_for(lambda: self._closing, _RETRY_EVERY)

    def _dirty(self) -> bool:
        return self._begun().dirty or any(b.dirty for b in self._backlog)

    def _commit(self, steps: Sequence[bytes]) -> None:
        file, own = self._opened(), self._begun()
        with self._changed:
            notes = []
            if own.dirty:
                self._forget_before(own, self._oldest_to_keep(own))
                notes.append((own.key, own.acknowledged, own.first))
            dirty = [b for b in self._backlog if b.dirty]
            done = [b for b in dirty if b.acknowledged >= b.committed]
            notes += [(b.key, b.acknowledged, 0) for b in dirty if b not in done]
            own.dirty = False
            for backlog in dirty:
                backlog.dirty = False
        try:
            file.commit(own.key, own.committed + 1, steps, notes, [b.key for b in done])
        except SpoolError:
            with self._changed:
                own.dirty = True
                for backlog in dirty:
                    backlog.dirty = True
            raise
        with self._changed:
            for data in steps:
                self._waiting.popleft()
                self._waiting_bytes -= len(data)
                own.sizes.append(len(data))
                own.kept_bytes += len(data)
                own.pending_bytes += len(data)
            own.committed += len(steps)
            self._backlog = [b for b in self._backlog if b not in done]
            self._changed.notify_all()
        if notes or done:
            file.shrink()

    def _oldest_to_keep(self, own: _Own) -> int:
        """Number of the oldest step that stays: acknowledged ones within the bounds."""
        options = self._options
        oldest, size = own.first, own.kept_bytes - own.pending_bytes
        while oldest <= own.acknowledged and (
            own.acknowledged + 1 - oldest > options.keep_steps or size > options.keep_bytes
        ):
            size -= own.sizes[oldest - own.first]
            oldest += 1
        return oldest

    @staticmethod
    def _forget_before(own: _Own, keep: int) -> None:
        while own.first < keep:
            own.kept_bytes -= own.sizes.popleft()
            own.first += 1


def _batch(
    file: SpoolFile, session: int, first: int, max_steps: int, max_bytes: int
) -> Sequence[Committed]:
    try:
        steps = file.read(session, first, max_steps, max_bytes)
    except SpoolFileError as error:
        raise LookupError(str(error)) from error
    if not steps:
        raise LookupError(f"step {first} is not kept any more")
    return steps
