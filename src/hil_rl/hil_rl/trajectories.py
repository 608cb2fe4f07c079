"""Which states belong to an episode, and in what order: the index behind hindsight goals."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from .spaces import Array

_TRIM = 1024


@dataclass(slots=True)
class _Trajectory:
    """States of one episode without a gap.

    Attributes:
        first: step number of the state in slots[0].
        slots: where the states are, in order; a final observation is the last one.
        gone: how many of the oldest ones were overwritten.
    """

    first: int
    slots: array[int] = field(default_factory=lambda: array("q"))
    gone: int = 0


class Trajectories:
    """Slots of the states of every episode that is still in a ring, finished or not.

    A state is named by its episode and step number: the state before step n has number n, the
    observation after the last step has the number that follows. An episode ends here where its
    chain of transitions ends (a gap starts another one).

    Args:
        capacity: slots of the ring.
    """

    def __init__(self, capacity: int) -> None:
        self._owner = np.full(capacity, -1, np.int64)
        self._of: dict[int, _Trajectory] = {}

    def __len__(self) -> int:
        return len(self._of)

    def append(self, episode: int, step: int, slot: int) -> None:
        """Add the state that follows the newest one of an episode; `slot` must be released."""
        trajectory = self._of.get(episode)
        if trajectory is None:
            trajectory = self._of[episode] = _Trajectory(step)
        trajectory.slots.append(slot)
        self._owner[slot] = episode

    def release(self, slot: int) -> None:
        """Forget the state in a slot that is about to be overwritten: its episode's oldest."""
        episode = int(self._owner[slot])
        if episode < 0:
            return
        self._owner[slot] = -1
        trajectory = self._of[episode]
        trajectory.gone += 1
        if trajectory.gone == len(trajectory.slots):
            del self._of[episode]
        elif trajectory.gone >= _TRIM and 2 * trajectory.gone >= len(trajectory.slots):
            del trajectory.slots[: trajectory.gone]
            trajectory.first += trajectory.gone
            trajectory.gone = 0

    def bounds(self, episodes: Array) -> tuple[Array, Array]:
        """Step numbers of the oldest and of the newest state of episodes, each (n,) int64.

        Raises:
            KeyError: nothing is left of an episode.
        """
        found = [self._of[episode] for episode in episodes.tolist()]
        oldest = [t.first + t.gone for t in found]
        newest = [t.first + len(t.slots) - 1 for t in found]
        return np.array(oldest, np.int64), np.array(newest, np.int64)

    def slots(self, episodes: Array, steps: Array) -> Array:
        """(n,) int64 slots of the states with these numbers, which must be within `bounds`."""
        found = [self._of[episode] for episode in episodes.tolist()]
        pairs = zip(found, steps.tolist(), strict=True)
        return np.array([t.slots[n - t.first] for t, n in pairs], np.int64)
