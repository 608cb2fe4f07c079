"""One topic, one arm, one operator: what `Graph` is put together from.

Freshness is judged on this process's steady clock by arrival, stamps only pair data.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rclpy.node import Node

from hil_actor.control_step import Answer, ArmPlan, Status
from hil_actor.intervention import ArmInput
from hil_actor.poller import Poller
from hil_common import qos
from hil_common.conversions import fill_pose, from_ns, pose_from_msg, pose_values, to_ns
from hil_interfaces.action import Recover, ResetEpisode
from hil_interfaces.msg import ArmCommand, CommandResult, OperatorCommand, RobotState
from hil_interfaces.srv import AcquireLease, ReleaseLease, SetCompliance
from hil_tasks import Pose

# OperatorCommand.source of the last message of a lost device.
_LOST = "lost"


class Newest:
    """Newest message of a topic, its stamp (ns) and when it came (s, steady).

    A message with the stamp of its predecessor is no news: a frozen source does not look fresh.
    """

    def __init__(self) -> None:
        self.message: Any = None
        self.stamp = 0
        self.arrival = -np.inf
        self.count = 0
        """Messages that came, old news included."""

    def put(self, message: Any) -> None:
        """Keep a message with a header."""
        stamp = to_ns(message.header.stamp)
        if stamp != self.stamp or self.message is None:
            self.arrival = time.monotonic()
        self.message, self.stamp = message, stamp
        self.count += 1

    def age(self, now: float) -> float:
        """Seconds since the newest one came; infinite before the first."""
        return now - self.arrival


@dataclass(frozen=True, eq=False)
class OperatorView:
    """Newest command of the operator.

    Attributes:
        session, seq: identity of the message.
        observation_stamp: ns, of the observation that it answers.
        in_tool_frame: twists are in tool axes instead of base axes.
        inputs: per arm, as they came.
    """

    session: str = ""
    seq: int = 0
    observation_stamp: int = 0
    in_tool_frame: bool = False
    inputs: Mapping[str, ArmInput] = field(default_factory=dict)


class PoseReader:
    """Poses from messages; the pose of a message that says the same as before is not made anew.

    Most poses of a step were seen before: objects at rest, the target that was just applied.
    """

    def __init__(self, size: int = 16) -> None:
        self._known: OrderedDict[bytes, Pose] = OrderedDict()
        self._size = size

    def read(self, message: Any) -> Pose:
        """Pose of a geometry_msgs/Pose.

        Raises:
            ValueError: see `pose_from_msg`.
        """
        key = pose_values(message).tobytes()
        pose = self._known.get(key)
        if pose is not None:
            self._known.move_to_end(key)
            return pose
        pose = self._known[key] = pose_from_msg(message)
        if len(self._known) > self._size:
            self._known.popitem(last=False)
        return pose


class OperatorPort:
    """Hears the operator.

    Args:
        poller: waits for the messages.
        base_frame, tool_frame: frames that commands may be in.
        warn: told about commands that are ignored.
    """

    def __init__(
        self, poller: Poller, base_frame: str, tool_frame: str, warn: Callable[[str], None]
    ) -> None:
        self.newest = OperatorView()
        self.arrival = -np.inf
        self.heard = False
        """Heard since `forget`."""
        self.lost = False
        """The newest command said that the device is lost."""
        self._frames = {"": False, base_frame: False, tool_frame: True}
        self._warn = warn
        self._subscription = poller.subscribe(
            OperatorCommand, "operator_command", self._take, qos.OPERATOR
        )

    @property
    def present(self) -> bool:
        """Somebody could be heard."""
        return bool(self._subscription.get_publisher_count())

    def forget(self) -> None:
        """As if nobody had been heard yet (the newest identity is kept)."""
        self.heard = False

    def silent_for(self) -> float:
        """Seconds since the newest command."""
        return time.monotonic() - self.arrival

    def _take(self, message: OperatorCommand) -> None:
        known = self.newest
        if message.session == known.session and message.seq <= known.seq:
            self._warn(f"operator_command {message.seq} after {known.seq}: ignored")
            return
        if message.header.frame_id not in self._frames:
            frames = ", ".join(sorted(filter(None, self._frames)))
            self._warn(
                f"operator_command in frame '{message.header.frame_id[:40]}': ignored, "
                f"known are {frames}"
            )
            return
        inputs = {}
        for arm in message.arms:
            twist = np.array(arm.twist, dtype=np.float64)
            if not np.isfinite(twist).all():
                self._warn("operator_command with a twist that is not finite: ignored")
                return
            gripper = max(-1, min(1, int(arm.gripper)))
            inputs[arm.arm] = ArmInput(bool(arm.engaged), np.clip(twist, -1.0, 1.0), gripper)
        self.newest = OperatorView(
            message.session,
            message.seq,
            to_ns(message.observation_stamp),
            self._frames[message.header.frame_id],
            inputs,
        )
        self.arrival = time.monotonic()
        self.heard = True
        self.lost = message.source == _LOST


class ArmPort:
    """One arm's bridge."""

    def __init__(
        self, node: Node, poller: Poller, poses: PoseReader, arm: str, session: str, frame: str
    ) -> None:
        self.arm = arm
        self._poses = poses
        self.state = Newest()
        prefix = f"{arm}/" if arm else ""
        bridge = f"{prefix}robot_bridge"
        poller.subscribe(RobotState, f"{prefix}robot_state", self.state.put, qos.STATE)
        poller.subscribe(CommandResult, f"{prefix}command_result", self._on_result, qos.RESULT)
        self._publisher = node.create_publisher(ArmCommand, f"{prefix}arm_command", qos.COMMAND)
        self.acquire = poller.client(AcquireLease, f"{bridge}/acquire")
        self.release = poller.client(ReleaseLease, f"{bridge}/release")
        self.set_compliance = poller.client(SetCompliance, f"{bridge}/set_compliance")
        self.reset_episode = poller.action(ResetEpisode, f"{bridge}/reset_episode")
        self.recover = poller.action(Recover, f"{bridge}/recover")
        self._session = session
        self._message = ArmCommand(owner=session)
        self._message.header.frame_id = frame
        self._seq = 0
        self._result: CommandResult | None = None

    def send(self, plan: ArmPlan, stamp: int, step_id: str, operator: OperatorView) -> None:
        """Publish one command."""
        self._seq += 1
        message = self._message
        message.header.stamp = from_ns(stamp)
        message.seq = self._seq
        message.step_id = step_id
        message.operator_session = operator.session
        message.operator_seq = operator.seq
        message.gripper = plan.gripper
        if plan.target is None:
            message.control_mode = ArmCommand.MODE_HOLD
        else:
            message.control_mode = ArmCommand.MODE_IMPEDANCE
            fill_pose(message.pose, plan.target.position, plan.target.xyzw)
        self._publisher.publish(message)

    @property
    def answered(self) -> bool:
        """The newest command has its answer."""
        return self._result is not None and self._result.seq == self._seq

    def answer(self) -> Answer | None:
        """Answer to the newest command; None before it came or if it makes no sense."""
        if not self.answered or self._result is None:
            return None
        result = self._result
        try:
            applied = self._poses.read(result.applied_pose)
            status = Status(result.status)
        except ValueError:
            return None
        return Answer(status, applied, max(-1, min(1, int(result.gripper))), result.reason)

    def _on_result(self, message: CommandResult) -> None:
        if message.owner == self._session:
            self._result = message
