"""Hindsight experience replay: goals are replaced when transitions are sampled.

Nothing is stored twice and nothing that is stored changes. Part of each batch gets a goal that
was achieved, in the state and in the next state; reward and end of the return are then worked
out anew by the task's own functions. Relabelled transitions are valid data for an off-policy
agent, since what the arm does does not depend on the goal; the original half keeps the goals
that are asked for, and the failures, in every batch.

Andrychowicz et al., Hindsight Experience Replay, 2017.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from .config import HINDSIGHT_STRATEGIES, HindsightConfig
from .goals import GoalSpace, GoalStatistics, GoalTask
from .spaces import Array
from .store import Batch, EpisodeStore, StoreError, View
from .symptoms import Evidence, Symptom, symptoms

_T = TypeVar("_T")


@dataclass
class _Tally:
    """Sums over the batches since the last report."""

    rows: int = 0
    tried: int = 0
    relabelled: int = 0
    reached: int = 0
    rejected: int = 0
    no_goal: int = 0
    reward: float = 0.0
    disagreeing: int = 0


@dataclass
class _Goals:
    """Proposed goals for some rows of a batch; all arrays have one entry per proposal.

    Attributes:
        rows: of the batch.
        strategy: index in HINDSIGHT_STRATEGIES.
        step: number of the state that achieved the goal in the row's own episode; -1: another's.
        states: (n, vector_size) the states that achieved them.
    """

    rows: Array
    strategy: Array
    step: Array
    states: Array

    def take(self, chosen: Array) -> _Goals:
        return _Goals(**{name: array[chosen] for name, array in vars(self).items()})


@dataclass(frozen=True)
class Relabelled:
    """A sampled transition before and after, for `Hindsight.explain`.

    Attributes:
        episode, step: which transition.
        strategy: where the new goal is from; empty: the original goal was kept.
        goal_step: number of the state in the episode that achieved it; -1: another episode's.
        goal, reward, terminated, distance: (before, after). The distance is that of the state
            before the action.
    """

    episode: int
    step: int
    strategy: str
    goal_step: int
    goal: tuple[list[float], list[float]]
    reward: tuple[float, float]
    terminated: tuple[bool, bool]
    distance: tuple[float, float]

    def __str__(self) -> str:
        head = f"episode {self.episode} step {self.step}: "
        if not self.strategy:
            return f"{head}original goal {_text(self.goal[0])}, reward {self.reward[0]:g}"
        source = f"step {self.goal_step}" if self.goal_step >= 0 else "another episode"
        return (
            f"{head}goal {_text(self.goal[0])} -> {_text(self.goal[1])} "
            f"({self.strategy}: {source}), reward {self.reward[0]:g} -> {self.reward[1]:g}, "
            f"terminated {self.terminated[0]} -> {self.terminated[1]}, "
            f"distance {self.distance[0]:.3g} -> {self.distance[1]:.3g}"
        )


class Hindsight:
    """Relabels what a store samples.

    Args:
        task: the goals of the task.
        store: whose batches are relabelled from now on.
        config: see `HindsightConfig`; may be replaced at any time with `configure`.

    Raises:
        GoalError: task and observation do not go together.
    """

    def __init__(self, task: GoalTask, store: EpisodeStore, config: HindsightConfig) -> None:
        self.task = task
        self.store = store
        self.space = GoalSpace(task, store.spaces)
        self.space.pairs(config.parts)
        self.config = config
        self.statistics = GoalStatistics(self.space, store.spaces)
        self.influence = math.nan
        self._tally = _Tally()
        self._evidence = self._gather_evidence(self._tally)
        store.relabel = self._relabel

    def configure(self, **overrides: Any) -> None:
        """Change settings while training runs, for example `enabled=False`.

        Raises:
            ValueError: unknown setting or impossible value; nothing is changed.
        """
        config = self.config.replace(**overrides)
        self.space.pairs(config.parts)
        self.config = config

    def ratio(self) -> float:
        """Share of a batch that is relabelled now."""
        c = self.config
        if not c.enabled:
            return 0.0
        if not c.schedule:
            return c.ratio
        places, ratios = zip(*c.schedule, strict=True)
        if c.schedule_over == "steps":
            progress = float(self.store.counts.online)
        else:
            progress = float(np.nan_to_num(self.statistics.success()))
        return float(np.interp(progress, places, ratios))

    # -------------------------------------------------------------------------- relabelling

    def _relabel(self, batch: Batch, rng: np.random.Generator) -> None:
        self._apply(batch, rng, self._tally)

    def _apply(self, batch: Batch, rng: np.random.Generator, tally: _Tally) -> _Goals | None:
        """Relabel the last rows of a batch in place; return what was done, None for nothing."""
        config, n = self.config, len(batch)
        count = round(self.ratio() * n)
        tally.rows += n
        tally.tried += count
        if not count:
            return None
        goals = self._propose(batch, np.arange(n - count, n), config, rng)
        tally.no_goal += count - len(goals.rows)
        rows = goals.rows
        state, following = batch.state[rows], batch.next_state[rows]
        before = self.space.distance(state, state) if config.band else None
        # Ends that the goal does not explain (a dropped object) stay.
        ended = batch.mask[rows] == 0.0
        ended &= ~self.space.terminated(following, following)
        recorded = self.space.reward(following, following)
        tally.disagreeing += int((np.abs(recorded - batch.reward[rows]) > 1e-3).sum())

        achieved, desired = self.space.pairs(config.parts)
        new = goals.states[:, achieved]
        for states in (state, following, goals.states):
            states[:, desired] = new
        stacked = np.concatenate([following, state, goals.states])
        gained, before_acting, best = np.split(self.space.reward(stacked, stacked), 3)
        reached = before_acting >= best  # as good as where the goal was achieved
        keep = np.ones(len(rows), np.bool_)
        if before is not None:
            after, (low, high) = self.space.distance(state, state), config.band
            keep &= (after >= low * before) & (after <= high * before)
        if config.keep_reached < 1.0:
            keep &= ~reached | (rng.random(len(rows)) < config.keep_reached)

        kept = goals.take(keep)
        rows, state, following = kept.rows, state[keep], following[keep]
        batch.state[rows], batch.next_state[rows] = state, following
        batch.reward[rows] = gained[keep]
        batch.mask[rows] = ~(ended[keep] | self.space.terminated(following, following))
        tally.rejected += int((~keep).sum())
        tally.relabelled += len(rows)
        tally.reached += int(reached[keep].sum())
        tally.reward += float(batch.reward[rows].sum())
        return kept

    def _propose(
        self, batch: Batch, rows: Array, config: HindsightConfig, rng: np.random.Generator
    ) -> _Goals:
        """Draw a goal for each row whose next observation is known."""
        episodes, steps = batch.episode[rows], batch.step[rows]
        oldest, newest = self.store.trajectories.bounds(episodes)
        usable = newest > steps
        rows, episodes, steps = rows[usable], episodes[usable], steps[usable]
        oldest, newest = oldest[usable], newest[usable]
        if self.task.stage:
            oldest, newest = self._stage_bounds(episodes, steps, oldest, newest)
        strategy = _draw_strategy(config, len(rows), rng)
        final, future, _, random = (strategy == i for i in range(len(HINDSIGHT_STRATEGIES)))
        low = np.where(future, steps + 1, oldest + 1)
        low[final] = newest[final]
        chosen = rng.integers(low, newest + 1)
        states = self.store.states(self.store.trajectories.slots(episodes, chosen))
        if random.any():
            other = rows[rng.integers(0, len(rows), int(random.sum()))]
            states[random] = batch.next_state[other]
            chosen[random] = -1
            if self.task.stage:
                own = np.ones(len(rows), np.bool_)
                stages = self.space.stage(batch.state)
                own[random] = stages[other] == stages[rows[random]]
                return _Goals(rows, strategy, chosen, states).take(own)
        return _Goals(rows, strategy, chosen, states)

    def _stage_bounds(
        self, episodes: Array, steps: Array, oldest: Array, newest: Array
    ) -> tuple[Array, Array]:
        """Narrow bounds to the stage of each step: up to the state that completed it."""
        own = self._stages(episodes, steps)

        def first(low: Array, high: Array, fits: Callable[[Array], Array]) -> Array:
            """First number in [low, high) whose stage fits, else high; by bisection."""
            while (searching := low < high).any():
                middle = np.where(searching, (low + high) // 2, steps)
                found = fits(self._stages(episodes, middle))
                high = np.where(searching & found, middle, high)
                low = np.where(searching & ~found, middle + 1, low)
            return high

        begin = first(oldest, steps, lambda stages: stages >= own)
        completed = first(steps + 1, newest, lambda stages: stages > own)
        return begin, completed

    def _stages(self, episodes: Array, steps: Array) -> Array:
        slots = self.store.trajectories.slots(episodes, steps)
        return self.space.stage(self.store.states(slots))

    # ------------------------------------------------------------------------------ reports

    def take_figures(self) -> dict[str, float]:
        """Figures of the batches since the last call, and of the newest training episodes.

        Success and distance (`goal_*`) are those of original goals; `relabel_*` of the others.
        """
        tally, self._tally = self._tally, _Tally()
        self._evidence = self._gather_evidence(tally)
        figures = self.statistics.figures()
        if tally.rows:
            figures["relabel_fraction"] = tally.relabelled / tally.rows
        if tally.tried:
            figures["relabel_rejected_fraction"] = tally.rejected / tally.tried
            figures["relabel_no_goal_fraction"] = tally.no_goal / tally.tried
        if tally.relabelled:
            figures["relabel_reward"] = tally.reward / tally.relabelled
            figures["relabel_trivial_fraction"] = tally.reached / tally.relabelled
        if math.isfinite(self.influence):
            figures["goal_influence"] = self.influence
        return figures

    def symptoms(self) -> list[Symptom]:
        """What looks wrong in what `take_figures` last returned, in plain words."""
        return symptoms(self._evidence)

    def _gather_evidence(self, tally: _Tally) -> Evidence:
        tried = tally.tried - tally.no_goal
        return Evidence(
            episodes=self.statistics.episodes,
            tolerance=self.task.tolerance,
            goal_spread=self.statistics.goal_spread(),
            influence=self.influence,
            trivial=tally.reached / tally.relabelled if tally.relabelled else math.nan,
            rejected=tally.rejected / tried if tried else math.nan,
            disagreeing=tally.disagreeing / tried if tried else math.nan,
            relabelled=tally.relabelled / tally.rows if tally.rows else math.nan,
        )

    def measure_influence(
        self, act: Callable[[Array], Array], rng: np.random.Generator, n: int = 256
    ) -> float:
        """How much of a policy's reaction to its input is a reaction to the goal.

        Args:
            act: (n, vector_size) states -> (n, action) actions, deterministic.
            rng: source of randomness.
            n: states to try.

        Returns:
            Mean change of the action when goals are exchanged between states, relative to the
            change when whole states are. Kept in `influence`.
        """
        _, batch, _ = self._draw(n, "all", rng)
        order = rng.permutation(n)
        other = batch.state.copy()
        other[:, self.space.desired] = batch.state[order][:, self.space.desired]
        own = act(batch.state)
        by_goal = float(np.abs(act(other) - own).mean())
        by_state = float(np.abs(act(batch.state[order]) - own).mean())
        self.influence = by_goal / by_state if by_state else 0.0
        return self.influence

    def explain(self, n: int, rng: np.random.Generator, view: View = "all") -> list[Relabelled]:
        """Sample n transitions as training does, and show each before and after.

        Raises:
            StoreError: the view is empty.
        """
        before, after, goals = self._draw(n, view, rng)
        sources = [("", -1)] * n
        if goals is not None:
            for row, strategy, step in zip(goals.rows, goals.strategy, goals.step, strict=True):
                sources[row] = HINDSIGHT_STRATEGIES[strategy], int(step)
        both = before, after
        far = [self.space.distance(b.state, b.state) for b in both]
        return [
            Relabelled(
                episode=int(before.episode[row]),
                step=int(before.step[row]),
                strategy=strategy,
                goal_step=goal_step,
                goal=_pair(b.state[row, self.space.desired].tolist() for b in both),
                reward=_pair(float(b.reward[row]) for b in both),
                terminated=_pair(bool(b.mask[row] == 0.0) for b in both),
                distance=_pair(float(d[row]) for d in far),
            )
            for row, (strategy, goal_step) in enumerate(sources)
        ]

    def _draw(
        self, n: int, view: View, rng: np.random.Generator
    ) -> tuple[Batch, Batch, _Goals | None]:
        """A batch as recorded, the same relabelled, and how; counted nowhere."""
        with self.store.frozen():
            members = self.store.slots(view)
            if not len(members):
                raise StoreError(f"view {view!r} is empty")
            after = self.store.gather(members[rng.integers(0, len(members), n)])
            before = copy.deepcopy(after)
            goals = self._apply(after, rng, _Tally())
        return before, after, goals


def _draw_strategy(config: HindsightConfig, n: int, rng: np.random.Generator) -> Array:
    """(n,) indices in HINDSIGHT_STRATEGIES, by the weights of a configuration."""
    weights = np.cumsum([config.strategies.get(name, 0.0) for name in HINDSIGHT_STRATEGIES])
    return np.searchsorted(weights, rng.random(n) * weights[-1], side="right")


def _pair(values: Iterable[_T]) -> tuple[_T, _T]:
    first, second = values
    return first, second


def _text(goal: list[float]) -> str:
    return f"({', '.join(f'{value:.3g}' for value in goal)})"
