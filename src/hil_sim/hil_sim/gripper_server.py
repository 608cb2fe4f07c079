"""Node `franka_gripper`: the hand's actions, with franka_ros2's quirks, in simulated time.

Every goal is accepted and moves the hand at once; there is no queue. A goal ends when the motion
that it began ends, or without success when a newer one takes its place. `gripper_action` counts
its command per finger, but reports the width.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from control_msgs.action import GripperCommand
from franka_msgs.action import Grasp, Homing, Move
from rclpy.action import ActionServer
from rclpy.action.server import ServerGoalHandle
from rclpy.node import Node
from std_srvs.srv import Trigger

from hil_sim.fr3 import GRIPPER_WIDTH
from hil_sim.world import World

DEFAULT_SPEED = 0.1  # m/s
DEFAULT_EPSILON = (0.005, 0.005)  # m, inner and outer
REACHED = 1e-3  # m


class _Motion:
    """A goal under way: how it ends, and how its feedback and result look."""

    def __init__(self, goal: ServerGoalHandle, succeeded: Callable[[], bool], kind: Any) -> None:
        self.goal, self.succeeded, self.kind = goal, succeeded, kind


class GripperNode(Node):
    """Serves homing, move, grasp, gripper_action and stop; `update` lets motions end."""

    def __init__(self, world: World, lock: threading.RLock, **options: Any) -> None:
        super().__init__("franka_gripper", **options)
        self._world, self._lock = world, lock
        self._motion: _Motion | None = None
        self._servers = [
            self._serve(Homing, "homing", self._homing),
            self._serve(Move, "move", self._move),
            self._serve(Grasp, "grasp", self._grasp),
            self._serve(GripperCommand, "gripper_action", self._command),
        ]
        self.create_service(Trigger, "~/stop", self._stop)

    def update(self) -> None:
        """End the motion under way if the hand has come to rest. Call it as time moves."""
        with self._lock:
            motion = self._motion
            if motion is None:
                return
            if self._world.gripper.moving:
                motion.goal.publish_feedback(self._feedback(motion.kind))
                return
            self._motion = None
            self._end(motion, motion.succeeded(), "not reached: blocked, or nothing grasped")

    def destroy_node(self) -> None:
        """Destroy the actions first."""
        for server in self._servers:
            server.destroy()
        super().destroy_node()

    # -- goals: each begins a motion and says how to tell success ------------------------------

    def _homing(self, _: Homing.Goal) -> Callable[[], bool]:
        self._world.gripper.move(GRIPPER_WIDTH, DEFAULT_SPEED)
        return lambda: True

    def _move(self, goal: Move.Goal) -> Callable[[], bool]:
        gripper = self._world.gripper
        gripper.move(goal.width, goal.speed)
        return lambda: abs(gripper.width - goal.width) < REACHED

    def _grasp(self, goal: Grasp.Goal) -> Callable[[], bool]:
        return self._close_on(goal.width, goal.speed, goal.epsilon.inner, goal.epsilon.outer)

    def _command(self, goal: GripperCommand.Goal) -> Callable[[], bool]:
        gripper = self._world.gripper
        width = 2.0 * goal.command.position
        if width < gripper.width:
            return self._close_on(width, DEFAULT_SPEED, *DEFAULT_EPSILON)
        gripper.move(width, DEFAULT_SPEED)
        return lambda: abs(gripper.width - width) < REACHED

    def _close_on(
        self, width: float, speed: float, inner: float, outer: float
    ) -> Callable[[], bool]:
        """Close until something is between the fingers, or nothing is left to close."""
        if not 0.0 <= width <= GRIPPER_WIDTH:
            raise ValueError(f"width {width} m is outside [0, {GRIPPER_WIDTH}]")
        gripper = self._world.gripper
        gripper.move(0.0, speed)
        return lambda: width - inner <= gripper.width <= width + outer

    # -- inside ----------------------------------------------------------------------------------

    def _serve(
        self, kind: Any, name: str, begin: Callable[[Any], Callable[[], bool]]
    ) -> ActionServer:
        def accepted(goal: ServerGoalHandle) -> None:
            with self._lock:
                if self._motion is not None:
                    superseded, self._motion = self._motion, None
                    self._end(superseded, False, "command aborted by a newer one")
                try:
                    succeeded = begin(goal.request)
                except ValueError as error:
                    self._end(_Motion(goal, lambda: False, kind), False, str(error))
                    return
                self._motion = _Motion(goal, succeeded, kind)
            self.update()

        def unused(goal: ServerGoalHandle) -> Any:
            raise RuntimeError(f"goal of {name} executed without a result: {goal}")

        return ActionServer(self, kind, f"~/{name}", unused, handle_accepted_callback=accepted)

    def _end(self, motion: _Motion, success: bool, reason: str) -> None:
        width = self._world.gripper.width

        def finish(goal: ServerGoalHandle) -> Any:
            result = motion.kind.Result()
            if motion.kind is GripperCommand:
                result.position, result.reached_goal = width, success
            else:
                result.success, result.error = success, "" if success else reason
            if success:
                goal.succeed()
            else:
                goal.abort()
            return result

        motion.goal.execute(finish)

    def _feedback(self, kind: Any) -> Any:
        feedback = kind.Feedback()
        width = self._world.gripper.width
        if kind is GripperCommand:
            feedback.position = width
        else:
            feedback.current_width = width
        return feedback

    def _stop(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        with self._lock:
            self._world.gripper.stop()
        self.update()
        response.success = True
        return response
