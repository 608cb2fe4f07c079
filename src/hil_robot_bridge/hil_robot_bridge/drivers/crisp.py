"""Parameters of crisp_controllers' CartesianController for a compliance preset.

Nothing is left to the controller's defaults: its default nullspace damping is negative, and its
default damping is that of a unit mass.
"""

from __future__ import annotations

from typing import Any

from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue

from hil_tasks.spec import ComplianceSpec

_AXES = ("x", "y", "z")
_TOLERANCE = 1e-9

Values = dict[str, float | bool]


def parameters(spec: ComplianceSpec) -> Values:
    """Controller parameters by name."""
    values: Values = {"limit_error": True, "limit_torques": True}
    for index, axis in enumerate(_AXES):
        values[f"task.k_pos_{axis}"] = spec.translational_stiffness[index]
        values[f"task.d_pos_{axis}"] = spec.translational_damping[index]
        values[f"task.k_rot_{axis}"] = spec.rotational_stiffness[index]
        values[f"task.d_rot_{axis}"] = spec.rotational_damping[index]
        values[f"task.error_clip.{axis}"] = spec.error_clip[index]
        values[f"task.error_clip.r{axis}"] = spec.error_clip[3 + index]
    values["nullspace.stiffness"] = spec.nullspace_stiffness
    values["nullspace.damping"] = spec.nullspace_damping
    values["nullspace.max_tau"] = spec.nullspace_max_tau
    return values


def to_messages(values: Values) -> list[Parameter]:
    """As rcl_interfaces messages."""
    return [Parameter(name=name, value=_value(value)) for name, value in values.items()]


def mismatch(wanted: Values, answered: list[ParameterValue]) -> str:
    """What read-back values differ from the wanted ones, in words; "" if none does."""
    if len(answered) != len(wanted):
        return f"{len(answered)} of {len(wanted)} parameters were read back"
    for (name, value), message in zip(wanted.items(), answered, strict=True):
        found = _plain(message)
        if isinstance(value, bool):
            same = found is value
        else:
            same = isinstance(found, float) and (
                abs(found - value) <= _TOLERANCE * max(1.0, abs(value))
            )
        if not same:
            return f"{name} is {'not set' if found is None else found} instead of {value}"
    return ""


def _value(value: float | bool) -> ParameterValue:
    if isinstance(value, bool):
        return ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=value)
    return ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=float(value))


def _plain(message: ParameterValue) -> Any:
    if message.type == ParameterType.PARAMETER_BOOL:
        return bool(message.bool_value)
    if message.type == ParameterType.PARAMETER_DOUBLE:
        return float(message.double_value)
    if message.type == ParameterType.PARAMETER_INTEGER:
        return float(message.integer_value)
    return None
