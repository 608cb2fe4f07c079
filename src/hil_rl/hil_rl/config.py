"""Configurations, the presets, and how they deviate from HIL-SERL.

The preset ``hil_serl`` has the constants that the published HIL-SERL code has in force. Where
this library differs on purpose, the difference has a name and a reason in `DEVIATIONS`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

DEVIATIONS: dict[str, str] = {
    "truncation_bootstraps": (
        "HIL-SERL stores a time-out as terminal. Here only `terminated` masks the target: a "
        "time-out says nothing about the value of the state in which it happens."
    ),
    "per_critic_heads": (
        "HIL-SERL's two critics share the output layer by accident (only the hidden layers are "
        "mapped over the ensemble), so they agree more than the minimum over them assumes."
    ),
    "one_step_per_network": (
        "HIL-SERL applies every Adam step with a zero loss to networks that are not listed, so "
        "momentum moves the actor during critic-only updates. Here a network that is not "
        "updated does not move."
    ),
    "critic_targets_only": (
        "HIL-SERL averages all parameters into the target, the actor's and temperature's too, "
        "which nothing reads. Here only critics have targets."
    ),
    "continuous_target_entropy": (
        "HIL-SERL's target entropy is -dim/2 of the full action, gripper elements included, "
        "although the Gaussian policy does not cover them. Here: -action_dim/2, times "
        "`target_entropy_scale`."
    ),
    "encoder_per_network": (
        "HIL-SERL trains one state encoder with several optimisers whose steps add up. Here "
        "actor, critic and grasp critic each own their state encoder (one layer)."
    ),
    "image_encoder_one_step": (
        "HIL-SERL's image layers are moved by the optimisers of critic and grasp critic, whose "
        "steps add up. Here they are a network of their own: the gradients add up and one step is "
        "taken. As in HIL-SERL, the target critics have an averaged copy and the actor reads the "
        "embedding without gradient."
    ),
    "no_pooling_dropout": (
        "HIL-SERL drops out 10 % of the pooled features, but only where the actor reads them, so "
        "actor and critics see different embeddings. Here they share one, and one forward pass."
    ),
    "stored_augmentations": (
        "HIL-SERL shifts every sampled image anew and runs the frozen backbone for each. Here the "
        "features of `VisionConfig.augmentations` shifts are computed once, when a frame arrives, "
        "and a sample draws one of them: the same computation, some hundred times less of it."
    ),
    "bfloat16_products": (
        "Where the CPU computes in bfloat16, products in hidden layers have bfloat16 operands "
        "while training (`SACConfig.precision`); parameters, sums, LayerNorm and heads are "
        "float32."
    ),
    "reduced_channels": (
        "HIL-SERL pools all channels of the backbone. Here they are reduced by a projection on "
        "the principal components of the first frames (`VisionConfig.channels`; 0: all)."
    ),
    "shared_next_sample": (
        "HIL-SERL draws a second action at the next observation for the temperature loss. Here "
        "the sample of the critic target is used for both: same distribution, one forward less."
    ),
    "discounted_entropy_backup": (
        "With `backup_entropy`, HIL-SERL forgets to multiply the entropy term by "
        "discount * mask. Here it is part of the discounted value. (Off in the preset.)"
    ),
    "bounded_update_ratio": (
        "HIL-SERL's learner runs as fast as it can, also while a person resets the scene. Here "
        "the number of updates per environment step is bounded from both sides "
        "(`TrainerConfig.max_updates_per_env_step`, `min_updates_per_env_step`)."
    ),
}
"""Deliberate differences from the published code: name -> reason."""

PRECISIONS = ("auto", "float32", "bfloat16")

_Config = TypeVar("_Config", bound="_Base")


@dataclass(frozen=True)
class _Base:
    def replace(self: _Config, **overrides: Any) -> _Config:
        """Copy with other values; an unknown name raises ValueError and names the nearest."""
        return dataclasses.replace(self, **_checked(type(self), overrides))

    @classmethod
    def from_dict(cls: type[_Config], values: Mapping[str, Any]) -> _Config:
        """Configuration from plain data (YAML, JSON)."""
        return cls(**_checked(cls, values))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `from_dict` is the inverse."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}


def _checked(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    known = [field.name for field in dataclasses.fields(cls)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1) or known
            raise ValueError(f"{cls.__name__} has no {name!r}; did you mean {near[0]!r}?")
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class SACConfig(_Base):
    """The agent. Defaults are HIL-SERL's constants (preset ``hil_serl``).

    Attributes:
        discount: per control step; 0.97 to 0.985 in HIL-SERL's tasks.
        learning_rate: Adam, constant, for every named network.
        tau: Polyak rate of the target critics.
        hidden: widths of actor and critic; each layer is Dense -> LayerNorm -> tanh.
        grasp_hidden: widths of the grasp critic.
        grasp_activate_final: LayerNorm and tanh also after the grasp critic's last hidden layer.
            HIL-SERL leaves that layer linear.
        state_encoder: width of the Dense -> LayerNorm -> tanh layer in front; 0 for none.
        ensemble: number of critics.
        target_subset: how many random critics the target minimum is over; 0 for all.
        actor_q: "mean" over the critics in the actor loss (HIL-SERL) or "min" (SAC).
        backup_entropy: subtract the entropy term in the critic target.
        value_range: lowest and highest discounted return that is possible; critic targets are
            clipped to it. Empty (HIL-SERL): no clipping. A sparse success reward has (0, 1).
        temperature_init: initial entropy temperature (softplus parametrised).
        target_entropy_scale: target entropy is -scale * action_dim / 2 (nats; negative: the
            temperature rises while the policy's entropy is below the target).
        std_min: lower clip of the policy's standard deviation (before tanh).
        std_max: upper clip.
        reward_bias: added to every reward.
        grasp_epsilon: probability of a random gripper command when exploring; HIL-SERL: 0.
        gradient_clip: global norm per named network; 0 for none.
        normalize: standardise state vectors with running statistics of the training batches;
            HIL-SERL does not. Recommended where tensors have mixed scales.
        normalize_updates: the statistics are fixed after this many batches.
        normalize_min_std: floor of the standard deviation, in the units of each element.
        normalize_clip: standardised elements are clipped to plus or minus this.
        input_bias: size of the first layer's initial biases relative to the effect of
            standardised inputs; HIL-SERL: 0. Without biases a Dense -> LayerNorm layer sees only
            the direction of its input; that is nearly all for raw inputs (far from zero) but
            discontinuous at the mean of standardised ones, so 1 belongs with `normalize`.
        precision: of the products in hidden layers while training: "auto" (bfloat16 operands where
            the CPU computes in it, twice as fast), "float32" or "bfloat16". Parameters, sums,
            LayerNorm and heads are float32 in any case.
    """

    discount: float = 0.97
    learning_rate: float = 3e-4
    tau: float = 0.005
    hidden: tuple[int, ...] = (256, 256)
    grasp_hidden: tuple[int, ...] = (128, 128)
    grasp_activate_final: bool = False
    state_encoder: int = 64
    ensemble: int = 2
    target_subset: int = 0
    actor_q: str = "mean"
    backup_entropy: bool = False
    value_range: tuple[float, ...] = ()
    temperature_init: float = 0.01
    target_entropy_scale: float = 1.0
    std_min: float = 1e-5
    std_max: float = 5.0
    reward_bias: float = 0.0
    grasp_epsilon: float = 0.0
    gradient_clip: float = 0.0
    normalize: bool = False
    normalize_updates: int = 5_000
    normalize_min_std: float = 1e-3
    normalize_clip: float = 5.0
    input_bias: float = 0.0
    precision: str = "auto"

    def __post_init__(self) -> None:
        _require(0.0 <= self.discount < 1.0, f"discount {self.discount} is not in [0, 1)")
        _require(self.learning_rate > 0.0, f"learning_rate {self.learning_rate} must be > 0")
        _require(0.0 < self.tau <= 1.0, f"tau {self.tau} is not in (0, 1]")
        widths = (*self.hidden, *self.grasp_hidden)
        _require(
            min(len(self.hidden), len(self.grasp_hidden), *widths) > 0,
            f"hidden {self.hidden} and grasp_hidden {self.grasp_hidden} need positive widths",
        )
        _require(self.state_encoder >= 0, f"state_encoder {self.state_encoder} must be >= 0")
        _require(self.ensemble >= 1, f"ensemble {self.ensemble} must be at least 1")
        _require(
            0 <= self.target_subset <= self.ensemble,
            f"target_subset {self.target_subset} is not in [0, ensemble {self.ensemble}]",
        )
        _require(self.actor_q in ("mean", "min"), f"actor_q {self.actor_q!r}: mean or min")
        _require(
            not self.value_range
            or (len(self.value_range) == 2 and self.value_range[0] < self.value_range[1]),
            f"value_range {self.value_range} must be empty or (low, high)",
        )
        _require(
            not (self.value_range and self.backup_entropy),
            "value_range bounds returns, backup_entropy adds to them: use one of the two",
        )
        _require(self.temperature_init > 0.0, "temperature_init must be > 0")
        _require(
            0.0 < self.std_min < self.std_max,
            f"std_min {self.std_min} must be positive and below std_max {self.std_max}",
        )
        _require(0.0 <= self.grasp_epsilon <= 1.0, "grasp_epsilon is a probability")
        _require(self.gradient_clip >= 0.0, "gradient_clip must be >= 0")
        _require(self.input_bias >= 0.0, "input_bias must be >= 0")
        _require(
            self.precision in PRECISIONS, f"precision {self.precision!r}, not one of {PRECISIONS}"
        )
        _require(
            self.normalize_min_std > 0.0 and self.normalize_clip > 0.0,
            "normalize_min_std and normalize_clip must be > 0",
        )

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> SACConfig:
        """A named configuration, with overrides.

        Raises:
            ValueError: unknown preset or override (names the nearest known one).
        """
        if name not in SAC_PRESETS:
            near = difflib.get_close_matches(name, list(SAC_PRESETS), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"no preset {name!r}, there are {sorted(SAC_PRESETS)}{hint}")
        return cls(**SAC_PRESETS[name]).replace(**overrides)


SAC_PRESETS: dict[str, dict[str, Any]] = {
    "hil_serl": {},
    "hil_serl_normalized": {"normalize": True, "input_bias": 1.0},
    # For a sparse success reward and few steps: with HIL-SERL's two critics the values of states
    # that were never solved settle near 0.8, and the actor has no gradient for thousands of steps.
    # Four critics, the minimum in both losses and the known range of the return prevent that.
    "sparse": {
        "normalize": True,
        "input_bias": 1.0,
        "discount": 0.95,
        "tau": 0.01,
        "ensemble": 4,
        "actor_q": "min",
        "value_range": (0.0, 1.0),
    },
}
"""Preset name -> values that differ from the defaults."""


@dataclass(frozen=True)
class VisionConfig(_Base):
    """What the agent makes of images. Defaults: a frozen backbone whose features are stored.

    Attributes:
        backbone: "efficientnet_lite0", "resnet10" (HIL-SERL's), "timm:NAME" (needs timm) or
            "trained": a small convolutional network that is trained with the critics.
        weights: file with the backbone's weights; empty: those of the installed package
            (efficientnet_lite0) or of timm's cache. See `hil_rl.vision.load_backbone`.
        precision: of the backbone: "auto" (bfloat16 where the CPU computes in it), "float32" or
            "bfloat16".
        channels: that the backbone's are reduced to by a fixed projection; 0: all are kept.
        fit_steps: stored steps that the projection is fitted to; none is sampled before.
        augmentations: random shifts of each frame whose features are stored. A "trained" backbone
            shifts anew for every sample.
        shift: largest shift, pixels; all cameras of a step are shifted alike.
        pooled: learned spatial embeddings per channel.
        embedding: width of the layer behind the pooling, per camera.
        filters: widths of the layers of a "trained" backbone, each with half the resolution.
    """

    backbone: str = "efficientnet_lite0"
    weights: str = ""
    precision: str = "auto"
    channels: int = 64
    fit_steps: int = 100
    augmentations: int = 2
    shift: int = 4
    pooled: int = 8
    embedding: int = 256
    filters: tuple[int, ...] = (32, 64, 64, 64)

    def __post_init__(self) -> None:
        _require(bool(self.backbone), "backbone is empty")
        _require(
            self.precision in PRECISIONS, f"precision {self.precision!r}, not one of {PRECISIONS}"
        )
        _require(self.channels >= 0 and self.shift >= 0, "channels and shift must be >= 0")
        _require(
            min(self.fit_steps, self.augmentations, self.pooled, self.embedding) >= 1,
            "fit_steps, augmentations, pooled and embedding must be at least 1",
        )
        _require(min(self.filters, default=0) >= 1, f"filters {self.filters} need widths >= 1")

    @property
    def trained(self) -> bool:
        """The convolutional layers are trained: images are stored, not features."""
        return self.backbone == "trained"


METHODS = ("rlpd", "sac", "bc", "hg_dagger")
"""Learning methods, see `hil_rl.methods`."""


@dataclass(frozen=True)
class TrainerConfig(_Base):
    """The training loop.

    One *update* is one learner step: `cta_ratio` critic updates, the last of them with actor and
    temperature.

    Attributes:
        batch_size: transitions per critic update.
        demo_ratio: share of a batch from the "demo" view; 0 ignores demonstrations, 1 is for
            imitation: nothing else is sampled, and nothing is done without demonstrations.
        cta_ratio: critic updates per actor update.
        training_starts: online steps in the store before the first update.
        max_updates_per_env_step: the learner waits when it is ahead of this; 0: no bound
            (HIL-SERL).
        min_updates_per_env_step: actors wait when the learner is behind this; 0: no bound
            (HIL-SERL).
        env_step_slack: steps that actors may be ahead of the lower bound.
        initial_updates: credit of updates as soon as training starts.
        max_updates: no more updates after these; 0: no end.
    """

    batch_size: int = 256
    demo_ratio: float = 0.5
    cta_ratio: int = 2
    training_starts: int = 100
    max_updates_per_env_step: float = 2.0
    min_updates_per_env_step: float = 0.0
    env_step_slack: int = 20
    initial_updates: int = 0
    max_updates: int = 0

    def __post_init__(self) -> None:
        _require(self.batch_size >= 2, f"batch_size {self.batch_size} must be at least 2")
        _require(0.0 <= self.demo_ratio <= 1.0, f"demo_ratio {self.demo_ratio} not in [0, 1]")
        _require(self.cta_ratio >= 1, f"cta_ratio {self.cta_ratio} must be at least 1")
        _require(self.training_starts >= 0, "training_starts must be >= 0")
        low, high = self.min_updates_per_env_step, self.max_updates_per_env_step
        _require(
            low >= 0.0 and high >= 0.0 and math.isfinite(low + high),
            f"max_updates_per_env_step {high} and min_updates_per_env_step {low} must be >= 0",
        )
        _require(
            high == 0.0 or low <= high,
            f"min_updates_per_env_step {low} is above max_updates_per_env_step {high}",
        )
        _require(self.env_step_slack >= 1, "env_step_slack must be at least 1")
        _require(self.initial_updates >= 0, "initial_updates must be >= 0")
        _require(self.max_updates >= 0, "max_updates must be >= 0")


@dataclass(frozen=True)
class BCConfig(_Base):
    """Behaviour cloning. Defaults are those of HIL-SERL's baseline.

    Attributes:
        hidden: widths of the policy (Dense -> Dropout -> LayerNorm -> tanh).
        grasp_hidden: widths of the gripper classifier.
        dropout: probability, while training.
        learning_rate: Adam.
        batch_size: transitions per step.
        steps: gradient steps.
        std_min: lower clip of the standard deviation (the Gaussian is not squashed).
        std_max: upper clip.
        drop_idle: leave out transitions whose continuous action is zero.
        normalize: standardise state vectors with the statistics of the demonstrations.
        normalize_updates: the statistics are fixed after this many batches.
        normalize_min_std: floor of the standard deviation.
        normalize_clip: standardised elements are clipped to plus or minus this.
    """

    hidden: tuple[int, ...] = (512, 512, 512)
    grasp_hidden: tuple[int, ...] = (128, 128)
    dropout: float = 0.25
    learning_rate: float = 3e-4
    batch_size: int = 256
    steps: int = 20_000
    std_min: float = 1e-5
    std_max: float = 5.0
    drop_idle: bool = True
    normalize: bool = False
    normalize_updates: int = 5_000
    normalize_min_std: float = 1e-3
    normalize_clip: float = 5.0

    def __post_init__(self) -> None:
        _require(0.0 <= self.dropout < 1.0, f"dropout {self.dropout} is not in [0, 1)")
        _require(min(self.batch_size, self.steps) >= 1, "batch_size and steps must be >= 1")
        _require(0.0 < self.std_min < self.std_max, "std_min must be positive, below std_max")


HINDSIGHT_STRATEGIES = ("final", "future", "episode", "random")


@dataclass(frozen=True)
class HindsightConfig(_Base):
    """Hindsight experience replay. All of it may change while training runs.

    Attributes:
        enabled: relabel at all.
        ratio: share of each batch whose goal is replaced; the rest keeps the original goals.
        strategies: weight of each source of goals: "future" (a later state of the episode),
            "final" (its newest state), "episode" (any of its states), "random" (a state that
            another transition of the same batch led to).
        schedule: (progress, ratio) points, linear in between; replaces `ratio`. Empty: constant.
        schedule_over: what progress is: "steps" (training steps) or "success" (share of the
            newest training episodes).
        band: keep a new goal only if its distance is within (low, high) times that of the original
            goal; otherwise the transition stays as it is. Empty: no filter. Cuts off goals that
            are reached already and far ones; costs precision late in training.
        keep_reached: probability of keeping a new goal that the state before the action satisfies
            already. Nothing is to be learned from most of them where an object did not move.
        parts: names of the desired parts that are replaced; empty: all.
    """

    enabled: bool = True
    ratio: float = 0.5
    strategies: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"future": 1.0})
    schedule: tuple[tuple[float, float], ...] = ()
    schedule_over: str = "steps"
    band: tuple[float, ...] = ()
    keep_reached: float = 1.0
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        points = tuple((float(at), float(ratio)) for at, ratio in self.schedule)
        object.__setattr__(self, "schedule", points)
        places, ratios = [at for at, _ in points], [ratio for _, ratio in points]
        _require(
            all(0.0 <= ratio <= 1.0 for ratio in (self.ratio, *ratios)),
            f"ratio {self.ratio} and those of schedule {points} are shares in [0, 1]",
        )
        _require(places == sorted(set(places)), f"schedule {points}: progress must rise")
        _require(
            self.schedule_over in ("steps", "success"),
            f"schedule_over {self.schedule_over!r}: steps or success",
        )
        unknown = sorted(set(self.strategies) - set(HINDSIGHT_STRATEGIES))
        _require(
            not unknown, f"no strategy {unknown}, there are {', '.join(HINDSIGHT_STRATEGIES)}"
        )
        weights = list(self.strategies.values())
        _require(
            min(weights, default=-1.0) >= 0.0 and sum(weights) > 0.0,
            f"strategies {dict(self.strategies)} need weights >= 0, not all 0",
        )
        _require(
            not self.band or (len(self.band) == 2 and 0.0 <= self.band[0] < self.band[1]),
            f"band {self.band} must be empty or (low, high) with 0 <= low < high",
        )
        _require(0.0 <= self.keep_reached <= 1.0, "keep_reached is a probability")
