"""What a task fixes: spaces, scales, frames, limits and compliance, and its fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium
import numpy as np

from hil_tasks.actions import ActionScale, Frame, Reference
from hil_tasks.geometry import Pose

Vector3 = tuple[float, float, float]
Vector4 = tuple[float, float, float, float]
Vector6 = tuple[float, float, float, float, float, float]


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor of the observation.

    Attributes:
        shape: shape of the array.
        dtype: NumPy name.
        low, high: bounds of every element; observations are clipped to them.
        scale: what a value of 1 stands for, in SI units (the policy sees value / scale).
        doc: meaning, axes and unit of the unscaled value.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = -np.inf
    high: float = np.inf
    scale: tuple[float, ...] = (1.0,)
    doc: str = ""

    @property
    def space(self) -> gymnasium.spaces.Box:
        """Gymnasium space of the tensor."""
        return gymnasium.spaces.Box(self.low, self.high, self.shape, np.dtype(self.dtype).type)


@dataclass(frozen=True)
class Leash:
    """Largest offset of the target from the measured pose, per axis: m and rad."""

    translation: float
    rotation: float


@dataclass(frozen=True)
class Workspace:
    """Box that the tool centre point may not leave, base frame, m."""

    low: Vector3
    high: Vector3


@dataclass(frozen=True)
class OrientationLimit:
    """How far the tool may turn away from a reference orientation.

    Attributes:
        reference: quaternion xyzw of the tool centre point in the base frame.
        cone: largest angle between the tool axis (z) and that of the reference, rad.
        twist: largest turn about the tool axis, rad; pi: free.
    """

    reference: Vector4
    cone: float
    twist: float


@dataclass(frozen=True)
class SpeedLimit:
    """Speed of the commanded target: m/s and rad/s."""

    linear: float
    angular: float


@dataclass(frozen=True)
class ResetSpec:
    """How the arm is brought to the start of an episode.

    Attributes:
        position: nominal start of the tool centre point (3,), base frame, m.
        orientation: its quaternion xyzw.
        lift: straight up before anything else, m.
        linear_speed, angular_speed: of the reset motion, m/s and rad/s.
        gripper: command at the beginning of a reset: 1 open, -1 close, 0 none.
    """

    position: Vector3
    orientation: Vector4
    lift: float
    linear_speed: float
    angular_speed: float
    gripper: int = 0

    @property
    def pose(self) -> Pose:
        """Nominal start pose of the tool centre point in the base frame."""
        return Pose.from_xyzw(self.position, self.orientation)


@dataclass(frozen=True)
class ComplianceSpec:
    """Gains and clips of the Cartesian impedance controller; nothing is left to a default.

    Attributes:
        translational_stiffness, translational_damping: (3,), N/m and N s/m.
        rotational_stiffness, rotational_damping: (3,), Nm/rad and Nm s/rad.
        error_clip: (6,), largest pose error that the springs see: x y z in m, rx ry rz in rad.
            Stiffness times clip bounds the force.
        nullspace_stiffness, nullspace_damping: Nm/rad and Nm s/rad.
        nullspace_max_tau: bound of the nullspace torque per joint, Nm.
    """

    translational_stiffness: Vector3
    translational_damping: Vector3
    rotational_stiffness: Vector3
    rotational_damping: Vector3
    error_clip: Vector6
    nullspace_stiffness: float = 5.0
    nullspace_damping: float = 4.0
    nullspace_max_tau: float = 5.0

    def __post_init__(self) -> None:
        """Refuse gains that are unset, negative or would not damp."""
        for name, value in dataclasses.asdict(self).items():
            numbers = np.atleast_1d(np.asarray(value, dtype=np.float64))
            if not np.isfinite(numbers).all() or (numbers < 0.0).any():
                raise ValueError(f"compliance {name} must be finite and >= 0, not {value}")
        for name in ("translational_damping", "rotational_damping", "error_clip"):
            if not all(number > 0.0 for number in getattr(self, name)):
                raise ValueError(f"compliance {name} must be > 0: it is always set explicitly")


@dataclass(frozen=True)
class TaskSpec:
    """Everything about a task that is not behaviour.

    Attributes:
        name: registered name.
        arms: ("",) for one arm, ("left", "right") for two.
        grippers: for each arm, whether the action has a gripper command.
        control_hz: control steps per second.
        max_episode_steps: time limit (truncation).
        action_scale: metres and radians of an action of 1, per step.
        action_frame, reference, leash: see `hil_tasks.actions`.
        workspace, orientation, speed: limits that the bridge enforces.
        reset: start of an episode.
        compliance: named presets; "policy" and "reset" always exist.
        observation: named tensors in the order in which they are concatenated.
        cameras: cameras that the policy sees (uint8 image_size x image_size x 3).
    """

    name: str
    max_episode_steps: int
    action_scale: ActionScale
    leash: Leash
    workspace: Workspace
    orientation: OrientationLimit
    speed: SpeedLimit
    reset: ResetSpec
    compliance: Mapping[str, ComplianceSpec]
    observation: Mapping[str, TensorSpec]
    arms: tuple[str, ...] = ("",)
    grippers: tuple[bool, ...] = (False,)
    control_hz: float = 10.0
    action_frame: Frame = "base"
    reference: Reference = "target"
    cameras: tuple[str, ...] = ()
    image_size: int = 128
    frame_id: Literal["base"] = field(default="base")

    def __post_init__(self) -> None:
        """Check what a wrong override could break."""
        _require(len(self.grippers) == len(self.arms), "grippers must name one value per arm")
        _require(self.control_hz > 0.0, "control_hz must be > 0")
        _require(self.max_episode_steps > 0, "max_episode_steps must be > 0")
        _require(self.action_frame in ("base", "ee"), "action_frame must be base or ee")
        _require(self.reference in ("target", "measured"), "reference must be target or measured")
        _require(
            min(self.action_scale.translation, self.action_scale.rotation) > 0.0,
            "action_scale must be > 0",
        )
        _require(min(self.leash.translation, self.leash.rotation) > 0.0, "leash must be > 0")
        _require(
            all(a < b for a, b in zip(self.workspace.low, self.workspace.high, strict=True)),
            "workspace: every low must be below its high",
        )
        _require(
            {"policy", "reset"} <= set(self.compliance),
            "compliance must have the presets policy and reset",
        )

    @property
    def period(self) -> float:
        """Control period, s."""
        return 1.0 / self.control_hz

    @property
    def action_dim(self) -> int:
        """Length of an action: six per arm, each followed by its gripper command, if any."""
        return 6 * len(self.arms) + sum(self.grippers)

    @property
    def observation_space(self) -> gymnasium.spaces.Dict:
        """Gymnasium space of the observation, images included."""
        spaces: dict[str, gymnasium.Space[Any]] = {
            name: tensor.space for name, tensor in self.observation.items()
        }
        shape = (self.image_size, self.image_size, 3)
        for camera in self.cameras:
            spaces[camera] = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        return gymnasium.spaces.Dict(spaces)

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """Gymnasium space of the action: [-1, 1]."""
        return gymnasium.spaces.Box(-1.0, 1.0, (self.action_dim,), np.float32)

    def fingerprint(self) -> str:
        """SHA-256 (hex) of what actor, learner and recordings must agree on.

        That is the meaning of observations and actions: names, shapes, scales, frames, rate and
        leash. Limits, compliance and time limit may differ.
        """
        observation = [
            [
                name,
                list(spec.shape),
                spec.dtype,
                _number(spec.low),
                _number(spec.high),
                list(spec.scale),
            ]
            for name, spec in self.observation.items()
        ]
        content = {
            "name": self.name,
            "arms": list(self.arms),
            "grippers": list(self.grippers),
            "control_hz": self.control_hz,
            "action_scale": [self.action_scale.translation, self.action_scale.rotation],
            "action_frame": self.action_frame,
            "reference": self.reference,
            "leash": [self.leash.translation, self.leash.rotation],
            "observation": observation,
            "cameras": list(self.cameras),
            "image_size": self.image_size,
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


def _number(value: float) -> float | str:
    return float(value) if np.isfinite(value) else str(value)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
