"""A console without ROS, and a client for it."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from hil_monitor.access import Access, Certificate
from hil_monitor.board import Board
from hil_monitor.commands import Outcome, Promise, done
from hil_monitor.device import ConsoleDevice, Sample
from hil_monitor.frames import FrameHub
from hil_monitor.recorder import EpisodeRing
from hil_monitor.server import ConsoleServer, Parts
from hil_monitor.session import Session

LIMIT = 30.0
"""Seconds that a busy machine may take for what takes milliseconds."""


class FakeGraph:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.outcome = Outcome(True)

    def __getattr__(self, name: str) -> Callable[..., Promise]:
        def note(*arguments: Any) -> Promise:
            self.asked.append((name, *arguments))
            return done(self.outcome)

        return note


class FakeConsole:
    """Everything that a server needs, to be changed by a test."""

    def __init__(self, folder: Path) -> None:
        self.session = Session(time.monotonic)
        self.board = Board(time.monotonic)
        self.samples: list[Sample] = []
        self.device = ConsoleDevice(self.samples.append)
        self.frames = FrameHub()
        self.cameras: list[str] = []
        self.ring = EpisodeRing(folder / "ring", 5)
        self.graph = FakeGraph()
        self.features = {"input": True, "labels": True, "recorded": True}

    @contextmanager
    def served(
        self, access: Access | None = None, certificate: Certificate | None = None
    ) -> Iterator[ConsoleServer]:
        """Serve it on a free port."""
        parts = Parts(
            self.session, self.board, self.device, self.frames, lambda: self.cameras, self.ring,
            self.graph, lambda: self.features,
        )  # fmt: skip
        server = ConsoleServer(parts, access or Access(), "127.0.0.1", 0, certificate)
        server.start()
        try:
            yield server
        finally:
            server.close()


class Page:
    """A page's connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def send(self, **request: Any) -> None:
        self.socket.send(json.dumps(request))

    def wait(self, kind: str, predicate: Callable[[Any], Any] = lambda m: True) -> Any:
        """First message of a kind from now on that fulfils the predicate."""
        end = time.monotonic() + LIMIT
        while True:
            message = json.loads(self.socket.recv(timeout=max(0.0, end - time.monotonic())))
            if message["kind"] == kind and predicate(message):
                return message

    def ask(self, **request: Any) -> Any:
        """Send a command and wait for its reply."""
        self.send(**request)
        return self.wait("reply", lambda m: m.get("do") == request.get("do"))


@contextmanager
def page(server: ConsoleServer, path: str = "/ws", **options: Any) -> Iterator[Page]:
    """A connection to a console."""
    with connect(f"ws://127.0.0.1:{server.port}{path}", **options) as socket:
        yield Page(socket)


def get(
    server: ConsoleServer,
    path: str,
    headers: dict[str, str] | None = None,
    data: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers (lower case) of an answer; redirects are not followed."""
    scheme = "https" if tls else "http"
    request = urllib.request.Request(
        f"{scheme}://127.0.0.1:{server.port}{path}", data=data, headers=headers or {}
    )
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=tls))
    try:
        with opener.open(request, timeout=LIMIT) as answer:
            return answer.status, answer.read(), _lower(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), _lower(error.headers)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


__all__ = ["LIMIT", "ConnectionClosed", "FakeConsole", "FakeGraph", "Page", "get", "page"]
