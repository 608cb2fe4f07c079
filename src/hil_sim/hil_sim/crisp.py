"""Parameters of the Cartesian impedance controller under crisp_controllers' names. No ROS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hil_sim.controller import Gains

Value = float | bool


@dataclass(frozen=True)
class Setting:
    """One parameter: default, bounds (inclusive) and meaning."""

    default: Value
    doc: str
    low: float = -math.inf
    high: float = math.inf


def _settings() -> dict[str, Setting]:
    table: dict[str, Setting] = {}
    axes = "xyz"
    for axis in axes:
        table[f"task.k_pos_{axis}"] = Setting(500.0, "translational stiffness, N/m", 0.0, 6000.0)
    for axis in axes:
        table[f"task.k_rot_{axis}"] = Setting(30.0, "rotational stiffness, Nm/rad", 0.0, 300.0)
    for axis in axes:
        table[f"task.d_pos_{axis}"] = Setting(
            -1.0, "translational damping, N s/m; below 0: 2 sqrt(k)", -1.0, 1000.0
        )
    for axis in axes:
        table[f"task.d_rot_{axis}"] = Setting(
            -1.0, "rotational damping, Nm s/rad; below 0: 2 sqrt(k)", -1.0, 100.0
        )
    for axis in axes:
        table[f"task.error_clip.{axis}"] = Setting(
            0.1, "largest position error that the spring sees, m", 1e-6, 0.5
        )
    for axis in axes:
        table[f"task.error_clip.r{axis}"] = Setting(
            0.5, "largest rotation error that the spring sees, rad", 1e-6, 1.5
        )
    table |= {
        "nullspace.stiffness": Setting(10.0, "posture stiffness, Nm/rad", 0.0, 100.0),
        "nullspace.damping": Setting(
            4.0,
            "posture damping, Nm s/rad; crisp's own default is -1 and drives the elbow",
            -1.0,
            100.0,
        ),
        "nullspace.max_tau": Setting(5.0, "bound of the posture torque per joint, Nm", 0.0, 87.0),
        "filter.target_pose": Setting(
            0.1, "share of the old target that is kept per 1 ms cycle", 0.0, 0.9999
        ),
        "limit_error": Setting(True, "clip the pose error to task.error_clip"),
        "limit_torques": Setting(True, "limit the change of torque to max_delta_tau"),
        "max_delta_tau": Setting(0.5, "largest change of torque per 1 ms cycle, Nm", 1e-3, 100.0),
        "use_operational_space": Setting(False, "weigh the task force with the inertia"),
    }
    return table


SETTINGS = _settings()
DEFAULTS: dict[str, Value] = {name: setting.default for name, setting in SETTINGS.items()}


def problem(name: str, value: object) -> str:
    """Why a parameter cannot have a value, in words; "" if it can."""
    setting = SETTINGS.get(name)
    if setting is None:
        return f"{name} is not a parameter of the controller"
    if isinstance(setting.default, bool):
        return "" if isinstance(value, bool) else f"{name} must be true or false"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"{name} must be a number"
    if not math.isfinite(value):
        return f"{name} must be finite"
    if not setting.low <= value <= setting.high:
        return f"{name} must be from {setting.low} to {setting.high}, not {value}"
    return ""


def gains(values: Mapping[str, Value]) -> Gains:
    """Gains of a full set of parameters."""

    def six(linear: str, angular: str) -> np.ndarray:
        return np.array(
            [float(values[stem + axis]) for stem in (linear, angular) for axis in "xyz"]
        )

    return Gains(
        stiffness=six("task.k_pos_", "task.k_rot_"),
        damping=six("task.d_pos_", "task.d_rot_"),
        error_clip=six("task.error_clip.", "task.error_clip.r"),
        limit_error=bool(values["limit_error"]),
        nullspace_stiffness=float(values["nullspace.stiffness"]),
        nullspace_damping=float(values["nullspace.damping"]),
        nullspace_max_tau=float(values["nullspace.max_tau"]),
        target_filter=float(values["filter.target_pose"]),
        limit_torques=bool(values["limit_torques"]),
        max_delta_tau=float(values["max_delta_tau"]),
        use_operational_space=bool(values["use_operational_space"]),
    )
