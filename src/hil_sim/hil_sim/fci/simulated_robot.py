"""Starts the simulated robot (`hil_sim.fci.server`) and talks to it. No ROS."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from hil_sim import fr3
from hil_sim.fci import scene
from hil_sim.world import World
from hil_tasks.geometry import Pose
from hil_tasks.task import Task

PYTHON = "HIL_FCI_SIM_PYTHON"
"""Environment variable: the Python that has franka-sim; else .venv-fci of the checkout."""

_SERVER = Path(__file__).with_name("server.py")
_START_LIMIT = 60.0  # s
_STOP_LIMIT = 5.0  # s
_PACKET = 65536
_STRANGERS = ("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")  # of this environment


class SimulatedRobotError(RuntimeError):
    """The simulated robot does not start; the text says what to do."""


def python() -> Path:
    """Python of franka-sim's environment.

    Raises:
        SimulatedRobotError: there is none; names the commands that make one.
    """
    root = Path(__file__).resolve().parents[4]
    path = Path(os.environ.get(PYTHON) or root / ".venv-fci" / "bin" / "python")
    if not path.is_file():
        raise SimulatedRobotError(
            f"franka-sim's environment is missing ({path}): python3 -m venv .venv-fci && "
            ".venv-fci/bin/pip install -r requirements-fci-sim.txt"
        )
    return path


class SimulatedRobot:
    """An FR3 with a task's scene that speaks the robot's protocol.

    Args:
        task: what stands around the arm and what it holds.
        host: address to listen at; ports are those of the robot.
        enforce: the robot's limits and its demand for punctual commands abort motions.
        priority: real-time priority of the process; 0: none.

    Attributes:
        snapshot: newest one: time (s), qpos, mocap_pos, mocap_quat, mode.
    """

    def __init__(
        self, task: Task, host: str = "127.0.0.1", enforce: bool = False, priority: int = 0
    ) -> None:
        self.task, self.host = task, host
        self.snapshot: dict[str, Any] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="hil-fci-sim-")
        content = task.scene()
        arm, hand = (Path(self._folder.name) / name for name in ("arm.xml", "hand.xml"))
        arm.write_text(scene.arm(content))
        hand.write_text(scene.hand(content))
        world = World(task)
        home = world.solve(task.spec.reset.pose, fr3.HOME)
        world.close()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        command = [str(python()), "-I", str(_SERVER), "--model", str(arm), "--host", host]
        command += ["--control", str(theirs.fileno()), "--priority", str(priority)]
        command += ["--home=" + ",".join(map(str, home))] + ["--enforce"] * enforce
        environment = {k: v for k, v in os.environ.items() if k not in _STRANGERS}
        environment["FRANKA_HAND_MJCF"] = str(hand)
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        self._wait_until_there()

    def poll(self) -> dict[str, Any]:
        """Newest snapshot; {} before the first.

        Raises:
            SimulatedRobotError: the process has ended.
        """
        while True:
            try:
                packet = self._socket.recv(_PACKET)
            except BlockingIOError:
                return self.snapshot
            if not packet:
                raise SimulatedRobotError(f"franka-sim ended, exit code {self.process.wait()}")
            snapshot = json.loads(packet)
            if "qpos" in snapshot:
                self.snapshot = snapshot

    def place(self, objects: Mapping[str, Pose]) -> None:
        """Set poses of the scene's objects (base frame)."""
        known = {item.name for item in self.task.scene().objects}
        self._send({"objects": {n: _wxyz(pose) for n, pose in objects.items() if n in known}})

    def fault(self, error: str) -> None:
        """Have the robot stop with an error (a name of franka_msgs/Errors)."""
        self._send({"fault": error})

    def by_hand(self, what: str) -> None:
        """What a person does at the arm: user_stop, guiding or released."""
        self._send({"hand": what})

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        try:
            self.process.wait(_STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()

    def _send(self, request: Mapping[str, Any]) -> None:
        self._socket.send(json.dumps(request).encode())

    def _wait_until_there(self) -> None:
        end = time.monotonic() + _START_LIMIT
        while not self.poll():
            if time.monotonic() > end:
                self.close()
                raise SimulatedRobotError(f"franka-sim says nothing for {_START_LIMIT} s")
            time.sleep(0.02)


class Mirror:
    """The same scene with the state of the simulated robot, to look at.

    Args:
        task: as the simulated robot's.
    """

    def __init__(self, task: Task) -> None:
        content = task.scene()
        self.model = mujoco.MjModel.from_xml_string(scene.mirror(content))
        self.data = mujoco.MjData(self.model)
        self.cameras = tuple(camera.name for camera in content.cameras)
        self._bodies = {item.name: self.model.body(item.name).id for item in content.objects}

    def show(self, snapshot: Mapping[str, Sequence[Any]]) -> None:
        """Take the state of a snapshot."""
        data = self.data
        data.qpos[:] = snapshot["qpos"]
        data.mocap_pos[:] = np.reshape(snapshot["mocap_pos"], (-1, 3))
        data.mocap_quat[:] = np.reshape(snapshot["mocap_quat"], (-1, 4))
        mujoco.mj_kinematics(self.model, data)
        mujoco.mj_camlight(self.model, data)

    def object_poses(self) -> dict[str, Pose]:
        """Poses of the scene's objects (base frame)."""
        poses = {}
        for name, body in self._bodies.items():
            w, x, y, z = self.data.xquat[body]
            poses[name] = Pose.from_xyzw(self.data.xpos[body].copy(), [x, y, z, w])
        return poses


def _wxyz(pose: Pose) -> tuple[list[float], list[float]]:
    x, y, z, w = map(float, pose.xyzw)
    return [float(value) for value in pose.position], [w, x, y, z]
