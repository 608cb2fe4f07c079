"""A real headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

LIMIT = 60.0
"""Seconds that a busy machine may take for what takes milliseconds."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-port=0", "--window-size=1280,900",
    "--lang=en-US", "--autoplay-policy=no-user-gesture-required",
)  # fmt: skip
_CODES = {
    "ArrowUp": 38, "ArrowDown": 40, "Escape": 27, "Tab": 9, "Enter": 13, "Delete": 46, " ": 32,
    "Shift": 16,
}  # fmt: skip

_STEADY = """
async (selector) => {
  const element = document.querySelector(selector);
  const look = () => { const r = element.getBoundingClientRect(); return [r.x, r.y, r.width]; };
  let before = null;
  for (let same = 0; same < 5; ) {
    element.scrollIntoView({ block: "center" });
    await new Promise((next) => setTimeout(next, 20));
    const now = look();
    same = before && now.join() === before.join() ? same + 1 : 0;
    before = now;
  }
  const r = element.getBoundingClientRect();
  return [r.x + r.width / 2, r.y + r.height / 2];
}
"""


class BrowserError(RuntimeError):
    """The page said no."""


class Tab:
    """A page.

    Attributes:
        requests: addresses of everything that the page asked for.
        errors: exceptions and errors on its console.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._count = 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Result of a DevTools command."""
        self._count += 1
        number = self._count
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        end = time.monotonic() + LIMIT
        while True:
            message = json.loads(self._socket.recv(timeout=max(0.0, end - time.monotonic())))
            if message.get("id") == number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def open(self, url: str) -> None:
        """Go to an address and wait until it is loaded."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def js(self, expression: str) -> Any:
        """Value of an expression."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {json.dumps(answer['exceptionDetails'])[:500]}")
        return answer["result"].get("value")

    def wait(self, expression: str, limit: float = LIMIT) -> None:
        """Wait until an expression is true."""
        end, pause = time.monotonic() + limit, threading.Event()
        while not self.js(f"!!({expression})"):
            if time.monotonic() > end:
                raise BrowserError(f"waited {limit:g} s for {expression}: {self.errors}")
            pause.wait(0.02)

    def text(self, selector: str) -> str:
        """Visible text of an element."""
        return str(self.js(f"document.querySelector({selector!r}).innerText"))

    def click(self, selector: str) -> None:
        """Click in the middle of an element, with the mouse."""
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key_down(self, code: str) -> None:
        """Press a key, by its code (KeyW, Digit1, Escape)."""
        self._key("keyDown", code)

    def key_up(self, code: str) -> None:
        """Let go of a key."""
        self._key("keyUp", code)

    def press(self, code: str) -> None:
        """Press and let go."""
        self.key_down(code)
        self.key_up(code)

    def touch(self, kind: str, selector: str = "", dx: float = 0.0, dy: float = 0.0) -> None:
        """touchStart, touchMove or touchEnd beside the middle of an element, pixels."""
        points = []
        if selector:
            x, y = self._middle(selector)
            points = [{"x": x + dx, "y": y + dy}]
        self.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    def screen(self, width: int, height: int, *, touch: bool = False) -> None:
        """Be a screen of that size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=touch,
        )  # fmt: skip
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Screenshot as PNG, of the window or of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _middle(self, selector: str) -> tuple[float, float]:
        """Where an element is, once it stays there."""
        x, y = self.js(f"({_STEADY})({selector!r})")
        return x, y

    def _key(self, kind: str, code: str) -> None:
        key = code.removeprefix("Key").lower() if code.startswith("Key") else code
        key = code.removeprefix("Digit") if code.startswith("Digit") else key
        key = {"Space": " ", "ShiftLeft": "Shift"}.get(key, key)
        text = key if len(key) == 1 else {"Enter": "\r"}.get(key, "")
        number = _CODES.get(key) or ord(key[0].upper())
        self.call(
            "Input.dispatchKeyEvent",
            type=kind if text or kind == "keyUp" else "rawKeyDown",
            code=code, key=key, windowsVirtualKeyCode=number,
            **({"text": text} if kind == "keyDown" and text else {}),
        )  # fmt: skip

    def _note(self, message: dict[str, Any]) -> None:
        method, what = message.get("method", ""), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif method == "Network.webSocketCreated":
            self.requests.append(what["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(what["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(f"{what['entry']['text']} {what['entry'].get('url', '')}")


def find() -> str:
    """Path of a Chromium; skips the test where there is none."""
    found: Sequence[str | None] = [shutil.which(name) for name in NAMES]
    path = next((p for p in found if p), None)
    if path is None:
        pytest.skip("no Chromium here: install the package chromium")
    return path


@contextmanager
def browser(*flags: str) -> Iterator[Tab]:
    """A new Chromium with a profile of its own, and its page."""
    command = find()
    folder = Path(tempfile.mkdtemp(prefix="hil-chromium-"))
    process = subprocess.Popen(
        [command, *_FLAGS, *flags, f"--user-data-dir={folder}", "about:blank"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        port = int(_wait(lambda: _port(folder / "DevToolsActivePort"), process))
        address = _wait(lambda: _page(port), process)
        with connect(address, max_size=2**28, ping_interval=None) as socket:
            yield Tab(socket)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with whatever it has started
        process.wait(LIMIT)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(look: Callable[[], Any], process: subprocess.Popen[bytes]) -> Any:
    end, pause = time.monotonic() + LIMIT, threading.Event()
    while not (value := look()):
        assert process.poll() is None, f"Chromium ended with {process.returncode}"
        assert time.monotonic() < end, "Chromium did not come up"
        pause.wait(0.02)
    return value


def _port(file: Path) -> str:
    try:
        return file.read_text().split("\n")[0]
    except OSError:
        return ""


def _page(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=LIMIT) as answer:
            pages = [each for each in json.load(answer) if each["type"] == "page"]
    except OSError:
        return ""
    return pages[0]["webSocketDebuggerUrl"] if pages else ""
