"""Policies on the wire: round trip, equality with the agent, everything that is refused."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hil_rl.config import SACConfig
from hil_rl.policy import Policy, PolicyError, encode
from hil_rl.sac import SACAgent
from hil_rl.spaces import SpaceError, Spaces
from hil_rl.store import Batch

SMALL = {"hidden": (16, 16), "grasp_hidden": (12, 8), "state_encoder": 6}
SPACES = Spaces({"pose": ((3,), "float32"), "width": ((), "float32")}, 6, 1)
PRINT = "f" * 64


def make_agent(spaces: Spaces = SPACES, preset: str = "hil_serl", **options: object) -> SACAgent:
    agent = SACAgent(spaces, SACConfig.preset(preset, **SMALL, **options), seed=3)
    rng = np.random.default_rng(0)
    batch = Batch.empty(16, spaces)
    for array in vars(batch).values():
        array[:] = rng.uniform(-1, 1, array.shape)
    for _ in range(3):
        agent.update(batch)
    return agent


def observation(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"pose": rng.normal(size=3), "width": np.array(rng.normal())}


AGENT = make_agent()
DATA = encode(AGENT, 7, PRINT)


@pytest.mark.parametrize("grippers", [0, 1, 2])
@pytest.mark.parametrize("preset", ["hil_serl", "hil_serl_normalized"])
def test_acts_like_the_agent(grippers: int, preset: str) -> None:
    spaces = Spaces(SPACES.observation, 6 * max(grippers, 1), grippers)
    agent = make_agent(spaces, preset)
    policy = Policy.decode(encode(agent, 7, PRINT), spaces, PRINT)
    assert (policy.version, policy.fingerprint) == (7, PRINT)
    rng = np.random.default_rng(0)
    for seed in range(20):
        want = agent.act(observation(seed), deterministic=True)
        got = policy.act(observation(seed), True, rng)
        assert got.dtype == np.float32 and got.shape == (spaces.action_size,)
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_samples_have_the_agents_distribution() -> None:
    policy, rng = Policy.decode(DATA, SPACES, PRINT), np.random.default_rng(1)
    got = np.array([policy.act(observation(), False, rng) for _ in range(4000)])
    generator = torch.Generator().manual_seed(0)
    want = np.array([AGENT.act(observation(), generator=generator) for _ in range(4000)])
    np.testing.assert_allclose(got.mean(0), want.mean(0), atol=0.05)
    np.testing.assert_allclose(got.std(0), want.std(0), atol=0.05)


def test_acting_is_deterministic_by_seed() -> None:
    policy = Policy.decode(DATA, SPACES, PRINT)
    one = policy.act(observation(), False, np.random.default_rng(5))
    np.testing.assert_array_equal(one, policy.act(observation(), False, np.random.default_rng(5)))
    assert (one != policy.act(observation(), False, np.random.default_rng(6))).any()
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    policy.act(observation(), True, rng)
    assert rng.bit_generator.state == before


def test_epsilon_for_the_gripper() -> None:
    agent = make_agent(grasp_epsilon=1.0)
    policy = Policy.decode(encode(agent, 1, PRINT), SPACES, PRINT)
    rng = np.random.default_rng(0)
    grips = [policy.act(observation(), False, rng)[6] for _ in range(60)]
    assert set(grips) == {-1.0, 0.0, 1.0}
    assert len({policy.act(observation(), True, rng)[6] for _ in range(20)}) == 1


def test_bytes_are_reproducible_and_small() -> None:
    assert encode(AGENT, 7, PRINT) == DATA
    policy = Policy.decode(DATA, SPACES, PRINT)
    assert policy.sha256 == hashlib.sha256(DATA).hexdigest()
    assert policy.data == DATA
    names = safetensors.numpy.load(DATA).keys()
    assert not any("critic" in n or "adam" in n or "target" in n for n in names)
    assert len(DATA) < 4 * sum(v.size for v in safetensors.numpy.load(DATA).values()) + 8192


def test_decoding_from_a_buffer() -> None:
    assert Policy.decode(memoryview(DATA), SPACES, PRINT).sha256  # type: ignore[arg-type]
    assert Policy.decode(bytearray(DATA), SPACES, PRINT).data == DATA  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", ["hil_serl", "hil_serl_normalized"])
def test_random_is_the_initial_agent(preset: str) -> None:
    config = SACConfig.preset(preset, **SMALL)
    policy = Policy.random(SPACES, config, 11, PRINT)
    assert policy.version == 0
    assert policy.data == encode(SACAgent(SPACES, config, 11), 0, PRINT)
    assert policy.data != Policy.random(SPACES, config, 12, PRINT).data
    assert Policy.decode(policy.data, SPACES, PRINT).sha256 == policy.sha256


def test_the_default_policy_is_an_image_free_megabyte() -> None:
    spaces = Spaces({"state": ((40,), "float32")}, 6)
    assert len(Policy.random(spaces, SACConfig(), 0, PRINT).data) < 500_000


def repack(change: Callable[[dict, dict], None]) -> bytes:
    """Consistent bytes with another header or other tensors."""
    size = int.from_bytes(DATA[:8], "little")
    header = json.loads(json.loads(DATA[8 : 8 + size])["__metadata__"]["policy"])
    tensors = dict(safetensors.numpy.load(DATA))
    change(header, tensors)
    return safetensors.numpy.save(tensors, {"policy": json.dumps(header)})


def refused(data: bytes, reason: str | None, spaces: Spaces = SPACES, print_: str = PRINT) -> None:
    with pytest.raises(PolicyError, match=reason):
        Policy.decode(data, spaces, print_)


def test_wrong_fingerprint() -> None:
    refused(DATA, "specification 'fff", print_="0" * 64)


@pytest.mark.parametrize(
    "spaces",
    [
        Spaces(SPACES.observation, 6, 0),
        Spaces(SPACES.observation, 5, 1),
        Spaces({"width": ((), "float32"), "pose": ((3,), "float32")}, 6, 1),
        Spaces({"pose": ((3,), "float64"), "width": ((), "float32")}, 6, 1),
        Spaces(SPACES.observation, 6, 1, gripper_indices=(0,)),
    ],
)
def test_wrong_spaces(spaces: Spaces) -> None:
    refused(DATA, "spaces", spaces=spaces)


def test_empty_and_too_large() -> None:
    refused(b"", "empty")
    with pytest.raises(PolicyError, match="larger than 1000 bytes"):
        Policy.decode(DATA, SPACES, PRINT, max_bytes=1000)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, len(DATA) - 1))
def test_truncated_anywhere(length: int) -> None:
    refused(DATA[:length], None)


def test_appended_bytes() -> None:
    refused(DATA + b"\0", None)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_damaged_bytes_never_crash(at: int, flip: int) -> None:
    """A flipped byte is refused or gives finite, well-shaped actions; nothing else."""
    data = bytearray(DATA)
    data[at] ^= flip
    try:
        policy = Policy.decode(bytes(data), SPACES, PRINT)
    except PolicyError:
        return
    assert policy.sha256 != hashlib.sha256(DATA).hexdigest()
    with np.errstate(over="ignore", invalid="ignore"):
        assert policy.act(observation(), True, np.random.default_rng(0)).shape == (7,)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_noise(data: bytes) -> None:
    refused(data, None)


def test_header_that_claims_too_much() -> None:
    refused((2**62).to_bytes(8, "little") + DATA[8:], "truncated")
    refused((2**21).to_bytes(8, "little") + b" " * 2**21, r"truncated|no policy")

    size = int.from_bytes(DATA[:8], "little")
    header = json.loads(DATA[8 : 8 + size])
    header["actor.head_weight"]["shape"] = [1, 2**40, 16]
    text = json.dumps(header).encode()
    refused(len(text).to_bytes(8, "little") + text + DATA[8 + size :], "damaged")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite(value: float) -> None:
    def change(header: dict, tensors: dict) -> None:
        tensors["actor.head_weight"] = tensors["actor.head_weight"].copy()
        tensors["actor.head_weight"][0, 3, 2] = value

    refused(repack(change), "actor.head_weight is not finite")
    agent = make_agent()
    agent.actor.net.head_bias.data[0, 0] = value
    with pytest.raises(PolicyError, match=r"actor\.head_bias is not finite"):
        encode(agent, 1, PRINT)


def test_tensors_that_do_not_fit_the_architecture() -> None:
    def missing(header: dict, tensors: dict) -> None:
        del tensors["grasp.head_bias"]

    def extra(header: dict, tensors: dict) -> None:
        tensors["critic.head_bias"] = np.zeros(1, np.float32)

    def shape(header: dict, tensors: dict) -> None:
        tensors["actor.head_bias"] = np.zeros((1, 13), np.float32)

    def dtype(header: dict, tensors: dict) -> None:
        tensors["actor.head_bias"] = np.zeros((1, 12), np.float64)

    def half(header: dict, tensors: dict) -> None:
        tensors["actor.head_bias"] = np.zeros((1, 12), np.float16)

    refused(repack(missing), "grasp.head_bias")
    refused(repack(extra), "critic.head_bias")
    refused(repack(shape), r"shape \(1, 13\)")
    refused(repack(dtype), "float64")
    refused(repack(half), "float16")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("inputs", 2**40),
        ("inputs", -1),
        ("inputs", 3),
        ("inputs", True),
        ("hidden", []),
        ("hidden", [16, "16"]),
        ("hidden", [2**30, 16]),
        ("hidden", [16] * 100),
        ("squash", 1),
        ("std_min", 0.0),
        ("std_max", 1e-6),
        ("std_max", float("nan")),
        ("grasp_epsilon", "0"),
        ("normalize_clip", 5.0),
        ("grasp_outcomes", 9),
        ("state_encoder", None),
        ("unknown", 1),
    ],
)
def test_bad_architecture(name: str, value: object) -> None:
    def change(header: dict, tensors: dict) -> None:
        header["architecture"][name] = value

    refused(repack(change), "architecture|tensors missing")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", "hil_rl.policy/1"),
        ("version", -1),
        ("version", 1.5),
        ("version", True),
        ("version", 2**63),
        ("fingerprint", None),
        ("fingerprint", 5),
        ("architecture", []),
        ("spaces", None),
    ],
)
def test_bad_header(name: str, value: object) -> None:
    def change(header: dict, tensors: dict) -> None:
        header[name] = value

    refused(repack(change), None)

    def remove(header: dict, tensors: dict) -> None:
        del header[name]

    refused(repack(remove), f"no \\['{name}'\\]")


@pytest.mark.parametrize("policy", ['"text"', "[]", "3", "{", "[" * 100_000])
def test_header_of_another_kind(policy: str) -> None:
    refused(safetensors.numpy.save({"x": np.zeros(1)}, {"policy": policy}), "no policy header")


def test_bad_observations_are_refused() -> None:
    policy, rng = Policy.decode(DATA, SPACES, PRINT), np.random.default_rng(0)
    with pytest.raises(SpaceError, match="pose"):
        policy.act({"width": np.array(0.0)}, True, rng)
    with pytest.raises(SpaceError, match="pose"):
        policy.act(observation() | {"pose": np.array([0.0, np.nan, 0.0])}, True, rng)


def test_acting_needs_no_torch() -> None:
    code = "import sys, hil_rl.policy, hil_rl.store, hil_rl.checkpoint; assert 'torch' not in "
    subprocess.run([sys.executable, "-c", code + "sys.modules"], check=True, timeout=60)
