"""The environment of nodes and builds, and the clean-up of shared memory."""

import fcntl
import mmap
import os
import time
from pathlib import Path

import pytest

from hil_bringup.cli import environment, shared_memory
from hil_bringup.cli.workspace import Workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """A workspace with a message package and a Python package that needs it."""
    space = Workspace(tmp_path)
    (space.venv / "lib" / "python3.11" / "site-packages" / "ros_rcl.libs").mkdir(parents=True)
    package(space, "a_node", "z_msgs:rclpy", "PYTHONPATH;lib/python3.11/site-packages")
    package(space, "z_msgs", "", "LD_LIBRARY_PATH;lib")
    return space


def package(space: Workspace, name: str, needs: str, entry: str) -> None:
    share = space.install / name / "share"
    for folder in ("colcon-core/packages", f"{name}/hook"):
        (share / folder).mkdir(parents=True)
    (share / "colcon-core" / "packages" / name).write_text(needs)
    # As colcon writes it: each hook stands there once for each shell.
    (share / name / "package.dsv").write_text(
        "".join(f"source;share/{name}/hook/{h}.{e}\n" for h in ("prefix", "path")
                for e in ("ps1", "dsv", "sh"))
    )  # fmt: skip
    (share / name / "hook" / "prefix.dsv").write_text("prepend-non-duplicate;AMENT_PREFIX_PATH;")
    (share / name / "hook" / "path.dsv").write_text(f"prepend-non-duplicate;{entry}\n")


def test_overlay_lies_before_the_underlay(space: Workspace) -> None:
    found = environment.run_environment(space, {"PATH": "/bin"})
    install, venv = space.install, space.venv
    assert found["AMENT_PREFIX_PATH"] == f"{install}/a_node:{install}/z_msgs:{venv}"
    assert found["PYTHONPATH"] == f"{install}/a_node/lib/python3.11/site-packages"
    libraries = found["LD_LIBRARY_PATH"].split(":")
    assert libraries[:2] == [f"{install}/z_msgs/lib", f"{venv}/lib"]
    assert libraries[2].endswith("ros_rcl.libs")
    assert found["PATH"] == f"{venv}/bin:/bin"


def test_computing_it_again_changes_nothing(space: Workspace) -> None:
    once = environment.run_environment(space, {"PATH": "/bin"})
    assert environment.run_environment(space, once) == once


def test_build_environment_has_no_overlay(space: Workspace) -> None:
    inside = environment.run_environment(space, {"PATH": "/bin"})
    found = environment.build_environment(space, inside)
    assert found["AMENT_PREFIX_PATH"] == found["CMAKE_PREFIX_PATH"] == str(space.venv)
    assert str(space.install) not in "".join(found.values())


def test_what_the_caller_has_set_is_kept(space: Workspace) -> None:
    base = {"PATH": "/bin", "MUJOCO_GL": "egl", "ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET"}
    found = environment.run_environment(space, base)
    assert found["MUJOCO_GL"] == "egl"
    assert found["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "SUBNET"


def test_another_ros_is_kept_out(space: Workspace) -> None:
    base = {
        "PATH": "/bin",
        "ROS_DISTRO": "humble",
        "AMENT_PREFIX_PATH": "/opt/ros/humble",
        "PYTHONPATH": "/opt/ros/humble/lib/python3.10/site-packages:/home/me/tools",
        "LD_LIBRARY_PATH": "/opt/ros/humble/lib",
    }
    found = environment.run_environment(space, base)
    assert "humble" not in "".join(found.values())
    assert "/home/me/tools" in found["PYTHONPATH"]


def test_dsv_kinds(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "share" / "p").mkdir(parents=True)
    (tmp_path / "share" / "p" / "package.dsv").write_text(
        "# comment\n\nset;A;there\nset-if-unset;A;other\nset-if-unset;B;plain\n"
        "append-non-duplicate;L;x;y\nappend-non-duplicate;L;x\n"
        "prepend-non-duplicate-if-exists;P;there;absent\n"
    )
    found: dict[str, str] = {}
    environment.apply_dsv(found, tmp_path, "p")
    assert found == {
        "A": f"{tmp_path}/there",
        "B": "plain",
        "L": f"{tmp_path}/x:{tmp_path}/y",
        "P": f"{tmp_path}/there",
    }
    (tmp_path / "share" / "p" / "package.dsv").write_text("dance;A;b\n")
    with pytest.raises(ValueError, match="unknown kind of line: 'dance;A;b'"):
        environment.apply_dsv(found, tmp_path, "p")


def test_rendering_falls_back_to_what_is_there() -> None:
    if Path("/dev/nvidiactl").exists():
        assert environment.choose_gl(lambda name: True) == "egl"
    else:
        assert environment.choose_gl(lambda name: True) == "osmesa"
    assert environment.choose_gl(lambda name: "EGL" in name) == "egl"


def segment(folder: Path, name: str, age: float = 60.0) -> Path:
    lock = folder / f"{name}_el"
    for path in (folder / name, lock, folder / f"sem.{name}_mutex"):
        path.write_bytes(b"x")
        os.utime(path, (time.time() - age,) * 2)
    return lock


def test_only_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    segment(tmp_path, "fastrtps_0123456789abcdef")
    segment(tmp_path, "fastrtps_port7411")
    alive = segment(tmp_path, "fastrtps_fedcba9876543210")
    segment(tmp_path, "fastrtps_1111111111111111", age=0.0)
    other = tmp_path / "somebody_else_el"
    other.touch()
    with alive.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert len(shared_memory.leftovers(tmp_path)) == 6
        assert shared_memory.clean(tmp_path) == 6
        assert shared_memory.clean(tmp_path) == 0
        assert len(shared_memory.held(tmp_path)) == 6
        assert other.exists()


def test_port_without_locks_is_kept_while_somebody_has_it_mapped(tmp_path: Path) -> None:
    port = tmp_path / "fastrtps_port7000"
    semaphore = tmp_path / "sem.fastrtps_port7000_mutex"
    for path in (port, semaphore):
        path.write_bytes(b"x" * 100)
        os.utime(path, (time.time() - 60,) * 2)
    with port.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert shared_memory.leftovers(tmp_path) == []
    assert shared_memory.clean(tmp_path) == 2


def test_no_shared_memory_folder_is_no_error(tmp_path: Path) -> None:
    assert shared_memory.clean(tmp_path / "nowhere") == 0
