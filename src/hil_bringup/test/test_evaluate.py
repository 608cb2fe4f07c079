"""`hil eval`: the same figures each time, clear refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hil_tasks
from hil_bringup import evaluate
from hil_rl import checkpoint
from hil_rl.config import SACConfig, TrainerConfig
from hil_rl.sac import SACAgent
from hil_rl.spaces import Spaces
from hil_rl.store import EpisodeStore
from hil_rl.trainer import Trainer


def saved(folder: Path, **changes: Any) -> Path:
    """An untrained agent of task `reach` as a run's checkpoint."""
    task = hil_tasks.load("reach").spec
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in task.observation.items()}
    spaces = Spaces(shapes, task.action_dim)
    agent = SACAgent(spaces, SACConfig(hidden=(16, 16), state_encoder=8), 0)
    arrays, state = Trainer(agent, EpisodeStore(spaces, 10), TrainerConfig(), 0).state()
    meta = {"fingerprint": task.fingerprint(), "task": "reach", "env_steps": 5, "trainer": state}
    return checkpoint.save(folder / "checkpoints", 0, arrays, {**meta, **changes})


def test_the_figures_are_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path)
    lines = []
    for place in (tmp_path, path.parent, path):
        assert evaluate.main([str(place), "--episodes", "2", "--json"]) == 0
        lines.append(json.loads(capsys.readouterr().out))
    assert lines[0] == lines[1] == lines[2]
    line = lines[0]
    assert (line["task"], line["episodes"], line["env_steps"]) == ("reach", 2, 5)
    assert line["sha256"] == checkpoint.load(path).sha256
    assert 0.0 <= line["ci95"][0] <= line["success_rate"] <= line["ci95"][1] <= 1.0
    assert evaluate.main([str(tmp_path), "--episodes", "1"]) == 0
    assert "95 % interval" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fingerprint": "0" * 64}, "was trained for specification"),
        ({"task": ""}, "does not name its task"),
        ({"task": "none"}, "none"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], reason: str
) -> None:
    saved(tmp_path, **changes)
    assert evaluate.main([str(tmp_path)]) == 1
    assert reason in capsys.readouterr().err


def test_an_empty_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main([str(tmp_path)]) == 1
    assert "no checkpoint there" in capsys.readouterr().err
