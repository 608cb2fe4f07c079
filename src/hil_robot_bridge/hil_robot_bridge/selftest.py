"""What small motions tell of the arm: effective stiffness, lag, success rate. No ROS.

At constant speed v the springs of an impedance law trail by e = (D v + friction) / K. Two speeds,
each there and back, give the slope de/dv = D / K whatever the friction; with the damping that was
set that is the stiffness in force. No mass and no contact is needed for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hil_robot_bridge.poses import Vector3
from hil_tasks.spec import ComplianceSpec

AXES = "xyz"
_STEADY = 0.7  # of the top speed of the target: below it the motion starts or ends
_FEWEST = 6  # samples of a motion


@dataclass(frozen=True)
class Sample:
    """What robot_state says at one moment.

    Attributes:
        time: stamp of the measurement, s.
        target, position: (3,), m.
        success_rate: 0..1.
    """

    time: float
    target: Vector3
    position: Vector3
    success_rate: float = 1.0


@dataclass(frozen=True)
class Tolerance:
    """What still counts as right.

    Attributes:
        stiffness: share by which it may differ from what was set.
        success_rate: smallest mean.
    """

    stiffness: float = 0.3
    success_rate: float = 0.95


@dataclass(frozen=True)
class AxisResult:
    """Of one axis: expected and measured stiffness (N/m), lag (s)."""

    axis: str
    expected: float
    measured: float
    lag: float

    def right(self, tolerance: Tolerance) -> bool:
        """Whether the stiffness is what was set."""
        return abs(self.measured / self.expected - 1.0) <= tolerance.stiffness


@dataclass(frozen=True)
class Result:
    """Of all axes."""

    axes: tuple[AxisResult, ...]
    success_rate: float

    def problems(self, tolerance: Tolerance) -> list[str]:
        """What is off, in words."""
        found = [
            f"stiffness along {each.axis} is {each.measured:.0f} N/m instead of "
            f"{each.expected:.0f}"
            for each in self.axes
            if not each.right(tolerance)
        ]
        if self.success_rate < tolerance.success_rate:
            found.append(
                f"only {100 * self.success_rate:.1f} % of the control commands arrive in time"
            )
        return found

    def table(self) -> str:
        """For a person."""
        lines = ["axis  expected N/m  measured N/m  lag ms"]
        lines += [
            f"{each.axis:<4}  {each.expected:12.0f}  {each.measured:12.0f}  {1e3 * each.lag:6.0f}"
            for each in self.axes
        ]
        return "\n".join([*lines, f"success rate {self.success_rate:.4f}"])


def trailing(samples: Sequence[Sample], axis: int) -> tuple[float, float]:
    """Mean speed (m/s) and mean distance (m) behind the target in the steady part of a motion.

    Raises:
        ValueError: there is no steady part.
    """
    times = np.array([sample.time for sample in samples])
    targets = np.array([sample.target[axis] for sample in samples])
    positions = np.array([sample.position[axis] for sample in samples])
    if len(times) < _FEWEST:
        raise ValueError("too few states came during a motion")
    # The target may be set less often than states come: its speed is that over three samples.
    width = 3
    speeds = (targets[width:] - targets[:-width]) / np.maximum(
        times[width:] - times[:-width], 1e-6
    )
    top = float(np.abs(speeds).max())
    steady = np.flatnonzero(np.abs(speeds) > _STEADY * top)
    if top <= 0.0 or len(steady) < _FEWEST:
        raise ValueError("the target did not move steadily")
    begin, end = steady[0] + width, steady[-1] + width
    begin = (begin + end) // 2  # the first half belongs to the start
    speed = (positions[end] - positions[begin]) / (times[end] - times[begin])
    # A sample shows a target that was in force since the sample before, and the position that the
    # arm has reached by now: it has caught up half of that time's way on the average.
    behind = np.mean(targets[begin:end] - positions[begin:end])
    return float(speed), float(behind + 0.5 * speed * np.median(np.diff(times)))


def stiffness(motions: Sequence[Sequence[Sample]], axis: int, spec: ComplianceSpec) -> AxisResult:
    """Stiffness along an axis from motions there and back at two speeds.

    Raises:
        ValueError: the motions do not tell.
    """
    pairs = np.array([trailing(samples, axis) for samples in motions])
    speeds, behind = np.abs(pairs[:, 0]), pairs[:, 1] * np.sign(pairs[:, 0])
    if np.ptp(speeds) < 0.2 * speeds.max():
        raise ValueError("the motions were all of the same speed")
    lag, _ = np.polyfit(speeds, behind, 1)
    if lag <= 0.0:
        raise ValueError("the arm does not trail more at a higher speed")
    damping = spec.translational_damping[axis]
    return AxisResult(AXES[axis], spec.translational_stiffness[axis], damping / lag, float(lag))
