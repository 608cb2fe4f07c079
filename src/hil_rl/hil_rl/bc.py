"""Behaviour cloning of the "demo" view (demonstrations and interventions).

`train` clones what is in a store once. `BCAgent` does it update by update under
`hil_rl.trainer.Trainer`, while the store grows: with an operator who intervenes that is
HG-DAgger, see `hil_rl.methods`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import BCConfig
from .networks import LOG_SQRT_2PI, MLP, Actor
from .normalizer import Normalizer
from .optim import Adam
from .policy import ActorArchitecture, Policy
from .sac import TrainingError, check_state
from .spaces import Array, SpaceError, Spaces
from .store import Batch, EpisodeStore, StoreError


def architecture(spaces: Spaces, config: BCConfig) -> ActorArchitecture:
    """Networks of a cloned policy: a Gaussian without squashing, a gripper classifier."""
    return ActorArchitecture(
        inputs=spaces.vector_size,
        action_dim=spaces.action_dim,
        hidden=config.hidden,
        state_encoder=0,
        std_min=config.std_min,
        std_max=config.std_max,
        squash=False,
        grasp_outcomes=spaces.grasp_outcomes,
        grasp_hidden=config.grasp_hidden,
        grasp_activate_final=True,
        grasp_epsilon=0.0,
        normalize_clip=config.normalize_clip if config.normalize else 0.0,
    )


class BCAgent:
    """A cloned policy and its optimiser, trained batch by batch.

    Args:
        spaces: observation and action layout, without images.
        config: see `BCConfig`.
        seed: of initial values and dropout.

    Raises:
        SpaceError: images, or no state vector.
    """

    def __init__(self, spaces: Spaces, config: BCConfig, seed: int) -> None:
        if spaces.images or not spaces.vector_size:
            raise SpaceError("behaviour cloning needs state vectors and no images")
        self.spaces = spaces
        self.config = config
        self.architecture = architecture(spaces, config)
        self.normalizer = Normalizer(
            spaces.vector_size,
            config.normalize,
            config.normalize_updates,
            config.normalize_min_std,
            config.normalize_clip,
        )
        rng = np.random.default_rng([seed, 0])
        shape = self.architecture.actor_shape
        self.actor = Actor(shape, config.std_min, config.std_max, rng)
        grasp = self.architecture.grasp_shape
        self.grasp = None if grasp is None else MLP(grasp, rng)
        self._networks = nn.ModuleDict({"actor": self.actor.net})
        if self.grasp is not None:
            self._networks["grasp"] = self.grasp
        self._optimizer = Adam(self._networks, config.learning_rate)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._dropout = torch.random.get_rng_state()
        self._continuous = list(spaces.continuous_indices)

    def update(self, batch: Batch, actor: bool = True) -> dict[str, float]:
        """One gradient step on the executed actions of a batch; see `fit`."""
        self.normalizer.update(batch.state)
        return self.fit(self.normalizer(batch.state), batch.action)

    def fit(self, states: Array, actions: Array) -> dict[str, float]:
        """One gradient step: negative log likelihood, cross entropy for grippers.

        Args:
            states: (n, vector_size) float32, normalised.
            actions: (n, action_size) float32. Idle ones do not count, see `BCConfig.drop_idle`.

        Returns:
            The losses before the step; empty if all actions are idle.

        Raises:
            TrainingError: a loss is not finite; nothing is changed.
        """
        continuous = actions[:, self._continuous]
        if self.config.drop_idle and not (moving := continuous.any(1)).all():
            states, actions, continuous = states[moving], actions[moving], continuous[moving]
        if not len(states):
            return {}
        inputs, dropout = torch.from_numpy(states), self.config.dropout
        with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
            torch.random.set_rng_state(self._dropout)
            loss = gaussian_loss(self.actor, inputs, torch.from_numpy(continuous), dropout)
            terms = {"bc_loss": loss}
            if self.grasp is not None:
                logits = self.grasp(inputs, dropout=dropout)[0]
                taken = torch.from_numpy(self.spaces.grasp_index(actions))
                terms["bc_grasp_loss"] = F.cross_entropy(logits, taken)
            drawn = torch.random.get_rng_state()
        metrics = {name: float(term.detach()) for name, term in terms.items()}
        if not all(map(math.isfinite, metrics.values())):
            raise TrainingError(f"behaviour cloning diverged: {metrics}")
        self._dropout = drawn
        self._optimizer.zero_grad()
        torch.stack([*terms.values()]).sum().backward()
        self._optimizer.step()
        return metrics

    def acting_parameters(self) -> dict[str, Array]:
        """Copies of what acting needs, see `hil_rl.policy`."""
        result = {n: p.detach().numpy().copy() for n, p in self._networks.named_parameters()}
        if self.config.normalize:
            result |= {
                "normalizer.mean": self.normalizer.mean.copy(),
                "normalizer.scale": self.normalizer.scale.copy(),
            }
        return result

    def _tensors(self) -> dict[str, Tensor]:
        """Every tensor that an update changes, by name; not copies."""
        result = {n: p.detach() for n, p in self._networks.named_parameters()}
        return result | {f"adam.{name}": t for name, t in self._optimizer.tensors()}

    def state(self) -> dict[str, Array]:
        """Everything an update depends on."""
        arrays = {name: t.numpy().copy() for name, t in self._tensors().items()}
        arrays["dropout"] = self._dropout.numpy().copy()
        return arrays | {f"normalizer.{k}": v for k, v in self.normalizer.state().items()}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Restore the output of `state`.

        Raises:
            StateError: names or shapes differ from this agent's; nothing is changed.
        """
        check_state(self.state(), arrays)
        for name, tensor in self._tensors().items():
            tensor.copy_(torch.from_numpy(np.array(arrays[name])))
        self._dropout = torch.from_numpy(np.array(arrays["dropout"]))
        self.normalizer.load_state({k: arrays[f"normalizer.{k}"] for k in self.normalizer.state()})


def train(
    store: EpisodeStore,
    config: BCConfig,
    seed: int,
    version: int,
    fingerprint: str,
    progress: Callable[[int, dict[str, float]], None] | None = None,
) -> Policy:
    """Fit a policy to the demonstrations and interventions of a store.

    Args:
        store: its "demo" view is read once, at the start.
        config: see `BCConfig`.
        seed: of initial values, batches and dropout.
        version: of the policy.
        fingerprint: of the task's specification.
        progress: called after every 100th step with the step and the losses.

    Raises:
        StoreError: there are no demonstrations (or only idle ones).
        TrainingError: a loss is not finite.
    """
    spaces = store.spaces
    agent = BCAgent(spaces, config.replace(normalize_updates=1), seed)
    data = store.gather(np.sort(store.slots("demo")))
    moving = data.action[:, list(spaces.continuous_indices)].any(1)
    used = moving if config.drop_idle else np.ones_like(moving)
    if not used.any():
        raise StoreError('view "demo" has no transition to clone')
    agent.normalizer.update(data.state[used])
    states, actions = agent.normalizer(data.state[used]), data.action[used]
    order = np.random.default_rng([seed, 2])
    for step in range(1, config.steps + 1):
        rows = order.integers(0, len(states), config.batch_size)
        metrics = agent.fit(states[rows], actions[rows])
        if progress is not None and step % 100 == 0:
            progress(step, metrics)
    return Policy.create(
        agent.acting_parameters(), agent.architecture, spaces, version, fingerprint
    )


def gaussian_loss(actor: Actor, states: Tensor, actions: Tensor, dropout: float) -> Tensor:
    """Mean negative log likelihood, in nats, of (n, action_dim) actions, without squashing."""
    mean, log_std = actor(states, dropout=dropout)
    noise = (actions - mean) * torch.exp(-log_std)
    return (0.5 * noise.square() + log_std + LOG_SQRT_2PI).sum(-1).mean()
