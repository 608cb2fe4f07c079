"""Figures of benchmarks: how they are printed, and the arithmetic behind them. No ROS."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise

NANOSECONDS = 1e9


@dataclass(frozen=True)
class Figure:
    """One result. n: number of samples behind it. A NaN value is printed as null."""

    figure: str
    value: float
    unit: str
    n: int
    seed: int

    def json(self) -> str:
        """One line of JSON."""
        value = float(f"{self.value:.5g}") if math.isfinite(self.value) else None
        return json.dumps({**asdict(self), "value": value})

    def text(self) -> str:
        """One line for people."""
        value = f"{self.value:.4g}" if math.isfinite(self.value) else "-"
        return f"{self.figure:<48} {value:>9} {self.unit:<8} n={self.n}"


class Report:
    """Prints figures as they come.

    Args:
        seed: of the run, part of every figure.
        as_json: one JSON object per line instead of text.
    """

    def __init__(self, seed: int, as_json: bool) -> None:
        self.figures: list[Figure] = []
        self._seed, self._as_json = seed, as_json

    def add(self, name: str, value: float, unit: str, n: int) -> None:
        """Print a figure."""
        figure = Figure(name, value, unit, n, self._seed)
        self.figures.append(figure)
        print(figure.json() if self._as_json else figure.text(), flush=True)


@dataclass(frozen=True)
class StepMark:
    """What a benchmark keeps of a step record.

    Attributes:
        session: of the actor.
        seq: number in the session.
        episode, step: place.
        published: when the actor published it, at the end of the step, ns of the wall clock.
        flags: see hil_interfaces/msg/Step.
        intervened: a person drove.
    """

    session: str
    seq: int
    episode: int
    step: int
    published: int
    flags: int = 0
    intervened: bool = False


def step_intervals(marks: Sequence[StepMark]) -> list[float]:
    """Seconds between consecutive steps of one episode, in order; resets are left out.

    A step whose predecessor was not seen begins anew.
    """
    return [
        (after.published - before.published) / NANOSECONDS
        for before, after in pairwise(marks)
        if after.episode == before.episode and after.step == before.step + 1
    ]


def rate_with_resets(marks: Sequence[StepMark]) -> tuple[float, int]:
    """Steps per second between the first steps of the first and of the last episode, and steps.

    So whole episodes are counted, each with the reset that follows it. NaN, 0 without one.
    """
    firsts = [index for index, mark in enumerate(marks) if mark.step == 0]
    if len(firsts) < 2:
        return math.nan, 0
    begin, end = firsts[0], firsts[-1]
    seconds = (marks[end].published - marks[begin].published) / NANOSECONDS
    return (end - begin) / seconds, end - begin


def share(part: int, whole: int) -> float:
    """Percentage; NaN of nothing."""
    return 100.0 * part / whole if whole else math.nan


def percentile(values: Iterable[float], percent: float) -> float:
    """Smallest value that at least `percent` % of the values do not exceed; NaN of nothing.

    Never an interpolation: infinite values (what did not happen) may take part.
    """
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(percent / 100.0 * len(ordered)) - 1)]


@dataclass(frozen=True)
class Engagement:
    """An operator command on its way. sent: ns of the wall clock."""

    sent: int
    session: str
    engaged: bool


def takeover_edges(commands: Iterable[Engagement]) -> list[int]:
    """When the operator engaged, ns: commands whose predecessor in the session was not engaged."""
    edges: list[int] = []
    for _, session in groupby(commands, key=lambda command: command.session):
        engaged = False
        for command in session:
            if command.engaged and not engaged:
                edges.append(command.sent)
            engaged = command.engaged
    return edges


def hold_delays(
    edges: Sequence[int], holds: Sequence[tuple[int, bool]], limit: int
) -> list[float | None]:
    """Seconds from each edge to the first state after it that says that the arm is held.

    Args:
        edges: when the operator engaged, ns.
        holds: (when the bridge published a state, ns; whether a takeover holds the arm), in order.
        limit: ns after which a state does not answer an edge any more.

    Returns:
        For each edge the delay, or None: it was not held (the actor's command that had already
        seen the operator came first, or nobody was to be stopped).
    """
    delays: list[float | None] = []
    for index, edge in enumerate(edges):
        end = min([edge + limit, *edges[index + 1 : index + 2]])
        found = (at for at, held in holds if held and edge <= at < end)
        first = next(found, None)
        delays.append(None if first is None else (first - edge) / NANOSECONDS)
    return delays


def batch_delays(
    marks: Iterable[StepMark], sampled: Mapping[tuple[str, int], float], until: int
) -> list[float]:
    """Seconds from the end of each intervened step to the first batch that has it.

    Args:
        marks: steps.
        sampled: (session, seq) -> when a batch had the step first, s of the wall clock.
        until: ns; later steps had no time to be sampled and are left out.

    Returns:
        One value per intervened step; infinite where no batch had it.
    """
    return [
        sampled.get((mark.session, mark.seq), math.inf) - mark.published / NANOSECONDS
        for mark in marks
        if mark.intervened and mark.published <= until
    ]


def next_after(moments: Sequence[int], at: int) -> int | None:
    """First of the ordered moments that is not before `at`."""
    return next((moment for moment in moments if moment >= at), None)
