"""When an intervened step is first in a batch: noted once, for the right step, and written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hil_learner.first_batch import MeteredStore
from hil_learner.metrics import Metrics, read
from hil_learner.synthetic import SPACES
from hil_rl.store import FLAG_DEMO, Batch, Step

RNG = np.random.default_rng(0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def step(seq: int, *, intervened: bool, flags: int = 0, last: bool = False) -> Step:
    observation = {
        name: np.full(shape, 0.1 * seq, dtype)
        for name, (shape, dtype) in SPACES.observation.items()
    }
    return Step(
        "actor/s", seq, 0, seq - 1, 0, observation, np.zeros(SPACES.action_size, np.float32),
        intervened=intervened, flags=flags, truncated=last,
        final_observation=observation if last else None,
    )  # fmt: skip


def metered(capacity: int = 100) -> tuple[MeteredStore, Clock]:
    clock = Clock()
    store = MeteredStore(SPACES, capacity, clock)
    store.metering = True
    return store, clock


def test_the_first_batch_of_an_intervened_step_is_noted_once_with_its_waiting_time() -> None:
    store, clock = metered()
    store.add(step(1, intervened=False))
    store.add(step(2, intervened=True))
    clock.now += 0.5
    store.add(step(3, intervened=False))
    assert store.first_batch_figures() == {"interventions_unsampled": 1.0}
    clock.now += 0.25
    out = Batch.empty(64, SPACES)
    store.sample(64, "all", RNG, out=out)  # of two transitions: both are in it
    store.sample(64, "all", RNG, out=out)
    (noted,) = store.take_first_batches()
    assert (noted.stream, noted.seq, noted.waited) == ("actor/s", 2, 0.75)
    assert store.take_first_batches() == []
    assert store.first_batch_figures() == {
        "interventions_unsampled": 0.0,
        "intervention_to_batch_p50_s": 0.75,
        "intervention_to_batch_max_s": 0.75,
    }


def test_a_step_that_no_batch_has_is_waiting_not_noted() -> None:
    store, clock = metered()
    for seq in (1, 2):
        store.add(step(seq, intervened=True))
    clock.now += 1.0
    store.sample(8, "demo", RNG)
    assert [each.seq for each in store.take_first_batches()] == [1]
    assert store.first_batch_figures()["interventions_unsampled"] == 1.0  # no successor yet
    clock.now += 2.0
    store.add(step(3, intervened=False))
    store.sample(64, "demo", RNG)
    assert [(each.seq, each.waited) for each in store.take_first_batches()] == [(2, 3.0)]


def test_demonstrations_and_what_a_log_brings_back_are_not_metered() -> None:
    store, _ = metered()
    store.metering = False
    store.add(step(1, intervened=True))
    store.metering = True
    store.add(step(2, intervened=True, flags=FLAG_DEMO))
    store.add(step(3, intervened=False, last=True))
    store.sample(64, "demo", RNG)
    assert store.take_first_batches() == []
    assert store.first_batch_figures() == {"interventions_unsampled": 0.0}


def test_a_slot_that_was_overwritten_belongs_to_the_new_step_only() -> None:
    store, clock = metered(capacity=4)
    for seq in range(1, 9):
        clock.now += 1.0
        store.add(step(seq, intervened=seq in (2, 7)))
    store.sample(64, "all", RNG)
    assert [(each.seq, each.waited) for each in store.take_first_batches()] == [(7, 1.0)]


def test_rows_are_written_per_stream_and_do_not_disturb_the_history(tmp_path: Path) -> None:
    store, _ = metered()
    store.add(step(1, intervened=True, last=True))
    store.sample(4, "demo", RNG)
    metrics = Metrics(tmp_path / "metrics.jsonl", None)
    metrics.first_batches(store.take_first_batches())
    metrics.first_batches([])
    metrics.close()
    (row,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (row["kind"], row["stream"], row["seq"], row["waited"]) == (
        "first_batch", "actor/s", [1], [0.0],
    )  # fmt: skip
    assert row["at"][0] > 1e9
    assert read(tmp_path / "metrics.jsonl").training == []
