"""The environment in which everything of the graph runs and is built: computed here, only here.

No shell file is sourced: the overlay of the colcon workspace is read from the `.dsv` files that
colcon writes for that purpose, which takes a few milliseconds instead of a second.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from hil_bringup.cli.workspace import Workspace, cores, has_package, system_ros

FEW_CORES = 4
_GL_LIBRARIES = {"osmesa": "libOSMesa.so.8", "egl": "libEGL.so.1"}
_DDS_PROFILE = "share/hil_common/fastdds_profile.xml"


def build_environment(
    workspace: Workspace, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Environment for pip and colcon: the underlay (wheels or the sourced ROS), no overlay."""
    environment = dict(os.environ if base is None else base)
    own = (str(workspace.venv), str(workspace.install), str(workspace.build))
    for name in (
        "AMENT_PREFIX_PATH",
        "CMAKE_PREFIX_PATH",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "PATH",
    ):
        entries = environment.get(name, "").split(os.pathsep)
        environment[name] = os.pathsep.join(e for e in entries if e and not e.startswith(own))
    environment.pop("COLCON_PREFIX_PATH", None)
    if not system_ros(environment):
        venv = str(workspace.venv)
        environment["AMENT_PREFIX_PATH"] = venv
        environment["CMAKE_PREFIX_PATH"] = venv
        _drop(environment, "PYTHONPATH", "/opt/ros/")
        _drop(environment, "LD_LIBRARY_PATH", "/opt/ros/")
        for folder in reversed(_wheel_libraries(workspace)):
            prepend(environment, "LD_LIBRARY_PATH", folder)
        environment["ROS_DISTRO"] = "jazzy"
        environment["ROS_VERSION"] = "2"
        # The wheels' bootstrapper starts every Python twice to set LD_LIBRARY_PATH; it is set.
        environment["_ROS_WHEELS_BOOTSTRAP_COMPLETE"] = "1"
    environment["VIRTUAL_ENV"] = str(workspace.venv)
    environment.pop("PYTHONHOME", None)
    prepend(environment, "PATH", str(workspace.venv / "bin"))
    return {name: value for name, value in environment.items() if value}


def run_environment(workspace: Workspace, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment for nodes, tests and benchmarks. What the caller has set is kept."""
    environment = build_environment(workspace, base)
    for package in overlay_packages(workspace.install):
        apply_dsv(environment, workspace.install / package, package)
    for name, value in runtime_defaults(workspace.install / "hil_common").items():
        environment.setdefault(name, value)
    return environment


def runtime_defaults(hil_common: Path) -> dict[str, str]:
    """Variables that every process of a graph needs, unless somebody has set them.

    Args:
        hil_common: prefix in which hil_common is installed.
    """
    defaults = {
        "RMW_IMPLEMENTATION": "rmw_fastrtps_cpp",
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "MUJOCO_GL": choose_gl(),
    }
    profile = hil_common / _DDS_PROFILE
    if profile.is_file():
        defaults["FASTRTPS_DEFAULT_PROFILES_FILE"] = str(profile)
    if cores() <= FEW_CORES:
        # Two processes that each use all cores slow one another down by an order of magnitude.
        defaults["OMP_NUM_THREADS"] = "1"
    return defaults


def overlay_packages(install: Path) -> list[str]:
    """Packages of a colcon workspace, each after those that it depends on."""
    found: dict[str, set[str]] = {}
    for index in install.glob("*/share/colcon-core/packages/*"):
        if index.name == index.parents[3].name:
            found[index.name] = set(filter(None, index.read_text().split(":")))
    ordered: list[str] = []

    def visit(package: str, path: tuple[str, ...]) -> None:
        if package in ordered or package in path:
            return
        for dependency in sorted(found[package] & found.keys()):
            visit(dependency, (*path, package))
        ordered.append(package)

    for package in sorted(found):
        visit(package, ())
    return ordered


def apply_dsv(environment: dict[str, str], prefix: Path, package: str) -> None:
    """Apply what a package adds to the environment (share/PACKAGE/package.dsv), as colcon does.

    Raises:
        ValueError: a line of an unknown kind.
    """
    main = prefix / "share" / package / "package.dsv"
    if main.is_file():
        _apply_dsv_file(environment, prefix, main)


def _apply_dsv_file(environment: dict[str, str], prefix: Path, path: Path) -> None:
    sourced: list[Path] = []
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        kind, _, rest = line.partition(";")
        if kind == "source":
            nested = (prefix / rest).with_suffix(".dsv")
            if nested not in sourced:
                sourced.append(nested)
        elif kind in _DSV_KINDS:
            name, *values = rest.split(";")
            for value in values or [""]:
                _DSV_KINDS[kind](environment, name, prefix, value)
        else:
            raise ValueError(f"{path}: unknown kind of line: {line!r}")
    for nested in sourced:
        if nested.is_file():
            _apply_dsv_file(environment, prefix, nested)


def _dsv_prepend(environment: dict[str, str], name: str, prefix: Path, value: str) -> None:
    prepend(environment, name, str(prefix / value if value else prefix))


def _dsv_prepend_existing(
    environment: dict[str, str], name: str, prefix: Path, value: str
) -> None:
    if (prefix / value).exists():
        _dsv_prepend(environment, name, prefix, value)


def _dsv_append(environment: dict[str, str], name: str, prefix: Path, value: str) -> None:
    entry = str(prefix / value if value else prefix)
    entries = [e for e in environment.get(name, "").split(os.pathsep) if e]
    if entry not in entries:
        environment[name] = os.pathsep.join([*entries, entry])


def _dsv_set(environment: dict[str, str], name: str, prefix: Path, value: str) -> None:
    environment[name] = str(prefix / value) if (prefix / value).exists() else value


def _dsv_set_if_unset(environment: dict[str, str], name: str, prefix: Path, value: str) -> None:
    if not environment.get(name):
        _dsv_set(environment, name, prefix, value)


_DSV_KINDS: dict[str, Callable[[dict[str, str], str, Path, str], None]] = {
    "prepend-non-duplicate": _dsv_prepend,
    "prepend-non-duplicate-if-exists": _dsv_prepend_existing,
    "append-non-duplicate": _dsv_append,
    "set": _dsv_set,
    "set-if-unset": _dsv_set_if_unset,
}


def prepend(environment: dict[str, str], name: str, entry: str) -> None:
    """Put an entry in front of a list of paths, once."""
    entries = [e for e in environment.get(name, "").split(os.pathsep) if e and e != entry]
    environment[name] = os.pathsep.join([entry, *entries])


def _drop(environment: dict[str, str], name: str, start: str) -> None:
    entries = environment.get(name, "").split(os.pathsep)
    environment[name] = os.pathsep.join(e for e in entries if e and not e.startswith(start))


def _wheel_libraries(workspace: Workspace) -> list[str]:
    folders = [workspace.venv / "lib"]
    folders += sorted(workspace.venv.glob("lib/python3.*/site-packages/ros_*.libs"))
    return [str(folder) for folder in folders]


def choose_gl(loads: Callable[[str], bool] | None = None) -> str:
    """MUJOCO_GL: the GPU's EGL where there is an NVIDIA device, else software rendering."""
    loads = loads or can_load
    if Path("/dev/nvidiactl").exists() and loads(_GL_LIBRARIES["egl"]):
        return "egl"
    return "osmesa" if loads(_GL_LIBRARIES["osmesa"]) else "egl"


def can_load(library: str) -> bool:
    """Tell whether the dynamic linker finds a shared library.

    The linker's cache is asked first: loading a GL library takes much longer.
    """
    if library in _linker_cache():
        return True
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@functools.lru_cache(maxsize=1)
def _linker_cache() -> str:
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if ldconfig is None:
        return ""
    return subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout


def missing_interfaces(workspace: Workspace, environment: Mapping[str, str]) -> list[str]:
    """Packages of compat_interfaces that the underlay does not have."""
    prefixes = [Path(p) for p in environment.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if p]
    packages = sorted(p.parent.name for p in workspace.compat.glob("*/package.xml"))
    return [p for p in packages if not any(has_package(prefix, p) for prefix in prefixes)]
