"""Reach: bring the tool centre point to a goal position. Goal-conditioned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hil_tasks import tabletop
from hil_tasks.actions import ActionScale
from hil_tasks.geometry import Pose
from hil_tasks.scene import Scene, SceneObject
from hil_tasks.spec import (
    Leash,
    OrientationLimit,
    ResetSpec,
    TaskSpec,
    TensorSpec,
    Workspace,
)
from hil_tasks.task import Goals, Observation, Outcome, Reading, Task, uniform

Tensors = Mapping[str, NDArray[Any]]

GOAL = "goal"
CENTRE = (0.5, 0.0, 0.25)


@dataclass(frozen=True)
class ReachParams:
    """Numbers of the reach task, m.

    Attributes:
        tolerance: distance to the goal that counts as reached.
        goal_range: half edge of the cube in which goals lie.
        start_range: half edge of the cube in which episodes start.
    """

    tolerance: float = 0.015
    goal_range: float = 0.12
    start_range: float = 0.05


class Reach(Task):
    """Bring the tool centre point within a tolerance of the object "goal".

    Sparse reward: 1 and the end when reached. "achieved" and "desired" are the goal-conditioned
    pair (positions relative to the workspace's centre); see `goals`.
    """

    name = "reach"
    Params = ReachParams
    params: ReachParams

    def build_spec(self) -> TaskSpec:
        """Specification; see `hil_tasks.task.Task`."""
        x, y, z = CENTRE
        return TaskSpec(
            name=self.name,
            max_episode_steps=50,
            action_scale=ActionScale(translation=0.02, rotation=0.05),
            leash=Leash(translation=0.02, rotation=0.15),
            workspace=Workspace(
                low=(x - 0.2, y - 0.2, z - 0.18), high=(x + 0.2, y + 0.2, z + 0.2)
            ),
            orientation=OrientationLimit(tabletop.TOOL_DOWN, cone=0.35, twist=0.6),
            speed=tabletop.SPEED,
            reset=ResetSpec(
                CENTRE, tabletop.TOOL_DOWN, lift=0.0, linear_speed=0.2, angular_speed=0.8
            ),
            compliance={
                "policy": tabletop.compliance(0.02, 0.15),
                "reset": tabletop.compliance(0.02, 0.3),
            },
            observation={
                "achieved": TensorSpec(
                    (3,),
                    low=-5,
                    high=5,
                    scale=(0.1,),
                    doc="tool centre point from the workspace's centre, m",
                ),
                "desired": TensorSpec(
                    (3,), low=-5, high=5, scale=(0.1,), doc="goal from the workspace's centre, m"
                ),
                "rotation": TensorSpec(
                    (3,),
                    low=-5,
                    high=5,
                    scale=(0.1,),
                    doc="rotation vector from the tool pointing down, rad",
                ),
                "twist": TensorSpec(
                    (6,),
                    low=-5,
                    high=5,
                    scale=(0.2,) * 3 + (1.0,) * 3,
                    doc="twist of the tool centre point, m/s and rad/s",
                ),
            },
        )

    def observe(self, reading: Reading) -> Observation:
        """Observation; see the specification."""
        goal = self.object_pose(reading, GOAL)
        level = self.spec.reset.pose.rotation
        return self.tensors(
            {
                "achieved": reading.pose.position - CENTRE,
                "desired": goal.position - CENTRE,
                "rotation": (reading.pose.rotation * level.inv()).as_rotvec(),
                "twist": reading.twist,
            }
        )

    def reward(self, reading: Reading) -> Outcome:
        """1 and the end within the tolerance of the goal, else 0."""
        goal = self.object_pose(reading, GOAL)
        distance = float(np.linalg.norm(reading.pose.position - goal.position))
        reached = distance <= self.params.tolerance
        return Outcome(float(reached), reached, reached)

    def goals(self) -> Goals:
        """Pairs of "achieved" and "desired", judged as in `reward`; distances in m."""
        scale, tolerance = self.spec.observation["achieved"].scale[0], self.params.tolerance

        def distance(achieved: Tensors, desired: Tensors) -> NDArray[Any]:
            offset = achieved["achieved"] - desired["desired"]
            return np.asarray(np.linalg.norm(offset, axis=-1) * scale)

        def reached(achieved: Tensors, desired: Tensors) -> NDArray[np.bool_]:
            return np.asarray(distance(achieved, desired) <= tolerance)

        return Goals(
            achieved=("achieved",),
            desired=("desired",),
            reward=lambda achieved, desired: reached(achieved, desired).astype(np.float32),
            terminated=reached,
            distance=distance,
            tolerance=tolerance,
        )

    def sample_start(self, rng: np.random.Generator) -> Pose:
        """Start near the workspace's centre, tool down."""
        offset = rng.uniform(-self.params.start_range, self.params.start_range, 3)
        return Pose(np.asarray(CENTRE) + offset, tabletop.tool_down())

    def sample_world(self, rng: np.random.Generator) -> dict[str, Pose]:
        """Goal in a cube around the workspace's centre."""
        offset = [uniform(rng, self.params.goal_range) for _ in range(3)]
        return {GOAL: Pose(np.asarray(CENTRE) + offset, tabletop.tool_down())}

    def scene(self) -> Scene:
        """Goal as a green ball that nothing touches."""
        ball = (
            f'<geom type="sphere" size="{self.params.tolerance}" rgba="0.2 0.8 0.3 0.8" '
            'contype="0" conaffinity="0"/>'
        )
        return Scene(objects=(SceneObject(GOAL, ball),), cameras=tabletop.cameras(CENTRE))
