"""A small graph around the actor: point robot with its bridge and simulator, operator, learner.

Everything is deterministic: the tool centre point covers the same share of the way to its target
in every control period.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from rclpy.action import ActionClient, ActionServer
from rclpy.node import Node
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Image

from hil_common import qos
from hil_common.conversions import from_ns, pose_from_msg, pose_to_msg, to_ns
from hil_common.images import to_image
from hil_interfaces.action import Recover, ResetEpisode, UpdatePolicy
from hil_interfaces.msg import (
    ActorState,
    ArmCommand,
    ArmInput,
    CommandResult,
    EpisodeSummary,
    LearnerStatus,
    ObjectPoses,
    OperatorCommand,
    RobotState,
    Step,
)
from hil_interfaces.srv import (
    AcquireLease,
    Advance,
    InsertSteps,
    ReleaseLease,
    ResetWorld,
    SetCompliance,
)
from hil_tasks import Pose, Task
from hil_tasks.geometry import step_towards

T = TypeVar("T")

SHARE = 0.6


def populate(ros: Any, name: str, make: Callable[[Node], T]) -> T:
    """What `make` builds on a node of its own, which is spun only when it is complete."""
    node = Node(name, context=ros.context)
    made = make(node)
    ros.add(node)
    return made


class FakeRobot:
    """Bridge and simulator of one arm, in one node."""

    def __init__(self, node: Node, task: Task, pace: str = "lockstep") -> None:
        self.node = node
        self.task = task
        self.lockstep = pace == "lockstep"
        self.period_ns = round(task.spec.period * 1e9)
        self.stamp = 10**9
        self.pose: Pose = task.spec.reset.pose
        self.target = self.pose
        self.objects = task.sample_world(np.random.default_rng(0))
        self.mode = RobotState.MODE_HOLD
        self.stop_latched = False
        self.operator_hold = False
        self.owner = ""
        self.compliance = "policy"
        self.recoveries = 0
        self.frame = 0
        # What a test looks at.
        self.commands: list[ArmCommand] = []
        self.advances: list[Advance.Request] = []
        self.world_seeds: list[int] = []
        self.resets = 0
        self.presets: list[str] = []
        # What a test sets.
        self.answer_as: Callable[[ArmCommand], tuple[int, Pose, str] | None] | None = None
        self.mute = False
        self.lose_states = 0
        self.refuse_lease = ""
        self.refuse_reset = ""
        self.on_advance: Callable[[], None] = lambda: None
        self._serve()

    def _serve(self) -> None:
        node = self.node
        self._state = node.create_publisher(RobotState, "robot_state", qos.STATE)
        self._poses = node.create_publisher(ObjectPoses, "object_poses", qos.STATE)
        self._result = node.create_publisher(CommandResult, "command_result", qos.RESULT)
        self._images = {
            camera: node.create_publisher(Image, f"{camera}/image", qos.IMAGE)
            for camera in self.task.spec.cameras
        }
        node.create_subscription(ArmCommand, "arm_command", self._on_command, qos.COMMAND)
        node.create_service(AcquireLease, "robot_bridge/acquire", self._acquire)
        node.create_service(ReleaseLease, "robot_bridge/release", self._release)
        node.create_service(SetCompliance, "robot_bridge/set_compliance", self._set_compliance)
        node.create_service(ResetWorld, "/hil_sim/reset_world", self._reset_world)
        self._reset = ActionServer(
            node, ResetEpisode, "robot_bridge/reset_episode", self._reset_episode
        )
        self._recover_server = ActionServer(node, Recover, "robot_bridge/recover", self._recover)
        if self.lockstep:
            node.create_service(Advance, "/hil_sim/advance", self._advance)
        else:
            node.create_timer(0.02, self._tick)

    # -- bridge

    def _on_command(self, command: ArmCommand) -> None:
        self.commands.append(command)
        if self.mute:
            return
        result = CommandResult(owner=command.owner, seq=command.seq)
        result.header = command.header
        special = self.answer_as(command) if self.answer_as is not None else None
        if command.owner != self.owner:
            special = CommandResult.REFUSED, self.target, "not the owner"
        if special is not None:
            result.status, self.target, result.reason = special
        elif command.control_mode == ArmCommand.MODE_HOLD:
            result.status = CommandResult.HELD
        else:
            self.target = pose_from_msg(command.pose)
        result.gripper = command.gripper
        result.applied_pose = pose_to_msg(self.target)
        self._result.publish(result)

    def _acquire(self, request: Any, response: Any) -> Any:
        response.ok, response.reason = not self.refuse_lease, self.refuse_lease
        if response.ok:
            self.owner = request.owner
            self.publish()
        response.holder = self.owner
        return response

    def _release(self, request: Any, response: Any) -> Any:
        response.ok = request.owner == self.owner
        if response.ok:
            self.owner = ""
        return response

    def _set_compliance(self, request: Any, response: Any) -> Any:
        self.presets.append(request.preset)
        self.compliance, response.ok = request.preset, True
        return response

    def _reset_episode(self, handle: Any) -> Any:
        handle.succeed()
        if self.refuse_reset:
            return ResetEpisode.Result(ok=False, reason=self.refuse_reset)
        self.resets += 1
        self.pose = self.target = pose_from_msg(handle.request.start.pose)
        self.stamp += 3 * self.period_ns
        self.publish()
        return ResetEpisode.Result(ok=True, pose=pose_to_msg(self.pose))

    def _recover(self, handle: Any) -> Any:
        handle.succeed()
        self.recover()
        return Recover.Result(ok=True)

    def recover(self) -> None:
        """Clear the error."""
        self.mode = RobotState.MODE_HOLD
        self.recoveries += 1
        self.target = self.pose

    # -- simulator

    def _reset_world(self, request: Any, response: Any) -> Any:
        self.world_seeds.append(request.seed)
        self.objects = self.task.sample_world(np.random.default_rng(request.seed))
        response.ok, response.stamp = True, from_ns(self.stamp)
        return response

    def _advance(self, request: Any, response: Any) -> Any:
        self.advances.append(request)
        self.on_advance()
        for _ in range(request.periods):
            self._move()
            self.stamp += self.period_ns
        if self.lose_states:
            self.lose_states -= 1
        else:
            self.publish()
        response.ok, response.stamp = True, from_ns(self.stamp)
        return response

    def _tick(self) -> None:
        self.stamp += 20_000_000
        self._move(0.2)
        if not self.lose_states:
            self.publish()

    def _move(self, share: float = SHARE) -> None:
        distance, angle = self.pose.distance(self.target)
        if distance > 1e-12 or angle > 1e-12:
            limits = max(distance * share, 1e-12), max(angle * share, 1e-12)
            self.pose = step_towards(self.pose, self.target, *limits)

    def publish(self) -> None:
        """State, objects and frames of now."""
        stamp = from_ns(self.stamp)
        poses = ObjectPoses(names=list(self.objects))
        poses.poses = [pose_to_msg(pose) for pose in self.objects.values()]
        poses.header.stamp, poses.header.frame_id = stamp, "base"
        self._poses.publish(poses)
        for camera, publisher in self._images.items():
            self.frame += 1
            size = self.task.spec.image_size
            pixels = np.full((size, size, 3), self.frame % 256, np.uint8)
            publisher.publish(to_image(pixels, stamp, camera))
        state = RobotState(
            mode=self.mode,
            stop_latched=self.stop_latched,
            operator_hold=self.operator_hold,
            owner=self.owner,
            compliance=self.compliance,
            recoveries=self.recoveries,
            pose=pose_to_msg(self.pose),
            target=pose_to_msg(self.target),
        )
        state.header.stamp, state.header.frame_id = stamp, "base"
        self._state.publish(state)


class FakeOperator:
    """Answers every running observation with what `script` returns for its step.

    script: ActorState -> (engaged, twist) or None to stay silent.
    """

    def __init__(
        self, node: Node, script: Callable[[ActorState], tuple[bool, list[float]] | None]
    ) -> None:
        self.script = script
        self.answered: list[int] = []
        self.states: list[ActorState] = []
        self.session = str(uuid.uuid4())
        self._seq = 0
        self._publisher = node.create_publisher(OperatorCommand, "operator_command", qos.OPERATOR)
        node.create_subscription(ActorState, "actor/state", self._on_state, qos.LATCHED)

    def _on_state(self, state: ActorState) -> None:
        self.states.append(state)
        stamp = to_ns(state.header.stamp)
        asked = state.phase == "running" and state.operator_allowed
        if not asked or stamp in self.answered[-1:]:
            return
        said = self.script(state)
        if said is not None:
            self.answered.append(stamp)
            self.say(*said, stamp=stamp)

    def say(self, engaged: bool, twist: list[float], stamp: int = 0, gripper: int = 0) -> None:
        """Publish one command."""
        self._seq += 1
        message = OperatorCommand(session=self.session, seq=self._seq, source="fake")
        message.header.frame_id = "base"
        message.observation_stamp = from_ns(stamp)
        message.arms = [ArmInput(engaged=engaged, twist=twist, gripper=gripper)]
        self._publisher.publish(message)


class FakeLearner:
    """Takes steps in, exactly once; publishes its status; sends policies."""

    def __init__(self, node: Node, run_id: str = "run", fingerprint: str = "") -> None:
        self.node = node
        self.run_id = run_id
        self.fingerprint = fingerprint
        self.steps: list[Step] = []
        self.raw: list[bytes] = []
        self.last: dict[str, int] = {}
        self.requests = 0
        self.changed = threading.Condition()
        self._service = node.create_service(InsertSteps, "learner/insert_steps", self._insert)
        self._status = node.create_publisher(LearnerStatus, "learner/status", qos.LATCHED)
        self._updates = ActionClient(node, UpdatePolicy, "actor/update_policy")

    def _insert(self, request: Any, response: Any) -> Any:
        self.requests += 1
        last = self.last.get(request.session, 0)
        response.run_id = self.run_id
        response.status = InsertSteps.Response.OK
        if request.run_id != self.run_id:
            response.status = InsertSteps.Response.WRONG_RUN
            response.reason = f"this is run {self.run_id}"
        elif self.fingerprint and request.fingerprint != self.fingerprint:
            response.status = InsertSteps.Response.WRONG_SPEC
            response.reason = "another specification"
        else:
            for step in request.steps:
                if step.seq == last + 1:
                    last += 1
                    self.raw.append(bytes(step.data))
                    self.steps.append(deserialize_message(self.raw[-1], Step))
                elif step.seq > last:
                    response.status = InsertSteps.Response.GAP
                    break
            self.last[request.session] = last
        response.last_seq, response.wanted_seq = last, last + 1
        with self.changed:
            self.changed.notify_all()
        return response

    def report(self, allowed: int, **fields: Any) -> None:
        """Publish the status."""
        stored = sum(not s.flags & (Step.FLAG_DEMO | Step.FLAG_EVALUATION) for s in self.steps)
        fields = {"env_steps": stored, "phase": "training", **fields}
        self._status.publish(
            LearnerStatus(run_id=self.run_id, env_steps_allowed=allowed, **fields)
        )

    def vanish(self) -> None:
        """The service is gone."""
        self.node.destroy_service(self._service)

    def send_policy(self, version: int, fingerprint: str, sha256: str, data: bytes) -> Any:
        """Future of the goal handle."""
        goal = UpdatePolicy.Goal(version=version, fingerprint=fingerprint, sha256=sha256)
        goal.data = data
        return self._updates.send_goal_async(goal)

    def policy_server_ready(self) -> bool:
        """The actor can be reached."""
        return bool(self._updates.server_is_ready())


class Recording:
    """What is said on the actor's topics."""

    def __init__(self, node: Node) -> None:
        self.steps: list[Step] = []
        self.raw: list[bytes] = []
        self.episodes: list[EpisodeSummary] = []
        self.states: list[ActorState] = []
        node.create_subscription(Step, "step", self._on_step, qos.STEP, raw=True)
        node.create_subscription(EpisodeSummary, "episode", self.episodes.append, qos.EVENT)
        node.create_subscription(ActorState, "actor/state", self.states.append, qos.LATCHED)

    def _on_step(self, data: bytes) -> None:
        self.raw.append(data)
        self.steps.append(deserialize_message(data, Step))

    def said(self, phase: str, text: str) -> bool:
        """The actor was in this phase with these words."""
        return any(s.phase == phase and text in s.text for s in self.states)
