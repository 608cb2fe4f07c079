"""What recorder and sender need of the place where steps wait for the learner. No ROS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class StoreFull(Exception):
    """No room: the caller has to wait, nothing was dropped."""


@dataclass(frozen=True)
class Committed:
    """One step of a session. data: its CDR serialization."""

    seq: int
    data: bytes


@dataclass(frozen=True)
class Stream:
    """Whose steps these are."""

    run_id: str
    fingerprint: str
    actor_id: str
    session: str


class StepSource(Protocol):
    """Steps of one session, seq 1, 2, 3, ..., that go to the learner."""

    @property
    def committed(self) -> int:
        """Number of the last step that is safe; 0: none."""

    @property
    def acknowledged(self) -> int:
        """Number of the last acknowledged step; 0: none."""

    def batch(self, first: int, max_steps: int, max_bytes: int) -> Sequence[Committed]:
        """Committed steps from number `first` on, at least one if there is one.

        Raises:
            LookupError: the step `first` is not kept any more, or cannot be read.
        """

    def acknowledge(self, seq: int) -> None:
        """The learner has everything up to `seq`, and no more: it may have fallen back."""


class LeftSteps(StepSource, Protocol):
    """A session of an actor's earlier life."""

    def refuse(self, reason: str) -> None:
        """The learner will never take the rest: keep it, send it no more."""


class StepStore(StepSource, Protocol):
    """The session that is being recorded."""

    @property
    def blocked(self) -> str:
        """Why the next step finds no room now; "" if it does."""

    @property
    def pending(self) -> int:
        """Number of steps, also of earlier sessions, that the learner has still to take."""

    @property
    def last_seq(self) -> int:
        """Number of the last step that was handed over; 0: none."""

    def append(self, data: bytes) -> int:
        """Hand over the next step and return its number; raises StoreFull."""
