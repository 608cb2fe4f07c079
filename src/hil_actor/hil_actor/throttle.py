"""How far the actor may run ahead of the learner in lockstep. No ROS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The learner's, see LearnerStatus."""

    run_id: str
    env_steps: int
    env_steps_allowed: int
    phase: str = ""
    waiting_for: str = ""


class Throttle:
    """Says whether the next training step has to wait for the learner.

    The learner's count of stored steps lags behind what was taken here, so steps are also counted
    here: one actor alone never passes the bound, whatever the timing.

    Args:
        clock: steady, s.
        silence: a learner that is silent for longer (s) does not throttle any more.
    """

    def __init__(self, clock: Callable[[], float], silence: float) -> None:
        self.progress: Progress | None = None
        self._clock = clock
        self._silence = silence
        self._heard_at = 0.0
        self._taken = 0
        self._offset = 0
        """Training steps that the learner had before the first one of this actor's."""

    def take(self) -> None:
        """One more training step was taken here."""
        self._taken += 1

    def update(self, progress: Progress, pending: int) -> None:
        """The learner reports. pending: steps taken here that it has not acknowledged."""
        old = self.progress
        if old is None or old.run_id != progress.run_id:
            self._offset = progress.env_steps - max(self._taken - pending, 0)
        self.progress = progress
        self._heard_at = self._clock()

    def reason(self, pending: int) -> str:
        """Why the next training step has to wait; "" if it does not."""
        progress = self.progress
        if progress is None or self._clock() - self._heard_at > self._silence:
            return ""
        ahead = max(progress.env_steps + pending, self._offset + self._taken)
        if ahead < progress.env_steps_allowed:
            return ""
        what = progress.waiting_for or progress.phase or "training"
        return f"the learner, at {progress.env_steps_allowed} training steps ({what})"
