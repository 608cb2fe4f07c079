"""Definitions of ROS 2 messages as text, as MCAP files carry them (schema encoding ros2msg)."""

from __future__ import annotations

import importlib
import re
from typing import Any

_NAMES = {"float": "float32", "double": "float64", "boolean": "bool", "octet": "byte"}
_SEQUENCE = re.compile(r"sequence<([^,>]+)(?:, *(\d+))?>")


def message_type(message: type[Any]) -> str:
    """Return the full name of a message class, such as std_msgs/msg/Header."""
    return f"{message.__module__.split('.')[0]}/msg/{message.__name__}"


def definition(message: type[Any]) -> str:
    """Return the fields of a message class and of every message within it."""
    text, parts, waiting, seen = "", [], [message], {message}
    while waiting:
        current = waiting.pop(0)
        lines = []
        for name, idl in current.get_fields_and_field_types().items():
            base, suffix = _split(idl)
            lines.append(f"{base}{suffix} {name}")
            if "/" in base and (nested := _load(base)) not in seen:
                seen.add(nested)
                waiting.append(nested)
        text = "\n".join(lines) + "\n"
        parts.append(text if current is message else f"MSG: {_short(current)}\n{text}")
    return f"{'=' * 80}\n".join(parts)


def _split(idl: str) -> tuple[str, str]:
    """Return the .msg name of a type and its array suffix."""
    sequence = _SEQUENCE.fullmatch(idl)
    if sequence:
        bound = f"<={sequence[2]}" if sequence[2] else ""
        base, suffix = sequence[1], f"[{bound}]"
    else:
        base, _, size = idl.partition("[")
        suffix = f"[{size}" if size else ""
    return _NAMES.get(base, base), suffix


def _load(name: str) -> type[Any]:
    package, message = name.split("/")
    found: type[Any] = getattr(importlib.import_module(f"{package}.msg"), message)
    return found


def _short(message: type[Any]) -> str:
    return f"{message.__module__.split('.')[0]}/{message.__name__}"
