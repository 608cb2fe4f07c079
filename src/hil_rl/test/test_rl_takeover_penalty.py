"""Negative reward before a takeover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hil_rl.spaces import Spaces
from hil_rl.store import (
    FLAG_DEMO,
    FLAG_TAKEOVER,
    EpisodeStore,
    Step,
    StoreError,
    TakeoverPenalty,
)

SPACES = Spaces({"state": ((1,), "float32")}, 1)


def add(store: EpisodeStore, kinds: str, stream: str = "arm/0", episode: int = 0) -> None:
    """Steps of one episode: p policy, t takeover, i intervention, c a step cut by a takeover."""
    for index, kind in enumerate(kinds):
        last = index == len(kinds) - 1
        store.add(
            Step(
                stream,
                episode * 1000 + index + 1,
                episode,
                index,
                0,
                {"state": np.array([index])},
                np.zeros(1),
                intervened=kind in "ti",
                reward=1.0 if last else 0.0,
                terminated=last,
                success=last,
                flags=FLAG_TAKEOVER if kind in "tc" else 0,
                final_observation={"state": np.array([99])} if last else None,
            )
        )


def rewards(store: EpisodeStore) -> dict[tuple[int, int], float]:
    """(episode, step) -> reward, as sampled."""
    batch = store.sample(4000, "all", np.random.default_rng(0))
    return {
        (int(e), int(s)): float(r)
        for e, s, r in zip(batch.episode, batch.step, batch.reward, strict=True)
    }


def test_off_by_default() -> None:
    store = EpisodeStore(SPACES, 100)
    add(store, "ppptii")
    assert set(rewards(store).values()) == {0.0, 1.0}


def test_the_policys_last_steps_are_punished() -> None:
    store = EpisodeStore(SPACES, 100, takeover_penalty=TakeoverPenalty(-0.5, 2))
    add(store, "ppptiipti")
    found = [rewards(store)[0, i] for i in range(9)]
    assert found == [0.0, -0.5, -0.5, 0.0, 0.0, 0.0, -0.5, 0.0, 1.0]
    assert store.gather(store.slots("all")).reward.min() == 0.0  # what was recorded stays


def test_a_step_that_the_takeover_cut_short_is_punished_once() -> None:
    store = EpisodeStore(SPACES, 100, takeover_penalty=TakeoverPenalty(-0.5, 2))
    add(store, "ppcti")
    assert [rewards(store)[0, i] for i in range(5)] == [0.0, -0.5, -0.5, 0.0, 1.0]


def test_it_stays_within_stream_and_episode() -> None:
    store = EpisodeStore(SPACES, 100, takeover_penalty=TakeoverPenalty(-0.5, 5))
    add(store, "pp")
    add(store, "tip", episode=1)
    add(store, "ppp", "other/0")
    assert set(rewards(store).values()) == {0.0, 1.0}


def test_demonstrations_are_never_punished() -> None:
    store = EpisodeStore(SPACES, 100, takeover_penalty=TakeoverPenalty(-0.5, 5))
    for i in range(4):
        flags = FLAG_DEMO | (FLAG_TAKEOVER if i == 2 else 0)
        store.add(
            Step("a/0", i + 1, 0, i, 0, {"state": np.zeros(1)}, np.zeros(1), intervened=i >= 2,
                 flags=flags, terminated=i == 3, success=i == 3)
        )  # fmt: skip
    assert (store.sample(100, "demo", np.random.default_rng(0)).reward == 0.0).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("pti", min_size=1, max_size=12), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(8, 40),
)
def test_against_a_naive_model(episodes: list[str], horizon: int, capacity: int) -> None:
    """Also when the ring wraps around: what a slot held before does not shine through."""
    store = EpisodeStore(SPACES, capacity, takeover_penalty=TakeoverPenalty(-0.25, horizon))
    expected = {}
    for number, kinds in enumerate(episodes):
        add(store, kinds, episode=number)
        for i in range(len(kinds)):
            expected[number, i] = 1.0 if i == len(kinds) - 1 else 0.0
        for i, kind in enumerate(kinds):
            if kind == "t":
                for j in range(i - 1, max(i - horizon, 0) - 1, -1):
                    if kinds[j] in "ti":
                        break
                    expected[number, j] = min(expected[number, j], -0.25)
    for place, reward in rewards(store).items():
        assert reward == expected[place]


@pytest.mark.parametrize("wrong", [(0.1, 1), (float("nan"), 1), (-1.0, -1)])
def test_impossible_penalties(wrong: tuple[float, int]) -> None:
    with pytest.raises(StoreError, match="takeover penalty"):
        TakeoverPenalty(*wrong)
