"""Node: the scripted expert in place of a person -> `operator_command`.

In lockstep it answers every control step of the actor (`actor/state`) exactly once, as soon as it
has the state and the object poses of the same stamp. In real time it decides once per control
step and repeats its input as a heartbeat in between. While the operator is locked out, it watches
with its hands off: no answer in lockstep, nobody engaged in real time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from rclpy.experimental import EventsExecutor

import hil_tasks
from hil_common import qos
from hil_common.conversions import pose_from_msg, to_ns, twist_values, wrench_values
from hil_common.lifecycle import HilNode
from hil_common.params import NodeParams, param
from hil_common.run import main as run
from hil_interfaces.msg import ActorState, ObjectPoses, RobotState
from hil_tasks import Reading
from hil_teleop.expert import ExpertConfig, ScriptedExpert
from hil_teleop.mapping import ArmInput
from hil_teleop.operator_publisher import OperatorPublisher

T = TypeVar("T")

#: Phases in which the actor takes control steps and waits for the operator.
STEPPING = ("running", "holding")

#: Control periods without news of actor or robot after which the expert lets go (real time).
PATIENCE = 5.0


@dataclass(frozen=True)
class ScriptedExpertParams(NodeParams):
    """Parameters of the scripted expert's node."""

    task: str = param("peg_insert", "task that is done, see hil_tasks")
    task_file: str = param("", "YAML file of the task instead, with overrides")
    expert_file: str = param("", "YAML file of the expert's settings; empty: the built-in ones")
    seed: int = param(0, "of the expert's errors, noise and choices", low=0)
    pace: str = param(
        "lockstep",
        "lockstep: answer every step; realtime: heartbeat",
        choices=("lockstep", "realtime"),
    )
    rate_hz: float = param(100.0, "heartbeat in real time", low=50.0, high=500.0)
    frame_id: str = param("base", "frame of the twists: the arm's base frame")


class _ByStamp(Generic[T]):
    """The last few messages of a topic by stamp, in ns."""

    def __init__(self, size: int = 8) -> None:
        self._size = size
        self._items: OrderedDict[int, T] = OrderedDict()

    def add(self, stamp: int, item: T) -> None:
        self._items[stamp] = item
        while len(self._items) > self._size:
            self._items.popitem(last=False)

    def get(self, stamp: int) -> T | None:
        return self._items.get(stamp)

    def newest(self) -> T | None:
        return next(reversed(self._items.values()), None)

    def clear(self) -> None:
        self._items.clear()


class ScriptedExpertNode(HilNode):
    """Watches actor, robot and objects, and drives when it sees fit."""

    Params = ScriptedExpertParams
    params: ScriptedExpertParams

    def __init__(self, **options: Any) -> None:
        super().__init__("scripted_expert", **options)

    def on_setup(self) -> None:
        """Load task and settings, open the topics.

        Raises:
            ValueError: unknown task or setting; names it.
        """
        p = self.params
        task = hil_tasks.load_file(p.task_file) if p.task_file else hil_tasks.load(p.task)
        config = ExpertConfig.load(p.expert_file) if p.expert_file else ExpertConfig()
        self.expert = ScriptedExpert(task, config, p.seed)
        self._period = task.spec.period
        self._lockstep = p.pace == "lockstep"
        self._operator = OperatorPublisher(self, "scripted_expert", p.frame_id)
        self._robot: _ByStamp[RobotState] = _ByStamp()
        self._objects: _ByStamp[ObjectPoses] = _ByStamp()
        self._actor: ActorState | None = None
        self._episode: tuple[str, int, str] | None = None
        self._answered: tuple[str, int] | None = None
        self._input = ArmInput(task.spec.arms[0])
        self._heard = {"actor": -np.inf, "robot": -np.inf}
        self._topics = [
            self.subscribe(RobotState, "robot_state", self._on_robot, qos.STATE),
            self.subscribe(ObjectPoses, "object_poses", self._on_objects, qos.STATE),
            self.subscribe(ActorState, "actor/state", self._on_actor, qos.LATCHED),
        ]
        self._timer = None if self._lockstep else self.every(1.0 / p.rate_hz, self._heartbeat)
        self._say_what_is_missing()

    def on_hold(self) -> None:
        """Hands off."""
        self._let_go()
        if not self._lockstep:
            self._send()

    def on_close(self) -> None:
        """Close the topics."""
        if self._timer is not None:
            self.destroy_timer(self._timer)
        for topic in self._topics:
            self.destroy_subscription(topic)
        self._operator.close()

    def _on_robot(self, message: RobotState) -> None:
        self._robot.add(to_ns(message.header.stamp), message)
        self._heard["robot"] = time.monotonic()
        self._think()

    def _on_objects(self, message: ObjectPoses) -> None:
        self._objects.add(to_ns(message.header.stamp), message)
        self._think()

    def _on_actor(self, message: ActorState) -> None:
        self._actor = message
        self._heard["actor"] = time.monotonic()
        if not self._lockstep and not self._invited():
            self._let_go()
        self._think()

    def _invited(self) -> bool:
        """The actor takes steps and lets the operator take part."""
        actor = self._actor
        return actor is not None and actor.operator_allowed and actor.phase in STEPPING

    def _think(self) -> None:
        """Decide for the actor's present step, once, when everything of it is there."""
        actor = self._actor
        if not self.active or actor is None or not self._invited():
            return
        stamp = to_ns(actor.header.stamp)
        step = (actor.session, stamp)
        if step == self._answered:
            return
        robot = self._robot.get(stamp) if self._lockstep else self._robot.newest()
        objects = self._objects.get(stamp) if self._lockstep else self._objects.newest()
        if robot is None or objects is None:
            self._say_what_is_missing()
            return
        self._answered = step
        self._begin_episode(actor)
        self._input = self.expert.act(_reading(robot, objects))
        self.waiting_for("")
        self.diagnostics.tick("decisions")
        self.diagnostics.set(engaged=self._input.engaged, reason=self.expert.reason)
        self._send(robot)

    def _begin_episode(self, actor: ActorState) -> None:
        episode = (actor.session, actor.episode, actor.mode)
        if episode != self._episode:
            self._episode = episode
            self.expert.begin(actor.episode, demo=actor.mode == "demo")

    def _heartbeat(self) -> None:
        if not self.active:
            return
        now = time.monotonic()
        if any(now - heard > PATIENCE * self._period for heard in self._heard.values()):
            self._let_go()
            self._say_what_is_missing()
        self._send()

    def _let_go(self) -> None:
        self._input = ArmInput(self._input.arm)
        self.diagnostics.set(engaged=False)

    def _send(self, answered: RobotState | None = None) -> None:
        stamp = self.get_clock().now().to_msg() if answered is None else answered.header.stamp
        observed = None if answered is None else answered.header.stamp
        self._operator.publish([self._input], stamp, observation_stamp=observed)

    def _say_what_is_missing(self) -> None:
        missing = []
        if self._actor is None:
            missing.append("actor/state")
        if self._robot.newest() is None:
            missing.append("robot_state")
        if self._objects.newest() is None:
            missing.append("object_poses")
        self.waiting_for(", ".join(missing))


def _reading(robot: RobotState, objects: ObjectPoses) -> Reading:
    return Reading(
        pose=pose_from_msg(robot.pose),
        twist=twist_values(robot.twist),
        wrench=wrench_values(robot.wrench),
        q=np.asarray(robot.q),
        dq=np.asarray(robot.dq),
        gripper_width=robot.gripper_width,
        objects={
            name: pose_from_msg(pose)
            for name, pose in zip(objects.names, objects.poses, strict=True)
        },
        target=pose_from_msg(robot.target),
    )


def main() -> None:
    """Run the node."""
    run(ScriptedExpertNode, executor_class=EventsExecutor)
