"""The bridge without ROS: gate, driver, motions and compliance put together.

One thread, nothing blocks: what takes time is a coroutine (see `hil_robot_bridge.fibers`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hil_robot_bridge import motion
from hil_robot_bridge.drivers.base import Driver, DriverError, Health, RobotMode
from hil_robot_bridge.fibers import Promise, TimedOut
from hil_robot_bridge.gate import Code, Command, Decision, Gate
from hil_robot_bridge.lease import Answer
from hil_robot_bridge.limits import Span
from hil_robot_bridge.poses import RigidPose
from hil_robot_bridge.recovery import AutomaticRecovery, RecoveryConfig, Trail
from hil_robot_bridge.state import ArmState
from hil_tasks.spec import TaskSpec

Progress = Callable[[Span], None]

POLICY = "policy"
RESET = "reset"
INACTIVE = "the bridge is not active"

_NEAR = Span(0.002, 0.02)
_TOLERANCE = Span(0.01, 0.1)


class Pacer(Protocol):
    """How time goes on during a motion of the bridge itself.

    Attributes:
        period: time between two targets, s.
    """

    period: float

    async def next_period(self, target_ns: int) -> None:
        """Let one period pass, with the target of stamp `target_ns` in force (0: the old one).

        Raises:
            DriverError, TimedOut: time did not go on.
        """


@dataclass(frozen=True)
class MotionConfig:
    """Numbers of the bridge's own motions.

    Attributes:
        ramp: time from rest to full speed, s.
        near: offsets from the goal below which the motion ends at once.
        tolerance: offsets from the goal that still count as there after `settle_time`.
        settle_time: how long the arm may take to come to the goal once the target is there, s.
        stall_time: standing still this long on the way is a failure, s.
        patience: how long a motion waits for a robot that is silent for a moment, s.
        joint_reset_every: reset_episode goes by way of `joint_home` in every so many; 0: never.
        joint_home: joint positions, rad.
    """

    ramp: float = 0.2
    near: Span = _NEAR
    tolerance: Span = _TOLERANCE
    settle_time: float = 1.0
    stall_time: float = 1.5
    patience: float = 2.0
    joint_reset_every: int = 0
    joint_home: tuple[float, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """End of an action: whether it did what it was asked, and why not."""

    ok: bool
    reason: str = ""


class Bridge:
    """One arm: everything between commands and driver.

    Args:
        spec: the task.
        gate: judges every target.
        driver: reaches the controller.
        pacer: lets time pass in own motions.
        lockstep: time is the stamp of the newest state, else the steady clock.
        config: of own motions.
        recovery: what happens after a reflex.
        on_change: called when something that robot_state shows has changed between states.

    Attributes:
        state: newest measured state, good or not; None before the first.
        preset: name of the compliance that the controller has; "": none for sure.
        recoveries: successful recoveries since start.
        automatic: counts those that nobody asked for.
        reflexes: since start.
        retreats: recoveries that led the arm back out of a contact.
        active: whether the bridge may command at all.
    """

    def __init__(
        self,
        spec: TaskSpec,
        gate: Gate,
        driver: Driver,
        pacer: Pacer,
        lockstep: bool,
        config: MotionConfig | None = None,
        recovery: RecoveryConfig | None = None,
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.gate = gate
        self.driver = driver
        self.pacer = pacer
        self.state: ArmState | None = None
        self.preset = ""
        self.recoveries = self.reflexes = self.retreats = 0
        self.active = False
        self._recovery = recovery or RecoveryConfig()
        self.automatic = AutomaticRecovery(self._recovery)
        self._trail = Trail(self._recovery.retreat)
        self._resets = 0
        self._joint_reset = False
        self._wanted_preset = POLICY
        self._compliance_error = ""
        self._applying: Promise[None] | None = None
        self._lockstep = lockstep
        self._config = config or MotionConfig()
        self._on_change = on_change
        self._clock = clock
        self._health = Health(RobotMode.DISCONNECTED, INACTIVE)
        self._last_stamp = 0

    # -- events ----------------------------------------------------------------------------------

    def now(self) -> float:
        """Time of the gate, s."""
        if not self._lockstep:
            return self._clock()
        return 0.0 if self.state is None else self.state.stamp_ns * 1e-9

    def activate(self) -> None:
        """Begin: the arm holds until a command comes."""
        self.active = True
        self.preset = ""
        self.refresh()

    def deactivate(self) -> None:
        """Hold, and follow nobody."""
        if self.active:
            self._send_hold(self.gate.hold())
        self.active = False
        self.refresh()

    def on_state(self, state: ArmState) -> None:
        """Take a new state from the driver."""
        self.state = state
        now = self.now()
        self.gate.observe(state, now)
        self.gate.tick(now)
        self.refresh()
        if (self.gate.moving or self.gate.lease.busy_with) and not self._health.text:
            self._trail.put(state.pose)

    def tick(self) -> None:
        """Watch what time alone changes (real time: every period of robot_state)."""
        self.gate.tick(self.now())
        self.refresh()

    def on_command(self, command: Command) -> Decision:
        """Judge a command and pass on what is admissible of it."""
        decision = self.gate.command(command, self.now())
        if decision.applied and decision.pose is not None:
            self._last_stamp = max(self._last_stamp, command.stamp_ns)
            self.driver.command_pose(decision.pose, command.stamp_ns)
        if decision.gripper:
            self.driver.command_gripper(decision.gripper)
        return decision

    def on_operator(self, session: str, seq: int, engaged: bool) -> None:
        """Take an operator command: a takeover holds the arm at once, where it is."""
        if self.gate.operator(session, seq, engaged):
            self._send_hold(self.gate.hold())
            self._on_change()

    def set_stop(self, stopped: bool) -> Answer:
        """Latch or release the software stop."""
        gate = self.gate
        try:
            if stopped:
                self._send_hold(gate.hold())
                gate.stop("set_stop was called")
            else:
                gate.latch.release()
                self._send_hold(gate.hold())
        except OSError as error:
            if stopped:
                text = f"the arm holds, but the stop would not survive a restart: {error}"
            else:
                text = f"the stop stays in force: {error}"
            return Answer(False, text)
        finally:
            self._on_change()
        return Answer(True)

    def refresh(self) -> None:
        """Bring what blocks the arm up to now."""
        before, self._health = self._health.mode, self.driver.health()
        if self._health.mode == RobotMode.REFLEX and before != RobotMode.REFLEX:
            self.reflexes += 1
        if self._health.text and not self._health.passing:
            # Whoever comes back may have forgotten its gains.
            self.preset = ""
        blocked = self._blocked()
        if blocked == self.gate.blocked:
            return
        freed = bool(self.gate.blocked) and not blocked
        self.gate.block(blocked)
        if freed:
            self._send_hold(self.gate.target)
        self._on_change()

    # -- what robot_state shows ------------------------------------------------------------------

    @property
    def mode(self) -> RobotMode:
        """Mode of the arm, seen from outside."""
        if self._health.text:
            return self._health.mode
        if self.gate.lease.busy_with:
            return RobotMode.RESETTING
        if self.gate.blocked:
            return RobotMode.IDLE
        return RobotMode.MOVING if self.gate.moving else RobotMode.HOLD

    @property
    def mode_text(self) -> str:
        """What keeps the arm from following commands, in words."""
        return self.gate.holding_because

    @property
    def errors(self) -> tuple[str, ...]:
        """Names of active robot errors."""
        return self._health.errors

    @property
    def success_rate(self) -> float:
        """Share of control commands that reached the robot in time."""
        return self._health.success_rate

    # -- compliance ------------------------------------------------------------------------------

    @property
    def needs_compliance(self) -> bool:
        """Whether the wanted preset waits to be applied."""
        return self.active and not self.preset and self._applying is None and not self._health.text

    async def ensure_compliance(self) -> None:
        """Apply the wanted preset if the controller does not have it for sure."""
        if not self.needs_compliance:
            return
        try:
            await self._apply(self._wanted_preset)
        except (DriverError, TimedOut) as error:
            self._compliance_error = str(error)
            self.refresh()

    async def set_compliance(self, preset: str) -> Outcome:
        """Apply a preset and read it back; nothing moves until the controller has it."""
        if preset not in self.spec.compliance:
            known = ", ".join(sorted(self.spec.compliance))
            return Outcome(False, f"unknown preset '{preset}'; the task has: {known}")
        if self.gate.lease.busy_with:
            return Outcome(False, f"{self.gate.lease.busy_with} runs")
        self._wanted_preset = preset
        try:
            await self._apply(preset)
        except (DriverError, TimedOut) as error:
            self._compliance_error = str(error)
            self.refresh()
            return Outcome(False, str(error))
        return Outcome(True)

    async def _apply(self, preset: str) -> None:
        while self._applying is not None:
            await self._applying
        applying = self._applying = Promise[None]()
        self.preset = ""
        self._compliance_error = f"compliance preset '{preset}' is being applied"
        self.refresh()
        try:
            await self.driver.set_compliance(self.spec.compliance[preset])
            self.preset, self._compliance_error = preset, ""
        finally:
            self._applying = None
            applying.keep(None)
        self.refresh()

    # -- actions ---------------------------------------------------------------------------------

    async def reset_episode(
        self, owner: str, start: RigidPose, lift: float, progress: Progress
    ) -> Outcome:
        """Lift, then go straight and slowly to the start of an episode, then hold."""
        limits = self.gate.config.limits
        problem = motion.outside(limits, start)
        if problem:
            return Outcome(False, f"start: {problem}")
        answer = self._begin("reset_episode", owner)
        if not answer.ok:
            return Outcome(False, answer.reason)
        reset = self.spec.reset
        self._wanted_preset = POLICY
        arrived = False
        try:
            present = self._present()
            if reset.gripper and self.gate.config.gripper:
                self.driver.command_gripper(reset.gripper)
                self.gate.gripper_command = reset.gripper
            await self._apply(RESET)
            speed = Span(reset.linear_speed, reset.angular_speed)
            if self._joint_reset_is_due():
                ways = motion.reset_waypoints(limits, present, start, lift)
                await self._go(ways[:-1], speed, progress)
                await self._reset_joints()
                present, lift = self._present(), 0.0
            ways = motion.reset_waypoints(limits, present, start, lift)
            await self._go(ways, speed, progress)
            await self._apply(POLICY)
            arrived = True
            return Outcome(True)
        except (DriverError, TimedOut) as error:
            return Outcome(False, str(error))
        finally:
            self._end(arrived)

    async def move_to(
        self, owner: str, goal: RigidPose, speed: float, progress: Progress
    ) -> Outcome:
        """Go straight to a goal inside the box, at `speed` (m/s; 0: the task's reset speed)."""
        problem = motion.outside(self.gate.config.limits, goal)
        if problem:
            return Outcome(False, problem)
        if not 0.0 <= speed < float("inf"):
            return Outcome(False, f"speed must be >= 0, not {speed}")
        answer = self._begin("move_to", owner)
        if not answer.ok:
            return Outcome(False, answer.reason)
        reset = self.spec.reset
        linear = min(speed, self.spec.speed.linear) if speed > 0.0 else reset.linear_speed
        angular = reset.angular_speed * min(1.0, linear / reset.linear_speed)
        arrived = False
        try:
            self._present()
            await self._go([goal], Span(linear, angular), progress)
            arrived = True
            return Outcome(True)
        except (DriverError, TimedOut) as error:
            return Outcome(False, str(error))
        finally:
            self._end(arrived)

    async def recover(self, stage: Callable[[str], None]) -> Outcome:
        """Clear the robot's error and hold at the measured pose. Never resumes by itself."""
        answer = self._begin("recover", self.gate.lease.holder or "recover")
        if not answer.ok:
            return Outcome(False, answer.reason)
        try:
            await self.driver.recover(stage)
            stage("state")
            await self._until_healthy()
            stage("compliance")
            await self._apply(self._wanted_preset)
            self.recoveries += 1
            await self._retreat(stage)
            return Outcome(True)
        except (DriverError, TimedOut) as error:
            return Outcome(False, str(error))
        finally:
            self._end()

    def recovery_is_due(self) -> bool:
        """Whether the configuration lets the bridge recover now without being asked."""
        if not self.active or self.gate.latch.latched or self.gate.lease.busy_with:
            return False
        return self.automatic.due(self._health.mode, self._clock())

    async def recover_unasked(self, stage: Callable[[str], None]) -> Outcome:
        """Recover, and count it against what the configuration allows."""
        self.automatic.note(self._clock())
        return await self.recover(stage)

    # -- inside ----------------------------------------------------------------------------------

    def _blocked(self) -> str:
        if not self.active:
            return INACTIVE
        if self._joint_reset:
            return "joint reset runs"
        if self._health.text:
            return self._health.text
        if not self.preset and not self.gate.lease.busy_with:
            preset = self._wanted_preset
            return self._compliance_error or f"compliance preset '{preset}' is not set"
        return ""

    async def _retreat(self, stage: Callable[[str], None]) -> None:
        """If the arm still presses on something, go slowly back along which it came.

        Raises:
            DriverError: it did not come free.
        """
        if not self._in_contact():
            return
        stage("retreat")
        ways = self._trail.way_back(self._present())
        for pose in ways:
            await self._go([pose], Span(*self._recovery.speed), lambda _: None)
            if not self._in_contact():
                self.retreats += 1
                return
        raise DriverError(
            "recovered, but the arm still presses on something: lead it away by hand "
            "(guiding) or with move_to"
        )

    def _in_contact(self) -> bool:
        if self._recovery.retreat <= 0.0 or self.state is None:
            return False
        return math.hypot(*self.state.wrench[:3]) > self._recovery.contact

    def _joint_reset_is_due(self) -> bool:
        every = self._config.joint_reset_every
        self._resets += 1
        return every > 0 and self._resets % every == 0

    async def _reset_joints(self) -> None:
        self._joint_reset = True
        self.refresh()
        try:
            await self.driver.move_joints(
                self._config.joint_home, lambda: self.pacer.next_period(0)
            )
        finally:
            self._joint_reset = False
            self.refresh()
        await self._until_healthy()
        await self._apply(RESET)

    def _begin(self, action: str, owner: str) -> Answer:
        if not self.active:
            return Answer(False, INACTIVE)
        answer = self.gate.lease.begin(action, owner)
        if answer.ok:
            self._on_change()
        return answer

    def _end(self, arrived: bool = False) -> None:
        """Whatever happened: the arm stands, and commands are listened to again."""
        if not arrived:
            self._send_hold(self.gate.hold())
        self.gate.lease.end()
        if self.preset != self._wanted_preset:
            self.preset = ""
        self.refresh()
        self._on_change()

    def _present(self) -> RigidPose:
        """Hold at the measured pose and return it: where a motion begins."""
        target = self.gate.hold()
        if target is None:
            raise DriverError("robot state has not been seen yet")
        self._send_hold(target)
        return target

    async def _go(self, waypoints: list[RigidPose], speed: Span, progress: Progress) -> None:
        """Follow a path with stops; fails if the arm stands still on the way or misses the goal.

        Raises:
            DriverError: says what kept the arm from its goal.
        """
        gate, config = self.gate, self._config
        assert gate.target is not None
        gate.begin_motion()
        leash = self._motion_leash()
        standing = _Standstill(math.ceil(config.stall_time / self.pacer.period))
        goal = waypoints[-1]
        path = motion.through(gate.target, waypoints, speed, self.pacer.period, config.ramp)
        wanted = next(path, None)
        while wanted is not None:
            applied = await self._advance(wanted, leash)
            left = motion.to_go(self._measured(), goal)
            progress(left)
            if standing.seen(self._measured()):
                raise DriverError(
                    f"the arm stands still {left.translation * 1e3:.0f} mm and "
                    f"{left.rotation:.2f} rad from its goal: is something in the way?"
                )
            try:
                wanted = path.send(applied)
            except StopIteration:
                break
        await self._settle(goal, leash, progress)

    async def _settle(self, goal: RigidPose, leash: Span, progress: Progress) -> None:
        config = self._config
        end = self.now() + config.settle_time
        while True:
            left = motion.to_go(self._measured(), goal)
            progress(left)
            if left.translation <= config.near.translation and (
                left.rotation <= config.near.rotation
            ):
                return
            if self.now() >= end:
                break
            await self._advance(goal, leash)
        if left.translation > config.tolerance.translation or (
            left.rotation > config.tolerance.rotation
        ):
            raise DriverError(
                f"the arm came to rest {left.translation * 1e3:.0f} mm and "
                f"{left.rotation:.2f} rad from its goal: is something in the way?"
            )

    async def _advance(self, wanted: RigidPose, leash: Span) -> RigidPose:
        """Send one target through the gate and let a period pass; returns the applied target."""
        decision = self.gate.motion(wanted, self.now(), leash)
        end = self._clock() + self._config.patience
        while decision.code == Code.BLOCKED and self._health.passing and self._clock() < end:
            await self.pacer.next_period(0)
            decision = self.gate.motion(wanted, self.now(), leash)
        if not decision.applied or decision.pose is None:
            raise DriverError(decision.reason)
        stamp = self._send(decision.pose)
        await self.pacer.next_period(stamp)
        return decision.pose

    async def _until_healthy(self) -> None:
        end = self._clock() + 2.0
        while True:
            self.refresh()
            if not self._health.text:
                return
            if self._clock() >= end:
                raise DriverError(f"after recovery: {self._health.text}")
            await self.pacer.next_period(0)

    def _motion_leash(self) -> Span:
        """Leash of own motions: what the springs can see, if that is more than the policy's."""
        clip = self.spec.compliance[self.preset or self._wanted_preset].error_clip
        leash = self.gate.config.limits.leash
        return Span(max(leash.translation, *clip[:3]), max(leash.rotation, *clip[3:]))

    def _measured(self) -> RigidPose:
        measured = self.gate.measured
        assert measured is not None
        return measured

    def _send_hold(self, target: RigidPose | None) -> None:
        """Send a target that no one waits for.

        A simulator in lockstep waits for a target of the newest state's stamp or a newer one:
        this must not be mistaken for it, nor hide it.
        """
        if target is None or not self.active or self._health.text:
            return
        newest = self.gate.newest_ns or 0
        stamp = self._last_stamp if self._last_stamp >= newest else max(0, newest - 1)
        self.driver.command_pose(target, stamp)

    def _send(self, target: RigidPose) -> int:
        """Send a target of an own motion; its stamp, which no target had before, is returned."""
        self._last_stamp = max(self._last_stamp + 1, self.gate.newest_ns or 0)
        self.driver.command_pose(target, self._last_stamp)
        return self._last_stamp


class _Standstill:
    """Notices that a pose has not changed for a while."""

    _STEP = Span(0.002, 0.02)

    def __init__(self, periods: int) -> None:
        self._periods = periods
        self._pose: RigidPose | None = None
        self._count = 0

    def seen(self, pose: RigidPose) -> bool:
        """Whether the pose, seen once per period, stands since long enough."""
        before = self._pose
        if before is not None:
            gap = motion.to_go(pose, before)
            if gap.translation <= self._STEP.translation and gap.rotation <= self._STEP.rotation:
                self._count += 1
                return self._count >= self._periods
        self._pose, self._count = pose, 0
        return False
