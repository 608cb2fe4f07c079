"""The scripted expert: stands in for the person in demonstrations, tests and benchmarks. No ROS.

It watches what a person would see (the estimated poses of objects, the arm, the contact force),
late and with its own error. It lets the policy try, takes over when progress stalls or things look
bad, steers with a person's bandwidth, noise and speed, searches by touch, and lets go when the
task is done or the rest looks easy. Everything it does follows from its settings, its seed and
what it saw.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.spatial.transform import Rotation

from hil_tasks import MissingObject, OverrideError, Pose, Reading, Task, TaskSpec
from hil_tasks.geometry import Array
from hil_tasks.overrides import apply_overrides
from hil_teleop.mapping import ArmInput
from hil_teleop.skills import (
    InsertConfig,
    Judgement,
    PickConfig,
    SteeringConfig,
    View,
    make_skill,
)


@dataclass(frozen=True)
class PerceptionConfig:
    """How well a person sees and feels.

    Attributes:
        delay: s between what happens and what the person acts on, while steering.
        position_error: m, standard deviation per axis of a misjudgement that stays for the
            episode.
        position_jitter: m, standard deviation per axis and step.
        tilt_error: rad, standard deviation per horizontal axis of the misjudged orientation of an
            object (people see well what is upright).
        yaw_error: rad, the same about the vertical axis.
        force_error: relative standard deviation of the felt force and torque, per step.
    """

    delay: float = 0.1
    position_error: float = 0.0005
    position_jitter: float = 0.0002
    tilt_error: float = 0.003
    yaw_error: float = 0.01
    force_error: float = 0.1


@dataclass(frozen=True)
class HandConfig:
    """How well a person's hand does what it should.

    Attributes:
        time_constant: s, low-pass from intent to motion.
        deflection: largest deflection of the device that the person uses, in (0, 1].
        noise: standard deviation, relative to the deflection.
        tremor: standard deviation of the deflection at rest.
    """

    time_constant: float = 0.12
    deflection: float = 0.9
    noise: float = 0.1
    tremor: float = 0.02


@dataclass(frozen=True)
class AttentionConfig:
    """When a person takes over, and when not.

    Attributes:
        grace: s at the start of an episode that belong to the policy.
        patience: s without progress until the person takes over (median).
        patience_spread: standard deviation of the logarithm of the patience.
        progress: share of what is left that has to be done within the patience.
        reaction: s from a decision to the hand's first motion.
        bad_force: N that look dangerous.
        bad_tilt: rad from upright that look wrong.
        astray: m farther from the goal than before that look wrong.
        finish: probability that the person, once driving, finishes the task.
        min_bout: s that the person drives at least.
        max_bout: s after which the person lets go anyhow, unless he finishes the task.
        pause: s after letting go in which the policy is left alone.
    """

    grace: float = 1.0
    patience: float = 2.0
    patience_spread: float = 0.2
    progress: float = 0.15
    reaction: float = 0.3
    bad_force: float = 30.0
    bad_tilt: float = 0.22
    astray: float = 0.03
    finish: float = 0.8
    min_bout: float = 1.0
    max_bout: float = 4.0
    pause: float = 1.5


@dataclass(frozen=True)
class ExpertConfig:
    """All settings of the scripted expert, frozen before a result is reported with it."""

    perception: PerceptionConfig = field(default_factory=PerceptionConfig)
    hand: HandConfig = field(default_factory=HandConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    steering: SteeringConfig = field(default_factory=SteeringConfig)
    insert: InsertConfig = field(default_factory=InsertConfig)
    pick: PickConfig = field(default_factory=PickConfig)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "") -> ExpertConfig:
        """Settings from nested plain data; what is not named keeps its default.

        Raises:
            OverrideError: unknown setting (names the nearest) or a wrong type.
        """
        return apply_overrides(cls(), values, where)

    @classmethod
    def load(cls, path: str | Path) -> ExpertConfig:
        """Settings from a YAML file.

        Raises:
            FileNotFoundError: no such file.
            OverrideError: not a mapping, unknown setting or wrong type; names the file.
        """
        with open(path, encoding="utf-8") as stream:
            content = yaml.safe_load(stream) or {}
        if not isinstance(content, Mapping):
            raise OverrideError(f"{path}: must be a mapping")
        try:
            return cls.from_dict(content)
        except OverrideError as error:
            raise OverrideError(f"{path}: {error}") from error


class Perception:
    """What reaches the person of a reading: later, and a little wrong."""

    def __init__(self, config: PerceptionConfig, period: float, watches: tuple[str, ...]) -> None:
        self._config = config
        self._watches = watches
        self._queue: deque[View] = deque(maxlen=1 + round(config.delay / period))
        self._rng = np.random.default_rng(0)
        self._errors: dict[str, tuple[Array, Rotation]] = {}

    def begin(self, rng: np.random.Generator) -> None:
        """Forget the last episode; misjudgements are drawn anew."""
        self._rng = rng
        self._queue.clear()
        self._errors.clear()

    def see(self, reading: Reading, time: float) -> View:
        """The view that the person acts on now.

        Raises:
            MissingObject: an object that the person looks at is not in the reading.
        """
        config = self._config
        objects = {name: self._misjudge(name, reading.objects) for name in self._watches}
        felt = 1.0 + config.force_error * self._rng.standard_normal(6)
        wrench = reading.wrench * felt
        self._queue.append(View(time, reading.pose, wrench, objects, reading.gripper_width))
        return self._queue[0]

    def _misjudge(self, name: str, objects: Mapping[str, Pose]) -> Pose:
        if name not in objects:
            there = ", ".join(sorted(objects)) or "none"
            raise MissingObject(f"the expert looks for object {name!r}; there are: {there}")
        pose, config = objects[name], self._config
        if name not in self._errors:
            position = config.position_error * self._rng.standard_normal(3)
            errors = np.array([config.tilt_error, config.tilt_error, config.yaw_error])
            turn = Rotation.from_rotvec(errors * self._rng.standard_normal(3))
            self._errors[name] = (position, turn)
        position, turn = self._errors[name]
        jitter = config.position_jitter * self._rng.standard_normal(3)
        return Pose(pose.position + position + jitter, turn * pose.rotation)


class Hand:
    """From intent to the deflection of the device: low-pass, limits, noise."""

    def __init__(self, config: HandConfig, spec: TaskSpec) -> None:
        self._config = config
        self._keep = math.exp(-spec.period / config.time_constant) if config.time_constant else 0.0
        scale = np.repeat((spec.action_scale.translation, spec.action_scale.rotation), 3)
        self._full_speed = scale * spec.control_hz
        self._deflection = np.zeros(6)
        self._rng = np.random.default_rng(0)

    def begin(self, rng: np.random.Generator) -> None:
        """A new episode."""
        self._rng = rng
        self.rest()

    def rest(self) -> None:
        """The device is at rest, for example when the hand takes it."""
        self._deflection = np.zeros(6)

    def move(self, velocity: Array) -> Array:
        """Deflection (6,) in [-1, 1] for a wanted velocity (6,), m/s and rad/s."""
        config = self._config
        intent = velocity / self._full_speed
        for half in (slice(0, 3), slice(3, 6)):
            largest = float(np.abs(intent[half]).max())
            intent[half] *= config.deflection / max(config.deflection, largest)
        self._deflection = self._keep * self._deflection + (1.0 - self._keep) * intent
        noise, tremor = self._rng.standard_normal((2, 6))
        felt: Array = self._deflection * (1.0 + config.noise * noise) + config.tremor * tremor
        return felt.clip(-1.0, 1.0)


class Attention:
    """Decides when the person takes over and lets go."""

    def __init__(self, config: AttentionConfig) -> None:
        self._config = config
        self._rng = np.random.default_rng(0)
        self.engaged = False
        self.reason = ""
        self._begin_time = 0.0

    def begin(self, rng: np.random.Generator, demo: bool) -> None:
        """A new episode; in a demonstration the person drives from the start."""
        self._rng = rng
        self._demo = demo
        self.engaged = demo
        self.reason = "demonstration" if demo else ""
        self._finishing = demo
        self._engaged_at = 0.0
        self._free_until = self._config.grace
        self._noticed_at: float | None = None
        self._watch_from(None, 0.0)

    def decide(self, judgement: Judgement, view: View, now: float) -> bool:
        """Whether the person drives in this step.

        Args:
            judgement: of the view.
            view: what the person sees.
            now: s since the episode's start.
        """
        if self._demo:
            return True
        if self.engaged:
            self._consider_letting_go(judgement, now)
        else:
            self._consider_taking_over(judgement, view, now)
        return self.engaged

    def _watch_from(self, remaining: float | None, now: float) -> None:
        """Progress is measured from here."""
        self._best = remaining
        self._best_at = now
        spread = self._config.patience_spread * float(self._rng.standard_normal())
        self._patience = self._config.patience * math.exp(spread)

    def _consider_letting_go(self, judgement: Judgement, now: float) -> None:
        config = self._config
        driven = now - self._engaged_at
        if self._finishing or driven < config.min_bout:
            return
        if judgement.on_track or driven >= config.max_bout:
            self.engaged = False
            self.reason = ""
            self._free_until = now + config.pause
            self._watch_from(judgement.remaining, now)

    def _consider_taking_over(self, judgement: Judgement, view: View, now: float) -> None:
        config = self._config
        if self._best is None:
            self._watch_from(judgement.remaining, now)
        elif judgement.remaining < (1.0 - config.progress) * self._best:
            self._best, self._best_at = judgement.remaining, now
        reason = self._reason(judgement, view, now)
        if not reason:
            self._noticed_at = None
            return
        if self._noticed_at is None:
            self._noticed_at = now
        if now - self._noticed_at >= config.reaction - 1e-9:
            self._noticed_at = None
            self.engaged = True
            self.reason = reason
            self._engaged_at = now
            self._finishing = bool(self._rng.random() < config.finish)

    def _reason(self, judgement: Judgement, view: View, now: float) -> str:
        config = self._config
        if np.linalg.norm(view.wrench[:3]) > config.bad_force:
            return "force"
        if now < self._free_until:
            return ""
        if judgement.bad:
            return judgement.bad
        if self._best is not None and judgement.remaining > self._best + config.astray:
            return "astray"
        return "no progress" if now - self._best_at > self._patience else ""


class ScriptedExpert:
    """A person, scripted, for one arm.

    Call `begin` at the start of an episode and `act` once per control step.

    Args:
        task: what is to be done.
        config: what kind of person.
        seed: which one; with the episode's number it fixes all randomness.

    Raises:
        ValueError: the task has two arms, or is unknown to the expert.
    """

    def __init__(self, task: Task, config: ExpertConfig | None = None, seed: int = 0) -> None:
        if len(task.spec.arms) != 1:
            raise ValueError("the scripted expert drives one arm")
        self.task = task
        self.config = config if config is not None else ExpertConfig()
        self.seed = seed
        self.skill = make_skill(task, self.config.steering, self.config.insert, self.config.pick)
        self._perception = Perception(self.config.perception, task.spec.period, self.skill.watches)
        self._hand = Hand(self.config.hand, task.spec)
        self._attention = Attention(self.config.attention)
        self._step = 0
        self._driving = False
        self.begin(0)

    @property
    def reason(self) -> str:
        """Why the person drives, "" while he does not."""
        return self._attention.reason

    def begin(self, episode: int, demo: bool = False) -> None:
        """A new episode.

        Args:
            episode: its number.
            demo: the person drives from the first step to success.
        """
        streams = np.random.SeedSequence((self.seed, episode)).spawn(4)
        eyes, hand, mind, search = (np.random.default_rng(s) for s in streams)
        self._perception.begin(eyes)
        self._hand.begin(hand)
        self._attention.begin(mind, demo)
        self._search_rng = search
        self._step = 0
        self._driving = False

    def act(self, reading: Reading) -> ArmInput:
        """What the person does in this step."""
        now = self._step * self.task.spec.period
        self._step += 1
        view = self._perception.see(reading, now)
        if not self._attention.decide(self.skill.judge(view), view, now):
            self._driving = False
            return ArmInput(self.task.spec.arms[0])
        if not self._driving:
            self._driving = True
            self.skill.begin(view, self._search_rng)
            self._hand.rest()
        x, y, z, rx, ry, rz = self._hand.move(self.skill.steer(view)).tolist()
        return ArmInput(self.task.spec.arms[0], True, (x, y, z, rx, ry, rz), self.skill.grip())
