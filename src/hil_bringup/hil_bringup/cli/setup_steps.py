"""Set-up: virtual environment, packages, CMake exports of the wheels, colcon build.

Each step has a stamp with the hash of its inputs, inside of what it makes. A step runs where the
stamp is missing or names other inputs; so set-up is idempotent, goes on where it was interrupted,
and makes again only what changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hil_bringup.cli.environment import build_environment, missing_interfaces
from hil_bringup.cli.interpreters import Interpreter
from hil_bringup.cli.progress import CommandError, Progress
from hil_bringup.cli.stamps import Stamp, digest, digest_files
from hil_bringup.cli.workspace import INTERFACE_PACKAGES, Workspace, cores, system_ros

_IGNORED = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", "test"}

_REWRITE_EXPORTS = """
import pathlib, re, sys, sysconfig
import numpy
python = r"/opt/python/cp3\\d+-cp3\\d+/"
rules = [
    (re.compile(python + r"include/python3\\.\\d+"), sysconfig.get_path("include")),
    (re.compile(python + r"lib/python3\\.\\d+/site-packages/numpy/_?core/include"),
     numpy.get_include()),
]
changed = 0
for path in pathlib.Path(sys.prefix, "share").rglob("*Export.cmake"):
    text = new = path.read_text()
    for pattern, local in rules:
        new = pattern.sub(lambda match: local, new)
    if new != text:
        path.write_text(new)
        changed += 1
print(f"{changed} files rewritten")
"""
"""The wheels' exported CMake targets name two include folders of the machine that built them."""


@dataclass(frozen=True)
class Step:
    """One thing that set-up makes."""

    name: str
    title: str
    stamp: Stamp
    inputs: str
    run: Callable[[], None]

    @property
    def fresh(self) -> bool:
        """Made, to the end, from the inputs of now."""
        return self.stamp.fresh(self.inputs)


class Setup:
    """Brings a checkout to the state in which everything runs."""

    def __init__(
        self,
        workspace: Workspace,
        interpreter: Interpreter,
        progress: Progress,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.workspace = workspace
        self.interpreter = interpreter
        self.progress = progress
        self._base = dict(os.environ if environment is None else environment)
        self.system_ros = bool(system_ros(self._base))

    def steps(self) -> list[Step]:
        """All steps in order. Inputs of a step contain those of the steps before it."""
        python = "{}.{}".format(*self.interpreter.version)
        venv = digest("venv", self.interpreter.executable, python, self._mode)
        pip = digest(venv, digest_files(self.requirements(), self.workspace.root))
        stamps = self.workspace.venv / ".hil"
        built = self.workspace.install / ".hil"
        steps = [
            Step("venv", "virtual environment", Stamp(stamps / "venv"), venv, self._make_venv),
            Step("pip", "Python packages", Stamp(stamps / "pip"), pip, self._install_packages),
        ]
        if not self.system_ros:
            exports = digest(pip, _REWRITE_EXPORTS)
            stamp = Stamp(stamps / "exports")
            title = "CMake files of the ROS wheels"
            steps.append(Step("exports", title, stamp, exports, self._rewrite_exports))
        interfaces = digest(pip, digest_files(self._interface_files(), self.workspace.root))
        packages = digest(pip, self._package_digest())
        return [
            *steps,
            Step(
                "interfaces",
                "messages, services, actions",
                Stamp(built / "interfaces"),
                interfaces,
                lambda: self._colcon("messages, services, actions", self.interface_packages()),
            ),
            Step(
                "packages",
                "packages of the workspace",
                Stamp(built / "packages"),
                packages,
                lambda: self._colcon("packages of the workspace", self.python_packages()),
            ),
        ]

    def run(self) -> int:
        """Run the steps that are not fresh; return how many that were.

        Raises:
            CommandError: a step failed; those before it stay done.
            KeyboardInterrupt: stopped; the next run goes on with the step that was cut short.
        """
        steps = self.steps()
        count = 0
        for number, step in enumerate(steps, 1):
            if step.fresh:
                continue
            count += 1
            self._prefix = f"[{number}/{len(steps)}] "
            step.stamp.clear()
            step.run()
            step.stamp.set(step.inputs)
        return count

    def requirements(self) -> list[Path]:
        """Requirement files for this machine."""
        second = "requirements-jazzy.txt" if self.system_ros else "requirements-wheels.txt"
        return [self.workspace.root / "requirements.txt", self.workspace.root / second]

    def interface_packages(self) -> list[str]:
        """Interface packages to build: ours, and of the others those that the underlay lacks."""
        underlay = build_environment(self.workspace, self._base)
        return [*missing_interfaces(self.workspace, underlay), *INTERFACE_PACKAGES]

    def python_packages(self) -> list[str]:
        """Packages of src that are not interfaces."""
        found = sorted(path.parent.name for path in self.workspace.source.glob("*/package.xml"))
        return [name for name in found if name not in INTERFACE_PACKAGES]

    _prefix = ""

    @property
    def _mode(self) -> str:
        return "system ROS" if self.system_ros else "wheels"

    def _interface_files(self) -> Iterable[Path]:
        yield self.workspace.root / "colcon.meta"
        for name in self.interface_packages():
            folder = self.workspace.source / name
            if not folder.is_dir():
                folder = self.workspace.compat / name
            yield from _files(folder)

    def _package_digest(self) -> str:
        """Hash of what the installed files depend on.

        Python sources are linked, so their content does not matter; a new file of another kind
        (launch, configuration) has to be linked.
        """
        described: list[Path] = []
        names: list[str] = []
        for name in self.python_packages():
            for path in _files(self.workspace.source / name):
                relative = str(path.relative_to(self.workspace.root))
                if path.name in ("setup.py", "setup.cfg", "package.xml"):
                    described.append(path)
                elif path.suffix not in (".py", ".pyc"):
                    names.append(relative)
        return digest(digest_files(described, self.workspace.root), *sorted(names))

    def _make_venv(self) -> None:
        python = self.workspace.python
        if self.workspace.venv.exists():
            self._check_kind()
            if self._usable(python):
                return
        for folder in (self.workspace.venv, self.workspace.build, self.workspace.install):
            # What was built names the interpreter of the old environment.
            shutil.rmtree(folder, ignore_errors=True)
        command = [self.interpreter.executable, "-m", "venv", str(self.workspace.venv)]
        if self.system_ros:
            command.append("--system-site-packages")
        self.progress.run(self._prefix + "virtual environment", command, self._base)

    def _check_kind(self) -> None:
        """An environment for the other kind of ROS is not replaced behind somebody's back.

        Raises:
            CommandError: it is of the other kind.
        """
        config = self.workspace.venv / "pyvenv.cfg"
        text = config.read_text() if config.is_file() else ""
        kinds = {
            "include-system-site-packages = true": True,
            "include-system-site-packages = false": False,
        }
        for line, for_system_ros in kinds.items():
            if line in text and for_system_ros != self.system_ros:
                made, now = ("the sourced ROS 2", "none is sourced now")
                if self.system_ros:
                    made, now = ("the ROS wheels", "ROS 2 Jazzy is sourced now")
                raise CommandError(
                    f"{self.workspace.venv} was made for {made}, and {now}.\n"
                    "  Either use a shell like the one it was made in, or remove it: "
                    f"rm -r {self.workspace.venv}"
                )

    def _usable(self, python: Path) -> bool:
        """An environment that somebody else made, of the right version and with pip, is kept."""
        code = "import sys, pip; print('%d.%d' % sys.version_info[:2])"
        try:
            answer = subprocess.run(
                [str(python), "-c", code], capture_output=True, text=True, check=False, timeout=60
            )
        except OSError:
            return False
        version = "{}.{}".format(*self.interpreter.version)
        return answer.returncode == 0 and answer.stdout.strip() == version

    def _install_packages(self) -> None:
        command = [str(self.workspace.python), "-m", "pip", "install", "--no-input"]
        command += ["--disable-pip-version-check", "--progress-bar", "off"]
        for path in self.requirements():
            command += ["-r", str(path)]
        what = "PyTorch and others" if self.system_ros else "ROS 2, PyTorch and others"
        title = f"{self._prefix}Python packages: {what}"
        self.progress.run(title, command, build_environment(self.workspace, self._base))

    def _rewrite_exports(self) -> None:
        self.progress.run(
            self._prefix + "CMake files of the ROS wheels",
            [str(self.workspace.python), "-c", _REWRITE_EXPORTS],
            build_environment(self.workspace, self._base),
        )

    def _colcon(self, title: str, packages: list[str]) -> None:
        root = self.workspace.root
        command = [str(self.workspace.venv / "bin" / "colcon"), "--log-base", str(root / "log")]
        command += ["build", "--symlink-install", "--base-paths", "src", "compat_interfaces"]
        command += ["--build-base", str(self.workspace.build)]
        command += ["--install-base", str(self.workspace.install)]
        command += ["--metas", str(root / "colcon.meta"), "--cmake-force-configure"]
        command += ["--parallel-workers", str(cores())]
        command += ["--event-handlers", "console_direct+", "desktop_notification-"]
        command += ["--packages-select", *packages]
        command += ["--cmake-args", f"-DPython3_EXECUTABLE={self.workspace.python}"]
        environment = build_environment(self.workspace, self._base)
        environment.setdefault("MAKEFLAGS", f"-j{cores()}")
        self.progress.run(self._prefix + title, command, environment, folder=root)


def _files(folder: Path) -> Iterable[Path]:
    """Files below a folder, links followed, caches and tests left out."""
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [f for f in folders if f not in _IGNORED and not f.endswith(".egg-info")]
        yield from (Path(parent) / name for name in files)
