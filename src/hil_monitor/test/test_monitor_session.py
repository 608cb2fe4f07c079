"""Session, coaching, questions, device, files, pictures and access: everything without ROS."""

from __future__ import annotations

import io
import json
import math
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from PIL import Image

from hil_monitor.access import COOKIE, Access, AccessError, certificate
from hil_monitor.board import Board, Question
from hil_monitor.coaching import WINDOW, advise
from hil_monitor.device import ConsoleDevice, InputError, Sample
from hil_monitor.frames import FrameHub, encode
from hil_monitor.recorder import EpisodeRing
from hil_monitor.run_files import Episode, MetricsTail, TrainingPoint
from hil_monitor.session import ActorView, LearnerView, RobotView, Session


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def session(clock: Clock) -> Session:
    return Session(clock)


RUNNING = ActorView(phase="running", mode="train", session="s", episode=1)


# ------------------------------------------------------------------------------ who is in control


def test_nobody_is_in_control_before_the_actor_is_heard(session: Session) -> None:
    assert session.control().state == "hold"
    assert session.control().reason == "waiting for the actor"


@pytest.mark.parametrize(
    ("actor", "robot", "state", "reason"),
    [
        (RUNNING, RobotView(mode="moving"), "policy", ""),
        (ActorView("running", "train", intervened=True), RobotView(), "operator", ""),
        (ActorView("running", "demo"), RobotView(), "operator", ""),
        (RUNNING, RobotView(operator_hold=True), "operator", ""),
        (ActorView("holding", "train", text="stale"), RobotView(), "hold", "stale"),
        (ActorView("paused", "train", text="paused"), RobotView(), "hold", "paused"),
        (ActorView("resetting", "train"), RobotView(mode="resetting"), "reset", ""),
        (RUNNING, RobotView(stop_latched=True), "hold", "software stop"),
        (ActorView("resetting"), RobotView(stop_latched=True), "hold", "software stop"),
        (
            RUNNING,
            RobotView(mode="guiding", text="let go of the arm"),
            "hold",
            "let go of the arm",
        ),
        (RUNNING, RobotView(mode="reflex", text="recover"), "fault", "recover"),
        (RUNNING, RobotView(arm="left", mode="reflex", errors=("a", "b")), "fault", "left: a; b"),
        (RUNNING, RobotView(mode="disconnected"), "fault", "disconnected"),
    ],
)
def test_control(
    session: Session, actor: ActorView, robot: RobotView, state: str, reason: str
) -> None:
    session.saw_actor(actor)
    session.saw_robot(robot)
    assert (session.control().state, session.control().reason) == (state, reason)


def test_a_vital_node_that_is_silent_or_faulty_is_a_fault(session: Session, clock: Clock) -> None:
    session.saw_actor(RUNNING)
    session.saw_health("/robot_bridge", 0, "ok", {})
    session.saw_health("/rviz", 2, "broken", {})
    assert session.control().state == "policy"
    session.saw_health("/actor", 2, "ValueError: no", {})
    assert session.control().reason == "/actor: ValueError: no"
    session.saw_health("/actor", 0, "ok", {})
    clock.now += 6.0
    session.saw_health("/actor", 0, "ok", {})
    assert session.control().reason == "/robot_bridge does not respond"
    levels = {node["name"]: node["level"] for node in session.slow()["nodes"]}
    assert levels == {"/actor": 0, "/robot_bridge": 3, "/rviz": 3}


def test_timeline_keeps_who_drove_each_step(session: Session, clock: Clock) -> None:
    drove = [False, False, True, True, True, False]
    for step, intervened in enumerate(drove):
        session.saw_actor(ActorView("running", "train", "", "s", 4, step, intervened))
    session.saw_actor(ActorView("holding", "train", "", "s", 4, 6))
    (track,) = session.live()["timeline"]
    assert track["number"] == 4
    assert [(b["who"], b["steps"]) for b in track["bouts"]] == [
        ("policy", 2), ("operator", 3), ("policy", 1), ("hold", 1),
    ]  # fmt: skip
    clock.now += 3.0
    assert session.live()["episode_s"] == 3.0


def test_timeline_gives_steps_that_were_missed_to_the_one_before(session: Session) -> None:
    for step, intervened in ((0, False), (5, True), (9, True)):
        session.saw_actor(ActorView("running", "train", "", "s", 1, step, intervened))
    (track,) = session.live()["timeline"]
    assert [(b["who"], b["steps"]) for b in track["bouts"]] == [("policy", 5), ("operator", 5)]


def test_timeline_begins_anew_with_an_episode_or_a_new_actor(session: Session) -> None:
    session.saw_actor(ActorView("running", "train", "", "s", 1, 7))
    session.saw_actor(ActorView("resetting", "train", "", "s", 1, 8))
    session.saw_actor(ActorView("running", "train", "", "s", 2, 0))
    session.saw_actor(ActorView("running", "train", "", "other", 2, 0))
    assert [track["number"] for track in session.live()["timeline"]] == [1, 2, 2]


def test_age_of_the_policy_counts_from_its_version(session: Session, clock: Clock) -> None:
    session.saw_learner(LearnerView(policy_version=3))
    clock.now += 10.0
    session.saw_learner(LearnerView(policy_version=3))
    learner = session.slow()["learner"]
    assert (learner["policy_age"], learner["age"], learner["success_rate"]) == (10.0, 0.0, None)
    session.saw_learner(LearnerView(policy_version=4))
    assert session.slow()["learner"]["policy_age"] == 0.0


def test_history_is_told_once_and_a_label_stays(session: Session) -> None:
    session.saw_episode(Episode("s", 1, "train", 10, success=False))
    session.saw_history([], [TrainingPoint(100, 50, q_mean=0.5)])
    first = session.history()
    assert [e["episode"] for e in first["episodes"]] == [1]
    assert first["training"][0]["q_mean"] == 0.5 and first["training"][0]["entropy"] is None
    assert session.history(first["version"])["episodes"] == []

    session.label("s", 1, True)
    news = session.history(first["version"])
    assert news["episodes"][0]["label"] is True and news["training"] == []
    session.saw_episode(Episode("s", 1, "train", 10, env_steps=77))  # the learner's words
    known = session.episode("s", 1)
    assert known is not None and known.succeeded and known.env_steps == 77
    json.dumps(session.live() | session.slow() | session.history(), allow_nan=False)


# -------------------------------------------------------------------------------------- coaching


def episodes(
    count: int, *, driven: int = 0, success: bool = True, bouts: int = 1
) -> list[Episode]:
    return [
        Episode(
            "s", number, "train", 100,
            success=success, intervened_steps=driven, interventions=bouts if driven else 0,
        )
        for number in range(count)
    ]  # fmt: skip


def keys(listed: list[Episode]) -> list[str]:
    return [advice.key for advice in advise(listed)]


def test_coaching() -> None:
    assert keys([]) == keys(episodes(4)) == ["begin"]
    assert keys(episodes(20, driven=80)) == ["shorter"]
    assert keys(episodes(20, driven=80, bouts=8, success=False)) == ["fine"]
    assert keys(episodes(2 * WINDOW, driven=80, bouts=8)) == ["less"]
    falling = episodes(WINDOW, driven=80, bouts=8) + episodes(WINDOW, driven=55, bouts=8)
    assert keys(falling) == ["fine"]
    assert keys(episodes(20, success=False)) == ["more"]
    assert keys(episodes(20)) == ["evaluate"]
    assert keys(episodes(20, driven=20, bouts=2)) == ["fine"]


def test_coaching_looks_at_finished_training_only_and_believes_labels() -> None:
    other = [Episode("s", 1, "demo", 10), Episode("s", 2, "train", 10, interrupted=True)]
    assert keys(other * 10) == ["begin"]
    failed = episodes(20, success=False)
    for each in failed:
        each.label = True
    assert keys(failed) == ["evaluate"]


# ------------------------------------------------------------------------------------- questions


def question(name: str, node: str = "/actor", due: float = 105.0) -> Question:
    return Question(name, node, "Was it?", ("yes", "no"), "no", due)


def test_questions_are_open_until_settled_due_or_replaced(clock: Clock) -> None:
    board = Board(clock)
    board.put(question("a"))
    board.put(question("b", "/task", 110.0))
    assert [(q["id"], q["remaining"]) for q in board.picture()] == [("a", 5.0), ("b", 10.0)]
    board.put(question("c"))
    assert [q["id"] for q in board.picture()] == ["b", "c"]
    board.close("b")
    clock.now = 105.0
    assert board.picture() == [] and board.get("c") is None


# ---------------------------------------------------------------------------------------- device


def test_one_browser_drives_and_silence_is_not_rest() -> None:
    out: list[Sample] = []
    device = ConsoleDevice(out.append)
    device.rest()
    assert out == []  # nobody has taken it: there is no device
    assert device.take("a") == "" and "another" in device.take("b")
    device.feed("a", [2.0, -0.5, 0, 0, 0, 0], [0, 1, 0])
    assert out == [((1.0, -0.5, 0, 0, 0, 0), (0, 1, 0))]
    with pytest.raises(InputError, match="take the controls"):
        device.feed("b", [0] * 6, [0] * 3)
    device.rest()
    assert len(out) == 1  # held: only the browser speaks

    device.lose("b")
    assert device.holder == "a"
    device.lose("a")
    device.rest()
    assert device.holder == "" and len(out) == 1  # lost: silent

    assert device.take("b") == ""
    device.give_back("b")
    device.rest()
    assert out[1:] == [((0.0,) * 6, (0,) * 3)] * 2  # given back: at rest


@pytest.mark.parametrize(
    ("axes", "buttons"),
    [([0] * 5, [0] * 3), ([0] * 6, [0]), (["0"] * 6, [0] * 3), (None, [0] * 3),
     ("000000", [0] * 3), ([math.nan] + [0] * 5, [0] * 3), ([0] * 6, {"a": 1})],
)  # fmt: skip
def test_what_is_not_input_is_refused(axes: object, buttons: object) -> None:
    device = ConsoleDevice(lambda sample: None)
    device.take("a")
    with pytest.raises(InputError):
        device.feed("a", axes, buttons)


# ----------------------------------------------------------------------------------------- files


def test_metrics_are_read_as_they_grow(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.read().episodes == []
    row = {
        "kind": "episode", "time": 1.0, "actor_id": "actor", "stream": "actor/abc", "episode": 3,
        "mode": "train", "steps": 9, "episode_return": 1.0, "success": True, "interrupted": False,
        "intervened_steps": 2, "interventions": 1, "late_steps": 0, "policy_version": 4,
        "env_steps": 90,
    }  # fmt: skip
    point = {"kind": "training", "updates": 100, "env_steps": 90, "q_mean": 0.25, "entropy": None}
    torn = json.dumps(point)
    path.write_text(f"{json.dumps({'kind': 'start'})}\nnot json\n{json.dumps(row)}\n{torn[:20]}")
    news = tail.read()
    (episode,) = news.episodes
    assert (episode.session, episode.episode, episode.success, episode.env_steps) == (
        "abc", 3, True, 90,
    )  # fmt: skip
    assert news.training == []
    with path.open("a") as file:
        file.write(torn[20:] + "\n")
    (training,) = tail.read().training
    assert training.q_mean == 0.25 and math.isnan(training.entropy)
    assert tail.read().training == []


def jpeg(value: int) -> bytes:
    return encode(np.full((8, 8, 3), value, np.uint8), 90, 64)


def test_pictures_of_the_newest_episodes_are_kept(tmp_path: Path) -> None:
    ring = EpisodeRing(tmp_path / "ring", keep=2)
    assert ring.episodes() == []
    for number in range(4):
        ring.begin(f"s-{number}", 10.0)
        for step in range(3):
            ring.add("wrist", jpeg(10 * number + step), 10.0 + step, step)
            ring.add("../../evil", jpeg(0), 10.0, 0)
    ring.end({"success": True})
    listed = ring.episodes()
    assert [e["key"] for e in listed] == ["s-2", "s-3"]
    assert listed[1]["cameras"] == {"wrist": [[0.0, 0], [1.0, 1], [2.0, 2]]}
    assert listed[1]["facts"] == {"success": True}
    assert ring.frame("s-3", "wrist", 1) == jpeg(31)
    assert ring.frame("s-3", "wrist", 3) is None and ring.frame("s-0", "wrist", 0) is None
    assert ring.frame("../ring", "wrist", 0) is None and ring.frame("s-3", "side", 0) is None
    archive = zipfile.ZipFile(io.BytesIO(ring.export("s-3") or b""))
    assert sorted(archive.namelist())[-1] == "wrist/00002.jpg"
    assert archive.read("wrist/00002.jpg") == jpeg(32)
    with pytest.raises(ValueError, match="key"):
        ring.begin("../x", 0.0)


def test_pictures_are_shrunk_and_counted() -> None:
    picture = Image.open(io.BytesIO(encode(np.zeros((300, 600, 3), np.uint8), 80, 128)))
    assert picture.size == (128, 64)
    hub, woken = FrameHub(), []
    assert not hub.watched
    end = hub.watch(lambda: woken.append(1))
    hub.put("wrist", b"1", 1.0)
    hub.put("wrist", b"2", 2.0)
    hub.put("side", b"3", 2.0)
    assert [(f.camera, f.number, f.jpeg) for f in hub.newest()] == [
        ("side", 1, b"3"), ("wrist", 2, b"2"),
    ]  # fmt: skip
    assert hub.watched and len(woken) == 3
    end()
    assert not hub.watched


# ---------------------------------------------------------------------------------------- access

TOKEN = "0123456789abcdef-token"


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"host": "127.0.0.1:8642"}, True),
        ({"host": "localhost:8642", "origin": "http://localhost:8642"}, True),
        ({"host": "[::1]:8642"}, True),
        ({"host": "127.0.0.1:8642", "origin": "http://evil.example"}, False),
        ({"host": "127.0.0.1:8642", "origin": "null"}, False),
        ({"host": "rebound.example:8642"}, False),
        ({}, False),
    ],
)
def test_other_sites_are_kept_away_on_localhost(headers: dict[str, str], allowed: bool) -> None:
    assert Access().allows(headers) is allowed


def test_the_lab_network_needs_the_cookie_of_the_token() -> None:
    access, host = Access(TOKEN), {"host": "lab.local:8642"}
    assert not access.allows(host)
    assert access.allows({**host, "cookie": f"a=b; {COOKIE}={access.cookie}"})
    assert not access.allows({**host, "cookie": f"{COOKIE}={Access(TOKEN + 'x').cookie}"})
    stolen = {**host, "cookie": f"{COOKIE}={access.cookie}", "origin": "https://evil.example"}
    assert not access.allows(stolen)
    assert access.knows(TOKEN) and not access.knows("") and not Access().knows("")
    assert TOKEN not in access.cookie
    with pytest.raises(AccessError, match="16 characters"):
        Access("short")


def test_certificate_is_made_once_and_its_key_is_private(tmp_path: Path) -> None:
    made = certificate(tmp_path)
    assert certificate(tmp_path).fingerprint == made.fingerprint
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
    loaded = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
