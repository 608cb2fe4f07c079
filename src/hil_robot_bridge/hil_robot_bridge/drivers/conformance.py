"""What every driver has to show against a robot or a simulator of it: a suite for pytest.

A driver gets it by a subclass of `DriverConformance` in its tests with a fixture `rig` that yields
a `Rig`. Robot and driver run in real time; waits end with what is waited for, and what is measured
is measured in the robot's own time stamps, so a slow machine changes nothing but the duration.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from hil_robot_bridge.drivers.base import Driver, DriverError, Health, RobotMode
from hil_robot_bridge.fibers import Fiber, TimedOut, Timeouts
from hil_robot_bridge.gate import Mode
from hil_robot_bridge.poses import RigidPose, angle_between, distance
from hil_robot_bridge.state import ArmState
from hil_tasks.spec import ComplianceSpec, TaskSpec

T = TypeVar("T")

LIMIT = 60.0
"""Seconds that a busy machine may take for what takes a second."""
_WATCH = 0.1  # s between two looks at who is there
_NEAR = 0.004  # m; friction leaves that much where the springs are soft


class Rig:
    """A driver with its robot, and everything around the driver on the test's thread.

    Args:
        driver: not yet connected.
        timeouts: of the driver.
        spec: of the task whose compliance and start are used; the arm stands near the start.

    Attributes:
        states: all states that came.
        gripper_failures: texts.
        errors: names of robot errors that `inject` can bring about.
        by_hand: what a person can do at the arm, by `inject`, and the mode that follows.
    """

    errors: Sequence[str] = ()
    by_hand: dict[str, RobotMode] = {}

    def __init__(self, driver: Driver, timeouts: Timeouts, spec: TaskSpec) -> None:
        self.driver = driver
        self.spec = spec
        self.states: list[ArmState] = []
        self.gripper_failures: list[str] = []
        self._timeouts = timeouts
        self._watched = -math.inf
        driver.connect(self.states.append, self.gripper_failures.append)

    # -- what a rig provides ---------------------------------------------------------------------

    def spin(self) -> None:
        """Let a few milliseconds pass, with everything that the driver waits for."""
        raise NotImplementedError

    def inject(self, what: str) -> None:
        """Bring about a robot error by name, something of `by_hand`, or "released"."""
        raise NotImplementedError

    def cut(self) -> None:
        """The robot is gone."""
        raise NotImplementedError

    def restore(self) -> None:
        """The robot is there again; whatever it forgot it has forgotten."""
        raise NotImplementedError

    def stiffness(self) -> Sequence[float]:
        """(6,), what the controller itself has, N/m and Nm/rad."""
        raise NotImplementedError

    # -- what tests do with it -------------------------------------------------------------------

    @property
    def state(self) -> ArmState:
        """Newest state."""
        return self.states[-1]

    @property
    def health(self) -> Health:
        """What the driver says of the robot."""
        return self.driver.health()

    def turn(self) -> None:
        """One turn of the bridge's loop."""
        self.spin()
        self._timeouts.check()
        self.driver.read()
        if time.monotonic() - self._watched > _WATCH:
            self._watched = time.monotonic()
            self.driver.watch()

    def until(self, what: str, found: Callable[[], T]) -> T:
        """Go on until something is true."""
        end = time.monotonic() + LIMIT
        while True:
            self.turn()
            if value := found():
                return value
            assert time.monotonic() < end, f"{what}: not in {LIMIT} s ({self.health})"

    def run(self, coroutine: Coroutine[Any, None, T]) -> T:
        """Result of a coroutine of the driver.

        Raises:
            DriverError, TimedOut: as the coroutine does.
        """
        ended: list[tuple[Any, Exception | None]] = []
        Fiber(coroutine, lambda value, error: ended.append((value, error)))
        self.until("operation", lambda: ended)
        value, error = ended[0]
        if error is not None:
            raise error
        result: T = value
        return result

    async def next_period(self) -> None:
        """Let a control period pass (for operations that last)."""
        await self._timeouts.sleep(0.01)

    def let_pass(self, seconds: float) -> list[ArmState]:
        """States of that much of the robot's time."""
        self.until("state", lambda: self.states)
        first, end = len(self.states), self.state.stamp_ns + round(seconds * 1e9)
        self.until("time", lambda: self.state.stamp_ns >= end)
        return self.states[first:]

    def freeze(self, seconds: float) -> None:
        """Stand still as a bridge that the scheduler has forgotten: nothing is read or sent."""
        time.sleep(seconds)

    def ready(self, compliance: ComplianceSpec | None = None) -> ArmState:
        """Wait until the arm can follow, with gains set."""
        self.until("state", lambda: self.states)
        self.until("health", lambda: not self.health.text)
        self.run(self.driver.set_compliance(compliance or self.spec.compliance["reset"]))
        self.let_pass(0.1)
        return self.state

    def send(self, pose: RigidPose) -> None:
        """Command a pose."""
        self.driver.command_pose(pose, self.state.stamp_ns)

    def go(self, goal: RigidPose, step: float = 0.004, rate: float = 20.0) -> list[ArmState]:
        """Lead the arm to a goal in small steps; returns all states until it is there."""
        first = len(self.states)
        while True:
            left = distance(self.state.pose.position, goal.position)
            share = 1.0 if left <= step else step / left
            ahead = min(1.0, 2.0 * share)
            here = self.state.pose.position
            point = tuple(a + ahead * (b - a) for a, b in zip(here, goal.position, strict=True))
            self.send(RigidPose(point, goal.quaternion))  # type: ignore[arg-type]
            if left < _NEAR:
                break
            self.let_pass(1.0 / rate)
        self.send(goal)
        self.let_pass(0.5)
        return self.states[first:]

    def until_not_following(self) -> Health:
        """Wait until the driver says that the robot does not follow."""
        self.until("fault", lambda: self.health.text)
        return self.health


class DriverConformance:
    """The suite. A subclass brings the fixture `rig`."""

    def test_states_are_complete(self, rig: Rig) -> None:
        """Stamps rise, nothing is missing, the measured pose is a pose."""
        rig.ready()
        states = rig.let_pass(0.3)
        assert not any(state.fault() for state in states)
        stamps = [state.stamp_ns for state in states]
        assert stamps == sorted(set(stamps))
        assert len(rig.state.q) == len(rig.state.dq) == 7
        assert 0.5 < rig.health.success_rate <= 1.0

    def test_it_tracks_a_pose(self, rig: Rig) -> None:
        """The arm comes to the commanded pose and stays there."""
        start = rig.ready().pose
        x, y, z = start.position
        goal = RigidPose((x, y + 0.03, z + 0.01), start.quaternion)
        rig.go(goal)
        assert distance(rig.state.pose.position, goal.position) < _NEAR
        assert angle_between(rig.state.pose.quaternion, goal.quaternion) < 0.05

    def test_it_holds_on_silence(self, rig: Rig) -> None:
        """Without commands, and with the bridge stopped, the arm stands."""
        start = rig.ready().pose
        x, y, z = start.position
        rig.go(RigidPose((x + 0.01, y, z), start.quaternion))
        before = rig.state.pose
        states = rig.let_pass(1.0)
        rig.freeze(0.4)
        states += rig.let_pass(0.5)
        assert max(distance(s.pose.position, before.position) for s in states) < 0.003

    def test_the_clip_bounds_speed_and_force(self, rig: Rig) -> None:
        """A target far away is approached no faster than the clipped springs can pull."""
        spec = rig.spec.compliance["policy"]
        start = rig.ready(spec).pose
        x, y, z = start.position
        rig.send(RigidPose((x, y + 0.1, z), start.quaternion))
        states = rig.until(
            "way", lambda: rig.states if rig.state.pose.position[1] > y + 0.05 else []
        )
        rig.send(rig.state.pose)
        pull = spec.translational_stiffness[1] * spec.error_clip[1]
        fastest = max(abs(state.twist[1]) for state in states)
        assert fastest < 1.5 * pull / spec.translational_damping[1]

    def test_gains_are_set_and_read_back(self, rig: Rig) -> None:
        """What was asked for is what the controller has."""
        rig.ready()
        soft = dataclasses.replace(
            rig.spec.compliance["policy"],
            translational_stiffness=(700.0, 800.0, 900.0),
            rotational_stiffness=(30.0, 31.0, 32.0),
        )
        rig.run(rig.driver.set_compliance(soft))
        assert list(rig.stiffness()) == pytest.approx([700, 800, 900, 30, 31, 32])

    def test_a_change_of_gains_does_not_jump(self, rig: Rig) -> None:
        """Presets change while the arm holds, without a jerk of more than 2 mm."""
        start = rig.ready(rig.spec.compliance["policy"]).pose
        before = rig.state.pose.position
        first = len(rig.states)
        for preset in ("reset", "policy", "reset"):
            rig.run(rig.driver.set_compliance(rig.spec.compliance[preset]))
            rig.let_pass(0.3)
        moved = max(distance(s.pose.position, before) for s in rig.states[first:])
        assert moved < 0.002, f"{moved * 1e3:.1f} mm from {start}"

    def test_impossible_gains_are_refused_by_name(self, rig: Rig) -> None:
        """The old gains stay in force."""
        rig.ready()
        before = list(rig.stiffness())
        wrong = dataclasses.replace(
            rig.spec.compliance["policy"], translational_stiffness=(1e6, 2000.0, 2000.0)
        )
        with pytest.raises(DriverError, match=r"(?i)stiffness|k_pos_x"):
            rig.run(rig.driver.set_compliance(wrong))
        assert list(rig.stiffness()) == pytest.approx(before)

    def test_modes_are_named(self, rig: Rig) -> None:
        """Pose targets and holding go with every driver."""
        assert {Mode.IMPEDANCE, Mode.HOLD} <= rig.driver.modes
        assert rig.driver.name

    def test_the_gripper_does_not_block(self, rig: Rig) -> None:
        """A command begins a motion, states go on meanwhile, the newest command counts."""
        rig.ready()
        rig.driver.command_gripper(1)
        rig.until("open", lambda: rig.state.gripper_width > 0.06)
        opened = rig.state
        rig.driver.command_gripper(-1)
        count = len(rig.states)
        rig.until("close", lambda: rig.state.gripper_width < opened.gripper_width - 0.02)
        assert len(rig.states) > count
        for command in (1, -1, 1):
            rig.driver.command_gripper(command)
        rig.until("open again", lambda: rig.state.gripper_width > 0.06)
        rig.let_pass(1.0)
        assert rig.state.gripper_width > 0.06
        assert rig.gripper_failures == []

    def test_joint_reset(self, rig: Rig) -> None:
        """The arm goes to joint positions and follows poses again from there."""
        q = list(rig.ready().q)
        q[0] += 0.06
        q[6] -= 0.1
        rig.run(rig.driver.move_joints(q, rig.next_period))
        rig.until("health", lambda: not rig.health.text)
        assert rig.let_pass(0.3)[-1].q == pytest.approx(q, abs=0.03)
        pose = rig.ready().pose
        x, y, z = pose.position
        rig.go(RigidPose((x, y - 0.01, z), pose.quaternion))

    def test_recovery_from_every_error(self, rig: Rig) -> None:
        """The error is named, nothing moves, and recovery holds the measured pose."""
        rig.ready()
        assert rig.errors
        for error in rig.errors:
            rig.inject(error)
            health = rig.until_not_following()
            rig.until("name of the error", lambda name=error: name in rig.health.errors)  # type: ignore[misc]
            health = rig.health
            assert health.mode == RobotMode.REFLEX
            assert "recover" in health.text
            rig.let_pass(0.2)
            before = rig.state.pose
            rig.send(RigidPose((0.3, 0.3, 0.3), before.quaternion))  # what is sent now is void
            stages: list[str] = []
            rig.run(rig.driver.recover(stages.append))
            rig.until("health", lambda: not rig.health.text)
            assert stages
            first = len(rig.states)
            rig.ready()
            away = max(distance(s.pose.position, before.position) for s in rig.states[first:])
            assert away < 0.005
            x, y, z = rig.state.pose.position
            rig.go(RigidPose((x + 0.01, y, z), rig.state.pose.quaternion))

    def test_what_a_person_does_is_a_state_with_a_text(self, rig: Rig) -> None:
        """User stop and guiding say what to do; recovery waits for the person; then it goes on."""
        rig.ready()
        for what, mode in rig.by_hand.items():
            rig.inject(what)
            health = rig.until_not_following()
            rig.until("mode", lambda wanted=mode: rig.health.mode == wanted)  # type: ignore[misc]
            health = rig.health
            assert "recover" in health.text
            with pytest.raises((DriverError, TimedOut)) as refused:
                rig.run(rig.driver.recover(lambda _: None))
            assert str(refused.value)
            rig.inject("released")
            rig.until("idle", lambda wanted=mode: rig.health.mode != wanted)  # type: ignore[misc]
            assert rig.health.text  # nothing goes on by itself
            rig.run(rig.driver.recover(lambda _: None))
            rig.ready()

    def test_it_reconnects(self, rig: Rig) -> None:
        """A robot that was gone is found again, without a restart of anything."""
        rig.ready()
        rig.cut()
        rig.until("loss", lambda: rig.health.mode == RobotMode.DISCONNECTED)
        assert rig.health.text
        with pytest.raises((DriverError, TimedOut)) as refused:
            rig.run(rig.driver.set_compliance(rig.spec.compliance["policy"]))
        assert str(refused.value)
        rig.restore()
        rig.until("return", lambda: rig.health.mode != RobotMode.DISCONNECTED)
        if rig.health.text:
            rig.run(rig.driver.recover(lambda _: None))
        before = rig.ready().pose
        x, y, z = before.position
        rig.go(RigidPose((x, y + 0.01, z), before.quaternion))
