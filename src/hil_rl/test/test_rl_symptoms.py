"""Each rule speaks where it should, and healthy training gets no warning."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from hil_rl.goals import GoalEpisode
from hil_rl.symptoms import ENOUGH, Evidence, symptoms


def episodes(success: tuple[bool, bool], end: tuple[float, float]) -> list[GoalEpisode]:
    """An older and a newer half of a window."""
    goal = np.zeros(3)
    return [
        GoalEpisode(success[half], 0.5, end[half], end[half], goal)
        for half in (0, 1)
        for _ in range(ENOUGH // 2)
    ]


HEALTHY = Evidence(
    episodes=episodes((False, True), (0.2, 0.01)),
    tolerance=0.02,
    goal_spread=0.1,
    influence=0.5,
    trivial=0.1,
    rejected=0.0,
    disagreeing=0.0,
    relabelled=0.5,
)


def names(**changes: object) -> list[str]:
    return [s.name for s in symptoms(dataclasses.replace(HEALTHY, **changes))]


def test_healthy_training_and_no_evidence_give_no_warning() -> None:
    assert names() == []
    nothing = {f.name: math.nan for f in dataclasses.fields(Evidence)}
    assert symptoms(Evidence(**(nothing | {"episodes": (), "tolerance": 0.0}))) == []


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("reward_disagrees", {"disagreeing": 0.05}),
        ("trivial_goals", {"trivial": 0.9}),
        ("all_rejected", {"rejected": 0.95}),
        ("constant_goal", {"goal_spread": 0.0}),
        ("goal_ignored", {"influence": 0.001}),
        ("success_falls", {"episodes": episodes((True, False), (0.01, 0.3))}),
        ("stuck_at_tolerance", {"episodes": episodes((False, False), (0.03, 0.03))}),
        ("success_later", {"episodes": episodes((False, False), (0.5, 0.3))}),
        ("no_progress", {"episodes": episodes((False, False), (0.5, 0.5))}),
    ],
)
def test_rules(name: str, changes: dict[str, object]) -> None:
    assert names(**changes) == [name]


def test_nothing_is_said_about_a_few_episodes() -> None:
    few = episodes((False, False), (0.5, 0.5))[: ENOUGH - 1]
    assert names(episodes=few, goal_spread=0.0, influence=0.0) == []
