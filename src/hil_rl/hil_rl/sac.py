"""SAC with prior data (RLPD) and an optional Double-DQN critic for grippers, as in HIL-SERL.

One agent for all layouts: no gripper (continuous only), one (3 discrete outcomes), two (9 joint
outcomes). The continuous critics never see the gripper command; the grasp critic sees the task
reward plus the grasp penalty and chooses the command greedily.

Losses, for a batch of (s, a, r, s', mask) with mask = 0 only where the task terminated:

* critic: mean over critics of (Q_i(s, a) - y)^2, y = r + discount * mask * min_i Q'_i(s', a'),
  a' ~ policy(s'); no entropy term unless `backup_entropy`.
* grasp critic: (G(s)[g] - y)^2, y = r + penalty + discount * mask * G'(s')[argmax G(s')].
* actor: mean(temperature * log pi(a|s) - mean_i Q_i(s, a)).
* temperature: temperature * (H - target), H the entropy at s', target = -scale * action_dim / 2:
  the temperature falls while the entropy is above its (negative) target.

All losses are taken at the same parameters, then each named network takes its own Adam step,
then the target critics follow by Polyak averaging.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .architecture import MLPShape
from .config import SACConfig
from .networks import MLP, Actor
from .normalizer import Normalizer
from .optim import Adam
from .policy import ActorArchitecture
from .spaces import Array, SpaceError, Spaces
from .store import Batch


class TrainingError(RuntimeError):
    """An update gave values that are not finite; no parameter was changed by it."""


class StateError(ValueError):
    """A saved state does not fit this agent."""


class SACAgent:
    """Actor, critics, temperature and their optimisers.

    Args:
        spaces: observation and action layout; images are not supported by this agent.
        config: see `SACConfig`.
        seed: of initial values and of all sampling; the same seed and batches give the same
            parameters, bit for bit on one machine.
        device: of the networks.
    """

    def __init__(self, spaces: Spaces, config: SACConfig, seed: int, device: str = "cpu") -> None:
        if spaces.images:
            raise SpaceError(f"no encoder for the images {sorted(spaces.images)}: leave them out")
        if not spaces.vector_size:
            raise SpaceError("the observation has no vector tensor")
        self.spaces = spaces
        self.config = config
        self.device = torch.device(device)
        self.architecture = ActorArchitecture.from_config(spaces, config)
        self.normalizer = Normalizer(
            spaces.vector_size,
            config.normalize,
            config.normalize_updates,
            config.normalize_min_std,
            config.normalize_clip,
        )
        self.target_entropy = -config.target_entropy_scale * spaces.action_dim / 2.0
        self._build(np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1]))
        self.generator = torch.Generator(self.device)
        self.generator.manual_seed(seed)
        self._continuous = torch.tensor(spaces.continuous_indices, device=self.device)

    def _build(self, acting: np.random.Generator, other: np.random.Generator) -> None:
        c, spaces = self.config, self.spaces
        critic = MLPShape(
            spaces.vector_size,
            1,
            c.hidden,
            encoder=c.state_encoder,
            action=spaces.action_dim,
            members=c.ensemble,
        )
        shape, bias = self.architecture.actor_shape, c.input_bias
        self.actor = Actor(shape, c.std_min, c.std_max, acting, bias)
        self.critic = MLP(critic, other, bias)
        grasp = self.architecture.grasp_shape
        self.grasp_critic = MLP(grasp, acting, bias) if grasp is not None else None
        # softplus(raw) = temperature
        raw = c.temperature_init + math.log(-math.expm1(-c.temperature_init))
        self.raw_temperature = nn.Parameter(torch.tensor(raw))
        temperature = nn.ParameterDict({"raw": self.raw_temperature})
        self.networks: dict[str, nn.Module] = {"actor": self.actor, "critic": self.critic}
        if self.grasp_critic is not None:
            self.networks["grasp_critic"] = self.grasp_critic
        self.networks["temperature"] = temperature
        for network in self.networks.values():
            network.to(self.device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_grasp_critic = copy.deepcopy(self.grasp_critic)
        self.targets: dict[str, nn.Module] = {"critic": self.target_critic}
        if self.target_grasp_critic is not None:
            self.targets["grasp_critic"] = self.target_grasp_critic.requires_grad_(False)
        self.optimizers = {
            name: Adam(network, c.learning_rate, c.gradient_clip)
            for name, network in self.networks.items()
        }
        self._polyak: list[tuple[list[Tensor], list[Tensor]]] = [
            ([*target.parameters()], [*self.networks[name].parameters()])
            for name, target in self.targets.items()
        ]

    @property
    def temperature(self) -> float:
        """Entropy temperature."""
        return float(F.softplus(self.raw_temperature.detach()))

    # ---------------------------------------------------------------------------- learning

    def update(self, batch: Batch, actor: bool = True) -> dict[str, float]:
        """One gradient step of the critics and, if `actor`, of actor and temperature.

        Args:
            batch: transitions; not changed.
            actor: also update actor and temperature.

        Returns:
            Metrics of the losses before the step.

        Raises:
            TrainingError: a loss is not finite.
        """
        self.normalizer.update(batch.state)
        state = self._tensor(self.normalizer(batch.state))
        next_state = self._tensor(self.normalizer(batch.next_state))
        reward = self._tensor(batch.reward) + self.config.reward_bias
        discount = self._tensor(batch.mask) * self.config.discount
        action = self._tensor(batch.action)
        if self.spaces.grippers:
            action = action.index_select(1, self._continuous)

        terms: dict[str, Tensor] = {}
        with torch.no_grad():
            noise = self._noise(len(batch))
            next_action, next_density = self.actor.sample(next_state, noise)
            target = self._critic_target(next_state, next_action, next_density, reward, discount)
        total = self._critic_loss(state, action, target, terms)
        if self.grasp_critic is not None:
            total = total + self._grasp_loss(batch, state, next_state, reward, discount, terms)
        if actor:
            total = total + self._actor_loss(state, terms)
            terms["entropy"] = -next_density.mean()
            terms["temperature"] = F.softplus(self.raw_temperature.detach())
        metrics = self._checked(terms)

        names = [n for n in self.networks if actor or n not in ("actor", "temperature")]
        for name in names:
            self.optimizers[name].zero_grad()
        total.backward()  # each loss reaches the parameters of its own network only
        if actor:
            self._temperature_gradient(metrics["entropy"])
        for name in names:
            self.optimizers[name].step()
        with torch.no_grad():
            for targets, online in self._polyak:
                torch._foreach_lerp_(targets, online, self.config.tau)
        return metrics

    def _critic_target(
        self,
        next_state: Tensor,
        next_action: Tensor,
        next_density: Tensor,
        reward: Tensor,
        discount: Tensor,
    ) -> Tensor:
        """(n,) r + discount * mask * min over the target critics."""
        q = self.target_critic(next_state, next_action)[..., 0]
        if self.config.target_subset:
            order = torch.randperm(len(q), generator=self.generator, device=self.device)
            q = q[order[: self.config.target_subset]]
        value = q.amin(0)
        if self.config.backup_entropy:
            value = value - F.softplus(self.raw_temperature.detach()) * next_density
        target = torch.addcmul(reward, discount, value)
        return target.clamp(*self.config.value_range) if self.config.value_range else target

    def _critic_loss(
        self, state: Tensor, action: Tensor, target: Tensor, terms: dict[str, Tensor]
    ) -> Tensor:
        q = self.critic(state, action)[..., 0]
        loss = (q - target).square().mean()
        terms["critic_loss"] = loss
        terms["q_mean"] = q.mean()
        terms["target_q_mean"] = target.mean()
        return loss

    def _grasp_loss(
        self,
        batch: Batch,
        state: Tensor,
        next_state: Tensor,
        reward: Tensor,
        discount: Tensor,
        terms: dict[str, Tensor],
    ) -> Tensor:
        assert self.grasp_critic is not None and self.target_grasp_critic is not None
        taken = self._tensor(self.spaces.grasp_index(batch.action))
        penalty = self._tensor(batch.grasp_penalty).sum(-1)
        with torch.no_grad():
            best = self.grasp_critic(next_state)[0].argmax(-1, keepdim=True)
            value = self.target_grasp_critic(next_state)[0].gather(1, best)[:, 0]
            target = torch.addcmul(reward + penalty, discount, value)
        q = self.grasp_critic(state)[0].gather(1, taken[:, None])[:, 0]
        loss = (q - target).square().mean()
        terms["grasp_critic_loss"] = loss
        terms["grasp_q_mean"] = q.mean()
        terms["grasp_penalty_mean"] = penalty.mean()
        return loss

    def _actor_loss(self, state: Tensor, terms: dict[str, Tensor]) -> Tensor:
        action, density = self.actor.sample(state, self._noise(len(state)))
        q = self.critic(state, action, frozen=True)[..., 0]
        value = q.mean(0) if self.config.actor_q == "mean" else q.amin(0)
        temperature = F.softplus(self.raw_temperature.detach())
        loss = (temperature * density - value).mean()
        terms["actor_loss"] = loss
        return loss

    def _temperature_gradient(self, entropy: float) -> None:
        """Gradient of softplus(raw) * (entropy - target) with respect to raw."""
        raw = self.raw_temperature.detach()
        self.raw_temperature.grad = torch.sigmoid(raw) * (entropy - self.target_entropy)

    def _noise(self, n: int) -> Tensor:
        size = (n, self.spaces.action_dim)
        return torch.randn(size, generator=self.generator, device=self.device)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _checked(self, terms: dict[str, Tensor]) -> dict[str, float]:
        values = torch.stack([t.detach() for t in terms.values()]).tolist()
        metrics = dict(zip(terms, values, strict=True))
        bad = [name for name, value in metrics.items() if not math.isfinite(value)]
        if bad:
            raise TrainingError(f"{', '.join(bad)} not finite: {metrics}")
        return metrics

    # ------------------------------------------------------------------------------ acting

    @torch.no_grad()
    def act(
        self,
        observation: Mapping[str, Any],
        deterministic: bool = False,
        generator: torch.Generator | None = None,
    ) -> Array:
        """Action for one observation.

        Args:
            observation: name -> array, see `Spaces.observation`.
            deterministic: mode of the policy instead of a sample.
            generator: source of randomness; default: the agent's own.

        Returns:
            (action_size,) float32 in [-1, 1].
        """
        generator = generator or self.generator
        state = self._tensor(self.normalizer(self.spaces.flatten(observation)))[None]
        mean, log_std = self.actor(state)
        if not deterministic:
            noise = torch.randn(mean.shape, generator=generator, device=self.device)
            mean = torch.addcmul(mean, log_std.exp(), noise)
        continuous = torch.tanh(mean)[0].cpu().numpy()
        if self.grasp_critic is None:
            return continuous
        index = int(self.grasp_critic(state)[0, 0].argmax())
        if not deterministic and self.config.grasp_epsilon:
            draw = torch.rand(1, generator=generator, device=self.device).item()
            if draw < self.config.grasp_epsilon:
                outcomes = self.spaces.grasp_outcomes
                index = int(torch.randint(outcomes, (1,), generator=generator).item())
        return self.spaces.join_action(continuous, index)

    def acting_parameters(self) -> dict[str, Array]:
        """Copies of what acting needs: actor, grasp critic, normalisation (see `policy`)."""
        arrays = {f"actor.{n}": p for n, p in self.actor.net.named_parameters()}
        if self.grasp_critic is not None:
            arrays |= {f"grasp.{n}": p for n, p in self.grasp_critic.named_parameters()}
        result = {name: p.detach().cpu().numpy().copy() for name, p in arrays.items()}
        if self.config.normalize:
            result["normalizer.mean"] = self.normalizer.mean.copy()
            result["normalizer.scale"] = self.normalizer.scale.copy()
        return result

    # ------------------------------------------------------------------------------- state

    def _tensors(self) -> dict[str, Tensor]:
        """Every tensor that an update changes, by name; not copies."""
        result: dict[str, Tensor] = {}
        for name, network in self.networks.items():
            result |= {f"{name}.{k}": p.detach() for k, p in network.named_parameters()}
            result |= {f"adam.{name}.{k}": t for k, t in self.optimizers[name].tensors()}
        for name, target in self.targets.items():
            result |= {f"target.{name}.{k}": p for k, p in target.named_parameters()}
        return result

    def state(self) -> dict[str, Array]:
        """Everything an update depends on: parameters, targets, optimisers, generator."""
        arrays = {name: t.cpu().numpy().copy() for name, t in self._tensors().items()}
        arrays["generator"] = self.generator.get_state().numpy().copy()
        return arrays | {f"normalizer.{k}": v for k, v in self.normalizer.state().items()}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Restore the output of `state`.

        Raises:
            StateError: names or shapes differ from this agent's; nothing is changed.
        """
        self._compare(self.state(), arrays)
        for name, tensor in self._tensors().items():
            tensor.copy_(torch.from_numpy(np.array(arrays[name])))
        self.generator.set_state(torch.from_numpy(np.array(arrays["generator"])))
        self.normalizer.load_state({k: arrays[f"normalizer.{k}"] for k in self.normalizer.state()})

    @staticmethod
    def _compare(own: Mapping[str, Array], other: Mapping[str, Array]) -> None:
        problems = [f"{name} is missing" for name in own.keys() - other.keys()]
        problems += [f"{name} is unknown" for name in other.keys() - own.keys()]
        problems += [
            f"{name} has shape {other[name].shape}, not {own[name].shape}"
            for name in own.keys() & other.keys()
            if own[name].shape != other[name].shape or own[name].dtype != other[name].dtype
        ]
        if problems:
            more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise StateError(f"state does not fit: {'; '.join(sorted(problems)[:5])}{more}")
