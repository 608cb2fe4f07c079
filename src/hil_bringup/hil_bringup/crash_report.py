"""Crash reports: what a person needs to see of a process that has died. Standard library only."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

LINES = 400
"""Lines of output in a report: the stacks of all threads are among them, where there are any."""
_PACKAGES = ("hil_bringup", "rclpy", "numpy", "torch", "mujoco", "gymnasium")


@dataclass(frozen=True)
class Crash:
    """The end of a process.

    Attributes:
        name: of the process.
        ending: how it ended, in words.
        outcome: what happens now, in words.
        command: that had started it.
        pid: its id.
        seconds: that it ran.
        output: its last lines, oldest first.
    """

    name: str
    ending: str
    outcome: str
    command: Sequence[str]
    pid: int
    seconds: float
    output: Iterable[str]


def write(folder: Path, crash: Crash) -> Path:
    """Write a report into a folder; return its path.

    Raises:
        OSError: it cannot be written.
    """
    now = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now)) + f"-{int(now * 1000) % 1000:03d}"
    path = folder / f"crash-{crash.name}-{stamp}.txt"
    path.write_text(_text(crash, now), encoding="utf-8")
    return path


def _text(crash: Crash, now: float) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now))
    rows = {
        "time": f"{when}, {crash.seconds:.1f} s after its start",
        "outcome": crash.outcome,
        "process": f"{crash.pid} on {platform.node()}",
        "command": " ".join(crash.command),
        "system": f"{platform.platform()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{p} {v}" for p in _PACKAGES if (v := _version(p))),
    }
    head = [f"{crash.name} {crash.ending}", ""]
    head += [f"{key:<9} {value}" for key, value in rows.items()]
    return "\n".join([*head, "", "last lines of its output:", "", *crash.output, ""])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
