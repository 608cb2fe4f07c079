"""What goes wrong with goals, recognised from figures and said in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .goals import GoalEpisode

ENOUGH = 20
"""Episodes before anything is said about them."""


@dataclass(frozen=True)
class Evidence:
    """Figures that the rules look at; NaN where there is none.

    Attributes:
        episodes: newest training episodes, oldest first.
        tolerance: distance at which a goal is reached; 0: not known.
        goal_spread: largest standard deviation of an element of the goals of these episodes.
        influence: of the goal on the policy, see `Hindsight.measure_influence`.
        trivial: share of relabelled transitions whose goal was reached before the action.
        rejected: share of proposed goals that a filter rejected.
        disagreeing: share of recorded rewards that the task's own function does not confirm.
        relabelled: share of the batches.
    """

    episodes: Sequence[GoalEpisode]
    tolerance: float
    goal_spread: float
    influence: float
    trivial: float
    rejected: float
    disagreeing: float
    relabelled: float


@dataclass(frozen=True)
class Symptom:
    """A warning. name: fixed, for filters; text: what is seen, what it may mean, what to do."""

    name: str
    text: str


def symptoms(e: Evidence) -> list[Symptom]:
    """Every rule that applies."""
    found = _of_data(e)
    if len(e.episodes) >= ENOUGH:
        found += _of_goals(e) + _of_progress(e)
    return found


def _of_data(e: Evidence) -> list[Symptom]:
    found = []
    if e.disagreeing > 0.01:
        found.append(
            Symptom(
                "reward_disagrees",
                f"{e.disagreeing:.0%} of the recorded rewards are not what the task's goal reward "
                "gives for the same goal: original and relabelled transitions teach different "
                "things. Correct the reward function, or do not use hindsight where a person or "
                "a classifier gives the reward.",
            )
        )
    if e.trivial > 0.5:
        found.append(
            Symptom(
                "trivial_goals",
                f"{e.trivial:.0%} of the replaced goals were reached before the action, for "
                "example because an object did not move: little is learned from them. Set "
                "keep_reached to 0.1, or a band.",
            )
        )
    if e.rejected > 0.9:
        found.append(
            Symptom(
                "all_rejected",
                f"{e.rejected:.0%} of the proposed goals are rejected, hardly anything is "
                "relabelled. Widen the band, or wait until the policy gets further.",
            )
        )
    return found


def _of_goals(e: Evidence) -> list[Symptom]:
    found = []
    if e.goal_spread < 1e-6:
        found.append(
            Symptom(
                "constant_goal",
                f"the goal was the same in the last {len(e.episodes)} episodes: hindsight has "
                "nothing to generalise to. Vary the goal, or switch it off.",
            )
        )
    if e.influence < 0.02:
        found.append(
            Symptom(
                "goal_ignored",
                f"exchanging goals changes the actions by {e.influence:.1%} of what exchanging "
                "states does: the policy ignores the goal. Check that the desired goal is in the "
                "observation, its scale, and that inputs are normalised.",
            )
        )
    return found


def _of_progress(e: Evidence) -> list[Symptom]:
    half = len(e.episodes) // 2
    older, newer = e.episodes[:half], e.episodes[half:]
    success = [float(np.mean([x.success for x in part])) for part in (older, newer)]
    end = [float(np.mean([x.end for x in part])) for part in (older, newer)]
    start = float(np.mean([x.start for x in newer]))
    if success[1] < success[0] - 0.2 and success[0] > 0.5:
        return [
            Symptom(
                "success_falls",
                f"success on original goals fell from {success[0]:.0%} to {success[1]:.0%}. "
                "Late in training replaced goals teach little: lower the ratio (a schedule over "
                "success does it by itself), and switch a band off.",
            )
        ]
    if success[1] > 0.05:
        return []
    if e.tolerance and end[1] < 2.0 * e.tolerance:
        return [
            Symptom(
                "stuck_at_tolerance",
                f"episodes end {end[1]:.3g} from the goal, just outside the tolerance of "
                f"{e.tolerance:g}, and none succeeds. Precision is missing: switch a band off, "
                "lower the ratio or the temperature, or check that the tolerance is above the "
                "accuracy of the arm.",
            )
        ]
    if end[1] < 0.8 * end[0]:
        return [
            Symptom(
                "success_later",
                f"no success yet, but the distance falls ({end[0]:.3g} to {end[1]:.3g}). That is "
                "normal early in training: go on.",
            )
        ]
    if end[1] > 0.9 * start:
        return [
            Symptom(
                "no_progress",
                f"no success, and episodes end as far from the goal as they start ({start:.3g}, "
                f"{end[1]:.3g}). Compare with hindsight switched off; look at explained samples; "
                "check the scale of the action and that inputs are normalised.",
            )
        ]
    return []
