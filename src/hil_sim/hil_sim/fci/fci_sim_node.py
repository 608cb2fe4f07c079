"""Node `hil_sim` of the graph `fci_sim`: the simulated robot's surroundings.

The robot itself (`hil_sim.fci.server`) is spoken to through its own protocol by robot_bridge. This
node starts it, sets the task's objects, publishes their poses, and shows the cameras from a mirror
of the robot's state, so that rendering takes nothing from the robot's 1 kHz loop.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
from rclpy.experimental import EventsExecutor
from rclpy.parameter import Parameter

import hil_tasks
from hil_common import qos
from hil_common.conversions import from_ns, pose_to_msg
from hil_common.lifecycle import HilNode
from hil_common.params import NodeParams, param
from hil_common.run import main as run
from hil_interfaces.msg import ObjectPoses
from hil_interfaces.srv import ResetWorld
from hil_sim.camera_publisher import CameraPublisher
from hil_sim.fci.simulated_robot import Mirror, SimulatedRobot
from hil_sim.pacing import Pacer
from hil_tasks.geometry import Pose

INJECT = "inject"
_BY_HAND = ("user_stop", "guiding", "released")


@dataclass(frozen=True)
class FciSimParams(NodeParams):
    """Parameters of the simulated robot's surroundings."""

    task: str = param("peg_insert", "name of the task whose scene is simulated")
    task_file: str = param("", "YAML file with the task and its overrides; wins over `task`")
    seed: int = param(0, "of the objects' first poses", low=0)
    host: str = param("127.0.0.1", "address at which the robot listens")
    base_frame: str = param("base", "frame id of poses")
    image_size: int = param(128, "edge of the camera images, pixels", low=16, high=640)
    camera_rate_hz: float = param(15.0, "frames per second", low=1.0, high=60.0)
    enforce: bool = param(False, "the robot's limits, and late commands, abort motions")
    priority: int = param(
        20, "real-time priority of the robot, where it is allowed; 0: none", low=0, high=90
    )


class FciSimNode(HilNode):
    """Starts the robot, places objects, publishes their poses and the cameras.

    As with the other simulator, a parameter `inject` brings about a fault while it runs: the name
    of a robot error, "user_stop", "guiding" or "released".
    """

    Params = FciSimParams
    params: FciSimParams

    def __init__(self, **options: Any) -> None:
        super().__init__("hil_sim", **options)
        self._robot: SimulatedRobot | None = None
        self._pacers: list[Pacer] = []
        self._lock = threading.RLock()
        text = "fault to inject, for tests: see the documentation of the simulator"
        self.declare_parameter(INJECT, "", ParameterDescriptor(description=text))
        self.add_on_set_parameters_callback(self._on_parameters)

    # -- lifecycle -------------------------------------------------------------------------------

    def on_setup(self) -> None:
        """Start the robot, with its objects in place."""
        params = self.params
        self.task = (
            hil_tasks.load_file(params.task_file)
            if params.task_file
            else hil_tasks.load(params.task)
        )
        self._robot = SimulatedRobot(self.task, params.host, params.enforce, params.priority)
        self._mirror = Mirror(self.task)
        self._place(params.seed)
        self._cameras = CameraPublisher(self, self._mirror, params.image_size, self._lock)
        self._objects = self.create_publisher(ObjectPoses, "object_poses", qos.STATE)
        self._service = self.serve(ResetWorld, "~/reset_world", self._reset_world)
        self.diagnostics.set(task=self.task.spec.name, pace="realtime")

    def on_start(self) -> None:
        """Publish from now on."""
        period = 1.0 / self.params.camera_rate_hz
        self._pacers = [Pacer(self._publish, period, self.fault, "cameras")]
        for pacer in self._pacers:
            pacer.start()

    def on_hold(self) -> None:
        """Publish nothing. The robot goes on."""
        for pacer in self._pacers:
            pacer.stop()
        self._pacers = []

    def on_close(self) -> None:
        """Switch the robot off."""
        self.on_hold()
        self.destroy_service(self._service)
        self.destroy_publisher(self._objects)
        self._cameras.close()
        self._stop_robot()

    def destroy_node(self) -> None:
        """Destroy the node and the robot."""
        self.on_hold()
        self._stop_robot()
        super().destroy_node()

    def _stop_robot(self) -> None:
        if self._robot is not None:
            self._robot.close()
            self._robot = None

    # -- objects and cameras ---------------------------------------------------------------------

    def _place(self, seed: int) -> None:
        assert self._robot is not None
        self._poses: dict[str, Pose] = self.task.sample_world(np.random.default_rng(seed))
        self._robot.place(self._poses)

    def _reset_world(
        self, request: ResetWorld.Request, response: ResetWorld.Response
    ) -> ResetWorld.Response:
        """Service ~/reset_world."""
        with self._lock:
            self._place(request.seed)
        response.ok = True
        response.stamp = self.get_clock().now().to_msg()
        return response

    def _publish(self) -> None:
        robot = self._robot
        assert robot is not None
        stamp = from_ns(self.get_clock().now().nanoseconds)
        with self._lock:
            self._mirror.show(robot.poll())
            poses = {**self._poses, **self._mirror.object_poses()}
        message = ObjectPoses(names=list(poses))
        message.header.stamp, message.header.frame_id = stamp, self.params.base_frame
        message.poses = [pose_to_msg(pose) for pose in poses.values()]
        self._objects.publish(message)
        self._cameras.publish(stamp)
        self.diagnostics.tick("frames")

    # -- faults on demand ------------------------------------------------------------------------

    def _on_parameters(self, parameters: list[Parameter]) -> SetParametersResult:
        for parameter in parameters:
            if parameter.name != INJECT or not parameter.value:
                continue
            if self._robot is None:
                return SetParametersResult(successful=False, reason="there is no robot yet")
            if parameter.value in _BY_HAND:
                self._robot.by_hand(parameter.value)
            else:
                self._robot.fault(parameter.value)
        return SetParametersResult(successful=True)


def main() -> None:
    """Entry point."""
    run(FciSimNode, executor_class=EventsExecutor)
