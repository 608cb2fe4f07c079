"""The controller's `target_pose`: polled where it is needed, not served by the executor."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped
from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node

from hil_common import qos
from hil_common.conversions import pose_values, to_ns
from hil_tasks.geometry import Pose

_PAUSE = 0.0002  # s between looks while waiting


class Polled(CallbackGroup):
    """Keeps entities out of every executor: they are polled by hand."""

    def can_execute(self, entity: Any) -> bool:
        """Never."""
        return False

    def beginning_execution(self, entity: Any) -> bool:
        """Never."""
        return False

    def ending_execution(self, entity: Any) -> None:
        """Nothing to note."""


class TargetReader:
    """Newest valid target of a topic.

    As crisp_controllers do, it ignores the topic while it has more than one publisher, and does
    not look at the frame. Poses that no controller could follow are dropped, with the reason.

    Attributes:
        stamp: ns, of the newest target that was taken; 0: none yet.
        problem: why the newest message was dropped; "".
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._delivered: PoseStamped | None = None
        self._subscription = node.create_subscription(
            PoseStamped, "target_pose", self._deliver, qos.COMMAND, callback_group=Polled()
        )
        self._topic = self._subscription.topic_name
        self.stamp = 0
        self.problem = ""

    def poll(self) -> Pose | None:
        """Return the newest target that came since the last call, or None."""
        newest, self._delivered = self._delivered, None
        while (taken := self._take()) is not None:
            newest = taken
        return None if newest is None else self._checked(newest)

    def wait(self, stamp: int, seconds: float) -> Pose | None:
        """Wait until a target with this stamp (ns) or a newer one was taken.

        Returns:
            The newest target that came, or None if it had come before.

        Raises:
            TimeoutError: it did not come in time; says why.
        """
        end = time.monotonic() + seconds
        pose = self.poll()
        while self.stamp < stamp:
            if time.monotonic() > end:
                why = self.problem or "it was not published"
                raise TimeoutError(f"no target_pose with stamp {stamp} ns in {seconds} s: {why}")
            time.sleep(_PAUSE)
            pose = self.poll() or pose
        return pose

    def close(self) -> None:
        """Drop the subscription."""
        self._node.destroy_subscription(self._subscription)

    def _deliver(self, message: PoseStamped) -> None:
        """Keep it: for executors that know no callback groups."""
        self._delivered = message

    def _take(self) -> PoseStamped | None:
        handle = self._subscription.handle
        with handle:
            taken = handle.take_message(PoseStamped, False)
        return None if taken is None else taken[0]

    def _checked(self, message: PoseStamped) -> Pose | None:
        publishers = self._node.count_publishers(self._topic)
        if publishers > 1:
            self.problem = f"{publishers} publishers on {self._topic}: target ignored"
            return None
        values = pose_values(message.pose)
        norm = float(np.linalg.norm(values[3:]))
        if not np.isfinite(values).all() or norm < 1e-3:
            self.problem = "target is not a finite pose with a quaternion: ignored"
            return None
        self.problem = ""
        self.stamp = to_ns(message.header.stamp)
        return Pose.from_xyzw(values[:3], values[3:])
