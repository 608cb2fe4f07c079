"""Double DQN for the benchmark's discrete task, on the library's network, optimiser and store."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hil_rl.architecture import MLPShape
from hil_rl.networks import MLP
from hil_rl.optim import Adam
from hil_rl.spaces import Spaces
from hil_rl.store import Batch


class DoubleDQN:
    """One value per element of the action; the largest element is the choice.

    Args:
        spaces: observation, and an action with one element per choice.
        seed: of network and exploration.
        discount: per step.
        lowest: smallest possible return; targets are clipped to [lowest, 0].
    """

    def __init__(self, spaces: Spaces, seed: int, discount: float, lowest: float) -> None:
        self.spaces = spaces
        self._discount, self._lowest = discount, lowest
        self._rng = np.random.default_rng([seed, 0])
        shape = MLPShape(spaces.vector_size, spaces.action_dim, (256,))
        self.network = MLP(shape, np.random.default_rng([seed, 1]), input_bias=1.0)
        self.target = copy.deepcopy(self.network).requires_grad_(False)
        self._optimizer = Adam(self.network, 1e-3)

    @torch.no_grad()
    def act(self, observation: Mapping[str, Any], epsilon: float = 0.0) -> np.ndarray:
        """(choices,) one-hot action; random with probability epsilon."""
        if epsilon and self._rng.random() < epsilon:
            choice = int(self._rng.integers(self.spaces.action_dim))
        else:
            state = torch.from_numpy(self._scale(self.spaces.flatten(observation)))[None]
            choice = int(self.network(state)[0, 0].argmax())
        action = np.zeros(self.spaces.action_dim, np.float32)
        action[choice] = 1.0
        return action

    def update(self, batch: Batch) -> None:
        """One gradient step."""
        state, following = (
            torch.from_numpy(self._scale(s)) for s in (batch.state, batch.next_state)
        )
        choice = torch.from_numpy(batch.action.argmax(-1))[:, None]
        with torch.no_grad():
            best = self.network(following)[0].argmax(-1, keepdim=True)
            value = self.target(following)[0].gather(1, best)[:, 0]
            bootstrap = torch.from_numpy(batch.mask) * self._discount
            goal = torch.addcmul(torch.from_numpy(batch.reward), bootstrap, value)
            goal = goal.clamp(self._lowest, 0.0)
        loss = (self.network(state)[0].gather(1, choice)[:, 0] - goal).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        with torch.no_grad():
            pairs = zip(self.target.parameters(), self.network.parameters(), strict=True)
            for target, online in pairs:
                target.lerp_(online, 0.05)

    @staticmethod
    def _scale(bits: np.ndarray) -> np.ndarray:
        return bits * 2.0 - 1.0
