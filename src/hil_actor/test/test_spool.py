"""The spool: what is committed stays whatever happens, what does not belong is set aside."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from spool_writer import content

from hil_actor.sender import Reply, Sender, SenderOptions, Status
from hil_actor.spool import QUEUE_BYTES, QUEUE_STEPS, Spool, SpoolOptions
from hil_actor.spool_file import MAX_STEP_BYTES, SpoolError, SpoolFile
from hil_actor.step_store import StoreFull, Stream

GENEROUS = 30.0


def stream(session="s1", run="run", spec="spec"):
    return Stream(run, spec, "actor", session)


class Life:
    """One life of an actor with its spool."""

    def __init__(self, folder, session="s1", run="run", spec="spec", **options):
        self.committed = threading.Event()
        self.spool = Spool(folder, "actor", SpoolOptions(**options), self.committed.set)
        self.left = self.spool.begin(stream(session, run, spec))

    def write(self, *steps):
        for data in steps:
            self.spool.append(data)
            assert self.spool.settle(GENEROUS)

    def end(self):
        assert self.spool.close(GENEROUS) == 0


@pytest.fixture
def live(tmp_path):
    lives = []

    def begin(*args, **options):
        life = Life(tmp_path, *args, **options)
        lives.append(life)
        return life

    yield begin
    for life in lives:
        life.spool.close(GENEROUS)


def texts(steps):
    return [(s.seq, s.data) for s in steps]


def test_steps_are_numbered_and_come_back_in_order(live):
    life = live()
    assert [life.spool.append(b"a%d" % k) for k in range(5)] == [1, 2, 3, 4, 5]
    assert life.spool.settle(GENEROUS)
    spool = life.spool
    assert (spool.committed, spool.last_seq, spool.pending, spool.pending_bytes) == (5, 5, 5, 10)
    assert texts(spool.batch(2, 2, 1000)) == [(2, b"a1"), (3, b"a2")]
    assert texts(spool.batch(4, 100, 1)) == [(4, b"a3")]  # never empty
    assert spool.batch(6, 10, 10) == ()
    spool.acknowledge(3)
    assert (spool.acknowledged, spool.pending, spool.pending_bytes) == (3, 2, 4)
    spool.acknowledge(1)
    assert (spool.acknowledged, spool.pending, spool.pending_bytes) == (1, 4, 8)
    with pytest.raises(ValueError):
        spool.acknowledge(6)


def test_a_successor_finds_what_was_left_and_deletes_what_was_not(live):
    for number in range(3):
        life = live(f"s{number}")
        assert [(s.session, steps.pending) for s, steps in life.left] == [
            (f"s{k}", 2) for k in range(number) if k != 1
        ]
        life.write(b"x", b"y", b"z")
        life.spool.acknowledge(3 if number == 1 else 1)
        life.end()
    life = live("last")
    assert [s.session for s, _ in life.left] == ["s0", "s2"]
    _, steps = life.left[0]
    assert (steps.acknowledged, steps.committed) == (1, 3) and life.spool.pending == 4
    assert texts(steps.batch(2, 10, 100)) == [(2, b"y"), (3, b"z")]
    steps.acknowledge(3)
    assert life.spool.pending == 2
    life.write(b"new")
    assert [row.name for row in life.spool._file.sessions()] == ["s2", "last"]


def test_only_one_process_has_a_spool(live, tmp_path):
    life = live()
    with pytest.raises(SpoolError, match="in use by another process"):
        Spool(tmp_path, "actor")
    other = Spool(tmp_path, "../actor 2/")
    assert other.path.parent == tmp_path
    other.close(GENEROUS)
    life.end()
    live("s2")


@pytest.mark.parametrize("options", [{"max_steps": 3}, {"max_bytes": 30}], ids=["steps", "bytes"])
def test_a_full_spool_refuses_and_drops_nothing(live, options):
    life = live(**options)
    life.write(b"x" * 10, b"x" * 10, b"x" * 10)
    assert "spool is full: 3 steps" in life.spool.blocked
    with pytest.raises(StoreFull):
        life.spool.append(b"y")
    life.spool.acknowledge(1)
    assert not life.spool.blocked
    life.write(b"z")
    assert [s.seq for s in life.spool.batch(2, 10, 1000)] == [2, 3, 4]


def test_what_was_left_counts(live):
    life = live(max_steps=3)
    life.write(b"x", b"x")
    life.end()
    life = live("s2", max_steps=3)
    life.write(b"x")
    assert "3 steps" in life.spool.blocked
    life.left[0][1].acknowledge(2)
    assert not life.spool.blocked


def test_a_step_larger_than_the_spool_gets_through_alone(live):
    life = live(max_bytes=100)
    life.write(b"x" * 1000)
    assert life.spool.blocked
    with pytest.raises(ValueError, match="a step of"):
        life.spool.append(bytes(MAX_STEP_BYTES + 1))


def test_acknowledged_steps_go_but_for_a_bounded_tail(live):
    life = live(keep_steps=5, keep_bytes=1000)
    for _ in range(20):
        life.write(b"x" * 10)
    life.spool.acknowledge(18)
    life.write(b"y")
    assert read_first(life) == 14
    with pytest.raises(LookupError):
        life.spool.batch(13, 1, 1)
    life.spool.acknowledge(2)  # a learner that lost more than is kept
    assert life.spool.acknowledged == 13


def read_first(life):
    ((first,),) = life.spool._file._all("SELECT min(seq) FROM step", ())
    return first


def test_the_tail_is_bounded_in_bytes(live):
    life = live(keep_steps=1000, keep_bytes=50)
    for _ in range(20):
        life.write(b"x" * 10)
    life.spool.acknowledge(20)
    life.write(b"y")
    assert read_first(life) == 16


def test_the_file_does_not_grow_for_ever(live):
    """Many times the size of the bounds goes through; a high tide ebbs away."""
    life = live(keep_steps=2, max_bytes=2**30)
    block = bytes(100_000)
    for _ in range(400):
        life.write(block)
    high = life.spool.path.stat().st_size
    assert high > 20e6
    life.spool.acknowledge(400)
    for k in range(200):
        life.write(block)
        life.spool.acknowledge(401 + k)
    life.end()
    assert life.spool.path.stat().st_size < high / 3
    assert not life.spool.path.with_name("actor.sqlite-wal").exists()


def test_the_hand_over_is_bounded(live):
    """While the disk does nothing, the queue fills up and the actor is told to wait."""
    life = live()
    connection = sqlite3.connect(life.spool.path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")  # the writer waits for this lock
    count = 0
    while not (why := life.spool.blocked):
        life.spool.append(b"x")
        count += 1
    assert "disk is too slow" in why and count <= QUEUE_STEPS
    with pytest.raises(StoreFull):
        life.spool.append(b"x")
    assert life.spool.committed == 0 and QUEUE_BYTES <= 2**27
    connection.execute("ROLLBACK")
    connection.close()
    assert life.spool.settle(GENEROUS) and life.spool.committed == count


# ------------------------------------------------------------------------------ trouble


@pytest.mark.parametrize(
    ("pragma", "relief", "text"),
    [
        ("max_page_count = 1", "max_page_count = 1000000", "full"),
        ("query_only = ON", "query_only = OFF", "readonly"),
    ],
)
def test_a_disk_that_takes_nothing_blocks_and_goes_on_later(live, pragma, relief, text):
    life = live()
    life.write(b"before")
    life.spool._file._writer.execute(f"PRAGMA {pragma}").fetchall()
    life.committed.clear()
    for _ in range(3):
        life.spool.append(bytes(50_000))
        if life.spool.problem:
            break
    wait(life, lambda: life.spool.problem)
    assert text in life.spool.problem and str(life.spool.path) in life.spool.problem
    assert life.spool.blocked == life.spool.problem
    with pytest.raises(StoreFull):
        life.spool.append(b"")
    assert life.spool.committed >= 1 and texts(life.spool.batch(1, 1, 9)) == [(1, b"before")]
    life.spool._file._writer.execute(f"PRAGMA {relief}").fetchall()
    wait(life, lambda: not life.spool.problem)
    assert life.spool.settle(GENEROUS) and not life.spool.blocked
    count = life.spool.last_seq
    life.write(b"after")
    life.end()
    life = live("s2")
    ((_, steps),) = life.left
    found = [s for k in range(1, count + 2) for s in steps.batch(k, 1, 1)]
    assert [s.seq for s in found] == list(range(1, count + 2)) and found[-1].data == b"after"


def wait(life, predicate):
    for _ in range(int(GENEROUS)):
        if predicate():
            return
        life.committed.wait(1.0)
        life.committed.clear()
    raise AssertionError("waited too long")


def test_steps_that_could_not_be_written_are_counted_at_the_end(live):
    life = live()
    life.spool._file._writer.execute("PRAGMA query_only = ON")
    life.spool.append(b"x")
    assert life.spool.close(GENEROUS) == 1 and "readonly" in life.spool.problem


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match=r"spool .*file/folder/actor\.sqlite: "):
        Spool(tmp_path / "file" / "folder", "actor")


def leave(folder, **options):
    """A spool with three steps, of which one is acknowledged."""
    life = Life(folder, **options)
    life.write(b"one", b"two", b"three")
    life.spool.acknowledge(1)
    life.end()
    return life.spool.path


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"run": "other"}, "2 steps of run run wait"),
        ({"spec": "other"}, "2 steps of run run with another task specification wait"),
    ],
)
def test_steps_of_another_run_or_specification_are_set_aside(live, tmp_path, names, text):
    path = leave(tmp_path)
    life = live("s2", **names)
    assert not life.left and life.spool.pending == 0
    (notice,) = life.spool.notices
    (aside,) = tmp_path.glob("*.set-aside.sqlite")
    assert text in notice and f"hil spool import {aside}" in notice
    assert aside.name.startswith("actor.run.") and path.exists()
    file = SpoolFile(aside)
    (row,) = file.sessions()
    assert file.owner.run_id == "run" and (row.acknowledged, row.last) == (1, 3)
    assert [s.data for s in file.read(row.id, 2, 10, 100)] == [b"two", b"three"]
    file.close()
    life.write(b"mine")
    assert life.spool.committed == 1


def test_a_finished_spool_of_another_run_just_goes(live, tmp_path):
    life = live()
    life.write(b"x")
    life.spool.acknowledge(1)
    life.end()
    life = live("s2", run="other")
    assert not life.spool.notices and not list(tmp_path.glob("*set-aside*"))
    assert life.spool._file.owner.run_id == "other"


def test_names_of_files_set_aside_are_unique(tmp_path):
    for run in ("a", "b", "a", "b", "../a"):
        leave(tmp_path, run=run)
    assert len(list(tmp_path.glob("*.set-aside.sqlite"))) == 4


def damage_header(path):
    with path.open("r+b") as file:
        file.write(b"not a database at all")


def damage_middle(path):
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 20_000)


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def another_program(path):
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE step (x)")
    connection.close()


def more_tables(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE VIEW trap AS SELECT * FROM step")
    connection.close()


def newer_version(path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()


def nameless(path):
    change(path, "DELETE FROM spool")


def long_name(path):
    change(path, f"UPDATE session SET name = '{'x' * 300}'")


def odd_number(path):
    change(path, "UPDATE session SET acknowledged = 'many'")


def change(path, statement):
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "spoil",
    [
        damage_header, damage_middle, cut, another_program, more_tables, newer_version, nameless,
        long_name, odd_number,
    ],
)  # fmt: skip
def test_a_file_that_is_no_whole_spool_is_set_aside_and_work_goes_on(live, tmp_path, spoil):
    path = leave(tmp_path)
    spoil(path)
    life = live("s2")
    assert not life.left
    (notice,) = life.spool.notices
    (aside,) = tmp_path.glob("actor.damaged.*.set-aside.sqlite")
    assert str(aside) in notice and str(path) in notice
    life.write(b"x")
    assert life.spool.committed == 1


def test_a_row_that_is_no_step_stops_its_session_only(live, tmp_path):
    path = leave(tmp_path)
    change(path, "UPDATE step SET data = 'text' WHERE seq = 3")
    life = live("s2")
    life.write(b"mine")
    learner = Learner({"s1": 1})
    sender = Sender(life.spool, learner, stream("s2"), life.left)
    while sender.due():
        sender.exchange()
    assert learner.stored["s1"] == [b"one"] and learner.stored["s2"] == [b"mine"]
    assert "makes no sense" in sender.abandoned[0] and life.spool.pending == 0


@pytest.mark.parametrize("seed", range(30))
def test_no_damage_is_believed(tmp_path, seed):
    """Random bytes of a file are changed: it is set aside, or its steps are of possible size."""
    rng = random.Random(seed)
    path = leave(tmp_path)
    content = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 50)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(content)
    try:
        life = Life(tmp_path, "s2")
    except SpoolError:
        return
    for _, steps in life.left:
        try:
            found = steps.batch(steps.acknowledged + 1, 10, 1000)
        except LookupError:
            continue
        assert all(len(s.data) <= MAX_STEP_BYTES for s in found)
    life.write(b"x")
    life.end()


# ------------------------------------------------------------------------------- draining


class Learner:
    """The rule of insert_steps for several sessions. had: what it has of them at first."""

    def __init__(self, had=None):
        self.stored = {name: [b"one", b"two", b"three"][:n] for name, n in (had or {}).items()}
        self.order = []
        self.malformed = ""
        self.lose = 0

    def ready(self):
        return True

    def interrupt(self):
        pass

    def insert(self, of, steps, timeout):
        stored = self.stored.setdefault(of.session, [])
        self.order.append(of.session)
        status, reason = Status.OK, ""
        for step in steps:
            if of.session == self.malformed:
                status, reason = Status.MALFORMED, "not a step"
                break
            if step.seq == len(stored) + 1:
                stored.append(step.data)
            elif step.seq > len(stored):
                status, reason = Status.GAP, "gap"
                break
        if self.lose:
            self.lose -= 1
            raise TimeoutError("no answer")
        return Reply(status, reason, of.run_id, len(stored), len(stored) + 1)


def test_a_successor_sends_what_was_left_first_and_each_step_once(live, tmp_path):
    leave(tmp_path, session="s1")
    leave(tmp_path, session="s2")
    life = live("s3")
    life.write(b"mine")
    # The learner has more of s1 than its actor knew, and exactly what it knew of s2.
    learner = Learner({"s1": 2, "s2": 1})
    learner.lose = 2
    sender = Sender(life.spool, learner, stream("s3"), life.left)
    while sender.due():
        sender.exchange()
    whole = [b"one", b"two", b"three"]
    assert learner.stored == {"s1": whole, "s2": whole, "s3": [b"mine"]}
    assert learner.order == sorted(learner.order)
    assert not life.spool.pending and not sender.abandoned
    life.write(b"more")
    assert [row.name for row in life.spool._file.sessions()] == ["s3"]


def test_what_the_learner_will_never_take_does_not_hold_up_the_rest(live, tmp_path):
    leave(tmp_path, session="s1")
    leave(tmp_path, session="s2", keep_steps=0)
    life = live("s3")
    life.write(b"mine")
    learner = Learner({"s1": 1})  # of s2 it has nothing: the first step is gone
    learner.malformed = "s1"
    sender = Sender(life.spool, learner, stream("s3"), life.left)
    while sender.due():
        sender.exchange()
    assert learner.stored["s3"] == [b"mine"] and len(sender.abandoned) == 2
    assert "not a step" in sender.abandoned[0] and "s2" in sender.abandoned[1]
    assert not life.spool.pending and not sender.refused
    life.end()
    assert len(live("s4").left) == 2  # kept, for a person to look at


@pytest.mark.parametrize("seed", range(5))
def test_every_commit_that_was_reported_survives_sigkill(tmp_path, seed):
    """Real processes, killed at random moments, one after the other on one spool."""
    rng = random.Random(seed)
    learner = Learner()
    for life in range(3):
        session = f"{seed}-{life}"
        reported = run_and_kill(tmp_path, session, rng.randint(1, 300))
        spool = Spool(tmp_path, "actor", SpoolOptions(keep_steps=20))
        left = spool.begin(stream(f"reader-{life}"))
        ((owner, steps),) = left[-1:]
        assert owner.session == session and steps.committed >= reported
        # What was acknowledged is at the learner; the rest has to come, whole and in order.
        learner.stored[session] = [content(session, k + 1) for k in range(steps.acknowledged)]
        sender = Sender(
            spool, learner, stream(f"reader-{life}"), left, SenderOptions(max_bytes=300_000)
        )
        while sender.due():
            sender.exchange()
        assert not sender.abandoned and not spool.pending
        whole = [content(session, k) for k in range(1, steps.committed + 1)]
        assert learner.stored[session] == whole
        spool.close(GENEROUS)


def run_and_kill(folder, session, after):
    """Have a process write, kill it after so many commits were reported; return how many were."""
    writer = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "spool_writer.py"), str(folder), session],
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None
    try:
        reported = 0
        while reported < after:
            reported = int(writer.stdout.readline())
    finally:
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().splitlines()
        writer.stdout.close()
        writer.wait()
    # The last line may be torn, not the ones before it.
    return max([reported, *map(int, rest[:-1])])
