"""Steps of made-up episodes, for tests and benchmarks of the transport and the learner.

The world is a point that each action moves towards a goal: small, but there is something to
learn, and a step's observation says which step it is (`tag`: seq, episode, step), so that a
wrong pair of observations in a store can be seen.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rclpy.serialization import serialize_message

from hil_interfaces.msg import Step, Tensor
from hil_learner.records import RecordSpec
from hil_rl.spaces import Spaces

SPACES = Spaces(
    {"position": ((2,), "float32"), "goal": ((2,), "float32"), "tag": ((3,), "float32")},
    action_dim=2,
)
"""Spaces of the synthetic world, for tests without a task."""


def synthetic_spec(run_id: str = "run", fingerprint: str = "f" * 64) -> RecordSpec:
    """Return the record specification of the synthetic world."""
    return RecordSpec(run_id, fingerprint, "synthetic", SPACES)


@dataclass
class Sent:
    """One serialized step and the message it was made of."""

    seq: int
    data: bytes
    message: Step


class SyntheticActor:
    """Source of the steps of one actor session.

    Tensors of the specification that the synthetic world does not know are filled with noise.
    """

    def __init__(
        self, spec: RecordSpec, actor_id: str, session: str, seed: int, episode_steps: int = 20
    ) -> None:
        self.spec = spec
        self.actor_id = actor_id
        self.session = session
        self.seq = 0
        self._episode_steps = episode_steps
        self._rng = np.random.default_rng(seed)
        self._episode = -1
        self._step = 0
        self._ended = True
        self._position = np.zeros(2, np.float32)
        self._goal = np.zeros(2, np.float32)

    def next(self, *, flags: int = 0, intervened: bool = False, policy_version: int = 0) -> Sent:
        """Return the next step; episodes end at the goal or after `episode_steps`."""
        if self._ended:
            self._begin()
        self.seq += 1
        message = Step(
            run_id=self.spec.run_id,
            fingerprint=self.spec.fingerprint,
            actor_id=self.actor_id,
            session=self.session,
            seq=self.seq,
            episode=self._episode,
            step=self._step,
            task=self.spec.task,
            policy_version=policy_version,
            flags=flags,
            intervened=[intervened] * self.spec.arms,
            grasp_penalty=[0.0] * self.spec.spaces.grippers,
            observation=self._observe(),
        )
        action = self._act(expert=intervened)
        message.action = action.tolist()
        if not intervened:
            message.policy_action = action.tolist()
        self._position = np.clip(self._position + 0.1 * action[:2], -1.0, 1.0)
        self._step += 1
        message.success = bool(np.abs(self._goal - self._position).max() < 0.1)
        message.terminated = message.success
        message.truncated = not message.success and self._step >= self._episode_steps
        message.reward = float(message.success)
        self._ended = message.terminated or message.truncated
        if self._ended:
            message.final_observation = self._observe()
        return Sent(self.seq, serialize_message(message), message)

    def _begin(self) -> None:
        self._episode += 1
        self._step = 0
        self._ended = False
        self._position = self._rng.uniform(-1.0, 1.0, 2).astype(np.float32)
        self._goal = self._rng.uniform(-1.0, 1.0, 2).astype(np.float32)

    def _act(self, *, expert: bool) -> NDArray[np.float32]:
        action = self._rng.uniform(-1.0, 1.0, self.spec.spaces.action_size).astype(np.float32)
        if expert:
            action[:2] = np.clip(10.0 * (self._goal - self._position), -1.0, 1.0)
        for index in self.spec.spaces.gripper_indices:
            action[index] = np.rint(action[index])
        return action

    def _observe(self) -> list[Tensor]:
        known = {
            "position": self._position,
            "goal": self._goal,
            "tag": np.array([self.seq, self._episode, self._step], np.float32),
        }
        tensors = []
        for name, (shape, dtype) in self.spec.spaces.observation.items():
            value = np.asarray(self._rng.uniform(-1.0, 1.0, shape), dtype)
            if name in known and known[name].shape == shape:
                value = known[name].astype(dtype)
            data = array("B", value.tobytes())
            tensors.append(Tensor(name=name, dtype=dtype, shape=list(shape), data=data))
        return tensors
