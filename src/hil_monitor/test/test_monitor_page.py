"""The page in a real headless Chromium, against a console without ROS."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hil_monitor.board import Question
from hil_monitor.frames import encode
from hil_monitor.run_files import Episode, TrainingPoint
from hil_monitor.server import ConsoleServer
from hil_monitor.session import ActorView, LearnerView, RobotView

sys.path.insert(0, str(Path(__file__).parent))

from browser import LIMIT, Tab, browser
from console_fakes import FakeConsole

RUNNING = ActorView("running", "train", session="s", episode=3, step=4)
CONTRAST = """
(() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest(":disabled, .off, .u-legend, .skip")) continue;
    const style = getComputedStyle(e);
    const pair = [light(parse(style.color)), light(ground(e))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    const large = parseFloat(style.fontSize) >= 24;
    if (ratio < (large ? 3 : 4.5)) bad.push([e.tagName, e.id, e.innerText.slice(0, 30), ratio]);
  }
  return bad;
})()
"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as tab:
        yield tab


@pytest.fixture
def console(tmp_path: Path) -> FakeConsole:
    return FakeConsole(tmp_path)


@pytest.fixture
def server(console: FakeConsole) -> Iterator[ConsoleServer]:
    with console.served() as server:
        yield server


@pytest.fixture
def page(tab: Tab, server: ConsoleServer) -> Tab:
    """The console's page, connected."""
    tab.screen(1280, 900)
    tab.call("Page.navigate", url="about:blank")
    tab.wait("location.href === 'about:blank'")
    tab.requests.clear()
    tab.errors.clear()
    tab.open(f"http://127.0.0.1:{server.port}/")
    tab.wait(
        "document.querySelector('#take') && window.hil && !document.querySelector('#input').hidden"
    )
    return tab


def wait_for(predicate: Callable[[], object]) -> None:
    end, pause = time.monotonic() + LIMIT, threading.Event()
    while not predicate():
        assert time.monotonic() < end
        pause.wait(0.005)


def busy(console: FakeConsole) -> None:
    """A session with everything in it."""
    session = console.session
    for step in range(40):
        session.saw_actor(ActorView("running", "train", "", "s", 3, step, 10 < step < 20))
    session.saw_robot(RobotView(mode="moving", force=3.5, compliance="policy"))
    session.saw_learner(LearnerView("peg", "training", updates=500, policy_version=7))
    session.saw_health("/hil_sim", 0, "ok", {"rate_hz": "10.0"})
    session.saw_health("/learner", 1, "slow disk", {})
    session.saw_history(
        [
            Episode("s", n, "train", 40, 1.0, n % 3 > 0, intervened_steps=4, interventions=1)
            for n in range(30)
        ],
        [TrainingPoint(100 * n, 50 * n, 0.01 * n, 0.02 * n) for n in range(10)],
    )
    console.board.put(
        Question("q", "/actor", "success?", ("yes", "no"), "no", time.monotonic() + 100.0)
    )


def test_state_is_large_and_in_words(page: Tab, console: FakeConsole) -> None:
    for actor, robot, word in (
        (RUNNING, RobotView(), "POLICY"),
        (ActorView("running", "train", intervened=True), RobotView(), "OPERATOR"),
        (RUNNING, RobotView(stop_latched=True), "HOLD"),
        (RUNNING, RobotView(mode="reflex", text="recover the arm"), "FAULT"),
    ):
        console.session.saw_actor(actor)
        console.session.saw_robot(robot)
        page.wait(f"document.querySelector('#state-word').innerText === '{word}'")
        assert page.js(f"document.querySelector('#state').dataset.state === '{word.lower()}'")
    assert page.text("#state-reason") == "recover the arm"
    assert (
        page.js("parseFloat(getComputedStyle(document.querySelector('#state-word')).fontSize)")
        > 40
    )


def test_curves_timeline_nodes_and_episodes_are_shown(page: Tab, console: FakeConsole) -> None:
    busy(console)
    page.wait("hil.points().length === 4 && hil.points().every(([, n]) => n > 0)")
    assert dict(page.js("hil.points()")) == {
        "chart-success": 30, "chart-intervention": 30, "chart-return": 30, "chart-q": 10,
    }  # fmt: skip
    label = page.js("document.querySelector('.track [role=img]').getAttribute('aria-label')")
    assert label == "policy 11, operator 9, policy 20"
    assert "slow disk" in page.text("#nodes") and "warning" in page.text("#nodes")
    page.wait("document.querySelectorAll('#episodes tr').length === 30")
    assert page.text("#episode-number") == "3" and page.text("#run") == "peg"
    assert "7" in page.text("#learner")
    assert page.errors == []


def test_keys_drive_and_lost_focus_is_silence(page: Tab, console: FakeConsole) -> None:
    console.session.saw_actor(RUNNING)
    page.press("KeyT")
    wait_for(lambda: console.device.holder)
    wait_for(lambda: console.samples)
    assert console.samples[0] == ((0.0,) * 6, (0,) * 3)

    page.key_down("KeyW")
    wait_for(lambda: any(axes[0] > 0 for axes, _ in console.samples))
    first = next(axes for axes, _ in console.samples if axes[0] > 0)
    assert 0.25 < first[0] < 1.0 or math.isclose(first[0], 1.0)  # at once past the dead zone...
    wait_for(lambda: console.samples[-1][0][0] == 1.0)  # ...and ramped to full
    page.key_down("KeyA")
    wait_for(lambda: console.samples[-1][0][:2] == (1.0, 1.0))
    page.key_up("KeyA")
    page.key_up("KeyW")
    wait_for(lambda: console.samples[-1][0] == (0.0,) * 6)
    page.key_down("KeyC")
    wait_for(lambda: console.samples[-1][1] == (1, 0, 0))
    page.key_up("KeyC")

    page.js("window.dispatchEvent(new Event('blur'))")
    wait_for(lambda: console.device.holder == "")
    count = len(console.samples)
    console.device.rest()
    assert len(console.samples) == count  # silent, not at rest
    assert "lost the focus" in page.text("#driving")

    page.press("KeyT")
    wait_for(lambda: console.device.holder)
    page.wait("!document.querySelector('#give').disabled")
    page.press("Escape")
    wait_for(lambda: console.device.holder == "")
    console.device.rest()
    wait_for(lambda: len(console.samples) > count and console.samples[-1][0] == (0.0,) * 6)


def test_touch_drives(page: Tab, console: FakeConsole) -> None:
    page.screen(900, 900, touch=True)
    page.touch("touchStart", "#pad-move")  # takes the controls
    page.touch("touchEnd")
    wait_for(lambda: console.device.holder)
    page.wait("!document.querySelector('#give').disabled")
    page.touch("touchStart", "#pad-move")
    page.touch("touchMove", "#pad-move", dx=0.0, dy=-60.0)
    wait_for(lambda: console.samples[-1][0][0] > 0.8 and abs(console.samples[-1][0][1]) < 0.1)
    page.touch("touchEnd")
    wait_for(lambda: console.samples[-1][0] == (0.0,) * 6)
    page.touch("touchStart", "#pad-turn")
    page.touch("touchMove", "#pad-turn", dx=60.0, dy=0.0)
    wait_for(lambda: console.samples[-1][0][5] < -0.8)
    page.touch("touchEnd")


def test_another_page_has_the_controls(page: Tab, console: FakeConsole) -> None:
    console.device.take("somebody")
    page.wait("document.querySelector('#take').disabled")
    page.press("KeyT")
    assert console.device.holder == "somebody"


def test_questions_are_answered_with_keys_and_buttons(page: Tab, console: FakeConsole) -> None:
    busy(console)
    page.wait("document.querySelector('.prompt')")
    assert "success?" in page.text(".prompt") and "no" in page.text(".prompt .quiet:last-child")
    page.press("Digit1")
    wait_for(lambda: console.graph.asked == [("answer", "q", "yes")])
    page.wait("document.querySelector('.prompt[data-ready]')")
    page.click(".prompt button:nth-of-type(2)")
    wait_for(lambda: console.graph.asked[-1] == ("answer", "q", "no"))
    console.board.close("q")
    page.wait("!document.querySelector('.prompt')")


def test_controls_ask_the_graph(page: Tab, console: FakeConsole) -> None:
    busy(console)
    console.session.saw_robot(RobotView(stop_latched=True))
    page.wait("!document.querySelector('#release').disabled")
    page.wait("document.querySelectorAll('#episodes tr').length === 30")
    for button in ("stop", "release", "recover", "pause", "resume", "reset", "abort", "success",
                   "undo", "retry"):  # fmt: skip
        page.click(f"#{button}")
    page.press("Delete")
    page.press("KeyN")
    wait_for(lambda: len(console.graph.asked) == 12)
    assert console.graph.asked == [
        ("set_stop", True), ("set_stop", False), ("recover",), ("set_pause", True),
        ("set_pause", False), ("skip_episode",), ("abort",), ("label", "s", 29, True), ("undo",),
        ("retry",), ("set_stop", True), ("label", "s", 29, False),
    ]  # fmt: skip
    page.js("document.querySelector('#start-episodes').value = 12")
    page.click("#start button")
    wait_for(lambda: console.graph.asked[-1] == ("run", "train", 12))
    assert "safety device" in page.text("#controls .warn")


def test_typing_in_a_field_is_no_shortcut_and_shortcuts_can_be_off(
    page: Tab, console: FakeConsole
) -> None:
    page.js("document.querySelector('#start-episodes').focus()")
    page.press("Delete")
    page.js("document.querySelector('#start-episodes').blur()")
    page.click("#shortcuts")
    page.wait("!document.querySelector('#shortcuts').checked")
    page.press("Delete")
    page.click("#shortcuts")
    page.wait("document.querySelector('#shortcuts').checked")
    page.press("KeyP")
    wait_for(lambda: console.graph.asked)
    assert console.graph.asked == [("set_pause", True)]


def test_everything_is_reached_with_the_tab_key(page: Tab, console: FakeConsole) -> None:
    console.session.saw_robot(RobotView(stop_latched=True))
    page.wait("!document.querySelector('#release').disabled")
    page.js("document.activeElement.blur()")
    seen: list[str] = []
    for _ in range(60):
        page.press("Tab")
        seen.append(page.js("document.activeElement.id"))
    for name in ("stop", "release", "recover", "pause", "reset", "abort", "take", "language",
                 "start-mode", "start-episodes", "success", "shortcuts"):  # fmt: skip
        assert name in seen
    page.js("document.querySelector('#pause').focus()")
    page.press("Enter")
    wait_for(lambda: console.graph.asked == [("set_pause", True)])


def test_tiles_run_and_age(page: Tab, console: FakeConsole) -> None:
    console.cameras = ["side", "wrist"]
    picture = encode(np.full((128, 128, 3), 90, np.uint8), 80, 640)
    wait_for(lambda: console.frames.watched)
    for _ in range(5):
        before = page.js("hil.statistics().map((s) => s.frames)")
        for camera in console.cameras:
            console.frames.put(camera, picture, time.monotonic())
        page.wait(f"hil.statistics().every((s, i) => s.frames > {before}[i])")
    page.wait("document.querySelectorAll('.tile.stale').length === 2")  # no more came
    assert page.js("hil.statistics().every((s) => s.age > 0.5)")


def test_small_screens_chinese_and_contrast(page: Tab, console: FakeConsole) -> None:
    busy(console)
    page.wait("hil.points().length === 4 && document.querySelector('.prompt')")
    assert page.js(CONTRAST) == []
    for state in ("policy", "operator", "hold", "fault", "reset"):
        page.js(f"document.querySelector('#state').dataset.state = '{state}'")
        assert [b for b in page.js(CONTRAST) if b[1].startswith("state")] == []
    page.screen(320, 640)
    for language in ("en", "zh"):
        page.js(
            f"(() => {{ const s = document.querySelector('#language'); s.value = '{language}';"
            " s.dispatchEvent(new Event('change')); })()"
        )
        page.wait(f"document.documentElement.lang.startsWith('{language}')")
        page.wait("document.documentElement.scrollWidth <= 320")
    page.wait("document.querySelector('#state-word').innerText === '策略'")
    assert "安全" in page.text("#controls .warn") and "成功" in page.text(".prompt")
    missing = page.js(
        "[...document.querySelectorAll('[data-t]')].filter((e) => /^[\\x00-\\x7f]+$/.test("
        "e.textContent)).map((e) => e.dataset.t)"
    )
    assert missing == []
    page.js("localStorage.clear()")


def test_nothing_is_asked_of_other_hosts(page: Tab, server: ConsoleServer) -> None:
    own = f"127.0.0.1:{server.port}/"
    assert len(page.requests) > 8
    assert [url for url in page.requests if own not in url and not url.startswith("data:")] == []


def test_a_console_that_is_gone_is_said_and_comes_back(
    tab: Tab, console: FakeConsole, tmp_path: Path
) -> None:
    with console.served() as server:
        tab.open(f"http://127.0.0.1:{server.port}/")
        tab.wait("document.querySelector('#state').dataset.state === 'hold'")
        tab.press("KeyT")
        wait_for(lambda: console.device.holder)
    tab.wait("document.querySelector('#state').dataset.state === 'lost'")
    assert tab.text("#state-word") == "NO LINK"
    assert tab.js("document.querySelector('#give').disabled")
