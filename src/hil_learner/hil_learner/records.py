"""Step records: from their CDR serialization to `hil_rl.store.Step`, checked field by field.

A record is decoded exactly once. Whatever is wrong with it is named by the field, because the
reader of the message is the author of an actor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hil_rl.spaces import Spaces, TensorShape
from hil_rl.store import Step

FLAG_LATE = 256
FLAG_DEMO = 512
FLAG_EVALUATION = 1024
FLAG_INTERRUPTED = 2048
KNOWN_FLAGS = 4095

MAX_NAME = 256
"""Longest accepted identifier, in characters (actor, session, task, run, tensor name)."""

MAX_VERSION = 2**53
"""Highest policy version that is believed; counting reaches none near it."""

_ACTION_TOLERANCE = 1e-5
_RECORD_OVERHEAD = 4096
_TENSOR_OVERHEAD = 512


class RecordError(ValueError):
    """A step that cannot be stored; the text begins with the field at fault."""


@dataclass(frozen=True)
class RecordSpec:
    """What every step of a run looks like.

    spaces: observation tensors and the action layout. arms: length of `intervened`.
    unused: name -> (shape, NumPy dtype name) of tensors that a step may carry beside those of
    `spaces` (camera images of a state policy): checked, then left to the recording.
    """

    run_id: str
    fingerprint: str
    task: str
    spaces: Spaces
    arms: int = 1
    unused: Mapping[str, TensorShape] = field(default_factory=dict)

    @property
    def max_bytes(self) -> int:
        """Upper bound of one serialized step: larger ones are refused before they are decoded."""
        tensors = sum(
            int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize + _TENSOR_OVERHEAD
            for shape, dtype in (*self.spaces.observation.values(), *self.unused.values())
        )
        return 2 * tensors + 8 * self.spaces.action_size + 6 * MAX_NAME + _RECORD_OVERHEAD


@dataclass(frozen=True)
class Identity:
    """Who says that it recorded the step, as which number."""

    actor_id: str
    session: str
    seq: int

    @property
    def stream(self) -> str:
        """Name of the stream in the store."""
        return f"{self.actor_id}/{self.session}"


class RecordDecoder:
    """Decodes and checks the serialized steps of one run.

    deserialize: bytes -> an object with the fields of hil_interfaces/Step; it raises on bytes
    that are not one.
    """

    def __init__(self, spec: RecordSpec, deserialize: Callable[[bytes], Any]) -> None:
        self.spec = spec
        self._deserialize = deserialize
        self._max_bytes = spec.max_bytes
        self._tensors = {
            name: (tuple(shape), np.dtype(dtype), int(np.prod(shape, dtype=np.int64)))
            for name, (shape, dtype) in (*spec.spaces.observation.items(), *spec.unused.items())
        }

    def decode(self, data: bytes, identity: Identity) -> Step:
        """Return the step that `data` serializes.

        Raises:
            RecordError: too large, not a Step, not of this run, or with a field that does not
                fit the task's specification.
        """
        message = self._message(data)
        self._check_identity(message, identity)
        return self._step(message, identity)

    def decode_stored(self, data: bytes) -> tuple[Identity, Step]:
        """Return a step of this run with the identity that it names itself; see `decode`."""
        message = self._message(data)
        identity = Identity(message.actor_id, message.session, int(message.seq))
        self._check_identity(message, identity)
        return identity, self._step(message, identity)

    def _message(self, data: bytes) -> Any:
        if len(data) > self._max_bytes:
            raise RecordError(f"data: {len(data)} bytes, a step has at most {self._max_bytes}")
        try:
            return self._deserialize(data)
        except Exception as error:  # the middleware's errors have no common base
            raise RecordError(f"data: not a serialized Step ({error})") from error

    def _step(self, message: Any, identity: Identity) -> Step:
        flags = self._flags(message.flags)
        return Step(
            stream=identity.stream,
            seq=identity.seq,
            episode=int(message.episode),
            step=int(message.step),
            policy_version=self._version(message.policy_version),
            observation=self._tensors_of("observation", message.observation),
            action=self._action(message.action),
            policy_action=self._policy_action(message.policy_action),
            intervened=self._intervened(message.intervened),
            reward=_finite("reward", message.reward),
            terminated=bool(message.terminated),
            truncated=bool(message.truncated),
            success=bool(message.success),
            grasp_penalty=self._grasp_penalty(message.grasp_penalty),
            flags=flags,
            final_observation=self._final_observation(message, flags),
        )

    def _check_identity(self, message: Any, identity: Identity) -> None:
        expected = {
            "run_id": self.spec.run_id,
            "fingerprint": self.spec.fingerprint,
            "actor_id": identity.actor_id,
            "session": identity.session,
            "seq": identity.seq,
            "task": self.spec.task,
        }
        for name, value in expected.items():
            found = getattr(message, name)
            if found != value:
                raise RecordError(f"{name}: {_short(found)} in the step, not {_short(value)}")

    def _tensors_of(self, field: str, messages: Iterable[Any]) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {}
        for message in messages:
            name = message.name
            if name not in self._tensors:
                known = ", ".join(self._tensors)
                raise RecordError(f"{field}: unknown tensor {_short(name)}; the task has {known}")
            if name in found:
                raise RecordError(f"{field}.{name}: given twice")
            found[name] = self._tensor(f"{field}.{name}", message, *self._tensors[name])
        missing = [name for name in self.spec.spaces.observation if name not in found]
        if missing:
            raise RecordError(f"{field}: without {', '.join(missing)}")
        return {name: found[name] for name in self.spec.spaces.observation}

    @staticmethod
    def _tensor(
        field: str, message: Any, shape: tuple[int, ...], dtype: np.dtype[Any], count: int
    ) -> NDArray[Any]:
        if message.dtype != dtype.name:
            raise RecordError(f"{field}: dtype {_short(message.dtype)}, not {dtype.name}")
        if tuple(message.shape) != shape:
            raise RecordError(f"{field}: shape {_short(list(message.shape))}, not {list(shape)}")
        if len(message.data) != count * dtype.itemsize:
            expected = count * dtype.itemsize
            raise RecordError(f"{field}: {len(message.data)} bytes, not {expected}")
        array = np.frombuffer(message.data, dtype=dtype).reshape(shape)
        if dtype.kind == "f" and not np.isfinite(array.astype(np.float32, copy=False)).all():
            raise RecordError(f"{field}: not finite as float32")
        return array

    def _action(self, values: Any) -> NDArray[np.float32]:
        action = self._vector("action", values, self.spec.spaces.action_size)
        outside = np.abs(action) > 1.0 + _ACTION_TOLERANCE
        if outside.any():
            index = int(np.argmax(outside))
            raise RecordError(f"action[{index}]: {action[index]:g} is outside [-1, 1]")
        for index in self.spec.spaces.gripper_indices:
            if action[index] not in (-1.0, 0.0, 1.0):
                raise RecordError(f"action[{index}]: gripper {action[index]:g}, not -1, 0 or 1")
        return action

    def _policy_action(self, values: Any) -> NDArray[np.float32] | None:
        if len(values) == 0:
            return None
        return self._vector("policy_action", values, self.spec.spaces.action_size)

    def _grasp_penalty(self, values: Any) -> NDArray[np.float32]:
        return self._vector("grasp_penalty", values, self.spec.spaces.grippers)

    @staticmethod
    def _vector(field: str, values: Any, size: int) -> NDArray[np.float32]:
        if len(values) != size:
            raise RecordError(f"{field}: {len(values)} components, not {size}")
        vector = np.array(values, dtype=np.float32)
        if not np.isfinite(vector).all():
            raise RecordError(f"{field}: not finite")
        return vector

    def _intervened(self, values: Any) -> bool:
        if len(values) != self.spec.arms:
            raise RecordError(f"intervened: {len(values)} arms, not {self.spec.arms}")
        return any(values)

    @staticmethod
    def _version(value: Any) -> int:
        version = int(value)
        if version > MAX_VERSION:
            raise RecordError(f"policy_version: {version} is above {MAX_VERSION}")
        return version

    @staticmethod
    def _flags(value: Any) -> int:
        flags = int(value)
        if flags & ~KNOWN_FLAGS:
            raise RecordError(f"flags: unknown bits in {flags:#x}")
        if flags & FLAG_DEMO and flags & FLAG_EVALUATION:
            raise RecordError("flags: a step is not both demonstration and evaluation")
        return flags

    def _final_observation(self, message: Any, flags: int) -> dict[str, NDArray[Any]] | None:
        ended = message.terminated or message.truncated
        if len(message.final_observation) > 0:
            if not (ended or flags & FLAG_INTERRUPTED):
                raise RecordError("final_observation: only on the last step of an episode")
            return self._tensors_of("final_observation", message.final_observation)
        if ended:
            raise RecordError("final_observation: missing on the last step of an episode")
        return None


def _finite(field: str, value: Any) -> float:
    number = float(value)
    if not np.isfinite(number):
        raise RecordError(f"{field}: not finite")
    return number


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
