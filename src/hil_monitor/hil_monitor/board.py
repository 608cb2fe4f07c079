"""Questions to the person that are open. No ROS."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

_KEPT = 64


@dataclass(frozen=True)
class Question:
    """A question; see Prompt. due: steady time at which the asker takes the default."""

    id: str
    node: str
    text: str
    choices: tuple[str, ...]
    default: str
    due: float


class Board:
    """Open questions of all nodes, oldest first. Any thread.

    Args:
        clock: steady, s.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, Question] = {}

    def put(self, question: Question) -> None:
        """A question is open. A node has one open question: its earlier ones are gone."""
        with self._lock:
            self._open = {k: q for k, q in self._open.items() if q.node != question.node}
            self._open[question.id] = question
            while len(self._open) > _KEPT:
                del self._open[next(iter(self._open))]

    def close(self, question_id: str) -> None:
        """A question is settled."""
        with self._lock:
            self._open.pop(question_id, None)

    def get(self, question_id: str) -> Question | None:
        """The open question of that id."""
        with self._lock:
            return self._open.get(question_id)

    def picture(self) -> list[dict[str, Any]]:
        """Open questions as plain data; those whose time is over are left out."""
        now = self._clock()
        with self._lock:
            self._open = {k: q for k, q in self._open.items() if q.due > now}
            return [
                {
                    **{k: v for k, v in asdict(q).items() if k != "due"},
                    "remaining": round(q.due - now, 1),
                }
                for q in self._open.values()
            ]
