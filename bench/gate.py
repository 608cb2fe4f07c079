"""Fuzzed commands through the gate and each driver against its simulator.

Counts measured poses that are further outside the workspace box than the error clip: the gate
bounds the target, the springs bound how far the arm can be from it. Commands are random,
malformed, stale, of others, or push persistently at the walls of the box.

- world: hil_sim's world in lockstep, without ROS.
- ros2_control: that driver against the node hil_sim, in real time.
- fci: that driver against franka-sim (left out, with a word, where it is not installed).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import math
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from _figures import Report

import hil_tasks
from hil_robot_bridge.drivers.base import Driver, DriverError
from hil_robot_bridge.fibers import Fiber, TimedOut, Timeouts
from hil_robot_bridge.gate import Command, Gate, GateConfig, Mode
from hil_robot_bridge.joints import FR3_LOWER, FR3_UPPER, JointGuard
from hil_robot_bridge.latch import StopLatch
from hil_robot_bridge.lease import Lease
from hil_robot_bridge.limits import Limits, box_excess
from hil_robot_bridge.poses import RigidPose, quaternion, vector3
from hil_robot_bridge.state import ArmState
from hil_sim.world import World
from hil_tasks.task import Task

OWNER = "fuzz"
BURST = 100  # commands between two states
TASK = "peg_insert"


class Arm(Protocol):
    """Something that follows targets."""

    def send(self, pose: RigidPose) -> None:
        """Set the target."""

    def step(self) -> list[ArmState]:
        """Let time go on; returns the states of it, at least one."""

    def now(self) -> float:
        """Time of the gate, s."""


class Fuzzer:
    """Makes commands, most of which the gate should not carry out as they are."""

    def __init__(self, limits: Limits, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._limits = limits
        self._seq = 0
        self._push = np.zeros(3)

    def command(self, gate: Gate) -> Command:
        """Next command."""
        rng = self._rng
        self._seq += 1
        if rng.random() < 0.01:
            self._push = rng.normal(size=3) * rng.choice([0.0, 0.01, 0.3])
        assert gate.target is not None and gate.newest_ns is not None
        kind = int(rng.integers(12))
        position, q = np.array(gate.target.position), np.array(gate.target.quaternion)
        if kind < 6:
            position = position + self._push + rng.normal(size=3) * 0.01
            q = q + rng.normal(size=4) * 0.03
        elif kind == 6:
            position = position + rng.normal(size=3) * 10.0 ** rng.uniform(-3, 6)
        elif kind == 7:
            position[rng.integers(3)] = rng.choice([math.nan, math.inf, -math.inf, 1e300])
        elif kind == 8:
            q = rng.normal(size=4) * rng.choice([0.0, 1e-9, 1.0, 1e9])
        elif kind == 9:
            q = rng.normal(size=4)
        if kind != 8 and np.isfinite(q).all() and np.linalg.norm(q) > 0.0:
            q = q / np.linalg.norm(q)
        return self._wrapped(gate.newest_ns, position, q, kind)

    def _wrapped(self, newest: int, position: Any, q: Any, kind: int) -> Command:
        rng = self._rng
        stamp, owner, frame, seq = newest, OWNER, "base", self._seq
        if kind == 10:
            stamp += int(rng.choice([-(10**10), -(10**8), 1, 10**9]))
            owner = str(rng.choice([OWNER, "other", ""]))
        elif kind == 11:
            frame = str(rng.choice(["base", "fr3_hand_tcp", ""]))
            seq = int(rng.integers(0, self._seq + 1))
        where, turn = vector3(position), quaternion(q)
        mode = int(rng.choice([Mode.IMPEDANCE] * 18 + [Mode.HOLD, Mode.WRENCH, 9]))
        return Command(owner, seq, max(0, stamp), frame, where, turn, mode)


def fuzz(arm: Arm, task: Task, count: int, seed: int) -> tuple[int, float, int, int]:
    """Send commands through a gate to an arm.

    Returns:
        Measured poses further outside the box than the clip, the largest excess over the box (m),
        the number of measured poses, and the number of targets that were applied.
    """
    spec = task.spec
    limits = Limits.from_spec(spec)
    guard = JointGuard(FR3_LOWER, FR3_UPPER, 0.05)
    gate = Gate(
        GateConfig("base", limits, spec.period, "bench", joints=guard), Lease(), StopLatch()
    )
    gate.lease.acquire(OWNER, OWNER, 1)
    fuzzer = Fuzzer(limits, seed)
    clip = max(spec.compliance["policy"].error_clip[:3])
    outside, largest, seen, applied = 0, 0.0, 0, 0
    for state in arm.step():
        gate.observe(state, arm.now())
    gate.block("")
    sent = 0
    while sent < count:
        for _ in range(min(BURST, count - sent)):
            decision = gate.command(fuzzer.command(gate), arm.now())
            sent += 1
            if decision.applied and decision.pose is not None:
                applied += 1
                arm.send(decision.pose)
        for state in arm.step():
            gate.observe(state, arm.now())
            gate.tick(arm.now())
            excess = box_excess(limits, state.pose.position)
            largest, seen = max(largest, excess), seen + 1
            outside += excess > clip
    return outside, largest, seen, applied


# ------------------------------------------------------------------------------------------ arms


class WorldArm:
    """hil_sim's world, one control period per step."""

    def __init__(self, task: Task, seed: int) -> None:
        self._world = World(task, seed)

    def send(self, pose: RigidPose) -> None:
        """Set the target."""
        self._world.set_target(pose.pose)

    def step(self) -> list[ArmState]:
        """One control period."""
        world = self._world
        if world.braked:
            world.release()
        world.advance()
        reading = world.reading()
        state = ArmState(
            10**9 + world.time_ns,
            RigidPose.of(reading.pose),
            q=tuple(map(float, reading.q)),
            dq=tuple(map(float, reading.dq)),
        )
        return [state]

    def now(self) -> float:
        """Simulated time, s."""
        return self._world.time


class DriverArm:
    """A driver in real time, 50 steps per second.

    Args:
        make: the driver, given its timeouts.
        spin: lets some milliseconds pass for the driver.
        task: whose policy preset is used.
    """

    PERIOD = 0.02

    def __init__(
        self, make: Callable[[Timeouts], Driver], spin: Callable[[Driver], None], task: Task
    ) -> None:
        self._timeouts = Timeouts()
        self._driver, self._spin = make(self._timeouts), spin
        self._compliance = task.spec.compliance["policy"]
        self._states: list[ArmState] = []
        self._watched = 0.0
        self.recoveries = 0
        self._driver.connect(self._states.append, lambda _: None)
        self._until(lambda: self._states and not self._driver.health().text)
        self._run(self._driver.set_compliance(self._compliance))

    def send(self, pose: RigidPose) -> None:
        """Set the target."""
        self._driver.command_pose(pose, self._newest)

    def step(self) -> list[ArmState]:
        """Let a period pass; clear what error the fuzzing has provoked."""
        end = time.monotonic() + self.PERIOD
        self._until(lambda: time.monotonic() >= end and self._states)
        if self._driver.health().text and not self._driver.health().passing:
            self._run(self._driver.recover(lambda _: None))
            self._until(lambda: not self._driver.health().text)
            self._run(self._driver.set_compliance(self._compliance))
            self.recoveries += 1
        states, self._states[:] = list(self._states), []
        self._newest = states[-1].stamp_ns
        return states

    def now(self) -> float:
        """Steady clock, s."""
        return time.monotonic()

    def close(self) -> None:
        """Close the driver."""
        self._driver.close()

    def _until(self, done: Callable[[], Any]) -> None:
        limit = time.monotonic() + 60.0
        while not done():
            if time.monotonic() > limit:
                raise DriverError(f"the arm does not follow: {self._driver.health()}")
            self._spin(self._driver)
            self._timeouts.check()
            self._driver.read()
            if time.monotonic() - self._watched > 0.2:
                self._watched = time.monotonic()
                self._driver.watch()

    def _run(self, coroutine: Any) -> None:
        ended: list[Exception | None] = []
        Fiber(coroutine, lambda _, error: ended.append(error))
        self._until(lambda: ended)
        if ended[0] is not None:
            raise ended[0]


@contextmanager
def fci_arm(task: Task) -> Iterator[DriverArm]:
    """The driver fci against franka-sim."""
    from hil_robot_bridge.drivers.fci import Fci
    from hil_robot_bridge.drivers.fci_process import FciConfig
    from hil_sim.fci.simulated_robot import SimulatedRobot

    host = "127.0.0.52"
    robot = SimulatedRobot(task, host, priority=20)

    def spin(driver: Any) -> None:
        select.select([driver._end] if driver._end is not None else [], [], [], 0.005)
        robot.poll()

    # Contacts are part of the fuzzing; what is counted is where the arm is.
    config = FciConfig(
        host=host, gripper=False, realtime=False, priority=10, collision_force=(200.0,) * 6
    )
    config = dataclasses.replace(config, collision_torque=(80.0,) * 7)
    try:
        arm = DriverArm(lambda timeouts: Fci(config, timeouts), spin, task)
        yield arm
        arm.close()
    finally:
        robot.close()


@contextmanager
def ros2_control_arm(task: Task) -> Iterator[DriverArm]:
    """The driver ros2_control against the node hil_sim."""
    from rclpy.executors import SingleThreadedExecutor

    from hil_common.lifecycle import HilNode
    from hil_common.testing import Ros, _own_domain
    from hil_robot_bridge.drivers.ros2_control import Ros2Control, Ros2ControlConfig
    from hil_sim.sim_node import SimNode

    ros = Ros(_own_domain())
    ros.start(SimNode, task=task.spec.name, pace="realtime", cameras=("side",))
    node = HilNode("robot_bridge", context=ros.context)
    executor = SingleThreadedExecutor(context=ros.context)
    executor.add_node(node)
    config = Ros2ControlConfig(pairing=0.02, state_timeout=2.0, status_timeout=5.0, gripper=None)
    try:
        arm = DriverArm(
            lambda timeouts: Ros2Control(node, config, "base", False, timeouts),
            lambda _: executor.spin_once(timeout_sec=0.005),
            task,
        )
        yield arm
        arm.close()
    finally:
        executor.shutdown()
        node.destroy_node()
        ros.close()


def main() -> int:
    """Run; returns the exit code: 1 if a pose was outside."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    parser.add_argument("--seed", type=int, default=0, help="of the commands")
    parser.add_argument("--commands", type=int, default=100_000, help="through each arm")
    parser.add_argument("--arm", choices=("all", "world", "ros2_control", "fci"), default="all")
    options = parser.parse_args()
    report, task = Report(options.seed, options.json), hil_tasks.load(TASK)
    total = poses = 0

    def run(name: str, arm: Arm) -> None:
        nonlocal total, poses
        outside, largest, seen, applied = fuzz(arm, task, options.commands, options.seed)
        total, poses = total + outside, poses + seen
        report.add(f"gate.{name}.measured_outside_box", outside, "", seen)
        report.add(f"gate.{name}.largest_excess_mm", 1e3 * largest, "mm", seen)
        report.add(f"gate.{name}.applied", applied, "", options.commands)
        if isinstance(arm, DriverArm):
            report.add(f"gate.{name}.recoveries", arm.recoveries, "", options.commands)

    chosen = options.arm
    try:
        if chosen in ("all", "world"):
            run("world", WorldArm(task, options.seed))
        if chosen in ("all", "ros2_control"):
            with ros2_control_arm(task) as arm:
                run("ros2_control", arm)
        if chosen in ("all", "fci"):
            if importlib.util.find_spec("franky") is None:
                print("fci left out: pip install -r requirements-fci.txt", file=sys.stderr)
            else:
                with fci_arm(task) as arm:
                    run("fci", arm)
    except (DriverError, TimedOut, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    report.add("gate.measured_outside_box", total, "", poses)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
