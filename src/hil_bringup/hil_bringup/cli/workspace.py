"""Where things are: the checkout, its virtual environment, its colcon workspace, ROS 2."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROS_DISTRO = "jazzy"
INTERFACE_PACKAGES = ("hil_interfaces",)


@dataclass(frozen=True)
class Workspace:
    """The checkout. Everything that set-up makes lies in folders that git ignores."""

    root: Path

    @property
    def venv(self) -> Path:
        """Virtual environment."""
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.venv / "bin" / "python3"

    @property
    def source(self) -> Path:
        """Packages of this project."""
        return self.root / "src"

    @property
    def compat(self) -> Path:
        """Interfaces of other projects, built only where the underlay lacks them."""
        return self.root / "compat_interfaces"

    @property
    def build(self) -> Path:
        """Colcon's build tree."""
        return self.root / "build"

    @property
    def install(self) -> Path:
        """Colcon's install space."""
        return self.root / "install"

    @property
    def log(self) -> Path:
        """Logs of set-up."""
        return self.root / "log" / "hil"

    def site_packages(self) -> Path:
        """Folder of the packages in the virtual environment.

        Raises:
            FileNotFoundError: there is no virtual environment.
        """
        for folder in sorted(self.venv.glob("lib/python3.*/site-packages")):
            return folder
        raise FileNotFoundError(f"{self.venv}: no virtual environment; run ./hil setup")


def system_ros(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Prefixes of a sourced ROS 2 Jazzy (any that brings rclpy), or () where there is none."""
    if environment.get("ROS_DISTRO") != ROS_DISTRO:
        return ()
    prefixes = tuple(Path(p) for p in environment.get("AMENT_PREFIX_PATH", "").split(":") if p)
    return prefixes if any(has_package(p, "rclpy") for p in prefixes) else ()


def has_package(prefix: Path, package: str) -> bool:
    """Tell whether the ament index of a prefix knows the package."""
    return (prefix / "share" / "ament_index" / "resource_index" / "packages" / package).is_file()


def cores() -> int:
    """Number of cores this process may use."""
    return len(os.sched_getaffinity(0))
