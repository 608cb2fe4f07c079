"""Policies as they travel from learner to actor: safetensors bytes, NumPy inference.

Only what acting needs is in a policy: the actor, the grasp critic, the normalisation; with images
also their encoder and the fixed projection in front of it. The frozen backbone does not travel:
the policy names it and the digest of its weights, and whoever acts loads it.

This module does not import torch, unless a policy has images: then it asks `hil_rl.vision`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Set
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from .architecture import (
    MLPShape,
    VisionShape,
    embed,
    forward,
    initial_embedding,
    initial_parameters,
)
from .config import SACConfig, VisionConfig
from .features import Projection
from .normalizer import standardize
from .spaces import Array, SpaceError, Spaces

FORMAT = "hil_rl.policy/2"
MAX_BYTES = 64 * 2**20
_MAX_HEADER = 2**20
_MAX_PARAMETERS = 2**28


See = Callable[[Array, Mapping[str, Array]], Array]
"""Images (cameras, height, width, 3) and parameters -> (cameras, backbone_channels, positions)."""


class PolicyError(ValueError):
    """Bytes that are not a usable policy for these spaces; the message says why."""


@dataclass(frozen=True)
class ActorArchitecture:
    """What is needed to act with given parameters.

    Attributes:
        inputs: length of the state vector.
        action_dim: continuous dimensions.
        hidden: widths of the actor.
        state_encoder: width of the state encoder; 0 for none.
        std_min: lower clip of the standard deviation.
        std_max: upper clip.
        squash: the Gaussian is squashed by tanh; otherwise actions are clipped.
        grasp_outcomes: outputs of the gripper network; 0 for none.
        grasp_hidden: widths of the gripper network.
        grasp_activate_final: see `SACConfig`.
        grasp_epsilon: probability of a random gripper command when exploring.
        normalize_clip: bound of the normalised state; 0: no normalisation.
        vision: from images to what stands beside the state; None without images.
    """

    inputs: int
    action_dim: int
    hidden: tuple[int, ...]
    state_encoder: int
    std_min: float
    std_max: float
    squash: bool
    grasp_outcomes: int
    grasp_hidden: tuple[int, ...]
    grasp_activate_final: bool
    grasp_epsilon: float
    normalize_clip: float
    vision: VisionShape | None = None

    @staticmethod
    def from_config(
        spaces: Spaces, config: SACConfig, vision: VisionShape | None = None
    ) -> ActorArchitecture:
        """Architecture of the SAC agent."""
        return ActorArchitecture(
            inputs=spaces.vector_size,
            action_dim=spaces.action_dim,
            hidden=config.hidden,
            state_encoder=config.state_encoder,
            std_min=config.std_min,
            std_max=config.std_max,
            squash=True,
            grasp_outcomes=spaces.grasp_outcomes,
            grasp_hidden=config.grasp_hidden,
            grasp_activate_final=config.grasp_activate_final,
            grasp_epsilon=config.grasp_epsilon,
            normalize_clip=config.normalize_clip if config.normalize else 0.0,
            vision=vision,
        )

    @property
    def embedding(self) -> int:
        """Width of the embedding of the images; 0 without images."""
        return self.vision.outputs if self.vision is not None else 0

    @property
    def actor_shape(self) -> MLPShape:
        """Network that gives mean and log standard deviation."""
        return MLPShape(
            self.inputs,
            2 * self.action_dim,
            self.hidden,
            encoder=self.state_encoder,
            embedding=self.embedding,
            heads=2,
        )

    @property
    def grasp_shape(self) -> MLPShape | None:
        """Network that scores the gripper outcomes."""
        if not self.grasp_outcomes:
            return None
        return MLPShape(
            self.inputs,
            self.grasp_outcomes,
            self.grasp_hidden,
            encoder=self.state_encoder,
            embedding=self.embedding,
            activate_final=self.grasp_activate_final,
        )

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every array of a policy."""
        shapes = {f"actor.{n}": s for n, s in self.actor_shape.parameters().items()}
        if (grasp := self.grasp_shape) is not None:
            shapes |= {f"grasp.{n}": s for n, s in grasp.parameters().items()}
        if self.vision is not None:
            own = self.vision.trainable() | self.vision.fixed()
            shapes |= {f"vision.{n}": s for n, s in own.items()}
        if self.normalize_clip:
            shapes |= {f"normalizer.{n}": (self.inputs,) for n in ("mean", "scale")}
        return shapes


class Agent(Protocol):
    """What `encode` needs of an agent."""

    spaces: Spaces
    architecture: ActorArchitecture

    def acting_parameters(self) -> dict[str, Array]:
        """Name -> float32 array, see `ActorArchitecture.parameters`."""
        ...


def encode(agent: Agent, version: int, fingerprint: str) -> bytes:
    """Policy of an agent as bytes.

    Args:
        agent: for example `hil_rl.sac.SACAgent`.
        version: of the policy; 0 is reserved for random initialisation.
        fingerprint: of the task's specification.

    Raises:
        PolicyError: parameters are not finite.
    """
    return pack(agent.acting_parameters(), agent.architecture, agent.spaces, version, fingerprint)


def pack(
    parameters: Mapping[str, Array],
    architecture: ActorArchitecture,
    spaces: Spaces,
    version: int,
    fingerprint: str,
) -> bytes:
    """Policy from its parts, see `encode`."""
    _check_parameters(parameters, architecture)
    header = {
        "format": FORMAT,
        "version": int(version),
        "fingerprint": fingerprint,
        "spaces": spaces.to_json(),
        "architecture": asdict(architecture),
    }
    # one key: the order of several is not deterministic, and the bytes are hashed
    return safetensors.numpy.save(dict(parameters), {"policy": json.dumps(header)})


def _check_parameters(parameters: Mapping[str, Array], architecture: ActorArchitecture) -> None:
    shapes = architecture.parameters()
    if parameters.keys() != shapes.keys():
        difference = sorted(parameters.keys() ^ shapes.keys())
        raise PolicyError(f"tensors missing or unknown: {difference[:5]}")
    for name, shape in shapes.items():
        value = parameters[name]
        if value.shape != shape or value.dtype != np.float32:
            raise PolicyError(
                f"{name} is {value.dtype} of shape {value.shape}, not float32 of shape {shape}"
            )
        if not np.isfinite(value).all():
            raise PolicyError(f"{name} is not finite")


class Policy:
    """A policy to act with. Immutable; safe to use from any thread.

    Attributes:
        version: of the policy; 0 is random initialisation.
        fingerprint: of the task's specification it was trained for.
        sha256: hex digest of `data`.
        data: the bytes it was decoded from, to pass on or to keep.
        spaces: observation and action layout.
        architecture: networks and their options.
    """

    def __init__(
        self,
        parameters: Mapping[str, Array],
        architecture: ActorArchitecture,
        spaces: Spaces,
        version: int,
        fingerprint: str,
        data: bytes,
        see: See | None = None,
    ) -> None:
        """see: gives the features of images; needed if there are any."""
        self.version = version
        self.fingerprint = fingerprint
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.spaces = spaces
        self.architecture = architecture
        self._parameters = dict(parameters)
        self._actor = _strip("actor.", parameters)
        self._grasp = _strip("grasp.", parameters)
        self._vision = _strip("vision.", parameters)
        self._see = see
        projects = architecture.vision is not None and architecture.vision.projects
        self._projection = Projection.from_arrays(self._vision) if projects else None
        self._log_std_range = np.log([architecture.std_min, architecture.std_max])

    @staticmethod
    def create(
        parameters: Mapping[str, Array],
        architecture: ActorArchitecture,
        spaces: Spaces,
        version: int,
        fingerprint: str,
        vision: VisionConfig | None = None,
    ) -> Policy:
        """Policy from its parts; `vision` as in `decode`."""
        data = pack(parameters, architecture, spaces, version, fingerprint)
        see = _see(architecture, vision)
        return Policy(parameters, architecture, spaces, version, fingerprint, data, see)

    @staticmethod
    def decode(
        data: bytes,
        spaces: Spaces,
        fingerprint: str,
        max_bytes: int = MAX_BYTES,
        vision: VisionConfig | None = None,
    ) -> Policy:
        """Check untrusted bytes and make a policy of them.

        Args:
            data: from `encode`.
            spaces: that the policy has to have.
            fingerprint: that the policy has to have.
            max_bytes: larger data is refused unread.
            vision: where this machine has the weights of the frozen backbone, and in which
                precision it runs; default: the backbone's own package.

        Raises:
            PolicyError: damaged, too large, for another task, wrong shapes, not finite, or the
                frozen backbone is not to be had here or has other weights.
        """
        data = bytes(data) if len(data) <= max_bytes else b""
        if not data:
            raise PolicyError(f"policy is empty or larger than {max_bytes} bytes")
        header = _read_header(data)
        if header["fingerprint"] != fingerprint:
            raise PolicyError(
                f"policy is for specification {str(header['fingerprint'])[:12]!r}, "
                f"not {fingerprint[:12]!r}"
            )
        if header["spaces"] != json.loads(json.dumps(spaces.to_json())):
            raise PolicyError(f"policy is for the spaces {header['spaces']}")
        architecture = _architecture(header["architecture"])
        expected = architecture.inputs, architecture.action_dim, architecture.grasp_outcomes
        if expected != (spaces.vector_size, spaces.action_dim, spaces.grasp_outcomes):
            raise PolicyError(f"architecture {architecture} does not fit the spaces")
        if (shape := architecture.vision) is not None:
            images = len(spaces.images), (shape.height, shape.width)
            if images[0] != shape.cameras or images[1] != spaces.image_size:
                raise PolicyError(f"architecture {shape} does not fit the images")
        elif spaces.images:
            raise PolicyError("the policy does not look at the images of the spaces")
        try:
            parameters = safetensors.numpy.load(data)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise PolicyError(f"damaged tensors: {error}") from error
        _check_parameters(parameters, architecture)
        version = int(header["version"])
        see = _see(architecture, vision)
        return Policy(parameters, architecture, spaces, version, fingerprint, data, see)

    @staticmethod
    def random(
        spaces: Spaces,
        config: SACConfig,
        seed: int,
        fingerprint: str,
        vision: VisionConfig | None = None,
    ) -> Policy:
        """Random initialisation, version 0: equal to that of an agent with the same seed.

        Args:
            spaces: observation and action layout.
            config: see `SACConfig`.
            seed: as for `hil_rl.sac.SACAgent`.
            fingerprint: of the task's specification.
            vision: needed if there are images.
        """
        shape = _vision_shape(spaces, vision) if spaces.images else None
        architecture = ActorArchitecture.from_config(spaces, config, shape)
        rng = np.random.default_rng([seed, 0])
        actor = initial_parameters(architecture.actor_shape, rng, config.input_bias)
        parameters = {f"actor.{n}": value for n, value in actor.items()}
        if (grasp := architecture.grasp_shape) is not None:
            values = initial_parameters(grasp, rng, config.input_bias)
            parameters |= {f"grasp.{n}": value for n, value in values.items()}
        if shape is not None:
            parameters |= {f"vision.{n}": v for n, v in initial_embedding(shape, rng).items()}
            fixed = shape.fixed().items()
            parameters |= {f"vision.{n}": np.zeros(size, np.float32) for n, size in fixed}
        if architecture.normalize_clip:
            parameters["normalizer.mean"] = np.zeros(spaces.vector_size, np.float32)
            parameters["normalizer.scale"] = np.ones(spaces.vector_size, np.float32)
        return Policy.create(parameters, architecture, spaces, 0, fingerprint, vision)

    def act(
        self, observation: Mapping[str, Any], deterministic: bool, rng: np.random.Generator
    ) -> Array:
        """Action for one observation.

        Args:
            observation: name -> array, see `Spaces.observation`.
            deterministic: mode of the policy instead of a sample.
            rng: source of randomness; not used if deterministic.

        Returns:
            (action_size,) float32 in [-1, 1], grippers in {-1, 0, 1}.

        Raises:
            SpaceError: the observation does not fit.
        """
        a = self.architecture
        state = self.spaces.flatten(observation)
        if a.normalize_clip:
            mean, scale = self._parameters["normalizer.mean"], self._parameters["normalizer.scale"]
            state = standardize(state, mean, scale, a.normalize_clip)
        embedding = None
        if a.vision is not None:
            features = self._features(self.spaces.stack_images(observation))
            embedding = embed(a.vision, self._vision, features)
        mean, log_std = np.split(forward(a.actor_shape, self._actor, state, embedding), 2)
        if not deterministic:
            std = np.exp(np.clip(log_std, *self._log_std_range))
            mean = mean + std * rng.standard_normal(a.action_dim)
        continuous = np.tanh(mean) if a.squash else np.clip(mean, -1.0, 1.0)
        if (shape := a.grasp_shape) is None:
            return continuous.astype(np.float32)
        index = int(np.argmax(forward(shape, self._grasp, state, embedding)))
        if not deterministic and a.grasp_epsilon and rng.random() < a.grasp_epsilon:
            index = int(rng.integers(a.grasp_outcomes))
        return self.spaces.join_action(continuous.astype(np.float32), index)

    def _features(self, images: Array) -> Array:
        """(cameras, height, width, 3) uint8 -> (cameras, channels, positions)."""
        if self._see is None:
            raise PolicyError("this policy was made without a way to look at images")
        features = self._see(images, self._vision)
        if self._projection is not None:
            features = self._projection(features)
        return features


def _see(architecture: ActorArchitecture, config: VisionConfig | None) -> See | None:
    """What gives the features of images on this machine; None without images."""
    if (shape := architecture.vision) is None:
        return None
    from . import vision  # imports torch

    if shape.filters:
        return vision.convolve_arrays
    local = (config or VisionConfig()).replace(backbone=shape.backbone)
    try:
        backbone = vision.load_backbone(local)
    except vision.VisionError as error:
        raise PolicyError(f"the policy's backbone: {error}") from error
    if backbone.weights != shape.weights:
        raise PolicyError(
            f"the policy was trained with other weights of {shape.backbone} "
            f"({shape.weights[:12]}, here {backbone.weights[:12]})"
        )
    return lambda images, _: backbone(images)


def _vision_shape(spaces: Spaces, config: VisionConfig | None) -> VisionShape:
    from . import vision  # imports torch

    if config is None:
        raise SpaceError(f"no `vision` for the images {sorted(spaces.images)}")
    return vision.vision_shape(spaces, config, vision.frame_encoder(spaces, config))


def _strip(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {n[len(prefix) :]: value for n, value in arrays.items() if n.startswith(prefix)}


def _read_header(data: bytes) -> dict[str, Any]:
    """The policy's description in the safetensors header."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, _MAX_HEADER):
        raise PolicyError(f"truncated or not safetensors ({len(data)} bytes)")
    try:
        metadata = json.loads(data[8 : 8 + size])["__metadata__"]
        header = json.loads(metadata["policy"])
        missing = {"format", "version", "fingerprint", "spaces", "architecture"} - header.keys()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PolicyError(f"no policy header: {error!r}") from error
    if missing:
        raise PolicyError(f"policy header has no {sorted(missing)}")
    if header["format"] != FORMAT:
        raise PolicyError(f"format is {header['format']!r}, not {FORMAT!r}")
    version = header["version"]
    if type(version) is not int or not 0 <= version < 2**63:
        raise PolicyError(f"version is {version!r}")
    return header


def _architecture(data: Any) -> ActorArchitecture:
    """Architecture of a header, with every value checked."""
    kinds = {"hidden": list, "grasp_hidden": list, "squash": bool, "grasp_activate_final": bool}
    reals = {"std_min", "std_max", "grasp_epsilon", "normalize_clip"}
    own = {n: v for n, v in data.items() if n != "vision"} if isinstance(data, dict) else data
    names = ActorArchitecture.__dataclass_fields__.keys()
    values = _checked("architecture", own, names - {"vision"}, kinds, reals)
    if not 0.0 < values["std_min"] < values["std_max"]:
        raise PolicyError("architecture: std_min must be positive and below std_max")
    vision = None
    if data.get("vision") is not None:
        names = VisionShape.__dataclass_fields__.keys()
        kinds = {"backbone": str, "weights": str, "filters": list}
        vision = VisionShape(**_checked("vision", data["vision"], names, kinds, set()))
        sizes = vision.cameras, vision.channels, vision.positions, vision.pooled, vision.embedding
        if min(sizes) < 1 or math.prod(sizes) > _MAX_PARAMETERS:
            raise PolicyError(f"vision: sizes {sizes} are zero or too large")
    return ActorArchitecture(**values, vision=vision)


def _checked(
    what: str, data: Any, names: Set[str], kinds: Mapping[str, type], reals: Set[str]
) -> dict[str, Any]:
    """Untrusted values of known names; what is in neither `kinds` nor `reals` is a size."""
    if not isinstance(data, dict) or data.keys() != names:
        raise PolicyError(f"{what} is not made of {sorted(names)}")
    for name, value in data.items():
        kind = kinds.get(name, int)
        if name in reals:
            good = type(value) in (int, float) and 0.0 <= value < 1e6
        elif kind is list:
            least = 0 if name == "filters" else 1
            good = type(value) is list and least <= len(value) <= 32
            good = good and all(type(v) is int and 1 <= v <= 2**20 for v in value)
        elif kind is int:
            good = type(value) is int and 0 <= value <= 2**20
        else:
            good = type(value) is kind and len(str(value)) <= 1024
        if not good:
            raise PolicyError(f"{what}: {name} is {str(value)[:80]}")
    return {n: tuple(v) if type(v) is list else v for n, v in data.items()}
