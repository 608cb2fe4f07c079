"""The local session: what it does is the graph's, and a session that is resumed is the same."""

# ruff: noqa: D103

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from _local_env import OperatedEnv
from _session import Session, SessionConfig

import hil_tasks
from hil_actor.control_step import Flag
from hil_actor.intervention import ArmInput

SMALL = SessionConfig(
    demos=1,
    steps=140,
    training_starts=20,
    utd=0.5,
    publish_period=10,
    eval_period=60,
    eval_episodes=1,
    final_episodes=1,
    task_overrides={"max_episode_steps": 40},
    agent={"hidden": (16, 16), "state_encoder": 8},
    cloning={"hidden": (16, 16), "steps": 20, "batch_size": 32},
)
# within 40 steps nobody inserts a peg: demonstrations by steps, not by successes
SMALL = replace(SMALL, demo_steps=50)


def test_a_takeover_holds_and_counts_as_an_intervention() -> None:
    env = OperatedEnv(hil_tasks.load("peg_insert"))
    env.reset(seed=0)
    proposal = np.full(6, 0.5, np.float32)
    person = ArmInput(True, np.array([0.0, 0.0, -0.5, 0.0, 0.0, 0.0]))
    alone = env.control(proposal)
    assert not alone.intervened and alone.flags == Flag(0)
    assert alone.action == pytest.approx(proposal, abs=1e-6)
    held = env.control(proposal, person)
    assert held.intervened and held.takeover and held.flags & Flag.TAKEOVER
    driven = env.control(proposal, person)
    assert driven.intervened and not driven.takeover and not driven.flags & Flag.TAKEOVER
    assert driven.action == pytest.approx(person.twist, abs=1e-6)
    assert driven.proposal == pytest.approx(proposal)
    assert not env.control(proposal, ArmInput()).intervened


def test_a_demonstration_has_no_takeover() -> None:
    env = OperatedEnv(hil_tasks.load("peg_insert"))
    env.demonstrating = True
    env.reset(seed=0)
    done = env.control(None, ArmInput(True, np.full(6, 0.1)))
    assert done.intervened and not done.takeover and done.proposal is None
    assert done.action == pytest.approx(np.full(6, 0.1), abs=1e-6)


@pytest.mark.parametrize("method", ["rlpd", "hg_dagger"])
def test_resuming_equals_not_stopping(method: str, tmp_path: Path) -> None:
    config = replace(SMALL, method=method)
    straight = Session(config)
    expected = straight.run()
    assert expected.env_steps == 140 and expected.demo_steps == 50
    assert 0 < expected.intervened_steps < 140 and straight.trainer.updates > 20
    calls = iter(range(100))
    Session(config, tmp_path).run(lambda: next(calls) == 4)  # in the middle of training
    resumed = Session(config, tmp_path)
    assert 0 < resumed.progress.env_steps < 140
    progress = resumed.run()
    np.testing.assert_equal({**vars(progress), "cpu_s": 0.0}, {**vars(expected), "cpu_s": 0.0})
    one, other = straight.trainer.state()[0], resumed.trainer.state()[0]
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
    with pytest.raises(ValueError, match="another session"):
        Session(replace(config, utd=0.25), tmp_path)


def test_the_operators_budget_is_kept_exactly() -> None:
    session = Session(replace(SMALL, operator_steps=70, steps=120, utd=0.0, training_starts=1000))
    progress = session.run()
    assert progress.operator_steps == 70
    assert session.store.counts.intervened == progress.intervened_steps == 20


def test_sac_alone_gets_no_help() -> None:
    config = replace(SMALL, method="sac", demo_steps=0, demos=0, interventions=False, steps=60)
    progress = Session(config).run()
    assert progress.operator_steps == 0 and progress.env_steps == 60
