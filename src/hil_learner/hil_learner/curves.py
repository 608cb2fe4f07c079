"""Learning and intervention curves of a run, as a PNG."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hil_learner.episodes import WINDOW, Episode
from hil_learner.metrics import History

_SUCCESS = "#1b7837"
_ALONE = "#2166ac"
_HUMAN = "#b2182b"


def draw(history: History, title: str, path: Path) -> None:
    """Write the curves to `path`, atomically.

    Top: success of the last 20 training episodes, with and without interventions, and every
    evaluation. Bottom: share of steps in which the person drove, and the return.

    Raises:
        OSError: the file cannot be written.
    """
    figure = Figure(figsize=(8.0, 6.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True)
    figure.suptitle(title)
    training = [e for e in history.episodes if e.mode == "train" and not e.interrupted]
    evaluation = [e for e in history.episodes if e.mode == "evaluate" and not e.interrupted]
    _draw_success(top, training, evaluation)
    _draw_interventions(bottom, training)
    if not training:
        top.text(0.5, 0.5, "no training episode yet", ha="center", transform=top.transAxes)
    temporary = path.with_name(path.name + ".tmp")
    figure.savefig(temporary, format="png")
    os.replace(temporary, path)


def _draw_success(axes: Axes, training: Sequence[Episode], evaluation: Sequence[Episode]) -> None:
    axes.set_ylabel(f"success (last {WINDOW} episodes)")
    axes.set_ylim(-0.03, 1.03)
    axes.grid(alpha=0.3)
    success = [float(e.success) for e in training]
    alone = [math.nan if e.intervened_steps else float(e.success) for e in training]
    steps = [e.env_steps for e in training]
    axes.plot(steps, _rolling(success), color=_SUCCESS, label="all episodes")
    axes.plot(steps, _rolling(alone), color=_ALONE, ls="--", label="without intervention")
    groups: dict[int, list[float]] = {}
    for episode in evaluation:
        groups.setdefault(episode.env_steps, []).append(float(episode.success))
    if groups:
        rate = [float(np.mean(values)) for values in groups.values()]
        axes.plot(list(groups), rate, "D", color="black", label="evaluation")
    if training or groups:
        axes.legend(loc="lower right", frameon=False)


def _draw_interventions(axes: Axes, training: Sequence[Episode]) -> None:
    axes.set_xlabel("training steps")
    axes.set_ylabel("intervention rate", color=_HUMAN)
    axes.set_ylim(-0.03, 1.03)
    axes.grid(alpha=0.3)
    steps = [e.env_steps for e in training]
    share = [e.intervened_steps / max(e.steps, 1) for e in training]
    axes.plot(steps, share, ".", color=_HUMAN, alpha=0.25, ms=4)
    axes.plot(steps, _rolling(share), color=_HUMAN)
    returns = axes.twinx()
    returns.set_ylabel("return", color="0.4")
    returns.plot(steps, _rolling([e.episode_return for e in training]), color="0.4", lw=1.0)


def _rolling(values: Sequence[float]) -> NDArray[np.float64]:
    """Mean of the last 20 values at each position, NaN values left out."""
    result = np.full(len(values), np.nan)
    for index in range(len(values)):
        window = np.asarray(values[max(0, index + 1 - WINDOW) : index + 1], dtype=float)
        window = window[np.isfinite(window)]
        if window.size:
            result[index] = window.mean()
    return result
