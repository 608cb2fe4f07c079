"""The episode store against a naive model, and its limits."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hil_rl import store as store_module
from hil_rl.memory import available_memory
from hil_rl.store import (
    FLAG_DEMO,
    FLAG_HELD,
    FLAG_TAKEOVER,
    Batch,
    Counts,
    EpisodeStore,
    Step,
    StoreError,
    Use,
)

sys.path.insert(0, str(Path(__file__).parent))
from store_model import CAPACITY, EVENT, SPACES, Model, history, make_step, observation, state


def assert_row(batch: Batch, row: int, step: Step, following: list[float]) -> None:
    assert batch.state[row].tolist() == state(float(step.observation["position"][0]))
    assert batch.next_state[row].tolist() == following
    np.testing.assert_array_equal(batch.action[row], np.asarray(step.action, np.float32))
    assert batch.reward[row] == np.float32(step.reward)
    assert batch.mask[row] == (0.0 if step.terminated else 1.0)
    assert batch.truncated[row] == step.truncated
    assert batch.intervened[row] == step.intervened
    assert batch.demo[row] == bool(step.flags & FLAG_DEMO)
    assert batch.step[row] == step.step
    assert batch.policy_version[row] == step.policy_version
    np.testing.assert_array_equal(batch.grasp_penalty[row], np.float32(step.grasp_penalty))


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENT, max_size=60), CAPACITY, st.integers(0, 2**32 - 1))
def test_every_field_of_every_transition(events: list, capacity: int, seed: int) -> None:
    store, model = EpisodeStore(SPACES, capacity), Model(capacity)
    for step in history(events):
        assert store.add(step) == model.slots % capacity
        model.add(step)
    rng = np.random.default_rng(seed)
    for view in ("all", "demo"):
        expected = model.transitions(view)
        assert store.size(view) == len(expected)
        if not expected:
            with pytest.raises(StoreError, match="empty"):
                store.sample(3, view, rng)
            continue
        everything = store.gather(store.slots(view))
        assert sorted(everything.state[:, 0]) == sorted(expected)
        for batch in (everything, store.sample(20, view, rng)):
            for row in range(len(batch)):
                assert_row(batch, row, *expected[float(batch.state[row, 0])])
    counts = store.counts
    assert Counts(**(vars(counts) | {"dropped": 0})) == model.counts()
    open_now = sum(not (s.terminated or s.truncated) for _, s in model.history)
    assert 0 <= counts.dropped <= open_now + sum(s.truncated for _, s in model.history)


@settings(max_examples=40, deadline=None)
@given(st.lists(EVENT, max_size=60), CAPACITY)
def test_size_is_right_after_every_step(events: list, capacity: int) -> None:
    store, model = EpisodeStore(SPACES, capacity), Model(capacity)
    for step in history(events):
        store.add(step)
        model.add(step)
        for view in ("all", "demo"):
            assert store.size(view) == len(model.transitions(view))


def test_step_that_overwrites_its_predecessor() -> None:
    store = EpisodeStore(SPACES, 2)
    store.add(make_step(1, "arm/a", 1))
    store.add(make_step(2, "left/a", 1))
    store.add(make_step(3, "arm/a", 2))  # takes the slot of the step that it follows
    assert store.size("all") == 0 and store.counts.dropped == 1
    store.add(make_step(4, "arm/a", 3))
    batch = store.gather(store.slots("all"))
    assert (batch.state[:, 0].tolist(), batch.next_state[:, 0].tolist()) == ([3.0], [4.0])


def test_dropped_steps_are_counted() -> None:
    store = EpisodeStore(SPACES, 50)
    store.add(make_step(1, seq=1))
    store.add(make_step(2, seq=3))  # seq 2 was lost
    assert store.counts.dropped == 1
    store.add(make_step(3, stream="arm/b", seq=1))  # a new session of the same actor
    assert store.counts.dropped == 2
    store.add(make_step(4, stream="other/a", seq=1))
    assert store.counts.dropped == 2
    store.add(make_step(5, stream="other/a", seq=2, truncated=True))  # without an observation
    assert store.counts.dropped == 3
    assert store.size("all") == 1


def test_steps_of_one_episode_share_a_number() -> None:
    store = EpisodeStore(SPACES, 50)
    for seq in (1, 2, 3):
        store.add(make_step(seq, "arm/a", seq, terminated=seq == 3))
        store.add(make_step(seq + 10, "left/a", seq, terminated=seq == 3))
    batch = store.gather(np.sort(store.slots("all")))
    assert batch.episode.tolist() == [0, 1, 0, 1, 0, 1]


def test_sampling_is_uniform_and_reproducible() -> None:
    store = EpisodeStore(SPACES, 16)
    for seq in range(1, 41):
        store.add(make_step(seq, seq=seq))
    batch = store.sample(15_000, "all", np.random.default_rng(0))
    values, counts = np.unique(batch.state[:, 0], return_counts=True)
    assert values.tolist() == list(range(25, 40))
    assert np.abs(counts / 1000.0 - 1.0).max() < 0.15
    again = store.sample(15_000, "all", np.random.default_rng(0))
    np.testing.assert_array_equal(batch.slot, again.slot)


def test_samples_are_copies() -> None:
    store = EpisodeStore(SPACES, 4)
    for seq in (1, 2, 3):
        store.add(make_step(seq, seq=seq))
    batch = store.sample(8, "all", np.random.default_rng(0))
    before = store.gather(store.slots("all"))
    for array in vars(batch).values():
        array[:] = 0
    after = store.gather(store.slots("all"))
    np.testing.assert_array_equal(before.state, after.state)
    np.testing.assert_array_equal(before.next_state, after.next_state)


def test_sampling_into_rows_of_a_batch() -> None:
    store = EpisodeStore(SPACES, 10)
    for seq in (1, 2, 3):
        store.add(make_step(seq, seq=seq, intervened=seq == 1))
    batch = Batch.empty(6, SPACES)
    store.sample(2, "demo", np.random.default_rng(0), out=batch.rows(0, 2))
    store.sample(4, "all", np.random.default_rng(1), out=batch.rows(2, 6))
    assert batch.state[:2, 0].tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(batch.next_state[:, 0], batch.state[:, 0] + 1)
    with pytest.raises(StoreError, match="rows"):
        store.sample(3, "all", np.random.default_rng(0), out=batch)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"observation": {"position": np.zeros(2), "contact": True}}, "no 'wrench'"),
        ({"observation": observation(1) | {"position": np.zeros(3)}}, r"shape \(3,\)"),
        ({"observation": observation(1) | {"position": np.array([0, np.nan])}}, "position"),
        ({"final_observation": observation(1) | {"contact": np.array(np.inf)}}, "not finite"),
        ({"action": np.zeros(6)}, r"shape \(6,\)"),
        ({"action": np.full(7, np.nan)}, "not finite"),
        ({"action": np.full(7, 1.01)}, r"\[-1, 1\]"),
        ({"reward": float("nan")}, "reward"),
        ({"grasp_penalty": np.zeros(2)}, "grasp_penalty has shape"),
        ({"grasp_penalty": np.array([-np.inf])}, "grasp_penalty"),
    ],
)
def test_bad_steps_are_refused_and_change_nothing(change: dict, reason: str) -> None:
    store = EpisodeStore(SPACES, 10)
    store.add(make_step(1, seq=1))
    with pytest.raises(StoreError, match=reason) as error:
        store.add(make_step(2, seq=2, **change))
    assert "arm/a seq 2" in str(error.value)
    assert store.counts == Counts(online=1)
    store.add(make_step(3, seq=3))  # the refused step is a gap: step 1 has no known successor
    store.add(make_step(4, seq=4))
    assert store.gather(store.slots("all")).state[:, 0].tolist() == [3.0]


def test_unknown_view_and_slot() -> None:
    store = EpisodeStore(SPACES, 10)
    with pytest.raises(StoreError, match="no view 'demos'"):
        store.size("demos")  # type: ignore[arg-type]
    store.add(make_step(1))
    with pytest.raises(StoreError, match="slot 0"):
        store.gather(np.array([0]))


def test_sampling_from_another_thread() -> None:
    """Whatever the interleaving, a sampled pair is consecutive and of one stream."""
    store = EpisodeStore(SPACES, 64)
    store.add(make_step(1, seq=1))
    store.add(make_step(2, seq=2))
    done = threading.Event()
    failures: list[str] = []
    rounds = 0

    def read() -> None:
        nonlocal rounds
        rng = np.random.default_rng(0)
        while not done.is_set():
            batch = store.sample(64, "all", rng)
            rounds += 1
            wrong = batch.next_state[:, 0] != batch.state[:, 0] + 1
            wrong |= batch.reward * 4 != batch.state[:, 0]
            if wrong.any():
                failures.append(f"{batch.state[wrong]} -> {batch.next_state[wrong]}")

    thread = threading.Thread(target=read)
    thread.start()
    for value in range(3, 4000):
        store.add(make_step(value, seq=value))
    done.set()
    thread.join(30.0)
    assert rounds and not failures


def test_nbytes_counts_what_is_allocated() -> None:
    small, large = EpisodeStore(SPACES, 100).nbytes, EpisodeStore(SPACES, 1000).nbytes
    assert large == 10 * small
    per_step = small / 100
    assert 4 * (5 + 7 + 1 + 1) <= per_step <= 4 * (5 + 7 + 1 + 1) + 128


def test_labels_are_written_over_an_episode_and_only_over_it() -> None:
    store = EpisodeStore(SPACES, 20)
    for seq in (1, 2, 3):
        end = {"terminated": True, "success": True, "final_observation": observation(9)}
        store.add(make_step(seq, seq=seq, flags=FLAG_DEMO, **(end if seq == 3 else {})))
    for seq in (4, 5):
        store.add(make_step(seq, seq=seq, episode=1, step=seq - 4))
    assert (store.size("demo"), store.size("all")) == (3, 1)
    labels, revision = store.episode("arm/a", 0), store.revision
    assert labels.success and labels.step.tolist() == [0, 1, 2]
    assert labels.terminated.tolist() == [False, False, True]

    labels.success, labels.reward[2], labels.terminated[2] = False, -1.0, False
    labels.truncated[2] = True
    store.revise(labels)
    assert store.revision == revision + 1 and store.size("demo") == 0
    labels.use[:] = Use.KEEP
    store.revise(labels)
    batch = store.gather(np.sort(store.slots("demo")))
    assert batch.reward.tolist() == [0.25, 0.5, -1.0]
    assert batch.mask.tolist() == [1.0, 1.0, 1.0] and batch.truncated[2]
    labels.use[1] = Use.DROP
    store.revise(labels)
    assert (store.size("demo"), store.size("all")) == (2, 1)
    labels.reward[0] = np.nan
    with pytest.raises(StoreError, match="not finite"):
        store.revise(labels)
    assert store.episode("arm/none", 0).step.size == 0


def test_a_demonstration_is_shown_when_it_has_succeeded() -> None:
    for successful, before in ((True, 0), (False, 1)):
        store = EpisodeStore(SPACES, 20, successful_demos=successful)
        for seq in (1, 2):
            store.add(make_step(seq, seq=seq, flags=FLAG_DEMO))
        assert store.size("demo") == before
        end = {"truncated": True, "final_observation": observation(9)}
        store.add(make_step(3, seq=3, flags=FLAG_DEMO, **end))
        assert store.size("demo") == 3 * before
        store.add(make_step(4, seq=4, episode=1, step=0, flags=FLAG_DEMO))
        end = {"terminated": True, "success": True}
        store.add(make_step(5, seq=5, episode=1, step=1, flags=FLAG_DEMO, **end))
        assert store.size("demo") == 3 * before + 2


def test_a_step_without_final_observation_cannot_be_made_to_continue() -> None:
    store = EpisodeStore(SPACES, 20)
    store.add(make_step(1, seq=1, terminated=True))
    labels = store.episode("arm/a", 0)
    labels.terminated[:] = False
    store.revise(labels)
    assert store.size("all") == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENT, max_size=60), CAPACITY, st.booleans())
def test_views_by_task_and_flag(events: list, capacity: int, late: bool) -> None:
    """Whether a view is defined before or after the steps arrive."""
    store, model = EpisodeStore(SPACES, capacity), Model(capacity)

    def define() -> None:
        store.define_view("odd", task="odd")
        store.define_view("demo_even", of="demo", task="even")
        store.define_view("marked", flags=FLAG_TAKEOVER | FLAG_HELD)

    if not late:
        define()
    for value, step in enumerate(history(events), 1):
        step.task = "odd" if value % 2 else "even"
        store.add(step)
        model.add(step)
    if late:
        define()
    online, demo = model.transitions("all"), model.transitions("demo")
    expected = {
        "odd": [v for v, (s, _) in online.items() if s.task == "odd"],
        "demo_even": [v for v, (s, _) in demo.items() if s.task == "even"],
        "marked": [v for v, (s, _) in online.items() if s.flags & (FLAG_TAKEOVER | FLAG_HELD)],
    }
    for view, values in expected.items():
        assert sorted(store.gather(store.slots(view)).state[:, 0]) == sorted(values)
        assert store.size(view) == len(values)


def test_views_have_one_meaning() -> None:
    store = EpisodeStore(SPACES, 10)
    store.define_view("peg", task="peg")
    for name, of in (("peg", "all"), ("all", "all"), ("new", "peg")):
        with pytest.raises(StoreError, match="take a new name"):
            store.define_view(name, of=of)


def test_capacity_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    per_slot = EpisodeStore.bytes_per_slot(SPACES)
    monkeypatch.setattr(store_module, "available_memory", lambda: 1000 * per_slot)
    with pytest.raises(StoreError, match=r"needs .* GB of memory, .* free: use at most 1000"):
        EpisodeStore(SPACES, 1001)
    assert EpisodeStore(SPACES, 1000).nbytes == 1000 * per_slot


def test_available_memory_obeys_the_control_group(tmp_path: Path) -> None:
    free = available_memory(tmp_path)
    assert free > 0
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert available_memory(tmp_path) == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > 3000
