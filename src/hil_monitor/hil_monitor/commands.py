"""What the page may ask for, checked, and handed to the graph. No ROS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

MODES = ("demo", "train", "evaluate")
_LONGEST = 200


@dataclass(frozen=True)
class Outcome:
    """How it went, in words."""

    ok: bool
    text: str = ""


Promise = Future[Outcome]


class CommandError(ValueError):
    """A request that means nothing; the text says why."""


class Graph(Protocol):
    """What can be asked of the other nodes. Every method answers at once, with a promise."""

    def set_stop(self, stopped: bool) -> Promise:
        """Latch or release the software stop."""

    def recover(self) -> Promise:
        """Clear the robot's error."""

    def set_pause(self, paused: bool) -> Promise:
        """Hold between two steps, or go on."""

    def skip_episode(self) -> Promise:
        """End the present episode and reset for the next."""

    def abort(self) -> Promise:
        """End the run: cancel all episodes that were asked for."""

    def run(self, mode: str, episodes: int) -> Promise:
        """Ask for episodes; 0: until aborted."""

    def answer(self, question: str, choice: str) -> Promise:
        """Answer a question."""

    def label(self, session: str, episode: int, success: bool) -> Promise:
        """Say whether an episode was a success."""

    def undo(self) -> Promise:
        """Take the newest label back."""

    def retry(self) -> Promise:
        """Have hil_manager try again with nodes that it holds."""


def perform(graph: Graph, request: Mapping[str, Any]) -> Promise:
    """Hand a request of the page to the graph.

    Raises:
        CommandError: unknown, or with a wrong argument.
    """
    name = request.get("do")
    handler = _HANDLERS.get(name) if isinstance(name, str) else None
    if handler is None:
        raise CommandError(f"there is no command {str(name)[:40]!r}")
    return handler(graph, request)


def done(outcome: Outcome) -> Promise:
    """A promise that is kept already."""
    promise = Promise()
    promise.set_result(outcome)
    return promise


def _run(graph: Graph, request: Mapping[str, Any]) -> Promise:
    mode, episodes = _text(request, "mode"), _whole(request, "episodes")
    if mode not in MODES:
        raise CommandError(f"mode must be one of {', '.join(MODES)}")
    return graph.run(mode, episodes)


def _label(graph: Graph, request: Mapping[str, Any]) -> Promise:
    success = request.get("success")
    if not isinstance(success, bool):
        raise CommandError("success must be true or false")
    return graph.label(_text(request, "session"), _whole(request, "episode"), success)


def _answer(graph: Graph, request: Mapping[str, Any]) -> Promise:
    return graph.answer(_text(request, "question"), _text(request, "choice"))


_HANDLERS: dict[str, Callable[[Graph, Mapping[str, Any]], Promise]] = {
    "stop": lambda graph, _: graph.set_stop(True),
    "release_stop": lambda graph, _: graph.set_stop(False),
    "recover": lambda graph, _: graph.recover(),
    "pause": lambda graph, _: graph.set_pause(True),
    "resume": lambda graph, _: graph.set_pause(False),
    "reset": lambda graph, _: graph.skip_episode(),
    "abort": lambda graph, _: graph.abort(),
    "run": _run,
    "answer": _answer,
    "label": _label,
    "undo": lambda graph, _: graph.undo(),
    "retry": lambda graph, _: graph.retry(),
}


def _text(request: Mapping[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
        raise CommandError(f"{name} must be a text")
    return value


def _whole(request: Mapping[str, Any], name: str) -> int:
    value = request.get(name)
    if type(value) is not int or not 0 <= value < 2**31:
        raise CommandError(f"{name} must be a whole number of 0 or more")
    return value
