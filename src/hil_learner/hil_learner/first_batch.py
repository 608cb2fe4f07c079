"""How soon a correction is trained on: from storing an intervened step to its first batch."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hil_rl.spaces import Array, Spaces
from hil_rl.store import FLAG_DEMO, NO_PENALTY, Batch, EpisodeStore, Step, TakeoverPenalty, View

_WINDOW = 200
_LARGEST_BACKLOG = 10_000


@dataclass(frozen=True)
class FirstBatch:
    """An intervened step that has just been in a batch for the first time.

    Attributes:
        stream, seq: identity of the step.
        waited: s between storing and sampling (steady clock).
        at: when it was sampled, s (wall clock).
    """

    stream: str
    seq: int
    waited: float
    at: float


class MeteredStore(EpisodeStore):
    """Episode store that notes when each new intervened training step is first sampled.

    Waiting counts from the moment of storing, so it has three parts: the step's successor has to
    arrive, an update has to be due, and chance has to pick the step.

    Args:
        spaces, capacity, successful_demos, takeover_penalty: see `EpisodeStore`.
        clock: steady, s.

    Attributes:
        metering: steps that are added are followed. Off at first: those that a log brings back
            were sampled by an earlier process.
    """

    def __init__(
        self,
        spaces: Spaces,
        capacity: int,
        clock: Callable[[], float] = time.monotonic,
        successful_demos: bool = True,
        takeover_penalty: TakeoverPenalty = NO_PENALTY,
    ) -> None:
        super().__init__(
            spaces,
            capacity,
            successful_demos=successful_demos,
            takeover_penalty=takeover_penalty,
        )
        self.metering = False
        self._clock = clock
        self._meter = threading.Lock()
        self._waiting: dict[int, tuple[str, int, float]] = {}
        """Slot -> stream, seq, when it was stored."""
        self._noted: deque[FirstBatch] = deque(maxlen=_LARGEST_BACKLOG)
        self._recent: deque[float] = deque(maxlen=_WINDOW)

    def add(self, step: Step) -> int:
        """Store a step; see `EpisodeStore.add`."""
        stored = self._clock()
        slot = super().add(step)
        with self._meter:
            self._waiting.pop(slot, None)  # overwritten before it was sampled
            if self.metering and step.intervened and not step.flags & FLAG_DEMO:
                self._waiting[slot] = (step.stream, step.seq, stored)
        return slot

    def sample(
        self, n: int, view: View, rng: np.random.Generator, out: Batch | None = None
    ) -> Batch:
        """Draw transitions; see `EpisodeStore.sample`."""
        batch = super().sample(n, view, rng, out)
        if self._waiting:
            self._note(batch.slot)
        return batch

    def take_first_batches(self) -> list[FirstBatch]:
        """What was noted since the last call, oldest first."""
        with self._meter:
            taken = list(self._noted)
            self._noted.clear()
        return taken

    def first_batch_figures(self) -> dict[str, float]:
        """Waiting times of the newest steps: median and longest (s); and how many wait still.

        The waiting times are absent before the first one.
        """
        with self._meter:
            figures = {"interventions_unsampled": float(len(self._waiting))}
            if self._recent:
                figures["intervention_to_batch_p50_s"] = float(np.median(self._recent))
                figures["intervention_to_batch_max_s"] = max(self._recent)
        return figures

    def _note(self, slots: Array) -> None:
        with self._meter:
            for slot in self._waiting.keys() & set(slots.tolist()):
                stream, seq, stored = self._waiting.pop(slot)
                waited = self._clock() - stored
                self._noted.append(FirstBatch(stream, seq, waited, time.time()))
                self._recent.append(waited)
