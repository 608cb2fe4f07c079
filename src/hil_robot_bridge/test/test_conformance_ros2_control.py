"""The driver ros2_control against hil_sim: the suite of every driver, and its own quirks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from rclpy.executors import SingleThreadedExecutor

import hil_tasks
from hil_common.lifecycle import HilNode
from hil_common.testing import Ros
from hil_robot_bridge.drivers.base import RobotMode
from hil_robot_bridge.drivers.conformance import DriverConformance, Rig
from hil_robot_bridge.drivers.ros2_control import Ros2Control, Ros2ControlConfig
from hil_robot_bridge.fibers import Timeouts
from hil_sim.sim_node import SimNode

SPEC = hil_tasks.load("peg_insert").spec
CONFIG = Ros2ControlConfig(pairing=0.02, state_timeout=2.0, status_timeout=5.0)


class Ros2ControlRig(Rig):
    """hil_sim in the background, the driver on the test's thread."""

    errors = ("cartesian_reflex", "joint_velocity_violation", "power_limit_violation")
    by_hand = {"user_stop": RobotMode.USER_STOPPED, "guiding": RobotMode.GUIDING}

    def __init__(self, ros: Ros) -> None:
        self._ros = ros
        self.restore()
        self._node = HilNode("robot_bridge", context=ros.context)
        self._executor = SingleThreadedExecutor(context=ros.context)
        self._executor.add_node(self._node)
        timeouts = Timeouts()
        driver = Ros2Control(self._node, CONFIG, "base", False, timeouts)
        super().__init__(driver, timeouts, SPEC)

    def spin(self) -> None:
        self._executor.spin_once(timeout_sec=0.01)

    def inject(self, what: str) -> None:
        assert self.sim._inject(what) == ""

    def cut(self) -> None:
        self._ros.executor.remove_node(self.sim)
        self.sim.destroy_node()
        self._ros._nodes.remove(self.sim)

    def restore(self) -> None:
        self.sim: Any = self._ros.start(
            SimNode, task="reach", pace="realtime", cameras=("side",), robot_state_rate_hz=10.0
        )

    def stiffness(self) -> Sequence[float]:
        return [float(value) for value in self.sim.world.controller.gains.stiffness]

    def close(self) -> None:
        self.driver.close()
        self._executor.shutdown()
        self._node.destroy_node()


@pytest.fixture
def rig(ros: Ros) -> Iterator[Ros2ControlRig]:
    made = Ros2ControlRig(ros)
    yield made
    made.close()


class TestRos2Control(DriverConformance):
    """See DriverConformance."""
