"""Output of many processes on one terminal: a coloured name before each line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import TextIO

_COLOURS = (36, 32, 35, 34, 33, 96, 92, 95, 94, 93)
_SEVERITY = re.compile(r"^\[(DEBUG|INFO|WARN|ERROR|FATAL)\] ")
_SEVERITY_COLOUR = {"WARN": 33, "ERROR": 31, "FATAL": 31, "DEBUG": 90}

FORMAT = "[{severity}] {message}"
"""RCUTILS_CONSOLE_OUTPUT_FORMAT of the processes: the prefix says the rest."""


class Console:
    """Prints lines with the name of who said them.

    Args:
        names: all names, for the width of the column.
        quiet: show only what the supervisor says, and errors of the others.
    """

    def __init__(
        self, names: Iterable[str], stream: TextIO | None = None, *, quiet: bool = False
    ) -> None:
        self._stream = stream or sys.stdout
        names = list(names)
        self._width = max((len(name) for name in names), default=0)
        self._colour = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
        self._colourful = self._stream.isatty()
        self._quiet = quiet
        self._gone = False

    def show(self, name: str, line: str) -> None:
        """Print one line; `name` is empty for the supervisor."""
        match = _SEVERITY.match(line)
        severity = match[1] if match else "INFO"
        text = line[match.end() :] if match and severity == "INFO" else line
        if self._quiet and name and severity not in ("ERROR", "FATAL"):
            return
        prefix = f"{name or 'hil':<{self._width}} | "
        if self._colourful:
            prefix = f"\x1b[{self._colour.get(name, 1)}m{prefix}\x1b[0m"
            if severity in _SEVERITY_COLOUR:
                text = f"\x1b[{_SEVERITY_COLOUR[severity]}m{text}\x1b[0m"
        if self._gone:
            return
        try:
            print(prefix + text, file=self._stream, flush=True)
        except OSError:  # the terminal was closed; the logs in the run folder go on
            self._gone = True
