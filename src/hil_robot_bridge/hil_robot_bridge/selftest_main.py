"""`hil robot selftest`: measures the arm with small motions, and stops it if something is off."""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import rclpy
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_srvs.srv import SetBool

import hil_tasks
from hil_common import qos
from hil_interfaces.action import MoveTo
from hil_interfaces.msg import RobotState
from hil_interfaces.srv import AcquireLease, ReleaseLease
from hil_robot_bridge.selftest import AXES, Result, Sample, Tolerance, stiffness
from hil_tasks.spec import TaskSpec

SPEEDS = (0.01, 0.03)  # m/s
LENGTH = 0.03  # m to each side
SHORTEST = 0.015
_PATIENCE = 30.0  # s


class SelftestError(RuntimeError):
    """The test cannot be done; the text says why."""


class Selftest:
    """A client of robot_bridge.

    Args:
        node: its node.
        spec: task of the bridge.
        bridge: name of the bridge's node.
    """

    def __init__(self, node: Node, spec: TaskSpec, bridge: str = "robot_bridge") -> None:
        self._node, self._spec, self._bridge = node, spec, bridge
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(node)
        self._owner = f"selftest-{time.time_ns()}"
        self.states: list[RobotState] = []
        node.create_subscription(RobotState, "robot_state", self.states.append, qos.STATE)
        self._move = ActionClient(node, MoveTo, f"{bridge}/move_to")

    def run(self) -> Result:
        """Measure all axes.

        Raises:
            SelftestError: the arm cannot be moved now.
        """
        self._until(lambda: self.states, "robot_state: is the bridge running?")
        self._until(lambda: self.states[-1].mode == RobotState.MODE_HOLD, self._why)
        request = AcquireLease.Request(owner=self._owner, name="selftest")
        request.started = self._node.get_clock().now().to_msg()
        self._call(AcquireLease, "acquire", request)
        try:
            return self._measure()
        finally:
            self._call(ReleaseLease, "release", ReleaseLease.Request(owner=self._owner))

    def stop(self) -> None:
        """Latch the software stop: nothing moves until a person releases it."""
        self._call(SetBool, "set_stop", SetBool.Request(data=True))

    def close(self) -> None:
        """End."""
        self._move.destroy()
        self._executor.shutdown()

    def _measure(self) -> Result:
        state = self.states[-1]
        compliance = self._spec.compliance[state.compliance]
        start, axes, rates = copy.deepcopy(state.pose), [], []
        for axis, name in enumerate(AXES):
            low, high = self._room(start, axis)
            motions: list[list[Sample]] = []
            self._go(_placed(start, name, high), SPEEDS[-1])
            for speed in SPEEDS:
                for place in (low, high):
                    motions.append(self._go(_placed(start, name, place), speed))
                    rates += [sample.success_rate for sample in motions[-1]]
            try:
                axes.append(stiffness(motions, axis, compliance))
            except ValueError as error:
                raise SelftestError(f"axis {name}: {error}") from error
        self._go(start, SPEEDS[-1])
        return Result(tuple(axes), sum(rates) / len(rates))

    def _room(self, start: Any, axis: int) -> tuple[float, float]:
        """Where to move along an axis: to both sides in the plane, and only up from the start."""
        low, high = self._spec.workspace.low[axis], self._spec.workspace.high[axis]
        here = getattr(start.position, AXES[axis])
        if AXES[axis] == "z":
            low = max(low, here)
        half = min(LENGTH, 0.5 * (high - low))
        if half < SHORTEST:
            raise SelftestError(
                f"no room along {AXES[axis]} in the box of the task: move the arm to its middle"
            )
        centre = min(max(here, low + half), high - half)
        return centre - half, centre + half

    def _go(self, pose: Any, speed: float) -> list[Sample]:
        """Move to a pose; returns what was measured on the way."""
        first = len(self.states)
        goal = MoveTo.Goal(owner=self._owner, speed=speed)
        goal.goal.header.frame_id = self._spec.frame_id
        goal.goal.pose = pose
        if not self._move.wait_for_server(_PATIENCE):
            raise SelftestError("the bridge offers no move_to")
        handle = self._result(self._move.send_goal_async(goal))
        if not handle.accepted:
            raise SelftestError("move_to was rejected")
        answer = self._result(handle.get_result_async()).result
        if not answer.ok:
            raise SelftestError(f"move_to: {answer.reason}")
        return [_sample(state) for state in self.states[first:]]

    def _call(self, kind: Any, name: str, request: Any) -> Any:
        client = self._node.create_client(kind, f"{self._bridge}/{name}")
        try:
            self._until(client.service_is_ready, f"service {name} of the bridge")
            answer = self._result(client.call_async(request))
        finally:
            self._node.destroy_client(client)
        if not (answer.success if kind is SetBool else answer.ok):
            raise SelftestError(answer.message if kind is SetBool else answer.reason)
        return answer

    def _result(self, future: Any) -> Any:
        self._until(future.done, "an answer of the bridge")
        return future.result()

    def _until(self, done: Callable[[], Any], what: str | Callable[[], str]) -> None:
        end = time.monotonic() + _PATIENCE
        while not done():
            if time.monotonic() > end:
                text = what if isinstance(what, str) else what()
                raise SelftestError(f"waited {_PATIENCE:g} s for {text}")
            self._executor.spin_once(timeout_sec=0.05)

    def _why(self) -> str:
        return f"the arm: {self.states[-1].mode_text or 'it moves'}"


def _placed(pose: Any, axis: str, value: float) -> Any:
    moved = copy.deepcopy(pose)
    setattr(moved.position, axis, value)
    return moved


def _sample(state: RobotState) -> Sample:
    stamp, target, position = state.header.stamp, state.target.position, state.pose.position
    return Sample(
        stamp.sec + stamp.nanosec * 1e-9,
        (target.x, target.y, target.z),
        (position.x, position.y, position.z),
        state.control_command_success_rate,
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="hil robot selftest",
        description="Move the arm by 3 cm to each side (hand on the enabling device) and compare "
        "its stiffness with what was set. If something is off, the software stop is latched and "
        "the exit code is 1.",
    )
    parser.add_argument("--task", default="peg_insert", help="task of the running bridge")
    parser.add_argument("--task-file", default="", help="its file with overrides")
    parser.add_argument("--stiffness", type=float, default=Tolerance.stiffness, metavar="SHARE")
    parser.add_argument("--success-rate", type=float, default=Tolerance.success_rate)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    task = (
        hil_tasks.load_file(options.task_file)
        if options.task_file
        else hil_tasks.load(options.task)
    )
    rclpy.init(args=[])
    node = Node("selftest")
    test = Selftest(node, task.spec)
    tolerance = Tolerance(options.stiffness, options.success_rate)
    try:
        result = test.run()
        print(result.table())
        problems = result.problems(tolerance)
        if problems:
            test.stop()
            print("\n".join([*problems, "software stop latched: do not train with this"]))
        return 1 if problems else 0
    except SelftestError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        test.close()
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main())
