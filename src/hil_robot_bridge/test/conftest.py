"""A robot for tests: what franka_ros2, crisp's controller and a simulator's clock offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from controller_manager_msgs.msg import (
    ControllerManagerActivity,
    ControllerState,
    NamedLifecycleState,
)
from controller_manager_msgs.srv import (
    ListControllers,
    SetHardwareComponentState,
    SwitchController,
)
from franka_msgs.action import ErrorRecovery, Grasp, Move
from franka_msgs.msg import FrankaRobotState
from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from lifecycle_msgs.msg import State
from rclpy.action import ActionServer
from sensor_msgs.msg import JointState

import hil_tasks
from hil_common import qos
from hil_common.conversions import NANOSECONDS, from_ns, to_ns
from hil_common.lifecycle import HilNode
from hil_common.testing import Ros
from hil_interfaces.srv import Advance
from hil_robot_bridge.drivers import crisp
from hil_robot_bridge.drivers.franka_state import FrankaMode
from hil_robot_bridge.drivers.ros2_control import FR3_JOINTS
from hil_robot_bridge.fibers import Promise
from hil_robot_bridge.poses import RigidPose, interpolate
from hil_robot_bridge.ros_io import DeferredService

CONTROLLER = "cartesian_impedance_controller"
HARDWARE = "FrankaHardwareInterface"
SPEC = hil_tasks.load("peg_insert").spec
PERIOD_NS = round(SPEC.period * NANOSECONDS)


class FakeRobot(HilNode):
    """A point that follows its target; time moves by `advance` or by `run`.

    Attributes:
        pose: measured.
        targets: (stamp in ns, pose) of every target_pose that came.
        blocked: the point does not move.
        mode: robot mode in robot_state.
        calls: names of the recovery steps in the order in which they came.
        forgetful: parameter that keeps another value than it is set to.
        silent: steps of the recovery that are never answered.
        lose: number of next states that are lost on their way.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(CONTROLLER, **options)
        self.pose = RigidPose.of(SPEC.reset.pose)
        self.q = [0.0, 0.2, 0.0, -2.4, 0.0, 2.6, 0.8]
        self.targets: list[tuple[int, RigidPose]] = []
        self.blocked = False
        self.mode = FrankaMode.MOVE
        self.error = ""
        self.hardware = "active"
        self.controller = "active"
        self.calls: list[str] = []
        self.forgetful = ""
        self.silent: set[str] = set()
        self.lose = 0
        self.advances: list[Advance.Request] = []
        self.gripper_goals: list[Any] = []
        self.stamp_ns = NANOSECONDS
        self._waiting: list[tuple[int, Promise[None]]] = []
        self._never: list[Promise[None]] = []
        for name, value in crisp.parameters(SPEC.compliance["policy"]).items():
            self.declare_parameter(name, type(value)(0))
        self.add_pre_set_parameters_callback(self._forget)
        self._pose = self.create_publisher(PoseStamped, "current_pose", qos.COMMAND)
        self._twist = self.create_publisher(TwistStamped, "current_twist", qos.COMMAND)
        broadcaster = "franka_robot_state_broadcaster"
        self._wrench = self.create_publisher(
            WrenchStamped, f"{broadcaster}/external_wrench_in_base_frame", qos.STATE
        )
        self._joints = self.create_publisher(JointState, "franka/joint_states", qos.COMMAND)
        self._fingers = self.create_publisher(
            JointState, "franka_gripper/joint_states", qos.COMMAND
        )
        self._state = self.create_publisher(
            FrankaRobotState, f"{broadcaster}/robot_state", qos.COMMAND
        )
        self._activity = self.create_publisher(
            ControllerManagerActivity, "controller_manager/activity", qos.LATCHED
        )
        self.create_subscription(PoseStamped, "target_pose", self._on_target, qos.COMMAND)
        DeferredService(self, Advance, "/hil_sim/advance", self._advance)
        DeferredService(
            self,
            SetHardwareComponentState,
            "controller_manager/set_hardware_component_state",
            self._set_hardware,
        )
        DeferredService(
            self, SwitchController, "controller_manager/switch_controller", self._switch
        )
        self.serve(ListControllers, "controller_manager/list_controllers", self._list)
        self._servers = [
            ActionServer(
                self,
                ErrorRecovery,
                "action_server/error_recovery",
                self._never_executed,
                handle_accepted_callback=self._recover,
            ),
            self._gripper_server(Move, "franka_gripper/move"),
            self._gripper_server(Grasp, "franka_gripper/grasp"),
        ]
        self.announce()

    def destroy_node(self) -> None:
        for server in self._servers:
            server.destroy()
        super().destroy_node()

    # -- state -----------------------------------------------------------------------------------

    def move(self, share: float = 0.8) -> None:
        """Time goes on by one control period."""
        self.stamp_ns += PERIOD_NS
        if self.targets and not self.blocked and self.controller == "active":
            self.pose = interpolate(self.pose, self.targets[-1][1], share)

    def publish(self) -> None:
        """State of now."""
        if self.lose:
            self.lose -= 1
            return
        self.publish_status()
        stamp = from_ns(self.stamp_ns)
        half = 0.03
        fingers = JointState(name=["left", "right"], position=[half, half])
        joints = JointState(name=list(FR3_JOINTS), position=self.q, velocity=[0.0] * 7)
        twist, wrench, pose = TwistStamped(), WrenchStamped(), PoseStamped()
        twist.twist.linear.x, wrench.wrench.force.z = 0.01, 5.0
        pose.header.frame_id = "base"
        point, turn = pose.pose.position, pose.pose.orientation
        point.x, point.y, point.z = self.pose.position
        turn.x, turn.y, turn.z, turn.w = self.pose.quaternion
        for publisher, message in (
            (self._fingers, fingers),
            (self._joints, joints),
            (self._wrench, wrench),
            (self._twist, twist),
            (self._pose, pose),
        ):
            message.header.stamp = stamp
            publisher.publish(message)

    def publish_status(self) -> None:
        status = FrankaRobotState(robot_mode=int(self.mode), control_command_success_rate=0.97)
        if self.error:
            setattr(status.current_errors, self.error, True)
        self._state.publish(status)

    def announce(self) -> None:
        """States of controllers and hardware."""
        active = {"active": State.PRIMARY_STATE_ACTIVE}

        def named(name: str, label: str) -> NamedLifecycleState:
            state = State(id=active.get(label, 2), label=label)
            return NamedLifecycleState(name=name, state=state)

        self._activity.publish(
            ControllerManagerActivity(
                controllers=[named(CONTROLLER, self.controller)],
                hardware_components=[named(HARDWARE, self.hardware)],
            )
        )

    def fail(self, error: str, mode: FrankaMode = FrankaMode.REFLEX) -> None:
        """The robot stops; its controller and hardware go down."""
        self.mode, self.error = mode, error
        self.hardware, self.controller = "unconfigured", "inactive"
        self.publish_status()
        self.announce()

    def run(self) -> None:
        """Real time: time goes on by itself, at ten times the control rate."""

        def tick() -> None:
            self.stamp_ns = self.get_clock().now().nanoseconds
            if self.targets and not self.blocked:
                self.pose = interpolate(self.pose, self.targets[-1][1], 0.15)
            self.publish()

        self.every(0.01, tick)

    # -- commands --------------------------------------------------------------------------------

    def _on_target(self, message: PoseStamped) -> None:
        p, q = message.pose.position, message.pose.orientation
        pose = RigidPose((p.x, p.y, p.z), (q.x, q.y, q.z, q.w))
        stamp = to_ns(message.header.stamp)
        self.targets.append((stamp, pose))
        ready = [promise for wanted, promise in self._waiting if wanted <= stamp]
        self._waiting = [each for each in self._waiting if each[0] > stamp]
        for promise in ready:
            promise.keep(None)

    async def _advance(self, request: Advance.Request, response: Advance.Response) -> Any:
        self.advances.append(request)
        wanted = to_ns(request.target_stamp)
        if wanted and not (self.targets and self.targets[-1][0] >= wanted):
            promise: Promise[None] = Promise()
            self._waiting.append((wanted, promise))
            await promise
        for _ in range(request.periods):
            self.move()
        self.publish()
        response.ok, response.stamp = True, from_ns(self.stamp_ns)
        return response

    def _forget(self, parameters: list[Any]) -> list[Any]:
        return [each for each in parameters if each.name != self.forgetful]

    # -- recovery --------------------------------------------------------------------------------

    async def _step(self, name: str) -> None:
        self.calls.append(name)
        if name in self.silent:
            never: Promise[None] = Promise()
            self._never.append(never)
            await never

    def _recover(self, goal: Any) -> None:
        self.calls.append("error_recovery")
        if "error_recovery" in self.silent:
            return
        self.error = ""
        if self.mode == FrankaMode.REFLEX:
            self.mode = FrankaMode.IDLE

        def finish(handle: Any) -> ErrorRecovery.Result:
            handle.succeed()
            return ErrorRecovery.Result()

        goal.execute(finish)

    async def _set_hardware(self, request: Any, response: Any) -> Any:
        label = request.target_state.label
        await self._step(f"hardware {label}")
        if not self.error and self.mode != FrankaMode.USER_STOPPED:
            self.hardware = label
        response.ok = self.hardware == label
        response.state.label = self.hardware
        self.announce()
        return response

    async def _switch(self, request: Any, response: Any) -> Any:
        await self._step(f"controller {','.join(request.activate_controllers)}")
        response.ok = self.hardware == "active"
        response.message = "" if response.ok else "hardware is not active"
        if response.ok:
            self.controller, self.mode = "active", FrankaMode.MOVE
        self.publish_status()
        self.announce()
        return response

    def _list(self, _: Any, response: Any) -> Any:
        response.controller = [ControllerState(name=CONTROLLER, state=self.controller)]
        return response

    # -- gripper ---------------------------------------------------------------------------------

    def _gripper_server(self, action: Any, name: str) -> ActionServer:
        def accepted(goal: Any) -> None:
            self.gripper_goals.append(goal)

        return ActionServer(
            self, action, name, self._never_executed, handle_accepted_callback=accepted
        )

    def finish_gripper(self, success: bool = True) -> None:
        """End the oldest goal of the gripper."""
        goal = self.gripper_goals.pop(0)
        result = Move.Result if isinstance(goal.request, Move.Goal) else Grasp.Result

        def finish(handle: Any) -> Any:
            handle.succeed() if success else handle.abort()
            return result(success=success, error="" if success else "jammed")

        goal.execute(finish)

    def _never_executed(self, _: Any) -> Any:
        raise AssertionError("goals are executed by hand")


@pytest.fixture
def robot(ros: Ros) -> FakeRobot:
    """A robot that is there."""
    node: FakeRobot = ros.make(FakeRobot)
    return node


@pytest.fixture
def make_robot(ros: Ros) -> Callable[[], FakeRobot]:
    """Makes the robot later than the bridge."""
    return lambda: ros.make(FakeRobot)
