"""The log: torn, killed, full or damaged, it keeps what was acknowledged and stays a bag."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from mcap.reader import make_reader
from rosbags.highlevel import AnyReader

from hil_learner import messages
from hil_learner.ingest import STEP_TOPIC, UPDATES_TOPIC
from hil_learner.mcap_file import MAX_RECORD, McapDamage, Scan
from hil_learner.step_bag import CHUNK_BYTES, BagError, StepBag, mcap_files, read_bag
from hil_learner.synthetic import SyntheticActor, synthetic_spec

TOPICS = messages.topics()


def steps(count: int, session: str = "s") -> list[bytes]:
    actor = SyntheticActor(synthetic_spec(), "actor", session, seed=0)
    return [actor.next().data for _ in range(count)]


def opened(folder: Path, **options: object) -> tuple[StepBag, list[bytes]]:
    bag = StepBag(folder, TOPICS, **options)  # type: ignore[arg-type]
    return bag, [entry.data for entry in bag.replay()]


def put(bag: StepBag, *data: bytes) -> None:
    bag.append([(STEP_TOPIC, each) for each in data])


def filled(folder: Path, data: list[bytes], batch: int = 3, **options: object) -> StepBag:
    bag, _ = opened(folder, **options)
    for i in range(0, len(data), batch):
        put(bag, *data[i : i + batch])
    return bag


def read_with_mcap(folder: Path) -> list[bytes]:
    found = []
    for path in mcap_files(folder):
        with path.open("rb") as stream:
            reader = make_reader(stream, validate_crcs=True)
            summary = reader.get_summary()
            assert summary is not None and summary.statistics is not None
            data = [message.data for _, _, message in reader.iter_messages()]
            assert summary.statistics.message_count == len(data)
            assert summary.statistics.chunk_count == len(summary.chunk_indexes)
            found += data
    return found


def read_with_rosbags(folder: Path) -> list[int]:
    with AnyReader([folder]) as reader:
        return [reader.deserialize(raw, c.msgtype).seq for c, _, raw in reader.messages()]


@pytest.mark.parametrize("fsync", [False, True])
def test_what_was_appended_is_replayed_and_read_by_other_tools(
    tmp_path: Path, fsync: bool
) -> None:
    data = steps(40)
    filled(tmp_path, data[:30], split_bytes=4000, fsync=fsync).close()
    bag, found = opened(tmp_path, split_bytes=4000, fsync=fsync)
    assert found == data[:30] and bag.notes == []
    put(bag, *data[30:])
    bag.close()
    files = mcap_files(tmp_path)
    assert len(files) > 2 and read_with_mcap(tmp_path) == data
    assert read_with_rosbags(tmp_path) == list(range(1, 41))
    info = yaml.safe_load((tmp_path / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    assert info["message_count"] == 40
    assert info["relative_file_paths"] == [file.name for file in files]
    assert sum(file["message_count"] for file in info["files"]) == 40


def test_cut_anywhere_every_whole_chunk_is_there_and_the_log_goes_on(tmp_path: Path) -> None:
    """300 random cuts of the file; a chunk that ended before the cut was acknowledged."""
    rng = random.Random(0)
    data = steps(60)
    bag, _ = opened(tmp_path / "whole")
    acknowledged = [(0, 0)]  # size of the file, number of steps
    path = tmp_path / "whole" / "whole_0.mcap"
    for i in range(0, 57, 3):
        put(bag, *data[i : i + 3])
        acknowledged.append((path.stat().st_size, i + 3))
    bag.close()
    whole = path.read_bytes()
    for number in range(300):
        cut = rng.randint(0, len(whole))
        folder = tmp_path / f"cut_{number}"
        folder.mkdir()
        (folder / "cut_0.mcap").write_bytes(whole[:cut])
        kept = max(count for size, count in acknowledged if size <= cut)
        torn, found = opened(folder)
        assert found[:kept] == data[:kept] and found == data[: len(found)]
        assert len(found) <= kept + 3  # a whole chunk may lack the index behind it
        put(torn, *data[len(found) : len(found) + 1])
        torn.close()
        wanted = data[: len(found) + 1]
        assert read_with_mcap(folder) == wanted
        assert opened(folder)[1] == wanted
        if rng.random() < 0.1:
            assert read_with_rosbags(folder) == list(range(1, len(wanted) + 1))


WRITER = """
import sys
from pathlib import Path
from hil_learner import mcap_file, step_bag
topic = mcap_file.Topic("/step", "std_msgs/msg/String", "string data")
bag = step_bag.StepBag(Path(sys.argv[1]), [topic], split_bytes=30_000)
count = sum(1 for _ in bag.replay())
print("ready", count, flush=True)
while True:
    batch = [f"{count + i:08d}".encode() * 40 for i in range(1 + count % 5)]
    bag.append([("/step", each) for each in batch])
    count += len(batch)
    print("acknowledged", count, flush=True)
"""


def test_a_writer_killed_at_random_moments_loses_nothing_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(1)
    acknowledged = 0
    for _ in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        ready = writer.stdout.readline().split()
        assert int(ready[1]) >= acknowledged
        for _ in range(rng.randint(1, 60)):
            acknowledged = int(writer.stdout.readline().split()[1])
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().splitlines()
        writer.wait()
        if rest and rest[-1].startswith("acknowledged") and len(rest[-1].split()) == 2:
            acknowledged = max(acknowledged, int(rest[-1].split()[1]))
    bag = StepBag(tmp_path, TOPICS)
    found = [entry.data for entry in bag.replay()]
    assert len(found) >= acknowledged > 100
    assert found == [f"{i:08d}".encode() * 40 for i in range(len(found))]
    assert read_with_mcap(tmp_path) == found


def damaged(path: Path, offset: int) -> bytes:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)
    return bytes(content)


def test_damage_in_the_middle_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    filled(tmp_path, steps(60)).close()
    path = mcap_files(tmp_path)[0]
    content = damaged(path, path.stat().st_size // 2)
    with pytest.raises(BagError, match=rf"{path.name} is damaged at byte \d+.*truncate -s \d+"):
        opened(tmp_path)
    assert path.read_bytes() == content and len(list(tmp_path.iterdir())) == 2


def test_a_file_that_ends_early_before_others_is_damage(tmp_path: Path) -> None:
    filled(tmp_path, steps(60), split_bytes=4000).close()
    first = mcap_files(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:2000])
    with pytest.raises(BagError, match="it ends there"):
        opened(tmp_path)


def test_what_a_power_loss_left_at_the_end_is_cut_and_kept_aside(tmp_path: Path) -> None:
    data = steps(30)
    bag = filled(tmp_path, data)
    path = tmp_path / f"{tmp_path.name}_0.mcap"
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(5000))  # blocks that were allotted and never written
    del bag
    again, found = opened(tmp_path)
    assert found == data and "is in" in again.notes[0]
    copy = tmp_path / f"{path.name}.cut-{size}"
    assert copy.read_bytes() == bytes(5000)
    assert read_with_mcap(tmp_path) == data


def test_another_file_is_not_taken_for_a_log(tmp_path: Path) -> None:
    (tmp_path / "log_0.mcap").write_bytes(b"x" * 100)
    with pytest.raises(BagError, match="not an MCAP file"):
        opened(tmp_path)
    with pytest.raises(BagError, match=r"no \.mcap file"):
        list(read_bag(tmp_path / "log_1.mcap"))


def test_a_file_of_other_topics_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, steps(3)).close()
    path = mcap_files(tmp_path)[0]
    content = path.read_bytes()
    head, tail = content[:4000], content[4000:]
    path.write_bytes(head.replace(b"/step", b"/stop") + tail)
    with pytest.raises(BagError, match="topic '/stop' is none of this log's"):
        opened(tmp_path)


def test_the_log_is_replayed_before_it_is_continued(tmp_path: Path) -> None:
    filled(tmp_path, steps(3)).close()
    with pytest.raises(RuntimeError, match="replayed"):
        put(StepBag(tmp_path, TOPICS), b"x")


def test_a_large_batch_becomes_several_chunks(tmp_path: Path) -> None:
    bag, _ = opened(tmp_path)
    data = [bytes([i]) * (CHUNK_BYTES // 3) for i in range(9)]
    put(bag, *data)
    bag.close()
    scan = Scan(mcap_files(tmp_path)[0])
    assert [entry.data for entry in scan.entries()] == data and scan.finished
    assert len(scan.summary.chunks) == 3


def test_what_waits_is_written_with_the_next_append(tmp_path: Path) -> None:
    bag, _ = opened(tmp_path)
    bag.later(UPDATES_TOPIC, b"one")
    bag.later(UPDATES_TOPIC, b"two", replaces=True)
    put(bag, b"step")
    assert bag.records == 2 and bag.flush() == 2
    bag.later(UPDATES_TOPIC, b"three", replaces=True)
    bag.close()
    found = [(entry.topic, entry.data) for entry in read_bag(tmp_path)]
    assert found == [(STEP_TOPIC, b"step"), (UPDATES_TOPIC, b"two"), (UPDATES_TOPIC, b"three")]


@pytest.fixture
def disk_of() -> Iterator[object]:
    """Let no file of this process grow beyond a size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_takes_nothing_and_spoils_nothing(tmp_path: Path, disk_of) -> None:  # type: ignore[no-untyped-def]
    data = steps(60)
    bag = filled(tmp_path, data[:30])
    size = (tmp_path / f"{tmp_path.name}_0.mcap").stat().st_size
    disk_of(size + 100)
    for _ in range(3):
        with pytest.raises(OSError, match="large"):
            put(bag, *data[30:33])
    disk_of(resource.RLIM_INFINITY)
    put(bag, *data[30:])
    bag.close()
    assert read_with_mcap(tmp_path) == data


def test_a_disk_that_is_full_when_a_file_is_finished(tmp_path: Path, disk_of) -> None:  # type: ignore[no-untyped-def]
    data = steps(30)
    bag = filled(tmp_path, data[:27], split_bytes=1)
    disk_of(10)
    with pytest.raises(OSError, match="large"):
        put(bag, data[27])
    disk_of(resource.RLIM_INFINITY)
    put(bag, *data[27:])
    bag.close()
    assert read_with_mcap(tmp_path) == data


def test_a_folder_that_became_read_only_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bag, _ = opened(tmp_path / "log")

    def refuse(*_: object) -> None:
        raise PermissionError("Read-only file system")

    monkeypatch.setattr("hil_learner.step_bag.FileIO", refuse)
    with pytest.raises(OSError, match="Read-only"):
        put(bag, b"x")
    monkeypatch.undo()
    put(bag, b"x")
    bag.close()
    assert [entry.data for entry in read_bag(tmp_path / "log")] == [b"x"]


def test_a_claim_of_more_memory_than_is_believed_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, steps(3)).close()
    path = mcap_files(tmp_path)[0]
    head = bytearray(path.read_bytes())
    head[9:17] = (MAX_RECORD + 1).to_bytes(8, "little")  # length of the first record
    path.write_bytes(head)
    with pytest.raises(McapDamage, match="at most"):
        list(Scan(path).entries())


def test_record_times_increase_whatever_the_clock_does(tmp_path: Path) -> None:
    times = iter([1000, 500, 500, 2000])
    bag, _ = opened(tmp_path, clock=lambda: next(times))
    for i in range(4):
        put(bag, bytes([i]), bytes([i]))
    bag.close()
    found = [entry.time for entry in read_bag(tmp_path)]
    assert found == [1000, 1001, 1002, 1003, 1004, 1005, 2000, 2001]
    assert os.path.exists(tmp_path / "metadata.yaml")
