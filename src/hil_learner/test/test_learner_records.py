"""Decoding of step records: everything that does not fit is refused by the field's name."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message

from hil_interfaces.msg import Step, Tensor
from hil_learner.records import Identity, RecordDecoder, RecordError, RecordSpec
from hil_learner.synthetic import SyntheticActor, synthetic_spec
from hil_rl.spaces import Spaces

IDENTITY = Identity("actor", "session", 1)


def decoder_of(spec: RecordSpec) -> RecordDecoder:
    return RecordDecoder(spec, lambda data: deserialize_message(data, Step))


def first_step(spec: RecordSpec) -> Step:
    return SyntheticActor(spec, "actor", "session", seed=0).next(intervened=True).message


def test_a_step_comes_out_as_it_went_in() -> None:
    spec = synthetic_spec()
    actor = SyntheticActor(spec, "actor", "session", seed=1, episode_steps=3)
    for _ in range(7):
        sent = actor.next(policy_version=5)
        step = decoder_of(spec).decode(sent.data, Identity("actor", "session", sent.seq))
        message = sent.message
        assert (step.stream, step.seq) == ("actor/session", sent.seq)
        assert (step.episode, step.step) == (message.episode, message.step)
        assert step.observation["tag"].tolist() == [sent.seq, message.episode, message.step]
        np.testing.assert_array_equal(step.action, np.array(message.action, np.float32))
        assert step.policy_action is not None
        assert (step.terminated, step.truncated) == (message.terminated, message.truncated)
        assert (step.final_observation is not None) == (step.terminated or step.truncated)
        assert step.policy_version == 5


def test_a_stored_step_names_its_own_identity() -> None:
    spec = synthetic_spec()
    data = SyntheticActor(spec, "a", "s", seed=0).next().data
    identity, step = decoder_of(spec).decode_stored(data)
    assert identity == Identity("a", "s", 1) and step.stream == "a/s"


def test_camera_images_beside_the_state_are_checked_and_left_out() -> None:
    frame = {"wrist": ((4, 4, 3), "uint8")}
    spec = RecordSpec("run", "f", "synthetic", synthetic_spec().spaces, unused=frame)
    message = first_step(spec)
    image = Tensor(name="wrist", dtype="uint8", shape=[4, 4, 3], data=array("B", bytes(48)))
    message.observation = [*message.observation, image]
    decoder = decoder_of(spec)
    assert "wrist" not in decoder.decode(serialize_message(message), IDENTITY).observation
    image.data = array("B", bytes(47))
    with pytest.raises(RecordError, match=r"observation\.wrist: 47 bytes"):
        decoder.decode(serialize_message(message), IDENTITY)


def tensor(message: Step, **changes: object) -> None:
    for name, value in changes.items():
        setattr(message.observation[0], name, value)


BAD = {
    "run_id": lambda m: setattr(m, "run_id", "other"),
    "fingerprint": lambda m: setattr(m, "fingerprint", "0" * 64),
    "actor_id": lambda m: setattr(m, "actor_id", "impostor"),
    "session": lambda m: setattr(m, "session", "x" * 5000),
    "seq": lambda m: setattr(m, "seq", 2),
    "task": lambda m: setattr(m, "task", "other"),
    "observation: unknown tensor": lambda m: tensor(m, name="pose"),
    "observation.goal: given twice": lambda m: tensor(m, name="goal"),
    "observation: without": lambda m: setattr(m, "observation", m.observation[1:]),
    "observation.position: dtype": lambda m: tensor(m, dtype="float64"),
    "observation.position: shape": lambda m: tensor(m, shape=[1, 2]),
    "observation.position: 4 bytes": lambda m: tensor(m, data=array("B", bytes(4))),
    "observation.position: not finite": lambda m: tensor(
        m, data=array("B", np.array([0, np.nan], np.float32).tobytes())
    ),
    "action: 1 comp": lambda m: setattr(m, "action", [0.0]),
    "action: not finite": lambda m: setattr(m, "action", [0.0, float("inf")]),
    "action[1]": lambda m: setattr(m, "action", [0.0, 1.1]),
    "policy_action: 3": lambda m: setattr(m, "policy_action", [0.0] * 3),
    "policy_action: not finite": lambda m: setattr(m, "policy_action", [float("nan")] * 2),
    "intervened": lambda m: setattr(m, "intervened", []),
    "policy_version": lambda m: setattr(m, "policy_version", 2**64 - 1),
    "reward": lambda m: setattr(m, "reward", float("nan")),
    "grasp_penalty": lambda m: setattr(m, "grasp_penalty", [0.0]),
    "flags: unknown": lambda m: setattr(m, "flags", 1 << 20),
    "flags: a step": lambda m: setattr(m, "flags", Step.FLAG_DEMO | Step.FLAG_EVALUATION),
    "final_observation: only": lambda m: setattr(m, "final_observation", m.observation),
    "final_observation: missing": lambda m: setattr(m, "truncated", True),
}


@pytest.mark.parametrize("expected", list(BAD))
def test_the_field_at_fault_is_named(expected: str) -> None:
    spec = synthetic_spec()
    message = first_step(spec)
    change: Callable[[Step], None] = BAD[expected]
    change(message)
    with pytest.raises(RecordError) as caught:
        decoder_of(spec).decode(serialize_message(message), IDENTITY)
    assert str(caught.value).startswith(expected)


def test_gripper_commands_are_discrete() -> None:
    spaces = Spaces({"x": ((1,), "float32")}, action_dim=6, grippers=1)
    spec = RecordSpec("run", "f", "synthetic", spaces)
    message = first_step(spec)
    message.action[6] = 0.5
    with pytest.raises(RecordError, match=r"action\[6\]: gripper 0.5"):
        decoder_of(spec).decode(serialize_message(message), IDENTITY)


def test_too_large_a_step_is_refused_before_it_is_decoded() -> None:
    spec = synthetic_spec()

    def never(_: bytes) -> Step:
        raise AssertionError("decoded")

    with pytest.raises(RecordError, match=r"data: \d+ bytes, a step has at most"):
        RecordDecoder(spec, never).decode(bytes(spec.max_bytes + 1), IDENTITY)
    assert len(SyntheticActor(spec, "a", "s", 0).next().data) < spec.max_bytes


def test_random_damage_is_refused_with_a_reason_or_harmless(
    capfd: pytest.CaptureFixture[str],
) -> None:
    spec = synthetic_spec()
    decoder = decoder_of(spec)
    good = serialize_message(first_step(spec))
    rng = random.Random(0)
    reasons: list[str] = []
    for _ in range(4000):
        try:
            decoder.decode(damaged(good, rng), IDENTITY)
        except RecordError as error:
            reasons.append(str(error))
    assert len(reasons) > 2000
    assert all(":" in reason and len(reason) < 600 for reason in reasons)
    capfd.readouterr()  # the middleware complains on stderr


def damaged(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(changed[: rng.randrange(len(changed))])
    if kind == 1:
        return rng.randbytes(rng.randrange(2000))
    if kind == 2:
        position = rng.randrange(len(changed) // 4) * 4
        changed[position : position + 4] = rng.choice(
            [b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x10", b"\0\1\0\0", b"\0\0\xc0\x7f"]
        )
        return bytes(changed)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)
