"""What a person sees of a training run: one live panel, or a line every few seconds."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from hil_learner.episodes import Rates
from hil_rl.trainer import UNLIMITED


@dataclass(frozen=True)
class ActorView:
    """One actor: its name, the policy version it has confirmed, and what is wrong, in words."""

    name: str
    version: int | None
    problem: str = ""


@dataclass(frozen=True)
class Progress:
    """A moment of a training run. Ages in s, rates in 1/s.

    rates: of the newest training episodes. evaluation: of the newest evaluation episodes.
    """

    run_id: str
    phase: str
    waiting_for: str
    env_steps: int
    env_steps_allowed: int
    demo_steps: int
    demo_episodes: int
    episodes: int
    intervened_steps: int
    updates: int
    updates_per_s: float
    env_steps_per_s: float
    policy_version: int
    policy_age_s: float
    rates: Rates
    evaluation: Rates
    actors: tuple[ActorView, ...] = ()

    @property
    def update_ratio(self) -> float:
        """Updates per training step so far; NaN before the first."""
        return self.updates / self.env_steps if self.env_steps else math.nan


def line(progress: Progress) -> str:
    """Return the progress as one line."""
    rates = progress.rates
    parts = [
        f"{progress.phase}",
        f"{progress.env_steps} steps ({progress.env_steps_per_s:.0f}/s)",
        f"{progress.updates} updates ({progress.updates_per_s:.0f}/s, "
        f"{_number(progress.update_ratio)} per step)",
        f"success {percent(rates.success)} (alone {percent(rates.success_autonomous)})",
        f"interventions {percent(rates.intervention)}",
        f"policy v{progress.policy_version}, {progress.policy_age_s:.0f} s old",
        f"late {percent(rates.late)}",
    ]
    if progress.waiting_for:
        parts.insert(1, f"waiting for {progress.waiting_for}")
    parts += [f"{a.name}: {a.problem}" for a in progress.actors if a.problem]
    return " | ".join(parts)


def panel(progress: Progress) -> Panel:
    """Return the progress as a rich panel."""
    rates = progress.rates
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    state = progress.phase
    if progress.waiting_for:
        state += f": waiting for {progress.waiting_for}"
    allowed = ""
    if progress.env_steps_allowed < UNLIMITED:
        allowed = f", {progress.env_steps_allowed} allowed"
    rows = {
        "state": state,
        "steps": f"{progress.env_steps} ({progress.env_steps_per_s:.0f}/s){allowed}",
        "updates": f"{progress.updates} ({progress.updates_per_s:.0f}/s), "
        f"{_number(progress.update_ratio)} per step",
        "demonstrations": f"{progress.demo_episodes} episodes, {progress.demo_steps} steps",
        "episodes": f"{progress.episodes}; of the last {rates.episodes}:",
        "  success": f"{percent(rates.success)}   without intervention "
        f"{percent(rates.success_autonomous)}, with {percent(rates.success_assisted)}",
        "  interventions": f"{percent(rates.intervention)} of steps "
        f"({progress.intervened_steps} in all)",
        "  late steps": percent(rates.late),
        "policy": f"v{progress.policy_version}, {progress.policy_age_s:.0f} s old",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    if progress.evaluation.episodes:
        table.add_row(
            "evaluation",
            f"{percent(progress.evaluation.success)} of the last "
            f"{progress.evaluation.episodes} episodes",
        )
    for actor in progress.actors:
        version = "none yet" if actor.version is None else f"v{actor.version}"
        problem = f"  [red]{actor.problem}[/red]" if actor.problem else ""
        table.add_row(actor.name, version + problem)
    return Panel(table, title=progress.run_id, expand=False)


class ProgressView:
    """Shows progress on a console: a live panel on a terminal, else one line per `period` s."""

    def __init__(self, console: Console, period: float = 10.0) -> None:
        self._console = console
        self._period = period
        self._live: Live | None = None
        self._next = time.monotonic() + period
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=False)
            self._live.start()

    def show(self, progress: Progress, *, final: bool = False) -> None:
        """Show it now on a terminal; otherwise when the period is over, or at the end."""
        if self._live is not None:
            self._live.update(panel(progress), refresh=True)
        elif final or time.monotonic() >= self._next:
            self._next = time.monotonic() + self._period
            self._console.print(line(progress), soft_wrap=True, highlight=False, markup=False)

    def close(self) -> None:
        """Leave the last panel on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def percent(share: float) -> str:
    """Return a share as a whole percentage, a dash for NaN."""
    return "-" if math.isnan(share) else f"{100 * share:.0f} %"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
