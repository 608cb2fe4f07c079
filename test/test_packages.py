"""Every package names what it imports in its package.xml, and depends in the allowed direction."""

import ast
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from hil_bringup import up
from hil_bringup.cli import doctor
from hil_monitor import monitor_node
from hil_teleop import spacemouse

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(p.parent for p in ROOT.glob("src/*/setup.py"))
# rosdep keys of Python modules; None: not in rosdep, requirements.txt has it.
KEYS = {
    "numpy": "python3-numpy",
    "scipy": "python3-scipy",
    "yaml": "python3-yaml",
    "pytest": "python3-pytest",
    "matplotlib": "python3-matplotlib",
    "psutil": "python3-psutil",
    "rich": "python3-rich",
    "PIL": "python3-pil",
    "cryptography": "python3-cryptography",
    "uvicorn": "python3-uvicorn",
    "websockets": "python3-websockets",
    "starlette": None,
    "torch": None,
    "safetensors": None,
    "gymnasium": None,
    "mujoco": None,
    "franky": None,  # optional: requirements-fci.txt
    "franka_sim": None,  # in an environment of its own: requirements-fci-sim.txt
    "mcap": None,
    "zstandard": None,
    "lz4": None,
    "tensorboard": None,
    "pyspacemouse": None,
    "easyhid": None,
    "OpenGL": None,
}
NO_ROS = ("hil_rl", "hil_tasks")
NODE_PACKAGES = (
    "hil_sim", "hil_robot_bridge", "hil_teleop", "hil_actor", "hil_learner", "hil_monitor",
)  # fmt: skip


def imported(folder: Path) -> set[str]:
    """Top-level names that the modules of a folder import."""
    names: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names)


def declared(package: Path) -> set[str]:
    tree = ElementTree.parse(package / "package.xml")
    return {e.text or "" for e in tree.getroot() if e.tag.endswith("depend")}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_package_xml_names_every_import(package: Path) -> None:
    names = imported(package / package.name) - {package.name}
    wanted = {KEYS.get(name, name) for name in names} - {None}
    assert not wanted - declared(package), f"{package.name}/package.xml misses these"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_dependencies_point_one_way(package: Path) -> None:
    names = imported(package / package.name) - {package.name}
    if package.name in NO_ROS:
        assert not {"rclpy", "hil_common", "hil_interfaces"} & names
    assert not set(NODE_PACKAGES) & names


def test_hil_up_hands_the_token_where_the_console_looks() -> None:
    assert up.CONSOLE_TOKEN == monitor_node.TOKEN_VARIABLE


def test_doctor_and_teleop_give_the_same_udev_rule() -> None:
    """doctor runs before hil_teleop can be imported, so it has a copy."""
    assert doctor.UDEV_TEXT == spacemouse.UDEV_RULE
    assert doctor.UDEV_RULES == spacemouse.UDEV_FILE
