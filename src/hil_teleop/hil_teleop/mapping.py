"""From device axes and buttons to what the person asks of one arm. No ROS.

The device layer delivers raw axes in the ROS convention (x forward, y left, z up; rotations about
the same axes), each in [-1, 1]. Here they become a twist in the operator's frame, expressed in the
arm's base axes, and the decision whether the person drives at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Ways to take over: by touching the device, or by holding a button (dead man's switch).
MODES = ("touch", "hold")

CLOSE, STAY, OPEN = -1, 0, 1


@dataclass(frozen=True)
class ArmInput:
    """What the person asks of one arm (mirror of ``hil_interfaces/ArmInput``).

    Attributes:
        arm: "" for a single arm, else "left" or "right".
        engaged: True while the person drives this arm.
        twist: normalised, each in [-1, 1]: linear x y z, then angular x y z (rotation vector),
            arm's base axes.
        gripper: -1 close, 0 stay, 1 open.
    """

    arm: str = ""
    engaged: bool = False
    twist: tuple[float, float, float, float, float, float] = (0.0,) * 6
    gripper: int = STAY


@dataclass(frozen=True)
class MappingConfig:
    """How a device is felt.

    Attributes:
        dead_zone: axis values up to this are zero; the rest is stretched so that the twist starts
            at zero.
        expo: 0 is linear, 1 is cubic: fine motion near rest, full speed at full deflection.
        translation_scale: share of the task's translation step at full deflection, in (0, 1].
        rotation_scale: the same for rotation; 0 locks the orientation.
        frame_yaw: rad about the base z axis from the operator's frame (x away from the person) to
            the base frame. pi: the operator stands in front of the robot and faces it.
        axes: index into the device's axes for x, y, z, roll, pitch, yaw (drop-in devices differ).
        signs: +1 or -1 for each of these.
        mode: "touch" (any deflection or gripper button takes over) or "hold" (while the button is
            held).
        engage_threshold: largest deflection (after dead zone and expo, before the scales) that
            takes over, in touch mode. A half that is locked (scale 0) does not count.
        release_threshold: below this the device counts as at rest (hysteresis: not above
            engage_threshold).
        hold_time: s that the device has to be at rest before the person has let go, in touch mode.
        intervene_button: index of the button of "hold" mode.
        close_button: index of the button that closes the gripper (SpaceMouse: left); -1: none.
        open_button: index of the button that opens the gripper (SpaceMouse: right); -1: none.
    """

    dead_zone: float = 0.06
    expo: float = 0.4
    translation_scale: float = 1.0
    rotation_scale: float = 1.0
    frame_yaw: float = 0.0
    axes: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    signs: tuple[float, ...] = (1.0,) * 6
    mode: str = "touch"
    engage_threshold: float = 0.05
    release_threshold: float = 0.02
    hold_time: float = 0.3
    intervene_button: int = 0
    close_button: int = 0
    open_button: int = 1

    def __post_init__(self) -> None:
        """Reject what cannot work.

        Raises:
            ValueError: names the field and what it has to be.
        """
        if not 0.0 <= self.dead_zone < 1.0:
            raise ValueError(f"dead_zone has to be in [0, 1), not {self.dead_zone}")
        for name in ("expo", "translation_scale", "rotation_scale", "engage_threshold"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} has to be in [0, 1], not {getattr(self, name)}")
        if not 0.0 <= self.release_threshold <= self.engage_threshold:
            raise ValueError(
                f"release_threshold ({self.release_threshold}) has to be between 0 and "
                f"engage_threshold ({self.engage_threshold})"
            )
        if not (math.isfinite(self.hold_time) and self.hold_time >= 0.0):
            raise ValueError(f"hold_time has to be 0 or more, not {self.hold_time}")
        if not math.isfinite(self.frame_yaw):
            raise ValueError(f"frame_yaw has to be finite, not {self.frame_yaw}")
        if len(self.axes) != 6 or min(self.axes) < 0:
            raise ValueError(f"axes needs six indices of 0 or more, not {self.axes}")
        if len(self.signs) != 6 or any(abs(s) != 1.0 for s in self.signs):
            raise ValueError(f"signs needs six times +1 or -1, not {self.signs}")
        if self.mode not in MODES:
            raise ValueError(f"mode has to be one of {', '.join(MODES)}, not {self.mode!r}")
        if self.mode == "hold" and self.intervene_button < 0:
            raise ValueError("mode 'hold' needs an intervene_button of 0 or more")
        if self.mode == "hold" and self.intervene_button in (self.close_button, self.open_button):
            raise ValueError(
                "mode 'hold': intervene_button is also a gripper button; choose another one "
                "(or set close_button or open_button to -1)"
            )


def shape_axis(value: float, dead_zone: float, expo: float) -> float:
    """Dead zone and expo of one axis: odd, continuous, monotone, [-1, 1] to [-1, 1]."""
    magnitude = min(abs(value), 1.0)
    if magnitude <= dead_zone:
        return 0.0
    stretched = (magnitude - dead_zone) / (1.0 - dead_zone)
    return math.copysign((1.0 - expo) * stretched + expo * stretched**3, value)


def shape_twist(axes: NDArray[np.float64], config: MappingConfig) -> NDArray[np.float64]:
    """Twist (6,) in base axes, each component in [-1, 1], from ordered device axes (6,).

    Turning by ``frame_yaw`` is the same rotation for both halves. A diagonal that would leave the
    unit box is shortened, so its direction is kept.
    """
    shaped = np.array([shape_axis(float(v), config.dead_zone, config.expo) for v in axes])
    cos, sin = math.cos(config.frame_yaw), math.sin(config.frame_yaw)
    twist = np.empty(6)
    for start, scale in ((0, config.translation_scale), (3, config.rotation_scale)):
        x, y, z = shaped[start : start + 3]
        part = np.array([cos * x - sin * y, sin * x + cos * y, z])
        twist[start : start + 3] = scale * part / max(1.0, float(np.abs(part).max()))
    return np.clip(twist, -1.0, 1.0)


def deflection(axes: NDArray[np.float64], config: MappingConfig) -> float:
    """How far the device is moved: its largest shaped axis that is not locked, in [0, 1]."""
    scales = (config.translation_scale,) * 3 + (config.rotation_scale,) * 3
    return max(
        abs(shape_axis(float(v), config.dead_zone, config.expo)) if scale > 0.0 else 0.0
        for v, scale in zip(axes, scales, strict=True)
    )


class Mapping:
    """Turns readings of one device into `ArmInput` and remembers whether the person drives."""

    def __init__(self, config: MappingConfig, arm: str = "") -> None:
        self.config = config
        self.arm = arm
        self._engaged = False
        self._last_motion = -math.inf

    def reset(self) -> None:
        """Forget the person's grip, after the device was lost."""
        self._engaged = False
        self._last_motion = -math.inf

    def update(self, axes: Sequence[float], buttons: Sequence[int], now: float) -> ArmInput:
        """What the person asks for.

        Args:
            axes: device axes, raw, nominally in [-1, 1] (values outside are clipped).
            buttons: 0 or 1 each.
            now: s, monotonic.

        Raises:
            ValueError: the device has fewer axes or buttons than the configuration names, or an
                axis is not finite.
        """
        config = self.config
        ordered = self._ordered(axes)
        twist = shape_twist(ordered, config)
        gripper = self._gripper(buttons)
        if config.mode == "hold":
            self._engaged = self._pressed(buttons, config.intervene_button, "intervene_button")
        else:
            self._touch(deflection(ordered, config), gripper, now)
        if not self._engaged:
            return ArmInput(self.arm)
        x, y, z, rx, ry, rz = twist.tolist()
        return ArmInput(self.arm, True, (x, y, z, rx, ry, rz), gripper)

    def _ordered(self, axes: Sequence[float]) -> NDArray[np.float64]:
        config = self.config
        if max(config.axes) >= len(axes):
            raise ValueError(
                f"the device has {len(axes)} axes, but 'axes' names axis {max(config.axes)}"
            )
        ordered = np.array([axes[i] for i in config.axes], dtype=np.float64) * config.signs
        if not np.isfinite(ordered).all():
            raise ValueError(f"the device sent an axis that is not finite: {list(axes)}")
        return ordered

    def _gripper(self, buttons: Sequence[int]) -> int:
        close = self._pressed(buttons, self.config.close_button, "close_button")
        opened = self._pressed(buttons, self.config.open_button, "open_button")
        return STAY if close == opened else CLOSE if close else OPEN

    @staticmethod
    def _pressed(buttons: Sequence[int], index: int, name: str) -> bool:
        if index < 0:
            return False
        if index >= len(buttons):
            raise ValueError(f"the device has {len(buttons)} buttons, but {name} is {index}")
        return bool(buttons[index])

    def _touch(self, deflection: float, gripper: int, now: float) -> None:
        """Hysteresis in deflection and in time."""
        threshold = (
            self.config.release_threshold if self._engaged else self.config.engage_threshold
        )
        if deflection > threshold or gripper != STAY:
            self._engaged = True
            self._last_motion = now
        elif now - self._last_motion >= self.config.hold_time:
            self._engaged = False
