"""Metrics of a run: one JSON line per episode and training period, and TensorBoard.

Rows of kind first_batch tell for intervened steps (stream, seq) how long they waited in the store
until a batch had them (s), and when that was (wall clock).

A disk that does not take them stops nothing: the reason is kept in `Metrics.problem`.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from hil_learner.episodes import Episode
from hil_learner.first_batch import FirstBatch


@dataclass
class History:
    """What a metrics file tells. training: rows of updates, env_steps and the agent's figures."""

    episodes: list[Episode] = field(default_factory=list)
    training: list[dict[str, float]] = field(default_factory=list)


def read(path: Path) -> History:
    """Read a metrics file; an absent one is empty, a torn last line is left out.

    Where the run was continued from a checkpoint, the rows beyond that checkpoint are left out:
    what they describe was done again.
    """
    history = History()
    if not path.exists():
        return history
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
            kind = row.pop("kind")
            row.pop("time", None)
            if kind == "start":
                history = _until(history, row["env_steps"], row["updates"])
            elif kind == "episode":
                history.episodes.append(Episode(**row))
            elif kind == "training":
                history.training.append({k: _number(v) for k, v in row.items()})
        except (ValueError, KeyError, TypeError):
            continue  # a line torn by a crash: the next process begins a new one
    return history


def _until(history: History, env_steps: int, updates: int) -> History:
    return History(
        [e for e in history.episodes if e.env_steps <= env_steps],
        [row for row in history.training if row["updates"] <= updates],
    )


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


class Metrics:
    """Writes a run's metrics; may be used from several threads."""

    def __init__(self, path: Path, tensorboard: Path | None) -> None:
        self.problem = ""
        """Why the newest rows were not written; empty when they were."""
        self._path = path
        self._lock = threading.Lock()
        self._board: SummaryWriter | None = None
        if tensorboard is not None:
            self._board = SummaryWriter(str(tensorboard), flush_secs=10)

    def start(self, env_steps: int, updates: int) -> None:
        """Mark where this process begins or continues."""
        torn = self._path.exists() and not self._path.read_bytes().endswith(b"\n")
        self._write("start", {"env_steps": env_steps, "updates": updates}, "\n" if torn else "")

    def episode(self, episode: Episode) -> None:
        """Write one finished episode."""
        self._write("episode", asdict(episode))
        figures = {
            "return": episode.episode_return,
            "length": episode.steps,
            "success": float(episode.success),
            "intervention_rate": episode.intervened_steps / max(episode.steps, 1),
            "interventions": episode.interventions,
            "late_steps": episode.late_steps,
        }
        self._scalars(episode.mode, figures, episode.env_steps)

    def training(self, updates: int, env_steps: int, figures: Mapping[str, float]) -> None:
        """Write the figures of one training period."""
        row = {"updates": updates, "env_steps": env_steps, **figures}
        self._write("training", row)
        self._scalars("learner", figures, updates)

    def first_batches(self, steps: Iterable[FirstBatch]) -> None:
        """Write when intervened steps were first sampled: one row per stream, if there are any."""
        by_stream: dict[str, list[FirstBatch]] = {}
        for step in steps:
            by_stream.setdefault(step.stream, []).append(step)
        for stream, rows in by_stream.items():
            columns = {
                "seq": [row.seq for row in rows],
                "waited": [round(row.waited, 4) for row in rows],
                "at": [round(row.at, 4) for row in rows],
            }
            self._write("first_batch", {"stream": stream, **columns})

    def close(self) -> None:
        """Flush and close."""
        with self._lock:
            if self._board is not None:
                self._board.close()
                self._board = None

    def _write(self, kind: str, row: Mapping[str, Any], before: str = "") -> None:
        values = {k: _jsonable(v) for k, v in row.items()}
        line = json.dumps({"kind": kind, "time": round(time.time(), 3), **values})
        with self._lock:
            try:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(before + line + "\n")
                self.problem = ""
            except OSError as error:
                self.problem = f"metrics are not written: {error}"

    def _scalars(self, group: str, figures: Mapping[str, float], step: int) -> None:
        with self._lock:
            if self._board is None:
                return
            try:
                for name, value in figures.items():
                    self._board.add_scalar(f"{group}/{name}", value, step)
            except OSError as error:
                self.problem = f"TensorBoard files are not written: {error}"


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
