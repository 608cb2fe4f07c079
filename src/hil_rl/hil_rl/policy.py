"""Policies as they travel from learner to actor: safetensors bytes, NumPy inference.

Only what acting needs is in a policy: the actor, the grasp critic, the normalisation. This
module does not import torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from .architecture import MLPShape, forward, initial_parameters
from .config import SACConfig
from .normalizer import standardize
from .spaces import Array, Spaces

FORMAT = "hil_rl.policy/1"
MAX_BYTES = 64 * 2**20
_MAX_HEADER = 2**20


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

    @staticmethod
    def from_config(spaces: Spaces, config: SACConfig) -> ActorArchitecture:
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
        )

    @property
    def actor_shape(self) -> MLPShape:
        """Network that gives mean and log standard deviation."""
        return MLPShape(
            self.inputs, 2 * self.action_dim, self.hidden, encoder=self.state_encoder, heads=2
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
            activate_final=self.grasp_activate_final,
        )

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every array of a policy."""
        shapes = {f"actor.{n}": s for n, s in self.actor_shape.parameters().items()}
        if (grasp := self.grasp_shape) is not None:
            shapes |= {f"grasp.{n}": s for n, s in grasp.parameters().items()}
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
    ) -> None:
        self.version = version
        self.fingerprint = fingerprint
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.spaces = spaces
        self.architecture = architecture
        self._parameters = dict(parameters)
        self._actor = _strip("actor.", parameters)
        self._grasp = _strip("grasp.", parameters)
        self._log_std_range = np.log([architecture.std_min, architecture.std_max])

    @staticmethod
    def create(
        parameters: Mapping[str, Array],
        architecture: ActorArchitecture,
        spaces: Spaces,
        version: int,
        fingerprint: str,
    ) -> Policy:
        """Policy from its parts."""
        data = pack(parameters, architecture, spaces, version, fingerprint)
        return Policy(parameters, architecture, spaces, version, fingerprint, data)

    @staticmethod
    def decode(
        data: bytes, spaces: Spaces, fingerprint: str, max_bytes: int = MAX_BYTES
    ) -> Policy:
        """Check untrusted bytes and make a policy of them.

        Args:
            data: from `encode`.
            spaces: that the policy has to have.
            fingerprint: that the policy has to have.
            max_bytes: larger data is refused unread.

        Raises:
            PolicyError: damaged, too large, for another task, wrong shapes, not finite.
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
        try:
            parameters = safetensors.numpy.load(data)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise PolicyError(f"damaged tensors: {error}") from error
        _check_parameters(parameters, architecture)
        version = int(header["version"])
        return Policy(parameters, architecture, spaces, version, fingerprint, data)

    @staticmethod
    def random(spaces: Spaces, config: SACConfig, seed: int, fingerprint: str) -> Policy:
        """Random initialisation, version 0: equal to that of an agent with the same seed."""
        architecture = ActorArchitecture.from_config(spaces, config)
        rng = np.random.default_rng([seed, 0])
        actor = initial_parameters(architecture.actor_shape, rng, config.input_bias)
        parameters = {f"actor.{n}": value for n, value in actor.items()}
        if (grasp := architecture.grasp_shape) is not None:
            values = initial_parameters(grasp, rng, config.input_bias)
            parameters |= {f"grasp.{n}": value for n, value in values.items()}
        if architecture.normalize_clip:
            parameters["normalizer.mean"] = np.zeros(spaces.vector_size, np.float32)
            parameters["normalizer.scale"] = np.ones(spaces.vector_size, np.float32)
        return Policy.create(parameters, architecture, spaces, 0, fingerprint)

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
        mean, log_std = np.split(forward(a.actor_shape, self._actor, state), 2)
        if not deterministic:
            std = np.exp(np.clip(log_std, *self._log_std_range))
            mean = mean + std * rng.standard_normal(a.action_dim)
        continuous = np.tanh(mean) if a.squash else np.clip(mean, -1.0, 1.0)
        if (shape := a.grasp_shape) is None:
            return continuous.astype(np.float32)
        index = int(np.argmax(forward(shape, self._grasp, state)))
        if not deterministic and a.grasp_epsilon and rng.random() < a.grasp_epsilon:
            index = int(rng.integers(a.grasp_outcomes))
        return self.spaces.join_action(continuous.astype(np.float32), index)


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
    names = ActorArchitecture.__dataclass_fields__.keys()
    if not isinstance(data, dict) or data.keys() != names:
        raise PolicyError(f"architecture is not made of {sorted(names)}")
    for name, value in data.items():
        kind = kinds.get(name, int)
        if name in reals:
            good = type(value) in (int, float) and 0.0 <= value < 1e6
        elif kind is list:
            good = type(value) is list and 1 <= len(value) <= 32
            good = good and all(type(v) is int and 1 <= v <= 2**20 for v in value)
        elif kind is bool:
            good = type(value) is bool
        else:
            good = type(value) is int and 0 <= value <= 2**20
        if not good:
            raise PolicyError(f"architecture: {name} is {str(value)[:80]}")
    if not 0.0 < data["std_min"] < data["std_max"]:
        raise PolicyError("architecture: std_min must be positive and below std_max")
    values: dict[str, Any] = {n: tuple(v) if type(v) is list else v for n, v in data.items()}
    return ActorArchitecture(**values)
