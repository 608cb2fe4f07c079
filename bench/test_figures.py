"""The arithmetic of the benchmarks' figures."""

# ruff: noqa: D103

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from _figures import (
    Engagement,
    Figure,
    Report,
    StepMark,
    batch_delays,
    hold_delays,
    next_after,
    percentile,
    rate_with_resets,
    share,
    step_intervals,
    takeover_edges,
)

MS = 1_000_000


def marks(*rows: tuple[int, int, float]) -> list[StepMark]:
    """(episode, step, s)."""
    return [
        StepMark("s", seq, episode, step, round(at * 1e9))
        for seq, (episode, step, at) in enumerate(rows, 1)
    ]


def test_figures_are_json_lines_with_null_for_what_is_not_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report(seed=3, as_json=True)
    report.add("loop.late_10hz_pct", 0.41234567, "%", 3000)
    report.add("loop.takeover_hold_p99_ms", math.nan, "ms", 0)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {
        "figure": "loop.late_10hz_pct", "value": 0.41235, "unit": "%", "n": 3000, "seed": 3,
    }  # fmt: skip
    assert second["value"] is None
    assert "-" in Figure("f", math.inf, "s", 1, 0).text()


def test_intervals_stay_within_an_episode_and_need_both_steps() -> None:
    seen = marks((0, 0, 1.0), (0, 1, 1.1), (0, 3, 1.4), (0, 4, 1.5), (1, 0, 9.0), (1, 1, 9.2))
    assert step_intervals(seen) == pytest.approx([0.1, 0.1, 0.2])


def test_the_rate_with_resets_counts_whole_episodes() -> None:
    seen = marks((0, 5, 0.0), (1, 0, 1.0), (1, 1, 1.1), (2, 0, 3.0), (2, 1, 3.1), (3, 0, 5.0))
    rate, steps = rate_with_resets(seen)
    assert (rate, steps) == (pytest.approx(1.0), 4)
    rate, steps = rate_with_resets(seen[:3])
    assert math.isnan(rate) and steps == 0


def test_percentiles_are_values_that_occurred() -> None:
    values = [3.0, 1.0, 2.0, math.inf]
    assert percentile(values, 50) == 2.0
    assert percentile(values, 75) == 3.0
    assert percentile(values, 99) == math.inf
    assert percentile(values, 0) == 1.0
    assert math.isnan(percentile([], 50))
    assert share(1, 4) == 25.0 and math.isnan(share(0, 0))


def test_a_takeover_begins_with_the_first_engaged_command_of_a_session() -> None:
    commands = [
        Engagement(at, session, engaged)
        for at, session, engaged in (
            (1, "a", False), (2, "a", True), (3, "a", True), (4, "a", False), (5, "a", True),
            (6, "b", True), (7, "b", True),
        )
    ]  # fmt: skip
    assert takeover_edges(commands) == [2, 5, 6]


def test_a_hold_belongs_to_the_edge_before_it() -> None:
    edges = [100 * MS, 200 * MS, 300 * MS, 2000 * MS]
    holds = [
        (99 * MS, True),   # of an earlier one
        (101 * MS, False),
        (103 * MS, True),
        (120 * MS, True),
        (310 * MS, True),  # of the third edge: the second one was not held
        (3000 * MS, True),  # too late
    ]  # fmt: skip
    assert hold_delays(edges, holds, 500 * MS) == [
        pytest.approx(0.003), None, pytest.approx(0.010), None,
    ]  # fmt: skip


def test_batch_delays_keep_what_was_never_sampled_and_leave_out_what_came_too_late() -> None:
    seen = [
        StepMark("s", 1, 0, 0, round(1e9), intervened=True),
        StepMark("s", 2, 0, 1, round(2e9), intervened=False),
        StepMark("s", 3, 0, 2, round(3e9), intervened=True),
        StepMark("s", 4, 0, 3, round(9e9), intervened=True),
    ]
    delays = batch_delays(seen, {("s", 1): 1.5, ("s", 2): 2.5, ("t", 3): 3.5}, round(5e9))
    assert delays == [pytest.approx(0.5), math.inf]


def test_the_next_moment_is_not_before_the_given_one() -> None:
    assert next_after([1, 5, 9], 5) == 5
    assert next_after([1, 5, 9], 6) == 9
    assert next_after([1, 5, 9], 10) is None
