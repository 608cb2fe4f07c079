"""Which policy acts, and what becomes of those that are offered."""

from __future__ import annotations

import hashlib
import queue
import threading

import numpy as np
import pytest

import hil_actor.policy_slot as module
import hil_tasks
from hil_actor.actor_node import policy_spaces
from hil_actor.policy_slot import Offer, PolicySlot
from hil_rl.config import SACConfig
from hil_rl.policy import Policy

GENEROUS = 20.0
TASK = hil_tasks.load("reach")
SPACES = policy_spaces(TASK)
CONFIG = SACConfig(hidden=(8, 8))


def policy(version=0, seed=0, fingerprint="spec", spaces=SPACES):
    made = Policy.random(spaces, CONFIG, seed, fingerprint)
    return Policy.create(made._parameters, made.architecture, spaces, version, fingerprint)


class Offers:
    def __init__(self, slot):
        self.slot = slot
        self.verdicts = queue.Queue()

    def put(self, made, **changes):
        fields = {
            "version": made.version,
            "fingerprint": made.fingerprint,
            "sha256": made.sha256,
            "data": made.data,
            **changes,
        }
        self.slot.offer(Offer(done=self.verdicts.put, **fields))

    def verdict(self):
        return self.verdicts.get(timeout=GENEROUS)


@pytest.fixture
def slot():
    made = PolicySlot(policy(), SPACES, "spec", 10**6)
    yield made
    made.close()


def test_a_good_policy_is_in_force_when_it_is_accepted(slot):
    offers = Offers(slot)
    new = policy(3, seed=1)
    offers.put(new)
    verdict = offers.verdict()
    assert verdict.accepted and verdict.version == 3 and not verdict.reason
    assert slot.current.sha256 == new.sha256
    observation = {n: np.zeros(s, np.float32) for n, s in SPACES.vectors.items()}
    rng = np.random.default_rng(0)
    assert np.array_equal(
        slot.current.act(observation, True, rng), new.act(observation, True, rng)
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sha256": "0" * 64}, "sha256"),
        ({"fingerprint": "another"}, "specification"),
        ({"data": b""}, "0 bytes"),
        ({"data": b"x" * (10**6 + 1)}, "bytes"),
        ({"data": b"rubbish", "sha256": hashlib.sha256(b"rubbish").hexdigest()}, "safetensors"),
        ({"version": 9}, "version 9 was announced"),
    ],
)
def test_a_bad_policy_is_rejected_with_the_reason(slot, changes, reason):
    offers = Offers(slot)
    before = slot.current
    offers.put(policy(3), **changes)
    verdict = offers.verdict()
    assert not verdict.accepted and reason in verdict.reason and verdict.version == 0
    assert slot.current is before


def test_a_policy_for_other_spaces_is_rejected(slot):
    other = policy_spaces(hil_tasks.load("peg_insert"))
    offers = Offers(slot)
    offers.put(policy(3, spaces=other))
    assert "spaces" in offers.verdict().reason


def test_an_older_version_is_rejected_and_an_equal_one_replaces(slot):
    offers = Offers(slot)
    offers.put(policy(5))
    assert offers.verdict().accepted
    offers.put(policy(4))
    verdict = offers.verdict()
    assert not verdict.accepted and "older" in verdict.reason and verdict.version == 5
    again = policy(5, seed=7)
    offers.put(again)
    assert offers.verdict().accepted and slot.current.sha256 == again.sha256


def test_of_those_that_wait_only_the_newest_is_decoded(slot, monkeypatch):
    entered, go = threading.Event(), threading.Event()
    decode = Policy.decode
    decoded = []

    class Slow:
        @staticmethod
        def decode(data, *args, **kwargs):
            decoded.append(data)
            entered.set()
            assert go.wait(GENEROUS)
            return decode(data, *args, **kwargs)

    monkeypatch.setattr(module, "Policy", Slow)
    offers = Offers(slot)
    made = [policy(k) for k in (1, 2, 3, 4)]
    offers.put(made[0])
    assert entered.wait(GENEROUS)
    for one in made[1:]:
        offers.put(one)
    assert ["superseded" in offers.verdict().reason for _ in range(2)] == [True, True]
    go.set()
    assert [offers.verdict().version for _ in range(2)] == [1, 4]
    assert decoded == [made[0].data, made[3].data] and slot.current.version == 4


def test_closing_answers_what_waits(monkeypatch):
    made = PolicySlot(policy(), SPACES, "spec", 10**6)
    made.close()
    offers = Offers(made)
    offers.put(policy(1))
    made.close()
    assert "closing" in offers.verdict().reason
