"""Which Python the virtual environment is made of."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from hil_bringup.cli.workspace import Workspace

OLDEST = (3, 10)
NEWEST = (3, 13)
VERSIONS = tuple((3, minor) for minor in range(NEWEST[1], OLDEST[1] - 1, -1))

_PROBE = """
import importlib.util, json, os, sys, sysconfig
json.dump({
    "executable": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
    "version": list(sys.version_info[:3]),
    "venv": all(importlib.util.find_spec(m) for m in ("venv", "ensurepip")),
    "headers": os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")),
}, sys.stdout)
"""


@dataclass(frozen=True)
class Interpreter:
    """What a Python on this machine can do."""

    executable: str
    version: tuple[int, int, int]
    has_venv: bool
    has_headers: bool

    @property
    def supported(self) -> bool:
        """The version is one that the project runs on."""
        return OLDEST <= self.version[:2] <= NEWEST

    @property
    def complete(self) -> bool:
        """Everything is there that set-up needs of it."""
        return self.supported and self.has_venv and self.has_headers

    @property
    def name(self) -> str:
        """Version as text."""
        return "{}.{}.{}".format(*self.version)


def probe(executable: str) -> Interpreter | None:
    """Ask an interpreter what it is; None where it does not run (such as an empty pyenv shim)."""
    try:
        answer = subprocess.run(
            [executable, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    facts = json.loads(answer.stdout)
    major, minor, micro = facts["version"]
    return Interpreter(facts["executable"], (major, minor, micro), facts["venv"], facts["headers"])


def candidates(workspace: Workspace, *, system_only: bool) -> Iterable[str]:
    """Interpreters in the order of preference.

    An existing virtual environment keeps its own; then the one that runs this; then the others
    on the PATH. With a sourced ROS 2 (`system_only`) only the distribution's Python fits.
    """
    if workspace.python.exists():
        yield str(workspace.python)
    if system_only:
        yield "/usr/bin/python3"
        return
    yield sys.executable
    names = ["python3", *(f"python{major}.{minor}" for major, minor in VERSIONS)]
    for name in names:
        for folder in (None, "/usr/bin", "/usr/local/bin"):
            path = shutil.which(name, path=folder)
            if path:
                yield path


def choose(paths: Iterable[str]) -> Interpreter | None:
    """The first interpreter that has everything, else the first with a supported version."""
    incomplete: Interpreter | None = None
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            continue
        seen.add(path)
        found = probe(path)
        if found is None or not found.supported:
            continue
        if found.complete:
            return found
        incomplete = incomplete or found
    return incomplete
