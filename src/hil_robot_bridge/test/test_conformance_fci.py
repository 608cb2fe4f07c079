"""The driver fci against franka-sim: the suite of every driver, and its own process."""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Iterator, Sequence

import pytest

import hil_tasks
from hil_robot_bridge.drivers import fci_process
from hil_robot_bridge.drivers.base import DriverError, RobotMode
from hil_robot_bridge.drivers.conformance import DriverConformance, Rig
from hil_robot_bridge.drivers.fci import Fci
from hil_robot_bridge.drivers.fci_process import FciConfig
from hil_robot_bridge.fibers import Timeouts
from hil_robot_bridge.poses import RigidPose, distance
from hil_sim.fci.simulated_robot import SimulatedRobot, SimulatedRobotError, python

pytest.importorskip("franky", reason=f"the driver fci needs franky-control: {fci_process.INSTALL}")
try:
    python()
except SimulatedRobotError as error:
    pytest.skip(str(error), allow_module_level=True)

TASK = hil_tasks.load("reach")
HOST = "127.0.0.81"
# The robot has a computer of its own and the driver a real-time kernel; here both take precedence.
ROBOT_PRIORITY, DRIVER_PRIORITY = 20, 10


class FciRig(Rig):
    """franka-sim and the driver, each in a process of its own."""

    errors = ("cartesian_reflex", "joint_velocity_violation", "power_limit_violation")
    by_hand = {"user_stop": RobotMode.USER_STOPPED, "guiding": RobotMode.GUIDING}

    def __init__(self) -> None:
        self.restore()
        timeouts = Timeouts()
        config = FciConfig(
            host=HOST, rate=100.0, realtime=False, priority=DRIVER_PRIORITY, joint_speed=0.2
        )
        super().__init__(Fci(config, timeouts), timeouts, TASK.spec)

    def spin(self) -> None:
        self.robot.poll()
        end = self.driver._end  # type: ignore[attr-defined]
        select.select([end] if end is not None else [], [], [], 0.01)

    def inject(self, what: str) -> None:
        if what in (*self.by_hand, "released"):
            self.robot.by_hand(what)
        else:
            self.robot.fault(what)

    def cut(self) -> None:
        self.robot.close()

        class Gone:
            def poll(self) -> None:
                """Nobody is there."""

            def close(self) -> None:
                """Nobody is there."""

        self.robot: SimulatedRobot | Gone = Gone()  # type: ignore[no-redef]

    def restore(self) -> None:
        self.robot = SimulatedRobot(TASK, HOST, priority=ROBOT_PRIORITY)  # type: ignore[assignment]

    def stiffness(self) -> Sequence[float]:
        """What the law has, asked once more by setting nothing new."""
        answer = self.run(self.driver._ask({"do": "gains"}, 10.0))  # type: ignore[attr-defined]
        found: Sequence[float] = answer["values"]["stiffness"]
        return found

    def close(self) -> None:
        self.driver.close()
        self.robot.close()


@pytest.fixture
def rig() -> Iterator[FciRig]:
    made = FciRig()
    yield made
    made.close()


class TestFci(DriverConformance):
    """See DriverConformance."""

    def test_the_process_dies_and_comes_again(self, rig: FciRig) -> None:
        """Killed in motion: the robot holds by itself, the driver starts a new process."""
        start = rig.ready().pose
        x, y, z = start.position
        rig.go(RigidPose((x, y + 0.02, z), start.quaternion))
        before, pid = rig.state.pose, rig.driver.pid
        os.kill(pid, signal.SIGKILL)
        rig.until("loss", lambda: rig.health.mode == RobotMode.DISCONNECTED)
        assert "started again" in rig.health.text or "starting" in rig.health.text
        rig.until("return", lambda: not rig.health.text)
        assert rig.driver.pid != pid
        first = len(rig.states) - 1
        pose = rig.ready().pose
        away = max(distance(s.pose.position, before.position) for s in rig.states[first:])
        assert away < 0.005
        rig.go(RigidPose((x, y, z), pose.quaternion))

    def test_the_bridge_stands_still(self, rig: FciRig) -> None:
        """The target of before is given up: the arm stops where it is."""
        start = rig.ready(rig.spec.compliance["policy"]).pose
        x, y, z = start.position
        rig.send(RigidPose((x, y + 0.2, z), start.quaternion))
        rig.until("way", lambda: rig.state.pose.position[1] > y + 0.01)
        rig.freeze(1.0)
        rig.until("state", lambda: rig.states)
        rig.let_pass(0.5)
        # 0.1 m/s at most for 0.15 s of silence, and the way to stand still.
        assert rig.state.pose.position[1] < y + 0.06

    def test_the_process_stands_still(self, rig: FciRig) -> None:
        """200 ms without commands to the robot: nothing is lost but time."""
        before = rig.ready().pose
        os.kill(rig.driver.pid, signal.SIGSTOP)
        threading.Event().wait(0.2)
        os.kill(rig.driver.pid, signal.SIGCONT)
        rig.let_pass(0.5)
        assert not rig.health.text
        assert distance(rig.state.pose.position, before.position) < 0.005

    def test_wrench_in_contact(self, rig: FciRig) -> None:
        """Pressing on the table: the force is bounded by stiffness times clip, and measured."""
        spec = dataclasses.replace(
            rig.spec.compliance["policy"], error_clip=(0.005, 0.005, 0.005, 0.1, 0.1, 0.1)
        )
        start = rig.ready(spec).pose
        x, y, _ = start.position
        for lead in (0.002, 0.02):  # gently until it touches, then as hard as the clip allows
            for _ in range(400):
                z = rig.state.pose.position[2]
                rig.send(RigidPose((x, y, z - lead), start.quaternion))
                rig.let_pass(0.05)
                if rig.state.wrench[2] > 2.0:
                    break
        assert not rig.health.text
        steady = [state.wrench[2] for state in rig.let_pass(1.0)][-30:]
        assert 4.0 < sum(steady) / len(steady) < 1.2 * 2000.0 * 0.005


class OldRobot(threading.Thread):
    """A robot whose server has another version than the library."""

    def __init__(self, host: str, version: int) -> None:
        super().__init__(daemon=True)
        self.version = version
        self.listener = socket.create_server((host, 1337))

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                command, number, _ = struct.unpack("<III", connection.recv(12))
                connection.recv(4)
                answer = struct.pack("<BH", 1, self.version)
                header = struct.pack("<III", command, number, 12 + len(answer))
                connection.sendall(header + answer)


def test_another_server_version_names_the_library() -> None:
    host = "127.0.0.82"
    robot = OldRobot(host, 7)
    robot.start()
    driver = Fci(FciConfig(host=host, gripper=False, realtime=False), Timeouts())
    driver.connect(lambda _: None, lambda _: None)
    try:
        for _ in range(600):
            driver.read()
            if "version" in driver.health().text:
                break
            select.select([driver._end], [], [], 0.05)
        assert "version 7 and needs libfranka 0.13.3 to 0.14.0" in driver.health().text
    finally:
        driver.close()
        robot.listener.close()


def test_nobody_at_the_address() -> None:
    driver = Fci(FciConfig(host="127.0.0.83", gripper=False, realtime=False), Timeouts())
    driver.connect(lambda _: None, lambda _: None)
    try:
        for _ in range(600):
            driver.read()
            if "no connection" in driver.health().text:
                break
            select.select([driver._end], [], [], 0.05)
        assert "open the brakes and activate FCI in Desk" in driver.health().text
        assert driver.health().mode == RobotMode.DISCONNECTED
    finally:
        driver.close()


def test_what_is_missing_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DriverError, match="fci_host"):
        Fci(FciConfig(), Timeouts()).connect(lambda _: None, lambda _: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DriverError, match=r"pip install -r requirements-fci\.txt"):
        Fci(FciConfig(host=HOST), Timeouts()).connect(lambda _: None, lambda _: None)
