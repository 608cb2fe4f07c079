"""The robot's other nodes: controller parameters, controller manager, services, gripper.

They run in an executor thread of their own, so that the simulation's thread serves nothing but
`advance` and its wait set stays small. Everything they do to the world is under its lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from controller_manager_msgs.msg import (
    ControllerManagerActivity,
    ControllerState,
    HardwareComponentState,
    HardwareInterface,
    NamedLifecycleState,
)
from controller_manager_msgs.srv import (
    ConfigureController,
    ListControllers,
    ListHardwareComponents,
    LoadController,
    SetHardwareComponentState,
    SwitchController,
)
from franka_msgs.action import ErrorRecovery
from franka_msgs.srv import (
    SetCartesianStiffness,
    SetForceTorqueCollisionBehavior,
    SetFullCollisionBehavior,
    SetJointStiffness,
    SetLoad,
    SetStiffnessFrame,
    SetTCPFrame,
)
from lifecycle_msgs.msg import State
from rcl_interfaces.msg import FloatingPointRange, ParameterDescriptor, SetParametersResult
from rclpy.action import ActionServer
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from trajectory_msgs.msg import JointTrajectory

from hil_common import qos
from hil_sim import crisp, fr3, robot
from hil_sim.gripper_server import GripperNode
from hil_sim.robot import HARDWARE, Robot
from hil_sim.world import World

_STATE_IDS = {
    "unconfigured": State.PRIMARY_STATE_UNCONFIGURED,
    "inactive": State.PRIMARY_STATE_INACTIVE,
    "active": State.PRIMARY_STATE_ACTIVE,
}
_CONTROLLER_TYPES = {
    robot.IMPEDANCE: "crisp_controllers/CartesianController",
    robot.JOINT_TRAJECTORY: "joint_trajectory_controller/JointTrajectoryController",
    "gravity_compensation": "crisp_controllers/CartesianController",
    "joint_impedance_controller": "crisp_controllers/CartesianController",
    "joint_state_broadcaster": "joint_state_broadcaster/JointStateBroadcaster",
    "franka_robot_state_broadcaster": "franka_robot_state_broadcaster/FrankaRobotStateBroadcaster",
    "pose_broadcaster": "crisp_controllers/PoseBroadcaster",
}
_EFFORT_INTERFACES = [f"{joint}/effort" for joint in fr3.JOINTS]


class Companions:
    """Makes the nodes, spins them in a thread, and stops them.

    Args:
        context, namespace: of the nodes.
        world, state: the arm and the state of its software stack.
        lock: held during everything that touches them.
    """

    def __init__(
        self, context: Context, namespace: str, world: World, state: Robot, lock: threading.RLock
    ) -> None:
        options = {
            "context": context,
            "namespace": namespace,
            "enable_rosout": False,
            "use_global_arguments": False,
        }
        self.controller = ControllerNode(world, lock, **options)
        options["start_parameter_services"] = False
        self.manager = ControllerManagerNode(state, lock, **options)
        self.gripper = GripperNode(world, lock, **options)
        joints = JointTrajectoryNode(world, lock, **options)
        service_server = ServiceServerNode(world, state, lock, **options)
        action_server = ActionServerNode(state, lock, **options)
        self._nodes: list[Node] = [
            self.controller,
            self.manager,
            self.gripper,
            joints,
            service_server,
            action_server,
        ]
        self._executor = SingleThreadedExecutor(context=context)
        for node in self._nodes:
            self._executor.add_node(node)
        self._thread = threading.Thread(target=self._spin, name="robot_nodes", daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        # The context ends first when the process is told to stop.
        with suppress(ExternalShutdownException):
            self._executor.spin()

    def close(self) -> None:
        """Stop the thread and destroy the nodes."""
        self._executor.shutdown()
        self._thread.join(5.0)
        for node in self._nodes:
            node.destroy_node()


class ControllerNode(Node):
    """Node `cartesian_impedance_controller`: live parameters of the law, validated."""

    def __init__(self, world: World, lock: threading.RLock, **options: Any) -> None:
        super().__init__(robot.IMPEDANCE, **options)
        self._world, self._lock = world, lock
        self._values = dict(crisp.DEFAULTS)
        for name, setting in crisp.SETTINGS.items():
            descriptor = ParameterDescriptor(description=setting.doc)
            if not isinstance(setting.default, bool):
                descriptor.floating_point_range = [
                    FloatingPointRange(from_value=setting.low, to_value=setting.high)
                ]
            self.declare_parameter(name, setting.default, descriptor)
        self.add_on_set_parameters_callback(self._check)
        self.add_post_set_parameters_callback(self._apply)
        self._apply([])

    def _check(self, parameters: list[Parameter]) -> SetParametersResult:
        problems = [
            text
            for parameter in parameters
            if parameter.name in crisp.SETTINGS
            and (text := crisp.problem(parameter.name, parameter.value))
        ]
        return SetParametersResult(successful=not problems, reason="; ".join(problems))

    def _apply(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            if parameter.name in self._values:
                self._values[parameter.name] = parameter.value
        with self._lock:
            self._world.controller.gains = crisp.gains(self._values)


class JointTrajectoryNode(Node):
    """Node `joint_trajectory_controller`: goes to the last point of a trajectory."""

    def __init__(self, world: World, lock: threading.RLock, **options: Any) -> None:
        super().__init__(robot.JOINT_TRAJECTORY, **options)
        self._world, self._lock = world, lock
        self.create_subscription(JointTrajectory, "~/joint_trajectory", self._follow, qos.COMMAND)

    def _follow(self, message: JointTrajectory) -> None:
        if sorted(message.joint_names) != sorted(fr3.JOINTS) or not message.points:
            self.get_logger().error("trajectory of other joints, or without points: ignored")
            return
        point = message.points[-1]
        positions = dict(zip(message.joint_names, point.positions, strict=False))
        q = np.array([positions.get(joint, np.nan) for joint in fr3.JOINTS])
        inside = (q >= fr3.LIMITS[:, 0]).all() and (q <= fr3.LIMITS[:, 1]).all()
        if not inside:
            self.get_logger().error("trajectory outside the joint limits: ignored")
            return
        seconds = point.time_from_start.sec + point.time_from_start.nanosec * 1e-9
        with self._lock:
            self._world.go_to_joints(q, seconds)


class ControllerManagerNode(Node):
    """Node `controller_manager`: list and switch controllers, hardware component, activity."""

    def __init__(self, state: Robot, lock: threading.RLock, **options: Any) -> None:
        super().__init__("controller_manager", **options)
        self._state, self._lock = state, lock
        self._activity = self.create_publisher(
            ControllerManagerActivity, "~/activity", qos.LATCHED
        )
        self.create_service(ListControllers, "~/list_controllers", self._list_controllers)
        self.create_service(SwitchController, "~/switch_controller", self._switch)
        self.create_service(ListHardwareComponents, "~/list_hardware_components", self._list)
        self.create_service(
            SetHardwareComponentState, "~/set_hardware_component_state", self._set_hardware
        )
        self.create_service(LoadController, "~/load_controller", self._known)
        self.create_service(ConfigureController, "~/configure_controller", self._known)
        self.publish_activity()

    def publish_activity(self) -> None:
        """Publish the states of controllers and hardware (latched)."""
        message = ControllerManagerActivity()
        message.header.stamp = self.get_clock().now().to_msg()
        message.controllers = [
            NamedLifecycleState(name=name, state=_lifecycle(state))
            for name, state in self._state.controllers.items()
        ]
        message.hardware_components = [
            NamedLifecycleState(name=HARDWARE, state=_lifecycle(self._state.hardware))
        ]
        self._activity.publish(message)

    def _list_controllers(
        self, _: ListControllers.Request, response: ListControllers.Response
    ) -> ListControllers.Response:
        for name, state in self._state.controllers.items():
            entry = ControllerState(
                name=name, state=state, type=_CONTROLLER_TYPES[name], update_rate=1000
            )
            if name not in robot.BROADCASTERS:
                entry.required_command_interfaces = _EFFORT_INTERFACES
                entry.claimed_interfaces = _EFFORT_INTERFACES if state == "active" else []
            response.controller.append(entry)
        return response

    def _switch(
        self, request: SwitchController.Request, response: SwitchController.Response
    ) -> SwitchController.Response:
        with self._lock:
            reply = self._state.switch(
                request.activate_controllers, request.deactivate_controllers, request.strictness
            )
        response.ok, response.message = reply.ok, reply.reason
        return response

    def _list(
        self, _: ListHardwareComponents.Request, response: ListHardwareComponents.Response
    ) -> ListHardwareComponents.Response:
        active = self._state.hardware == "active"
        plugin = "franka_hardware/FrankaHardwareInterface"
        component = HardwareComponentState(
            name=HARDWARE,
            type="system",
            rw_rate=1000,
            plugin_name=plugin,
            class_type=plugin,
            state=_lifecycle(self._state.hardware),
        )
        component.command_interfaces = [
            HardwareInterface(
                name=name,
                data_type="double",
                is_available=active,
                is_claimed=active and not self._state.idle,
            )
            for name in _EFFORT_INTERFACES
        ]
        component.state_interfaces = [
            HardwareInterface(name=f"{joint}/{kind}", data_type="double", is_available=active)
            for joint in fr3.JOINTS
            for kind in ("position", "velocity", "effort")
        ]
        response.component = [component]
        return response

    def _set_hardware(
        self,
        request: SetHardwareComponentState.Request,
        response: SetHardwareComponentState.Response,
    ) -> SetHardwareComponentState.Response:
        target = request.target_state
        label = target.label or next(
            (name for name, number in _STATE_IDS.items() if number == target.id), str(target.id)
        )
        with self._lock:
            reply = self._state.set_hardware(request.name, label)
        if not reply.ok:
            self.get_logger().warning(reply.reason)
        response.ok = reply.ok
        response.state = _lifecycle(self._state.hardware)
        return response

    def _known(self, request: Any, response: Any) -> Any:
        response.ok = request.name in self._state.controllers
        return response


class ActionServerNode(Node):
    """Node `action_server`: error recovery."""

    def __init__(self, state: Robot, lock: threading.RLock, **options: Any) -> None:
        super().__init__("action_server", **options)
        self._state, self._lock = state, lock
        self._recovery = ActionServer(self, ErrorRecovery, "~/error_recovery", self._recover)

    def _recover(self, goal: Any) -> ErrorRecovery.Result:
        with self._lock:
            reply = self._state.recover()
        if reply.ok:
            goal.succeed()
        else:
            self.get_logger().warning(f"error recovery refused: {reply.reason}")
            goal.abort()
        return ErrorRecovery.Result()

    def destroy_node(self) -> None:
        """Destroy the action first."""
        self._recovery.destroy()
        super().destroy_node()


class ServiceServerNode(Node):
    """Node `service_server`: settings of the robot, only while no controller commands it."""

    def __init__(self, world: World, state: Robot, lock: threading.RLock, **options: Any) -> None:
        super().__init__("service_server", **options)
        self._world, self._state, self._lock = world, state, lock
        self._offer(
            SetForceTorqueCollisionBehavior, "set_force_torque_collision_behavior", self._collision
        )
        self._offer(SetFullCollisionBehavior, "set_full_collision_behavior", self._collision)
        self._offer(SetLoad, "set_load", self._load)
        self._offer(SetCartesianStiffness, "set_cartesian_stiffness", self._stiffness)
        self._offer(SetJointStiffness, "set_joint_stiffness", self._joint_stiffness)
        self._offer(SetTCPFrame, "set_tcp_frame", self._frame)
        self._offer(SetStiffnessFrame, "set_stiffness_frame", self._frame)

    def _offer(self, kind: Any, name: str, apply: Callable[[Any], None]) -> None:
        def answer(request: Any, response: Any) -> Any:
            with self._lock, _reported(response):
                if not self._state.idle:
                    raise ValueError("command rejected: a controller is active (robot not idle)")
                apply(request)
            return response

        self.create_service(kind, f"~/{name}", answer)

    def _collision(self, request: Any) -> None:
        torque = np.array(request.upper_torque_thresholds_nominal)
        force = np.array(request.upper_force_thresholds_nominal)
        _require_all(torque > 0.0, "torque thresholds must be > 0")
        _require_all(force > 0.0, "force thresholds must be > 0")
        self._world.set_collision_thresholds(force, torque)

    def _load(self, request: SetLoad.Request) -> None:
        _require_all(np.array([request.mass]) >= 0.0, "mass must be >= 0")
        _require_all(
            np.isfinite([*request.center_of_mass, *request.load_inertia]), "load must be finite"
        )

    def _stiffness(self, request: SetCartesianStiffness.Request) -> None:
        _require_all(np.array(request.cartesian_stiffness) >= 0.0, "stiffness must be >= 0")

    def _joint_stiffness(self, request: SetJointStiffness.Request) -> None:
        _require_all(np.array(request.joint_stiffness) >= 0.0, "stiffness must be >= 0")

    def _frame(self, request: Any) -> None:
        matrix = np.array(request.transformation).reshape(4, 4, order="F")
        _require_all(np.isfinite(matrix), "transformation must be finite")
        orthonormal = np.allclose(matrix[:3, :3] @ matrix[:3, :3].T, np.eye(3), atol=1e-3)
        _require_all(np.array([orthonormal]), "transformation must be a rigid transformation")


@contextmanager
def _reported(response: Any) -> Iterator[None]:
    """Fill success and error of a franka_msgs reply."""
    try:
        yield
    except ValueError as error:
        response.success, response.error = False, str(error)
    else:
        response.success, response.error = True, ""


def _require_all(values: Any, message: str) -> None:
    if not np.all(values):
        raise ValueError(message)


def _lifecycle(label: str) -> State:
    return State(id=_STATE_IDS[label], label=label)
