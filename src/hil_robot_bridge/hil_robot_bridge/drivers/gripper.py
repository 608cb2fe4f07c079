"""Franka gripper through the actions of franka_gripper's node."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from action_msgs.msg import GoalStatus
from franka_msgs.action import Grasp, Move
from rclpy.action import ActionClient
from rclpy.task import Future

from hil_common.lifecycle import HilNode


@dataclass(frozen=True)
class GripperConfig:
    """Names and numbers of the gripper.

    Attributes:
        name: name of the gripper's node.
        open_width: m.
        speed: m/s.
        force: of a grasp, N.
    """

    name: str = "franka_gripper"
    open_width: float = 0.08
    speed: float = 0.1
    force: float = 30.0


class FrankaGripper:
    """Opens with `move`, closes with `grasp`; never blocks.

    franka_gripper accepts every goal at once and runs it on a thread of its own, with no queue and
    no preemption. So one goal runs at a time, and of the commands that come meanwhile the newest
    follows. A grasp counts as done whatever width it ends at: the tolerance is the whole stroke.
    """

    def __init__(
        self, node: HilNode, config: GripperConfig, on_failure: Callable[[str], None]
    ) -> None:
        self._config = config
        self._on_failure = on_failure
        self._guard = node.guard
        self._move = ActionClient(node, Move, f"{config.name}/move")
        self._grasp = ActionClient(node, Grasp, f"{config.name}/grasp")
        self._running = 0
        self._next = 0

    def command(self, command: int) -> None:
        """Begin to close (-1) or open (1)."""
        if self._running and self._client(self._running).server_is_ready():
            self._next = command if command != self._running else 0
            return
        self._send(command)

    def close(self) -> None:
        """Close the clients."""
        self._move.destroy()
        self._grasp.destroy()

    def _client(self, command: int) -> ActionClient:
        return self._move if command > 0 else self._grasp

    def _send(self, command: int) -> None:
        client = self._client(command)
        if not client.server_is_ready():
            self._running = self._next = 0
            self._on_failure(f"gripper {self._config.name} is not there")
            return
        self._running, self._next = command, 0
        future = client.send_goal_async(self._goal(command))
        future.add_done_callback(self._guard(functools.partial(self._accepted, command)))

    def _goal(self, command: int) -> Any:
        config = self._config
        if command > 0:
            return Move.Goal(width=config.open_width, speed=config.speed)
        goal = Grasp.Goal(width=0.0, speed=config.speed, force=config.force)
        goal.epsilon.inner = goal.epsilon.outer = config.open_width + 0.01
        return goal

    def _accepted(self, command: int, future: Future) -> None:
        handle = future.result()
        if not handle.accepted:
            self._finished(command, "gripper rejected the command")
            return
        result = handle.get_result_async()
        result.add_done_callback(self._guard(functools.partial(self._answered, command)))

    def _answered(self, command: int, future: Future) -> None:
        answer = future.result()
        good = answer.status == GoalStatus.STATUS_SUCCEEDED and answer.result.success
        verb = "open" if command > 0 else "close"
        error = answer.result.error or "no reason given"
        self._finished(command, "" if good else f"gripper did not {verb}: {error}")

    def _finished(self, command: int, failure: str) -> None:
        following, self._running, self._next = self._next, 0, 0
        if failure:
            self._on_failure(failure)
        if following:
            self._send(following)
