"""Who drives each arm: the policy or the person. No ROS.

The device layer says whether the person has engaged a device. Here that becomes a decision per
arm and control step, with hysteresis (thresholds), a hold time, the edge of a takeover, and the
loss of a device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

STAY = 0
"""Gripper command that changes nothing."""


def _zero_twist() -> Array:
    return np.zeros(6)


@dataclass(frozen=True, eq=False)
class ArmInput:
    """What the person asks of one arm.

    Attributes:
        engaged: the person has the device in hand.
        twist: (6,) in [-1, 1], translation then rotation vector, axes of the task's action frame.
        gripper: -1 close, 0 stay, 1 open.
    """

    engaged: bool = False
    twist: Array = field(default_factory=_zero_twist)
    gripper: int = STAY

    @property
    def strength(self) -> float:
        """Largest deflection in [0, 1]; a gripper button counts as 1."""
        return 1.0 if self.gripper != STAY else float(np.abs(self.twist).max())


@dataclass(frozen=True)
class InterventionConfig:
    """When the person drives.

    Attributes:
        engage_threshold: deflection in [0, 1] that an engaged device needs to take over. 0: the
            device's own word is enough.
        release_threshold: the person has let go when the deflection falls below it; at most
            engage_threshold.
        hold_time: s that the person keeps the arm after letting go, so that a pause in the motion
            does not give it back to the policy.
    """

    engage_threshold: float = 0.0
    release_threshold: float = 0.0
    hold_time: float = 0.0

    def __post_init__(self) -> None:
        """Reject what cannot work.

        Raises:
            ValueError: names the field and what it has to be.
        """
        if not 0.0 <= self.engage_threshold <= 1.0:
            raise ValueError(f"engage_threshold has to be in [0, 1], not {self.engage_threshold}")
        if not 0.0 <= self.release_threshold <= self.engage_threshold:
            raise ValueError(
                f"release_threshold ({self.release_threshold}) has to be between 0 and "
                f"engage_threshold ({self.engage_threshold})"
            )
        if not (math.isfinite(self.hold_time) and self.hold_time >= 0.0):
            raise ValueError(f"hold_time has to be 0 or more, not {self.hold_time}")


@dataclass(frozen=True, eq=False)
class ArmDecision:
    """Who drives one arm in one control step.

    Attributes:
        intervened: the person does.
        takeover: the person took over at this step: the arm holds, and the motion counts from the
            next one on.
        twist: (6,) of the person, zero while the hold time runs.
        gripper: of the person.
    """

    intervened: bool = False
    takeover: bool = False
    twist: Array = field(default_factory=_zero_twist)
    gripper: int = STAY


class ArmIntervention:
    """Remembers whether the person drives one arm."""

    def __init__(self, config: InterventionConfig) -> None:
        self._config = config
        self._driving = False
        self._last_wanted = -math.inf

    def reset(self) -> None:
        """The person does not drive: at the start of an episode, and when the device is lost."""
        self._driving = False
        self._last_wanted = -math.inf

    def update(self, given: ArmInput | None, now: float) -> ArmDecision:
        """Decide for one control step.

        Args:
            given: newest input for this arm; None: the operator does not mention the arm.
            now: s, not decreasing.
        """
        given = given or ArmInput()
        config = self._config
        threshold = config.release_threshold if self._driving else config.engage_threshold
        wanted = given.engaged and given.strength >= threshold
        if wanted:
            self._last_wanted = now
        was_driving = self._driving
        holding = was_driving and now - self._last_wanted < config.hold_time
        self._driving = wanted or holding
        if not self._driving:
            return ArmDecision()
        if not given.engaged:
            return ArmDecision(intervened=True)
        return ArmDecision(True, not was_driving, given.twist, given.gripper)


class Intervention:
    """Decides for every arm. Touching one device does not replace the other arm's action."""

    def __init__(self, arms: Sequence[str], config: InterventionConfig) -> None:
        self._arms = {arm: ArmIntervention(config) for arm in arms}

    def reset(self) -> None:
        """Nobody drives."""
        for arm in self._arms.values():
            arm.reset()

    def update(self, inputs: Mapping[str, ArmInput], now: float) -> dict[str, ArmDecision]:
        """Decision per arm; inputs may leave arms out."""
        return {name: arm.update(inputs.get(name), now) for name, arm in self._arms.items()}
