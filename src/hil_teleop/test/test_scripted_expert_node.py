"""The scripted expert's node: one answer per control step, and a heartbeat in real time."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray

import hil_tasks
from hil_common import qos
from hil_common.conversions import from_ns, pose_to_msg, to_ns
from hil_common.testing import Ros, ros  # noqa: F401
from hil_interfaces.msg import ActorState, ObjectPoses, OperatorCommand, RobotState
from hil_teleop.scripted_expert_node import ScriptedExpertNode

sys.path.insert(0, str(Path(__file__).parent))

from listener import Listener, diagnosed

PERIOD = 100_000_000


class Graph:
    """The actor, the bridge and the simulator, as far as the expert sees them."""

    def __init__(self, ros: Ros) -> None:  # noqa: F811
        self.ros = ros
        self.node = ros.node("graph")
        self.robot = self.node.create_publisher(RobotState, "robot_state", qos.STATE)
        self.objects = self.node.create_publisher(ObjectPoses, "object_poses", qos.STATE)
        self.actor = self.node.create_publisher(ActorState, "actor/state", qos.LATCHED)
        self.commands = Listener(ros, OperatorCommand, "operator_command", qos.OPERATOR)
        self.task = hil_tasks.load("peg_insert")
        self.world = self.task.sample_world(np.random.default_rng(0))

    def connected(self) -> None:
        self.ros.wait_for(
            lambda: (
                all(p.get_subscription_count() for p in (self.robot, self.objects, self.actor))
                and self.node.count_publishers("operator_command")
            )
        )

    def send_robot(self, stamp: int) -> None:
        message = RobotState(pose=pose_to_msg(self.task.spec.reset.pose))
        message.header.stamp = from_ns(stamp)
        self.robot.publish(message)

    def send_objects(self, stamp: int) -> None:
        poses = [pose_to_msg(p) for p in self.world.values()]
        message = ObjectPoses(names=list(self.world), poses=poses)
        message.header.stamp = from_ns(stamp)
        self.objects.publish(message)

    def send_actor(self, stamp: int, step: int = 0, **values: object) -> None:
        fields = {"mode": "train", "phase": "running", "operator_allowed": True} | values
        message = ActorState(session="actor", step=step, **fields)
        message.header.stamp = from_ns(stamp)
        self.actor.publish(message)

    def send(self, step: int, **values: object) -> int:
        stamp = (step + 1) * PERIOD
        self.send_robot(stamp)
        self.send_objects(stamp)
        self.send_actor(stamp, step, **values)
        return stamp

    def answers(self, stamp: int) -> list[OperatorCommand]:
        return [m for m in self.commands.messages if to_ns(m.observation_stamp) == stamp]


@pytest.fixture
def graph(ros: Ros) -> Graph:  # noqa: F811
    return Graph(ros)


def test_one_answer_for_every_step(graph: Graph) -> None:
    graph.ros.start(ScriptedExpertNode)
    graph.connected()
    for step in range(30):
        stamp = graph.send(step)
        graph.ros.wait_for(lambda stamp=stamp: graph.answers(stamp))
        graph.send_actor(stamp, step, text="still running")  # a change within the step
    last = graph.send(30)
    graph.ros.wait_for(lambda: graph.answers(last))
    stamps = [to_ns(m.observation_stamp) for m in graph.commands.messages]
    assert stamps == [(n + 1) * PERIOD for n in range(31)]
    assert [m.seq for m in graph.commands.messages] == list(range(1, 32))
    assert {m.source for m in graph.commands.messages} == {"scripted_expert"}
    engaged = [m.arms[0].engaged for m in graph.commands.messages]
    assert not any(engaged[:8]) and engaged[-1]  # a robot that does not move gets help


@pytest.mark.parametrize("order", ["actor robot objects", "objects actor robot"])
def test_the_order_of_arrival_does_not_matter(graph: Graph, order: str) -> None:
    graph.ros.start(ScriptedExpertNode)
    graph.connected()
    send = {"actor": graph.send_actor, "robot": graph.send_robot, "objects": graph.send_objects}
    for name in order.split():
        assert not graph.commands.messages
        send[name](PERIOD)
    graph.ros.wait_for(lambda: graph.answers(PERIOD))


def test_waits_for_the_state_of_the_same_stamp(graph: Graph) -> None:
    graph.ros.start(ScriptedExpertNode)
    graph.connected()
    graph.send_robot(PERIOD)
    graph.send_objects(PERIOD)
    graph.send_actor(2 * PERIOD)
    graph.send_objects(2 * PERIOD)
    assert not graph.commands.messages
    graph.send_robot(2 * PERIOD)
    graph.ros.wait_for(lambda: graph.commands.messages)
    assert to_ns(graph.commands.messages[0].observation_stamp) == 2 * PERIOD


def test_demonstrations_are_driven_from_the_first_step(graph: Graph) -> None:
    graph.ros.start(ScriptedExpertNode)
    graph.connected()
    stamp = graph.send(0, mode="demo")
    graph.ros.wait_for(lambda: graph.answers(stamp))
    answer = graph.answers(stamp)[0]
    assert answer.arms[0].engaged and any(answer.arms[0].twist)
    assert answer.header.frame_id == "base"


def test_no_answer_while_locked_out_or_not_stepping(graph: Graph) -> None:
    graph.ros.start(ScriptedExpertNode)
    graph.connected()
    graph.send(0, mode="evaluate", operator_allowed=False)
    graph.send(1, phase="resetting")
    graph.send(2, phase="waiting")
    stamp = graph.send(3)
    graph.ros.wait_for(lambda: graph.answers(stamp))
    assert len(graph.commands.messages) == 1


def test_the_same_seed_gives_the_same_answers(ros: Ros, graph: Graph) -> None:  # noqa: F811
    answers = []
    for _ in range(2):
        node = ros.start(ScriptedExpertNode, seed=4)
        graph.connected()
        count = len(graph.commands.messages)
        for step in range(5):
            graph.send(step, mode="demo")
            ros.wait_for(lambda n=count + step: len(graph.commands.messages) > n)
        answers.append([list(m.arms[0].twist) for m in graph.commands.messages[count:]])
        node.trigger_deactivate()
        node.trigger_cleanup()
        del graph.commands.messages[-1:]  # whatever the shutdown said
    assert answers[0] == answers[1]


def test_says_what_it_waits_for(graph: Graph) -> None:
    news = Listener(graph.ros, DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
    graph.ros.start(ScriptedExpertNode)
    missing = "waiting for actor/state, robot_state, object_poses"
    news.wait(lambda m: diagnosed(m, "/scripted_expert", missing))


def test_wrong_settings_keep_the_node_unconfigured(
    ros: Ros,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = tmp_path / "expert.yaml"
    settings.write_text("hand: {tremour: 0.1}")
    news = Listener(ros, DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
    node = ros.make(ScriptedExpertNode, expert_file=str(settings))
    node.trigger_configure()
    news.wait(lambda m: diagnosed(m, "/scripted_expert", "'tremor'"))
    assert not node.active


def test_real_time_heartbeat(graph: Graph) -> None:
    graph.ros.start(ScriptedExpertNode, pace="realtime")
    graph.connected()
    idle = graph.commands.wait(lambda m: m.seq > 10, "the heartbeat before the actor is there")
    assert not idle.arms[0].engaged

    stamp = graph.send(0, mode="demo")
    driving = graph.commands.wait(lambda m: m.arms[0].engaged)
    assert to_ns(driving.observation_stamp) == stamp
    graph.commands.wait(lambda m: not m.arms[0].engaged, "letting go when the actor is silent")

    graph.send(1, mode="demo")
    graph.commands.wait(lambda m: m.arms[0].engaged)
    graph.send(2, mode="evaluate", operator_allowed=False)
    graph.commands.wait(lambda m: not m.arms[0].engaged, "hands off in evaluation")
    seqs = [m.seq for m in graph.commands.messages]
    assert seqs == sorted(set(seqs))
