"""How far the actor may run ahead, and what a step waits for."""

from __future__ import annotations

import sqlite3

import pytest

from hil_actor.learner_link import LearnerLink
from hil_actor.spool import Spool
from hil_actor.spool_file import SpoolError
from hil_actor.step_store import Stream
from hil_actor.throttle import Progress, Throttle


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def make(silence=60.0):
    clock = Clock()
    return Throttle(clock, silence), clock


def steps_until_wait(throttle, pending=0, limit=1000):
    for k in range(limit):
        if throttle.reason(pending):
            return k
        throttle.take()
    return limit


def test_without_a_learner_nothing_waits():
    throttle, _ = make()
    assert steps_until_wait(throttle) == 1000


def test_exactly_the_allowed_steps_are_taken_however_late_the_learner_counts():
    throttle, _ = make()
    throttle.update(Progress("run", 0, 50), 0)
    assert steps_until_wait(throttle) == 50
    assert "at 50 training steps" in throttle.reason(0)
    throttle.update(Progress("run", 10, 60), 40)
    assert steps_until_wait(throttle, 40) == 10


def test_steps_of_other_actors_and_of_a_former_life_count():
    throttle, _ = make()
    throttle.update(Progress("run", 30, 50), 0)
    assert steps_until_wait(throttle) == 20
    throttle.update(Progress("run", 70, 80), 0)
    assert steps_until_wait(throttle) == 0 or throttle.reason(10)


def test_a_learner_that_comes_late_finds_the_steps_that_wait():
    throttle, _ = make()
    for _ in range(5):
        throttle.take()
    throttle.update(Progress("run", 0, 8), 5)
    assert steps_until_wait(throttle) == 3


def test_a_silent_learner_does_not_stop_the_actor_for_ever():
    throttle, clock = make(silence=10.0)
    throttle.update(Progress("run", 0, 0, "training"), 0)
    assert "training" in throttle.reason(0)
    clock.now += 11.0
    assert not throttle.reason(0)
    throttle.update(Progress("run", 0, 0, waiting_for="demonstrations"), 0)
    assert "demonstrations" in throttle.reason(0)


class FakeSender:
    def __init__(self, stream):
        self.stream = stream
        self.refused = self.stalled = ""
        self.started = self.hurried = 0

    def start(self):
        self.started += 1

    def hurry(self):
        self.hurried += 1


@pytest.fixture
def link(spools):
    def build(run_id="", lockstep=True, capacity=5, make_sender=FakeSender):
        throttle, _ = make()
        queue = spools(max_steps=capacity)
        runs = []
        made = LearnerLink(
            queue,
            Stream(run_id, "spec", "actor", "session"),
            make_sender,
            throttle,
            lockstep=lockstep,
            on_run=runs.append,
            wake=lambda: runs.append("wake"),
        )
        return made, queue, runs

    return build


def test_a_spool_that_cannot_be_opened_is_told_and_tried_again(link):
    troubles = ["no space left", "no space left", ""]

    def make_sender(stream):
        trouble = troubles.pop(0)
        if trouble:
            raise SpoolError(trouble)
        return FakeSender(stream)

    made, _, runs = link("given", make_sender=make_sender)
    assert not runs and made.trouble == "no space left"
    assert made.reason("train") == "no space left"
    assert not made.reason("train") and runs == ["given"] and not made.trouble


def test_the_run_is_named_before_the_first_step(link):
    made, _, runs = link()
    assert "name of the run" in made.reason("train") and not runs
    made.on_progress(Progress("abc", 0, 10))
    assert not made.reason("train") and runs == ["abc"]
    assert made.sender.stream.run_id == "abc" and made.sender.started == 1
    made.on_progress(Progress("other", 0, 10))
    assert runs == ["abc"]  # the learner will refuse; the run does not change under the steps


def test_a_given_run_needs_no_learner(link):
    made, _, runs = link("given")
    assert not made.reason("train") and runs == ["given"]


def test_a_full_queue_and_a_refusing_learner_pause_every_mode(link):
    made, queue, _ = link("given")
    for _ in range(5):
        queue.append(b"x")
    made.sender.stalled = "the learner is not there"
    for mode in ("demo", "train", "evaluate"):
        assert "spool is full: 5 steps" in made.reason(mode)
        assert "not there" in made.reason(mode)
    queue.acknowledge(2)
    made.sender.refused = "this is run x"
    assert "this is run x" in made.reason("evaluate")


@pytest.mark.parametrize("lockstep", [True, False])
def test_in_lockstep_a_step_waits_until_the_last_one_is_on_disk(link, lockstep):
    made, queue, _ = link("given", lockstep=lockstep)
    queue.append(b"x")
    assert not made.reason("demo")
    other = sqlite3.connect(queue.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # the writer waits for this lock
    Spool.append(queue, b"y")
    assert bool(made.reason("demo")) == lockstep
    other.execute("ROLLBACK")
    other.close()
    assert queue.settle(20.0) and not made.reason("demo")


def test_only_training_in_lockstep_is_throttled(link):
    for lockstep, mode, waits in (
        (True, "train", True),
        (True, "demo", False),
        (True, "evaluate", False),
        (False, "train", False),
    ):
        made, _, _ = link(lockstep=lockstep)
        made.on_progress(Progress("run", 5, 5))
        assert bool(made.reason(mode)) == waits
        assert made.sender.hurried == waits


def test_news_of_the_learner_wakes_only_who_waits(link):
    made, _, said = link("given")
    made.progressed()
    assert said == ["given"]
    made.on_progress(Progress("given", 5, 5))
    assert made.reason("train")
    made.progressed()
    assert said == ["given", "wake"]
