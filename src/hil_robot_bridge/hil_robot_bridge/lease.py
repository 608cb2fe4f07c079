"""Who may command the arm: one session at a time, and the newest one wins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """Answer to a request for the lease: whether it is granted, and why not."""

    ok: bool
    reason: str = ""


class Lease:
    """The right to command one arm.

    It never expires by itself: a stopped owner may continue. A session that began later supersedes
    the holder. While an action of the bridge runs (`busy_with`), nobody's commands are followed.

    Attributes:
        holder: session that holds the lease, "" if none.
        name: the holder in words.
        busy_with: name of the action that runs, "" if none.
    """

    def __init__(self) -> None:
        self.holder = ""
        self.name = ""
        self.busy_with = ""
        self._started_ns = 0
        self._borrowed = False

    def acquire(self, owner: str, name: str, started_ns: int) -> Answer:
        """Ask for the lease.

        Args:
            owner: session, unique for each life of the owner.
            name: who, in words.
            started_ns: wall clock at which the session began.
        """
        if not owner:
            return Answer(False, "owner is empty")
        if started_ns <= 0:
            return Answer(False, "started is zero: it tells which session is newer")
        if self.holder not in ("", owner):
            if started_ns < self._started_ns:
                return Answer(False, f"held by the newer session {self._who()}")
            if started_ns == self._started_ns:
                return Answer(False, f"held by {self._who()}, which began at the same time")
        self.holder, self.name, self._started_ns = owner, name, started_ns
        self._borrowed = False
        return Answer(True)

    def release(self, owner: str) -> Answer:
        """Give the lease back."""
        if not self.holder:
            return Answer(False, "the lease is free")
        if owner != self.holder:
            return Answer(False, f"the lease is held by {self._who()}")
        self._clear()
        return Answer(True)

    def begin(self, action: str, owner: str) -> Answer:
        """Let an action of the bridge take the arm, on behalf of `owner`.

        With a free lease the owner holds it as long as the action runs.
        """
        if self.busy_with:
            return Answer(False, f"{self.busy_with} runs")
        if not owner:
            return Answer(False, "owner is empty")
        if self.holder not in ("", owner):
            return Answer(False, f"the lease is held by {self._who()}")
        if not self.holder:
            self.holder, self.name, self._started_ns = owner, action, 0
            self._borrowed = True
        self.busy_with = action
        return Answer(True)

    def end(self) -> None:
        """Give the arm back to the holder after an action."""
        self.busy_with = ""
        if self._borrowed:
            self._clear()

    def _clear(self) -> None:
        self.holder, self.name, self._started_ns = "", "", 0
        self._borrowed = False

    def _who(self) -> str:
        return f"{self.name} ({self.holder})" if self.name else self.holder
