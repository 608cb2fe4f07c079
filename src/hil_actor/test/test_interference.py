"""A person pauses the actor, goes on, and ends an episode."""

from __future__ import annotations

import sys
from pathlib import Path

from std_srvs.srv import SetBool, Trigger

sys.path.insert(0, str(Path(__file__).parent))

from test_actor_node import EPISODE, bench  # noqa: F401

from hil_actor.interference import PAUSED


class Hand:
    """The person's services."""

    def __init__(self, bench):  # noqa: F811
        self.ros = bench.ros
        node = bench.ros.node("person_at_the_console")
        self._pause = node.create_client(SetBool, "actor/set_pause")
        self._skip = node.create_client(Trigger, "actor/skip_episode")

    def pause(self, paused):
        assert self.ros.call(self._pause, SetBool.Request(data=paused)).success

    def skip(self):
        return self.ros.call(self._skip, Trigger.Request())


def paused_in_an_episode(bench):  # noqa: F811
    """Pauses after the first step; returns the run's handle and the number of steps then."""
    hand = Hand(bench)
    handle = bench.ask("train", 3)
    bench.steps(1)
    hand.pause(True)
    bench.wait_text("paused", PAUSED)
    return hand, handle, len(bench.recording.steps)


def test_a_pause_holds_until_the_person_goes_on(bench):  # noqa: F811
    bench.start(pace="realtime", world_reset="never")
    bench.learner()
    hand, handle, count = paused_in_an_episode(bench)
    assert len(bench.recording.steps) <= count + 1  # none but the one that was under way
    hand.pause(False)
    result = bench.result(handle)
    assert result.ok and result.episodes == 3
    steps = [(s.episode, s.step) for s in bench.recording.steps]
    assert steps == [(e, k) for e in range(3) for k in range(EPISODE)]


def test_ending_an_episode_takes_no_further_step(bench):  # noqa: F811
    bench.start(pace="realtime", world_reset="never")
    bench.learner()
    hand, handle, count = paused_in_an_episode(bench)
    assert hand.skip().success
    bench.ros.wait_for(lambda: bench.recording.episodes)
    summary = bench.recording.episodes[0]
    assert summary.interrupted and not summary.success and summary.steps <= count + 1
    # Nothing is reset before the person goes on.
    assert not any(step.episode > summary.episode for step in bench.recording.steps)
    hand.pause(False)
    result = bench.result(handle)
    assert result.ok and result.episodes == 3  # an interrupted one does not count


def test_there_is_nothing_to_end_between_episodes(bench):  # noqa: F811
    bench.start()
    answer = Hand(bench).skip()
    assert not answer.success and "no episode is under way" in answer.message
