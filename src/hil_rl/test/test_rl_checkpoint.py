"""Checkpoints: round trip, damage, interruption at any moment."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from hil_rl import checkpoint
from hil_rl.checkpoint import CheckpointError, latest, load, save

TENSORS = {
    "weight": np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4),
    "rng": np.arange(5, dtype=np.uint8),
    "scalar": np.array(3.5, np.float64),
}
META = {"updates": 12, "big": 2**127, "nested": {"a": [1, None, "é"]}}


def test_round_trip(tmp_path: Path) -> None:
    path = save(tmp_path / "new" / "folder", 12, TENSORS, META)
    found = latest(tmp_path / "new" / "folder")
    assert found == path
    loaded = load(path)
    assert (loaded.step, loaded.meta, loaded.path) == (12, META, path)
    assert loaded.tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(loaded.tensors[name], value)
        assert loaded.tensors[name].dtype == value.dtype
    assert len(loaded.sha256) == 64


def test_nothing_there(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    assert latest(tmp_path / "missing") is None
    with pytest.raises(CheckpointError, match="No such file"):
        load(tmp_path / "step_000000000001.json")


def test_keeps_the_newest(tmp_path: Path) -> None:
    stranger = tmp_path / "notes.txt"
    stranger.write_text("keep me")
    for step in (5, 100, 20, 3000):
        save(tmp_path, step, TENSORS, {"step": step}, keep=2)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert len(names) == 5 and stranger.exists()
    assert [n for n in names if n.endswith("json")] == [
        "step_000000000100.json",
        "step_000000003000.json",
    ]
    assert load(latest(tmp_path) or "").meta == {"step": 3000}


def test_same_step_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 1, TENSORS, {"n": 1})
    save(tmp_path, 1, TENSORS | {"scalar": np.array(4.0)}, {"n": 2})
    loaded = load(latest(tmp_path) or "")
    assert loaded.meta == {"n": 2} and loaded.tensors["scalar"] == 4.0
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize("damage", ["empty", "cut", "flip", "remove", "noise"])
def test_damaged_ones_are_skipped(
    tmp_path: Path, suffix: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = save(tmp_path, 1, TENSORS, META)
    bad = save(tmp_path, 2, TENSORS | {"scalar": np.array(9.0)}, META)
    (file,) = tmp_path.glob(f"step_000000000002*{suffix}")
    data = file.read_bytes()
    if damage == "remove":
        file.unlink()
    else:
        changed = {
            "empty": b"",
            "cut": data[: len(data) // 2],
            "flip": data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
            "noise": b"\xff\xfe" * 50,
        }[damage]
        file.write_bytes(changed)
    with caplog.at_level(logging.WARNING):
        assert latest(tmp_path) == good
    if not (suffix == "json" and damage == "remove"):
        with pytest.raises(CheckpointError, match="step_000000000002"):
            load(bad)
        assert "step_000000000002" in caplog.text


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"format": "other"}', "null"])
def test_manifest_of_another_kind(tmp_path: Path, text: str) -> None:
    path = tmp_path / "step_000000000001.json"
    path.write_text(text)
    with pytest.raises(CheckpointError):
        load(path)
    assert latest(tmp_path) is None
    save(tmp_path, 2, TENSORS, META)  # an unreadable neighbour does not disturb


def test_manifest_cannot_be_edited(tmp_path: Path) -> None:
    path = save(tmp_path, 1, TENSORS, META)
    manifest = json.loads(path.read_text())
    manifest["meta"]["updates"] = 13
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="digest"):
        load(path)


def test_manifest_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    save(tmp_path / "other", 1, TENSORS, META)
    (elsewhere,) = (tmp_path / "other").glob("*.safetensors")
    path = save(tmp_path / "here", 1, TENSORS, META)
    manifest = json.loads(path.read_text())
    del manifest["manifest_sha256"]
    manifest["tensors"] = f"../other/{elsewhere.name}x"
    manifest["manifest_sha256"] = checkpoint._manifest_digest(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError):
        load(path)


@pytest.mark.parametrize("crash_at", [1, 2])
def test_killed_while_saving(
    tmp_path: Path, crash_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dying before either rename leaves the former checkpoint, and the next save cleans up."""
    good = save(tmp_path, 1, TENSORS, META)
    renames = 0
    replace = os.replace

    class Killed(BaseException):
        pass

    def dying(source: str, target: Path) -> None:
        nonlocal renames
        renames += 1
        if renames == crash_at:
            raise Killed
        replace(source, target)

    monkeypatch.setattr(os, "replace", dying)
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)  # no clean-up
    with pytest.raises(Killed):
        save(tmp_path, 2, TENSORS | {"scalar": np.array(9.0)}, META)
    monkeypatch.undo()
    assert latest(tmp_path) == good
    newer = save(tmp_path, 3, TENSORS, META)
    assert latest(tmp_path) == newer
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".safetensors"}
    assert not [p for p in tmp_path.iterdir() if "000000000002" in p.name]


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep"):
        save(tmp_path, 1, TENSORS, META, keep=0)
    with pytest.raises(ValueError, match="step"):
        save(tmp_path, -1, TENSORS, META)
    with pytest.raises(TypeError):
        save(tmp_path, 1, TENSORS, {"x": object()})
    assert not list(tmp_path.iterdir())
