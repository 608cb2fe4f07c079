"""The web server, with an HTTP and WebSocket client. No ROS."""

from __future__ import annotations

import json
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from hil_monitor.access import COOKIE, Access, certificate
from hil_monitor.board import Question
from hil_monitor.commands import Outcome
from hil_monitor.run_files import Episode
from hil_monitor.server import ConsoleServer, ServerError
from hil_monitor.session import ActorView

sys.path.insert(0, str(Path(__file__).parent))

from console_fakes import LIMIT, FakeConsole, get, page

TOKEN = "0123456789abcdef-token"


@pytest.fixture
def console(tmp_path: Path) -> FakeConsole:
    return FakeConsole(tmp_path)


@pytest.fixture
def server(console: FakeConsole) -> Iterator[ConsoleServer]:
    with console.served() as server:
        yield server


def wait_for(predicate: object) -> None:
    end, pause = time.monotonic() + LIMIT, threading.Event()
    while not predicate():  # type: ignore[operator]
        assert time.monotonic() < end
        pause.wait(0.005)


def test_page_and_its_files_come_from_here_alone(server: ConsoleServer) -> None:
    status, body, headers = get(server, "/")
    assert status == 200 and b"<title>HIL console</title>" in body
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    for name in ("app.js", "style.css", "i18n.js", "vendor/uPlot.esm.js", "vendor/uPlot.LICENSE"):
        status, body, _ = get(server, f"/static/{name}")
        assert status == 200 and body
        assert b"http://" not in body.replace(b"http://www.w3.org", b"") or "vendor" in name
    assert get(server, "/static/../server.py")[0] == 404
    assert get(server, "/nothing")[0] == 404


def test_other_sites_are_refused(server: ConsoleServer) -> None:
    assert get(server, "/", {"Host": "evil.example"})[0] == 403
    assert get(server, "/episodes", {"Origin": "http://evil.example"})[0] == 403
    for path in ("/ws", "/tiles"):
        with pytest.raises(InvalidStatus), page(server, path, origin="http://evil.example"):
            pass


def test_state_is_told_when_it_changes(server: ConsoleServer, console: FakeConsole) -> None:
    with page(server) as client:
        client.wait("hello")
        assert client.wait("live")["control"]["state"] == "hold"
        assert client.wait("slow")["features"]["labels"] is True
        console.session.saw_actor(ActorView("running", "train", session="s", episode=3))
        assert client.wait("live", lambda m: m["control"]["state"] == "policy")
        console.session.saw_episode(Episode("s", 3, "train", 10))
        history = client.wait("history")
        assert [e["episode"] for e in history["episodes"]] == [3]
        console.session.label("s", 3, True)
        assert client.wait("history")["since"] == history["version"]


@pytest.mark.parametrize(
    ("request_", "asked"),
    [
        ({"do": "stop"}, ("set_stop", True)),
        ({"do": "release_stop"}, ("set_stop", False)),
        ({"do": "recover"}, ("recover",)),
        ({"do": "pause"}, ("set_pause", True)),
        ({"do": "resume"}, ("set_pause", False)),
        ({"do": "reset"}, ("skip_episode",)),
        ({"do": "abort"}, ("abort",)),
        ({"do": "retry"}, ("retry",)),
        ({"do": "undo"}, ("undo",)),
        ({"do": "run", "mode": "train", "episodes": 5}, ("run", "train", 5)),
        ({"do": "answer", "question": "q", "choice": "yes"}, ("answer", "q", "yes")),
        (
            {"do": "label", "session": "s", "episode": 2, "success": False},
            ("label", "s", 2, False),
        ),
    ],
)
def test_commands_reach_the_graph(
    server: ConsoleServer,
    console: FakeConsole,
    request_: dict[str, object],
    asked: tuple[object, ...],
) -> None:
    console.graph.outcome = Outcome(False, "because")
    with page(server) as client:
        reply = client.ask(**request_, id=7)
    assert (reply["ok"], reply["text"], reply["id"]) == (False, "because", 7)
    assert console.graph.asked == [asked]


@pytest.mark.parametrize(
    "text",
    [
        "no json", "[]", "1", '{"do": "explode"}', '{"do": {}}', "{}",
        '{"do": "run", "mode": "fly", "episodes": 1}', '{"do": "run", "mode": "train"}',
        '{"do": "run", "mode": "train", "episodes": -1}',
        '{"do": "run", "mode": [], "episodes": 1}',
        '{"do": "run", "mode": "train", "episodes": true}',
        '{"do": "answer", "question": "", "choice": "x"}',
        '{"do": "label", "session": "s", "episode": 1, "success": 1}',
        '{"do": "input", "axes": [], "buttons": []}', '{"do": "input"}',
        json.dumps({"do": "answer", "question": "q" * 10_000, "choice": "x"}),
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_harms_nothing(
    server: ConsoleServer, console: FakeConsole, text: str
) -> None:
    with page(server) as client:
        client.socket.send(text)
        assert client.wait("reply")["ok"] is False
        assert client.ask(do="stop")["ok"] is True
    assert console.graph.asked == [("set_stop", True)]


def test_questions_are_shown_until_they_are_settled(
    server: ConsoleServer, console: FakeConsole
) -> None:
    console.board.put(
        Question("q", "/actor", "Was it?", ("yes", "no"), "no", time.monotonic() + LIMIT)
    )
    with page(server) as client:
        (shown,) = client.wait("live", lambda m: m["prompts"])["prompts"]
        assert shown["choices"] == ["yes", "no"] and 0 < shown["remaining"] <= LIMIT
        console.board.close("q")
        assert client.wait("live", lambda m: not m["prompts"])


def test_a_page_that_is_gone_leaves_a_silent_device(
    server: ConsoleServer, console: FakeConsole
) -> None:
    with page(server) as client, page(server) as other:
        me = client.wait("hello")["you"]
        assert client.ask(do="take")["ok"]
        assert other.ask(do="take")["text"] == "another browser has the controls"
        assert other.wait("live")["driver"] == me
        client.send(do="input", axes=[1, 0, 0, 0, 0, 0], buttons=[0, 0, 0])
        wait_for(lambda: console.samples)
        other.send(do="give_back")  # not his
    wait_for(lambda: console.device.holder == "")
    console.device.rest()
    assert console.samples == [((1.0, 0, 0, 0, 0, 0), (0, 0, 0))]


def test_giving_back_leaves_a_device_at_rest(server: ConsoleServer, console: FakeConsole) -> None:
    with page(server) as client:
        client.ask(do="take")
        client.send(do="give_back")
        wait_for(lambda: console.samples)
    console.device.rest()
    assert console.samples == [((0.0,) * 6, (0,) * 3)] * 2


def test_tiles_come_with_their_age_and_wait_for_the_page(
    server: ConsoleServer, console: FakeConsole
) -> None:
    with page(server, "/tiles") as client:
        wait_for(lambda: console.frames.watched)
        for number in range(5):
            console.frames.put("wrist", bytes([number]) * 10, time.monotonic() - 0.25)
        first = client.socket.recv(timeout=LIMIT)
        assert isinstance(first, bytes)
        header = json.loads(first[1 : 1 + first[0]])
        assert header["c"] == "wrist" and 0.25 <= header["age"] < LIMIT
        console.frames.put("side", b"s", time.monotonic())
        # The wrist camera's next picture waits for the page; the side camera's does not.
        second = client.socket.recv(timeout=LIMIT)
        assert json.loads(second[1 : 1 + second[0]])["c"] == "side"
        client.socket.send("wrist")
        if header["n"] < 5:
            third = client.socket.recv(timeout=LIMIT)
            assert json.loads(third[1 : 1 + third[0]]) | {"age": 0} == {
                "c": "wrist",
                "n": 5,
                "age": 0,
            }
    wait_for(lambda: not console.frames.watched)


def test_recorded_episodes_are_listed_played_and_exported(
    server: ConsoleServer, console: FakeConsole
) -> None:
    console.ring.begin("s-00001", 0.0)
    console.ring.add("wrist", b"jpeg", 0.5, 1)
    console.ring.end({})
    (episode,) = json.loads(get(server, "/episodes")[1])
    assert episode["cameras"] == {"wrist": [[0.5, 1]]}
    status, body, headers = get(server, "/episodes/s-00001/wrist/0.jpg")
    assert (status, body, headers["content-type"]) == (200, b"jpeg", "image/jpeg")
    assert get(server, "/episodes/s-00001/wrist/1.jpg")[0] == 404
    assert get(server, "/episodes/..%2f..%2fx/wrist/0.jpg")[0] == 404
    assert get(server, "/episodes/s-00001.zip")[1].startswith(b"PK")


def test_lab_network_needs_token_and_tls(console: FakeConsole, tmp_path: Path) -> None:
    access, made = Access(TOKEN), certificate(tmp_path)
    trust = ssl.create_default_context(cafile=str(made.certificate))
    with console.served(access, made) as server:
        status, _, headers = get(server, "/", tls=trust)
        assert (status, headers["location"]) == (303, "/login")
        assert get(server, "/login", tls=trust)[0] == 200
        assert get(server, "/static/app.js", tls=trust)[0] == 403
        assert get(server, "/episodes", tls=trust)[0] == 403
        assert get(server, "/login", data=b"wrong", tls=trust)[0] == 403
        status, _, headers = get(server, "/login", data=TOKEN.encode(), tls=trust)
        cookie = headers["set-cookie"]
        assert status == 200 and TOKEN not in cookie
        assert {"httponly", "secure", "samesite=strict"} <= set(cookie.lower().split("; "))
        pair = {"Cookie": cookie.split(";")[0]}
        assert pair["Cookie"].startswith(COOKIE)
        assert get(server, "/", pair, tls=trust)[0] == 200
        url = f"wss://127.0.0.1:{server.port}/ws"
        with pytest.raises(InvalidStatus), connect(url, ssl=trust):
            pass
        with connect(url, ssl=trust, additional_headers=pair) as socket:
            assert json.loads(socket.recv(timeout=LIMIT))["kind"] == "hello"


def test_a_taken_port_is_named(server: ConsoleServer, console: FakeConsole) -> None:
    with pytest.raises(ServerError, match=f"127.0.0.1:{server.port}"):
        ConsoleServer(
            None,
            Access(),
            "127.0.0.1",
            server.port,  # type: ignore[arg-type]
        )
