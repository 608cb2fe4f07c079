"""Peg insertion: a square peg in the hand, a tight hole whose pose is known with an error.

Two poses of the hole exist. "hole" is the estimate that a vision system would give: it carries
an error that is drawn once per episode, and it is all that the policy and the operator see.
"hole_true" is the truth: physics and reward use it. So the last millimetre has to be found by
touch: position, force and torque say where the peg hangs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from hil_tasks import tabletop
from hil_tasks.actions import ActionScale
from hil_tasks.geometry import Array, Pose, pose_offset
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

HOLE = "hole"
HOLE_TRUE = "hole_true"
CENTRE = (0.5, 0.0)


@dataclass(frozen=True)
class PegInsertParams:
    """Numbers of the peg insertion, m and rad.

    Attributes:
        peg_half_width: half edge of the square peg.
        peg_length: from the tool centre point to the tip.
        peg_edge: radius of the peg's edges (they guide it in, as a chamfer would).
        clearance: gap on each side of the centred peg.
        block_height: height of the block's top over the table.
        hole_depth: of the hole.
        success_depth: of the tip below the block's top that counts as inserted.
        hole_range, hole_yaw: the hole lies within +-range of the nominal place, +-yaw.
        estimate_error: the estimate of the hole's centre is off by up to this much in the plane,
            and by at least estimate_error_min; direction uniform.
        estimate_yaw_error: its yaw is off by up to this.
        start_range: an episode starts within +-range of the nominal place in the plane,
        start_height: with the tip this high above the block (lowest, highest),
        start_tilt, start_yaw: and turned by up to this.
        observe_target: the observation also has how far the controller's target is ahead of the
            measured pose ("command"): with actions relative to the target that is part of the
            state.
    """

    peg_half_width: float = 0.010
    peg_length: float = 0.04
    peg_edge: float = 0.0007
    clearance: float = 0.0006
    block_height: float = 0.04
    hole_depth: float = 0.03
    success_depth: float = 0.015
    hole_range: float = 0.015
    hole_yaw: float = 0.1
    estimate_error_min: float = 0.0015
    estimate_error: float = 0.0025
    estimate_yaw_error: float = 0.01
    start_range: float = 0.015
    start_height: tuple[float, float] = (0.015, 0.03)
    start_tilt: float = 0.05
    start_yaw: float = 0.1
    observe_target: bool = True


class PegInsert(Task):
    """Insert the peg: reward 1 and the end when the tip is deep enough in the true hole."""

    name = "peg_insert"
    Params = PegInsertParams
    params: PegInsertParams

    def build_spec(self) -> TaskSpec:
        """Specification; see `hil_tasks.task.Task`."""
        x, y = CENTRE
        p = self.params
        inserted = p.block_height + p.peg_length - p.hole_depth
        start = p.block_height + p.peg_length + sum(p.start_height) / 2
        leash = Leash(translation=0.01, rotation=0.1)
        return TaskSpec(
            name=self.name,
            max_episode_steps=100,
            action_scale=ActionScale(translation=0.005, rotation=0.025),
            leash=leash,
            workspace=Workspace(
                low=(x - 0.05, y - 0.05, inserted - 0.002), high=(x + 0.05, y + 0.05, start + 0.05)
            ),
            orientation=OrientationLimit(tabletop.TOOL_DOWN, cone=0.12, twist=0.3),
            speed=tabletop.SPEED,
            reset=ResetSpec(
                (x, y, start), tabletop.TOOL_DOWN, lift=0.06, linear_speed=0.15, angular_speed=0.8
            ),
            compliance={
                "policy": tabletop.compliance(0.0075, 0.1),
                "reset": tabletop.compliance(0.015, 0.2),
            },
            observation=self._tensors(leash),
        )

    def _tensors(self, leash: Leash) -> dict[str, TensorSpec]:
        tensors = {
            "position": TensorSpec(
                (3,),
                low=-10,
                high=10,
                scale=(0.02,),
                doc="tip of the peg from the estimated hole's mouth, m",
            ),
            "near": TensorSpec(
                (3,),
                low=-1,
                high=1,
                scale=(0.004,),
                doc="the same, enlarged and clipped: the last millimetres",
            ),
            "rotation": TensorSpec(
                (3,),
                low=-10,
                high=10,
                scale=(0.1,),
                doc="rotation vector from the peg upright in the estimated hole, rad",
            ),
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
                scale=(10.0,) * 3 + (0.1,) * 3,
                doc="external force, and its moment about the peg's tip: "
                "which side of the peg is carried, N and Nm",
            ),
        }
        if self.params.observe_target:
            scale = (leash.translation,) * 3 + (leash.rotation,) * 3
            tensors["command"] = TensorSpec(
                (6,),
                low=-2,
                high=2,
                scale=scale,
                doc="controller's target from the measured pose, m and rotation vector in rad",
            )
        return tensors

    def observe(self, reading: Reading) -> Observation:
        """Observation in base axes, relative to the estimated hole; see the specification."""
        hole = self.object_pose(reading, HOLE)
        tip = self.tip(reading.pose)
        offset = tip - hole.position
        force, moment = reading.wrench[:3], reading.wrench[3:]
        at_tip = moment - np.cross(tip - reading.pose.position, force)
        upright = hole.rotation * Rotation.from_quat(tabletop.TOOL_DOWN)
        values = {
            "position": offset,
            "near": offset,
            "rotation": (reading.pose.rotation * upright.inv()).as_rotvec(),
            "twist": reading.twist,
            "wrench": np.concatenate((force, at_tip)),
        }
        if self.params.observe_target:
            if reading.target is None:
                raise ValueError("peg_insert with observe_target needs the target in the reading")
            values["command"] = pose_offset(reading.target, reading.pose)
        return self.tensors(values)

    def reward(self, reading: Reading) -> Outcome:
        """1 and the end when the tip is deep enough in the true hole, else 0."""
        hole = self.object_pose(reading, HOLE_TRUE)
        x, y, z = hole.inverse().apply(self.tip(reading.pose))
        inside = max(abs(x), abs(y)) < self.params.peg_half_width
        inserted = bool(inside and z <= -self.params.success_depth)
        return Outcome(float(inserted), inserted, inserted)

    def tip(self, tcp: Pose) -> Array:
        """Position (3,) of the peg's tip for a pose of the tool centre point."""
        return tcp.apply((0.0, 0.0, self.params.peg_length))

    def sample_start(self, rng: np.random.Generator) -> Pose:
        """Tip a few centimetres above the block, beside the hole, slightly turned."""
        p = self.params
        x, y = (centre + uniform(rng, p.start_range) for centre in CENTRE)
        height = p.block_height + p.peg_length + float(rng.uniform(*p.start_height))
        tilt = (uniform(rng, p.start_tilt), uniform(rng, p.start_tilt))
        rotation = tabletop.tool_down(uniform(rng, p.start_yaw), tilt)
        return Pose(np.array([x, y, height]), rotation)

    def sample_world(self, rng: np.random.Generator) -> dict[str, Pose]:
        """Draw the true pose of the hole's mouth (z up), and its estimate."""
        p = self.params
        x, y = (centre + uniform(rng, p.hole_range) for centre in CENTRE)
        yaw = uniform(rng, p.hole_yaw)
        direction = float(rng.uniform(0.0, 2.0 * math.pi))
        size = float(rng.uniform(p.estimate_error_min, p.estimate_error))
        yaw_error = uniform(rng, p.estimate_yaw_error)
        true = Pose(np.array([x, y, p.block_height]), Rotation.from_rotvec([0.0, 0.0, yaw]))
        error = size * np.array([math.cos(direction), math.sin(direction), 0.0])
        turned = Rotation.from_rotvec([0.0, 0.0, yaw + yaw_error])
        return {HOLE: Pose(true.position + error, turned), HOLE_TRUE: true}

    def scene(self) -> Scene:
        """Block with the hole (four walls and a floor), and the peg in the hand.

        The peg touches with its four long edges, rounded: what a square peg in a square hole does.
        """
        p = self.params
        x, y = CENTRE
        return Scene(
            objects=(SceneObject(HOLE_TRUE, self._block()),),
            tool=self._peg(),
            tool_width=2.0 * p.peg_half_width,
            cameras=tabletop.cameras((x, y, p.block_height + 0.02)),
        )

    def _block(self) -> str:
        p = self.params
        inner = p.peg_half_width + p.clearance
        wall = 0.02
        outer = inner + wall
        half_depth = p.hole_depth / 2
        floor = (p.block_height - p.hole_depth) / 2
        surface = 'class="part" rgba="0.35 0.42 0.55 1"'
        walls = [
            (inner + wall / 2, 0.0, wall / 2, outer),
            (-inner - wall / 2, 0.0, wall / 2, outer),
            (0.0, inner + wall / 2, inner, wall / 2),
            (0.0, -inner - wall / 2, inner, wall / 2),
        ]
        geoms = [
            f'<geom type="box" pos="{cx} {cy} {-half_depth}" size="{sx} {sy} {half_depth}" '
            f"{surface}/>"
            for cx, cy, sx, sy in walls
        ]
        if floor > 0.0:
            geoms.append(
                f'<geom type="box" pos="0 0 {-p.hole_depth - floor}" '
                f'size="{outer} {outer} {floor}" {surface}/>'
            )
        return "".join(geoms)

    def _peg(self) -> str:
        p = self.params
        top = -0.01
        half = (p.peg_length - top) / 2
        size = p.peg_half_width
        look = (
            f'<geom type="box" pos="0 0 {top + half}" size="{size} {size} {half}" '
            'class="visual" rgba="0.85 0.55 0.2 1"/>'
        )
        edge = size - p.peg_edge
        edges = "".join(
            f'<geom type="capsule" class="tool" size="{p.peg_edge}" '
            f'fromto="{sx * edge} {sy * edge} {top} {sx * edge} {sy * edge} '
            f'{p.peg_length - p.peg_edge}"/>'
            for sx in (-1, 1)
            for sy in (-1, 1)
        )
        return look + edges
