"""What a machine must have before anything long begins, and the command that brings it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hil_bringup.cli.environment import can_load
from hil_bringup.cli.interpreters import NEWEST, OLDEST, Interpreter
from hil_bringup.cli.workspace import cores

GIB = 1024**3
DISK_NEEDED = 4 * GIB
"""Virtual environment with a CPU build of PyTorch, build tree, a run."""
DISK_FOR_CUDA = 12 * GIB
"""The same with the CUDA build that a plain `pip install torch` brings."""
MEMORY_NEEDED = 2 * GIB


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    ok: bool
    found: str
    """What is there, or what the absence means."""
    packages: tuple[str, ...] = ()
    """Debian packages that bring it."""
    required: bool = True
    advice: str = ""
    """What to do where no package helps."""


@dataclass(frozen=True)
class Machine:
    """Look-ups of the real machine; tests hand in others."""

    which: Callable[[str], str | None] = shutil.which
    loads: Callable[[str], bool] = can_load
    disk_free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
    memory: Callable[[], int] = lambda: memory_available()
    architecture: str = field(default_factory=platform.machine)
    cores: int = field(default_factory=cores)


def memory_available() -> int:
    """Bytes of memory that a new process can get (MemAvailable)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return 0


def run_checks(
    interpreter: Interpreter | None, folder: Path, machine: Machine | None = None
) -> list[Check]:
    """Look at everything that set-up, simulation and training need."""
    machine = machine or Machine()
    return [
        *_python(interpreter),
        *_build_tools(machine),
        _software_gl(machine),
        _hidapi(machine),
        _chromium(machine),
        _architecture(machine),
        *_resources(machine, folder),
    ]


def _python(interpreter: Interpreter | None) -> list[Check]:
    wanted = "Python {}.{} to {}.{}".format(*OLDEST, *NEWEST)
    if interpreter is None:
        packages = ("python3", "python3-venv", "python3-dev")
        text = "none on this machine"
        return [Check(wanted, False, text, packages)]
    major, minor, _ = interpreter.version
    at_path = f"{interpreter.name} at {interpreter.executable}"
    from_package = interpreter.executable.startswith("/usr/bin/")
    own = "" if from_package else "this Python is not the distribution's: reinstall it with {}, "
    own += "" if from_package else "or run ./hil with another one"
    venv = Check(
        "venv module",
        interpreter.has_venv,
        "found" if interpreter.has_venv else "the virtual environment cannot be made",
        (f"python{major}.{minor}-venv",) if from_package else (),
        advice=own.format("ensurepip"),
    )
    headers = Check(
        "Python headers",
        interpreter.has_headers,
        "Python.h found"
        if interpreter.has_headers
        else "Python.h missing: message packages cannot be compiled",
        (f"python{major}.{minor}-dev",) if from_package else (),
        advice=own.format("its headers"),
    )
    return [Check(wanted, True, at_path), venv, headers]


def _build_tools(machine: Machine) -> list[Check]:
    compilers = [name for name in ("cc", "c++") if not machine.which(name)]
    cmake = machine.which("cmake")
    make = machine.which("make")
    return [
        Check(
            "C and C++ compiler",
            not compilers,
            f"no {' and no '.join(compilers)}" if compilers else "cc and c++ found",
            ("build-essential",),
        ),
        Check("cmake", cmake is not None, cmake or "not on the PATH", ("cmake",)),
        Check("make", make is not None, make or "not on the PATH", ("make",)),
    ]


def _software_gl(machine: Machine) -> Check:
    found = [
        name
        for name, library in (("OSMesa", "libOSMesa.so.8"), ("EGL", "libEGL.so.1"))
        if machine.loads(library)
    ]
    text = " and ".join(found) if found else "neither OSMesa nor EGL: cameras cannot be rendered"
    return Check("off-screen GL", bool(found), text, ("libosmesa6",))


def _hidapi(machine: Machine) -> Check:
    libraries = ("libhidapi-hidraw.so.0", "libhidapi-libusb.so.0")
    found = next((name for name in libraries if machine.loads(name)), None)
    text = found or "not found: a SpaceMouse cannot be read"
    return Check("hidapi", found is not None, text, ("libhidapi-hidraw0",), required=False)


def _chromium(machine: Machine) -> Check:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next((path for name in names if (path := machine.which(name))), None)
    text = found or "not found: the console's page is not tested"
    return Check("chromium", found is not None, text, ("chromium",), required=False)


def _architecture(machine: Machine) -> Check:
    ok = machine.architecture in ("x86_64", "AMD64")
    text = machine.architecture if ok else f"{machine.architecture}: tried on x86_64 only"
    return Check("processor", ok, f"{text}, {machine.cores} cores", required=False)


def _resources(machine: Machine, folder: Path) -> list[Check]:
    disk = machine.disk_free(folder)
    memory = machine.memory()
    text = f"{disk / GIB:.1f} GiB free"
    if disk < DISK_FOR_CUDA:
        text += f"; a CUDA build of PyTorch needs about {DISK_FOR_CUDA // GIB}"
    return [
        Check(
            "disk space",
            disk >= DISK_NEEDED,
            text,
            advice=f"make room: {DISK_NEEDED // GIB} GiB at least in {folder}",
        ),
        Check(
            "memory",
            memory >= MEMORY_NEEDED,
            f"{memory / GIB:.1f} GiB available",
            required=False,
            advice=f"training wants {MEMORY_NEEDED // GIB} GiB or more",
        ),
    ]


def missing(checks: Iterable[Check]) -> list[Check]:
    """Those that must be there and are not."""
    return [check for check in checks if check.required and not check.ok]


def packages(checks: Iterable[Check]) -> tuple[str, ...]:
    """Debian packages that bring what is missing, the optional things too, each once."""
    names = (name for check in checks if not check.ok for name in check.packages)
    return tuple(dict.fromkeys(names))


def is_debian() -> bool:
    """Tell whether apt is this machine's package manager."""
    return shutil.which("apt-get") is not None


def install_command(names: Iterable[str], *, root: bool | None = None) -> str:
    """The exact command that installs Debian packages."""
    sudo = "" if (os.geteuid() == 0 if root is None else root) else "sudo "
    install = f"{sudo}apt-get install -y --no-install-recommends {' '.join(names)}"
    return f"{sudo}apt-get update && {install}"


def report(checks: Iterable[Check]) -> str:
    """Text for a person: every check on a line, then the commands."""
    checks = list(checks)
    lines = []
    for check in checks:
        mark = "ok     " if check.ok else "MISSING" if check.required else "absent "
        lines.append(f"  {mark}  {check.name:<24} {check.found}")
        if not check.ok and check.advice:
            lines.append(f"           {'':<24} {check.advice}")
    names = packages(checks)
    if names:
        lines.append("")
        if is_debian():
            lines += ["To install what is missing:", f"  {install_command(names)}"]
        else:
            lines.append(
                "To install what is missing (Debian's names; your distribution's may differ): "
                + " ".join(names)
            )
    return "\n".join(lines)
