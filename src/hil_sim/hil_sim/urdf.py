"""URDF of the simulated arm for rviz, and its chain of transforms, from the same facts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.spatial.transform import Rotation

from hil_sim import fr3
from hil_tasks.geometry import Array
from hil_tasks.scene import Camera

Transform = tuple[str, str, tuple[float, float, float], tuple[float, float, float, float]]

_NO_TURN = (0.0, 0.0, 0.0, 1.0)


def build(base_frame: str) -> str:
    """URDF text. Frames: base, fr3_link0..8, fr3_hand, fr3_hand_tcp, the two fingers."""
    parts = [
        _link(base_frame, ()),
        _fixed(base_frame, "fr3_link0", (0, 0, 0), (0, 0, 0)),
        _link("fr3_link0", fr3.BASE_SHAPES),
    ]
    for index, link in enumerate(fr3.LINKS, start=1):
        w, x, y, z = link.quaternion
        angles = Rotation.from_quat([x, y, z, w]).as_euler("xyz")
        low, high = link.limits
        parts += [
            f'<joint name="{fr3.JOINTS[index - 1]}" type="revolute">'
            f'<parent link="fr3_link{index - 1}"/><child link="fr3_link{index}"/>'
            f"{_origin(link.position, angles)}"
            f'<axis xyz="0 0 1"/><limit lower="{low}" upper="{high}" effort="{link.effort}" '
            f'velocity="{link.velocity}"/></joint>',
            _link(f"fr3_link{index}", link.shapes),
        ]
    parts += [
        _fixed("fr3_link7", "fr3_link8", (0, 0, fr3.FLANGE_OFFSET), (0, 0, 0)),
        _link("fr3_link8", ()),
        _fixed("fr3_link8", "fr3_hand", (0, 0, 0), (0, 0, fr3.HAND_YAW)),
        _link("fr3_hand", fr3.HAND_SHAPES),
        _fixed("fr3_hand", "fr3_hand_tcp", (0, 0, fr3.TCP_OFFSET), (0, 0, 0)),
        _link("fr3_hand_tcp", ()),
    ]
    for joint, side, turn in zip(
        fr3.FINGER_JOINTS, ("left", "right"), (0.0, math.pi), strict=True
    ):
        parts += [
            f'<joint name="{joint}" type="prismatic"><parent link="fr3_hand"/>'
            f'<child link="fr3_{side}finger"/>{_origin((0, 0, fr3.FINGER_OFFSET), (0, 0, turn))}'
            f'<axis xyz="0 1 0"/><limit lower="0" upper="{fr3.GRIPPER_WIDTH / 2}" effort="100" '
            'velocity="0.2"/></joint>',
            _link(f"fr3_{side}finger", fr3.FINGER_SHAPES),
        ]
    return f'<?xml version="1.0"?><robot name="fr3">{"".join(parts)}</robot>'


def transforms(q: Sequence[float], width: float) -> list[Transform]:
    """Moving transforms (parent, child, xyz, quaternion xyzw) for joint positions (7,) rad."""
    chain: list[Transform] = []
    for index, (link, angle) in enumerate(zip(fr3.LINKS, q, strict=True), start=1):
        # The fixed turns are about x only: (w, x) times a turn about z.
        w, x, _, _ = link.quaternion
        c, s = math.cos(angle / 2), math.sin(angle / 2)
        turned = (x * c, -x * s, w * s, w * c)
        chain.append((f"fr3_link{index - 1}", f"fr3_link{index}", link.position, turned))
    half = width / 2
    chain.append(("fr3_hand", "fr3_leftfinger", (0.0, half, fr3.FINGER_OFFSET), _NO_TURN))
    chain.append(
        ("fr3_hand", "fr3_rightfinger", (0.0, -half, fr3.FINGER_OFFSET), (0.0, 0.0, 1.0, 0.0))
    )
    return chain


def optical_frame(camera: str) -> str:
    """Frame id of a camera's images (REP-103: z forward, x right, y down)."""
    return f"{camera}_optical_frame"


def fixed_transforms(base_frame: str, cameras: Sequence[Camera] = ()) -> list[Transform]:
    """Fixed transforms, for /tf_static; the cameras' optical frames among them."""
    yaw = (0.0, 0.0, math.sin(fr3.HAND_YAW / 2), math.cos(fr3.HAND_YAW / 2))
    return [
        (base_frame, "fr3_link0", (0.0, 0.0, 0.0), _NO_TURN),
        ("fr3_link7", "fr3_link8", (0.0, 0.0, fr3.FLANGE_OFFSET), _NO_TURN),
        ("fr3_link8", "fr3_hand", (0.0, 0.0, 0.0), yaw),
        ("fr3_hand", "fr3_hand_tcp", (0.0, 0.0, fr3.TCP_OFFSET), _NO_TURN),
        *(_camera(base_frame, camera) for camera in cameras),
    ]


def _camera(base_frame: str, camera: Camera) -> Transform:
    right, up = np.array(camera.xyaxes[:3]), np.array(camera.xyaxes[3:])
    axes = np.column_stack((right, -up, np.cross(up, right)))
    x, y, z, w = Rotation.from_matrix(axes).as_quat().tolist()
    parent = "fr3_hand" if camera.parent == "hand" else base_frame
    return (parent, optical_frame(camera.name), camera.position, (x, y, z, w))


def _fixed(parent: str, child: str, xyz: Sequence[float], rpy: Sequence[float]) -> str:
    return (
        f'<joint name="{child}_joint" type="fixed"><parent link="{parent}"/>'
        f'<child link="{child}"/>{_origin(xyz, rpy)}</joint>'
    )


def _origin(xyz: Sequence[float] | Array, rpy: Sequence[float] | Array) -> str:
    return f'<origin xyz="{_row(xyz)}" rpy="{_row(rpy)}"/>'


def _link(name: str, shapes: Sequence[fr3.Shape]) -> str:
    return f'<link name="{name}">{"".join(_visual(shape) for shape in shapes)}</link>'


def _visual(shape: fr3.Shape) -> str:
    if shape.kind == "box":
        centre, half = np.array(shape.numbers[:3]), np.array(shape.numbers[3:])
        geometry, angles = f'<box size="{_row(2 * half)}"/>', np.zeros(3)
    else:
        start, end = np.array(shape.numbers[:3]), np.array(shape.numbers[3:])
        axis = end - start
        length = float(np.linalg.norm(axis))
        centre = (start + end) / 2
        # URDF knows no capsule: a cylinder that is one radius longer stands for it.
        extra = shape.radius if shape.kind == "capsule" else 0.0
        geometry = f'<cylinder radius="{shape.radius}" length="{length + extra}"/>'
        x, y, z = axis
        angles = np.array([0.0, math.atan2(math.hypot(x, y), z), math.atan2(y, x)])
    colour = _row(fr3.COLOURS[shape.colour])
    return (
        f"<visual>{_origin(centre, angles)}<geometry>{geometry}</geometry>"
        f'<material name="{shape.colour}"><color rgba="{colour}"/></material></visual>'
    )


def _row(values: Sequence[float] | Array) -> str:
    return " ".join(f"{float(value):.9g}" for value in values)
