"""Rules of the gate, one by one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hil_interfaces.msg import ArmCommand, CommandResult
from hil_robot_bridge.gate import Code, Command, Decision, Gate, GateConfig, Mode, Status
from hil_robot_bridge.joints import JointGuard
from hil_robot_bridge.latch import StopLatch
from hil_robot_bridge.lease import Lease
from hil_robot_bridge.limits import Limits, Span
from hil_robot_bridge.poses import RigidPose
from hil_robot_bridge.state import ArmState

DOWN = (1.0, 0.0, 0.0, 0.0)
MIDDLE = RigidPose((0.5, 0.0, 0.2), DOWN)
LIMITS = Limits(
    box_low=(0.3, -0.2, 0.0),
    box_high=(0.7, 0.2, 0.4),
    reference=DOWN,
    cone=0.3,
    twist=0.5,
    leash=Span(0.02, 0.2),
    leash_in_tool=False,
    step=Span(0.03, 0.15),
    speed=Span(0.2, 1.0),
)
PERIOD_NS = 100_000_000


class Arm:
    """A gate with an owner, an obedient arm and a clock of its own."""

    def __init__(
        self, latch: StopLatch | None = None, start: RigidPose = MIDDLE, **config: object
    ) -> None:
        options = {"gripper_dwell": 0.5, **config}
        self.lease = Lease()
        self.lease.acquire("me", "me", 1)
        self.gate = Gate(
            GateConfig("base", LIMITS, 0.1, **options),  # type: ignore[arg-type]
            self.lease,
            latch or StopLatch(),
        )
        self.gate.block("")
        self.stamp_ns = 1_000_000_000
        self.seq = 0
        self.q = (0.0,) * 7
        self.see(start)

    @property
    def now(self) -> float:
        return self.stamp_ns * 1e-9

    @property
    def target(self) -> RigidPose:
        assert self.gate.target is not None
        return self.gate.target

    def see(self, pose: RigidPose) -> None:
        self.gate.observe(ArmState(self.stamp_ns, pose, q=self.q), self.now)

    def next(self, follow: bool = True) -> None:
        """One control period later; the arm has followed."""
        self.stamp_ns += PERIOD_NS
        measured = self.target if follow else self.gate.measured
        assert measured is not None
        self.see(measured)
        self.gate.tick(self.now)

    def send(self, dx: float = 0.0, dz: float = 0.0, **changes: object) -> Decision:
        self.seq += 1
        x, y, z = self.target.position
        command = Command(
            "me", self.seq, self.stamp_ns, "base", (x + dx, y, z + dz), self.target.quaternion
        )
        return self.gate.command(command._replace(**changes), self.now)


def test_numbers_are_those_of_the_messages() -> None:
    for status in Status:
        assert getattr(CommandResult, status.name) == status
    for mode in Mode:
        assert getattr(ArmCommand, f"MODE_{mode.name}") == mode


def test_a_good_command_is_applied_as_it_is() -> None:
    arm = Arm()
    decision = arm.send(0.01)
    assert decision == (Status.ACCEPTED, Code.NONE, "", arm.target, 0)
    assert arm.target.position == (0.51, 0.0, 0.2)


def test_step_and_speed_are_limited_together() -> None:
    arm = Arm()
    arm.next()
    decision = arm.send(0.1)
    # The leash, 2 cm, is shorter than the step.
    assert decision.reason == "clipped by leash"
    assert arm.target.position[0] == pytest.approx(0.52)
    # Of the burst of 3 cm (1.5 periods at 0.2 m/s) 1 cm is left, and no time has passed.
    arm.see(arm.target)
    decision = arm.send(0.02)
    assert decision.reason == "clipped by speed limit"
    assert arm.target.position[0] == pytest.approx(0.53)
    arm.see(arm.target)
    assert arm.send(0.02).code == Code.LIMITED
    assert arm.target.position[0] == pytest.approx(0.53)
    arm.next()
    assert arm.send(0.019).status == Status.ACCEPTED


def test_many_tiny_commands_are_no_faster_than_one() -> None:
    arm = Arm()
    for _ in range(1000):
        arm.send(0.001)
        arm.see(arm.target)
    assert arm.target.position[0] - 0.5 <= 0.2 * 0.15 + 1e-9


def test_walls_are_not_crossed() -> None:
    arm = Arm()
    for _ in range(50):
        arm.send(0.02)
        arm.next()
    assert arm.target.position[0] == 0.7
    assert arm.send(0.02).reason == "clipped by workspace box"


def test_from_outside_only_inward() -> None:
    arm = Arm(start=RigidPose((0.8, 0.0, 0.2), DOWN))
    assert arm.target.position == (0.8, 0.0, 0.2)
    outward = arm.send(0.01)
    assert outward.reason == "clipped by workspace box"
    assert arm.target.position == (0.8, 0.0, 0.2)
    sideways = arm.send(0.0, 0.01)
    assert sideways.status == Status.REFUSED
    assert sideways.code == Code.OUTSIDE
    assert "only inward" in sideways.reason
    inward = arm.send(-0.01, 0.005)
    assert inward.status == Status.ACCEPTED


def test_hold_ignores_the_pose() -> None:
    arm = Arm()
    decision = arm.send(mode=Mode.HOLD, position=(math.nan,) * 3)
    assert decision.status == Status.ACCEPTED
    assert decision.pose == MIDDLE


def test_modes_that_the_driver_lacks_are_refused_by_name() -> None:
    arm = Arm(driver="some_driver")
    reason = arm.send(mode=Mode.WRENCH).reason
    assert "some_driver" in reason
    assert "'wrench'" in reason
    assert "99" in arm.send(mode=99).reason


def test_the_age_of_the_observation_counts() -> None:
    arm = Arm(max_stamp_age=0.25)
    first = arm.stamp_ns
    arm.next()
    arm.next()
    assert arm.send(0.001, stamp_ns=first).status == Status.ACCEPTED
    assert arm.send(0.001).status == Status.ACCEPTED
    assert "before the last command's" in arm.send(0.001, stamp_ns=first).reason
    arm.next()
    assert "old" in arm.send(0.001, stamp_ns=first).reason


def test_another_owner_starts_its_own_sequence() -> None:
    arm = Arm()
    for _ in range(5):
        arm.send(0.001)
    arm.lease.acquire("you", "you", 2)
    arm.seq = 0
    assert arm.send(0.001).code == Code.NOT_OWNER
    assert arm.send(0.001, owner="you").status == Status.ACCEPTED
    arm.lease.release("you")
    arm.lease.acquire("me", "me", 1)
    assert arm.send(0.001).code == Code.REPLAYED
    arm.seq = 5
    assert arm.send(0.001).status == Status.ACCEPTED


def test_silence_is_noticed_once() -> None:
    arm = Arm()
    arm.send(0.01)
    assert arm.gate.fresh
    assert arm.gate.moving
    assert not arm.gate.tick(arm.now + 0.149)
    assert arm.gate.tick(arm.now + 0.151)
    assert not arm.gate.tick(arm.now + 0.2)
    assert not arm.gate.fresh
    assert not arm.gate.moving


def test_refused_commands_are_no_sign_of_life() -> None:
    arm = Arm()
    arm.send(0.01, frame_id="world")
    assert not arm.gate.fresh


# -- takeover ------------------------------------------------------------------------------------


def seen(session: str, seq: int) -> dict[str, object]:
    return {"operator_session": session, "operator_seq": seq}


def test_takeover_holds_until_it_is_seen() -> None:
    arm = Arm()
    arm.send(0.01)
    assert not arm.gate.operator("p", 1, engaged=False)
    assert arm.gate.operator("p", 2, engaged=True)
    assert not arm.gate.operator("p", 3, engaged=True)
    assert not arm.gate.moving
    before = arm.target
    for changes in ({}, seen("p", 1), seen("other", 7)):
        decision = arm.send(0.01, **changes)
        assert (decision.status, decision.code) == (Status.HELD, Code.TAKEOVER)
        assert decision.pose == before
    assert arm.send(0.005, **seen("p", 2)).status == Status.ACCEPTED
    assert arm.send(0.001).status == Status.ACCEPTED


def test_no_hold_when_the_command_came_first() -> None:
    arm = Arm()
    arm.send(mode=Mode.HOLD, **seen("p", 2))
    assert not arm.gate.operator("p", 2, engaged=True)
    assert not arm.gate.operator_hold


def test_order_of_takeover_and_command_does_not_matter() -> None:
    one, other = Arm(), Arm()
    for arm in (one, other):
        arm.send(0.01, **seen("p", 1))
        arm.next(follow=False)
    one.gate.operator("p", 2, engaged=True)
    one.send(mode=Mode.HOLD, **seen("p", 2))
    other.send(mode=Mode.HOLD, **seen("p", 2))
    other.gate.operator("p", 2, engaged=True)
    assert one.target == other.target
    assert not one.gate.operator_hold
    assert not other.gate.operator_hold


def test_a_device_that_comes_back_does_not_keep_the_arm() -> None:
    arm = Arm()
    arm.gate.operator("p", 5, engaged=True)
    arm.gate.operator("q", 1, engaged=False)
    assert arm.send(0.01, **seen("p", 4)).code == Code.TAKEOVER
    assert arm.send(0.01, **seen("q", 1)).status == Status.ACCEPTED


def test_a_takeover_counts_also_while_the_arm_is_stopped() -> None:
    arm = Arm()
    arm.gate.operator("p", 2, engaged=True)
    arm.gate.stop("test")
    assert arm.send(**seen("p", 2)).code == Code.STOPPED
    arm.gate.latch.release()
    assert arm.send(0.001).status == Status.ACCEPTED


# -- stop, blocks and faults ---------------------------------------------------------------------


def test_stop_survives_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "stop"
    arm = Arm(StopLatch(path))
    arm.send(0.01)
    arm.gate.stop("somebody pressed it")
    again = Arm(StopLatch(path))
    decision = again.send(0.01)
    assert decision.status == Status.HELD
    assert "somebody pressed it" in decision.reason
    again.gate.latch.release()
    assert not path.exists()
    assert again.send(0.01).status == Status.ACCEPTED


@pytest.mark.parametrize("content", ["", "{", "[]", '{"stopped": false}'])
def test_a_stop_file_that_cannot_be_read_stops(tmp_path: Path, content: str) -> None:
    path = tmp_path / "stop"
    path.write_text(content)
    latch = StopLatch(path)
    assert latch.latched
    assert str(path) in latch.reason


def test_a_stop_that_cannot_be_written_is_in_force(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    arm = Arm(StopLatch(tmp_path / "file" / "stop"))
    with pytest.raises(OSError):
        arm.gate.stop("test")
    assert arm.send(0.01).code == Code.STOPPED


def test_stop_holds_at_the_measured_pose() -> None:
    arm = Arm()
    arm.send(0.02)
    arm.next(follow=False)
    target = arm.gate.stop("test")
    assert target == arm.target == MIDDLE


def test_a_blocked_robot_holds_and_goes_on_where_it_is() -> None:
    arm = Arm()
    arm.gate.block("user stop")
    decision = arm.send(0.01)
    assert (decision.status, decision.reason) == (Status.HELD, "user stop")
    moved = RigidPose((0.4, 0.1, 0.3), DOWN)
    arm.see(moved)
    assert arm.target == MIDDLE
    arm.gate.block("")
    assert arm.target == moved


def test_a_broken_state_holds(caplog: pytest.LogCaptureFixture) -> None:
    arm = Arm()
    arm.stamp_ns += PERIOD_NS
    arm.see(RigidPose((math.nan, 0.0, 0.2), DOWN))
    decision = arm.send(0.01)
    assert (decision.status, decision.code) == (Status.HELD, Code.STATE_FAULT)
    assert "not finite" in decision.reason
    arm.next()
    assert arm.send(0.01).status == Status.ACCEPTED


def test_before_the_first_state_nothing_goes() -> None:
    lease = Lease()
    lease.acquire("me", "me", 1)
    gate = Gate(GateConfig("base", LIMITS, 0.1), lease, StopLatch())
    decision = gate.command(Command("me", 1, 0, "base", *MIDDLE), 0.0)
    assert (decision.status, decision.code) == (Status.HELD, Code.NO_STATE)
    assert decision.reason
    assert decision.pose is None


def test_a_simulator_that_starts_again_is_followed() -> None:
    arm = Arm()
    arm.stamp_ns = 50 * PERIOD_NS
    arm.see(MIDDLE)
    arm.send(0.01)
    arm.stamp_ns = PERIOD_NS
    moved = RigidPose((0.4, 0.0, 0.2), DOWN)
    arm.see(moved)
    assert arm.target == moved
    assert arm.send(0.001).status == Status.ACCEPTED


# -- gripper -------------------------------------------------------------------------------------


def test_gripper_dwells_without_blocking() -> None:
    arm = Arm()
    assert arm.send(gripper=-1).gripper == -1
    arm.next()
    assert arm.send(gripper=-1) == (Status.ACCEPTED, Code.NONE, "", arm.target, 0)
    early = arm.send(0.001, gripper=1)
    assert (early.status, early.code, early.gripper) == (Status.CLIPPED, Code.GRIPPER_DWELL, 0)
    for _ in range(4):
        arm.next()
    assert arm.send(gripper=1).gripper == 1


def test_a_failed_gripper_may_be_told_again() -> None:
    arm = Arm()
    arm.send(gripper=-1)
    arm.gate.gripper_failed()
    for _ in range(6):
        arm.next()
    assert arm.send(gripper=-1).gripper == -1


def test_an_arm_without_gripper_says_so() -> None:
    assert "no gripper" in Arm(gripper=False).send(gripper=1).reason


# -- joints --------------------------------------------------------------------------------------


def joints(margin: float = 0.1) -> JointGuard:
    return JointGuard((-1.0,) * 7, (1.0,) * 7, margin)


def test_near_a_joint_limit_only_the_way_back() -> None:
    arm = Arm(joints=joints())
    arm.send(0.01)
    arm.next()
    arm.send(0.01)
    arm.q = (0.0, 0.95, *(0.0,) * 5)
    arm.next()
    stopped = arm.send(0.01)
    assert (stopped.status, stopped.code) == (Status.CLIPPED, Code.JOINT_LIMIT)
    assert "joint 2 is 0.050 rad from its limit" in stopped.reason
    assert stopped.pose == arm.gate.measured
    assert arm.send(-0.005).status == Status.ACCEPTED
    arm.q = (0.0,) * 7
    arm.next()
    assert arm.send(0.005).status == Status.ACCEPTED


def test_the_first_part_of_the_margin_is_slack() -> None:
    arm = Arm(joints=joints())
    arm.q = (-0.92, *(0.0,) * 6)
    arm.next()
    assert arm.send(0.01).status == Status.ACCEPTED


def test_an_own_motion_may_leave_the_margin_its_own_way() -> None:
    arm = Arm(joints=joints())
    arm.q = (0.99, *(0.0,) * 6)
    arm.next()
    away = RigidPose((0.5, 0.005, 0.2), DOWN)
    assert arm.gate.motion(away, arm.now).code == Code.JOINT_LIMIT
    arm.gate.begin_motion()
    assert arm.gate.motion(away, arm.now).status == Status.ACCEPTED
    arm.q = (1.02, *(0.0,) * 6)
    arm.next()
    assert arm.gate.motion(away, arm.now).code == Code.JOINT_LIMIT


@pytest.mark.parametrize(("lower", "upper"), [((-1.0,), (1.0, 1.0)), ((-0.05,), (0.05,))])
def test_joint_limits_must_make_sense(lower: tuple[float, ...], upper: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="joint limits"):
        JointGuard(lower, upper, 0.1)


# -- lease ---------------------------------------------------------------------------------------


def test_lease_goes_to_the_newest_session() -> None:
    lease = Lease()
    assert lease.acquire("a", "A", 10).ok
    assert lease.acquire("a", "A", 10).ok
    for started, words in ((9, "newer session"), (10, "same time"), (0, "started is zero")):
        answer = lease.acquire("b", "B", started)
        assert not answer.ok
        assert words in answer.reason
    assert not lease.acquire("", "B", 11).ok
    assert lease.acquire("b", "B", 11).ok
    assert not lease.release("a").ok
    assert lease.release("b").ok
    assert not lease.release("b").ok
    assert lease.acquire("a", "A", 10).ok


def test_an_action_borrows_a_free_lease() -> None:
    lease = Lease()
    assert lease.begin("move_to", "a").ok
    assert lease.holder == "a"
    assert "move_to runs" in lease.begin("reset_episode", "a").reason
    lease.end()
    assert lease.holder == ""
    lease.acquire("b", "B", 1)
    assert "held by B" in lease.begin("move_to", "a").reason
    assert lease.begin("move_to", "b").ok
    lease.end()
    assert lease.holder == "b"


def test_commands_wait_while_an_action_runs() -> None:
    arm = Arm()
    arm.lease.begin("reset_episode", "me")
    decision = arm.send(0.01)
    assert (decision.status, decision.code) == (Status.REFUSED, Code.BUSY)
    assert "reset_episode" in decision.reason
