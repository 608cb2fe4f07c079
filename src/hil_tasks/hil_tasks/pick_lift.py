"""Pick and lift: grasp a cube on the table and carry it up. One arm, one gripper.

The pose of the cube is known, as from a tracker: what has to be learned is when to close the hand
and when to lift. Reward is sparse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from hil_tasks import tabletop
from hil_tasks.actions import ActionScale
from hil_tasks.geometry import Pose, pose_offset
from hil_tasks.scene import Scene, SceneObject
from hil_tasks.spec import (
    Leash,
    OrientationLimit,
    ResetSpec,
    TaskSpec,
    TensorSpec,
    Workspace,
)
from hil_tasks.task import Observation, Outcome, Reading, Task, uniform

CUBE = "cube"
CENTRE = (0.5, 0.0)
OPEN = 1


@dataclass(frozen=True)
class PickLiftParams:
    """Numbers of the task, m, rad, kg.

    Attributes:
        half_edge: of the cube.
        mass: of the cube.
        lift: of the cube's centre over where it rests, which counts as lifted.
        grasp_distance: of the tool centre point from the cube's centre, at most, while lifted.
        steady: speed of the hand at most, m/s: a cube that is held then stays up.
        cube_range, cube_yaw: the cube lies within +-range of the nominal place, +-yaw.
        start_range: an episode starts within +-range of the nominal place in the plane,
        start_height: with the tool centre point this high above the table (lowest, highest),
        start_yaw: and turned by up to this.
    """

    half_edge: float = 0.02
    mass: float = 0.05
    lift: float = 0.1
    grasp_distance: float = 0.03
    steady: float = 0.1
    cube_range: float = 0.05
    cube_yaw: float = 0.3
    start_range: float = 0.05
    start_height: tuple[float, float] = (0.10, 0.14)
    start_yaw: float = 0.1


class PickLift(Task):
    """Lift the cube: reward 1 and the end when the hand holds it high enough, and steadily.

    An action has a gripper command behind the six of the arm. The hand opens at a reset.
    """

    name = "pick_lift"
    Params = PickLiftParams
    params: PickLiftParams

    def build_spec(self) -> TaskSpec:
        """Specification; see `hil_tasks.task.Task`."""
        x, y = CENTRE
        p = self.params
        reach = max(p.cube_range, p.start_range) + 0.05
        top = p.half_edge + p.lift + 0.04
        leash = Leash(translation=0.02, rotation=0.1)
        return TaskSpec(
            name=self.name,
            max_episode_steps=100,
            action_scale=ActionScale(translation=0.015, rotation=0.05),
            leash=leash,
            workspace=Workspace(
                low=(x - reach, y - reach, 0.012),
                high=(x + reach, y + reach, max(top, p.start_height[1] + 0.02)),
            ),
            orientation=OrientationLimit(tabletop.TOOL_DOWN, cone=0.15, twist=0.5),
            speed=tabletop.SPEED,
            reset=ResetSpec(
                (x, y, sum(p.start_height) / 2),
                tabletop.TOOL_DOWN,
                lift=0.0,
                linear_speed=0.15,
                angular_speed=0.8,
                gripper=OPEN,
            ),
            compliance={
                "policy": tabletop.compliance(0.01, 0.1),
                "reset": tabletop.compliance(0.015, 0.2),
            },
            observation=_tensors(leash),
            grippers=(True,),
        )

    def observe(self, reading: Reading) -> Observation:
        """Observation in base axes, relative to the cube; see the specification."""
        cube = self.object_pose(reading, CUBE)
        if reading.target is None:
            raise ValueError("pick_lift needs the target in the reading")
        offset = reading.pose.position - cube.position
        values = {
            "position": offset,
            "near": offset,
            "rotation": (reading.pose.rotation * self.aligned(cube).inv()).as_rotvec(),
            "height": reading.pose.position[2:],
            "lifted": np.array([self.lifted(cube)]),
            "width": np.array([reading.gripper_width]),
            "twist": reading.twist,
            "wrench": reading.wrench,
            "command": pose_offset(reading.target, reading.pose),
        }
        return self.tensors(values)

    def reward(self, reading: Reading) -> Outcome:
        """1 and the end when the cube is up, in the hand, and the hand is steady; else 0."""
        p, cube = self.params, self.object_pose(reading, CUBE)
        near = np.linalg.norm(reading.pose.position - cube.position) <= p.grasp_distance
        steady = np.linalg.norm(reading.twist[:3]) <= p.steady
        done = bool(self.lifted(cube) >= p.lift and near and steady)
        return Outcome(float(done), done, done)

    def lifted(self, cube: Pose) -> float:
        """Height of the cube's centre over where it rests, m."""
        return float(cube.position[2]) - self.params.half_edge

    def aligned(self, cube: Pose) -> Rotation:
        """Orientation of the tool, pointing down, whose fingers are parallel to the cube's sides.

        Of the four it is the one that is turned least.
        """
        across = cube.rotation.as_matrix()[:2, 0]
        yaw = float(np.arctan2(across[1], across[0]))
        quarter = np.pi / 2
        return tabletop.tool_down(yaw - quarter * round(yaw / quarter))

    def sample_start(self, rng: np.random.Generator) -> Pose:
        """Tool above the table, slightly turned."""
        p = self.params
        x, y = (centre + uniform(rng, p.start_range) for centre in CENTRE)
        height = float(rng.uniform(*p.start_height))
        return Pose(np.array([x, y, height]), tabletop.tool_down(uniform(rng, p.start_yaw)))

    def sample_world(self, rng: np.random.Generator) -> dict[str, Pose]:
        """Cube on the table."""
        p = self.params
        x, y = (centre + uniform(rng, p.cube_range) for centre in CENTRE)
        yaw = Rotation.from_rotvec([0.0, 0.0, uniform(rng, p.cube_yaw)])
        return {CUBE: Pose(np.array([x, y, p.half_edge]), yaw)}

    def scene(self) -> Scene:
        """Cube, and a hand whose fingers can grasp it."""
        p = self.params
        cube = (
            f'<geom type="box" size="{p.half_edge} {p.half_edge} {p.half_edge}" mass="{p.mass}" '
            'rgba="0.85 0.25 0.2 1" condim="4" friction="1 0.02 0.0001" solref="0.004 1" '
            'solimp="0.95 0.99 0.0005" priority="1"/>'
        )
        x, y = CENTRE
        return Scene(
            objects=(SceneObject(CUBE, cube, free=True),),
            grasping=True,
            cameras=tabletop.cameras((x, y, 0.06)),
        )


def _tensors(leash: Leash) -> dict[str, TensorSpec]:
    return {
        "position": TensorSpec(
            (3,),
            low=-10,
            high=10,
            scale=(0.05,),
            doc="tool centre point from the cube's centre, m",
        ),
        "near": TensorSpec(
            (3,), low=-1, high=1, scale=(0.015,), doc="the same, enlarged and clipped"
        ),
        "rotation": TensorSpec(
            (3,),
            low=-10,
            high=10,
            scale=(0.1,),
            doc="rotation vector from the tool pointing down, parallel to the cube, rad",
        ),
        "height": TensorSpec((1,), low=-10, high=10, scale=(0.1,), doc="of the tool, m"),
        "lifted": TensorSpec(
            (1,), low=-10, high=10, scale=(0.1,), doc="cube over where it rests, m"
        ),
        "width": TensorSpec((1,), low=0, high=10, scale=(0.04,), doc="between the fingers, m"),
        "twist": TensorSpec(
            (6,),
            low=-10,
            high=10,
            scale=(0.1,) * 3 + (0.5,) * 3,
            doc="twist of the tool centre point, m/s and rad/s",
        ),
        "wrench": TensorSpec(
            (6,),
            low=-10,
            high=10,
            scale=(10.0,) * 3 + (1.0,) * 3,
            doc="external, on the tool centre point, N and Nm",
        ),
        "command": TensorSpec(
            (6,),
            low=-2,
            high=2,
            scale=(leash.translation,) * 3 + (leash.rotation,) * 3,
            doc="controller's target from the measured pose, m and rotation vector in rad",
        ),
    }
