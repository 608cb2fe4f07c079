"""Facts of the Franka Research 3: kinematics, inertias, limits, and shapes to draw it with.

Kinematics, inertias and limits follow the public FR3 description (Apache-2.0); armature and
damping are the published values for the FR3 in MuJoCo Menagerie. Quaternions here are wxyz, as
MJCF has them. The shapes are primitives of our own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Vector3 = tuple[float, float, float]
Vector4 = tuple[float, float, float, float]

_UP: Vector4 = (1.0, 0.0, 0.0, 0.0)
_PLUS: Vector4 = (0.707106781, 0.707106781, 0.0, 0.0)
_MINUS: Vector4 = (0.707106781, -0.707106781, 0.0, 0.0)


@dataclass(frozen=True)
class Shape:
    """A primitive that is drawn: cylinder, capsule (both between two points) or box.

    Attributes:
        kind: "cylinder", "capsule" or "box".
        numbers: six numbers: the two end points, or centre and half sizes.
        radius: of cylinder and capsule, m.
        colour: "shell" (white), "joint" (grey) or "dark".
    """

    kind: str
    numbers: tuple[float, float, float, float, float, float]
    radius: float = 0.0
    colour: str = "shell"


@dataclass(frozen=True)
class Link:
    """A link, with the joint that moves it (about its own z axis).

    Attributes:
        position, quaternion: of its frame in the parent link, m and wxyz.
        mass: kg.
        centre, inertia_quaternion, inertia: centre of mass (m), principal axes (wxyz), kg m^2.
        limits: joint range, rad.
        effort: torque limit, Nm.
        velocity: speed limit, rad/s.
        armature: reflected rotor inertia, kg m^2.
        damping: Nm s/rad.
        friction: Coulomb friction, Nm.
        shapes: primitives in the link's frame.
    """

    position: Vector3
    quaternion: Vector4
    mass: float
    centre: Vector3
    inertia_quaternion: Vector4
    inertia: Vector3
    limits: tuple[float, float]
    effort: float
    velocity: float
    armature: float
    damping: float
    friction: float
    shapes: tuple[Shape, ...]


BASE_SHAPES = (
    Shape("cylinder", (0.0, 0.0, 0.0, 0.0, 0.0, 0.14), 0.07),
    Shape("box", (-0.07, 0.0, 0.04, 0.07, 0.06, 0.04)),
)

LINKS = (
    Link(
        (0.0, 0.0, 0.333),
        _UP,
        2.92747,
        (4.128e-07, -0.0181251, -0.0386036),
        (0.998098, -0.0605364, 0.00380499, 0.0110109),
        (0.0239286, 0.0227246, 0.00610634),
        (-2.7501, 2.7501),
        87.0,
        2.62,
        0.195,
        0.21,
        1.137,
        (
            Shape("cylinder", (0.0, 0.0, -0.19, 0.0, 0.0, -0.05), 0.062),
            Shape("cylinder", (0.0, -0.075, 0.0, 0.0, 0.075, 0.0), 0.062, "joint"),
        ),
    ),
    Link(
        (0.0, 0.0, 0.0),
        _MINUS,
        2.93554,
        (0.00318289, -0.0743222, 0.00881461),
        (0.502599, 0.584437, -0.465998, 0.434366),
        (0.0629567, 0.0411924, 0.0246371),
        (-1.7918, 1.7918),
        87.0,
        2.62,
        0.195,
        0.21,
        1.137,
        (
            Shape("capsule", (0.0, -0.02, 0.0, 0.0, -0.12, 0.0), 0.06),
            Shape("cylinder", (0.0, -0.12, 0.0, 0.0, -0.2, 0.0), 0.062),
        ),
    ),
    Link(
        (0.0, -0.316, 0.0),
        _PLUS,
        2.2449,
        (0.0407016, -0.00482006, -0.0289731),
        (0.921025, -0.244161, 0.155272, 0.260745),
        (0.0267409, 0.0189869, 0.0171587),
        (-2.9065, 2.9065),
        87.0,
        2.62,
        0.195,
        0.21,
        1.137,
        (
            Shape("cylinder", (0.0, 0.0, -0.12, 0.0, 0.0, -0.05), 0.06),
            Shape("capsule", (0.0, 0.0, -0.06, 0.0825, 0.0, -0.01), 0.052),
            Shape("cylinder", (0.0825, -0.065, 0.0, 0.0825, 0.065, 0.0), 0.056, "joint"),
        ),
    ),
    Link(
        (0.0825, 0.0, 0.0),
        _PLUS,
        2.6156,
        (-0.0459101, 0.0630493, -0.00851879),
        (0.438018, 0.803311, 0.00937812, 0.403414),
        (0.05139, 0.0372717, 0.0160047),
        (-3.0481, -0.1458),
        87.0,
        2.62,
        0.195,
        0.21,
        1.137,
        (
            Shape("capsule", (0.0, 0.0, 0.0, -0.0825, 0.07, 0.0), 0.052),
            Shape("cylinder", (-0.0825, 0.07, 0.0, -0.0825, 0.13, 0.0), 0.06),
        ),
    ),
    Link(
        (-0.0825, 0.384, 0.0),
        _MINUS,
        2.32712,
        (-0.00160396, 0.0292536, -0.0972966),
        (0.919031, 0.125604, 0.0751531, -0.366003),
        (0.0579335, 0.0449144, 0.0130634),
        (-2.8101, 2.8101),
        12.0,
        5.26,
        0.074,
        0.053,
        0.763,
        (
            Shape("cylinder", (0.0, 0.0, -0.26, 0.0, 0.0, -0.2), 0.058),
            Shape("capsule", (0.0, 0.03, -0.2, 0.0, 0.085, -0.08), 0.038),
            Shape("capsule", (0.0, 0.085, -0.08, 0.0, 0.07, 0.0), 0.04),
            Shape("cylinder", (0.0, -0.01, 0.0, 0.0, 0.09, 0.0), 0.05, "joint"),
        ),
    ),
    Link(
        (0.0, 0.0, 0.0),
        _PLUS,
        1.81704,
        (0.0597131, -0.0410295, -0.0101693),
        (0.621301, 0.552665, 0.510011, 0.220081),
        (0.0175039, 0.0161123, 0.00193529),
        (0.54092, 4.5205),
        12.0,
        4.18,
        0.074,
        0.053,
        0.44,
        (
            Shape("cylinder", (0.0, 0.0, -0.05, 0.0, 0.0, 0.06), 0.048),
            Shape("capsule", (0.0, 0.0, 0.0, 0.088, 0.0, 0.0), 0.045),
            Shape("cylinder", (0.088, -0.045, 0.0, 0.088, 0.05, 0.0), 0.046, "joint"),
        ),
    ),
    Link(
        (0.088, 0.0, 0.0),
        _PLUS,
        0.627143,
        (0.00452258, 0.00862619, -0.0161633),
        (0.727579, 0.0978688, -0.24906, 0.63168),
        (0.000223836, 0.000223642, 5.64132e-07),
        (-3.0196, 3.0196),
        12.0,
        5.26,
        0.074,
        0.053,
        0.248,
        (
            Shape("cylinder", (0.0, 0.0, 0.04, 0.0, 0.0, 0.1), 0.045),
            Shape("cylinder", (0.0, 0.0, 0.1, 0.0, 0.0, 0.107), 0.032, "dark"),
        ),
    ),
)

FLANGE_OFFSET = 0.107  # link 7 to link 8 along z, m
HAND_YAW = -np.pi / 4  # hand on link 8, about z, rad
HAND_MASS = 0.73  # kg
TCP_OFFSET = 0.1034  # hand to tool centre point along z, m
FINGER_OFFSET = 0.0584  # hand to finger frame along z, m
GRIPPER_WIDTH = 0.08  # largest gap between the fingers, m
FINGER_MASS = 0.015  # kg
GRASP_FORCE = 30.0  # of each finger, N

HAND_SHAPES = (
    Shape("box", (0.0, 0.0, 0.033, 0.03, 0.1, 0.033)),
    Shape("box", (0.0, 0.0, 0.061, 0.018, 0.1, 0.005), 0.0, "dark"),
)
FINGER_SHAPES = (
    Shape("box", (0.0, 0.0085, 0.013, 0.01, 0.0085, 0.015), 0.0, "dark"),
    Shape("box", (0.0, 0.006, 0.04, 0.0085, 0.006, 0.0125), 0.0, "dark"),
)

JOINTS = tuple(f"fr3_joint{index}" for index in range(1, 8))
FINGER_JOINTS = ("fr3_finger_joint1", "fr3_finger_joint2")
HOME = np.array([0.0, -np.pi / 4, 0.0, -3 * np.pi / 4, 0.0, np.pi / 2, np.pi / 4])

LIMITS = np.array([link.limits for link in LINKS])  # (7, 2) rad
EFFORT = np.array([link.effort for link in LINKS])  # (7,) Nm
VELOCITY = np.array([link.velocity for link in LINKS])  # (7,) rad/s

COLOURS = {
    "shell": (0.93, 0.93, 0.93, 1.0),
    "joint": (0.74, 0.75, 0.77, 1.0),
    "dark": (0.23, 0.24, 0.26, 1.0),
}
