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

With images, the embedding of the image encoder is an input beside the state. It is a network of
its own: the losses of critic and grasp critic train it, the actor reads it without gradient, and
the target critics have their own averaged copy.

All losses are taken at the same parameters, then each named network takes its own Adam step,
then the target critics follow by Polyak averaging.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .architecture import MLPShape
from .config import SACConfig, VisionConfig
from .features import Projection
from .networks import MLP, Actor, ImageEncoder
from .normalizer import Normalizer
from .optim import Adam
from .policy import ActorArchitecture
from .spaces import Array, SpaceError, Spaces
from .store import Batch
from .vision import FrameEncoder, shift_frames, uses_bfloat16, vision_shape
from .vision import frame_encoder as make_frame_encoder


class TrainingError(RuntimeError):
    """An update gave values that are not finite; no parameter was changed by it."""


class StateError(ValueError):
    """A saved state does not fit this agent."""


@dataclass
class _Embeddings:
    """Of the images of a batch; all None without images.

    Attributes:
        now: (n, embedding) of the observation, with gradient.
        following: of the next observation, by the same encoder.
        target: of the next observation, by the target encoder.
    """

    now: Tensor | None = None
    following: Tensor | None = None
    target: Tensor | None = None


_PROJECTION = ("vision.projection_mean", "vision.projection_weight")


def saved_projection(arrays: Mapping[str, Array]) -> Projection | None:
    """The projection in the saved state of an agent or of a trainer; None if there is none."""
    found = {name.removeprefix("vision."): arrays[name] for name in _PROJECTION if name in arrays}
    return Projection.from_arrays(found) if len(found) == len(_PROJECTION) else None


class SACAgent:
    """Actor, critics, temperature and their optimisers.

    Args:
        spaces: observation and action layout.
        config: see `SACConfig`.
        seed: of initial values and of all sampling; the same seed and batches give the same
            parameters, bit for bit on one machine.
        device: of the networks.
        vision: what to make of images; needed if there are any.
        frame_encoder: frozen backbone that is shared with a `FeatureCache`; default: an own one.

    Attributes:
        networks: name -> module; each has its own optimiser.
        frame_encoder: None without images or if the convolutions are trained.
    """

    def __init__(
        self,
        spaces: Spaces,
        config: SACConfig,
        seed: int,
        device: str = "cpu",
        vision: VisionConfig | None = None,
        frame_encoder: FrameEncoder | None = None,
    ) -> None:
        if spaces.images and vision is None:
            raise SpaceError(f"no `vision` for the images {sorted(spaces.images)}: or leave them")
        if not spaces.vector_size:
            raise SpaceError("the observation has no vector tensor")
        self.spaces = spaces
        self.config = config
        self.vision = vision if spaces.images else None
        self.device = torch.device(device)
        self.frame_encoder = frame_encoder
        shape = None
        if self.vision is not None:
            if frame_encoder is None:
                self.frame_encoder = make_frame_encoder(spaces, self.vision)
            shape = vision_shape(spaces, self.vision, self.frame_encoder)
        self.architecture = ActorArchitecture.from_config(spaces, config, shape)
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
        largest = self.vision.shift if self.vision is not None else 0
        self._no_shift = np.full((1, 2), largest, np.uint8)
        self._continuous = torch.tensor(spaces.continuous_indices, device=self.device)

    def _build(self, acting: np.random.Generator, other: np.random.Generator) -> None:
        c, spaces, vision = self.config, self.spaces, self.architecture.vision
        critic = MLPShape(
            spaces.vector_size,
            1,
            c.hidden,
            encoder=c.state_encoder,
            embedding=vision.outputs if vision is not None else 0,
            action=spaces.action_dim,
            members=c.ensemble,
        )
        shape, bias = self.architecture.actor_shape, c.input_bias
        low = uses_bfloat16(c.precision)
        self.actor = Actor(shape, c.std_min, c.std_max, acting, bias, low)
        self.critic = MLP(critic, other, bias, low)
        grasp = self.architecture.grasp_shape
        self.grasp_critic = MLP(grasp, acting, bias, low) if grasp is not None else None
        self.encoder = ImageEncoder(vision, acting, low) if vision is not None else None
        # softplus(raw) = temperature
        raw = c.temperature_init + math.log(-math.expm1(-c.temperature_init))
        self.raw_temperature = nn.Parameter(torch.tensor(raw))
        temperature = nn.ParameterDict({"raw": self.raw_temperature})
        self.networks: dict[str, nn.Module] = {"actor": self.actor, "critic": self.critic}
        if self.grasp_critic is not None:
            self.networks["grasp_critic"] = self.grasp_critic
        if self.encoder is not None:
            self.networks["encoder"] = self.encoder
        self.networks["temperature"] = temperature
        for network in self.networks.values():
            network.to(self.device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_grasp_critic = copy.deepcopy(self.grasp_critic)
        self.targets: dict[str, nn.Module] = {"critic": self.target_critic}
        if self.target_grasp_critic is not None:
            self.targets["grasp_critic"] = self.target_grasp_critic.requires_grad_(False)
        self.target_encoder = copy.deepcopy(self.encoder)
        if self.target_encoder is not None:
            self.targets["encoder"] = self.target_encoder.requires_grad_(False)
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
        seen = self._embeddings(batch)
        with torch.no_grad():
            noise = self._noise(len(batch))
            next_action, next_density = self.actor.sample(next_state, noise, seen.following)
            target = self._critic_target(
                next_state, next_action, next_density, reward, discount, seen.target
            )
        total = self._critic_loss(state, action, target, seen, terms)
        if self.grasp_critic is not None:
            total = total + self._grasp_loss(
                batch, state, next_state, reward, discount, seen, terms
            )
        if actor:
            total = total + self._actor_loss(state, seen, terms)
            terms["entropy"] = -next_density.mean()
            terms["temperature"] = F.softplus(self.raw_temperature.detach())
        metrics = self._checked(terms)

        names = [n for n in self.networks if actor or n not in ("actor", "temperature")]
        for name in names:
            self.optimizers[name].zero_grad()
        total.backward()  # a loss reaches its own network only; the encoder gets the critics'
        if actor:
            self._temperature_gradient(metrics["entropy"])
        for name in names:
            self.optimizers[name].step()
        with torch.no_grad():
            for targets, online in self._polyak:
                torch._foreach_lerp_(targets, online, self.config.tau)
        return metrics

    def _embeddings(self, batch: Batch) -> _Embeddings:
        """What the image encoders make of a batch's frames; nothing without images."""
        if self.encoder is None or self.target_encoder is None:
            return _Embeddings()
        if self.frame_encoder is not None and batch.frames.dtype == np.uint8:
            self.frame_encoder.fit(batch.frames.reshape(-1, *batch.frames.shape[2:]))
        now = self.encoder(self._frames(batch.frames, batch.shift))
        with torch.no_grad():
            frames = self._frames(batch.next_frames, batch.next_shift)
            return _Embeddings(now, self.encoder(frames), self.target_encoder(frames))

    def _frames(self, frames: Array, shift: Array) -> Tensor:
        """Input of the image encoder: stored features, or what is made of stored images."""
        assert self.vision is not None
        if frames.dtype == np.uint8:
            frames = shift_frames(frames, shift, self.vision.shift)
            if self.frame_encoder is not None:
                features = self.frame_encoder(frames.reshape(-1, *frames.shape[2:]))
                frames = features.reshape(*frames.shape[:2], *features.shape[1:])
        return self._tensor(frames)

    def _critic_target(
        self,
        next_state: Tensor,
        next_action: Tensor,
        next_density: Tensor,
        reward: Tensor,
        discount: Tensor,
        embedding: Tensor | None,
    ) -> Tensor:
        """(n,) r + discount * mask * min over the target critics."""
        q = self.target_critic(next_state, next_action, embedding=embedding)[..., 0]
        if self.config.target_subset:
            order = torch.randperm(len(q), generator=self.generator, device=self.device)
            q = q[order[: self.config.target_subset]]
        value = q.amin(0)
        if self.config.backup_entropy:
            value = value - F.softplus(self.raw_temperature.detach()) * next_density
        target = torch.addcmul(reward, discount, value)
        return target.clamp(*self.config.value_range) if self.config.value_range else target

    def _critic_loss(
        self,
        state: Tensor,
        action: Tensor,
        target: Tensor,
        seen: _Embeddings,
        terms: dict[str, Tensor],
    ) -> Tensor:
        q = self.critic(state, action, embedding=seen.now)[..., 0]
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
        seen: _Embeddings,
        terms: dict[str, Tensor],
    ) -> Tensor:
        assert self.grasp_critic is not None and self.target_grasp_critic is not None
        taken = self._tensor(self.spaces.grasp_index(batch.action))
        penalty = self._tensor(batch.grasp_penalty).sum(-1)
        with torch.no_grad():
            best = self.grasp_critic(next_state, embedding=seen.following)[0]
            best = best.argmax(-1, keepdim=True)
            value = self.target_grasp_critic(next_state, embedding=seen.target)[0]
            value = value.gather(1, best)[:, 0]
            target = torch.addcmul(reward + penalty, discount, value)
        q = self.grasp_critic(state, embedding=seen.now)[0].gather(1, taken[:, None])[:, 0]
        loss = (q - target).square().mean()
        terms["grasp_critic_loss"] = loss
        terms["grasp_q_mean"] = q.mean()
        terms["grasp_penalty_mean"] = penalty.mean()
        return loss

    def _actor_loss(self, state: Tensor, seen: _Embeddings, terms: dict[str, Tensor]) -> Tensor:
        embedding = None if seen.now is None else seen.now.detach()
        action, density = self.actor.sample(state, self._noise(len(state)), embedding)
        q = self.critic(state, action, frozen=True, embedding=embedding)[..., 0]
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
        embedding = None
        if self.encoder is not None:
            images = self.spaces.stack_images(observation)
            embedding = self.encoder(self._frames(images[None], self._no_shift))
        mean, log_std = self.actor(state, embedding=embedding)
        if not deterministic:
            noise = torch.randn(mean.shape, generator=generator, device=self.device)
            mean = torch.addcmul(mean, log_std.exp(), noise)
        continuous = torch.tanh(mean)[0].cpu().numpy()
        if self.grasp_critic is None:
            return continuous
        index = int(self.grasp_critic(state, embedding=embedding)[0, 0].argmax())
        if not deterministic and self.config.grasp_epsilon:
            draw = torch.rand(1, generator=generator, device=self.device).item()
            if draw < self.config.grasp_epsilon:
                outcomes = self.spaces.grasp_outcomes
                index = int(torch.randint(outcomes, (1,), generator=generator).item())
        return self.spaces.join_action(continuous, index)

    def acting_parameters(self) -> dict[str, Array]:
        """Copies of what acting needs, see `hil_rl.policy`: no backbone, no critic."""
        arrays = {f"actor.{n}": p for n, p in self.actor.net.named_parameters()}
        if self.grasp_critic is not None:
            arrays |= {f"grasp.{n}": p for n, p in self.grasp_critic.named_parameters()}
        result = {name: p.detach().cpu().numpy().copy() for name, p in arrays.items()}
        if (vision := self.architecture.vision) is not None and self.encoder is not None:
            encoder = self.encoder.named_parameters()
            result |= {f"vision.{n}": p.detach().cpu().numpy().copy() for n, p in encoder}
            fixed = vision.fixed().items()  # zeros until the projection is fitted
            result |= {f"vision.{n}": np.zeros(size, np.float32) for n, size in fixed}
            result |= self._projection()
        if self.config.normalize:
            result["normalizer.mean"] = self.normalizer.mean.copy()
            result["normalizer.scale"] = self.normalizer.scale.copy()
        return result

    # ------------------------------------------------------------------------------- state

    def _projection(self) -> dict[str, Array]:
        """Arrays of the fixed projection; empty without one, or before it is fitted."""
        if self.frame_encoder is None or self.frame_encoder.projection is None:
            return {}
        arrays = self.frame_encoder.projection.arrays()
        return {f"vision.{name}": array.copy() for name, array in arrays.items()}

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
        arrays |= self._projection()
        return arrays | {f"normalizer.{k}": v for k, v in self.normalizer.state().items()}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Restore the output of `state`.

        Raises:
            StateError: names or shapes differ from this agent's, or the features in the store
                were made with another projection; nothing is changed.
        """
        projection, own = saved_projection(arrays), self._projection()
        shared = own.keys() & arrays.keys()
        if any(not np.array_equal(own[name], arrays[name]) for name in shared):
            raise StateError(
                "the features in the store were made with another projection: load that of the "
                "checkpoint (`saved_projection`) before the store is filled"
            )
        missing = {name for name in _PROJECTION if name not in arrays or name not in own}
        check_state(
            {n: a for n, a in self.state().items() if n not in missing},
            {n: a for n, a in arrays.items() if n not in missing},
        )
        if projection is not None and self.frame_encoder is not None:
            self.frame_encoder.projection = projection
        for name, tensor in self._tensors().items():
            tensor.copy_(torch.from_numpy(np.array(arrays[name])))
        self.generator.set_state(torch.from_numpy(np.array(arrays["generator"])))
        self.normalizer.load_state({k: arrays[f"normalizer.{k}"] for k in self.normalizer.state()})


def check_state(own: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    """Raise StateError, which names the difference, if `other` could not replace `own`."""
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
