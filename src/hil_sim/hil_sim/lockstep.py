"""Identity of lockstep steps: the same step is carried out once, however often it is asked for."""

from __future__ import annotations

from collections import OrderedDict


class CarriedOut:
    """Remembers the stamps of the newest steps by their identity.

    Args:
        capacity: how many steps are remembered.
    """

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._stamps: OrderedDict[str, int] = OrderedDict()

    def find(self, step_id: str) -> int | None:
        """Stamp (ns) that the step led to, or None if it was not carried out (or has no id)."""
        return self._stamps.get(step_id) if step_id else None

    def note(self, step_id: str, stamp: int) -> None:
        """Remember a step that was carried out."""
        if not step_id:
            return
        self._stamps[step_id] = stamp
        while len(self._stamps) > self._capacity:
            self._stamps.popitem(last=False)
