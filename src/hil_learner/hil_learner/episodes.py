"""Episodes and their statistics, derived from the steps themselves."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from hil_learner.records import FLAG_DEMO, FLAG_EVALUATION, FLAG_INTERRUPTED, FLAG_LATE
from hil_rl.store import Step

Mode = Literal["demo", "train", "evaluate"]

WINDOW = 20
"""Training episodes that the success and intervention rates are taken over."""


@dataclass
class Episode:
    """One episode so far; finished ones are handed to `EpisodeStatistics`' listener.

    interventions: how often the person took over. env_steps: training steps of the run when it
    ended. policy_version: of its last step.
    """

    actor_id: str
    stream: str
    episode: int
    mode: Mode
    steps: int = 0
    episode_return: float = 0.0
    success: bool = False
    interrupted: bool = False
    intervened_steps: int = 0
    interventions: int = 0
    late_steps: int = 0
    policy_version: int = 0
    env_steps: int = 0


@dataclass(frozen=True)
class Rates:
    """Shares over a number of episodes; NaN where there are none."""

    episodes: int
    success: float
    success_autonomous: float
    """Of the episodes that no person intervened in."""
    success_assisted: float
    """Of the others."""
    intervention: float
    """Share of steps in which the person drove."""
    late: float
    """Share of steps that took longer than their period."""


def rates(episodes: Iterable[Episode]) -> Rates:
    """Return the rates over `episodes`; interrupted ones say nothing about success."""
    listed = list(episodes)
    finished = [e for e in listed if not e.interrupted]
    alone = [e for e in finished if e.intervened_steps == 0]
    assisted = [e for e in finished if e.intervened_steps > 0]
    steps = sum(e.steps for e in listed)
    return Rates(
        episodes=len(listed),
        success=_share(sum(e.success for e in finished), len(finished)),
        success_autonomous=_share(sum(e.success for e in alone), len(alone)),
        success_assisted=_share(sum(e.success for e in assisted), len(assisted)),
        intervention=_share(sum(e.intervened_steps for e in listed), steps),
        late=_share(sum(e.late_steps for e in listed), steps),
    )


@dataclass
class EpisodeStatistics:
    """Follows every stream of steps and keeps the figures of the newest episodes.

    on_episode: called with every episode that has ended (train, demo and evaluation).
    """

    on_episode: Callable[[Episode], None]
    episodes: int = 0
    demo_episodes: int = 0
    env_steps: int = 0
    recent: deque[Episode] = field(default_factory=lambda: deque(maxlen=WINDOW))
    evaluated: deque[Episode] = field(default_factory=lambda: deque(maxlen=100))
    _running: dict[str, Episode] = field(default_factory=dict)
    _intervening: dict[str, bool] = field(default_factory=dict)

    def on_step(self, actor_id: str, step: Step) -> None:
        """Take the next step of a stream."""
        running = self._running.get(step.stream)
        if running is not None and running.episode != step.episode:
            self.on_interrupted(step.stream)
            running = None
        if running is None:
            running = Episode(actor_id, step.stream, step.episode, _mode(step.flags))
            self._running[step.stream] = running
        self._add(running, step)
        if step.flags & FLAG_INTERRUPTED:
            self.on_interrupted(step.stream)
        elif step.terminated or step.truncated:
            running.success = bool(step.success)
            self._finish(step.stream)

    def on_interrupted(self, stream: str) -> None:
        """Close the episode of a stream that will not be ended by its own."""
        running = self._running.get(stream)
        if running is not None:
            running.interrupted = True
            self._finish(stream)

    def on_success(self, stream: str, episode: int, success: bool) -> None:
        """Correct a recent episode: a person said afterwards whether it succeeded."""
        for each in (*self.recent, *self.evaluated):
            if (each.stream, each.episode) == (stream, episode):
                each.success = success

    def rates(self) -> Rates:
        """Rates over the newest training episodes."""
        return rates(self.recent)

    def _add(self, running: Episode, step: Step) -> None:
        if running.mode == "train":
            self.env_steps += 1
        running.steps += 1
        running.episode_return += step.reward
        running.intervened_steps += step.intervened
        running.late_steps += bool(step.flags & FLAG_LATE)
        running.policy_version = step.policy_version
        was = self._intervening.get(step.stream, False)
        running.interventions += step.intervened and not was
        self._intervening[step.stream] = step.intervened

    def _finish(self, stream: str) -> None:
        episode = self._running.pop(stream)
        self._intervening.pop(stream, None)
        episode.env_steps = self.env_steps
        self._keep(episode)
        self.on_episode(episode)

    def _keep(self, episode: Episode) -> None:
        if episode.mode == "train":
            self.episodes += 1
            self.recent.append(episode)
        elif episode.mode == "evaluate":
            self.evaluated.append(episode)
        elif not episode.interrupted:
            self.demo_episodes += 1


def _mode(flags: int) -> Mode:
    if flags & FLAG_EVALUATION:
        return "evaluate"
    return "demo" if flags & FLAG_DEMO else "train"


def _share(part: float, whole: int) -> float:
    return part / whole if whole else math.nan
