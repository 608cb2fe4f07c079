"""Figures of a demo run: success rate with its interval, intervention rate over training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Episode:
    """Length of one training episode, and how many of its steps a person drove."""

    steps: int
    intervened_steps: int


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson score interval of a success rate; 95 % by default. No trials: (0, 1)."""
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    scale = 1 + z**2 / trials
    centre = (rate + z**2 / (2 * trials)) / scale
    half = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2)) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def intervention_rate(episodes: Sequence[Episode], start: float, end: float) -> float:
    """Share of steps that a person drove, between two fractions of all steps (0 to 1).

    An episode on a border counts with the part of its steps that lies inside.
    """
    total = sum(episode.steps for episode in episodes)
    low, high = start * total, end * total
    inside = driven = begun = 0.0
    for episode in episodes:
        part = min(high, begun + episode.steps) - max(low, begun)
        begun += episode.steps
        if part > 0:
            inside += part
            driven += part * episode.intervened_steps / episode.steps
    return driven / inside if inside else 0.0


@dataclass(frozen=True)
class Evaluation:
    """What a demo run has come to."""

    task: str
    seed: int
    successes: int
    eval_episodes: int
    env_steps: int
    demos: int
    episodes: Sequence[Episode]
    """Training episodes in order."""
    train_s: float
    wall_s: float

    def line(self) -> dict[str, object]:
        """The line of `hil demo --json`."""
        low, high = wilson(self.successes, self.eval_episodes)
        rate = self.successes / self.eval_episodes if self.eval_episodes else 0.0
        return {
            "task": self.task,
            "success_rate": round(rate, 4),
            "ci95": [round(low, 4), round(high, 4)],
            "eval_episodes": self.eval_episodes,
            "env_steps": self.env_steps,
            "demos": self.demos,
            "intervention_rate_first": round(intervention_rate(self.episodes, 0.0, 0.2), 4),
            "intervention_rate_last": round(intervention_rate(self.episodes, 0.8, 1.0), 4),
            "wall_s": round(self.wall_s, 1),
            "train_s": round(self.train_s, 1),
            "seed": self.seed,
        }
