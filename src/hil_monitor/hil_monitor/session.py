"""What the console knows of a session: who is in control, episodes, learner, nodes. No ROS.

The node feeds it what arrives; the server asks for pictures of it as plain data. Both threads may
use it at once. Times are seconds of the steady clock.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hil_monitor.coaching import advise
from hil_monitor.run_files import Episode, TrainingPoint

SILENT = 5.0
"""Seconds without diagnostics after which a node counts as not responding."""
VITAL = ("robot_bridge", "actor")
"""Nodes without which there is no control: their silence is a fault."""
_TIMELINE_EPISODES = 8
_KEPT_EPISODES = 5000
_KEPT_POINTS = 20000
_FAULT_MODES = ("disconnected", "reflex")
_HELD_MODES = ("user stopped", "guiding", "idle")


@dataclass(frozen=True)
class ActorView:
    """What the actor says of itself; see ActorState."""

    phase: str = ""
    mode: str = ""
    text: str = ""
    session: str = ""
    episode: int = 0
    step: int = 0
    intervened: bool = False
    operator_allowed: bool = True
    policy_version: int = 0


@dataclass(frozen=True)
class RobotView:
    """What the bridge says of an arm; see RobotState. force: N, norm."""

    arm: str = ""
    mode: str = ""
    text: str = ""
    errors: tuple[str, ...] = ()
    stop_latched: bool = False
    operator_hold: bool = False
    compliance: str = ""
    recoveries: int = 0
    force: float = 0.0


@dataclass(frozen=True)
class LearnerView:
    """How far training is; see LearnerStatus. Rates are NaN before the first episode."""

    run_id: str = ""
    phase: str = ""
    waiting_for: str = ""
    env_steps: int = 0
    demo_episodes: int = 0
    updates: int = 0
    updates_per_s: float = 0.0
    policy_version: int = 0
    success_rate: float = math.nan
    intervention_rate: float = math.nan


@dataclass
class NodeHealth:
    """A node's newest diagnostics. level: 0 ok, 1 warning, 2 error."""

    level: int
    text: str
    values: dict[str, str]
    heard: float


@dataclass(frozen=True)
class Control:
    """Who is in control: policy, operator, reset, hold or fault, and why, in words."""

    state: str
    reason: str = ""


@dataclass
class Bout:
    """Consecutive steps of an episode under one control."""

    who: str
    steps: int = 1


@dataclass
class EpisodeTrack:
    """An episode as it was seen live, for the timeline."""

    number: int
    mode: str
    began: float
    steps: int = 0
    bouts: list[Bout] = field(default_factory=list)

    def follow(self, who: str, step: int) -> None:
        """Note who drives in this step; steps that were not seen belong to the one before."""
        new = step + 1 - self.steps
        if new <= 0:
            return
        if self.bouts and (self.bouts[-1].who == who or new > 1):
            self.bouts[-1].steps += new if self.bouts[-1].who == who else new - 1
        if not self.bouts or self.bouts[-1].who != who:
            self.bouts.append(Bout(who, 1 if self.bouts else new))
        self.steps = step + 1


class Session:
    """Everything that the page shows, but pictures and prompts.

    Args:
        clock: steady, s.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._actor: ActorView | None = None
        self._robots: dict[str, RobotView] = {}
        self._learner: LearnerView | None = None
        self._learner_heard = 0.0
        self._policy_since = 0.0
        self._nodes: dict[str, NodeHealth] = {}
        self._manager = ""
        self._tracks: deque[EpisodeTrack] = deque(maxlen=_TIMELINE_EPISODES)
        self._episodes: dict[tuple[str, int], Episode] = {}
        self._training: deque[tuple[int, TrainingPoint]] = deque(maxlen=_KEPT_POINTS)
        self._changed: dict[tuple[str, int], int] = {}
        self.version = 0
        """Rises when the episodes or the training curve change."""

    # ------------------------------------------------------------------------ what arrives

    def saw_actor(self, view: ActorView) -> None:
        """The actor said what it does."""
        with self._lock:
            before, self._actor = self._actor, view
            if view.phase not in ("running", "holding", "paused"):
                return
            track = self._tracks[-1] if self._tracks else None
            new_life = before is None or before.session != view.session
            if track is None or new_life or track.number != view.episode:
                track = EpisodeTrack(view.episode, view.mode, self._clock())
                self._tracks.append(track)
            if view.phase == "running":
                track.follow("operator" if view.intervened else "policy", view.step)
            elif view.phase == "holding":
                track.follow("hold", view.step)

    def saw_robot(self, view: RobotView) -> None:
        """The bridge described an arm."""
        with self._lock:
            self._robots[view.arm] = view

    def saw_learner(self, view: LearnerView) -> None:
        """The learner said how far it is."""
        with self._lock:
            before = self._learner
            if before is None or before.policy_version != view.policy_version:
                self._policy_since = self._clock()
            self._learner, self._learner_heard = view, self._clock()

    def saw_health(self, name: str, level: int, text: str, values: Mapping[str, str]) -> None:
        """A node's diagnostics."""
        with self._lock:
            self._nodes[name] = NodeHealth(level, text, dict(values), self._clock())

    def saw_manager(self, text: str) -> None:
        """What hil_manager says of the graph."""
        with self._lock:
            self._manager = text

    def saw_episode(self, episode: Episode) -> None:
        """An episode has ended. The same one again replaces what was known of it."""
        self.saw_history([episode], [])

    def saw_history(self, episodes: Iterable[Episode], training: Iterable[TrainingPoint]) -> None:
        """Episodes and training figures, in order."""
        with self._lock:
            for episode in episodes:
                key = episode.session, episode.episode
                self._episodes[key] = _merged(self._episodes.get(key), episode)
                self._note(key)
            while len(self._episodes) > _KEPT_EPISODES:
                oldest = next(iter(self._episodes))
                del self._episodes[oldest], self._changed[oldest]
            for point in training:
                self.version += 1
                self._training.append((self.version, point))

    def label(self, session: str, episode: int, success: bool | None) -> None:
        """A person labelled an episode; None: took the label back."""
        with self._lock:
            known = self._episodes.get((session, episode))
            if known is not None:
                known.label = success
                self._note((session, episode))

    def episode(self, session: str, number: int) -> Episode | None:
        """The finished episode of that number."""
        with self._lock:
            return self._episodes.get((session, number))

    def _note(self, key: tuple[str, int]) -> None:
        self.version += 1
        self._changed[key] = self.version

    # ------------------------------------------------------------------------ what is shown

    @property
    def run_id(self) -> str:
        """Of the learner; empty before it was heard."""
        with self._lock:
            return self._learner.run_id if self._learner else ""

    @property
    def actor(self) -> ActorView | None:
        """The actor's newest words."""
        with self._lock:
            return self._actor

    def control(self) -> Control:
        """Who is in control now."""
        with self._lock:
            fault = self._fault()
            if fault:
                return Control("fault", fault)
            held = self._held()
            actor = self._actor
            if held or actor is None:
                return Control("hold", held or "waiting for the actor")
            if actor.phase == "resetting":
                return Control("reset", actor.text)
            if actor.phase != "running":
                return Control("hold", actor.text)
            if actor.intervened or actor.mode == "demo" or self._operator_holds():
                return Control("operator")
            return Control("policy")

    def live(self) -> dict[str, Any]:
        """What changes all the time."""
        with self._lock:
            now = self._clock()
            actor = self._actor or ActorView()
            track = self._tracks[-1] if self._tracks else None
            robots = [asdict(robot) for robot in self._robots.values()]
            return {
                "control": asdict(self.control()),
                "actor": asdict(actor),
                "episode_s": round(now - track.began, 1) if track else None,
                "robots": robots,
                "stopped": any(robot.stop_latched for robot in self._robots.values()),
                "timeline": [
                    {"number": t.number, "mode": t.mode, "bouts": [asdict(b) for b in t.bouts]}
                    for t in self._tracks
                ],
            }

    def slow(self) -> dict[str, Any]:
        """What is worth a look once a second."""
        with self._lock:
            now = self._clock()
            return {
                "learner": self._learner_picture(now),
                "nodes": [
                    {
                        "name": name,
                        "level": 3 if now - node.heard > SILENT else node.level,
                        "text": node.text,
                        "values": node.values,
                        "age": round(now - node.heard, 1),
                    }
                    for name, node in sorted(self._nodes.items())
                ],
                "manager": self._manager,
                "advice": [asdict(a) for a in advise(list(self._episodes.values()))],
            }

    def history(self, since: int = 0) -> dict[str, Any]:
        """Episodes and training figures that are newer than a version. NaN becomes None."""
        with self._lock:
            return {
                "version": self.version,
                "since": since,
                "episodes": [
                    asdict(e) for key, e in self._episodes.items() if self._changed[key] > since
                ],
                "training": [
                    {k: v if math.isfinite(v) else None for k, v in asdict(point).items()}
                    for version, point in self._training
                    if version > since
                ],
            }

    def _learner_picture(self, now: float) -> dict[str, Any] | None:
        if self._learner is None:
            return None
        picture = {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in asdict(self._learner).items()
        }
        picture["age"] = round(now - self._learner_heard, 1)
        picture["policy_age"] = round(now - self._policy_since, 1)
        return picture

    def _fault(self) -> str:
        for robot in self._robots.values():
            if robot.mode in _FAULT_MODES:
                return _arm(robot, robot.text or "; ".join(robot.errors) or robot.mode)
        now = self._clock()
        for name, node in self._nodes.items():
            if name.rsplit("/", 1)[-1] not in VITAL:
                continue
            if now - node.heard > SILENT:
                return f"{name} does not respond"
            if node.level >= 2:
                return f"{name}: {node.text}"
        return ""

    def _held(self) -> str:
        for robot in self._robots.values():
            if robot.stop_latched:
                return _arm(robot, "software stop")
            if robot.mode in _HELD_MODES:
                return _arm(robot, robot.text or robot.mode)
        return ""

    def _operator_holds(self) -> bool:
        return any(robot.operator_hold for robot in self._robots.values())


def _merged(known: Episode | None, episode: Episode) -> Episode:
    """A label stays; what only one source tells is not lost."""
    if known is None:
        return episode
    return replace(
        episode,
        label=episode.label if episode.label is not None else known.label,
        env_steps=episode.env_steps or known.env_steps,
    )


def _arm(robot: RobotView, text: str) -> str:
    return f"{robot.arm}: {text}" if robot.arm else text
