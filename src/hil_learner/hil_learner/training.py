"""The training thread: updates while they are due, policies and checkpoints in between.

It never blocks anyone: ingestion writes to the store beside it, policies go into a slot, and
whoever wants something done between two updates leaves a request.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hil_learner.publisher import Policy
from hil_rl import checkpoint
from hil_rl.policy import encode
from hil_rl.trainer import Trainer

_log = logging.getLogger(__name__)

_MAX_REQUESTS = 100
_RETRY_AFTER = 2.0
"""Seconds until a checkpoint that the disk did not take is tried again."""
_IDLE_AFTER = 5.0
"""Seconds without an update after which a trainer that could train is said to wait."""


class UpdateLog(Protocol):
    """Keeps which updates were made, and what they were made from."""

    def note_update(self, number: int, seen: int) -> None:
        """Update `number` was made on revision `seen` of the store."""

    def flush(self) -> int:
        """Write what was noted; return the number of records in the log. May raise OSError."""


class ResumeError(RuntimeError):
    """The run's checkpoint cannot be continued from; the text says why."""


@dataclass(frozen=True)
class TrainingOptions:
    """Periods are numbers of updates; 0 switches the thing off.

    min_demo_steps: demonstration steps that must be stored before the first update.
    nice: added to the thread's niceness, so that control loops on the same cores come first.
    """

    fingerprint: str
    checkpoints: Path
    task: str = ""
    publish_period: int = 50
    checkpoint_period: int = 5000
    checkpoints_kept: int = 5
    metrics_period: int = 100
    min_demo_steps: int = 0
    nice: int = 0


@dataclass
class TrainingEvents:
    """What the owner wants to hear. Called on the training thread: hand over, do not work."""

    on_policy: Callable[[Policy], None] = field(default=lambda _: None)
    on_progress: Callable[[], None] = field(default=lambda: None)
    """After every update."""
    on_metrics: Callable[[int, int, Mapping[str, float]], None] = field(default=lambda *_: None)
    """Updates, training steps stored, means of the metrics over the period."""
    on_fault: Callable[[str], None] = field(default=lambda _: None)


class Training:
    """Owns the trainer from `start` to `close`; other methods may be called from any thread."""

    def __init__(
        self,
        trainer: Trainer,
        options: TrainingOptions,
        events: TrainingEvents | None = None,
        seen_version: int = 0,
        log: UpdateLog | None = None,
    ) -> None:
        """seen_version: highest policy version that any stored step was taken with."""
        self._log = log
        self._trainer = trainer
        self._options = options
        self._events = events or TrainingEvents()
        self._version = seen_version
        self._restored = False
        self._published_updates = -1
        self._saved_updates = -1
        self._changed = threading.Condition()
        self._running = False
        self._closing = False
        self._fault = ""
        self._held = ""
        self._disk = ""
        self._requests: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._sums: defaultdict[str, list[float]] = defaultdict(list)
        self._last_update = 0.0
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)

    # ------------------------------------------------------------------ state, for anyone

    @property
    def updates(self) -> int:
        """Updates of the run so far."""
        return self._trainer.updates

    @property
    def policy_version(self) -> int:
        """Of the newest policy that was handed over; 0 before the first."""
        return self._version

    @property
    def fault(self) -> str:
        """Why training ended by itself; empty if it did not."""
        return self._fault

    @property
    def running(self) -> bool:
        """Training happens as soon as updates are due."""
        return self._running

    def env_steps_allowed(self) -> int:
        """Training steps at which actors in lockstep have to wait; see `hil_rl.Trainer`."""
        return self._trainer.env_steps_allowed()

    def waiting_for(self) -> str:
        """What keeps training from happening, in words; empty while it happens."""
        if self._held or self._disk:
            return self._held or self._disk
        missing = self._options.min_demo_steps - self._trainer.store.counts.demo
        if missing > 0:
            return f"demonstrations: {missing} of {self._options.min_demo_steps} steps missing"
        if time.monotonic() - self._last_update < _IDLE_AFTER:
            return ""
        return self._trainer.waiting_for()

    # --------------------------------------------------------------------------- control

    def restore(self) -> int | None:
        """Continue from the newest checkpoint, before `start`; return its updates.

        Raises:
            ResumeError: it is of another specification or does not fit the networks.
        """
        path = checkpoint.latest(self._options.checkpoints)
        if path is None:
            return None
        try:
            loaded = checkpoint.load(path)
            found = loaded.meta["fingerprint"]
            if found != self._options.fingerprint:
                raise ResumeError(f"{path} is of specification {str(found)[:16]}…")
            self._trainer.load_state(loaded.tensors, loaded.meta["trainer"])
            version = int(loaded.meta["policy_version"])
        except (ValueError, KeyError, TypeError) as error:
            raise ResumeError(f"{path} cannot be continued from: {error}") from error
        # Steps taken with a newer policy: that one is lost, and its number must not come again.
        self._version = version if version >= self._version else self._version + 1
        self._saved_updates = self._trainer.updates
        self._restored = True
        return self._trainer.updates

    def start(self) -> None:
        """Start the thread, paused. A restored policy is handed over at once."""
        if self._restored and self._version:
            self._hand_over(self._version)
        self._thread.start()

    def run(self) -> None:
        """Train from now on, also after a fault."""
        with self._changed:
            self._fault = ""
            self._running = True
            self._changed.notify()

    def pause(self) -> None:
        """Return when no update is under way, and none begins until `run`."""
        with self._changed:
            self._running = False
            self._changed.notify()
        if self._thread.is_alive():
            self.submit(lambda: None).result()

    def hold(self, reason: str) -> None:
        """Make no update while `reason` is not empty: it is what is waited for."""
        if reason == self._held:
            return
        with self._changed:
            self._held = reason
            self._changed.notify()

    def notify(self) -> None:
        """Steps have arrived: updates may be due."""
        with self._changed:
            self._changed.notify()

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Have `work` done on the training thread between two updates."""
        future: Future[Any] = Future()
        with self._changed:
            if self._closing or len(self._requests) >= _MAX_REQUESTS:
                reason = "the learner is closing" if self._closing else "too many requests wait"
                future.set_exception(RuntimeError(reason))
                return future
            self._requests.append((work, future))
            self._changed.notify()
        return future

    def save(self) -> Path:
        """Hand over the newest policy and write a checkpoint. On the training thread only."""
        if self._trainer.updates and self._published_updates != self._trainer.updates:
            self._publish()
        return self._checkpoint()

    def renumber(self, version: int) -> None:
        """Publish the policy under a number above `version`, which an actor already holds."""

        def work() -> None:
            if version >= self._version:
                self._hand_over(version + 1)

        self.submit(work)

    def close(self) -> None:
        """End the thread; unless training failed, write what is not in a checkpoint yet.

        Raises:
            OSError: the checkpoint cannot be written.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        if not self._fault and self._trainer.updates not in (0, self._saved_updates):
            self._checkpoint()

    # ---------------------------------------------------------------------------- thread

    def _run(self) -> None:
        if self._options.nice:
            _set_nice(self._options.nice)
        while True:
            with self._changed:
                self._changed.wait_for(self._wanted, _RETRY_AFTER if self._disk else None)
                request = self._requests.popleft() if self._requests else None
                if request is None and self._closing:
                    return
            if request is not None:
                _carry_out(*request)
                continue
            try:
                if self._disk:
                    self._try_checkpoint()
                else:
                    self._update()
            except Exception as error:
                self._fail(error)

    def _wanted(self) -> bool:
        return bool(self._requests or self._closing or (self._running and self._due()))

    def _due(self) -> bool:
        if self._held or self._disk:
            return False
        enough = self._trainer.store.counts.demo >= self._options.min_demo_steps
        return enough and self._trainer.updates_due() > 0

    def _update(self) -> None:
        metrics = self._trainer.step()
        self._last_update = time.monotonic()
        if self._log is not None:
            self._log.note_update(self._trainer.updates, self._trainer.seen)
        updates, options = self._trainer.updates, self._options
        if options.metrics_period:
            for name, value in metrics.items():
                self._sums[name].append(value)
        if options.publish_period and updates % options.publish_period == 0:
            self._publish()
        if options.checkpoint_period and updates % options.checkpoint_period == 0:
            self._try_checkpoint()
        if options.metrics_period and updates % options.metrics_period == 0:
            self._report()
        self._events.on_progress()

    def _publish(self) -> None:
        self._hand_over(self._version + 1)

    def _hand_over(self, version: int) -> None:
        data = encode(self._trainer.agent, version, self._options.fingerprint)
        digest = hashlib.sha256(data).hexdigest()
        self._version = version
        self._published_updates = self._trainer.updates
        self._events.on_policy(Policy(version, self._options.fingerprint, digest, data))

    def _try_checkpoint(self) -> None:
        """Write a checkpoint; while the disk does not take it, training waits."""
        try:
            self._checkpoint()
        except OSError as error:
            if not self._disk:
                _log.error("no checkpoint: %s", error)
            self._disk = f"the checkpoint to be written: {error}"
        else:
            self._disk = ""

    def _checkpoint(self) -> Path:
        arrays, state = self._trainer.state()
        counts = self._trainer.store.counts
        records = self._log.flush() if self._log is not None else 0
        meta = {
            "fingerprint": self._options.fingerprint,
            "task": self._options.task,
            "policy_version": self._version,
            "env_steps": counts.online,
            "demo_steps": counts.demo,
            "log_records": records,
            "trainer": state,
        }
        updates, kept = self._trainer.updates, self._options.checkpoints_kept
        path = checkpoint.save(self._options.checkpoints, updates, arrays, meta, keep=kept)
        self._saved_updates = updates
        return path

    def _report(self) -> None:
        means = {name: sum(values) / len(values) for name, values in self._sums.items()}
        self._sums.clear()
        env_steps = self._trainer.store.counts.online
        self._events.on_metrics(self._trainer.updates, env_steps, means)

    def _fail(self, error: Exception) -> None:
        _log.exception("training failed")
        with self._changed:
            self._running = False
            self._fault = f"training: {type(error).__name__}: {error}"
        self._events.on_fault(self._fault)


def _carry_out(work: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)


def _set_nice(increment: int) -> None:
    thread = threading.get_native_id()
    present = os.getpriority(os.PRIO_PROCESS, thread)
    with contextlib.suppress(PermissionError):  # a limit of the system; training works anyway
        os.setpriority(os.PRIO_PROCESS, thread, present + increment)
