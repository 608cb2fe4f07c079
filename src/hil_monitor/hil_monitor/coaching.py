"""When to intervene more or less, from what the person did and what came of it. No ROS.

The advice is that of HIL-SERL (Luo et al., 2024, arXiv 2410.21845, and its published guide):
intervene often at first and less as the policy improves; let the policy try for a few seconds, and
correct it where it is stuck, in danger or cannot get back; many short corrections rather than
long ones that carry each episode to success, which make the critic overestimate. The figures are
rules of thumb of this project.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hil_monitor.run_files import Episode

WINDOW = 20
"""Newest training episodes that are looked at."""
FEWEST = 5
"""Training episodes before there is anything to say."""
MUCH, LITTLE = 0.5, 0.05
"""Share of steps that the person drove."""
LONG_BOUT = 0.6
"""Share of an episode that one intervention lasts, on average."""
GOOD, POOR = 0.85, 0.3
"""Success rates."""


@dataclass(frozen=True)
class Advice:
    """One piece of advice.

    Attributes:
        key: which; the page has the words in each language.
        lean: more, less, shorter or fine.
        figures: what led to it, rounded, for the words.
    """

    key: str
    lean: str
    figures: dict[str, float] = field(default_factory=dict)


def advise(episodes: Sequence[Episode]) -> list[Advice]:
    """Advice on the newest training episodes, the most important first."""
    training = [e for e in episodes if e.mode == "train" and not e.interrupted and e.steps]
    recent, before = training[-WINDOW:], training[-2 * WINDOW : -WINDOW]
    if len(recent) < FEWEST:
        return [Advice("begin", "fine", {"episodes": len(recent), "wanted": FEWEST})]
    rate = _rate(recent)
    alone = [e for e in recent if not e.intervened_steps]
    success_alone = _mean([e.succeeded for e in alone])
    found = [
        _long_bouts(recent, rate),
        _too_much(recent, before, rate),
        _too_little(recent, alone, rate, success_alone),
        _enough(alone, rate, success_alone),
    ]
    return [a for a in found if a] or [Advice("fine", "fine", {"rate": round(rate, 2)})]


def _long_bouts(recent: Sequence[Episode], rate: float) -> Advice | None:
    """Interventions that carry an episode to its success."""
    driven = [e for e in recent if e.interventions]
    if len(driven) < 3 or rate < LITTLE:
        return None
    bout = _mean([e.intervened_steps / e.interventions / e.steps for e in driven])
    carried = _mean([e.succeeded for e in driven])
    if bout < LONG_BOUT or carried < 0.5:
        return None
    return Advice("shorter", "shorter", {"bout": round(bout, 2), "success": round(carried, 2)})


def _too_much(recent: Sequence[Episode], before: Sequence[Episode], rate: float) -> Advice | None:
    """A rate that does not fall."""
    if rate < MUCH or len(before) < WINDOW // 2 or rate < 0.9 * _rate(before):
        return None
    return Advice("less", "less", {"rate": round(rate, 2), "before": round(_rate(before), 2)})


def _too_little(
    recent: Sequence[Episode], alone: Sequence[Episode], rate: float, success: float
) -> Advice | None:
    """A policy that fails and is left alone."""
    if rate > LITTLE or len(alone) < FEWEST or success > POOR:
        return None
    return Advice("more", "more", {"rate": round(rate, 2), "success": round(success, 2)})


def _enough(alone: Sequence[Episode], rate: float, success: float) -> Advice | None:
    """A policy that does it by itself."""
    if len(alone) < WINDOW // 2 or success < GOOD:
        return None
    return Advice("evaluate", "less", {"success": round(success, 2), "episodes": len(alone)})


def _rate(episodes: Sequence[Episode]) -> float:
    return sum(e.intervened_steps for e in episodes) / max(1, sum(e.steps for e in episodes))


def _mean(values: Sequence[float | bool]) -> float:
    return sum(values) / len(values) if values else 0.0
