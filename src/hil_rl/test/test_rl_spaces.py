"""Spaces, action layouts and configurations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hil_rl.config import DEVIATIONS, SAC_PRESETS, BCConfig, SACConfig, TrainerConfig
from hil_rl.spaces import SpaceError, Spaces

VECTOR = {"q": ((7,), "float32")}


@pytest.mark.parametrize(
    ("action_dim", "grippers", "size", "indices", "outcomes"),
    [(6, 0, 6, (), 0), (6, 1, 7, (6,), 3), (12, 2, 14, (6, 13), 9)],
)
def test_layouts(
    action_dim: int, grippers: int, size: int, indices: tuple[int, ...], outcomes: int
) -> None:
    spaces = Spaces(VECTOR, action_dim, grippers)
    assert (spaces.action_size, spaces.gripper_indices) == (size, indices)
    assert spaces.grasp_outcomes == outcomes
    assert len(spaces.continuous_indices) == action_dim


def test_one_gripper_on_two_arms() -> None:
    spaces = Spaces(VECTOR, 12, 1, gripper_indices=(6,))
    assert spaces.continuous_indices == (0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12)


@given(st.integers(1, 3), st.data())
def test_actions_come_apart_and_together(grippers: int, data: st.DataObject) -> None:
    spaces = Spaces(VECTOR, 6 * grippers, grippers)
    index = np.array(data.draw(st.lists(st.integers(0, spaces.grasp_outcomes - 1), min_size=1)))
    continuous = np.random.default_rng(0).uniform(-1, 1, (len(index), spaces.action_dim))
    action = spaces.join_action(continuous.astype(np.float32), index)
    np.testing.assert_array_equal(spaces.grasp_index(action), index)
    np.testing.assert_array_equal(
        action[:, list(spaces.continuous_indices)], continuous.astype(np.float32)
    )
    assert set(np.unique(action[:, list(spaces.gripper_indices)])) <= {-1.0, 0.0, 1.0}


def test_two_grippers_as_in_hil_serl() -> None:
    """Joint outcome = left * 3 + right, each 0 close, 1 stay, 2 open."""
    spaces = Spaces(VECTOR, 12, 2)
    action = np.zeros(14, np.float32)
    action[6], action[13] = 1.0, -1.0
    assert spaces.grasp_index(action) == 6
    action[6], action[13] = -0.6, 0.7  # the person's button gives values near +-1
    assert spaces.grasp_index(action) == 2


def test_vectors_are_concatenated_in_order_and_images_left_out() -> None:
    spaces = Spaces(
        {"b": ((2, 2), "float64"), "wrist": ((4, 6, 3), "uint8"), "a": ((), "int32")}, 6
    )
    assert spaces.vector_size == 5 and list(spaces.images) == ["wrist"]
    flat = spaces.flatten({"a": 7, "b": [[1, 2], [3, 4]], "unused": "anything"})
    assert flat.tolist() == [1, 2, 3, 4, 7] and flat.dtype == np.float32
    out = np.zeros(5, np.float32)
    assert spaces.flatten({"a": 7, "b": np.ones((2, 2))}, out) is out


def test_json_round_trip() -> None:
    spaces = Spaces({"b": ((2,), "float64"), "a": ((4, 6, 3), "uint8")}, 12, 1, (6,))
    assert Spaces.from_json(json.loads(json.dumps(spaces.to_json()))) == spaces


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (({"x": ((3,), "uint8")}, 6), "uint8"),
        (({"x": ((0,), "float32")}, 6), "empty"),
        ((VECTOR, 0), "action_dim"),
        ((VECTOR, 6, -1), "grippers"),
        ((VECTOR, 7, 2), "evenly"),
        ((VECTOR, 6, 1, (7,)), "gripper_indices"),
        ((VECTOR, 12, 2, (6, 6)), "gripper_indices"),
        ((VECTOR, 6, 0, (6,)), "gripper_indices"),
    ],
)
def test_bad_spaces(arguments: tuple, reason: str) -> None:
    with pytest.raises(SpaceError, match=reason):
        Spaces(*arguments)


def test_preset_has_hil_serls_constants() -> None:
    c = SACConfig.preset("hil_serl")
    assert (c.discount, c.learning_rate, c.tau) == (0.97, 3e-4, 0.005)
    assert (c.hidden, c.grasp_hidden, c.state_encoder) == ((256, 256), (128, 128), 64)
    assert (c.ensemble, c.target_subset, c.actor_q) == (2, 0, "mean")
    assert (c.backup_entropy, c.temperature_init, c.reward_bias) == (False, 0.01, 0.0)
    assert (c.std_min, c.std_max, c.grasp_activate_final) == (1e-5, 5.0, False)
    assert not (c.normalize or c.gradient_clip or c.grasp_epsilon or c.input_bias)
    t = TrainerConfig()
    assert (t.batch_size, t.demo_ratio, t.cta_ratio, t.training_starts) == (256, 0.5, 2, 100)
    b = BCConfig()
    assert (b.hidden, b.dropout, b.learning_rate, b.steps) == ((512,) * 3, 0.25, 3e-4, 20_000)


def test_presets_and_overrides() -> None:
    for name in SAC_PRESETS:
        assert SACConfig.preset(name, discount=0.98).discount == 0.98
    assert SACConfig.preset("hil_serl_normalized").normalize
    with pytest.raises(ValueError, match="did you mean 'hil_serl'"):
        SACConfig.preset("hilserl")
    with pytest.raises(ValueError, match="did you mean 'discount'"):
        SACConfig.preset("hil_serl", discont=0.9)
    with pytest.raises(ValueError, match="did you mean 'cta_ratio'"):
        TrainerConfig.from_dict({"cta_rato": 2})
    assert all(reason for reason in DEVIATIONS.values())


@pytest.mark.parametrize("config", [SACConfig(), TrainerConfig(), BCConfig()])
def test_configurations_survive_json(config: SACConfig) -> None:
    text = json.dumps(config.to_dict())
    assert type(config).from_dict(json.loads(text)) == config


@pytest.mark.parametrize(
    "values",
    [
        {"discount": 1.0},
        {"learning_rate": 0.0},
        {"tau": 0.0},
        {"hidden": ()},
        {"grasp_hidden": (0,)},
        {"ensemble": 0},
        {"target_subset": 3},
        {"actor_q": "max"},
        {"temperature_init": 0.0},
        {"std_min": 6.0},
        {"grasp_epsilon": 1.1},
        {"gradient_clip": -1.0},
        {"normalize_min_std": 0.0},
        {"input_bias": -1.0},
        {"value_range": (1.0, 0.0)},
        {"value_range": (0.0,)},
        {"value_range": (0.0, 1.0), "backup_entropy": True},
        {"state_encoder": -1},
    ],
)
def test_bad_agent_values(values: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(values)).split("_")[0]):
        SACConfig(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"batch_size": 1},
        {"demo_ratio": 1.5},
        {"cta_ratio": 0},
        {"training_starts": -1},
        {"max_updates_per_env_step": -1.0},
        {"min_updates_per_env_step": 3.0},
        {"env_step_slack": 0},
        {"initial_updates": -1},
    ],
)
def test_bad_trainer_values(values: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        TrainerConfig(**values)


def test_flags_are_those_of_the_message() -> None:
    """The library has no ROS, so the values are repeated; they must not drift apart."""
    from hil_rl import store

    message = Path(__file__).parents[2] / "hil_interfaces" / "msg" / "Step.msg"
    if not message.exists():
        pytest.skip("hil_interfaces is not beside this package")
    text = message.read_text()
    for name in ("TAKEOVER", "TELEOP_LOST", "HELD", "DEMO", "EVALUATION"):
        value = getattr(store, f"FLAG_{name}")
        assert re.search(rf"FLAG_{name}={value}\b", text)
