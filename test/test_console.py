"""A whole session in a real browser: `hil up sim`, driven from the operator console."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from system import ROOT, Domain, Graph, Watch

from hil_common.prompts import Asker
from hil_interfaces.msg import Step

sys.path.insert(0, str(ROOT / "src" / "hil_monitor" / "test"))

from browser import Tab, browser, find

SETTINGS = """
monitor:
  ros__parameters:
    port: 0
    keep_episodes: 5
learner:
  ros__parameters:
    agent: ["hidden=[32, 32]", "state_encoder=16"]
    batch_size: 32
    training_starts: 20
    publish_period_updates: 10
    tensorboard: false
actor:
  ros__parameters:
    max_state_age_s: 5.0
    operator_silence_s: 1.0
"""


class Session:
    """The graph, what it says, and the page."""

    def __init__(self, graph: Graph, watch: Watch, tab: Tab) -> None:
        self.graph, self.watch, self.tab = graph, watch, tab

    def wait(self, condition: Callable[[], object], what: str) -> None:
        self.graph.wait_for(condition, what)

    def shows(self, state: str) -> None:
        self.tab.wait(f"document.querySelector('#state').dataset.state === '{state}'", 200.0)

    def said(self, words: str) -> None:
        self.tab.wait(f"document.querySelector('#said').innerText.includes({words!r})", 200.0)

    def steps(self, wanted: Callable[[Step], bool], number: int, what: str) -> list[Step]:
        """The steps of a kind, once there are so many."""
        self.wait(lambda: sum(map(wanted, self.watch.steps)) >= number, what)
        return [step for step in self.watch.steps if wanted(step)]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    find()
    settings = tmp_path / "settings.yaml"
    settings.write_text(SETTINGS)
    task = tmp_path / "task.yaml"
    task.write_text("task: peg_insert\nmax_episode_steps: 100000\n")
    with (
        Domain() as domain,
        Watch(domain.number) as watch,
        Graph(
            domain, tmp_path, task_file=task, params_file=settings, pace="realtime",
            operator="console", monitor="true",
        ) as graph,
        browser() as tab,
    ):  # fmt: skip
        graph.up()
        graph.wait_for(lambda: watch.all_active(graph), "all nodes to be active")
        graph.wait_for(lambda: "url" in watch.values.get("/monitor", {}), "the console's address")
        tab.open(watch.values["/monitor"]["url"])
        yield Session(graph, watch, tab)


def intervened(step: Step) -> bool:
    return any(step.intervened)


def moves(steps: list[Step], axis: int) -> set[int]:
    """Directions in which the person moved the arm along an axis; rest and holds are none."""
    driven = np.array([step.action[axis] for step in steps if not step.flags & Step.FLAG_HELD])
    return {int(sign) for sign in np.sign(driven[np.abs(driven) > 0.2])}


def test_a_session_from_start_to_finish(session: Session) -> None:
    tab, watch = session.tab, session.watch
    session.shows("hold")

    # Take the controls, then start: the policy drives.
    tab.press("KeyT")
    tab.wait("!document.querySelector('#give').disabled", 200.0)
    tab.click("#start button")
    session.shows("policy")
    session.steps(lambda s: not intervened(s), 5, "steps of the policy")

    # Take over with the keyboard: up.
    tab.key_down("KeyR")
    session.shows("operator")
    up = session.steps(intervened, 8, "steps of the person")
    tab.key_up("KeyR")
    session.shows("policy")
    assert up[0].flags & Step.FLAG_TAKEOVER
    assert moves(up, 2) == {1} and moves(up, 0) == moves(up, 1) == set()

    # Take over by touch: forward.
    before = len(session.watch.steps)
    tab.screen(1280, 900, touch=True)
    tab.touch("touchStart", "#pad-move")
    tab.touch("touchMove", "#pad-move", dy=-60.0)
    session.shows("operator")
    session.wait(
        lambda: sum(map(intervened, session.watch.steps[before:])) >= 8, "steps driven by touch"
    )
    tab.touch("touchEnd")
    session.shows("policy")
    touched = [s for s in session.watch.steps[before:] if intervened(s)]
    assert moves(touched, 0) == {1}
    tab.screen(1280, 900)

    # Pictures of both cameras.
    tab.js("scrollTo(0, 0)")
    tab.wait("hil.statistics().length === 2 && hil.statistics().every((s) => s.frames > 5)", 200.0)

    # Pause and go on.
    tab.click("#pause")
    session.wait(lambda: watch.actor.phase == "paused", "the pause")
    session.shows("hold")
    count = len(watch.steps)
    tab.click("#resume")
    session.shows("policy")
    session.wait(lambda: len(watch.steps) > count + 3, "steps after the pause")

    # Software stop and release.
    tab.press("Delete")
    session.wait(lambda: watch.robot.stop_latched, "the stop")
    session.shows("hold")
    assert tab.text("#state-reason") == "software stop"
    tab.wait("!document.querySelector('#release').disabled", 200.0)
    tab.click("#release")
    session.wait(lambda: not watch.robot.stop_latched, "the release")
    count = len(watch.steps)
    session.shows("policy")
    session.wait(lambda: len(watch.steps) > count + 3, "steps after the stop")

    # Answer a question.
    told: list[tuple[str, bool]] = []
    asker = Asker(watch.node)
    asker.ask("success?", ["yes", "no"], "no", 600.0, lambda *answer: told.append(answer))
    tab.wait("document.querySelector('.prompt')", 200.0)
    tab.press("Digit1")
    session.wait(lambda: told, "the answer")
    assert told == [("yes", True)]
    tab.wait("!document.querySelector('.prompt')", 200.0)

    # End the episode, label it, take the label back.
    episode = watch.actor.episode
    tab.click("#reset")
    session.wait(lambda: watch.episodes, "the end of the episode")
    assert watch.episodes[0].interrupted and watch.episodes[0].intervened_steps >= 16
    tab.wait("document.querySelectorAll('#episodes tr').length >= 1", 200.0)
    tab.wait("!document.querySelector('#success').disabled", 200.0)
    # Its last step is closed by the first one of the next episode: before that, no labels.
    session.steps(lambda s: s.episode > episode, 5, "steps of the next episode")
    tab.press("Escape")  # single keys are commands again
    tab.press("KeyY")
    session.said("Label: done")
    tab.wait("document.querySelector('#episodes').innerText.includes('labelled')", 200.0)
    tab.press("KeyU")
    session.said("Undo: done")

    # Abort: the run ends; nothing more is recorded.
    tab.click("#abort")
    session.wait(lambda: watch.actor.phase == "waiting", "the end of the run")
    session.shows("hold")
    tab.wait("document.querySelector('#episodes').innerText.includes('Play')", 200.0)

    # What was recorded is what was done: every step once, in order, the person's where he drove.
    numbers = [step.seq for step in watch.steps]
    assert numbers == list(range(1, len(numbers) + 1))
    first = [step for step in watch.steps if step.episode == episode]
    assert sum(map(intervened, first)) == watch.episodes[0].intervened_steps
    assert {step.step for step in first} == set(range(len(first)))
    assert tab.errors == []
    own = watch.values["/monitor"]["url"].removeprefix("http://")
    assert [u for u in tab.requests if own not in u and not u.startswith("data:")] == []
