"""MJCF of a task's scene for franka-sim: the arm with the task's objects, and the hand.

franka-sim attaches the hand to the flange itself, and adds gravity compensation, a ground plane
and a light.
"""

from __future__ import annotations

import math

from hil_sim import fr3, mjcf
from hil_tasks.scene import Scene

TIMESTEP = 0.001  # s; franka-sim answers one command per physics step
FINGER_MASS = 0.015  # kg
FINGER_ARMATURE = 0.1  # kg; franka-sim's finger servo is tuned for it
HALF_STROKE = fr3.GRIPPER_WIDTH / 2


def arm(scene: Scene) -> str:
    """Table, arm up to the flange, the task's objects and its fixed cameras."""
    return mjcf.build(scene, TIMESTEP, hand="")


def hand(scene: Scene) -> str:
    """The hand with sliding fingers, and what the task fixes to its tool centre point.

    A tool is as good as screwed to the flange: it does not depend on the fingers, which move
    between it and their stops.
    """
    # franka-sim turns the hand by 180 degrees less than the FR3's flange does.
    return (
        f"{mjcf.head(TIMESTEP)}<worldbody>{_hand(scene, '0 0 0 1')}</worldbody>"
        '<equality><joint joint1="finger_joint1" joint2="finger_joint2" '
        'solref="0.005 1"/></equality></mujoco>'
    )


def mirror(scene: Scene) -> str:
    """Arm and hand in one, with the joints in franka-sim's order."""
    half = fr3.HAND_YAW / 2
    return mjcf.build(scene, TIMESTEP, _hand(scene, f"{math.cos(half)} 0 0 {math.sin(half)}"))


def _hand(scene: Scene, quaternion: str) -> str:
    gap = scene.tool_width / 2
    return (
        f'<body name="hand" quat="{quaternion}">{mjcf.hand_parts(scene)}'
        f"{_finger(1, 'left', gap)}{_finger(2, 'right', gap)}"
        f'<body name="hand_tcp" pos="0 0 {fr3.TCP_OFFSET}">'
        f'<inertial pos="0 0 0" mass="0.001" diaginertia="1e-6 1e-6 1e-6"/>{scene.tool}</body>'
        "</body>"
    )


def _finger(number: int, side: str, gap: float) -> str:
    turn = "" if side == "left" else ' quat="0 0 0 1"'
    return (
        f'<body name="{side}_finger" pos="0 0 {fr3.FINGER_OFFSET}"{turn}>'
        f'<inertial pos="0 0 0.02" mass="{FINGER_MASS}" diaginertia="1e-5 1e-5 1e-5"/>'
        f'<joint name="finger_joint{number}" type="slide" axis="0 1 0" '
        f'range="{gap} {HALF_STROKE}" armature="{FINGER_ARMATURE}" damping="10"/>'
        f"{mjcf.shapes(fr3.FINGER_SHAPES, 'hand')}</body>"
    )
