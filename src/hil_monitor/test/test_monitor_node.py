"""The monitor node with a small graph around it, seen through its web server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ament_index_python.packages import get_package_prefix
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.action import ActionServer
from sensor_msgs.msg import Image
from std_srvs.srv import SetBool, Trigger

from hil_common import qos
from hil_common.images import to_image
from hil_common.params import ParameterError
from hil_common.prompts import Asker
from hil_common.testing import Ros, ros  # noqa: F401
from hil_interfaces.action import Recover, RunEpisodes
from hil_interfaces.msg import (
    ActorState,
    Annotation,
    EpisodeSummary,
    LearnerStatus,
    OperatorCommand,
    RobotState,
)
from hil_interfaces.srv import Annotate
from hil_monitor.monitor_node import TOKEN_VARIABLE, MonitorNode
from hil_teleop.teleop_node import TeleopNode

sys.path.insert(0, str(Path(__file__).parent))

from console_fakes import Page, page


class Around:
    """Everything that the console talks to."""

    def __init__(self, ros: Ros) -> None:  # noqa: F811
        self.ros = ros
        self.asked: list[Any] = []
        self.annotations: list[Annotation] = []
        node = self.node = ros.node("around")
        self.actor = node.create_publisher(ActorState, "actor/state", qos.LATCHED)
        self.robot = node.create_publisher(RobotState, "robot_state", qos.STATE)
        self.episode = node.create_publisher(EpisodeSummary, "episode", qos.EVENT)
        self.learner = node.create_publisher(LearnerStatus, "learner/status", qos.LATCHED)
        self.health = node.create_publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        for name in ("robot_bridge/set_stop", "actor/set_pause"):
            node.create_service(SetBool, name, self._note(name))
        for name in ("actor/skip_episode", "hil_manager/retry"):
            node.create_service(Trigger, name, self._note(name))
        node.create_service(Annotate, "learner/annotate", self._annotate)

    def _note(self, name: str) -> Any:
        def answer(request: Any, response: Any) -> Any:
            self.asked.append((name, getattr(request, "data", None)))
            response.success, response.message = False, "because"
            return response

        return answer

    def _annotate(self, request: Any, response: Any) -> Any:
        self.annotations.append(request.annotation)
        response.accepted = True
        return response


@pytest.fixture
def around(ros: Ros) -> Around:  # noqa: F811
    return Around(ros)


@pytest.fixture
def monitor(ros: Ros, tmp_path: Path) -> Iterator[MonitorNode]:  # noqa: F811
    node = ros.start(MonitorNode, port=0, run_folder=str(tmp_path), input=True, keep_episodes=3)
    yield node
    node.trigger_shutdown()


@pytest.fixture
def client(monitor: MonitorNode) -> Iterator[Page]:
    assert monitor.server is not None
    with page(monitor.server) as client:
        yield client


def test_what_the_graph_says_is_shown(around: Around, client: Page, tmp_path: Path) -> None:
    around.actor.publish(ActorState(phase="running", mode="train", session="s", episode=2))
    assert client.wait("live", lambda m: m["control"]["state"] == "policy")
    around.actor.publish(ActorState(phase="running", mode="train", intervened=True))
    assert client.wait("live", lambda m: m["control"]["state"] == "operator")
    around.ros.wait_for(around.robot.get_subscription_count)
    around.robot.publish(RobotState(mode=RobotState.MODE_REFLEX, mode_text="recover the arm"))
    live = client.wait("live", lambda m: m["control"]["state"] == "fault")
    assert live["control"]["reason"] == "recover the arm"
    around.learner.publish(LearnerStatus(run_id="r", phase="training", policy_version=9))
    assert client.wait("slow", lambda m: (m["learner"] or {}).get("policy_version") == 9)
    status = DiagnosticStatus(name="/learner", level=DiagnosticStatus.WARN, message="slow")
    around.health.publish(DiagnosticArray(status=[status]))
    found = client.wait("slow", lambda m: any(n["name"] == "/learner" for n in m["nodes"]))
    node = next(n for n in found["nodes"] if n["name"] == "/learner")
    assert (node["level"], node["text"]) == (1, "slow")
    around.episode.publish(EpisodeSummary(session="s", episode=2, mode="train", steps=7))
    assert client.wait("history", lambda m: [e["steps"] for e in m["episodes"]] == [7])
    (tmp_path / "metrics.jsonl").write_text(
        '{"kind": "training", "updates": 5, "env_steps": 9, "q_mean": 0.5}\n'
    )
    assert client.wait("history", lambda m: m["training"])["training"][0]["q_mean"] == 0.5


def test_commands_reach_the_other_nodes(around: Around, client: Page) -> None:
    for command, expected in (
        ("stop", ("robot_bridge/set_stop", True)),
        ("release_stop", ("robot_bridge/set_stop", False)),
        ("pause", ("actor/set_pause", True)),
        ("resume", ("actor/set_pause", False)),
        ("reset", ("actor/skip_episode", None)),
        ("retry", ("hil_manager/retry", None)),
    ):
        reply = client.ask(do=command)
        assert (reply["ok"], reply["text"]) == (False, "because")
        assert around.asked[-1] == expected
    assert "recover is not there" in client.ask(do="recover")["text"]


def test_episodes_are_asked_for_and_aborted_and_the_arm_recovers(
    around: Around, client: Page
) -> None:
    goals: list[Any] = []

    def refuse(handle: Any) -> Any:
        goals.append(handle.request)
        handle.abort()
        return RunEpisodes.Result(ok=False, reason="no operator")

    def recover(handle: Any) -> Any:
        handle.succeed()
        return Recover.Result(ok=True)

    ActionServer(around.node, RunEpisodes, "actor/run_episodes", refuse)
    ActionServer(around.node, Recover, "robot_bridge/recover", recover)
    around.ros.wait_for(lambda: client.ask(do="run", mode="demo", episodes=4)["ok"])
    around.ros.wait_for(lambda: goals)
    assert (goals[-1].mode, goals[-1].episodes) == ("demo", 4)
    around.ros.wait_for(lambda: client.ask(do="recover")["ok"])
    assert "no episodes" in client.ask(do="abort")["text"]


def test_labels_become_annotations_and_can_be_taken_back(around: Around, client: Page) -> None:
    around.learner.publish(LearnerStatus(run_id="r"))
    client.wait("slow", lambda m: m["learner"] and m["features"]["labels"])
    for number, success in ((1, False), (2, True)):
        summary = EpisodeSummary(actor_id="a", session="s", episode=number, success=success)
        around.episode.publish(summary)
    client.wait("history", lambda m: any(e["episode"] == 2 for e in m["episodes"]))
    assert client.ask(do="label", session="s", episode=1, success=True)["ok"]
    assert client.ask(do="label", session="s", episode=2, success=False)["ok"]
    label, veto = around.annotations
    assert (label.kind, label.success, label.run_id, label.actor_id) == (
        Annotation.LABEL, True, "r", "a",
    )  # fmt: skip
    assert (veto.kind, veto.episode, veto.session) == (Annotation.VETO, 2, "s")
    assert client.ask(do="undo")["ok"]
    undo = around.annotations[-1]
    assert (undo.kind, undo.refers_to) == (Annotation.UNDO, veto.id)
    assert client.ask(do="undo")["ok"]
    assert "no label" in client.ask(do="undo")["text"]
    assert "not known" in client.ask(do="label", session="s", episode=9, success=True)["text"]


def test_a_question_is_answered_from_the_page(around: Around, client: Page) -> None:
    told: list[tuple[str, bool]] = []
    asker = Asker(around.ros.node("task"))
    asker.ask("success?", ["yes", "no"], "no", 60.0, lambda *answer: told.append(answer))
    (question,) = client.wait("live", lambda m: m["prompts"])["prompts"]
    assert question["node"] == "/task" and 0 < question["remaining"] <= 60.0
    around.ros.wait_for(
        lambda: client.ask(do="answer", question=question["id"], choice="yes")["ok"]
    )
    assert told == [("yes", True)]
    client.wait("live", lambda m: not m["prompts"])
    late = client.ask(do="answer", question=question["id"], choice="yes")
    assert "not open" in late["text"]


def test_input_becomes_operator_commands_through_teleop(around: Around, client: Page) -> None:
    heard: list[Any] = []
    around.node.create_subscription(
        OperatorCommand, "operator_command", heard.append, qos.OPERATOR
    )
    teleop = around.ros.start(TeleopNode, source="console", mode="touch")
    assert client.ask(do="take")["ok"]

    def drives() -> Any:
        client.send(do="input", axes=[1, 0, 0, 0, 0, 0], buttons=[0, 0, 0])
        return next((m for m in heard if m.arms[0].engaged), None)

    command = around.ros.wait_for(drives)
    assert command.source == "console" and command.arms[0].twist[0] == 1.0

    # The page falls silent while it drives: the device is lost.
    around.ros.wait_for(lambda: heard[-1].source == "lost")
    assert not heard[-1].arms[0].engaged

    # Given back, it is at rest: there, and nobody drives.
    client.send(do="give_back")
    around.ros.wait_for(lambda: heard[-1].source == "console" and not heard[-1].arms[0].engaged)
    teleop.trigger_shutdown()


def test_pictures_are_taken_only_while_wanted(around: Around, tmp_path: Path) -> None:
    node = around.ros.start(MonitorNode, port=0)
    publisher = around.node.create_publisher(Image, "wrist/image", qos.IMAGE)
    pixels = np.full((16, 16, 3), 200, np.uint8)
    stamp = around.node.get_clock().now().to_msg()
    with page(node.server) as client:
        client.wait("live", lambda m: m["cameras"] == ["wrist"])
        assert publisher.get_subscription_count() == 0
        with page(node.server, "/tiles") as tiles:
            around.ros.wait_for(publisher.get_subscription_count)
            publisher.publish(to_image(pixels, stamp, "wrist"))
            assert b"JFIF" in tiles.socket.recv(timeout=30.0)
        around.ros.wait_for(lambda: publisher.get_subscription_count() == 0)
    node.trigger_shutdown()


def test_recorded_episodes_have_the_actors_numbers(around: Around, monitor: MonitorNode) -> None:
    publisher = around.node.create_publisher(Image, "wrist/image", qos.IMAGE)
    around.ros.wait_for(publisher.get_subscription_count)
    stamp = around.node.get_clock().now().to_msg()
    picture = to_image(np.zeros((16, 16, 3), np.uint8), stamp, "wrist")
    ring = monitor._ring
    assert ring is not None
    for episode in (1, 2):
        state = ActorState(phase="running", session="abcdefghij", episode=episode)
        around.actor.publish(state)

        def recorded(number: int = episode) -> bool:
            publisher.publish(picture)
            return monitor._recording == f"abcdefgh-{number:05d}"

        around.ros.wait_for(recorded)
    assert [e["key"] for e in ring.episodes()] == ["abcdefgh-00001"]


def test_a_taken_port_does_not_stop_the_graph(ros: Ros, monitor: MonitorNode) -> None:  # noqa: F811
    assert monitor.server is not None
    other = ros.start(MonitorNode, port=monitor.server.port)
    assert other.active and other.server is not None
    assert other.server.port != monitor.server.port
    other.trigger_shutdown()


def test_the_lab_network_needs_a_token(
    ros: Ros,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ParameterError, match=TOKEN_VARIABLE):
        ros.make(MonitorNode, network="lan", run_folder=str(tmp_path))
    monkeypatch.setenv(TOKEN_VARIABLE, "secret-of-this-test-0123")
    node = ros.start(MonitorNode, network="lan", run_folder=str(tmp_path), port=0)
    assert node.active
    node.trigger_shutdown()
    said = "".join(capfd.readouterr())
    assert "certificate" in said and "secret-of-this-test" not in said


def test_killing_the_console_changes_nothing_but_questions_get_their_default(
    around: Around,
    tmp_path: Path,
) -> None:
    """A real process, killed while a question is open and a page looks on."""
    executable = Path(get_package_prefix("hil_monitor")) / "lib/hil_monitor/monitor_node"
    domain = around.ros.context.get_domain_id()
    process = subprocess.Popen(
        [str(executable), "--ros-args", "-p", "autostart:=true", "-p", "port:=0"],
        env={**os.environ, "ROS_DOMAIN_ID": str(domain)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    try:
        heard: list[Any] = []
        around.node.create_subscription(
            DiagnosticArray, "/diagnostics", heard.append, qos.DIAGNOSTICS
        )
        around.ros.wait_for(
            lambda: any(s.name == "/monitor" for m in heard for s in m.status),
            what="the monitor's process",
        )
        told: list[tuple[str, bool]] = []
        asker = Asker(around.ros.node("task"))
        asker.ask("success?", ["yes", "no"], "no", 2.0, lambda *answer: told.append(answer))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    around.ros.wait_for(lambda: told)
    assert told == [("no", False)]
    assert around.asked == [] and around.annotations == []
