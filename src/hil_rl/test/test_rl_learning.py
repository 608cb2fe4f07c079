"""SAC with demonstrations learns a sparse task; what it learned survives the trip to the actor."""

from __future__ import annotations

import numpy as np
import pytest

from hil_rl.config import SACConfig, TrainerConfig
from hil_rl.point_reach import PointReach, add_demos, run_episode
from hil_rl.policy import Policy, encode
from hil_rl.sac import SACAgent
from hil_rl.store import EpisodeStore
from hil_rl.trainer import Trainer


def success(policy: Policy, env: PointReach, episodes: int = 30) -> float:
    rng = np.random.default_rng(0)
    return float(
        np.mean([run_episode(env, lambda o: policy.act(o, True, rng))[0] for _ in range(episodes)])
    )


@pytest.mark.parametrize(("grasp", "preset"), [(False, "hil_serl"), (True, "hil_serl_normalized")])
def test_learns_a_sparse_task_from_ten_demonstrations(grasp: bool, preset: str) -> None:
    env, test = PointReach(0, grasp, fixed=True), PointReach(999, grasp, fixed=True)
    store = EpisodeStore(env.spaces, 5000)
    add_demos(store, PointReach(100, grasp, fixed=True), 10)
    options = {"hidden": (64, 64), "grasp_hidden": (64, 64), "discount": 0.9}
    config = SACConfig.preset(preset, **options, learning_rate=1e-3, tau=0.02)
    agent = SACAgent(env.spaces, config, seed=0)
    limits = TrainerConfig(batch_size=128, training_starts=50, max_updates_per_env_step=1.0)
    trainer = Trainer(agent, store, limits, seed=0)
    assert success(Policy.random(env.spaces, config, 0, "point"), test) < 0.4

    rng = np.random.default_rng(1)
    policy = Policy.random(env.spaces, config, 0, "point")
    episode, seq, best = 0, 1, 0.0
    while best < 0.9 and store.counts.online < 900:
        acting = policy
        _, seq = run_episode(
            env, lambda o, p=acting: p.act(o, False, rng), store, "point/a", episode, seq
        )
        episode += 1
        while trainer.updates_due():
            trainer.step()
        policy = Policy.decode(encode(agent, trainer.updates, "point"), env.spaces, "point")
        if episode % 10 == 0:
            best = max(best, success(policy, test))
    assert best >= 0.9, f"{best} after {store.counts.online} steps"
