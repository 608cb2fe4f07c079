"""Typed node parameters: declared once, as a dataclass, with documentation and ranges.

    @dataclass(frozen=True)
    class BridgeParams(NodeParams):
        state_rate_hz: float = param(50.0, "rate of robot_state", low=1.0, high=1000.0)

`declare` turns the fields into ROS parameters with descriptors and returns the filled dataclass.
An unknown or ill-typed override stops the node with a message that names the parameter, the file
it stands in and the nearest valid name.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.node import Node
from rclpy.parameter import Parameter

P = TypeVar("P", bound="NodeParams")

# Parameters that every rclpy node has of its own.
_BUILT_IN = ("use_sim_time", "start_type_description_service")


class ParameterError(ValueError):
    """A parameter override is unknown, ill-typed or out of range."""


def param(
    default: Any,
    doc: str,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    """Dataclass field that is a ROS parameter. Bounds are inclusive."""
    metadata = {"doc": doc, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class NodeParams:
    """Parameters of every node."""

    autostart: bool = param(
        False, "configure and activate at start, without a manager (single nodes, tests)"
    )


def declare(node: Node, params: type[P]) -> P:
    """Declare the fields of `params` on `node` and return the values in force.

    Raises:
        ParameterError: an override is unknown, ill-typed or out of range.
    """
    overrides = node._parameter_overrides
    types = typing.get_type_hints(params)
    names = [f.name for f in dataclasses.fields(params)]
    for name in overrides:
        if name not in names and name not in _BUILT_IN and not name.startswith("qos_overrides."):
            raise ParameterError(_unknown(node, name, names))
    values: dict[str, Any] = {}
    for f in dataclasses.fields(params):
        value = f.default
        if f.name in overrides:
            value = _checked(node, f, types[f.name], overrides[f.name].value)
        values[f.name] = value
        node.declare_parameter(
            f.name,
            list(value) if isinstance(value, tuple) else value,
            _descriptor(f, types[f.name]),
            ignore_override=True,
        )
    return params(**values)


def describe(params: type[NodeParams]) -> list[tuple[str, str, str, str]]:
    """Rows (name, type, default, documentation) of a parameter class, for the docs."""
    types = typing.get_type_hints(params)
    rows = []
    for f in dataclasses.fields(params):
        rows.append((f.name, _type_name(types[f.name]), _show(f.default), _doc(f)))
    return rows


def _doc(f: dataclasses.Field[Any]) -> str:
    doc, low, high = f.metadata["doc"], f.metadata["low"], f.metadata["high"]
    if f.metadata["choices"]:
        doc += f" (one of {', '.join(f.metadata['choices'])})"
    if low is not None or high is not None:
        doc += f" ({'' if low is None else low} to {'' if high is None else high})"
    return doc


def _show(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value) if isinstance(value, tuple) else value)


def _type_name(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        return f"{typing.get_args(kind)[0].__name__}[]"
    return str(kind.__name__)


def _checked(node: Node, f: dataclasses.Field[Any], kind: Any, value: Any) -> Any:
    where = f"parameter '{f.name}' of node '{node.get_name()}'{_origin(node, f.name)}"
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        # rclpy gives arrays as array.array or list, and an empty list, which has no type, as None.
        if value is None:
            return ()
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ParameterError(f"{where} must be a list of {item.__name__}, not {value!r}")
        return tuple(_scalar(where, f, item, v) for v in value)
    return _scalar(where, f, kind, value)


def _scalar(where: str, f: dataclasses.Field[Any], kind: type, value: Any) -> Any:
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ParameterError(
            f"{where} must be of type {kind.__name__}, not {type(value).__name__} ({value!r})"
        )
    low, high, choices = (f.metadata[k] for k in ("low", "high", "choices"))
    if low is not None and not value >= low:
        raise ParameterError(f"{where} must be at least {low}, not {value}")
    if high is not None and not value <= high:
        raise ParameterError(f"{where} must be at most {high}, not {value}")
    if choices and value not in choices:
        raise ParameterError(f"{where} must be one of {', '.join(choices)}, not '{value}'")
    return value


def _descriptor(f: dataclasses.Field[Any], kind: Any) -> ParameterDescriptor:
    descriptor = ParameterDescriptor(
        description=f.metadata["doc"], read_only=True, dynamic_typing=kind not in (bool, str)
    )
    if f.metadata["choices"]:
        descriptor.additional_constraints = f"one of {', '.join(f.metadata['choices'])}"
    low, high = f.metadata["low"], f.metadata["high"]
    if low is not None and high is not None:
        if kind is int:
            descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
        elif kind is float:
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(low), to_value=float(high))
            ]
    return descriptor


def _unknown(node: Node, name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(names))}"
    return f"unknown parameter '{name}' of node '{node.get_name()}'{_origin(node, name)}: {hint}"


def _origin(node: Node, name: str) -> str:
    """' in FILE' for the parameter file on the command line that has the parameter, or ''."""
    argv = sys.argv
    files = [argv[i + 1] for i, a in enumerate(argv[:-1]) if a == "--params-file"]
    for path in reversed(files):
        content = yaml.safe_load(Path(path).read_text()) or {}
        for section in content.values():
            if name.split(".")[0] in (section or {}).get("ros__parameters", {}):
                return f" in {path}"
    return " on the command line" if files or "-p" in argv else ""


def override(name: str, value: Any) -> Parameter:
    """Parameter object for `parameter_overrides`, from a plain value."""
    return Parameter(name, value=list(value) if isinstance(value, tuple) else value)
