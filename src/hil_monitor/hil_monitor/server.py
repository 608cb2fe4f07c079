"""The web server: page, state, commands, operator input and camera tiles. No ROS.

One thread with its own event loop. `/ws` carries JSON both ways: pictures of the session to the
page, commands and operator input from it. `/tiles` carries camera pictures, each with a JSON
header; the page acknowledges them, so a slow one gets fewer pictures, never a queue.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from hil_monitor.access import COOKIE, Access, Certificate
from hil_monitor.board import Board
from hil_monitor.commands import CommandError, Graph, Outcome, perform
from hil_monitor.device import ConsoleDevice, InputError
from hil_monitor.frames import Frame, FrameHub
from hil_monitor.recorder import EpisodeRing
from hil_monitor.session import Session

WEB = Path(__file__).parent / "web"
MOST_CLIENTS = 16
_LIVE_EVERY, _SLOW_EVERY = 0.1, 1.0
_ANSWER_LIMIT = 10.0
_START_LIMIT = 10.0
_LARGEST_MESSAGE = 64 * 1024
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
        b"frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class ServerError(RuntimeError):
    """The server cannot start; the text says why."""


@dataclass(frozen=True)
class Parts:
    """What the server shows and acts on.

    Attributes:
        session: the picture of the session.
        board: open questions.
        device: the console as an input device; None: the page cannot drive.
        frames: camera pictures.
        cameras: names of the cameras there are.
        ring: recorded episodes; None: nothing is recorded.
        graph: gets the commands.
        features: what can be done here.
    """

    session: Session
    board: Board
    device: ConsoleDevice | None
    frames: FrameHub
    cameras: Callable[[], list[str]]
    ring: EpisodeRing | None
    graph: Graph
    features: Callable[[], dict[str, Any]]


class _Guard:
    """Refuses what the access rules do not allow, and sets the headers of every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        if self._access.allows(headers) or self._open(scope, headers):
            await self._app(scope, receive, marked)
        elif scope["type"] == "websocket":
            await WebSocket(scope, receive, send).close(code=4403)
        elif scope["path"] == "/" and self._access.trusts(headers):
            await RedirectResponse("/login", 303)(scope, receive, marked)
        else:
            await Response("refused", 403)(scope, receive, marked)

    def _open(self, scope: Scope, headers: dict[str, str]) -> bool:
        """What may be seen without the token: the page that asks for it."""
        known = ("/login", "/static/style.css", "/static/login.js", "/static/i18n.js")
        return scope["type"] == "http" and scope["path"] in known and self._access.trusts(headers)


class ConsoleServer:
    """Serves the console until `close`.

    Args:
        parts: what it shows and acts on.
        access: who may.
        host, port: where it listens; port 0: any free one.
        certificate: serve over TLS with it.
    """

    def __init__(
        self,
        parts: Parts,
        access: Access,
        host: str,
        port: int,
        certificate: Certificate | None = None,
    ) -> None:
        self._parts = parts
        self._access = access
        self._certificate = certificate
        self._clients = 0
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self.app(),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="websockets-sansio",
            ws_max_size=_LARGEST_MESSAGE,
            ws_per_message_deflate=False,
            ws_ping_interval=5.0,
            ws_ping_timeout=5.0,
            timeout_graceful_shutdown=1,
            ssl_certfile=certificate.certificate if certificate else None,
            ssl_keyfile=certificate.key if certificate else None,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="console", daemon=True)

    def start(self) -> None:
        """Begin to serve.

        Raises:
            ServerError: it did not come up.
        """
        self._thread.start()
        end = time.monotonic() + _START_LIMIT
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > end:
                raise ServerError(f"the console's web server did not start on port {self.port}")
            time.sleep(0.01)

    def close(self) -> None:
        """End all connections."""
        self._server.should_exit = True
        self._thread.join(5.0)
        self._server.force_exit = True
        self._thread.join(2.0)
        self._socket.close()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])

    # ------------------------------------------------------------------------------- routes

    def app(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/login", self._login_page),
                Route("/login", self._login, methods=["POST"]),
                Route("/episodes", self._episodes),
                Route("/episodes/{key}.zip", self._export),
                Route("/episodes/{key}/{camera}/{number:int}.jpg", self._frame),
                WebSocketRoute("/ws", self._talk),
                WebSocketRoute("/tiles", self._tiles),
                Mount("/static", StaticFiles(directory=WEB)),
            ],
            middleware=[Middleware(_Guard, access=self._access)],
        )

    async def _page(self, _: Request) -> Response:
        return FileResponse(WEB / "index.html")

    async def _login_page(self, request: Request) -> Response:
        return FileResponse(WEB / "login.html")

    async def _login(self, request: Request) -> Response:
        body = await request.body()
        if len(body) > 1000 or not self._access.knows(body.decode("utf-8", "replace").strip()):
            await asyncio.sleep(0.5)  # guessing takes time
            return Response("wrong token", 403)
        answer = Response("ok")
        answer.set_cookie(
            COOKIE, self._access.cookie, secure=True, httponly=True, samesite="strict"
        )
        return answer

    async def _episodes(self, _: Request) -> Response:
        ring = self._parts.ring
        return JSONResponse(await asyncio.to_thread(ring.episodes) if ring else [])

    async def _frame(self, request: Request) -> Response:
        ring, at = self._parts.ring, request.path_params
        found = None
        if ring is not None:
            found = await asyncio.to_thread(ring.frame, at["key"], at["camera"], at["number"])
        return Response(found, media_type="image/jpeg") if found else Response("none", 404)

    async def _export(self, request: Request) -> Response:
        ring, key = self._parts.ring, request.path_params["key"]
        found = await asyncio.to_thread(ring.export, key) if ring is not None else None
        return Response(found, media_type="application/zip") if found else Response("none", 404)

    # ------------------------------------------------------------------- state and commands

    async def _talk(self, socket: WebSocket) -> None:
        if self._clients >= MOST_CLIENTS:
            await socket.close(code=4429)
            return
        await socket.accept()
        self._clients += 1
        client = _Client(socket, self._parts)
        telling = asyncio.create_task(client.tell())
        try:
            await client.listen()
        finally:
            self._clients -= 1
            telling.cancel()
            client.leave()
            with suppress(asyncio.CancelledError, RuntimeError, WebSocketDisconnect):
                await telling

    # -------------------------------------------------------------------------------- tiles

    async def _tiles(self, socket: WebSocket) -> None:
        await socket.accept()
        loop, fresh, sent = asyncio.get_running_loop(), asyncio.Event(), dict[str, int]()
        end = self._parts.frames.watch(lambda: _wake(loop, fresh))
        acknowledged = asyncio.create_task(_tile_acknowledgements(socket, sent, fresh))
        try:
            while not acknowledged.done():
                await fresh.wait()
                fresh.clear()
                for frame in self._parts.frames.newest():
                    if sent.get(frame.camera, 0) >= 0 and frame.number > sent.get(frame.camera, 0):
                        sent[frame.camera] = -frame.number  # negative: not acknowledged yet
                        await socket.send_bytes(tile(frame, time.monotonic()))
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            end()
            acknowledged.cancel()


class _Client:
    """One page."""

    def __init__(self, socket: WebSocket, parts: Parts) -> None:
        self._socket = socket
        self._parts = parts
        self._name = secrets.token_hex(8)
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def tell(self) -> None:
        """Send pictures of the session."""
        parts = self._parts
        await self._send({"kind": "hello", "you": self._name})
        shown, next_slow = 0, 0.0
        while True:
            now = time.monotonic()
            await self._send({"kind": "live", **parts.session.live(), **self._own()})
            if now >= next_slow:
                next_slow = now + _SLOW_EVERY
                await self._send(
                    {"kind": "slow", "features": parts.features(), **parts.session.slow()}
                )
                if parts.session.version != shown:
                    history = parts.session.history(shown)
                    shown = history["version"]
                    await self._send({"kind": "history", **history})
            await asyncio.sleep(_LIVE_EVERY)

    async def listen(self) -> None:
        """Take commands and input until the page is gone."""
        while True:
            try:
                request = json.loads(await self._socket.receive_text())
                if not isinstance(request, dict):
                    raise CommandError("a request is a JSON object")
                self._take(request)
            except (WebSocketDisconnect, RuntimeError):
                return
            except (ValueError, KeyError) as error:
                await self._send({"kind": "reply", "ok": False, "text": str(error)})

    def leave(self) -> None:
        """The page is gone."""
        if self._parts.device is not None:
            self._parts.device.lose(self._name)

    def _own(self) -> dict[str, Any]:
        device = self._parts.device
        return {
            "prompts": self._parts.board.picture(),
            "cameras": self._parts.cameras(),
            "driver": device.holder if device else "",
        }

    def _take(self, request: dict[str, Any]) -> None:
        device = self._parts.device
        action = request.get("do")
        if action not in ("input", "take", "give_back", "lost"):
            self._spawn(self._perform(request))
            return
        if device is None:
            raise InputError("this graph takes no input from the console: operator:=console")
        if action == "input":
            device.feed(self._name, request.get("axes"), request.get("buttons"))
        elif action == "take":
            refusal = device.take(self._name)
            self._spawn(self._reply(request, Outcome(not refusal, refusal)))
        elif action == "give_back":
            device.give_back(self._name)
        else:
            device.lose(self._name)

    async def _perform(self, request: dict[str, Any]) -> None:
        try:
            promise = asyncio.wrap_future(perform(self._parts.graph, request))
            outcome = await asyncio.wait_for(promise, _ANSWER_LIMIT)
        except CommandError as error:
            outcome = Outcome(False, str(error))
        except asyncio.TimeoutError:
            outcome = Outcome(False, f"no answer within {_ANSWER_LIMIT:g} s")
        await self._reply(request, outcome)

    async def _reply(self, request: dict[str, Any], outcome: Outcome) -> None:
        await self._send(
            {"kind": "reply", "id": request.get("id"), "do": request.get("do"),
             "ok": outcome.ok, "text": outcome.text}
        )  # fmt: skip

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, picture: dict[str, Any]) -> None:
        text = json.dumps(picture, separators=(",", ":"), allow_nan=False)
        async with self._sending:
            with suppress(WebSocketDisconnect, RuntimeError):
                await self._socket.send_text(text)


def tile(frame: Frame, now: float) -> bytes:
    """A picture as sent to the page: length of the header (1 byte), header (JSON), JPEG."""
    header = json.dumps(
        {"c": frame.camera, "n": frame.number, "age": round(now - frame.arrived, 4)},
        separators=(",", ":"),
    ).encode()
    return bytes([len(header)]) + header + frame.jpeg


async def _tile_acknowledgements(
    socket: WebSocket, sent: dict[str, int], fresh: asyncio.Event
) -> None:
    """The page names the camera whose picture it has shown: the next one may be sent."""
    with suppress(WebSocketDisconnect, RuntimeError):
        while True:
            camera = await socket.receive_text()
            if sent.get(camera, 0) < 0:
                sent[camera] = -sent[camera]
                fresh.set()
    fresh.set()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(event.set)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise ServerError(
            f"the console cannot listen on {host}:{port} ({error.strerror})"
        ) from error
    return made
