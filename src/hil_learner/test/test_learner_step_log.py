"""The step log: torn tails are cut, damage is not hidden, failed writes leave no trace."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from hil_learner.ingest import Record
from hil_learner.step_log import HEADER, StepFile, StepLogError
from hil_rl.store import Step

STEP = Step("a/s", 1, 0, 0, 0, {}, np.zeros(1, np.float32))


def records(*data: bytes) -> list[Record]:
    return [Record(d, STEP) for d in data]


def filled(path: Path, count: int = 20) -> list[bytes]:
    rng = random.Random(0)
    data = [rng.randbytes(rng.randint(1, 60)) for _ in range(count)]
    log = StepFile(path, 100)
    for i in range(0, count, 3):
        log.append(records(*data[i : i + 3]))
    log.close()
    return data


@pytest.mark.parametrize("fsync", [False, True])
def test_what_was_appended_is_replayed(tmp_path: Path, fsync: bool) -> None:
    data = filled(tmp_path / "log")
    log = StepFile(tmp_path / "log", 100, fsync=fsync)
    assert list(log.replay()) == data and log.cut == 0
    log.append(records(b"more"))
    assert list(log.replay()) == [*data, b"more"]
    log.close()


def test_cut_anywhere_only_unfinished_records_are_missing(tmp_path: Path) -> None:
    data = filled(tmp_path / "log")
    whole = (tmp_path / "log").read_bytes()
    ends, position = [], len(HEADER)
    for item in data:
        position += 8 + len(item)
        ends.append(position)
    torn = tmp_path / "torn"
    for cut in range(0, len(whole) + 1, 3):
        torn.write_bytes(whole[:cut])
        log = StepFile(torn, 100)
        kept = sum(end <= cut for end in ends)
        assert list(log.replay()) == data[:kept]
        log.append(records(b"next"))
        assert list(log.replay()) == [*data[:kept], b"next"]
        log.close()


def test_damage_before_the_end_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "log")
    content = bytearray((tmp_path / "log").read_bytes())
    content[len(HEADER) + 9] ^= 1
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(StepLogError, match="damaged at byte"):
        StepFile(tmp_path / "log", 100)


def test_another_file_is_not_taken_for_a_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 100)
    with pytest.raises(StepLogError, match="not a step log"):
        StepFile(tmp_path / "log", 100)


def test_a_failed_write_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = filled(tmp_path / "log")
    log = StepFile(tmp_path / "log", 100)
    write = log._write

    def half(block: bytes) -> None:
        write(block[: len(block) // 2])
        raise OSError("No space left on device")

    monkeypatch.setattr(log, "_write", half)
    with pytest.raises(OSError, match="No space"):
        log.append(records(b"lost", b"lost too"))
    monkeypatch.undo()
    log.append(records(b"kept"))
    assert list(log.replay()) == [*data, b"kept"]
    log.close()
