"""One control step without ROS: who acts, which targets follow, and what was executed.

The action vector has six components per arm, in the order of the task's arms, each block followed
by the arm's gripper command if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np
from numpy.typing import NDArray

from hil_actor.intervention import ArmDecision
from hil_tasks.actions import change_frame, delta_to_target, target_to_delta
from hil_tasks.geometry import Pose
from hil_tasks.spec import TaskSpec

Action = NDArray[np.float32]


class Flag(IntFlag):
    """Bits of Step.flags, the same as in hil_interfaces/msg/Step."""

    TAKEOVER = 1
    REFLEX = 2
    RECOVERED = 4
    CLIPPED = 8
    REFUSED = 16
    STALE_OBSERVATION = 32
    TELEOP_LOST = 64
    HELD = 128
    LATE = 256
    DEMO = 512
    EVALUATION = 1024
    INTERRUPTED = 2048


class Status(IntEnum):
    """Status of an Answer, the same as in hil_interfaces/msg/CommandResult."""

    ACCEPTED = 0
    CLIPPED = 1
    REFUSED = 2
    HELD = 3


@dataclass(frozen=True, eq=False)
class ArmView:
    """What a step starts from.

    Attributes:
        measured: tool centre point, base frame.
        target: target in force.
        gripper: last gripper command in force.
    """

    measured: Pose
    target: Pose
    gripper: int = 0


@dataclass(frozen=True, eq=False)
class ArmPlan:
    """What one arm is told.

    Attributes:
        target: pose in the base frame; None: hold.
        gripper: -1, 0, 1.
        intervened: the person drives.
        takeover: the person took over at this step.
    """

    target: Pose | None
    gripper: int = 0
    intervened: bool = False
    takeover: bool = False


@dataclass(frozen=True, eq=False)
class Answer:
    """What the bridge did with a command.

    Attributes:
        status: see Status.
        applied: target in force afterwards.
        gripper: gripper command that was passed on.
        reason: why it is not what was asked.
    """

    status: Status
    applied: Pose
    gripper: int = 0
    reason: str = ""


class ActionLayout:
    """Where each arm's part of the action vector is, and how it becomes a target pose."""

    def __init__(self, spec: TaskSpec) -> None:
        self._spec = spec
        self._parts: dict[str, tuple[slice, int | None]] = {}
        at = 0
        for arm, gripper in zip(spec.arms, spec.grippers, strict=True):
            self._parts[arm] = (slice(at, at + 6), at + 6 if gripper else None)
            at += 7 if gripper else 6
        self.size = at

    @property
    def gripper_indices(self) -> tuple[int, ...]:
        """Positions of the gripper commands."""
        return tuple(index for _, index in self._parts.values() if index is not None)

    def check(self, action: NDArray[np.generic]) -> Action:
        """Action as a finite float32 vector, clipped to [-1, 1].

        Raises:
            ValueError: wrong shape, or not finite.
        """
        vector = np.asarray(action, dtype=np.float32)
        if vector.shape != (self.size,):
            raise ValueError(f"action must have shape ({self.size},), not {vector.shape}")
        if not np.isfinite(vector).all():
            raise ValueError(f"action must be finite, not {vector}")
        return np.clip(vector, -1.0, 1.0)

    def plan(
        self,
        proposal: Action | None,
        decisions: Mapping[str, ArmDecision],
        views: Mapping[str, ArmView],
        *,
        hold: bool = False,
        takeover_holds: bool = True,
    ) -> dict[str, ArmPlan]:
        """What each arm is told.

        Args:
            proposal: (size,) the policy's action; None: nobody acts where the person does not.
            decisions: per arm, from `Intervention`.
            views: per arm.
            hold: every arm holds, whoever drives.
            takeover_holds: an arm holds in the step in which the person takes over.
        """
        return {
            arm: self._plan_arm(arm, proposal, decisions[arm], views[arm], hold, takeover_holds)
            for arm in self._parts
        }

    def executed(
        self,
        answers: Mapping[str, Answer | None],
        views: Mapping[str, ArmView],
    ) -> Action:
        """Action (size,) that was executed, from the targets in force after the commands.

        An arm whose answer is missing counts as not moved.
        """
        action = np.zeros(self.size, dtype=np.float32)
        for arm, (part, gripper) in self._parts.items():
            answer = answers.get(arm)
            if answer is None:
                continue
            spec, view = self._spec, views[arm]
            action[part] = target_to_delta(
                answer.applied,
                view.target,
                view.measured,
                spec.action_scale,
                spec.action_frame,
                spec.reference,
                spec.leash.translation,
                spec.leash.rotation,
            )
            if gripper is not None:
                action[gripper] = float(answer.gripper)
        return action

    def grasp_penalty(
        self, executed: Action, views: Mapping[str, ArmView], penalty: float
    ) -> NDArray[np.float32]:
        """Penalty per gripper: of each executed command that changes what the gripper does."""
        values = [
            penalty if executed[gripper] not in (0.0, views[arm].gripper) else 0.0
            for arm, (_, gripper) in self._parts.items()
            if gripper is not None
        ]
        return np.array(values, dtype=np.float32)

    def _plan_arm(
        self,
        arm: str,
        proposal: Action | None,
        decision: ArmDecision,
        view: ArmView,
        hold: bool,
        takeover_holds: bool,
    ) -> ArmPlan:
        takeover = decision.takeover and takeover_holds
        if hold or takeover:
            return ArmPlan(None, 0, decision.intervened, takeover)
        part, gripper_index = self._parts[arm]
        gripper = 0
        if decision.intervened:
            delta = np.clip(decision.twist, -1.0, 1.0)
            gripper = decision.gripper
        elif proposal is not None:
            delta = proposal[part].astype(np.float64)
            if gripper_index is not None:
                gripper = int(np.rint(proposal[gripper_index]))
        else:
            delta = np.zeros(6)
        target = self._target(delta, view)
        if gripper_index is None:
            gripper = 0
        return ArmPlan(target, gripper, decision.intervened, False)

    def _target(self, delta: NDArray[np.float64], view: ArmView) -> Pose:
        spec = self._spec
        return delta_to_target(
            delta,
            view.target,
            view.measured,
            spec.action_scale,
            spec.action_frame,
            spec.reference,
            spec.leash.translation,
            spec.leash.rotation,
        )


def flags_of(plans: Mapping[str, ArmPlan], answers: Mapping[str, Answer | None]) -> Flag:
    """Flags that follow from what was asked and what the bridge answered."""
    flags = Flag(0)
    for arm, plan in plans.items():
        answer = answers.get(arm)
        if plan.takeover:
            flags |= Flag.TAKEOVER
        if answer is None:
            flags |= Flag.REFUSED | Flag.HELD
        elif answer.status == Status.CLIPPED:
            flags |= Flag.CLIPPED
        elif answer.status == Status.REFUSED:
            flags |= Flag.REFUSED
        elif answer.status == Status.HELD and plan.target is not None:
            flags |= Flag.HELD
    return flags


def twist_in_action_frame(
    twist: NDArray[np.float64], in_tool_frame: bool, spec: TaskSpec, measured: Pose
) -> NDArray[np.float64]:
    """Operator's twist (6,) in the axes of the task's actions, clipped to [-1, 1].

    Args:
        twist: normalised, in base axes or tool axes.
        in_tool_frame: it is in tool axes.
        spec: of the task.
        measured: pose of the tool centre point.
    """
    if in_tool_frame == (spec.action_frame == "ee"):
        return np.clip(twist, -1.0, 1.0)
    rotation = measured.rotation if in_tool_frame else measured.rotation.inv()
    return np.clip(change_frame(twist, rotation), -1.0, 1.0)
