"""What a person does with the arm in each task: how to steer, how to judge the situation. No ROS.

A skill sees a `View`: what the person perceives, late and with error, never the simulator's truth.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.spatial.transform import Rotation

from hil_tasks import Pose, Task, TaskSpec
from hil_tasks.geometry import Array
from hil_tasks.peg_insert import HOLE, PegInsert
from hil_tasks.pick_lift import CUBE, PickLift
from hil_tasks.reach import GOAL, Reach


@dataclass(frozen=True)
class View:
    """What the person perceives at one step.

    Attributes:
        time: s since the episode's start.
        pose: tool centre point, base frame.
        wrench: (6,) external, on the tool centre point, base axes: N, Nm.
        objects: where the person believes the objects are, base frame.
        gripper_width: gap between the fingers, m.
    """

    time: float
    pose: Pose
    wrench: Array
    objects: Mapping[str, Pose]
    gripper_width: float = 0.0


@dataclass(frozen=True)
class Judgement:
    """How the person judges the situation.

    Attributes:
        remaining: what is left to do, m: falls to 0 on the way to success.
        bad: what is wrong, in words; "" if nothing is.
        on_track: it could be left alone: the rest looks easy.
    """

    remaining: float
    bad: str
    on_track: bool


@dataclass(frozen=True)
class SteeringConfig:
    """How a person moves the arm through free space.

    Attributes:
        gain: 1/s, speed per distance that is left.
        rotation_gain: 1/s, the same for rotation.
        speed: m/s at most.
        angular_speed: rad/s at most.
    """

    gain: float = 2.0
    rotation_gain: float = 1.5
    speed: float = 0.07
    angular_speed: float = 0.35


@dataclass(frozen=True)
class InsertConfig:
    """How a person inserts a peg: hover, lower, feel for the hole, push.

    Attributes:
        hover: m of the tip over the rim until the peg is aligned.
        align: m beside the hole at which the peg is lowered.
        align_angle: rad of misalignment at which it is lowered.
        lower_speed: m/s.
        push_speed: m/s, once it is in the hole.
        contact_force: N that feel like the rim.
        push_force: N while searching on the rim.
        force_gain: m/s per N of force that is missing.
        rim: m, band of the tip's height over the rim in which contact means the rim.
        feel: share of the search that follows what the hand feels (which side of the peg is
            carried), instead of circling blindly.
        search_speed: m/s along the rim.
        search_pitch: m between turns of the spiral.
        search_radius: m at most; after that the person lifts and tries again.
        drop: m that the tip falls when it finds the hole.
        stuck_time: s without progress in the hole until the person wiggles.
        wiggle: rad/s of tilting while stuck.
        wiggle_period: s.
        give_up_time: s without progress in the hole or on the rim until the person lifts the peg.
        retreat: m over the rim to which it is lifted.
        bad_lateral: m beside the hole, near the rim, that look wrong.
    """

    hover: float = 0.006
    align: float = 0.002
    align_angle: float = 0.05
    lower_speed: float = 0.03
    push_speed: float = 0.05
    contact_force: float = 4.0
    push_force: float = 7.0
    force_gain: float = 0.002
    rim: float = 0.003
    feel: float = 0.6
    search_speed: float = 0.008
    search_pitch: float = 0.001
    search_radius: float = 0.0035
    drop: float = 0.0025
    stuck_time: float = 0.6
    wiggle: float = 0.25
    wiggle_period: float = 0.8
    give_up_time: float = 3.0
    retreat: float = 0.006


@dataclass(frozen=True)
class PickConfig:
    """How a person picks something up: hover, lower, close, lift.

    Attributes:
        hover: m of the tool over the object until it is above it.
        align: m beside the object at which the tool is lowered.
        grip: m from the object's centre at which the hand closes.
        settle: s that the person waits for the hand to close.
        lift_speed: m/s.
        closed: m; a hand that is closer than this has nothing between its fingers.
        lost: m from the tool at which a lifted object is lost.
    """

    hover: float = 0.05
    align: float = 0.006
    grip: float = 0.006
    settle: float = 0.7
    lift_speed: float = 0.07
    closed: float = 0.02
    lost: float = 0.03


class Skill(abc.ABC):
    """Steering and judgement for one task.

    Attributes:
        watches: names of the objects that the person looks at; others are out of sight.
    """

    watches: ClassVar[tuple[str, ...]]

    def __init__(self, spec: TaskSpec, steering: SteeringConfig) -> None:
        self.spec = spec
        self.steering = steering

    @abc.abstractmethod
    def begin(self, view: View, rng: np.random.Generator) -> None:
        """The person takes over in this situation."""

    @abc.abstractmethod
    def steer(self, view: View) -> Array:
        """Velocity (6,) of the tool centre point that the person wants: m/s, rad/s, base axes."""

    def grip(self) -> int:
        """Gripper command that goes with what `steer` returned last: -1, 0, 1."""
        return 0

    @abc.abstractmethod
    def judge(self, view: View) -> Judgement:
        """How things stand."""

    def towards(self, offset: Array, speed: float | None = None) -> Array:
        """Velocity (n,) that takes away an offset (n,), m: proportional, at most `speed`."""
        return _limit(self.steering.gain * offset, self.steering.speed if speed is None else speed)

    def turn(self, rotation: Rotation, goal: Rotation) -> Array:
        """Angular velocity (3,) from one orientation to another, base axes."""
        rotvec = (goal * rotation.inv()).as_rotvec()
        return _limit(self.steering.rotation_gain * rotvec, self.steering.angular_speed)


class ReachSkill(Skill):
    """Move straight to the goal, tool level."""

    watches = (GOAL,)

    def begin(self, view: View, rng: np.random.Generator) -> None:
        """Nothing to remember."""

    def steer(self, view: View) -> Array:
        """Straight to the goal."""
        level = Rotation.from_quat(self.spec.orientation.reference)
        velocity = self.towards(view.objects[GOAL].position - view.pose.position)
        return np.concatenate((velocity, self.turn(view.pose.rotation, level)))

    def judge(self, view: View) -> Judgement:
        """Distance to the goal."""
        distance = float(np.linalg.norm(view.objects[GOAL].position - view.pose.position))
        return Judgement(distance, "", distance < 0.04)


class PegInsertSkill(Skill):
    """Hover over the hole, lower the peg, feel for the hole on its rim, push it in."""

    watches = (HOLE,)

    def __init__(self, task: PegInsert, steering: SteeringConfig, config: InsertConfig) -> None:
        super().__init__(task.spec, steering)
        self.task = task
        self.config = config
        self._phase = "approach"
        self._rng = np.random.default_rng(0)
        self._shift = np.zeros(2)  # where the hole was felt, from where it was seen
        self._since = 0.0  # when the phase began
        self._angle = 0.0  # turned along the spiral, rad
        self._first_angle = 0.0
        self._turning = 1.0
        self._lowest = math.inf
        self._lowest_at = 0.0

    @property
    def phase(self) -> str:
        """approach, search, insert or retreat."""
        return self._phase

    def begin(self, view: View, rng: np.random.Generator) -> None:
        """Start from wherever the peg is."""
        self._rng = rng
        self._shift = np.zeros(2)
        offset = self._offset(view)
        inside = offset[2] < -self.config.drop
        if inside:
            self._shift = offset[:2].copy()
        self._enter("insert" if inside else "approach", view)

    def steer(self, view: View) -> Array:
        """Velocity of the present phase."""
        self._advance(view)
        offset = self._offset(view)
        angular = self.turn(view.pose.rotation, self._upright(view))
        if self._phase == "approach":
            return np.concatenate((self._approach(view, offset), angular))
        if self._phase == "search":
            return np.concatenate((self._search(view, offset), angular))
        if self._phase == "insert":
            return self._insert(view, angular)
        up = self.towards(np.array([self.config.retreat - offset[2]]), self.config.push_speed)
        return np.concatenate(((0.0, 0.0), up, angular))

    def judge(self, view: View) -> Judgement:
        """Way left: beside the hole, then down to where it counts."""
        offset = self._offset(view)
        lateral = float(np.hypot(offset[0], offset[1]))
        depth = max(0.0, float(offset[2]) + self.task.params.success_depth)
        angle = (self._upright(view) * view.pose.rotation.inv()).magnitude()
        aligned = lateral < self.config.align and angle < self.config.align_angle
        near = offset[2] < 2.0 * self.config.hover
        inside = offset[2] < -self.config.drop
        low_and_beside = offset[2] < self.config.rim and lateral > 0.008
        bad = "the peg is down beside the hole" if low_and_beside else ""
        return Judgement(lateral + depth, bad, bool(inside or (aligned and near)))

    def _offset(self, view: View) -> Array:
        """Tip from the mouth of the hole as the person sees it, base axes, (3,) m."""
        return self.task.tip(view.pose) - view.objects[HOLE].position

    def _upright(self, view: View) -> Rotation:
        down = Rotation.from_quat(self.spec.orientation.reference)
        return view.objects[HOLE].rotation * down

    def _enter(self, phase: str, view: View) -> None:
        self._phase = phase
        self._since = view.time
        self._lowest = math.inf
        self._lowest_at = view.time
        if phase == "search":
            self._angle = 0.0
            self._first_angle = float(self._rng.uniform(0.0, 2.0 * math.pi))
            self._turning = float(self._rng.choice([-1.0, 1.0]))

    def _advance(self, view: View) -> None:
        """Go to the next phase where the situation calls for it."""
        config, offset = self.config, self._offset(view)
        height = float(offset[2])
        if height < self._lowest - 5e-4:
            self._lowest, self._lowest_at = height, view.time
        if self._phase in ("approach", "search") and height < -config.drop:
            self._shift = offset[:2].copy()
            self._enter("insert", view)
        elif self._phase == "approach":
            lateral = float(np.linalg.norm(offset[:2] - self._shift))
            if self._on_rim(view, height) and lateral < config.search_radius:
                self._enter("search", view)
        elif self._phase == "search":
            too_long = view.time - self._since > config.give_up_time
            if too_long or self._radius() > config.search_radius:
                self._retry(view)
        elif self._phase == "insert":
            if view.time - self._lowest_at > config.give_up_time:
                self._retry(view)
        elif height > 0.8 * config.retreat:
            self._enter("approach", view)

    def _retry(self, view: View) -> None:
        """Lift the peg and aim a little elsewhere."""
        self._shift = self._rng.normal(0.0, 0.3 * self.config.search_radius, 2)
        self._enter("retreat", view)

    def _on_rim(self, view: View, height: float) -> bool:
        return bool(abs(height) < self.config.rim and view.wrench[2] > self.config.contact_force)

    def _approach(self, view: View, offset: Array) -> Array:
        """Over the hole first, then down: (3,) m/s."""
        config = self.config
        lateral = offset[:2] - self._shift
        angle = (self._upright(view) * view.pose.rotation.inv()).magnitude()
        aligned = np.hypot(*lateral) < config.align and angle < config.align_angle
        if aligned:
            down = np.array([-config.lower_speed])
        else:
            hover = config.hover + 0.5 * max(0.0, float(np.hypot(*lateral)) - config.align)
            down = self.towards(np.array([hover - offset[2]]))
        return np.concatenate((self.towards(-lateral), down))

    def _search(self, view: View, offset: Array) -> Array:
        """Along the rim under light pressure: circling, and towards the side that hangs free.

        Returns:
            velocity (3,), m/s.
        """
        config, period = self.config, self.spec.period
        hanging = self._hanging_side(view)
        moved = self._shift + config.feel * config.search_speed * period * hanging
        self._shift = _limit(moved, config.search_radius)
        radius = self._radius()
        self._angle += config.search_speed * period / max(radius, 0.5 * config.search_pitch)
        around = self._first_angle + self._turning * self._angle
        aim = self._shift + radius * np.array([math.cos(around), math.sin(around)])
        aim = _limit(aim, config.search_radius)
        along = self.towards(aim - offset[:2], 2.0 * config.search_speed)
        along = along + config.feel * config.search_speed * hanging
        press = config.force_gain * (view.wrench[2] - config.push_force)
        return np.append(along, np.clip(press, -config.lower_speed, config.lower_speed))

    def _radius(self) -> float:
        """Radius of the spiral now, m."""
        return self.config.search_pitch * self._angle / (2.0 * math.pi)

    def _hanging_side(self, view: View) -> Array:
        """Direction (2,), at most 1 long, away from the side of the peg that the rim carries.

        It is read from the centre of pressure at the tip, as the hand feels it.
        """
        force, torque = view.wrench[:3], view.wrench[3:]
        if force[2] < self.config.contact_force:
            return np.zeros(2)
        lever = self.task.params.peg_length
        carried = (
            np.array([-(torque[1] + lever * force[0]), torque[0] - lever * force[1]]) / force[2]
        )
        return _limit(-carried / (0.3 * self.task.params.peg_half_width), 1.0)

    def _insert(self, view: View, angular: Array) -> Array:
        """Push; the hole guides the peg. Tilt it to and fro when it is stuck."""
        config = self.config
        stuck = view.time - self._lowest_at > config.stuck_time
        if stuck:
            around = 2.0 * math.pi * (view.time - self._lowest_at) / config.wiggle_period
            tilt = np.array([math.cos(around), math.sin(around), 0.0])
            angular = angular + config.wiggle * tilt
        return np.concatenate(((0.0, 0.0, -config.push_speed), angular))


class PickLiftSkill(Skill):
    """Hover over the cube, lower the hand, close it, lift; open and try again if it is lost."""

    watches = (CUBE,)

    def __init__(self, task: PickLift, steering: SteeringConfig, config: PickConfig) -> None:
        super().__init__(task.spec, steering)
        self.task = task
        self.config = config
        self._phase = "approach"
        self._since = 0.0

    @property
    def phase(self) -> str:
        """approach, close, lift or open."""
        return self._phase

    def begin(self, view: View, rng: np.random.Generator) -> None:
        """Start from wherever hand and cube are."""
        self._enter("lift" if self._holding(view) else self._free(view), view)

    def steer(self, view: View) -> Array:
        """Velocity of the present phase."""
        self._advance(view)
        cube = view.objects[CUBE]
        angular = self.turn(view.pose.rotation, self.task.aligned(cube))
        offset = cube.position - view.pose.position
        if self._phase == "approach":
            linear = self._approach(offset)
        elif self._phase == "lift":
            missing = self.task.params.lift + 0.02 - self.task.lifted(cube)
            linear = np.append(np.zeros(2), self.towards(np.array([missing]), self._lift_speed))
        else:
            linear = np.zeros(3)
        return np.concatenate((linear, angular))

    def grip(self) -> int:
        """Close from when the cube is between the fingers; open to begin with."""
        return {"close": -1, "lift": -1, "open": 1}.get(self._phase, 0)

    def judge(self, view: View) -> Judgement:
        """Way left: to the cube, then up with it."""
        cube = view.objects[CUBE]
        distance = float(np.linalg.norm(cube.position - view.pose.position))
        left = max(0.0, self.task.params.lift - self.task.lifted(cube))
        holding = self._holding(view)
        return Judgement((0.0 if holding else distance) + left, "", holding and left < 0.08)

    @property
    def _lift_speed(self) -> float:
        return self.config.lift_speed

    def _free(self, view: View) -> str:
        """Phase of a hand that holds nothing: it has to be open before it goes anywhere."""
        wide = view.gripper_width > 2.5 * self.task.params.half_edge
        return "approach" if wide else "open"

    def _holding(self, view: View) -> bool:
        """The cube is between fingers that touch it."""
        distance = np.linalg.norm(view.objects[CUBE].position - view.pose.position)
        touching = self.config.closed < view.gripper_width < 2.4 * self.task.params.half_edge
        return bool(touching and distance < self.config.lost)

    def _enter(self, phase: str, view: View) -> None:
        self._phase, self._since = phase, view.time

    def _advance(self, view: View) -> None:
        """Go to the next phase where the situation calls for it."""
        config = self.config
        waited = view.time - self._since
        offset = view.objects[CUBE].position - view.pose.position
        if self._phase == "approach" and self._free(view) == "open":
            self._enter("open", view)  # somebody else has closed the hand
        elif self._phase == "approach" and float(np.linalg.norm(offset)) < config.grip:
            self._enter("close", view)
        elif self._phase == "close" and waited > config.settle:
            self._enter("lift" if self._holding(view) else "open", view)
        elif self._phase == "lift" and not self._holding(view):
            self._enter("open", view)
        elif self._phase == "open" and self._free(view) == "approach":
            self._enter("approach", view)

    def _approach(self, offset: Array) -> Array:
        """Over the cube first, then down: (3,) m/s."""
        config = self.config
        beside = max(0.0, float(np.hypot(*offset[:2])) - config.align)
        hover = min(config.hover, 4.0 * beside)
        return self.towards(offset + np.array([0.0, 0.0, hover]))


def make_skill(
    task: Task, steering: SteeringConfig, insert: InsertConfig, pick: PickConfig
) -> Skill:
    """Skill of a person for a task.

    Raises:
        ValueError: nobody has taught the scripted person this task.
    """
    if isinstance(task, PegInsert):
        return PegInsertSkill(task, steering, insert)
    if isinstance(task, PickLift):
        return PickLiftSkill(task, steering, pick)
    if isinstance(task, Reach):
        return ReachSkill(task.spec, steering)
    raise ValueError(
        f"the scripted expert does not know task {task.spec.name!r}; it knows peg_insert, "
        "pick_lift, reach"
    )


def _limit(velocity: Array, speed: float) -> Array:
    norm = float(np.linalg.norm(velocity))
    return velocity if norm <= speed else velocity * (speed / norm)
