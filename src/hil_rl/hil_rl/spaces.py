"""Shapes of observations and actions, and the encodings that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
TensorShape = tuple[tuple[int, ...], str]

GRASP_COMMANDS = 3
"""Outcomes of one gripper command: close (-1), stay (0), open (+1)."""


class SpaceError(ValueError):
    """An observation or action does not fit the spaces; the message names what and how."""


@dataclass(frozen=True)
class Spaces:
    """Observation tensors and the action layout of a task.

    Actions are vectors in [-1, 1]. Without grippers they are the ``action_dim`` continuous
    dimensions. With grippers, each gripper has one element in {-1, 0, +1} (close, stay, open);
    by default the continuous dimensions are split evenly and every block is followed by its
    gripper: 6+1 for one arm, 6+1+6+1 for two. The discrete outcomes of all grippers are learned
    jointly: 3 for one gripper, 9 for two.

    Attributes:
        observation: name -> (shape, dtype), in the fixed order in which vectors are concatenated.
            ``uint8`` tensors of shape (height, width, 3) are images, everything else is a vector.
        action_dim: number of continuous dimensions.
        grippers: number of grippers.
        gripper_indices: positions of the gripper elements in the action; empty for the default.
    """

    observation: Mapping[str, TensorShape]
    action_dim: int
    grippers: int = 0
    gripper_indices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        tensors = {
            str(name): (tuple(int(n) for n in shape), np.dtype(dtype).name)
            for name, (shape, dtype) in self.observation.items()
        }
        for name, (shape, dtype) in tensors.items():
            if dtype == "uint8" and (len(shape) != 3 or shape[2] != 3):
                raise SpaceError(f"{name}: a uint8 tensor must be (height, width, 3), got {shape}")
            if min(shape, default=1) < 1:
                raise SpaceError(f"{name}: empty tensor of shape {shape}")
        if self.action_dim < 1:
            raise SpaceError(f"action_dim must be at least 1, got {self.action_dim}")
        if self.grippers < 0:
            raise SpaceError(f"grippers must not be negative, got {self.grippers}")
        indices = tuple(int(i) for i in self.gripper_indices) or self._default_indices()
        size = self.action_dim + self.grippers
        if len(set(indices)) != self.grippers or not all(0 <= i < size for i in indices):
            raise SpaceError(
                f"gripper_indices {indices} must be {self.grippers} different positions in an "
                f"action of size {size}"
            )
        object.__setattr__(self, "observation", tensors)
        object.__setattr__(self, "gripper_indices", indices)

    def _default_indices(self) -> tuple[int, ...]:
        if not self.grippers:
            return ()
        if self.action_dim % self.grippers:
            raise SpaceError(
                f"{self.action_dim} continuous dimensions cannot be split evenly between "
                f"{self.grippers} grippers: give gripper_indices"
            )
        block = self.action_dim // self.grippers + 1
        return tuple(block * (i + 1) - 1 for i in range(self.grippers))

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor that is part of the state vector, in order."""
        return {n: shape for n, (shape, dtype) in self.observation.items() if dtype != "uint8"}

    @property
    def images(self) -> dict[str, tuple[int, ...]]:
        """Name -> (height, width, 3) of every image, in order."""
        return {n: shape for n, (shape, dtype) in self.observation.items() if dtype == "uint8"}

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) that all images have.

        Raises:
            SpaceError: there are no images, or they have different sizes.
        """
        sizes = {shape[:2] for shape in self.images.values()}
        if len(sizes) != 1:
            raise SpaceError(f"images must have one size, got {self.images or 'none'}")
        height, width = sizes.pop()
        return height, width

    @property
    def vector_size(self) -> int:
        """Length of the concatenated state vector."""
        return sum(int(np.prod(shape)) for shape in self.vectors.values())

    @property
    def action_size(self) -> int:
        """Length of an action: continuous dimensions and one element per gripper."""
        return self.action_dim + self.grippers

    @property
    def continuous_indices(self) -> tuple[int, ...]:
        """Positions of the continuous dimensions in an action."""
        return tuple(i for i in range(self.action_size) if i not in self.gripper_indices)

    @property
    def grasp_outcomes(self) -> int:
        """Number of joint gripper commands (3 per gripper), 0 without grippers."""
        return GRASP_COMMANDS**self.grippers if self.grippers else 0

    def flatten(self, observation: Mapping[str, Any], out: Array | None = None) -> Array:
        """Concatenate the vector tensors of an observation.

        Args:
            observation: name -> array; names that are not part of the spaces are ignored.
            out: optional (vector_size,) float32 destination.

        Returns:
            (vector_size,) float32.

        Raises:
            SpaceError: a tensor is missing, has the wrong shape, or is not finite.
        """
        if out is None:
            out = np.empty(self.vector_size, np.float32)
        at = 0
        for name, shape in self.vectors.items():
            if name not in observation:
                raise SpaceError(f"observation has no {name!r}; it has {sorted(observation)}")
            value = np.asarray(observation[name])
            if value.shape != shape:
                raise SpaceError(f"observation {name!r} has shape {value.shape}, not {shape}")
            out[at : at + value.size] = value.reshape(-1)
            at += value.size
        if not np.isfinite(out).all():
            bad = [n for n in self.vectors if not np.isfinite(np.asarray(observation[n])).all()]
            raise SpaceError(f"observation is not finite in {bad or 'float32'}")
        return out

    def stack_images(self, observation: Mapping[str, Any]) -> Array:
        """The images of an observation, in order.

        Returns:
            (images, height, width, 3) uint8.

        Raises:
            SpaceError: an image is missing or has the wrong shape or type.
        """
        self.check_images(observation)
        return np.stack([np.asarray(observation[name]) for name in self.images])

    def check_images(self, observation: Mapping[str, Any]) -> None:
        """Raise SpaceError unless every image is there with the right shape and type."""
        for name, shape in self.images.items():
            if name not in observation:
                raise SpaceError(f"observation has no {name!r}; it has {sorted(observation)}")
            image = np.asarray(observation[name])
            if image.shape != shape or image.dtype != np.uint8:
                raise SpaceError(
                    f"image {name!r} is {image.dtype} of shape {image.shape}, not uint8 {shape}"
                )

    def check_action(self, action: Any) -> Array:
        """Return `action` as a finite (action_size,) float32 vector in [-1, 1], or raise."""
        value = np.asarray(action, np.float32)
        if value.shape != (self.action_size,):
            raise SpaceError(f"action has shape {value.shape}, not ({self.action_size},)")
        if not (np.abs(value) <= 1.0 + 1e-5).all():
            raise SpaceError(f"action is not finite or not in [-1, 1]: {value.tolist()}")
        return np.clip(value, -1.0, 1.0)

    def grasp_index(self, action: Array) -> Array:
        """Joint gripper outcome of actions.

        Args:
            action: (..., action_size).

        Returns:
            (...) int64 in [0, grasp_outcomes): first gripper is the most significant digit,
            digit = round(command) + 1, so 0 close, 1 stay, 2 open.
        """
        index = np.zeros(action.shape[:-1], np.int64)
        for i in self.gripper_indices:
            digit = np.rint(np.clip(action[..., i], -1.0, 1.0)).astype(np.int64) + 1
            index = index * GRASP_COMMANDS + digit
        return index

    def join_action(self, continuous: Array, grasp_index: Any = None) -> Array:
        """Build an action from its parts, the inverse of taking it apart.

        Args:
            continuous: (..., action_dim).
            grasp_index: (...) joint gripper outcome; needed if there are grippers.

        Returns:
            (..., action_size) float32.
        """
        if not self.grippers:
            return np.asarray(continuous, np.float32)
        action = np.empty((*continuous.shape[:-1], self.action_size), np.float32)
        action[..., list(self.continuous_indices)] = continuous
        rest = np.asarray(grasp_index, np.int64)
        for i in reversed(self.gripper_indices):
            action[..., i] = rest % GRASP_COMMANDS - 1
            rest = rest // GRASP_COMMANDS
        return action

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON; `from_json` is the inverse."""
        return {
            "observation": [[n, list(s), d] for n, (s, d) in self.observation.items()],
            "action_dim": self.action_dim,
            "grippers": self.grippers,
            "gripper_indices": list(self.gripper_indices),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Spaces:
        """Spaces from the output of `to_json`."""
        return Spaces(
            {name: (tuple(shape), dtype) for name, shape, dtype in data["observation"]},
            int(data["action_dim"]),
            int(data["grippers"]),
            tuple(data["gripper_indices"]),
        )
