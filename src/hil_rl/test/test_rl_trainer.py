"""The training loop: batches, update ratio, resume equivalence."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hil_rl import checkpoint
from hil_rl.config import SACConfig, TrainerConfig
from hil_rl.policy import encode
from hil_rl.sac import SACAgent, StateError
from hil_rl.spaces import Spaces
from hil_rl.store import FLAG_DEMO, EpisodeStore, Step, StoreError
from hil_rl.trainer import UNLIMITED, Trainer

SPACES = Spaces({"state": ((4,), "float32")}, 6, 1)
SMALL = {"hidden": (16, 16), "grasp_hidden": (12, 8), "state_encoder": 6}


def fill(store: EpisodeStore, first: int, last: int, stream: str, **fields: object) -> None:
    """Steps first..last of a stream, in episodes of 10."""
    for i in range(first, last + 1):
        rng = np.random.default_rng([i, len(stream)])
        end = i % 10 == 9
        step = Step(
            stream,
            i + 1,
            i // 10,
            i % 10,
            0,
            {"state": rng.normal(size=4)},
            np.append(rng.uniform(-1, 1, 6), rng.integers(-1, 2)),
            reward=float(rng.random() < 0.2),
            terminated=end and i % 20 == 9,
            truncated=end and i % 20 == 19,
            success=end,
            grasp_penalty=np.array([-0.02 * rng.integers(0, 2)]),
            final_observation={"state": rng.normal(size=4)} if end else None,
        )
        for name, value in fields.items():
            setattr(step, name, value)
        store.add(step)


def make(
    preset: str = "hil_serl", online: int = 40, demos: int = 30, seed: int = 0, **options: object
) -> Trainer:
    store = EpisodeStore(SPACES, 500)
    if demos:
        fill(store, 0, demos - 1, "demo/a", flags=FLAG_DEMO)
    if online:
        fill(store, 0, online - 1, "arm/a")
    values = {"batch_size": 16, "training_starts": 20, **options}
    agent = SACAgent(SPACES, SACConfig.preset(preset, **SMALL), seed)
    return Trainer(agent, store, TrainerConfig(**values), seed)  # type: ignore[arg-type]


def assert_same(one: Trainer, other: Trainer) -> None:
    (arrays, meta), (other_arrays, other_meta) = one.state(), other.state()
    assert meta == other_meta
    assert arrays.keys() == other_arrays.keys()
    for name, value in arrays.items():
        assert value.dtype == other_arrays[name].dtype
        np.testing.assert_array_equal(value, other_arrays[name], err_msg=name)


@pytest.mark.parametrize("preset", ["hil_serl", "hil_serl_normalized"])
def test_resuming_equals_not_stopping(preset: str, tmp_path: Path) -> None:
    """N + M updates equal N updates, checkpoint, new process state, M updates: bit for bit."""
    straight, stopped = make(preset), make(preset)
    for trainer in (straight, stopped):
        for _ in range(7):
            trainer.step()
        fill(trainer.store, 40, 59, "arm/a")
    saved = checkpoint.save(tmp_path, stopped.updates, *stopped.state())
    for name in vars(stopped.agent).keys() - {"spaces"}:
        delattr(stopped.agent, name)  # nothing of it may be used any more

    loaded = checkpoint.load(saved)
    resumed = make(preset, online=60, seed=99)
    resumed.load_state(loaded.tensors, loaded.meta)
    assert resumed.updates == loaded.step == 7
    assert_same(straight, resumed)
    metrics = [[t.step() for _ in range(9)] for t in (straight, resumed)]
    assert metrics[0] == metrics[1]
    assert_same(straight, resumed)
    assert encode(straight.agent, 16, "f") == encode(resumed.agent, 16, "f")
    observation = {"state": np.arange(4.0)}
    np.testing.assert_array_equal(straight.agent.act(observation), resumed.agent.act(observation))


def test_state_is_a_snapshot() -> None:
    trainer = make()
    arrays, meta = trainer.state()
    before, before_meta = copy.deepcopy(arrays), json.loads(json.dumps(meta))
    trainer.step()
    assert meta == before_meta
    for name, value in arrays.items():
        np.testing.assert_array_equal(value, before[name])


def test_loading_a_state_before_the_first_update(tmp_path: Path) -> None:
    fresh = make()
    other = make(seed=5)
    other.load_state(*fresh.state())
    assert_same(fresh, other)
    assert fresh.step() == other.step()


def test_foreign_states_are_refused() -> None:
    trainer = make()
    arrays, meta = trainer.state()
    with pytest.raises(StateError, match="not a trainer's state"):
        trainer.load_state(arrays, {})
    with pytest.raises(StateError, match="spaces"):
        trainer.load_state(arrays, meta | {"spaces": {}})
    with pytest.raises(StateError, match="generator"):
        trainer.load_state(arrays, meta | {"rng": {"bit_generator": "MT19937"}})
    with pytest.raises(StateError, match="missing"):
        trainer.load_state({}, meta)
    assert_same(trainer, make())


def test_same_seed_same_run() -> None:
    one, other, third = make(seed=1), make(seed=1), make(seed=2)
    assert [one.step() for _ in range(4)] == [other.step() for _ in range(4)]
    assert third.step() != one.step()


class Recorder:
    """Stands where the agent is and keeps the batches."""

    def __init__(self, spaces: Spaces) -> None:
        self.spaces = spaces
        self.calls: list[tuple[np.ndarray, np.ndarray, bool]] = []

    def update(self, batch: object, actor: bool = True) -> dict[str, float]:
        self.calls.append((batch.demo.copy(), batch.intervened.copy(), actor))  # type: ignore[attr-defined]
        return {}


def record(trainer: Trainer, steps: int = 1) -> list[tuple[np.ndarray, np.ndarray, bool]]:
    recorder = Recorder(trainer.agent.spaces)
    trainer.agent = recorder  # type: ignore[assignment]
    for _ in range(steps):
        trainer.step()
    return recorder.calls


def test_half_of_a_batch_is_demonstrations() -> None:
    calls = record(make(cta_ratio=3), steps=2)
    assert [actor for _, _, actor in calls] == [False, False, True] * 2
    for demo, _, _ in calls:
        assert demo.tolist() == [True] * 8 + [False] * 8


def test_interventions_count_as_demonstrations() -> None:
    trainer = make(demos=0, online=30)
    fill(trainer.store, 30, 34, "arm/a", intervened=True)
    fill(trainer.store, 35, 40, "arm/a")
    ((demo, intervened, _),) = record(trainer, steps=1)[-1:]
    assert intervened[:8].all() and not demo.any()


@pytest.mark.parametrize(("options", "demos"), [({}, 0), ({"demo_ratio": 0.0}, 30)])
def test_without_demonstrations(options: dict, demos: int) -> None:
    for demo, _, _ in record(make(demos=demos, **options)):
        assert len(demo) == 16 and not demo.any()


def test_only_demonstrations_are_there() -> None:
    for demo, _, _ in record(make(online=0)):
        assert len(demo) == 16 and demo.all()
    with pytest.raises(StoreError, match="empty"):
        make(online=0, demos=0).step()


def test_training_starts_with_enough_online_steps() -> None:
    trainer = make(online=19)
    assert trainer.updates_due() == 0
    assert trainer.waiting_for() == "1 more steps before training starts"
    fill(trainer.store, 19, 19, "arm/a")
    assert trainer.updates_due() == 2
    assert trainer.waiting_for() == ""
    trainer.step()
    trainer.step()
    assert trainer.updates_due() == 0
    assert "upper bound" in trainer.waiting_for()


def test_demonstrations_give_no_credit() -> None:
    trainer = make(online=20)
    before = trainer.updates_due(), trainer.env_steps_allowed()
    fill(trainer.store, 30, 90, "demo/a", flags=FLAG_DEMO)
    assert (trainer.updates_due(), trainer.env_steps_allowed()) == before


def test_no_bounds() -> None:
    trainer = make(max_updates_per_env_step=0.0, min_updates_per_env_step=0.0)
    assert trainer.updates_due() == UNLIMITED and trainer.env_steps_allowed() == UNLIMITED


def test_initial_updates() -> None:
    trainer = make(online=20, initial_updates=100, max_updates_per_env_step=0.5)
    assert trainer.updates_due() == 100
    fill(trainer.store, 20, 20, "arm/a")
    assert trainer.updates_due() == 101


class Counter:
    """A store of which only the numbers matter."""

    def __init__(self) -> None:
        self.counts = self
        self.online = 0

    def size(self, view: str) -> int:
        return self.online


@settings(max_examples=200, deadline=None)
@given(
    st.floats(0.05, 8.0),
    st.floats(0.0, 1.0),
    st.integers(1, 30),
    st.integers(1, 40),
    st.integers(0, 20),
    st.lists(st.booleans(), min_size=50, max_size=300),
)
def test_update_ratio_is_bounded_both_ways(
    high: float, share: float, slack: int, starts: int, initial: int, turns: list[bool]
) -> None:
    """Whoever is scheduled, the ratio stays in its band and nobody waits for ever."""
    config = TrainerConfig(
        max_updates_per_env_step=high,
        min_updates_per_env_step=high * share if high * share > 1e-3 else 0.0,
        env_step_slack=slack,
        training_starts=starts,
        initial_updates=initial,
    )
    trainer = Trainer.__new__(Trainer)
    trainer.config, trainer.updates = config, 0
    trainer.store = store = Counter()  # type: ignore[assignment]
    for learner in turns:
        may_update = trainer.updates_due() > 0
        may_act = store.online < trainer.env_steps_allowed()
        assert may_update or may_act  # no deadlock
        if (learner or not may_act) and may_update:
            trainer.updates += 1
        elif may_act:
            store.online += 1
        trained = store.online - starts + 1
        assert trainer.updates <= max(0, initial + high * trained + 1e-6)
        low = config.min_updates_per_env_step
        if low:
            ahead = max(slack, np.ceil(1 / high) + 1)
            assert low * (store.online - starts - ahead) <= trainer.updates + low + 1e-6
