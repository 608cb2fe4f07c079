"""Behaviour cloning of the "demo" view (demonstrations and interventions)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .config import BCConfig
from .networks import LOG_SQRT_2PI, MLP, Actor
from .normalizer import Normalizer
from .policy import ActorArchitecture, Policy
from .sac import TrainingError
from .spaces import SpaceError, Spaces
from .store import EpisodeStore, StoreError


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


def train(
    store: EpisodeStore,
    config: BCConfig,
    seed: int,
    version: int,
    fingerprint: str,
    progress: Callable[[int, dict[str, float]], None] | None = None,
) -> Policy:
    """Fit a policy to the executed actions: negative log likelihood, cross entropy for grippers.

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
    if spaces.images or not spaces.vector_size:
        raise SpaceError("behaviour cloning needs state vectors and no images")
    data = store.gather(np.sort(store.slots("demo")))
    actions = data.action[:, list(spaces.continuous_indices)]
    moving = np.linalg.norm(actions, axis=1) > 0.0
    used = moving if config.drop_idle else np.ones_like(moving)
    if not used.any():
        raise StoreError('view "demo" has no transition to clone')

    normalizer = Normalizer(
        spaces.vector_size, config.normalize, 1, config.normalize_min_std, config.normalize_clip
    )
    normalizer.update(data.state[used])
    states = torch.from_numpy(normalizer(data.state[used]))
    targets = torch.from_numpy(actions[used])
    grasps = torch.from_numpy(spaces.grasp_index(data.action[used]))

    arch = architecture(spaces, config)
    rng = np.random.default_rng([seed, 0])
    actor = Actor(arch.actor_shape, config.std_min, config.std_max, rng)
    grasp = None if arch.grasp_shape is None else MLP(arch.grasp_shape, rng)
    parameters = [*actor.parameters(), *(grasp.parameters() if grasp is not None else ())]
    optimizer = torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)
    order = np.random.default_rng([seed, 2])
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
        torch.manual_seed(seed)
        for step in range(1, config.steps + 1):
            rows = torch.from_numpy(order.integers(0, len(states), config.batch_size))
            loss = gaussian_loss(actor, states[rows], targets[rows], config.dropout)
            terms = {"bc_loss": loss}
            if grasp is not None:
                logits = grasp(states[rows], dropout=config.dropout)[0]
                terms["bc_grasp_loss"] = F.cross_entropy(logits, grasps[rows])
            total = torch.stack([*terms.values()]).sum()
            if not torch.isfinite(total):
                raise TrainingError(f"behaviour cloning diverged at step {step}: {terms}")
            optimizer.zero_grad(set_to_none=True)
            total.backward()
            optimizer.step()
            if progress is not None and step % 100 == 0:
                progress(step, {name: float(term.detach()) for name, term in terms.items()})

    arrays = {f"actor.{n}": p for n, p in actor.net.named_parameters()}
    if grasp is not None:
        arrays |= {f"grasp.{n}": p for n, p in grasp.named_parameters()}
    result = {name: p.detach().numpy().copy() for name, p in arrays.items()}
    if arch.normalize_clip:
        result |= {"normalizer.mean": normalizer.mean, "normalizer.scale": normalizer.scale}
    return Policy.create(result, arch, spaces, version, fingerprint)


def gaussian_loss(actor: Actor, states: Tensor, actions: Tensor, dropout: float) -> Tensor:
    """Mean negative log likelihood, in nats, of (n, action_dim) actions, without squashing."""
    mean, log_std = actor(states, dropout=dropout)
    noise = (actions - mean) * torch.exp(-log_std)
    return (0.5 * noise.square() + log_std + LOG_SQRT_2PI).sum(-1).mean()
