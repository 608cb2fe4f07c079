"""Step records: what is in them, how they follow each other, whatever ends an episode."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from rclpy.serialization import deserialize_message

import hil_tasks
from hil_actor.actor_node import policy_spaces
from hil_actor.control_step import Flag
from hil_actor.env import Transition
from hil_actor.recorder import Place, StepRecorder
from hil_actor.step_store import StoreFull
from hil_common.conversions import to_ns
from hil_common.tensors import from_msgs
from hil_interfaces.msg import Step
from hil_rl.store import EpisodeStore
from hil_rl.store import Step as StoredStep

TASK = hil_tasks.load("reach")
FINGERPRINT = TASK.spec.fingerprint()


def observation(k):
    return {
        name: np.full(spec.shape, k, np.float32) for name, spec in TASK.spec.observation.items()
    }


def transition(k, **fields):
    made = Transition(
        stamp=10**9 + k * 10**8,
        observation=observation(k),
        action=np.full(6, 0.1, np.float32),
        proposal=np.full(6, 0.2, np.float32),
        intervened=(False,),
        takeover=False,
        reward=0.0,
        terminated=False,
        truncated=False,
        success=False,
        grasp_penalty=np.zeros(0, np.float32),
        flags=Flag(0),
        next_observation=observation(k + 1),
    )
    return replace(made, **fields)


class Sink:
    def __init__(self, spools, capacity=10**6):
        self.queue = spools(max_steps=capacity)
        self.published: list[bytes] = []
        self.recorder = StepRecorder(
            self.queue,
            self.published.append,
            fingerprint=FINGERPRINT,
            actor_id="actor",
            session="session",
            task="reach",
        )
        self.recorder.run_id = "run"

    def messages(self):
        return [deserialize_message(data, Step) for data in self.published]


def test_a_record_has_everything(spools):
    sink = Sink(spools)
    done = transition(
        3,
        intervened=(True,),
        reward=0.5,
        success=True,
        flags=Flag.CLIPPED | Flag.LATE,
        grasp_penalty=np.array([-0.02], np.float32),
    )
    assert sink.recorder.record(done, Place("train", 4, 3, 17)) == 1
    (message,) = sink.messages()
    assert (message.run_id, message.fingerprint) == ("run", FINGERPRINT)
    assert (message.actor_id, message.session, message.task) == ("actor", "session", "reach")
    assert (message.seq, message.episode, message.step) == (1, 4, 3)
    assert message.policy_version == 17 and message.header.frame_id == "base"
    assert to_ns(message.header.stamp) == done.stamp
    assert np.allclose(message.action, 0.1) and np.allclose(message.policy_action, 0.2)
    assert list(message.intervened) == [True] and message.reward == 0.5 and message.success
    assert np.allclose(message.grasp_penalty, -0.02)
    assert message.flags == Step.FLAG_CLIPPED | Step.FLAG_LATE
    assert not message.final_observation
    tensors = from_msgs(message.observation)
    assert list(tensors) == list(TASK.spec.observation)
    assert all(np.array_equal(tensors[n], v) for n, v in done.observation.items())


def test_the_bytes_that_are_published_are_those_that_are_kept(spools):
    sink = Sink(spools)
    for k in range(5):
        sink.recorder.record(transition(k), Place("train", 0, k, 0))
    assert [s.data for s in sink.queue.batch(1, 10, 10**9)] == sink.published


@pytest.mark.parametrize(
    ("mode", "flag"), [("demo", Flag.DEMO), ("train", Flag(0)), ("evaluate", Flag.EVALUATION)]
)
def test_the_mode_is_a_flag(spools, mode, flag):
    sink = Sink(spools)
    sink.recorder.record(transition(0, proposal=None), Place(mode, 0, 0, 0))
    (message,) = sink.messages()
    assert message.flags == flag and len(message.policy_action) == 0


@pytest.mark.parametrize(
    ("fields", "interrupted", "ends"),
    [
        ({}, False, (False, False, 0)),
        ({"terminated": True, "success": True}, False, (True, False, 0)),
        ({"truncated": True}, False, (False, True, 0)),
        ({}, True, (False, True, int(Flag.INTERRUPTED))),
    ],
)
def test_only_a_last_step_has_a_final_observation(spools, fields, interrupted, ends):
    sink = Sink(spools)
    done = transition(2, **fields)
    sink.recorder.record(done, Place("train", 0, 2, 0), interrupted)
    (message,) = sink.messages()
    assert (message.terminated, message.truncated, message.flags) == ends
    final = from_msgs(message.final_observation)
    assert bool(final) == (message.terminated or message.truncated)
    assert all(np.array_equal(final[n], v) for n, v in done.next_observation.items() if final)


def test_a_full_store_takes_nothing_and_publishes_nothing(spools):
    sink = Sink(spools, capacity=1)
    sink.recorder.record(transition(0), Place("train", 0, 0, 0))
    with pytest.raises(StoreFull):
        sink.recorder.record(transition(1), Place("train", 0, 1, 0))
    assert len(sink.published) == 1
    sink.queue.acknowledge(1)
    assert sink.recorder.record(transition(1), Place("train", 0, 1, 0)) == 2


@pytest.mark.parametrize("seed", range(10))
def test_records_pair_up_in_the_learners_store(spools, seed):
    """Whatever ends the episodes, every sampled pair is one that happened."""
    rng = random.Random(seed)
    sink = Sink(spools)
    pairs, clock = set(), 0
    for episode in range(20):
        for step in range(rng.randint(1, 6)):
            kind = rng.random()
            fields = {}
            if kind < 0.1:
                fields = {"terminated": True}
            elif kind < 0.2:
                fields = {"truncated": True}
            interrupted = not fields and rng.random() < 0.1
            done = transition(clock, **fields)
            sink.recorder.record(done, Place("train", episode, step, 0), interrupted)
            pairs.add((clock, clock + 1))
            clock += 1
            if fields or interrupted:
                break
        clock += 100  # the next episode begins somewhere else; this one may be left open
    messages = sink.messages()
    assert [m.seq for m in messages] == list(range(1, len(messages) + 1))
    store = EpisodeStore(policy_spaces(TASK), 1000)
    for message in messages:
        store.add(stored(message))
    batch = store.sample(500, "all", np.random.default_rng(seed))
    states, following = batch.state[:, 0].astype(int), batch.next_state[:, 0].astype(int)
    sampled = set(zip(states.tolist(), following.tolist(), strict=True))
    assert sampled and sampled <= pairs
    assert all(m.terminated <= (not m.truncated) for m in messages)


def stored(message):
    return StoredStep(
        stream=f"{message.actor_id}/{message.session}",
        seq=message.seq,
        episode=message.episode,
        step=message.step,
        policy_version=message.policy_version,
        observation=from_msgs(message.observation),
        action=np.array(message.action, np.float32),
        terminated=message.terminated,
        truncated=message.truncated,
        flags=message.flags,
        final_observation=from_msgs(message.final_observation) or None,
    )
