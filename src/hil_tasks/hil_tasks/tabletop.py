"""What the tabletop tasks share: the tool pointing down, cameras, speeds, compliance."""

from __future__ import annotations

import math

from scipy.spatial.transform import Rotation

from hil_tasks.scene import Camera
from hil_tasks.spec import ComplianceSpec, SpeedLimit, Vector4

# Tool centre point with its z axis down and its x axis along the base's x.
TOOL_DOWN: Vector4 = (1.0, 0.0, 0.0, 0.0)

SPEED = SpeedLimit(linear=0.25, angular=1.0)


def tool_down(yaw: float = 0.0, tilt: tuple[float, float] = (0.0, 0.0)) -> Rotation:
    """Tool pointing down, turned by yaw about the base's z, then tilted about base x and y."""
    lean = Rotation.from_rotvec([tilt[0], tilt[1], 0.0])
    return lean * Rotation.from_rotvec([0.0, 0.0, yaw]) * Rotation.from_quat(TOOL_DOWN)


def compliance(clip: float, rotation_clip: float) -> ComplianceSpec:
    """Stiff preset whose force is bounded by the clips (m, rad).

    The damping suits the effective mass of an FR3 over the table (6 to 11 kg with its rotors,
    0.1 to 0.7 kg m^2): between 0.55 and 0.8 of critical in translation.
    """
    return ComplianceSpec(
        translational_stiffness=(2000.0,) * 3,
        translational_damping=(170.0,) * 3,
        rotational_stiffness=(80.0,) * 3,
        rotational_damping=(9.0, 8.0, 5.0),
        error_clip=(clip,) * 3 + (rotation_clip,) * 3,
    )


def cameras(target: tuple[float, float, float]) -> tuple[Camera, ...]:
    """Wrist camera on the hand and a side camera that looks at `target` (base frame, m)."""
    wrist = Camera("wrist", "hand", (0.08, 0.0, 0.035), (0.0, 1.0, 0.0, 0.8, 0.0, 0.6), 65.0)
    x, y, z = target
    eye = (x + 0.32, y - 0.30, z + 0.24)
    return (wrist, Camera("side", "base", eye, _look_at(eye, target), 42.0))


def _look_at(
    eye: tuple[float, float, float], target: tuple[float, float, float]
) -> tuple[float, float, float, float, float, float]:
    backward = [a - b for a, b in zip(eye, target, strict=True)]
    norm = math.sqrt(sum(value * value for value in backward))
    bx, by, bz = (value / norm for value in backward)
    level = math.hypot(bx, by)
    right = (-by / level, bx / level, 0.0)
    up = (
        by * right[2] - bz * right[1],
        bz * right[0] - bx * right[2],
        bx * right[1] - by * right[0],
    )
    return (*right, *up)
