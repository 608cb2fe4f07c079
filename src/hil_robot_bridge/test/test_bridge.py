"""Bridge with a driver and a clock of the test: no ROS."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import hil_tasks
from hil_robot_bridge.bridge import Bridge, MotionConfig, Outcome
from hil_robot_bridge.drivers.base import DriverError, Health, RobotMode
from hil_robot_bridge.fibers import Cancelled, Fiber, Promise
from hil_robot_bridge.gate import Code, Command, Gate, GateConfig, Mode, Status
from hil_robot_bridge.latch import StopLatch
from hil_robot_bridge.lease import Lease
from hil_robot_bridge.limits import Limits
from hil_robot_bridge.poses import RigidPose, distance, interpolate
from hil_robot_bridge.recovery import AutomaticRecovery, RecoveryConfig, Trail
from hil_robot_bridge.state import ArmState
from hil_tasks.spec import ComplianceSpec

SPEC = hil_tasks.load("peg_insert").spec
START = RigidPose.of(SPEC.reset.pose)
GOOD = Health(RobotMode.HOLD)
SILENT = Health(RobotMode.DISCONNECTED, "robot state is old", passing=True)
GONE = Health(RobotMode.DISCONNECTED, "nobody is there")


class FakeDriver:
    """A driver whose arm follows by a share of the way in every period."""

    name = "fake"
    modes = frozenset({Mode.IMPEDANCE, Mode.HOLD})

    def __init__(self) -> None:
        self.state = GOOD
        self.sent: list[tuple[int, RigidPose]] = []
        self.grips: list[int] = []
        self.presets: list[ComplianceSpec] = []
        self.problem = ""
        self.gate_keeper: Promise[None] | None = None
        self.recovered = 0
        self.joints: list[tuple[float, ...]] = []

    def connect(
        self, on_state: Callable[[ArmState], None], on_gripper_failure: Callable[[str], None]
    ) -> None:
        raise AssertionError

    def read(self) -> None:
        raise AssertionError

    def health(self) -> Health:
        return self.state

    def command_pose(self, pose: RigidPose, stamp_ns: int) -> None:
        self.sent.append((stamp_ns, pose))

    def command_gripper(self, command: int) -> None:
        self.grips.append(command)

    async def set_compliance(self, spec: ComplianceSpec) -> None:
        if self.gate_keeper is not None:
            await self.gate_keeper
        if self.problem:
            raise DriverError(self.problem)
        self.presets.append(spec)

    def watch(self) -> None:
        raise AssertionError

    async def move_joints(
        self, q: Sequence[float], next_period: Callable[[], Awaitable[None]]
    ) -> None:
        await next_period()
        if self.problem:
            raise DriverError(self.problem)
        self.joints.append(tuple(q))

    async def recover(self, stage: Callable[[str], None]) -> None:
        stage("one")
        if self.problem:
            raise DriverError(self.problem)
        self.recovered += 1
        self.state = GOOD

    def close(self) -> None:
        raise AssertionError


class World:
    """Bridge, arm and time; time goes on by `period`, or by the motions themselves."""

    def __init__(
        self, motion: MotionConfig | None = None, recovery: RecoveryConfig | None = None
    ) -> None:
        self.driver = FakeDriver()
        limits = Limits.from_spec(SPEC)
        config = GateConfig("base", limits, SPEC.period, "fake", gripper=True)
        self.gate = Gate(config, Lease(), StopLatch())
        self.period_s = SPEC.period
        self.wall = 0.0
        self.changes = 0
        self.by_hand = False
        self.waiting: Promise[None] | None = None
        self.bridge = Bridge(
            SPEC,
            self.gate,
            self.driver,
            self,
            lockstep=True,
            config=motion,
            recovery=recovery,
            on_change=self._changed,
            clock=lambda: self.wall,
        )
        self.stamp_ns = 1_000_000_000
        self.measured = START
        self.during: Callable[[], None] = lambda: None
        self.force: Callable[[RigidPose], float] = lambda _: 0.0
        self.bridge.activate()
        self.bridge.on_state(ArmState(self.stamp_ns, START))
        self.gate.lease.acquire("me", "me", 1)

    @property
    def period(self) -> float:
        return self.period_s

    def _changed(self) -> None:
        self.changes += 1

    async def next_period(self, target_ns: int) -> None:
        if self.by_hand:
            self.waiting = Promise()
            await self.waiting
        self.wall += self.period_s
        if target_ns:
            assert self.driver.sent[-1][0] == target_ns
            self.measured = interpolate(self.measured, self.driver.sent[-1][1], 0.8)
        self.stamp_ns += round(self.period_s * 1e9)
        self.during()
        self.show()

    def show(self) -> None:
        """The robot's state of now."""
        wrench = (0.0, 0.0, self.force(self.measured), 0.0, 0.0, 0.0)
        self.bridge.on_state(ArmState(self.stamp_ns, self.measured, wrench=wrench))

    def ready(self) -> None:
        assert self.run(self.bridge.ensure_compliance()) is None
        assert self.gate.blocked == ""
        self.driver.sent.clear()

    def run(self, coroutine: Any) -> Any:
        """Result of a coroutine that never has to wait for anybody."""
        end: list[Any] = []

        def finished(value: Any, error: Exception | None) -> None:
            if error is not None:
                raise error
            end.append(value)

        Fiber(coroutine, finished)
        assert end, "it still waits"
        return end[0]

    def reset(self, dx: float = 0.02) -> Any:
        x, y, z = START.position
        goal = RigidPose((x + dx, y, z), START.quaternion)
        return self.bridge.reset_episode("me", goal, 0.02, lambda _: None)

    def command(self, seq: int, dx: float = 0.0) -> Command:
        target = self.gate.target
        assert target is not None
        x, y, z = target.position
        return Command("me", seq, self.stamp_ns, "base", (x + dx, y, z), target.quaternion)


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_moves_before_the_gains_are_known(world: World) -> None:
    decision = world.bridge.on_command(world.command(1, 0.001))
    assert (decision.status, decision.code) == (Status.HELD, Code.BLOCKED)
    assert "compliance" in decision.reason
    assert world.driver.sent == []
    world.ready()
    assert world.driver.presets == [SPEC.compliance["policy"]]
    assert world.bridge.on_command(world.command(2, 0.001)).status == Status.ACCEPTED
    assert world.driver.sent[-1][0] == world.stamp_ns


def test_reset_takes_its_own_gains_and_gives_them_back(world: World) -> None:
    world.ready()
    assert world.run(world.reset()) == Outcome(True)
    assert world.driver.presets[1:] == [SPEC.compliance["reset"], SPEC.compliance["policy"]]
    assert world.bridge.preset == "policy"
    stamps = [stamp for stamp, _ in world.driver.sent]
    assert stamps == sorted(stamps)
    assert world.bridge.on_command(world.command(1, 0.001)).status == Status.ACCEPTED


def test_a_hold_is_not_taken_for_the_target_of_a_step(world: World) -> None:
    world.ready()
    assert world.bridge.set_stop(True).ok
    assert world.driver.sent[-1][0] < world.stamp_ns
    assert world.bridge.set_stop(False).ok
    world.bridge.on_command(world.command(1, 0.001))
    assert world.driver.sent[-1][0] == world.stamp_ns
    world.bridge.set_stop(True)
    assert world.driver.sent[-1][0] == world.stamp_ns


def test_a_motion_waits_for_a_robot_that_is_silent_for_a_moment(world: World) -> None:
    world.ready()
    count = [0]

    def silence() -> None:
        count[0] += 1
        world.driver.state = SILENT if 3 <= count[0] < 8 else GOOD

    world.during = silence
    assert world.run(world.reset()) == Outcome(True)
    assert world.bridge.preset == "policy"
    assert len(world.driver.presets) == 3


def test_a_motion_ends_when_the_robot_stays_silent(world: World) -> None:
    world.ready()

    def silence() -> None:
        world.driver.state = SILENT

    world.during = silence
    outcome = world.run(world.reset())
    assert not outcome.ok
    assert "robot state is old" in outcome.reason


def test_a_motion_ends_when_the_robot_is_gone(world: World) -> None:
    world.ready()

    def vanish() -> None:
        world.driver.state = GONE

    world.during = vanish
    outcome = world.run(world.reset())
    assert not outcome.ok
    assert "nobody is there" in outcome.reason
    assert world.gate.lease.busy_with == ""
    world.driver.state = GOOD
    world.bridge.refresh()
    assert world.bridge.needs_compliance


def test_a_cancelled_reset_does_not_keep_its_gains(world: World) -> None:
    world.ready()
    world.by_hand = True
    ended: list[Exception | None] = []
    fiber = Fiber(world.reset(), lambda _, error: ended.append(error))
    assert world.bridge.preset == "reset"
    assert world.bridge.mode == RobotMode.RESETTING
    fiber.cancel()
    assert isinstance(ended[0], Cancelled)
    assert world.bridge.preset == ""
    assert world.gate.target == world.gate.measured
    assert world.bridge.on_command(world.command(1, 0.001)).code == Code.BLOCKED
    world.ready()
    assert world.bridge.preset == "policy"
    assert world.bridge.on_command(world.command(2, 0.001)).status == Status.ACCEPTED


def test_a_reset_waits_until_other_gains_are_in(world: World) -> None:
    world.driver.gate_keeper = Promise()
    Fiber(world.bridge.ensure_compliance(), lambda *_: None)
    ended: list[Any] = []
    Fiber(world.reset(), lambda value, _: ended.append(value))
    assert ended == []
    keeper, world.driver.gate_keeper = world.driver.gate_keeper, None
    keeper.keep(None)
    assert ended == [Outcome(True)]


def test_recovery_never_resumes_by_itself(world: World) -> None:
    world.ready()
    world.bridge.on_command(world.command(1, 0.005))
    world.driver.state = Health(RobotMode.REFLEX, "reflex", ("joint_reflex",))
    world.bridge.refresh()
    assert world.bridge.mode == RobotMode.REFLEX
    assert world.bridge.errors == ("joint_reflex",)
    assert world.bridge.on_command(world.command(2, 0.005)).reason == "reflex"
    stages: list[str] = []
    world.driver.problem = "step one failed"
    assert world.run(world.bridge.recover(stages.append)) == Outcome(False, "step one failed")
    world.driver.problem = ""
    assert world.run(world.bridge.recover(stages.append)) == Outcome(True)
    assert stages == ["one", "one", "state", "compliance"]
    assert world.bridge.recoveries == 1
    assert world.gate.target == world.gate.measured
    assert world.bridge.mode == RobotMode.HOLD


def test_the_stop_outlives_what_it_cannot_write(world: World, tmp_path: Any) -> None:
    world.ready()
    (tmp_path / "file").write_text("")
    world.gate.latch.path = tmp_path / "file" / "stop"
    answer = world.bridge.set_stop(True)
    assert not answer.ok
    assert "would not survive" in answer.reason
    assert world.bridge.on_command(world.command(1)).code == Code.STOPPED


def test_takeover_holds_the_measured_pose_at_once(world: World) -> None:
    world.ready()
    world.bridge.on_command(world.command(1, 0.005))
    assert world.gate.target != world.measured
    before = world.changes
    world.bridge.on_operator("person", 1, True)
    assert world.changes == before + 1
    assert world.gate.operator_hold
    assert world.gate.target == world.driver.sent[-1][1] == world.measured
    assert world.bridge.mode == RobotMode.HOLD


def test_move_to_judges_speed_and_goal(world: World) -> None:
    world.ready()
    bad = world.bridge.move_to("me", START, -1.0, lambda _: None)
    assert "speed" in world.run(bad).reason
    far = RigidPose((3.0, 0.0, 0.0), START.quaternion)
    assert "outside" in world.run(world.bridge.move_to("me", far, 0.0, lambda _: None)).reason
    x, y, z = START.position
    near = RigidPose((x, y + 0.03, z), START.quaternion)
    assert world.run(world.bridge.move_to("me", near, 0.0, lambda _: None)) == Outcome(True)
    assert distance(world.measured.position, near.position) < 0.003


def test_gripper_commands_reach_the_driver_once(world: World) -> None:
    world.ready()
    world.bridge.on_command(world.command(1)._replace(gripper=-1))
    world.bridge.on_command(world.command(2)._replace(gripper=-1))
    assert world.driver.grips == [-1]


def test_a_reset_opens_the_gripper_where_the_task_says_so(world: World) -> None:
    world.ready()
    assert world.run(world.reset()) == Outcome(True)
    assert world.driver.grips == []
    opening = dataclasses.replace(SPEC, reset=dataclasses.replace(SPEC.reset, gripper=1))
    world.bridge.spec = opening
    assert world.run(world.reset()) == Outcome(True)
    assert world.driver.grips == [1]
    world.bridge.on_command(world.command(1)._replace(gripper=1))
    assert world.driver.grips == [1]  # it is in force already


REFLEX = Health(RobotMode.REFLEX, "reflex: look, then call recover", ("cartesian_reflex",))


def pressed(recovery: RecoveryConfig | None = None) -> World:
    """An arm that came down 3 cm onto something, and stopped by reflex there."""
    world = World(recovery=recovery)
    world.ready()
    x, y, z = START.position
    low = RigidPose((x, y, z - 0.03), START.quaternion)
    assert world.run(world.bridge.move_to("me", low, 0.1, lambda _: None)).ok
    world.force = lambda pose: 20.0 if pose.position[2] < z - 0.02 else 0.0
    world.driver.state = REFLEX
    world.show()
    return world


def test_recovery_leads_back_out_of_a_contact_along_the_way_it_came() -> None:
    world = pressed()
    stages: list[str] = []
    outcome = world.run(world.bridge.recover(stages.append))
    assert outcome.ok, outcome.reason
    assert stages[-1] == "retreat"
    x, y, z = START.position
    assert world.measured.position[:2] == pytest.approx((x, y), abs=1e-3)
    assert z - 0.021 < world.measured.position[2] < z - 0.01
    bridge = world.bridge
    assert (bridge.recoveries, bridge.retreats, bridge.reflexes) == (1, 1, 1)


def test_recovery_that_does_not_come_free_says_so_and_stays() -> None:
    world = pressed()
    world.force = lambda _: 20.0
    outcome = world.run(world.bridge.recover(lambda _: None))
    assert not outcome.ok
    assert "presses on something" in outcome.reason
    assert world.bridge.retreats == 0
    assert world.gate.lease.busy_with == ""


def test_recovery_without_a_retreat_stays_where_it_is() -> None:
    world = pressed(RecoveryConfig(retreat=0.0))
    before = world.measured
    assert world.run(world.bridge.recover(lambda _: None)).ok
    assert distance(world.measured.position, before.position) < 1e-3


def test_nothing_is_recovered_unasked_unless_configured() -> None:
    world = pressed()
    world.wall += 100.0
    assert not world.bridge.recovery_is_due()


def test_recovery_unasked_up_to_a_count_in_a_time() -> None:
    world = pressed(RecoveryConfig(count=2, period=60.0, delay=0.5))
    for _ in range(2):
        world.driver.state = REFLEX
        world.show()
        assert not world.bridge.recovery_is_due()
        world.wall += 0.6
        assert world.bridge.recovery_is_due()
        assert world.run(world.bridge.recover_unasked(lambda _: None)).ok
    world.driver.state = REFLEX
    world.show()
    assert not world.bridge.recovery_is_due()
    world.wall += 1.0
    assert not world.bridge.recovery_is_due()
    world.wall += 60.0
    assert world.bridge.recovery_is_due()
    assert world.bridge.automatic.done == 2


@pytest.mark.parametrize("mode", [m for m in RobotMode if m != RobotMode.REFLEX])
def test_only_a_reflex_is_recovered_unasked(mode: RobotMode) -> None:
    automatic = AutomaticRecovery(RecoveryConfig(count=5))
    assert not automatic.due(mode, 0.0)
    assert not automatic.due(mode, 100.0)


def test_the_stop_latch_keeps_from_recovering_unasked() -> None:
    world = pressed(RecoveryConfig(count=2, delay=0.0))
    assert world.bridge.recovery_is_due()
    world.bridge.set_stop(True)
    assert not world.bridge.recovery_is_due()


def test_trail_forgets_what_was_no_motion() -> None:
    trail = Trail(0.02, spacing=0.005)
    for step in range(10):
        trail.put(RigidPose((0.001 * 6 * step, 0.0, 0.0), START.quaternion))
    back = trail.way_back(RigidPose((0.055, 0.0, 0.0), START.quaternion))
    assert [pose.position[0] for pose in back] == pytest.approx([0.054, 0.048, 0.042, 0.036])
    assert trail.way_back(RigidPose((0.3, 0.0, 0.0), START.quaternion)) == []
    trail.put(RigidPose((0.3, 0.0, 0.0), START.quaternion))
    assert len(trail.way_back(RigidPose((0.3, 0.0, 0.0), START.quaternion))) == 1


def test_joint_reset_in_every_second_episode() -> None:
    home = (0.0, -0.8, 0.0, -2.4, 0.0, 1.6, 0.8)
    world = World(MotionConfig(joint_reset_every=2, joint_home=home))
    world.ready()
    for expected in (0, 1, 1, 2):
        outcome = world.run(world.reset(0.01))
        assert outcome.ok, outcome.reason
        assert len(world.driver.joints) == expected
    assert world.driver.joints[0] == home
    assert world.bridge.preset == "policy"


def test_joint_reset_that_fails_fails_the_reset() -> None:
    world = World(MotionConfig(joint_reset_every=1, joint_home=(0.0,) * 7))
    world.ready()
    world.during = lambda: setattr(
        world.driver, "problem", "joints blocked" if world.driver.presets[-1:] else ""
    )
    outcome = world.run(world.reset(0.01))
    assert not outcome.ok
    assert "joints blocked" in outcome.reason
    assert world.gate.lease.busy_with == ""
