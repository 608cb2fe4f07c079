"""Steps to the learner, exactly once: the protocol against a fake learner."""

from __future__ import annotations

import random
import threading

import pytest

from hil_actor.sender import Reply, Sender, SenderOptions, Status
from hil_actor.step_store import Stream
from hil_interfaces.srv import InsertSteps

STREAM = Stream("run", "spec", "actor", "session")
GENEROUS = 20.0


class Learner:
    """The rule of insert_steps, and what can go wrong on the way."""

    def __init__(self):
        self.run_id = "run"
        self.stored: list[bytes] = []
        self.there = True
        self.busy = ""
        self.lose_requests = 0
        self.lose_answers = 0
        self.calls: list[list[int]] = []
        self.force: Reply | None = None
        self.slow: threading.Event | None = None

    def ready(self):
        return self.there

    def interrupt(self):
        if self.slow is not None:
            self.slow.set()

    def insert(self, stream, steps, timeout):
        self.calls.append([s.seq for s in steps])
        if self.slow is not None:
            assert self.slow.wait(GENEROUS)
        if self.lose_requests:
            self.lose_requests -= 1
            raise TimeoutError("no answer")
        reply = self._reply(stream, steps)
        if self.lose_answers:
            self.lose_answers -= 1
            raise TimeoutError("no answer")
        return reply

    def _reply(self, stream, steps):
        if self.force is not None:
            return self.force
        status, reason = Status.OK, ""
        if stream.run_id != self.run_id:
            status, reason = Status.WRONG_RUN, f"this is run {self.run_id}"
        elif self.busy:
            status, reason = Status.BUSY, self.busy
        else:
            for step in steps:
                if step.seq == len(self.stored) + 1:
                    self.stored.append(step.data)
                elif step.seq > len(self.stored):
                    status, reason = Status.GAP, "gap"
                    break
        last = len(self.stored)
        return Reply(status, reason, self.run_id, last, last + 1)


def data(k):
    return b"step %d" % k


@pytest.fixture
def setup(spools):
    def make(steps=0, keep=1000, **options):
        queue = spools(keep_steps=keep)
        for k in range(1, steps + 1):
            queue.append(data(k))
        learner = Learner()
        sender = Sender(queue, learner, STREAM, options=SenderOptions(**options))
        return queue, learner, sender

    return make


def drain(sender, queue, limit=200):
    """Make calls until everything is acknowledged."""
    for _ in range(limit):
        if not queue.pending or sender.refused:
            return
        sender.exchange()
    raise AssertionError(f"{queue.pending} steps are left: {sender.stalled}")


def complete(learner, n):
    return learner.stored == [data(k) for k in range(1, n + 1)]


def test_numbers_are_those_of_the_interface():
    for status in Status:
        assert getattr(InsertSteps.Response, status.name) == status


def test_batches_in_order(setup):
    queue, learner, sender = setup(25, max_steps=10)
    drain(sender, queue)
    assert complete(learner, 25)
    assert [len(call) for call in learner.calls] == [10, 10, 5]


def test_batches_are_bounded_in_bytes_but_never_empty(setup):
    queue, learner, sender = setup(5, max_bytes=1)
    drain(sender, queue)
    assert [len(call) for call in learner.calls] == [1] * 5


@pytest.mark.parametrize("lost", ["lose_requests", "lose_answers"])
def test_a_call_without_answer_is_repeated(setup, lost):
    queue, learner, sender = setup(5)
    setattr(learner, lost, 3)
    assert sender.exchange() > 0.0 and "no answer" in sender.stalled
    drain(sender, queue)
    assert complete(learner, 5) and not sender.stalled


def test_pauses_grow_and_are_bounded(setup):
    _, learner, sender = setup(1)
    learner.lose_requests = 100
    pauses = [sender.exchange() for _ in range(12)]
    assert pauses == sorted(pauses) and pauses[0] < 0.2 and pauses[-1] == 2.0


def test_an_absent_learner_gets_everything_later(setup):
    queue, learner, sender = setup(3)
    learner.there = False
    assert sender.exchange() > 0.0 and sender.stalled
    assert queue.pending == 3 and not learner.calls
    learner.there = True
    assert sender.exchange() == 0.0 and learner.calls == [[]]
    queue.append(data(4))
    drain(sender, queue)
    assert complete(learner, 4)


def test_a_busy_learner_is_asked_again(setup):
    queue, learner, sender = setup(3)
    learner.busy = "the disk is full"
    assert sender.exchange() > 0.0 and sender.stalled == "the disk is full"
    learner.busy = ""
    drain(sender, queue)
    assert complete(learner, 3)


def test_a_learner_that_fell_back_gets_acknowledged_steps_again(setup):
    queue, learner, sender = setup(8)
    drain(sender, queue)
    del learner.stored[3:]
    queue.append(data(9))
    drain(sender, queue)
    assert complete(learner, 9) and learner.calls[1:] == [[9], [4, 5, 6, 7, 8, 9]]


def test_steps_that_are_gone_stop_the_stream(setup):
    queue, learner, sender = setup(4, keep=2)
    drain(sender, queue)
    for k in range(5, 8):
        queue.append(data(k))
    learner.stored.clear()
    drain(sender, queue)
    assert "lost" in sender.refused and queue.pending


def test_wrong_run_stops_until_the_right_one_is_back(setup):
    queue, learner, sender = setup(3)
    learner.run_id = "other"
    assert sender.exchange() > 0.0
    assert sender.refused == "this is run other" and queue.pending == 3
    learner.calls.clear()
    sender.exchange()
    assert learner.calls == [[]]  # asks, and sends nothing
    learner.run_id = "run"
    sender.exchange()
    drain(sender, queue)
    assert not sender.refused and complete(learner, 3)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply(Status.MALFORMED, "step 1: shape", "run", 0, 1), "malformed: step 1: shape"),
        (Reply(Status.OK, "", "run", 99, 100), "has step 99"),
        (Reply(77, "", "run", 0, 1), "unknown status 77"),
    ],
)
def test_answers_that_make_no_sense_stop_the_stream_for_good(setup, reply, text):
    queue, learner, sender = setup(3)
    learner.force = reply
    sender.exchange()
    assert text in sender.refused and queue.pending == 3


def test_a_learner_that_never_stores_is_not_asked_in_a_hurry(setup):
    _, learner, sender = setup(3)
    learner.force = Reply(Status.GAP, "", "run", 0, 1)
    assert sender.exchange() > 0.0 and sender.stalled


def test_a_learner_that_was_away_is_asked_what_it_has(setup):
    queue, learner, sender = setup(5)
    drain(sender, queue)
    assert not sender.due()
    learner.there = False
    assert sender.due()
    learner.there = True
    learner.stored.clear()
    while sender.due():
        sender.exchange()
    assert complete(learner, 5)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_every_step_is_stored_once_and_in_order(setup, seed):
    rng = random.Random(seed)
    queue, learner, sender = setup(max_steps=7, keep=60)
    made = forgot = highest = 0
    for _ in range(400):
        highest = max(highest, queue.acknowledged)
        event = rng.random()
        if event < 0.35 and not queue.blocked:
            made += 1
            queue.append(data(made))
        elif event < 0.45:
            learner.lose_requests = rng.randint(0, 2)
        elif event < 0.5:
            learner.lose_answers = rng.randint(0, 2)
        elif event < 0.55:
            learner.there = rng.random() < 0.6
        elif event < 0.58:
            learner.busy = rng.choice(["", "", "busy"])
        elif event < 0.6 and learner.stored:
            # a restart that forgets no more than is still kept
            stored = len(learner.stored)
            del learner.stored[rng.randint(min(stored, max(highest - 60, 0)), stored) :]
            forgot += 1
            learner.there = False
            assert sender.due()
            learner.there, learner.busy = True, ""
            learner.lose_requests = learner.lose_answers = 0
            sender.exchange()
        elif sender.due():
            sender.exchange()
    learner.there, learner.busy, learner.lose_requests, learner.lose_answers = True, "", 0, 0
    drain(sender, queue)
    made += 1
    queue.append(data(made))
    drain(sender, queue)
    assert forgot and complete(learner, made) and not sender.refused


def test_thread_sends_at_once_and_flushes(setup):
    queue, learner, sender = setup(interval=0.001)
    queue._on_commit = sender.notify
    sender.start()
    for k in range(1, 201):
        queue.append(data(k))
    assert sender.flush(GENEROUS)
    assert complete(learner, 200)
    sender.stop(GENEROUS)


def test_flush_is_bounded_and_the_thread_ends_while_the_learner_is_slow(setup):
    queue, learner, sender = setup(3)
    learner.slow = threading.Event()
    sender.start()
    sender.notify()
    assert not sender.flush(0.05)
    assert queue.pending == 3
    assert sender.stop(GENEROUS)  # breaks the call off


def test_flush_does_not_wait_long_for_nobody(setup):
    _queue, learner, sender = setup(3)
    learner.there = False
    sender.start()
    assert not sender.flush(3600.0)
    assert sender.stop(GENEROUS)
