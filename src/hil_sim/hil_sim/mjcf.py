"""The world's MJCF, built in code: table, arm with hand, the task's objects, cameras."""

from __future__ import annotations

from collections.abc import Sequence

from hil_sim import fr3
from hil_tasks.scene import Camera, Scene

# The FR3's torque interface takes torques "without gravity and friction": it compensates both.
# What is left of the published joint friction after that compensation:
RESIDUAL_FRICTION = 0.05

_HEAD = """
<mujoco model="hil_sim">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{timestep}" integrator="implicitfast" cone="pyramidal" iterations="20"/>
  <size memory="4M"/>
  <visual>
    <global offwidth="640" offheight="640"/>
    <quality shadowsize="0" offsamples="0" numslices="16" numstacks="8" numquads="2"/>
    <headlight ambient="0.45 0.45 0.45" diffuse="0.45 0.45 0.45" specular="0 0 0"/>
    <map znear="0.02" zfar="10"/>
  </visual>
  <default>
    <geom contype="2" conaffinity="3"/>
    <default class="visual"><geom contype="0" conaffinity="0" mass="0" group="1"/></default>
    <default class="hand"><geom contype="1" conaffinity="2" mass="0" group="1"/></default>
    <default class="tool">
      <geom contype="1" conaffinity="2" mass="0" group="3" friction="0.25 0.002 0.0001"
        solref="0.004 1" solimp="0.95 0.99 0.0005" priority="1"/>
    </default>
    <default class="part">
      <geom solref="0.004 1" solimp="0.95 0.99 0.0005" friction="0.25 0.002 0.0001"/>
    </default>
  </default>
"""

# The hand's two fingers are coupled. Each is pushed with the force of a grasp towards its goal and
# braked by the joint's damping, which `hil_sim.gripper` sets so that it moves at the wanted speed.
_FINGERS = (
    f'<equality><joint joint1="{fr3.FINGER_JOINTS[0]}" joint2="{fr3.FINGER_JOINTS[1]}" '
    'solref="0.004 1"/></equality><actuator>'
    + "".join(
        f'<position joint="{name}" kp="20000" forcerange="{-fr3.GRASP_FORCE} {fr3.GRASP_FORCE}"/>'
        for name in fr3.FINGER_JOINTS
    )
    + "</actuator>"
)


def head(timestep: float) -> str:
    """Beginning of an MJCF text: options and the classes of geoms."""
    return _HEAD.format(timestep=timestep)


def build(scene: Scene, timestep: float, hand: str | None = None) -> str:
    """MJCF text of the world.

    Bodies: base, fr3_link1..7, fr3_link8, fr3_hand, fr3_leftfinger, fr3_rightfinger,
    fr3_hand_tcp, and one per object of the scene under its own name. The arm's joints come first.

    Args:
        scene: objects, tool and cameras of the task.
        timestep: of the physics, s.
        hand: body at the flange, with the hand's cameras and the tool, instead of the hand that
            is placed by its width; "": the arm ends with its flange.
    """
    fingers = _FINGERS if scene.grasping and hand is None else ""
    world = "".join(
        (
            '<light pos="0.8 -0.6 2.0" dir="-0.2 0.2 -1" diffuse="0.35 0.35 0.35" '
            'specular="0 0 0"/>',
            '<body name="base"><inertial pos="-0.017 0 0.0745" mass="2.3966" '
            'diaginertia="0.0115 0.0108 0.0067"/>',
            _arm(_hand(scene) if hand is None else hand),
            "</body>",
            '<geom name="table" type="box" pos="0.4 0 -0.02" size="0.55 0.6 0.02" '
            'rgba="0.80 0.76 0.70 1"/>',
            '<geom name="floor" type="plane" pos="0 0 -0.75" size="12 12 0.5" '
            'rgba="0.55 0.57 0.60 1" contype="0" conaffinity="0"/>',
            _cameras(scene.cameras, "base"),
            *(_object(item.name, item.mjcf, item.free) for item in scene.objects),
        )
    )
    return f"{head(timestep)}<worldbody>{world}</worldbody>{fingers}</mujoco>"


def _object(name: str, content: str, free: bool) -> str:
    joint = "<freejoint/>" if free else ""
    mocap = "" if free else ' mocap="true"'
    return f'<body name="{name}"{mocap}>{joint}{content}</body>'


def _arm(hand: str) -> str:
    text = shapes(fr3.BASE_SHAPES)
    for index, link in enumerate(fr3.LINKS, start=1):
        low, high = link.limits
        text += (
            f'<body name="fr3_link{index}" pos="{_row(link.position)}" '
            f'quat="{_row(link.quaternion)}" gravcomp="1">'
            f'<inertial pos="{_row(link.centre)}" quat="{_row(link.inertia_quaternion)}" '
            f'mass="{link.mass}" diaginertia="{_row(link.inertia)}"/>'
            f'<joint name="{fr3.JOINTS[index - 1]}" axis="0 0 1" range="{low} {high}" '
            f'armature="{link.armature}" damping="{link.damping}" '
            f'frictionloss="{link.friction * RESIDUAL_FRICTION}"/>'
        ) + shapes(link.shapes)
    flange = f'<body name="fr3_link8" pos="0 0 {fr3.FLANGE_OFFSET}">'
    return f"{text}{flange}{hand}" + "</body>" * (len(fr3.LINKS) + 1)


def _hand(scene: Scene) -> str:
    finger = "".join(
        f'<body name="fr3_{side}finger" pos="0 0 {fr3.FINGER_OFFSET}"{turn} gravcomp="1">'
        f"{_finger_joint(joint) if scene.grasping else ''}"
        f"{shapes(fr3.FINGER_SHAPES, 'hand')}</body>"
        for side, turn, joint in zip(
            ("left", "right"), ("", ' quat="0 0 0 1"'), fr3.FINGER_JOINTS, strict=True
        )
    )
    return (
        f'<body name="fr3_hand" euler="0 0 {fr3.HAND_YAW}" gravcomp="1">'
        f"{hand_parts(scene)}{finger}"
        f'<body name="fr3_hand_tcp" pos="0 0 {fr3.TCP_OFFSET}" gravcomp="1">{scene.tool}</body>'
        "</body>"
    )


def _finger_joint(name: str) -> str:
    return (
        f'<inertial pos="0 0 0.03" mass="{fr3.FINGER_MASS}" diaginertia="3e-6 3e-6 1e-6"/>'
        f'<joint name="{name}" type="slide" axis="0 1 0" armature="0.05" '
        f'range="0 {fr3.GRIPPER_WIDTH / 2}"/>'
    )


def hand_parts(scene: Scene) -> str:
    """Inertia, shapes and cameras of the hand without fingers."""
    return (
        f'<inertial pos="-0.01 0 0.03" mass="{fr3.HAND_MASS}" '
        'diaginertia="0.001 0.0025 0.0017"/>'
        f"{shapes(fr3.HAND_SHAPES, 'hand')}{_cameras(scene.cameras, 'hand')}"
    )


def shapes(primitives: Sequence[fr3.Shape], kind: str = "visual") -> str:
    """Geoms of primitives, in a class of geoms."""
    text = ""
    for shape in primitives:
        colour = _row(fr3.COLOURS[shape.colour])
        if shape.kind == "box":
            place = f'pos="{_row(shape.numbers[:3])}" size="{_row(shape.numbers[3:])}"'
        else:
            place = f'fromto="{_row(shape.numbers)}" size="{shape.radius}"'
        text += f'<geom class="{kind}" type="{shape.kind}" {place} rgba="{colour}"/>'
    return text


def _cameras(cameras: Sequence[Camera], parent: str) -> str:
    return "".join(
        f'<camera name="{camera.name}" pos="{_row(camera.position)}" '
        f'xyaxes="{_row(camera.xyaxes)}" fovy="{camera.fovy}"/>'
        for camera in cameras
        if camera.parent == parent
    )


def _row(values: Sequence[float]) -> str:
    return " ".join(repr(float(value)) for value in values)
