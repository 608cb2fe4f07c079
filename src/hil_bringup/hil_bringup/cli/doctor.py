"""`hil doctor`: what is here, what is missing, and the exact command that brings it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from hil_bringup.cli import checks, shared_memory
from hil_bringup.cli.checks import Check
from hil_bringup.cli.environment import choose_gl
from hil_bringup.cli.interpreters import candidates, choose
from hil_bringup.cli.progress import Progress
from hil_bringup.cli.setup_steps import Setup
from hil_bringup.cli.workspace import Workspace, system_ros

_UDEV_FOLDERS = ("/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d")
UDEV_RULES = "/etc/udev/rules.d/70-spacemouse.rules"
UDEV_TEXT = "\n".join(
    f'KERNEL=="hidraw*", SUBSYSTEM=="hidraw", KERNELS=="{match}", '
    'MODE="0660", GROUP="plugdev", TAG+="uaccess"'
    for match in ("*:256F:*", "*:046D:C62*")
)
"""The rule of hil_teleop.spacemouse (a test compares them), which is not installed yet here."""


def run(workspace: Workspace) -> int:
    """Print the report; exit code 1 where something that must be there is missing."""
    interpreter = choose(candidates(workspace, system_only=bool(system_ros(os.environ))))
    found = checks.run_checks(interpreter, workspace.root)
    found += [_spacemouse_rule(), _clock(), _leftovers()]
    print("Machine")
    print(checks.report(found))
    print("\nROS 2")
    print(f"  {_ros_text()}")
    print(f"  rendering: MUJOCO_GL={os.environ.get('MUJOCO_GL') or choose_gl()}")
    print("\nThis checkout")
    if interpreter is None:
        print("  set-up: not possible without Python")
        return 1
    setup = Setup(workspace, interpreter, Progress(workspace.log / "setup.log"))
    for step in setup.steps():
        state = (
            "up to date"
            if step.fresh
            else "to be done"
            if step.stamp.read() is None
            else "changed"
        )
        print(f"  {state:<11} {step.title}")
    if not all(step.fresh for step in setup.steps()):
        print("  ./hil setup does what is not up to date")
    return 1 if checks.missing(found) else 0


def _ros_text() -> str:
    prefixes = system_ros(os.environ)
    if prefixes:
        return f"sourced: {os.environ['ROS_DISTRO']} at {prefixes[-1]} (not tried here)"
    other = os.environ.get("ROS_DISTRO")
    if other and os.environ.get("AMENT_PREFIX_PATH"):
        return f"{other} is sourced, but Jazzy is needed: the wheels from PyPI are used instead"
    return "none sourced: the wheels from PyPI are used"


def _spacemouse_rule() -> Check:
    folders = [Path(folder) for folder in _UDEV_FOLDERS]
    rules = [path for folder in folders for path in folder.glob("*.rules")]
    rule = next((p for p in rules if "256f" in p.read_text(errors="replace").lower()), None)
    command = (
        f"printf '%s\\n' '{UDEV_TEXT}' | sudo tee {UDEV_RULES}"
        " && sudo udevadm control --reload && sudo udevadm trigger"
    )
    return Check(
        "SpaceMouse udev rule",
        rule is not None,
        str(rule) if rule else "none: only root can read a SpaceMouse; to change that:",
        required=False,
        advice=command.replace("\n", "' '"),
    )


def _clock() -> Check:
    command = shutil.which("timedatectl")
    text = ""
    if command:
        answer = subprocess.run(
            [command, "show", "-p", "NTPSynchronized", "--value"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        text = answer.stdout.strip()
    if text == "no":
        advice = "several machines need one clock: install chrony or systemd-timesyncd on each"
        return Check("clock", False, "not synchronised", ("chrony",), False, advice)
    return Check("clock", True, "synchronised" if text == "yes" else "synchronisation not known")


def _leftovers() -> Check:
    dead = shared_memory.leftovers()
    size = sum(path.stat().st_size for path in dead if path.exists()) / 1e6
    return Check(
        "shared memory",
        not dead,
        f"{len(dead)} files ({size:.1f} MB) of killed processes" if dead else "no leftovers",
        required=False,
        advice="`hil up` removes them when it starts",
    )
