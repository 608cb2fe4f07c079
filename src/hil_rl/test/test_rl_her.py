"""Hindsight goals against a naive model, over random histories; settings, figures and refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hil_rl.config import HINDSIGHT_STRATEGIES, HindsightConfig
from hil_rl.goals import GoalError, GoalTask
from hil_rl.her import Hindsight
from hil_rl.spaces import Spaces
from hil_rl.store import FLAG_DEMO, FLAG_EVALUATION, Batch, EpisodeStore, Step, StoreError

Array = np.ndarray

SPACES = Spaces(
    {
        "place": ((2,), "float32"),
        "stage": ((), "float32"),
        "goal": ((2,), "float32"),
        "opening": ((), "float32"),
        "opening_goal": ((), "float32"),
        "number": ((), "float32"),
    },
    action_dim=2,
)
PLACE, STAGE, GOAL, OPENING, OPENING_GOAL, NUMBER = slice(0, 2), 2, slice(3, 5), 5, 6, 7


def near(achieved: dict[str, Array], desired: dict[str, Array]) -> Array:
    """Within 3 in place and 1 in opening."""
    place = np.abs(achieved["place"] - desired["goal"]).max(-1) <= 3.0
    return place & (np.abs(achieved["opening"] - desired["opening_goal"]) <= 1.0)


def reward(achieved: dict[str, Array], desired: dict[str, Array]) -> Array:
    return near(achieved, desired).astype(np.float32)


def task(**fields: object) -> GoalTask:
    values: dict[str, object] = {
        "achieved": ("place", "opening"),
        "desired": ("goal", "opening_goal"),
        "reward": reward,
        "terminated": near,
    }
    return GoalTask(**(values | fields))  # type: ignore[arg-type]


def observation(value: int, episode: int = 0, stage: float = 0.0) -> dict[str, Array]:
    """Everything follows from `value`, which is different for every state of a history."""
    return {
        "place": np.array([value, -2.0 * value], np.float32),
        "stage": np.array(stage),
        "goal": np.array([1000.0 + episode, value % 3], np.float32),
        "opening": np.array(float(value % 4)),
        "opening_goal": np.array(float(episode % 4)),
        "number": np.array(float(value)),
    }


def make_step(value: int, seq: int, episode: int = 0, **fields: object) -> Step:
    values: dict[str, object] = {
        "stream": "arm/a",
        "step": seq - 1,
        "policy_version": 0,
        "observation": observation(value, episode),
        "action": np.zeros(2, np.float32),
    }
    return Step(seq=seq, episode=episode, **(values | fields))  # type: ignore[arg-type]


def scalar(function: object, reached: Array, asked: Array) -> float:
    """The task's function for a single pair of state vectors."""
    achieved = {"place": reached[PLACE], "opening": reached[OPENING]}
    desired = {"goal": asked[GOAL], "opening_goal": asked[OPENING_GOAL]}
    return float(function(achieved, desired))  # type: ignore[operator]


# ----------------------------------------------------------------------------- naive model


class Model:
    """Knows every state of a history by its number and works out what is allowed.

    Attributes:
        following: number of a state -> number of the one its action led to.
        chain: number of a state -> numbers of the states of its episode, oldest first.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.step_of = {self.number(s.observation): s for s in steps}
        self.following: dict[int, int] = {}
        self.chain: dict[int, list[int]] = {}
        newest: dict[str, Step] = {}
        actors: dict[str, set[str]] = {}
        for step in steps:
            number = self.number(step.observation)
            actor = step.stream.split("/")[0]
            if step.stream not in actors.setdefault(actor, set()):
                actors[actor].add(step.stream)
                for stream in [s for s in newest if s.split("/")[0] == actor]:
                    del newest[stream]
            previous = newest.pop(step.stream, None)
            chain = [number]
            if (
                previous is not None
                and step.seq == previous.seq + 1
                and step.episode == previous.episode
                and step.step == previous.step + 1
            ):
                before = self.number(previous.observation)
                self.following[before] = number
                chain = self.chain[before]
                chain.append(number)
            self.chain[number] = chain
            if step.terminated or step.truncated:
                if step.final_observation is not None:
                    last = self.number(step.final_observation)
                    self.following[number] = last
                    chain.append(last)
                    self.chain[last] = chain
            else:
                newest[step.stream] = step

    @staticmethod
    def number(seen: object) -> int:
        return int(seen["number"])  # type: ignore[index]

    def goals(self, strategy: str, number: int) -> set[int]:
        """Numbers of the states that may give the goal of a transition."""
        chain = self.chain[number]
        at = chain.index(number)
        return {
            "future": set(chain[at + 1 :]),
            "final": {chain[-1]},
            "episode": set(chain[1:]),
            "random": set(self.following.values()),
        }[strategy]


EVENT = st.tuples(
    st.sampled_from(["arm/a", "arm/b", "left/a"]),
    st.sampled_from(
        ["step"] * 8 + ["lost", "episode", "terminate", "succeed", "truncate", "cut", "bare"]
    ),
    st.booleans(),
    st.sampled_from([0] * 5 + [FLAG_DEMO, FLAG_EVALUATION]),
)


def history(events: list[tuple[str, str, bool, int]]) -> list[Step]:
    """Steps of several actors: gaps, takeovers, interrupted, cut and finished episodes."""
    steps: list[Step] = []
    where: dict[str, tuple[int, int, int]] = {}
    value = 0
    for stream, kind, intervened, flags in events:
        value += 1
        seq, episode, number = where.get(stream, (0, 0, -1))
        seq, number = seq + 1, number + 1
        if kind == "lost":
            seq, number = seq + 1, number + 1
        if kind == "episode":
            episode, number = episode + 1, 0
        ends = kind in ("terminate", "succeed", "truncate", "cut", "bare")
        seen = observation(value, episode)
        final = None
        if kind in ("terminate", "succeed", "truncate"):
            value += 1
            final = observation(value, episode)
            if kind == "succeed":  # the goal was where the arm went
                for each in (seen, final):
                    each["goal"], each["opening_goal"] = final["place"], final["opening"]
        steps.append(
            Step(
                stream, seq, episode, number, 1, seen, np.zeros(2, np.float32), None, intervened,
                float(kind == "succeed"), kind in ("terminate", "succeed", "bare"),
                kind in ("truncate", "cut"), kind == "succeed", flags=flags,
                final_observation=final,
            )
        )  # fmt: skip
        where[stream] = (seq, episode + 1, -1) if ends else (seq, episode, number)
    return steps


def check_row(model: Model, before: Batch, after: Batch, i: int, strategy: str) -> None:
    """One relabelled row against the definition."""
    number = int(before.state[i, NUMBER])
    goal = after.state[i, GOAL], after.state[i, OPENING_GOAL]
    source = round(float(goal[0][0]))
    assert source in model.goals(strategy, number)
    np.testing.assert_array_equal(goal[0], observation(source)["place"])
    assert goal[1] == observation(source)["opening"]
    np.testing.assert_array_equal(after.next_state[i, GOAL], goal[0])
    assert after.next_state[i, OPENING_GOAL] == goal[1]
    assert after.next_state[i, NUMBER] == model.following[number]
    for old, new in ((before.state, after.state), (before.next_state, after.next_state)):
        for rest in (PLACE, STAGE, OPENING, NUMBER):
            np.testing.assert_array_equal(new[i, rest], old[i, rest])
    reached = scalar(near, after.next_state[i], after.next_state[i])
    assert after.reward[i] == reached
    explained = scalar(near, before.next_state[i], before.next_state[i])
    failed = model.step_of[number].terminated and not explained
    assert after.mask[i] == (0.0 if reached or failed else 1.0)


def unchanged(before: Batch, after: Batch, i: int) -> bool:
    return all(
        np.array_equal(getattr(before, name)[i], getattr(after, name)[i]) for name in vars(before)
    )


@settings(max_examples=150, deadline=None)
@given(
    st.lists(EVENT, min_size=2, max_size=60),
    st.sampled_from([5, 9, 200]),
    st.sampled_from(HINDSIGHT_STRATEGIES),
    st.integers(0, 2**31),
)
def test_every_relabelled_sample_is_what_the_definition_says(
    events: list[tuple[str, str, bool, int]], capacity: int, strategy: str, seed: int
) -> None:
    steps = history(events)
    store = EpisodeStore(SPACES, capacity)
    config = HindsightConfig(ratio=0.5, strategies={strategy: 1.0})
    hindsight = Hindsight(task(), store, config)
    rng = np.random.default_rng(seed)
    for at, step in enumerate(steps, 1):
        store.add(step)
        if at % 7 and at != len(steps):
            continue
        model = Model(steps[:at])
        for view in ("all", "demo"):
            if not store.size(view):
                continue
            after = store.sample(16, view, rng)
            before = store.gather(after.slot)
            assert all(unchanged(before, after, i) for i in range(8))
            for i in range(8, 16):
                number = int(before.state[i, NUMBER])
                if number in model.following:
                    check_row(model, before, after, i, strategy)
                else:  # terminated, and nobody knows where: no goal can be judged
                    assert unchanged(before, after, i)
    assert hindsight.take_figures().get("relabel_rejected_fraction", 0.0) == 0.0


def stored(*lengths: int) -> EpisodeStore:
    """Truncated episodes of some lengths."""
    store, value, seq = EpisodeStore(SPACES, 500), 0, 0
    for episode, length in enumerate(lengths):
        for number in range(length):
            value, seq = value + 1, seq + 1
            last = number == length - 1
            final = observation(value + 1, episode) if last else None
            store.add(
                make_step(
                    value, seq, episode, step=number, truncated=last, final_observation=final
                )
            )
        value += 1
    return store


def test_all_later_states_are_drawn_and_open_episodes_are_used() -> None:
    store = EpisodeStore(SPACES, 100)
    for seq in range(1, 6):
        store.add(make_step(seq, seq))
    Hindsight(task(), store, HindsightConfig(ratio=1.0))
    batch = store.sample(500, "all", np.random.default_rng(0))
    drawn: dict[int, set[int]] = {}
    for number, goal in zip(batch.state[:, NUMBER], batch.state[:, GOAL][:, 0], strict=True):
        drawn.setdefault(int(number), set()).add(int(goal))
    assert drawn == {1: {2, 3, 4, 5}, 2: {3, 4, 5}, 3: {4, 5}, 4: {5}}


@pytest.mark.parametrize("failed", [True, False])
def test_an_end_that_the_goal_does_not_explain_stays(failed: bool) -> None:
    store, last = EpisodeStore(SPACES, 100), 12
    final = observation(last + 1)
    for seq in range(1, last + 1):
        step = make_step(seq, seq)
        if seq == last:
            if not failed:
                for seen in (step.observation, final):
                    seen["goal"], seen["opening_goal"] = final["place"], final["opening"]
            step.terminated, step.final_observation = True, final
        store.add(step)
    Hindsight(task(), store, HindsightConfig(ratio=1.0, strategies={"random": 1.0}))
    batch = store.sample(600, "all", np.random.default_rng(0))
    far = (batch.step == last - 1) & (batch.reward == 0.0)
    assert far.any()
    assert (batch.mask[far] == (0.0 if failed else 1.0)).all()


def test_overwritten_states_give_no_goals() -> None:
    store, states = EpisodeStore(SPACES, 11), {"arm/a": 0, "left/a": 500}
    Hindsight(task(), store, HindsightConfig(ratio=1.0, strategies={"episode": 1.0}))
    rng = np.random.default_rng(0)
    for seq in range(1, 41):
        for stream in states:
            states[stream] += 1
            store.add(make_step(states[stream], seq, stream=stream))
        if seq > 1:
            batch = store.sample(32, "all", rng)
            own, goals = batch.state[:, NUMBER], batch.state[:, GOAL][:, 0]
            np.testing.assert_array_equal(goals > 500, own > 500)
            assert (goals % 500 > seq - 6).all()


def test_weights_of_a_mixture() -> None:
    store = stored(20, 20, 20)
    weights = {"future": 0.6, "episode": 0.3, "random": 0.1}
    hindsight = Hindsight(task(), store, HindsightConfig(ratio=1.0, strategies=weights))
    rows = hindsight.explain(4000, np.random.default_rng(0))
    share = {name: np.mean([r.strategy == name for r in rows]) for name in HINDSIGHT_STRATEGIES}
    assert share == pytest.approx({**weights, "final": 0.0}, abs=0.04)


def test_storage_is_never_changed() -> None:
    store = stored(30, 30)
    slots = np.sort(store.slots("all"))
    before = store.gather(slots)
    Hindsight(task(), store, HindsightConfig(ratio=1.0, strategies={"random": 1, "future": 1}))
    rng = np.random.default_rng(0)
    out = Batch.empty(64, SPACES)
    for _ in range(200):
        store.sample(64, "all", rng, out)
    after = store.gather(slots)
    for name, array in vars(before).items():
        np.testing.assert_array_equal(getattr(after, name), array)


def test_sampling_while_another_thread_adds() -> None:
    store = EpisodeStore(SPACES, 40)
    hindsight = Hindsight(task(), store, HindsightConfig(ratio=1.0))
    for seq in (1, 2):
        store.add(make_step(seq, seq))
    done = threading.Event()

    def add() -> None:
        for seq in range(3, 3000):
            store.add(make_step(seq, seq))
        done.set()

    thread = threading.Thread(target=add)
    rng = np.random.default_rng(0)
    thread.start()
    while not done.is_set():
        batch = store.sample(16, "all", rng)
        goals = batch.state[:, GOAL][:, 0]
        assert (goals > batch.state[:, NUMBER]).all()
        assert (goals < batch.state[:, NUMBER] + 40).all()
        hindsight.explain(4, rng)
    thread.join()


def test_the_same_seed_gives_the_same_batch() -> None:
    batches = []
    for _ in range(2):
        store = stored(20, 20)
        Hindsight(task(), store, HindsightConfig(strategies={"future": 0.8, "episode": 0.2}))
        batches.append(store.sample(64, "all", np.random.default_rng(3)))
    for name, array in vars(batches[0]).items():
        np.testing.assert_array_equal(getattr(batches[1], name), array)


def test_half_is_relabelled_by_default_and_it_can_be_switched_off_while_training() -> None:
    store = stored(30)
    hindsight = Hindsight(task(), store, HindsightConfig())
    rng = np.random.default_rng(0)

    def changed() -> int:
        after = store.sample(64, "all", rng)
        return int((after.state != store.gather(after.slot).state).any(1).sum())

    assert changed() == 32
    hindsight.configure(enabled=False)
    assert changed() == 0
    hindsight.configure(enabled=True, ratio=0.25)
    assert changed() == 16
    with pytest.raises(ValueError, match="ratio"):
        hindsight.configure(ratio=1.5)
    assert hindsight.config.ratio == 0.25


def test_schedule_over_steps_and_success() -> None:
    store = stored(10, 10)
    points = [[0, 0.8], [40, 0.4]]
    hindsight = Hindsight(task(), store, HindsightConfig(schedule=points))  # type: ignore[arg-type]
    assert hindsight.ratio() == pytest.approx(0.6)
    hindsight.configure(schedule=[[0.0, 0.8], [1.0, 0.2]], schedule_over="success")
    assert hindsight.ratio() == pytest.approx(0.8)  # no episode seen
    for episode, success in enumerate((True, False)):
        step = make_step(1, 1, episode, terminated=True, success=success)
        hindsight.statistics.add(step)
    assert hindsight.ratio() == pytest.approx(0.5)


def test_only_the_chosen_parts_are_replaced() -> None:
    store = stored(20)
    Hindsight(task(), store, HindsightConfig(ratio=1.0, parts=("goal",)))
    after = store.sample(64, "all", np.random.default_rng(0))
    before = store.gather(after.slot)
    assert (after.state[:, GOAL] != before.state[:, GOAL]).any(1).all()
    np.testing.assert_array_equal(after.state[:, OPENING_GOAL], before.state[:, OPENING_GOAL])


def test_band_falls_back_to_the_original_goal_and_counts() -> None:
    def distance(achieved: dict[str, Array], desired: dict[str, Array]) -> Array:
        return np.abs(achieved["place"][:, 0] - desired["goal"][:, 0])

    store = stored(40)
    hindsight = Hindsight(
        task(distance=distance), store, HindsightConfig(ratio=1.0, band=(0.005, 0.01))
    )
    after = store.sample(200, "all", np.random.default_rng(0))
    before = store.gather(after.slot)
    kept = (after.state != before.state).any(1)
    new = np.abs(after.state[:, 0] - after.state[:, GOAL][:, 0])
    old = np.abs(before.state[:, 0] - before.state[:, GOAL][:, 0])
    assert kept.any() and not kept.all()
    assert ((new >= 0.005 * old) & (new <= 0.01 * old))[kept].all()
    assert all(unchanged(before, after, i) for i in np.flatnonzero(~kept))
    figures = hindsight.take_figures()
    assert figures["relabel_rejected_fraction"] == pytest.approx(1.0 - kept.mean())
    assert figures["relabel_fraction"] == pytest.approx(kept.mean())


def test_goals_that_are_reached_already_are_counted_and_can_be_left_out() -> None:
    store = stored(40)  # one step moves by (1, 2), and within 3 is reached
    rng = np.random.default_rng(0)
    still = Hindsight(
        task(reward=lambda a, d: (np.abs(a["place"] - d["goal"]).max(-1) <= 3.0) * 1.0),
        store,
        HindsightConfig(ratio=1.0),
    )
    store.sample(2000, "all", rng)
    share = still.take_figures()["relabel_trivial_fraction"]
    assert 0.02 < share < 0.2
    still.configure(keep_reached=0.0)
    store.sample(2000, "all", rng)
    figures = still.take_figures()
    assert figures["relabel_trivial_fraction"] == 0.0
    assert figures["relabel_rejected_fraction"] == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize("strategy", HINDSIGHT_STRATEGIES)
def test_goals_come_from_the_stage_up_to_the_state_that_completes_it(strategy: str) -> None:
    stages = [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]
    store = EpisodeStore(SPACES, 100)
    for seq, stage in enumerate(stages, 1):
        last = seq == len(stages)
        final = observation(seq + 1, stage=2) if last else None
        store.add(
            make_step(
                seq,
                seq,
                observation=observation(seq, stage=stage),
                truncated=last,
                final_observation=final,
            )
        )
    staged = task(stage="stage")
    hindsight = Hindsight(staged, store, HindsightConfig(ratio=1.0, strategies={strategy: 1}))
    allowed = {0: {1, 2, 3, 4}, 1: {4, 5, 6}, 2: set(range(6, 12))}
    batch = store.sample(600, "all", np.random.default_rng(0))
    original = batch.state[:, GOAL][:, 0] >= 1000
    drawn: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for row in np.flatnonzero(~original):
        number, goal = int(batch.state[row, NUMBER]), int(batch.state[row, GOAL][0])
        stage = int(batch.state[row, STAGE])
        assert goal in allowed[stage]
        if strategy == "future":
            assert goal > number
        drawn[stage].add(goal)
    firsts = {"final": [{4}, {6}, {11}]}.get(strategy, [{2, 3, 4}, {5, 6}, set(range(7, 12))])
    assert list(drawn.values()) == firsts
    assert original.any() == (strategy == "random")
    assert (hindsight.take_figures()["relabel_no_goal_fraction"] > 0) == (strategy == "random")


# ------------------------------------------------------------------------------- reports


def test_explain_shows_pairs_before_and_after_and_counts_nothing() -> None:
    store = stored(20)
    hindsight = Hindsight(task(), store, HindsightConfig(ratio=0.5))
    rows = hindsight.explain(40, np.random.default_rng(0))
    assert [bool(row.strategy) for row in rows] == [False] * 20 + [True] * 20
    for row in rows[20:]:
        assert row.goal_step > row.step and row.goal[0] != row.goal[1]
        assert f"step {row.goal_step}" in str(row)
    for row in rows[:20]:
        assert row.goal[0] == row.goal[1] and "original goal" in str(row)
    assert "relabel_fraction" not in hindsight.take_figures()
    with pytest.raises(StoreError, match="empty"):
        hindsight.explain(4, np.random.default_rng(0), "demo")


def test_influence_of_the_goal_on_a_policy() -> None:
    store = stored(20, 20, 20)
    hindsight = Hindsight(task(), store, HindsightConfig())
    rng = np.random.default_rng(0)
    blind = hindsight.measure_influence(lambda states: states[:, PLACE], rng)
    assert blind == 0.0
    seeing = hindsight.measure_influence(lambda s: s[:, PLACE] - s[:, GOAL], rng)
    assert seeing > 0.3
    assert hindsight.take_figures()["goal_influence"] == seeing


def test_original_and_relabelled_statistics_are_kept_apart() -> None:
    store = stored(20)
    hindsight = Hindsight(task(), store, HindsightConfig(ratio=1.0))
    first = observation(1, 5)
    hindsight.statistics.add(make_step(1, 1, 5))
    hindsight.statistics.add(
        make_step(2, 2, 5, truncated=True, final_observation=observation(3, 5))
    )
    hindsight.statistics.add(make_step(1, 3, 6, truncated=True, flags=FLAG_DEMO))
    store.sample(256, "all", np.random.default_rng(0))
    figures = hindsight.take_figures()
    assert figures["goal_success"] == 0.0
    assert figures["relabel_reward"] > 0.0
    (episode,) = hindsight.statistics.episodes
    start = np.hypot(*(first["place"] - first["goal"]))
    start = np.hypot(start, first["opening"] - first["opening_goal"])
    assert episode.start == pytest.approx(start, rel=1e-5)
    assert figures["goal_distance"] == pytest.approx(episode.end) != episode.start


# ------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"achieved": ("pose", "opening")}, "no vector 'pose'"),
        ({"achieved": ("place", "place")}, "must be the same"),
        ({"desired": ("goal",)}, "as many"),
        ({"stage": "place"}, "one element"),
    ],
)
def test_a_task_without_proper_goals_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(GoalError, match=message):
        Hindsight(task(**fields), EpisodeStore(SPACES, 10), HindsightConfig())


def test_a_function_that_is_not_vectorised_is_named() -> None:
    store = stored(5)
    Hindsight(task(reward=lambda a, d: 1.0), store, HindsightConfig())
    with pytest.raises(GoalError, match=r"reward of 4 pairs must have shape \(4,\)"):
        store.sample(8, "all", np.random.default_rng(0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"strategies": {"past": 1.0}}, "past"),
        ({"strategies": {}}, "weights"),
        ({"ratio": -0.1}, "ratio"),
        ({"schedule": ((5, 0.5), (5, 0.6))}, "rise"),
        ({"schedule_over": "time"}, "steps or success"),
        ({"band": (0.5, 0.1)}, "band"),
        ({"keep_reached": 2.0}, "keep_reached"),
    ],
)
def test_impossible_settings(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HindsightConfig(**values)  # type: ignore[arg-type]


def test_unknown_part_is_refused() -> None:
    with pytest.raises(GoalError, match="no desired part 'place'"):
        Hindsight(task(), EpisodeStore(SPACES, 10), HindsightConfig(parts=("place",)))


def test_configuration_survives_json() -> None:
    config = HindsightConfig(schedule=((0, 0.8), (10, 0.2)), band=(0.1, 0.5))
    assert HindsightConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
