"""Driver for franka_ros2 with a Cartesian impedance controller of crisp_controllers' shape.

Talks to the controller (`target_pose` in, poses and parameters), to franka_ros2's state
broadcaster, action server and gripper, and to the controller manager. hil_sim offers the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from action_msgs.msg import GoalStatus
from controller_manager_msgs.msg import ControllerManagerActivity
from controller_manager_msgs.srv import (
    ListControllers,
    SetHardwareComponentState,
    SwitchController,
)
from franka_msgs.action import ErrorRecovery
from franka_msgs.msg import FrankaRobotState
from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
from lifecycle_msgs.msg import State
from rcl_interfaces.srv import GetParameters, SetParametersAtomically
from rclpy.action import ActionClient
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from hil_common import qos
from hil_common.lifecycle import HilNode
from hil_robot_bridge.drivers import crisp, franka_state
from hil_robot_bridge.drivers.base import DriverError, Health, RobotMode
from hil_robot_bridge.drivers.franka_state import FrankaMode, FrankaStatus
from hil_robot_bridge.drivers.gripper import FrankaGripper, GripperConfig
from hil_robot_bridge.fibers import TimedOut, Timeouts
from hil_robot_bridge.gate import Mode
from hil_robot_bridge.poses import RigidPose
from hil_robot_bridge.ros_io import PolledSubscription, call, run_goal
from hil_robot_bridge.state import ArmState, Six
from hil_tasks.spec import ComplianceSpec

_NANOSECONDS = 1_000_000_000

_SHORTEST_JOINT_MOTION = 0.5  # s
_JOINT_SETTLE = 3.0  # s for the arm to come to rest at its joint positions
_JOINT_NEAR = 0.02  # rad
_JOINT_REST = 0.05  # rad/s

FR3_JOINTS = tuple(f"fr3_joint{number}" for number in range(1, 8))


@dataclass(frozen=True)
class Ros2ControlConfig:
    """Names and time-outs of everything that the driver talks to; relative names.

    Attributes:
        target_pose, current_pose, current_twist, wrench, joint_states, robot_state: topics.
        controller: the impedance controller, in the controller manager and as a node.
        joint_controller: the joint trajectory controller, which moves the arm in joint resets.
        controller_manager, hardware_component: of ros2_control.
        error_recovery: franka_ros2's action.
        joints: names of the arm's joints, in order.
        pairing: states whose stamps differ by no more than this belong together, s.
        state_timeout: silence of the state after which the robot counts as gone, s (real time).
        status_timeout: the same for franka_ros2's robot_state, s (real time).
        service_timeout: for services of controller and controller manager, s.
        recovery_timeout: for the robot's own error recovery, s.
        joint_speed: of joint resets, rad/s of the joint with the longest way.
        gripper: None: the arm has none.
    """

    target_pose: str = "target_pose"
    current_pose: str = "current_pose"
    current_twist: str = "current_twist"
    wrench: str = "franka_robot_state_broadcaster/external_wrench_in_base_frame"
    joint_states: str = "franka/joint_states"
    robot_state: str = "franka_robot_state_broadcaster/robot_state"
    controller: str = "cartesian_impedance_controller"
    joint_controller: str = "joint_trajectory_controller"
    controller_manager: str = "controller_manager"
    hardware_component: str = "FrankaHardwareInterface"
    error_recovery: str = "action_server/error_recovery"
    joints: tuple[str, ...] = FR3_JOINTS
    pairing: float = 0.0
    state_timeout: float = 0.2
    status_timeout: float = 0.5
    service_timeout: float = 2.0
    recovery_timeout: float = 10.0
    joint_speed: float = 0.3
    gripper: GripperConfig | None = field(default_factory=GripperConfig)


class Ros2Control:
    """The driver; see `hil_robot_bridge.drivers.base.Driver`.

    Args:
        node: whose publishers, subscriptions and clients it uses.
        config: names and time-outs.
        base_frame: frame of poses.
        lockstep: a state is complete when its pose has come, which is published last; what is
            late is picked up by `read`. In real time only `read` looks for states.
        timeouts: deadlines of what it waits for.
    """

    name = "ros2_control"
    modes = frozenset({Mode.IMPEDANCE, Mode.HOLD})

    def __init__(
        self,
        node: HilNode,
        config: Ros2ControlConfig,
        base_frame: str,
        lockstep: bool,
        timeouts: Timeouts,
    ) -> None:
        self._node = node
        self._config = config
        self._frame = base_frame
        self._lockstep = lockstep
        self._timeouts = timeouts
        self._status: FrankaStatus | None = None
        self._status_error = ""
        self._status_at = -math.inf
        self._state_at = -math.inf
        self._connected = False
        self._newest: ArmState | None = None
        self._joints_move = False
        self._other_publishers = ""
        self._controllers: dict[str, str] = {}
        self._hardware: dict[str, str] = {}
        self._gripper: FrankaGripper | None = None
        self._fingers: PolledSubscription | None = None
        self._gripper_width = 0.0
        self._entities: list[Callable[[], Any]] = []

    # -- Driver ----------------------------------------------------------------------------------

    def connect(
        self, on_state: Callable[[ArmState], None], on_gripper_failure: Callable[[str], None]
    ) -> None:
        """Open publisher, subscriptions and clients; nobody has to be there yet."""
        node, config = self._node, self._config
        self._on_state = on_state
        self._target = node.create_publisher(PoseStamped, config.target_pose, qos.COMMAND)
        self._entities.append(lambda: node.destroy_publisher(self._target))
        self._message = PoseStamped()
        self._message.header.frame_id = self._frame
        topic = f"{config.joint_controller}/joint_trajectory"
        self._trajectory = node.create_publisher(JointTrajectory, topic, qos.COMMAND)
        self._entities.append(lambda: node.destroy_publisher(self._trajectory))
        self._parts = _Assembly(config.joints, config.pairing)
        self._open_state_topics()
        self._robot_state = self._polled(FrankaRobotState, config.robot_state, raw=True)
        activity = node.subscribe(
            ControllerManagerActivity,
            f"{config.controller_manager}/activity",
            self._on_activity,
            qos.LATCHED,
        )
        self._entities.append(lambda: node.destroy_subscription(activity))
        manager, controller = config.controller_manager, config.controller
        self._set_parameters = self._client(
            SetParametersAtomically, f"{controller}/set_parameters_atomically"
        )
        self._get_parameters = self._client(GetParameters, f"{controller}/get_parameters")
        self._list_controllers = self._client(ListControllers, f"{manager}/list_controllers")
        self._switch = self._client(SwitchController, f"{manager}/switch_controller")
        self._set_hardware = self._client(
            SetHardwareComponentState, f"{manager}/set_hardware_component_state"
        )
        self._recovery = ActionClient(node, ErrorRecovery, config.error_recovery)
        self._entities.append(self._recovery.destroy)
        if config.gripper is not None:
            self._gripper = FrankaGripper(node, config.gripper, on_gripper_failure)
            self._entities.append(self._gripper.close)
            self._fingers = self._polled(JointState, f"{config.gripper.name}/joint_states")
        self.watch()

    def read(self) -> None:
        """Take the newest state, if there is one, and what the robot says of itself."""
        self._poll_status()
        self._collect()

    def watch(self) -> None:
        """Look who is there."""
        node = self._node
        self._connected = node.count_publishers(self._pose_topic) > 0
        self._other_publishers = ""
        topic = self._target.topic_name
        if node.count_publishers(topic) > 1:
            own = node.get_fully_qualified_name()
            names = sorted(
                f"{info.node_namespace.rstrip('/')}/{info.node_name}"
                for info in node.get_publishers_info_by_topic(topic)
            )
            if own in names:
                names.remove(own)
            self._other_publishers = ", ".join(names) or "an unknown node"

    def health(self) -> Health:
        """Whether the robot can follow, and what to do if not."""
        status = self._status
        errors = status.errors if status is not None else ()
        rate = status.success_rate if status is not None else 1.0
        if not self._connected:
            text = f"{self._pose_topic} has no publisher: is the controller running?"
            return Health(RobotMode.DISCONNECTED, text, errors, rate)
        silent = self._silence()
        if silent:
            return Health(RobotMode.DISCONNECTED, silent, errors, rate, passing=True)
        mode, text = self._judge_robot()
        if self._joints_move and mode == RobotMode.IDLE:
            return Health(mode, "joint reset runs", errors, rate, passing=True)
        if text:
            return Health(mode, text, errors, rate)
        if self._other_publishers:
            text = (
                f"{self._other_publishers} also publishes {self._target.topic_name}: "
                "the controller ignores targets while two nodes send them; stop the other one"
            )
            return Health(RobotMode.IDLE, text, errors, rate, passing=True)
        return Health(RobotMode.HOLD, "", errors, rate)

    def command_pose(self, pose: RigidPose, stamp_ns: int) -> None:
        """Publish `target_pose` with the stamp of the command."""
        message = self._message
        stamp = message.header.stamp
        stamp.sec, stamp.nanosec = divmod(stamp_ns, _NANOSECONDS)
        point, turn = message.pose.position, message.pose.orientation
        point.x, point.y, point.z = pose.position
        turn.x, turn.y, turn.z, turn.w = pose.quaternion
        self._target.publish(message)

    def command_gripper(self, command: int) -> None:
        """Begin to close (-1) or open (1)."""
        if self._gripper is not None:
            self._gripper.command(command)

    async def set_compliance(self, spec: ComplianceSpec) -> None:
        """Set the controller's parameters in one transaction and read them back."""
        wanted = crisp.parameters(spec)
        request = SetParametersAtomically.Request(parameters=crisp.to_messages(wanted))
        answer = await self._call(self._set_parameters, request)
        if not answer.result.successful:
            raise DriverError(f"controller refused the compliance: {answer.result.reason}")
        names = GetParameters.Request(names=list(wanted))
        read = await self._call(self._get_parameters, names)
        difference = crisp.mismatch(wanted, list(read.values))
        if difference:
            raise DriverError(f"compliance read back wrong: {difference}")

    async def recover(self, stage: Callable[[str], None]) -> None:
        """franka_ros2's three steps, in their order."""
        config = self._config
        stage("error recovery")
        status, _ = await run_goal(
            self._recovery,
            config.error_recovery,
            ErrorRecovery.Goal(),
            self._timeouts,
            config.recovery_timeout,
        )
        if status != GoalStatus.STATUS_SUCCEEDED:
            raise DriverError("the robot did not clear its error: look at the robot and at Desk")
        stage("hardware")
        await self._activate_hardware()
        stage("controller")
        await self._activate_controller()

    async def move_joints(
        self, q: Sequence[float], next_period: Callable[[], Awaitable[None]]
    ) -> None:
        """Change over to the joint trajectory controller, move, and change back."""
        config = self._config
        self._joints_move = True
        try:
            await self._change_controller(config.controller, config.joint_controller)
            try:
                await self._follow_joints(q, next_period)
            finally:
                if self._judge_robot()[0] == RobotMode.IDLE:
                    # It holds where it is: crisp's controller starts from the measured pose.
                    await self._change_controller(config.joint_controller, config.controller)
        finally:
            self._joints_move = False

    def close(self) -> None:
        """Destroy what `connect` created."""
        while self._entities:
            self._entities.pop()()
        self._gripper = None

    # -- state -----------------------------------------------------------------------------------

    def _open_state_topics(self) -> None:
        config = self._config
        topics = {
            "pose": (PoseStamped, config.current_pose),
            "twist": (TwistStamped, config.current_twist),
            "wrench": (WrenchStamped, config.wrench),
            "joints": (JointState, config.joint_states),
        }
        if self._lockstep:
            message, topic = topics.pop("pose")
            pose = self._node.subscribe(message, topic, self._on_pose, qos.STATE)
            self._entities.append(lambda: self._node.destroy_subscription(pose))
            self._pose_topic = str(pose.topic_name)
        self._state_topics = {
            kind: self._polled(message, topic) for kind, (message, topic) in topics.items()
        }
        if not self._lockstep:
            self._pose_topic = self._state_topics["pose"].topic

    def _polled(self, message: Any, topic: str, raw: bool = False) -> PolledSubscription:
        polled = PolledSubscription(self._node, message, topic, qos.STATE, raw)
        self._entities.append(lambda: self._node.destroy_subscription(polled.subscription))
        return polled

    def _client(self, service: Any, name: str) -> Any:
        client = self._node.create_client(service, name)
        self._entities.append(lambda: self._node.destroy_client(client))
        return client

    def _on_pose(self, message: PoseStamped) -> None:
        self._parts.put("pose", message)
        self._collect()

    def _collect(self) -> None:
        """Take what has arrived; if it makes a new state, hand that on."""
        for kind, subscription in self._state_topics.items():
            message = subscription.take()
            if message is not None:
                self._parts.put(kind, message)
        state = self._parts.take()
        if state is None:
            return
        self._state_at = time.monotonic()
        self._connected = True
        self._poll_status()
        self._newest = self._with_gripper(state)
        self._on_state(self._newest)

    def _with_gripper(self, state: ArmState) -> ArmState:
        if self._fingers is None:
            return state
        message = self._fingers.take()
        if message is not None:
            self._gripper_width = float(sum(message.position))
        return ArmState(
            state.stamp_ns,
            state.pose,
            state.twist,
            state.wrench,
            state.q,
            state.dq,
            self._gripper_width,
        )

    def _poll_status(self) -> None:
        data = self._robot_state.take()
        if data is None:
            return
        try:
            self._status = franka_state.parse(data)
            self._status_error = ""
            self._status_at = time.monotonic()
        except ValueError as error:
            self._status_error = str(error)

    # -- health ----------------------------------------------------------------------------------

    def _judge_robot(self) -> tuple[RobotMode, str]:
        """What robot, hardware and controller say of themselves."""
        config, status = self._config, self._status
        if self._status_error:
            return RobotMode.DISCONNECTED, self._status_error
        if status is not None and status.mode not in (FrankaMode.MOVE, FrankaMode.IDLE):
            return status.judgement
        hardware = self._hardware.get(config.hardware_component, "active")
        if hardware != "active":
            text = f"hardware {config.hardware_component} is {hardware}: call recover"
            return RobotMode.IDLE, text
        controller = self._controllers.get(config.controller, "active")
        if controller != "active":
            return RobotMode.IDLE, f"controller {config.controller} is {controller}: call recover"
        return status.judgement if status is not None else (RobotMode.HOLD, "")

    def _silence(self) -> str:
        """What of the robot's state has not come for too long; "" if all does."""
        config = self._config
        if self._lockstep:
            return ""
        now = time.monotonic()
        if now - self._state_at > config.state_timeout:
            missing = self._parts.missing()
            lacking = f" (lacking: {missing})" if missing else ""
            return f"robot state is older than {config.state_timeout:g} s{lacking}"
        if now - self._status_at > config.status_timeout:
            return f"{self._robot_state.topic} is older than {config.status_timeout:g} s"
        return ""

    def _on_activity(self, message: ControllerManagerActivity) -> None:
        self._controllers = {each.name: each.state.label for each in message.controllers}
        self._hardware = {each.name: each.state.label for each in message.hardware_components}

    # -- joint resets ----------------------------------------------------------------------------

    async def _follow_joints(
        self, q: Sequence[float], next_period: Callable[[], Awaitable[None]]
    ) -> None:
        if self._newest is None or len(q) != len(self._config.joints):
            raise DriverError(f"joint reset needs a state and {len(self._config.joints)} joints")
        way = max(abs(a - b) for a, b in zip(q, self._newest.q, strict=True))
        seconds = max(_SHORTEST_JOINT_MOTION, way / self._config.joint_speed)
        point = JointTrajectoryPoint(positions=list(map(float, q)), velocities=[0.0] * len(q))
        whole, rest = divmod(seconds, 1.0)
        point.time_from_start.sec, point.time_from_start.nanosec = int(whole), int(rest * 1e9)
        message = JointTrajectory(joint_names=list(self._config.joints), points=[point])
        self._trajectory.publish(message)
        end = self._newest.stamp_ns + round((seconds + _JOINT_SETTLE) * _NANOSECONDS)
        while not self._at_joints(q):
            if self._newest.stamp_ns > end:
                raise DriverError("joint reset: the arm did not reach its joint positions")
            await next_period()
            mode, text = self._judge_robot()
            if mode != RobotMode.IDLE:
                raise DriverError(f"joint reset: {text}")

    def _at_joints(self, q: Sequence[float]) -> bool:
        state = self._newest
        assert state is not None
        near = all(abs(a - b) < _JOINT_NEAR for a, b in zip(state.q, q, strict=True))
        return near and all(abs(speed) < _JOINT_REST for speed in state.dq)

    async def _change_controller(self, old: str, new: str) -> None:
        request = SwitchController.Request(
            activate_controllers=[new],
            deactivate_controllers=[old] if old else [],
            strictness=SwitchController.Request.STRICT,
            activate_asap=True,
        )
        request.timeout.sec = math.ceil(self._config.service_timeout)
        answer = await self._call(self._switch, request)
        if not answer.ok:
            raise DriverError(f"controller {new} was not activated: {answer.message}")

    # -- recovery --------------------------------------------------------------------------------

    async def _call(self, client: Any, request: Any) -> Any:
        return await call(client, request, self._timeouts, self._config.service_timeout)

    async def _activate_hardware(self) -> None:
        """Activate the hardware component; if it hangs on a stale connection, reopen it once."""
        try:
            await self._switch_hardware(State.PRIMARY_STATE_ACTIVE, "active")
        except (DriverError, TimedOut) as error:
            self._node.get_logger().warning(f"{error}; reopening the connection to the robot")
            await self._switch_hardware(State.PRIMARY_STATE_UNCONFIGURED, "unconfigured")
            await self._switch_hardware(State.PRIMARY_STATE_ACTIVE, "active")

    async def _switch_hardware(self, state: int, label: str) -> None:
        name = self._config.hardware_component
        request = SetHardwareComponentState.Request(
            name=name, target_state=State(id=state, label=label)
        )
        answer = await self._call(self._set_hardware, request)
        if not answer.ok:
            raise DriverError(f"hardware {name} stays {answer.state.label} instead of {label}")

    async def _activate_controller(self) -> None:
        name = self._config.controller
        listed = await self._call(self._list_controllers, ListControllers.Request())
        states = {each.name: each.state for each in listed.controller}
        if name not in states:
            raise DriverError(f"the controller manager has no controller {name}")
        if states[name] == "active":
            return
        joints = self._config.joint_controller
        await self._change_controller(joints if states.get(joints) == "active" else "", name)


class _Assembly:
    """Puts messages of one moment together to a state.

    Args:
        joints: names in the order that is wanted.
        pairing: largest difference of stamps, s; 0: they must be equal.
    """

    _KINDS = ("pose", "twist", "wrench", "joints")

    def __init__(self, joints: Sequence[str], pairing: float) -> None:
        self._joints = tuple(joints)
        self._pairing_ns = round(pairing * 1e9)
        self._messages: dict[str, Any] = {}
        self._stamps: dict[str, int] = {}
        self._new: set[str] = set()
        self._names: list[str] = []
        self._order: tuple[int, ...] = ()

    def put(self, kind: str, message: Any) -> None:
        """Take a message."""
        stamp = message.header.stamp
        self._messages[kind] = message
        self._stamps[kind] = stamp.sec * _NANOSECONDS + stamp.nanosec
        self._new.add(kind)

    def missing(self) -> str:
        """Kinds that have not come since the last complete state, in words."""
        return ", ".join(kind for kind in self._KINDS if kind not in self._new)

    def take(self) -> ArmState | None:
        """State of the newest moment, once all four parts of it are in."""
        if len(self._new) < len(self._KINDS):
            return None
        stamps = self._stamps
        pose_ns = stamps["pose"]
        span = max(stamps.values()) - min(stamps.values())
        if span > self._pairing_ns:
            return None
        self._new.clear()
        messages = self._messages
        pose, joints = messages["pose"].pose, messages["joints"]
        return ArmState(
            stamp_ns=pose_ns,
            pose=RigidPose(_xyz(pose.position), _xyzw(pose.orientation)),
            twist=_six(messages["twist"].twist.linear, messages["twist"].twist.angular),
            wrench=_six(messages["wrench"].wrench.force, messages["wrench"].wrench.torque),
            q=self._ordered(joints, joints.position),
            dq=self._ordered(joints, joints.velocity),
        )

    def _ordered(self, message: JointState, values: Sequence[float]) -> tuple[float, ...]:
        if message.name != self._names:
            self._names = list(message.name)
            missing = [joint for joint in self._joints if joint not in self._names]
            if missing:
                raise DriverError(f"joint states lack {', '.join(missing)}")
            self._order = tuple(self._names.index(joint) for joint in self._joints)
        if len(values) < len(self._names):
            return (math.nan,) * len(self._joints)
        return tuple(values[index] for index in self._order)


def _xyz(message: Any) -> tuple[float, float, float]:
    return message.x, message.y, message.z


def _xyzw(message: Any) -> tuple[float, float, float, float]:
    return message.x, message.y, message.z, message.w


def _six(linear: Any, angular: Any) -> Six:
    return linear.x, linear.y, linear.z, angular.x, angular.y, angular.z
