"""Methods by name: what they sample, when they update, that they learn and resume."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hil_rl import checkpoint
from hil_rl.bc import BCAgent
from hil_rl.config import METHODS, BCConfig, SACConfig, TrainerConfig
from hil_rl.methods import agent_of, make_trainer, trainer_config
from hil_rl.point_reach import PointReach, add_demos, run_episode
from hil_rl.policy import Policy, encode
from hil_rl.sac import SACAgent, StateError
from hil_rl.store import Batch, EpisodeStore, Step
from hil_rl.trainer import Trainer

SAC = SACConfig.preset("hil_serl", hidden=(16, 16), grasp_hidden=(16,), state_encoder=8)
CLONING = BCConfig(
    hidden=(64, 64),
    grasp_hidden=(32,),
    dropout=0.05,
    learning_rate=1e-3,
    batch_size=64,
    normalize=True,
)
LOOP = TrainerConfig(batch_size=32, training_starts=10, max_updates_per_env_step=2.0)


def add_online(store: EpisodeStore, env: PointReach, steps: int, intervened: bool) -> None:
    """One episode of random or, if intervened, of the expert's actions."""
    rng = np.random.default_rng(0)
    observation = env.reset()
    for i in range(steps):
        action = env.expert() if intervened else rng.uniform(-1, 1, env.spaces.action_size)
        stream = f"arm/{intervened}"
        store.add(
            Step(stream, i + 1, 0, i, 1, observation, action, intervened=intervened)
        )  # the pairs are not those of the environment, which does not matter here


def sampled(trainer: Trainer) -> Batch:
    """Last batch of an update; nothing is learned."""
    seen: list[Batch] = []
    trainer.agent.update = lambda batch, actor=True: seen.append(batch) or {}  # type: ignore
    trainer.step()
    return seen[-1]


def make(
    method: str, demos: int = 20, grasp: bool = False, steps: int = 20
) -> tuple[Trainer, PointReach]:
    env = PointReach(1, grasp)
    store = EpisodeStore(env.spaces, 20_000)
    if demos:
        add_demos(store, env, demos)
    cloning = CLONING.replace(steps=steps)
    return make_trainer(method, store, SAC, cloning, LOOP, 0), env


def test_agents_and_what_they_sample() -> None:
    ratios = {"rlpd": 0.5, "sac": 0.0, "bc": 1.0, "hg_dagger": 1.0}
    assert set(ratios) == set(METHODS)
    for method, ratio in ratios.items():
        trainer, _ = make(method)
        assert isinstance(trainer.agent, SACAgent if ratio < 1.0 else BCAgent)
        assert trainer.config.demo_ratio == ratio
    with pytest.raises(ValueError, match="did you mean 'hg_dagger'"):
        trainer_config("hgdagger", LOOP, CLONING)


def test_sac_does_not_see_demonstrations() -> None:
    trainer, env = make("sac")
    assert trainer.updates_due() == 0  # demonstrations do not count
    add_online(trainer.store, env, 30, intervened=False)
    assert trainer.updates_due() > 0
    assert not sampled(trainer).demo.any()


def test_cloning_stops_and_hg_dagger_goes_on_with_interventions() -> None:
    (cloning, env), (dagger, _) = make("bc"), make("hg_dagger")
    assert cloning.updates_due() == 20
    assert dagger.updates_due() >= 20  # before the first training step
    for trainer in (cloning, dagger):
        for _ in range(20):
            trainer.step()
        add_online(trainer.store, env, 40, intervened=True)
    assert cloning.updates_due() == 0 and "all 20 updates" in cloning.waiting_for()
    assert dagger.updates_due() >= 2 * 40
    sample = sampled(dagger)
    assert sample.demo.any() and (sample.intervened & ~sample.demo).any()


def test_imitation_never_learns_from_the_policy() -> None:
    trainer, env = make("hg_dagger", demos=0)
    add_online(trainer.store, env, 30, intervened=False)
    assert trainer.updates_due() == 0 and trainer.waiting_for() == "demonstrations"
    add_online(trainer.store, env, 5, intervened=True)
    assert sampled(trainer).intervened.all()


@pytest.mark.parametrize("grasp", [False, True])
def test_cloning_under_the_trainer_learns(grasp: bool) -> None:
    trainer, env = make("bc", demos=60, grasp=grasp, steps=1000)
    while trainer.updates_due():
        metrics = trainer.step()
    assert ("bc_grasp_loss" in metrics) == grasp
    policy = Policy.decode(encode(trainer.agent, 1, "f"), env.spaces, "f")
    rng, test = np.random.default_rng(0), PointReach(2, grasp)
    wins = [run_episode(test, lambda o: policy.act(o, True, rng))[0] for _ in range(40)]
    assert np.mean(wins) >= 0.6


@pytest.mark.parametrize("method", METHODS)
def test_resuming_equals_not_stopping(method: str, tmp_path: Path) -> None:
    straight, env = make(method, grasp=True)
    add_online(straight.store, env, 30, intervened=True)
    for _ in range(5):
        straight.step()
    path = checkpoint.save(tmp_path, 5, *straight.state())
    loaded = checkpoint.load(path)
    resumed = make_trainer(method, straight.store, SAC, CLONING, LOOP, 99)
    resumed.load_state(loaded.tensors, loaded.meta)
    assert [straight.step() for _ in range(5)] == [resumed.step() for _ in range(5)]
    assert encode(straight.agent, 1, "f") == encode(resumed.agent, 1, "f")
    arrays, meta = straight.state()
    alone = agent_of(json.loads(json.dumps(meta)))
    alone.load_state(arrays)
    assert encode(alone, 1, "f") == encode(straight.agent, 1, "f")


def test_foreign_state_of_a_clone_is_refused() -> None:
    cloning, _ = make("bc")
    other, _ = make("sac")
    with pytest.raises(StateError, match="does not fit"):
        cloning.agent.load_state(other.agent.state())
