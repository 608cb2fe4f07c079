"""Arguments of a graph: typed, documented, with defaults. Standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

Value = str | int | float | bool

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


class ArgumentError(ValueError):
    """An argument is unknown or has an impossible value; the text says what is possible."""


@dataclass(frozen=True)
class Argument:
    """One argument; its type is that of its default."""

    name: str
    default: Value
    doc: str
    choices: tuple[str, ...] = ()

    @property
    def default_text(self) -> str:
        """The default as it would be written on a command line."""
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)

    @property
    def text(self) -> str:
        """Documentation with the choices."""
        return f"{self.doc} ({', '.join(self.choices)})" if self.choices else self.doc

    def parse(self, text: str) -> Value:
        """Value from text.

        Raises:
            ArgumentError: not of this argument's type, or none of its choices.
        """
        if self.choices and text not in self.choices:
            raise ArgumentError(
                f"{self.name}:={text}: must be one of {', '.join(self.choices)}"
                + nearest(text, self.choices)
            )
        kind = type(self.default)
        if kind is bool:
            if text.lower() not in (*_TRUE, *_FALSE):
                raise ArgumentError(f"{self.name}:={text}: must be true or false")
            return text.lower() in _TRUE
        try:
            return kind(text)
        except ValueError as error:
            words = {int: "a whole number", float: "a number"}
            raise ArgumentError(f"{self.name}:={text}: must be {words[kind]}") from error


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean X?' for the known name that is nearest, or ''."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def split(texts: Sequence[str]) -> dict[str, str]:
    """key:=value texts as a mapping.

    Raises:
        ArgumentError: a text is not of that form, or a key comes twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition(":=")
        if not separator or not key:
            raise ArgumentError(f"{text!r} is not of the form key:=value")
        if key in found:
            raise ArgumentError(f"{key} is given twice")
        found[key] = value
    return found


def resolve(arguments: Sequence[Argument], given: Mapping[str, str]) -> SimpleNamespace:
    """All arguments with the given or the default values, as attributes.

    Raises:
        ArgumentError: an unknown name (the nearest known one is named) or an impossible value.
    """
    known = {argument.name: argument for argument in arguments}
    for name in given:
        if name not in known:
            hint = nearest(name, known) or f"; known: {', '.join(known)}"
            raise ArgumentError(f"unknown argument {name}{hint}")
    values = {
        name: argument.parse(given[name]) if name in given else argument.default
        for name, argument in known.items()
    }
    return SimpleNamespace(**values)
