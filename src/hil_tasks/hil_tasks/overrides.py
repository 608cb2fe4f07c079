"""Apply a mapping of overrides (from YAML) to nested frozen dataclasses, with validation."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class OverrideError(ValueError):
    """An override names something unknown or has the wrong type."""


def apply_overrides(
    instance: T, overrides: Mapping[str, Any], where: str = "", fixed: Iterable[str] = ()
) -> T:
    """Copy of a dataclass instance with some fields replaced, recursively.

    Args:
        instance: a (frozen) dataclass instance.
        overrides: field name -> value; a mapping for a nested dataclass or a mapping of them.
        where: prefix for messages, for example "peg_insert.".
        fixed: fields that may not be overridden.

    Raises:
        OverrideError: unknown field (with the nearest known one), or a value of a wrong type.
    """
    hints = typing.get_type_hints(type(instance))
    known = [f.name for f in dataclasses.fields(instance) if f.name not in set(fixed)]  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for key, value in overrides.items():
        if key not in known:
            raise OverrideError(f"unknown setting {where}{key}{nearest(key, known)}")
        current = getattr(instance, key)
        changes[key] = _convert(value, current, hints[key], f"{where}{key}")
    try:
        return dataclasses.replace(instance, **changes)  # type: ignore[type-var]
    except OverrideError:
        raise
    except ValueError as error:
        raise OverrideError(f"{where.rstrip('.') or type(instance).__name__}: {error}") from error


def nearest(key: object, known: Iterable[str]) -> str:
    """Hint for an unknown name: "; did you mean X?" or the list of what there is."""
    names = sorted(known)
    close = difflib.get_close_matches(str(key), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"


def _convert(value: Any, current: Any, hint: Any, where: str) -> Any:
    if dataclasses.is_dataclass(current):
        return apply_overrides(current, _mapping(value, where), f"{where}.")
    if isinstance(current, Mapping):
        result = dict(current)
        for key, entry in _mapping(value, where).items():
            if key not in result:
                raise OverrideError(f"unknown setting {where}.{key}{nearest(key, result)}")
            result[key] = _convert(entry, result[key], None, f"{where}.{key}")
        return result
    return _scalar_or_tuple(value, hint, where)


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise OverrideError(f"{where} must be a mapping, not {value!r}")
    return value


def _scalar_or_tuple(value: Any, hint: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _tuple(value, typing.get_args(hint), where)
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise OverrideError(
                f"{where} must be one of {', '.join(map(str, choices))}, not {value!r}"
            )
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in typing.get_args(hint):
            return None
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if (
        isinstance(hint, type)
        and isinstance(value, hint)
        and not (hint is int and isinstance(value, bool))
    ):
        return value
    name = getattr(hint, "__name__", str(hint))
    raise OverrideError(f"{where} must be of type {name}, not {value!r}")


def _tuple(value: Any, args: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise OverrideError(f"{where} must be a list, not {value!r}")
    if len(args) == 2 and args[1] is Ellipsis:
        args = (args[0],) * len(value)
    if len(value) != len(args):
        raise OverrideError(f"{where} must have {len(args)} elements, not {len(value)}")
    return tuple(
        _scalar_or_tuple(item, arg, f"{where}[{index}]")
        for index, (item, arg) in enumerate(zip(value, args, strict=True))
    )
