"""The gate: the last word on every target that goes to the arm.

ROS-free. Time comes in as an argument: steady seconds in real time, the stamp of the newest state
in lockstep, so that nothing here depends on how fast a simulation runs.

Promise: the applied target never leaves the box and the cone of `Limits` (from outside it never
goes further out), never moves by more than the step limit, never faster than the speed limit over
any stretch of time, and is never further from the measured pose than the leash by command.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from hil_robot_bridge.joints import JointGuard
from hil_robot_bridge.latch import StopLatch
from hil_robot_bridge.lease import Lease
from hil_robot_bridge.limits import Limited, Limits, Span, limit, never_further_out
from hil_robot_bridge.poses import Quaternion, RigidPose, Vector3, all_finite
from hil_robot_bridge.state import ArmState

_NORM_TOLERANCE = 1e-3
_PLAUSIBLE = 10.0  # m; nothing within reach has larger coordinates
_REMEMBERED_OWNERS = 64
_BURST_PERIODS = 1.5  # what a late command may catch up on, in control periods


class Status(IntEnum):
    """Outcome of a command; values of hil_interfaces/CommandResult."""

    ACCEPTED = 0
    CLIPPED = 1
    REFUSED = 2
    HELD = 3


class Mode(IntEnum):
    """Control mode of a command; values of hil_interfaces/ArmCommand."""

    IMPEDANCE = 0
    WRENCH = 1
    HOLD = 2


class Code(str, Enum):
    """Why a command was not executed as asked: one word each, to be counted."""

    NONE = "none"
    NO_LEASE = "no_lease"
    NOT_OWNER = "not_owner"
    REPLAYED = "replayed"
    WRONG_FRAME = "wrong_frame"
    MODE = "mode"
    NO_STATE = "no_state"
    FUTURE = "future"
    STALE = "stale"
    NOT_FINITE = "not_finite"
    IMPLAUSIBLE = "implausible"
    QUATERNION = "quaternion"
    GRIPPER = "gripper"
    BUSY = "busy"
    STOPPED = "stopped"
    BLOCKED = "blocked"
    STATE_FAULT = "state_fault"
    TAKEOVER = "takeover"
    OUTSIDE = "outside"
    LIMITED = "limited"
    JOINT_LIMIT = "joint_limit"
    GRIPPER_DWELL = "gripper_dwell"


class Command(NamedTuple):
    """One command to the arm, as it came: nothing is checked. See hil_interfaces/ArmCommand."""

    owner: str
    seq: int
    stamp_ns: int
    frame_id: str
    position: Vector3
    quaternion: Quaternion
    mode: int = Mode.IMPEDANCE
    gripper: int = 0
    operator_session: str = ""
    operator_seq: int = 0


class Decision(NamedTuple):
    """Answer to a command.

    Attributes:
        status: what became of it.
        code: why not as asked.
        reason: the same in words; "" when accepted.
        pose: target in force after the command; None before the first state.
        gripper: command passed on to the gripper: -1 close, 1 open, 0 none.
    """

    status: Status
    code: Code
    reason: str
    pose: RigidPose | None
    gripper: int = 0

    @property
    def applied(self) -> bool:
        """Whether the target goes out to the controller."""
        return self.status <= Status.CLIPPED


@dataclass(frozen=True)
class GateConfig:
    """What the gate needs to know of task, robot and driver.

    Attributes:
        frame_id: base frame in which commands must be.
        limits: on the target.
        period: control period, s.
        driver: name of the driver, for reasons.
        modes: control modes that the driver has.
        gripper: whether the arm has a gripper.
        gripper_dwell: shortest time between two gripper commands, s.
        arm: name of the arm in operator commands.
        max_stamp_age: oldest observation that a command may answer, s before the newest state.
        joints: keeps away from joint limits; None: not watched.
    """

    frame_id: str
    limits: Limits
    period: float
    driver: str = "none"
    modes: frozenset[Mode] = frozenset({Mode.IMPEDANCE, Mode.HOLD})
    gripper: bool = True
    gripper_dwell: float = 0.5
    arm: str = ""
    max_stamp_age: float = 0.25
    joints: JointGuard | None = field(default=None, compare=False)

    @property
    def freshness(self) -> float:
        """Silence after which the arm holds, s."""
        return max(1.5 * self.period, 0.1)


class _Refused(Exception):
    """A command is answered without being executed."""

    def __init__(self, status: Status, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.status, self.code, self.reason = status, code, reason


class _Edge(NamedTuple):
    """Operator command with which the person took over."""

    session: str
    seq: int


class Gate:
    """Judges commands and own motions of the bridge; holds the target in force.

    Attributes:
        lease: who may command.
        latch: software stop.
        target: in force; None before the first state.
        measured: newest good measured pose; None before the first.
        newest_ns: stamp of the newest state; None before the first.
        blocked: why the robot cannot follow, in words; "" if it can.
        operator_hold: whether a takeover holds the arm.
        fresh: whether the owner's commands keep coming.
        counts: number of outcomes by code.
    """

    def __init__(self, config: GateConfig, lease: Lease, latch: StopLatch) -> None:
        self.config = config
        self.lease = lease
        self.latch = latch
        self.target: RigidPose | None = None
        self.measured: RigidPose | None = None
        self.newest_ns: int | None = None
        self.blocked = "robot state has not been seen yet"
        self.fresh = False
        self.gripper_command = 0
        self.counts: Counter[str] = Counter()
        self._state_fault = ""
        self._resync = False
        self._following = False
        self._last_command = -math.inf
        self._last_gripper = -math.inf
        self._last_seq: dict[str, int] = {}
        self._last_stamp: dict[str, int] = {}
        self._edge: _Edge | None = None
        self._operator_session = ""
        self._operator_engaged = False
        self._seen = _Edge("", 0)
        self._budget = _Budget(config.limits.speed, _BURST_PERIODS * config.period)

    # -- what the gate is told -------------------------------------------------------------------

    def observe(self, state: ArmState, now: float) -> None:
        """Take a measured state. The first one becomes the target."""
        if self.newest_ns is not None and state.stamp_ns < self.newest_ns:
            self._clock_went_back(now)
        self.newest_ns = state.stamp_ns
        self._state_fault = state.fault()
        if self._state_fault:
            return
        self.measured = _unit(state.pose)
        if self.config.joints is not None:
            self.config.joints.observe(state.q, self.measured)
        if self.target is None or self._resync:
            self.target, self._resync = self.measured, False

    def operator(self, session: str, seq: int, engaged: bool) -> bool:
        """Take an operator command for this arm; returns whether it made the arm hold."""
        if session != self._operator_session:
            self._operator_session, self._operator_engaged = session, False
        edge = engaged and not self._operator_engaged
        self._operator_engaged = engaged
        if not edge or (self._seen.session == session and self._seen.seq >= seq):
            return False
        self._edge = _Edge(session, seq)
        self._following = False
        return True

    def block(self, reason: str) -> None:
        """Say why the robot cannot follow ("": it can). Afterwards the measured pose is held."""
        if self.blocked and not reason:
            self._restart_at_measured()
        if reason:
            self._following = False
        self.blocked = reason

    def tick(self, now: float) -> bool:
        """Watch freshness; returns whether commands have just stopped coming."""
        if not self.fresh or now - self._last_command <= self.config.freshness:
            return False
        self.fresh = False
        self._following = False
        return True

    def gripper_failed(self) -> None:
        """Tell that the gripper did not do as told: the same command may be given again."""
        self.gripper_command = 0

    # -- what it answers -------------------------------------------------------------------------

    @property
    def operator_hold(self) -> bool:
        """Whether a takeover holds the arm."""
        return self._edge is not None

    @property
    def moving(self) -> bool:
        """Whether the arm follows commands."""
        return self._following

    @property
    def holding_because(self) -> str:
        """Why commands are not executed, in words; "" if they would be."""
        refusal = self._standing_refusal()
        return refusal.reason if refusal else ""

    def command(self, command: Command, now: float) -> Decision:
        """Judge one command and apply what is admissible of it."""
        try:
            decision = self._judge(command, now)
        except _Refused as refused:
            decision = Decision(refused.status, refused.code, refused.reason, self.target)
        self.counts[decision.code.value] += 1
        return decision

    def motion(self, wanted: RigidPose, now: float, leash: Span | None = None) -> Decision:
        """Next target of a motion of the bridge itself: the same limits, no owner needed."""
        refusal = self._standing_refusal(takeover=False)
        if refusal:
            return Decision(refusal.status, refusal.code, refusal.reason, self.target)
        decision = self._move(wanted, now, leash)
        self._following = False
        return decision

    def begin_motion(self) -> None:
        """Tell that a motion of the bridge begins: joints may leave their margin on its way."""
        if self.config.joints is not None:
            self.config.joints.restart()

    def hold(self) -> RigidPose | None:
        """Hold at the measured pose; returns the target to send out (None: no state yet)."""
        self._following = False
        if self.target is not None and self.measured is not None and not self._state_fault:
            self.target = never_further_out(self.config.limits, self.measured, self.target)
        return self.target

    def stop(self, reason: str) -> RigidPose | None:
        """Latch the software stop and hold at the measured pose.

        Raises:
            OSError: the arm holds, but the stop would not survive a restart.
        """
        target = self.hold()
        self.latch.stop(reason)
        return target

    # -- inside ----------------------------------------------------------------------------------

    def _judge(self, command: Command, now: float) -> Decision:
        self._check_owner(command)
        self._check_form(command)
        self._check_stamp(command)
        self._note_arrival(command, now)
        refusal = self._standing_refusal()
        if refusal:
            raise refusal
        assert self.target is not None
        gripper, note = self._gripper(command.gripper, now)
        if command.mode == Mode.HOLD:
            self._following = False
            decision = Decision(Status.ACCEPTED, Code.NONE, "", self.target)
        else:
            wanted = _unit(RigidPose(command.position, command.quaternion))
            decision = self._move(wanted, now, None)
            self._following = decision.applied
        if note and decision.status == Status.ACCEPTED:
            decision = Decision(Status.CLIPPED, Code.GRIPPER_DWELL, note, decision.pose)
        if gripper and decision.applied:
            self.gripper_command, self._last_gripper = gripper, now
            return decision._replace(gripper=gripper)
        return decision

    def _check_owner(self, command: Command) -> None:
        holder = self.lease.holder
        if not holder:
            raise _Refused(Status.REFUSED, Code.NO_LEASE, "nobody holds the lease: acquire it")
        if command.owner != holder:
            raise _Refused(
                Status.REFUSED, Code.NOT_OWNER, f"the lease is held by {self.lease.name or holder}"
            )
        last = self._last_seq.get(holder, 0)
        if command.seq <= last:
            raise _Refused(
                Status.REFUSED,
                Code.REPLAYED,
                f"sequence number {command.seq} is not above the last, {last}",
            )
        if holder not in self._last_seq and len(self._last_seq) >= _REMEMBERED_OWNERS:
            oldest = next(iter(self._last_seq))
            del self._last_seq[oldest]
            self._last_stamp.pop(oldest, None)
        self._last_seq[holder] = command.seq

    def _check_form(self, command: Command) -> None:
        config = self.config
        if command.frame_id != config.frame_id:
            raise _Refused(
                Status.REFUSED,
                Code.WRONG_FRAME,
                f"frame is '{command.frame_id}', must be '{config.frame_id}'",
            )
        if command.mode not in config.modes:
            try:
                name = f"'{Mode(command.mode).name.lower()}'"
            except ValueError:
                name = str(command.mode)
            raise _Refused(
                Status.REFUSED, Code.MODE, f"driver {config.driver} has no control mode {name}"
            )
        if command.gripper not in (-1, 0, 1):
            raise _Refused(
                Status.REFUSED, Code.GRIPPER, f"gripper must be -1, 0 or 1, not {command.gripper}"
            )
        if command.gripper and not config.gripper:
            raise _Refused(Status.REFUSED, Code.GRIPPER, "the arm has no gripper")
        if command.mode != Mode.HOLD:
            _check_pose(command.position, command.quaternion)

    def _check_stamp(self, command: Command) -> None:
        newest = self.newest_ns
        if newest is None or self.target is None:
            reason = self._state_fault or "robot state has not been seen yet"
            raise _Refused(Status.HELD, Code.NO_STATE, reason)
        age = newest - command.stamp_ns
        if age < 0:
            raise _Refused(
                Status.REFUSED,
                Code.FUTURE,
                f"stamp is {-age * 1e-9:.3f} s after the newest robot state",
            )
        if age > self.config.max_stamp_age * 1e9:
            raise _Refused(
                Status.REFUSED,
                Code.STALE,
                f"observation is {age * 1e-9:.3f} s old, at most {self.config.max_stamp_age:.3f}",
            )
        last = self._last_stamp.get(command.owner)
        if last is not None and command.stamp_ns < last:
            raise _Refused(
                Status.REFUSED,
                Code.STALE,
                f"stamp is {(last - command.stamp_ns) * 1e-9:.3f} s before the last command's",
            )
        self._last_stamp[command.owner] = command.stamp_ns

    def _note_arrival(self, command: Command, now: float) -> None:
        """The owner is alive, and has seen the operator's commands up to the one it names."""
        self.fresh, self._last_command = True, now
        self._seen = _Edge(command.operator_session, command.operator_seq)
        edge = self._edge
        if edge is None:
            return
        if self._seen.session == edge.session:
            covered = self._seen.seq >= edge.seq
        else:
            covered = self._seen.session == self._operator_session
        if covered:
            self._edge = None

    def _standing_refusal(self, takeover: bool = True) -> _Refused | None:
        """What keeps every command from being executed, if anything does."""
        if self.latch.latched:
            return _Refused(
                Status.HELD, Code.STOPPED, f"software stop: {self.latch.reason or 'latched'}"
            )
        if self.blocked:
            return _Refused(Status.HELD, Code.BLOCKED, self.blocked)
        if self._state_fault:
            return _Refused(Status.HELD, Code.STATE_FAULT, self._state_fault)
        if self.target is None or self.measured is None:
            return _Refused(Status.HELD, Code.NO_STATE, "robot state has not been seen yet")
        if not takeover:
            return None
        if self.lease.busy_with:
            return _Refused(
                Status.REFUSED, Code.BUSY, f"{self.lease.busy_with} of the bridge runs"
            )
        if self._edge is not None:
            return _Refused(Status.HELD, Code.TAKEOVER, "the operator has taken over")
        return None

    def _move(self, wanted: RigidPose, now: float, leash: Span | None) -> Decision:
        target, measured = self.target, self.measured
        assert target is not None and measured is not None
        config = self.config
        if config.joints is not None:
            objection = config.joints.objection(target, wanted)
            if objection:
                return Decision(Status.CLIPPED, Code.JOINT_LIMIT, objection, self.hold())
        budget = self._budget.left(now)
        limited: Limited = limit(config.limits, target, wanted, measured, budget, leash)
        if limited.refused:
            return Decision(Status.REFUSED, Code.OUTSIDE, limited.refused, target)
        self._budget.spend(limited.moved)
        self.target = limited.pose
        if limited.clipped:
            reason = "clipped by " + ", ".join(limited.clipped)
            return Decision(Status.CLIPPED, Code.LIMITED, reason, self.target)
        return Decision(Status.ACCEPTED, Code.NONE, "", self.target)

    def _gripper(self, asked: int, now: float) -> tuple[int, str]:
        """Command to pass on (0: none), and why one was not."""
        if asked in (0, self.gripper_command):
            return 0, ""
        if 0.0 <= now - self._last_gripper < self.config.gripper_dwell:
            return 0, "gripper command came before the dwell time of the last was over"
        return asked, ""

    def _restart_at_measured(self) -> None:
        self._resync = True
        if self.measured is not None and not self._state_fault and self.target is not None:
            self.target, self._resync = self.measured, False

    def _clock_went_back(self, now: float) -> None:
        """The source of the state has restarted: nothing that was stamped before counts."""
        self._last_stamp.clear()
        self._last_command = min(self._last_command, now)
        self._last_gripper = min(self._last_gripper, now)
        self._following = False
        self._resync = True


class _Budget:
    """Token bucket of translation and rotation: speed over any stretch of time.

    Args:
        speed: tokens per second.
        burst: seconds' worth of tokens that can be saved up.
    """

    def __init__(self, speed: Span, burst: float) -> None:
        self._speed = speed
        self._most = Span(speed.translation * burst, speed.rotation * burst)
        self._left = self._most
        self._at = -math.inf

    def left(self, now: float) -> Span:
        """Tokens at `now`: m and rad that may be moved."""
        passed = now - self._at
        self._at = now
        if passed > 0.0:
            self._left = Span(
                min(
                    self._most.translation,
                    self._left.translation + self._speed.translation * passed,
                ),
                min(self._most.rotation, self._left.rotation + self._speed.rotation * passed),
            )
        return self._left

    def spend(self, moved: Span) -> None:
        """Take tokens for a motion."""
        self._left = Span(
            max(0.0, self._left.translation - moved.translation),
            max(0.0, self._left.rotation - moved.rotation),
        )


def _check_pose(position: Vector3, q: Quaternion) -> None:
    if not all_finite((*position, *q)):
        raise _Refused(Status.REFUSED, Code.NOT_FINITE, "pose has a value that is not finite")
    if max(map(abs, position)) > _PLAUSIBLE:
        raise _Refused(
            Status.REFUSED, Code.IMPLAUSIBLE, f"position is more than {_PLAUSIBLE:.0f} m away"
        )
    norm = math.hypot(*q)
    if not abs(norm - 1.0) <= _NORM_TOLERANCE:
        raise _Refused(
            Status.REFUSED, Code.QUATERNION, f"quaternion has norm {norm:.4g}, must have 1"
        )


def _unit(pose: RigidPose) -> RigidPose:
    """Return the pose with its quaternion normalised."""
    x, y, z, w = pose.quaternion
    norm = math.hypot(x, y, z, w)
    return RigidPose(pose.position, (x / norm, y / norm, z / norm, w / norm))
