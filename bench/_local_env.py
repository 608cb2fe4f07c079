"""A task in this process with a person who may take over: `hil_sim.local_env` as the actor has it.

Who drives, targets, the executed action, penalties and flags come from the actor's own modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hil_actor.control_step import (
    ActionLayout,
    Answer,
    ArmView,
    Flag,
    Status,
    flags_of,
    twist_in_action_frame,
)
from hil_actor.intervention import ArmInput, Intervention, InterventionConfig
from hil_sim.local_env import Action, LocalEnv, Observation
from hil_tasks.task import Task

__all__ = ["LocalEnv", "LocalStep", "OperatedEnv"]


@dataclass(frozen=True, eq=False)
class LocalStep:
    """One control step; the fields mean the same as those of a step record."""

    observation: Observation
    action: Action
    proposal: Action | None
    intervened: bool
    takeover: bool
    reward: float
    terminated: bool
    truncated: bool
    success: bool
    grasp_penalty: NDArray[np.float32]
    flags: Flag
    next_observation: Observation


class OperatedEnv(LocalEnv):
    """`LocalEnv` with interventions.

    Args:
        task: of one arm.
        seed: of the episodes, until `reset(seed=...)` gives another one.
        grasp_penalty: of each executed gripper command that changes what the gripper does.

    Attributes:
        demonstrating: the person drives from the first step on: a takeover is nothing special.
    """

    def __init__(self, task: Task, seed: int = 0, grasp_penalty: float = 0.0) -> None:
        super().__init__(task, seed)
        self.demonstrating = False
        self._arm = task.spec.arms[0]
        self._layout = ActionLayout(task.spec)
        self._intervention = Intervention(task.spec.arms, InterventionConfig())
        self._grasp_penalty = grasp_penalty

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the next episode."""
        self._intervention.reset()
        return super().reset(seed=seed, options=options)

    def control(self, proposal: Action | None, given: ArmInput | None = None) -> LocalStep:
        """One control period.

        Args:
            proposal: (action size,) of the policy; None: only the person acts.
            given: what the person does, twist in base axes; None: nobody is there.
        """
        layout, observation = self._layout, self.observation
        if proposal is not None:
            proposal = layout.check(proposal)
        views = {self._arm: ArmView(self.reading.pose, self.world.target, self.gripper)}
        now = self._steps * self.task.spec.period
        decisions = self._intervention.update(self._inputs(given), now)
        plans = layout.plan(proposal, decisions, views, takeover_holds=not self.demonstrating)
        plan = plans[self._arm]
        asked = self.world.pose if plan.target is None else plan.target
        applied, gripper = self.carry_out(asked, plan.gripper)
        status = Status.ACCEPTED if applied.almost_equal(asked) else Status.CLIPPED
        answers: dict[str, Answer | None] = {self._arm: Answer(status, applied, gripper)}
        action = layout.executed(answers, views)
        outcome = self.task.reward(self.reading)
        return LocalStep(
            observation=observation,
            action=action,
            proposal=proposal,
            intervened=plan.intervened,
            takeover=plan.takeover,
            reward=float(outcome.reward),
            terminated=outcome.terminated,
            truncated=self.truncated(outcome),
            success=outcome.success,
            grasp_penalty=layout.grasp_penalty(action, views, self._grasp_penalty),
            flags=flags_of(plans, answers),
            next_observation=self.observation,
        )

    def _inputs(self, given: ArmInput | None) -> dict[str, ArmInput]:
        if given is None or not given.engaged:
            return {}
        twist = twist_in_action_frame(given.twist, False, self.task.spec, self.reading.pose)
        return {self._arm: ArmInput(True, twist, given.gripper)}
