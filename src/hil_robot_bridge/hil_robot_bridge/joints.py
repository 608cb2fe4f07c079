"""Keeps the arm away from its joint limits without a model of the arm."""

from __future__ import annotations

from collections.abc import Sequence

from hil_robot_bridge.poses import RigidPose, angle_between, distance

# Share of the margin that may be entered before motion is stopped.
_SLACK = 0.25

FR3_LOWER = (-2.7501, -1.7918, -2.9065, -3.0481, -2.8101, 0.54092, -3.0196)
"""Lower joint limits of the FR3, rad (public FR3 description)."""

FR3_UPPER = (2.7501, 1.7918, 2.9065, -0.1458, 2.8101, 4.5205, 3.0196)
"""Upper joint limits of the FR3, rad."""

FR3_HOME = (0.0, -0.785398, 0.0, -2.356194, 0.0, 1.570796, 0.785398)
"""Franka's ready posture, rad."""


class JointGuard:
    """Lets an arm with a joint near its limit only go back to where it was farther from it.

    No kinematics: the pose at which the joints were last clear (or least in the margin) is the
    way out. That is conservative: a motion that would be harmless may be refused.

    Args:
        lower, upper: joint limits, rad.
        margin: distance from a limit that counts as near, rad.

    Attributes:
        depth: how far the worst joint is inside the margin, rad; 0: clear.
        joint: number of the worst joint, from 1.
    """

    def __init__(self, lower: Sequence[float], upper: Sequence[float], margin: float) -> None:
        if len(lower) != len(upper):
            raise ValueError("joint limits: lower and upper must have the same length")
        self._bounds = tuple(
            (low + margin, high - margin) for low, high in zip(lower, upper, strict=True)
        )
        if any(low >= high for low, high in self._bounds):
            raise ValueError("joint limits: the margin leaves no room")
        self._slack = _SLACK * margin
        self._margin = margin
        self.depth = 0.0
        self.joint = 0
        self._least = float("inf")
        self._way_out: RigidPose | None = None

    def observe(self, q: Sequence[float], pose: RigidPose) -> None:
        """Take measured joint positions (rad) and the measured pose."""
        depth, joint = 0.0, 0
        for index, (value, (low, high)) in enumerate(zip(q, self._bounds, strict=True), 1):
            inside = max(low - value, value - high)
            if inside > depth:
                depth, joint = inside, index
        self.depth, self.joint = depth, joint
        if depth <= self._least:
            self._least, self._way_out = depth, pose

    def restart(self) -> None:
        """Take the present depth for the start: for a motion whose way is known to lead out."""
        self._least, self._way_out = self.depth, None

    def objection(self, target: RigidPose, wanted: RigidPose) -> str:
        """Why the target may not go from `target` to `wanted`; "" if it may."""
        if self.depth <= self._least + self._slack:
            return ""
        out = self._way_out
        if out is not None:
            nearer = distance(wanted.position, out.position) <= (
                distance(target.position, out.position) + 1e-9
            ) and angle_between(wanted.quaternion, out.quaternion) <= (
                angle_between(target.quaternion, out.quaternion) + 1e-9
            )
            if nearer:
                return ""
        left = self._margin - self.depth
        return f"joint {self.joint} is {left:.3f} rad from its limit: only the way back is taken"
