"""What binds the actor to its learner: the run, the stream of steps, the throttle. No ROS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hil_actor.sender import Sender
from hil_actor.spool_file import SpoolError
from hil_actor.step_store import StepStore, Stream
from hil_actor.throttle import Progress, Throttle

# How long the sender's thread may take to end (s).
_STOP_LIMIT = 5.0
_UNNAMED = "the learner, for the name of the run (or set the parameter run_id)"


class LearnerLink:
    """Decides what a step has to wait for, and streams the steps once the run is known.

    Everything but `notify`, `progressed` and `close` belongs to the control thread.

    Args:
        store: of the session's steps.
        stream: identity of the steps; an empty run_id is taken from the first learner heard.
        make_sender: opens a complete stream in the store and makes its sender; may raise
            SpoolError, and is tried again then.
        throttle: bound between actor and learner.
        lockstep: the throttle is in force.
        on_run: told the run's id, before the first step.
        wake: has the control thread ask again what it waits for.
    """

    def __init__(
        self,
        store: StepStore,
        stream: Stream,
        make_sender: Callable[[Stream], Sender],
        throttle: Throttle,
        *,
        lockstep: bool,
        on_run: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self.sender: Sender | None = None
        self.trouble = ""
        """Why the stream could not be opened; "" if it was, or was not tried."""
        self._wake = wake
        self._waiting = False
        self._store = store
        self._stream = stream
        self._make_sender = make_sender
        self._throttle = throttle
        self._lockstep = lockstep
        self._on_run = on_run
        if stream.run_id:
            self._begin(stream)

    @property
    def run_id(self) -> str:
        """Run that the steps belong to; "" until it is known."""
        return self._stream.run_id if self.sender is not None else ""

    def notify(self) -> None:
        """A step was committed."""
        if self.sender is not None:
            self.sender.notify()

    def progressed(self) -> None:
        """The sender heard from the learner."""
        if self._waiting:
            self._wake()

    def on_progress(self, progress: Progress) -> None:
        """The learner reports."""
        if self.sender is None and progress.run_id:
            self._begin(replace(self._stream, run_id=progress.run_id))
        self._throttle.update(progress, self._store.pending)

    def reason(self, mode: str) -> str:
        """Why the next step has to wait; "" if it does not."""
        reason = self._reason(mode)
        self._waiting = bool(reason)
        return reason

    def _reason(self, mode: str) -> str:
        if self.sender is None and self._stream.run_id:
            self._begin(self._stream)
        sender = self.sender
        if sender is None:
            return (
                self.trouble
                or "the learner, for the name of the run (or set the parameter run_id)"
            )
        if sender.refused:
            return f"the learner to take the steps: {sender.refused}"
        blocked = self._store.blocked
        if blocked:
            return f"{blocked} ({sender.stalled})" if sender.stalled else blocked
        if not self.settled():
            # So the actor's death costs the step under way at most, however fast steps come. In
            # real time there is a control period for it, and the loop does not wait.
            return "the disk, to write the last step"
        if not (self._lockstep and mode == "train"):
            return ""
        reason = self._throttle.reason(self._store.pending)
        if reason:
            sender.hurry()
        return reason

    def settled(self) -> bool:
        """The last step is on disk, or cannot be written now; in real time nobody waits for it."""
        store = self._store
        return not self._lockstep or bool(store.blocked) or store.committed >= store.last_seq

    def taken(self, mode: str) -> None:
        """A step was taken and recorded."""
        if mode == "train":
            self._throttle.take()

    def close(self, flush: float) -> int:
        """Give the learner up to `flush` s to take what is left, and end the stream.

        Returns:
            Number of steps that the learner has not acknowledged.
        """
        if self.sender is not None:
            self.sender.flush(flush)
            self.sender.stop(_STOP_LIMIT)
        return self._store.pending

    def _begin(self, stream: Stream) -> None:
        try:
            sender = self._make_sender(stream)
        except SpoolError as error:
            self.trouble = str(error)
            return
        self.trouble = ""
        self._stream = stream
        self._on_run(stream.run_id)
        self.sender = sender
        sender.start()
