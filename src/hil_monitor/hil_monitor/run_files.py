"""Episodes and training figures from the learner's metrics.jsonl, as it grows. No ROS."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Episode:
    """One finished episode.

    session: of the actor's life; with `episode` it says which one this is. interventions: how
    often the person took over. env_steps: training steps of the run when it ended; 0 where that is
    not known. label: what a person said of it afterwards; None: nothing.
    """

    session: str
    episode: int
    mode: str
    steps: int = 0
    episode_return: float = 0.0
    success: bool = False
    interrupted: bool = False
    intervened_steps: int = 0
    interventions: int = 0
    policy_version: int = 0
    env_steps: int = 0
    actor_id: str = ""
    label: bool | None = None

    @property
    def succeeded(self) -> bool:
        """Success, as the person has it where he said so."""
        return self.success if self.label is None else self.label


@dataclass(frozen=True)
class TrainingPoint:
    """Figures of one training period; NaN where the agent has none of that name."""

    updates: int
    env_steps: int
    q_mean: float = math.nan
    target_q_mean: float = math.nan
    critic_loss: float = math.nan
    entropy: float = math.nan


@dataclass(frozen=True)
class News:
    """What was written since the last look."""

    episodes: list[Episode]
    training: list[TrainingPoint]


class MetricsTail:
    """Reads what is appended to a metrics file; a file that is not there yet is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> News:
        """Rows that were added since the last call; a line that is not finished waits."""
        episodes: list[Episode] = []
        training: list[TrainingPoint] = []
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return News([], [])
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                row = json.loads(line)
                if row["kind"] == "episode":
                    episodes.append(_episode(row))
                elif row["kind"] == "training":
                    training.append(_training(row))
            except (ValueError, KeyError, TypeError):
                continue  # torn by a crash of the writer
        return News(episodes, training)


def _episode(row: dict[str, Any]) -> Episode:
    known = Episode.__dataclass_fields__.keys() - {"session", "label"}
    values = {key: row[key] for key in known if key in row}
    return Episode(session=str(row["stream"]).rsplit("/", 1)[-1], **values)


def _training(row: dict[str, Any]) -> TrainingPoint:
    figures = {
        name: math.nan if row.get(name) is None else float(row[name])
        for name in ("q_mean", "target_q_mean", "critic_loss", "entropy")
    }
    return TrainingPoint(int(row["updates"]), int(row["env_steps"]), **figures)
