"""A hundred thousand commands of every bad kind: nothing leaves the box, cone or limits."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np
from scipy.spatial.transform import Rotation

from hil_robot_bridge.gate import Code, Command, Decision, Gate, GateConfig, Mode, Status
from hil_robot_bridge.latch import StopLatch
from hil_robot_bridge.lease import Lease
from hil_robot_bridge.limits import Limits, Span
from hil_robot_bridge.poses import (
    Quaternion,
    RigidPose,
    Vector3,
    from_rotation_vector,
    interpolate,
    normalised,
    product,
    quaternion,
    vector3,
)
from hil_robot_bridge.state import ArmState
from hil_tasks.geometry import tilt_and_twist

COMMANDS = 100_000
EPISODES = 50
EPSILON = 1e-6
PERIOD = 0.1
FREE = math.pi
NOTHING = Span(0.0, 0.0)
LEASH = Span(0.02, 0.15)
STEP = Span(0.03, 0.12)
SPEED = Span(0.25, 1.0)
LOW, HIGH = (0.3, -0.2, 0.05), (0.7, 0.2, 0.45)
REFERENCE = (1.0, 0.0, 0.0, 0.0)
MIDDLE = RigidPose((0.5, 0.0, 0.25), REFERENCE)


@dataclass
class Arm:
    """A gate, an arm that follows it with a lag, and an independent account of what it did."""

    random: random.Random
    cone: float
    twist: float
    leash_in_tool: bool
    lockstep: bool
    measured: RigidPose = MIDDLE
    now: float = 0.0
    seq: int = 0
    path: Span = NOTHING
    least: Span = NOTHING
    kinds: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limits = Limits(
            LOW, HIGH, REFERENCE, self.cone, self.twist, LEASH, self.leash_in_tool, STEP, SPEED
        )
        config = GateConfig("base", limits, PERIOD)
        lease = Lease()
        lease.acquire("owner", "actor", 1)
        self.gate = Gate(config, lease, StopLatch())
        self.gate.block("")
        self.stamp_ns = 1_000_000_000
        self.observe()

    def observe(self, state: ArmState | None = None) -> None:
        self.gate.observe(state or ArmState(self.stamp_ns, self.measured), self.now)

    def pass_time(self, seconds: float) -> None:
        """The arm follows its target; now and then somebody pushes it."""
        self.stamp_ns += round(seconds * 1e9)
        self.now = self.stamp_ns * 1e-9 if self.lockstep else self.now + seconds
        assert self.gate.target is not None
        self.measured = interpolate(self.measured, self.gate.target, 1 - math.exp(-seconds / 0.1))
        if self.random.random() < 0.02:
            self.measured = self.pushed(0.05, 0.3)
        self.observe()
        self.gate.tick(self.now)

    def pushed(self, metres: float, radians: float) -> RigidPose:
        r = self.random
        position = vector3(x + r.uniform(-metres, metres) for x in self.measured.position)
        turn = vector3(r.uniform(-radians, radians) for _ in range(3))
        return RigidPose(position, turned_by(turn, self.measured.quaternion))

    def wanted(self, metres: float, radians: float) -> RigidPose:
        """A pose near the target."""
        assert self.gate.target is not None
        r = self.random
        position = vector3(x + r.uniform(-metres, metres) for x in self.gate.target.position)
        turn = vector3(r.uniform(-radians, radians) for _ in range(3))
        return RigidPose(position, turned_by(turn, self.gate.target.quaternion))

    def send(self, pose: RigidPose, **changes: object) -> Decision:
        self.seq += 1
        command = Command("owner", self.seq, self.stamp_ns, "base", *pose)
        return self.check(command._replace(**changes))

    def check(self, command: Command) -> Decision:
        """Give a command to the gate and hold the answer against every promise."""
        gate, before = self.gate, self.gate.target
        assert before is not None
        decision = gate.command(command, self.now)
        after = gate.target
        assert after is not None
        assert (decision.reason == "") == (decision.status == Status.ACCEPTED)
        assert (decision.code == Code.NONE) == (decision.status == Status.ACCEPTED)
        assert decision.pose == after
        if not decision.applied:
            assert after == before
        self.check_target(before, after)
        self.kinds[decision.code.value] = self.kinds.get(decision.code.value, 0) + 1
        return decision

    def check_target(self, before: RigidPose, after: RigidPose) -> None:
        assert all(map(math.isfinite, (*after.position, *after.quaternion)))
        assert abs(math.hypot(*after.quaternion) - 1.0) < 1e-9
        box, cone = excess(after, self.cone, self.twist)
        box_before, cone_before = excess(before, self.cone, self.twist)
        assert box <= box_before + EPSILON
        assert cone <= cone_before + EPSILON
        moved, turned = offset(before, after)
        on_leash = self.on_leash(before)
        at_home = max(excess(self.measured, self.cone, self.twist)) == 0.0
        if on_leash:
            assert moved <= STEP.translation + EPSILON
            assert turned <= STEP.rotation + EPSILON
            self.account(moved, turned)
        if at_home and (before != after):
            assert self.on_leash(after, 0.02)

    def on_leash(self, pose: RigidPose, slack: float = 0.0) -> bool:
        gap = vector3(a - b for a, b in zip(pose.position, self.measured.position, strict=True))
        if self.leash_in_tool:
            gap = vector3(dot(axis, gap) for axis in axes(self.measured.quaternion))
        turn = rotation_vector(pose.quaternion, self.measured.quaternion)
        return (
            max(map(abs, gap)) <= LEASH.translation * (1 + slack) + 1e-9
            and max(map(abs, turn)) <= LEASH.rotation * (1 + slack) + 1e-7
        )

    def account(self, moved: float, turned: float) -> None:
        """Speed over every stretch of time: path(t) - v t may rise by no more than a burst."""
        burst = 1.5 * PERIOD
        for path, least, by, speed in (
            (self.path.translation, self.least.translation, moved, SPEED.translation),
            (self.path.rotation, self.least.rotation, turned, SPEED.rotation),
        ):
            height = path - speed * self.now
            low = min(least, height)
            assert height + by - low <= speed * burst + EPSILON
        self.least = Span(
            min(self.least.translation, self.path.translation - SPEED.translation * self.now),
            min(self.least.rotation, self.path.rotation - SPEED.rotation * self.now),
        )
        self.path = Span(self.path.translation + moved, self.path.rotation + turned)


# Geometry by other means than the gate's: rotation matrices and angles between axes.


def turned_by(turn: Vector3, q: Quaternion) -> Quaternion:
    return normalised(product(from_rotation_vector(turn), q))


def dot(a: Vector3, b: Vector3) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def axes(q: Quaternion) -> tuple[Vector3, Vector3, Vector3]:
    """x, y and z axis of a frame: columns of the rotation matrix."""
    x, y, z, w = q
    return (
        (1 - 2 * (y * y + z * z), 2 * (x * y + z * w), 2 * (x * z - y * w)),
        (2 * (x * y - z * w), 1 - 2 * (x * x + z * z), 2 * (y * z + x * w)),
        (2 * (x * z + y * w), 2 * (y * z - x * w), 1 - 2 * (x * x + y * y)),
    )


def rotation_vector(a: Quaternion, b: Quaternion) -> Vector3:
    """Rotation vector, base axes, that turns b into a; by trace and skew part of the matrix."""
    m, n = axes(a), axes(b)
    r = [[sum(m[k][i] * n[k][j] for k in range(3)) for j in range(3)] for i in range(3)]
    skew = vector3((r[2][1] - r[1][2], r[0][2] - r[2][0], r[1][0] - r[0][1]))
    sine, cosine = math.hypot(*skew) / 2, (r[0][0] + r[1][1] + r[2][2] - 1) / 2
    angle = math.atan2(sine, cosine)
    return vector3(s * (angle / (2 * sine) if sine > 1e-9 else 0.5) for s in skew)


def excess(pose: RigidPose, cone: float, twist: float) -> tuple[float, float]:
    """How far a pose is outside the box (m) and the cone (rad)."""
    inside = [
        min(max(x, low), high) for x, low, high in zip(pose.position, LOW, HIGH, strict=True)
    ]
    tool, level = axes(pose.quaternion), axes(REFERENCE)
    upright, lean = dot(tool[2], level[2]), math.dist(tool[2], level[2])
    tilted = 2 * math.asin(min(1.0, lean / 2))
    # Lean the tool axis back the shortest way; what is left is the turn about it.
    across = cross(tool[2], level[2])
    back = rotate_about(tool[0], across, upright)
    turned = math.atan2(dot(back, level[1]), dot(back, level[0]))
    outside = max(0.0, tilted - cone) + max(0.0, abs(turned) - twist)
    return math.dist(pose.position, inside), outside


def cross(a: Vector3, b: Vector3) -> Vector3:
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


def rotate_about(v: Vector3, axis: Vector3, cosine: float) -> Vector3:
    """Turn v about an axis whose length is the sine of the angle."""
    across, share = cross(axis, v), dot(axis, v) / (1 + cosine)
    return vector3(
        c * x + y + share * a for c, x, y, a in zip((cosine,) * 3, v, across, axis, strict=True)
    )


def offset(a: RigidPose, b: RigidPose) -> tuple[float, float]:
    return math.dist(a.position, b.position), math.hypot(
        *rotation_vector(a.quaternion, b.quaternion)
    )


# Each kind of command: gives it to the arm and says what may become of it.

BAD = (math.nan, math.inf, -math.inf)


def good(arm: Arm) -> None:
    decision = arm.send(arm.wanted(0.012, 0.05))
    assert decision.code in (Code.NONE, Code.LIMITED, Code.OUTSIDE)


def far(arm: Arm) -> None:
    scale = 10.0 ** arm.random.uniform(-2, 1)
    decision = arm.send(arm.wanted(scale, 3.0))
    assert decision.code in (Code.NONE, Code.LIMITED, Code.OUTSIDE, Code.IMPLAUSIBLE)


def huge(arm: Arm) -> None:
    pose = arm.wanted(0.01, 0.05)
    position = list(pose.position)
    position[arm.random.randrange(3)] = arm.random.choice((-1, 1)) * 10.0 ** arm.random.uniform(
        1.1, 308
    )
    assert arm.send(RigidPose(vector3(position), pose.quaternion)).code == Code.IMPLAUSIBLE


def not_finite(arm: Arm) -> None:
    pose = arm.wanted(0.01, 0.05)
    values = [*pose.position, *pose.quaternion]
    values[arm.random.randrange(7)] = arm.random.choice(BAD)
    decision = arm.send(RigidPose(vector3(values[:3]), quaternion(values[3:])))
    assert decision.code == Code.NOT_FINITE


def zero_quaternion(arm: Arm) -> None:
    decision = arm.send(RigidPose(arm.wanted(0.01, 0.05).position, (0.0, 0.0, 0.0, 0.0)))
    assert decision.code == Code.QUATERNION


def unnormalised(arm: Arm) -> None:
    pose = arm.wanted(0.01, 0.05)
    scale = arm.random.choice((0.5, 0.99, 1.01, 2.0, 1e-12, 1e12))
    decision = arm.send(pose._replace(quaternion=quaternion(x * scale for x in pose.quaternion)))
    assert decision.code == Code.QUATERNION


def nearly_normalised(arm: Arm) -> None:
    pose = arm.wanted(0.01, 0.05)
    scale = 1.0 + arm.random.uniform(-9e-4, 9e-4)
    decision = arm.send(pose._replace(quaternion=quaternion(x * scale for x in pose.quaternion)))
    assert decision.code in (Code.NONE, Code.LIMITED, Code.OUTSIDE)


def wrong_frame(arm: Arm) -> None:
    frame = arm.random.choice(("", "world", "Base", "/base", "fr3_link0"))
    assert arm.send(arm.wanted(0.01, 0.05), frame_id=frame).code == Code.WRONG_FRAME


def future(arm: Arm) -> None:
    stamp = arm.stamp_ns + arm.random.choice((1, 1_000_000, 10**12))
    assert arm.send(arm.wanted(0.01, 0.05), stamp_ns=stamp).code == Code.FUTURE


def stale(arm: Arm) -> None:
    stamp = arm.stamp_ns - arm.random.choice((300_000_000, 10**10, arm.stamp_ns))
    assert arm.send(arm.wanted(0.01, 0.05), stamp_ns=stamp).code == Code.STALE


def before_the_last(arm: Arm) -> None:
    good(arm)
    assert arm.send(arm.wanted(0.01, 0.05), stamp_ns=arm.stamp_ns - 1).code == Code.STALE


def replayed(arm: Arm) -> None:
    good(arm)
    seq = arm.random.choice((0, arm.seq, max(0, arm.seq - arm.random.randrange(100))))
    assert arm.send(arm.wanted(0.01, 0.05), seq=seq).code == Code.REPLAYED


def stranger(arm: Arm) -> None:
    owner = arm.random.choice(("", "Owner", "owner ", "thief"))
    assert arm.send(arm.wanted(0.01, 0.05), owner=owner).code == Code.NOT_OWNER


def unknown_mode(arm: Arm) -> None:
    mode = arm.random.choice((Mode.WRENCH, 3, 77, 255))
    assert arm.send(arm.wanted(0.01, 0.05), mode=mode).code == Code.MODE


def bad_gripper(arm: Arm) -> None:
    gripper = arm.random.choice((-128, -2, 2, 127))
    assert arm.send(arm.wanted(0.01, 0.05), gripper=gripper).code == Code.GRIPPER


def hold(arm: Arm) -> None:
    before = arm.gate.target
    pose = RigidPose((math.nan,) * 3, (0.0,) * 4)
    decision = arm.send(pose, mode=Mode.HOLD)
    assert decision.status == Status.ACCEPTED
    assert decision.pose == before


def burst(arm: Arm) -> None:
    """Many tiny steps in one direction, with hardly any time between them."""
    direction = [arm.random.gauss(0, 1) for _ in range(3)]
    for _ in range(arm.random.randrange(5, 60)):
        assert arm.gate.target is not None
        position = vector3(
            x + 0.004 * d for x, d in zip(arm.gate.target.position, direction, strict=True)
        )
        turn = vector3(0.01 * d for d in direction)
        arm.send(RigidPose(position, turned_by(turn, arm.gate.target.quaternion)))
        if arm.random.random() < 0.5:
            arm.pass_time(arm.random.uniform(0.0, 0.002))


def outward(arm: Arm) -> None:
    """Straight for the wall."""
    axis, sign = arm.random.randrange(3), arm.random.choice((-1, 1))
    for _ in range(arm.random.randrange(1, 20)):
        assert arm.gate.target is not None
        position = list(arm.gate.target.position)
        position[axis] += sign * 0.02
        arm.send(RigidPose(vector3(position), arm.gate.target.quaternion))
        arm.pass_time(PERIOD)


def tumble(arm: Arm) -> None:
    """Turn and turn about one axis."""
    angle = arm.random.choice((-0.08, 0.08))
    turn = arm.random.choice(((angle, 0.0, 0.0), (0.0, angle, 0.0), (0.0, 0.0, angle)))
    for _ in range(arm.random.randrange(1, 40)):
        target = arm.gate.target
        assert target is not None
        arm.send(RigidPose(target.position, turned_by(turn, target.quaternion)))
        arm.pass_time(PERIOD)


def broken_state(arm: Arm) -> None:
    values = [*arm.measured.position, *arm.measured.quaternion]
    values[arm.random.randrange(7)] = math.nan
    arm.stamp_ns += 1_000_000
    pose = RigidPose(vector3(values[:3]), quaternion(values[3:]))
    arm.observe(ArmState(arm.stamp_ns, pose))
    decision = arm.send(arm.wanted(0.01, 0.05))
    assert decision.code == Code.STATE_FAULT
    assert decision.status == Status.HELD
    arm.observe()


def takeover(arm: Arm) -> None:
    number = arm.seq + 1
    arm.gate.operator("person", 3 * number, engaged=False)
    assert arm.gate.operator("person", 3 * number + 1, engaged=True)
    decision = arm.send(arm.wanted(0.01, 0.05), operator_session="person", operator_seq=3 * number)
    assert decision.code == Code.TAKEOVER
    assert decision.status == Status.HELD
    decision = arm.send(
        arm.wanted(0.01, 0.05), operator_session="person", operator_seq=3 * number + 1
    )
    assert decision.code in (Code.NONE, Code.LIMITED, Code.OUTSIDE)


def stop(arm: Arm) -> None:
    before, after = arm.gate.target, arm.gate.stop("test")
    assert before is not None and after is not None
    box, cone = excess(after, arm.cone, arm.twist)
    box_before, cone_before = excess(before, arm.cone, arm.twist)
    assert box <= box_before + EPSILON
    assert cone <= cone_before + EPSILON
    decision = arm.send(arm.wanted(0.01, 0.05))
    assert decision.code == Code.STOPPED
    assert decision.status == Status.HELD
    arm.gate.latch.release()


def own_motion(arm: Arm) -> None:
    """The bridge's own motions pass the same limits."""
    goal = RigidPose(vector3(arm.random.uniform(-1, 1) for _ in range(3)), REFERENCE)
    for _ in range(arm.random.randrange(1, 10)):
        before = arm.gate.target
        assert before is not None
        arm.gate.motion(goal, arm.now)
        assert arm.gate.target is not None
        arm.check_target(before, arm.gate.target)
        arm.pass_time(arm.random.uniform(0.0, PERIOD))


KINDS = (
    good,
    good,
    good,
    far,
    huge,
    not_finite,
    zero_quaternion,
    unnormalised,
    nearly_normalised,
    wrong_frame,
    future,
    stale,
    before_the_last,
    replayed,
    stranger,
    unknown_mode,
    bad_gripper,
    hold,
    burst,
    outward,
    tumble,
    broken_state,
    takeover,
    stop,
    own_motion,
)


def run_episode(seed: int, commands: int) -> dict[str, int]:
    """Feed one gate; about a third of the arms start outside box or cone."""
    source = random.Random(seed)
    cone, twist = source.choice(((0.3, 0.5), (0.1, FREE), (1.2, 2.0), (FREE, FREE), (0.25, 0.0)))
    start = MIDDLE
    if source.random() < 0.35:
        position = vector3(x + source.choice((-1, 0, 1)) * 0.4 for x in MIDDLE.position)
        start = RigidPose(position, REFERENCE)
    if source.random() < 0.35:
        turn = vector3(source.uniform(-1.5, 1.5) for _ in range(3))
        start = RigidPose(start.position, turned_by(turn, REFERENCE))
    arm = Arm(source, cone, twist, source.random() < 0.5, source.random() < 0.5, measured=start)
    sent = 0
    while sent < commands:
        before = arm.seq
        source.choice(KINDS)(arm)
        sent += max(1, arm.seq - before)
        arm.pass_time(source.choice((0.0, 0.001, 0.05, 0.1, 0.1, 0.1, 0.5)))
    return arm.kinds


def test_fuzzed_commands_keep_every_promise() -> None:
    total: dict[str, int] = {}
    for seed in range(EPISODES):
        for code, count in run_episode(seed, COMMANDS // EPISODES + 40).items():
            total[code] = total.get(code, 0) + count
    assert sum(total.values()) >= COMMANDS
    met = {Code(code) for code in total}
    expected = set(Code) - {
        Code.NO_LEASE,
        Code.NO_STATE,
        Code.BUSY,
        Code.BLOCKED,
        Code.JOINT_LIMIT,
        Code.GRIPPER_DWELL,
    }
    assert expected <= met


def test_geometry_of_the_fuzz() -> None:
    """The fuzz judges by its own geometry: it agrees with scipy's."""
    rng = np.random.default_rng(0)
    level = Rotation.from_quat(REFERENCE)
    for a, b in zip(Rotation.random(300, rng=rng), Rotation.random(300, rng=rng), strict=True):
        pose = RigidPose((0.5, 0.0, 0.25), quaternion(a.as_quat()))
        tilted, turned = tilt_and_twist(a, level)
        found = excess(pose, 0.1, 0.1)[1]
        assert abs(max(0, tilted - 0.1) + max(0, abs(turned) - 0.1) - found) < 1e-7
        vector = rotation_vector(quaternion(a.as_quat()), quaternion(b.as_quat()))
        np.testing.assert_allclose(vector, (a * b.inv()).as_rotvec(), atol=1e-6)
