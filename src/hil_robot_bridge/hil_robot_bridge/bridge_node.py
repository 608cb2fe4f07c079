"""ROS node around the bridge: parameters, topics, services and actions."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rclpy.action.server import ServerGoalHandle
from rclpy.experimental import EventsExecutor
from std_srvs.srv import SetBool

import hil_tasks
from hil_common import qos, run
from hil_common.conversions import NANOSECONDS, to_ns
from hil_common.lifecycle import HilNode
from hil_common.params import NodeParams, param
from hil_interfaces.action import MoveTo, Recover, ResetEpisode
from hil_interfaces.msg import ArmCommand, CommandResult, OperatorCommand, RobotState
from hil_interfaces.srv import AcquireLease, Advance, ReleaseLease, SetCompliance
from hil_robot_bridge.bridge import Bridge, MotionConfig
from hil_robot_bridge.drivers.base import Driver, DriverError
from hil_robot_bridge.drivers.fci import Fci
from hil_robot_bridge.drivers.fci_process import FciConfig
from hil_robot_bridge.drivers.gripper import GripperConfig
from hil_robot_bridge.drivers.ros2_control import Ros2Control, Ros2ControlConfig
from hil_robot_bridge.fibers import Fiber, TimedOut, Timeouts
from hil_robot_bridge.gate import Command, Decision, Gate, GateConfig
from hil_robot_bridge.joints import FR3_HOME, FR3_LOWER, FR3_UPPER, JointGuard
from hil_robot_bridge.latch import StopLatch
from hil_robot_bridge.lease import Lease
from hil_robot_bridge.limits import Limits, Span
from hil_robot_bridge.pacing import LockstepPacer, RealtimePacer
from hil_robot_bridge.poses import RigidPose, all_finite, normalised, quaternion, vector3
from hil_robot_bridge.recovery import RecoveryConfig
from hil_robot_bridge.ros_io import DeferredService, FiberAction
from hil_robot_bridge.state import ArmState

LOCKSTEP = "lockstep"
REALTIME = "realtime"

_HOUSEKEEPING = 0.2  # s; looking who is there, retries
_DEADLINES = 0.05  # s; resolution of time-outs
_STAMP_PERIODS = 2.5  # age of the observation that a command may answer, control periods
_FEEDBACK_EVERY = 5  # periods of a motion per feedback message
_AT_REST = 1.0  # s after which robot_state is repeated while time stands still


@dataclass(frozen=True)
class BridgeParams(NodeParams):
    """Parameters of robot_bridge."""

    task: str = param("peg_insert", "task whose limits, compliance and rate are used")
    task_file: str = param("", "YAML file with overrides of the task; names the task itself")
    arm: str = param("", "name of the arm in the task and in operator commands; empty: the only")
    pace: str = param(
        LOCKSTEP,
        "lockstep: time moves by the simulator's advance service; realtime: a real robot",
        choices=(LOCKSTEP, REALTIME),
    )
    base_frame: str = param("base", "frame of poses; commands in another one are refused")
    driver: str = param(
        "ros2_control",
        "how the arm is reached; fci: through franky, without ros2_control, in real time only",
        choices=("ros2_control", "fci"),
    )
    state_rate_hz: float = param(50.0, "rate of robot_state in real time", low=1.0, high=1000.0)
    stop_file: str = param(
        "", "file that remembers the software stop; empty: under ROS_HOME (~/.ros), by node name"
    )
    joint_margin: float = param(
        0.05, "distance from a joint limit at which motion is stopped, rad", low=0.0, high=1.0
    )
    joint_lower: tuple[float, ...] = param(FR3_LOWER, "lower joint limits, rad")
    joint_upper: tuple[float, ...] = param(FR3_UPPER, "upper joint limits, rad")
    joint_names: tuple[str, ...] = param(
        Ros2ControlConfig.joints, "names of the arm's joints in joint states, in order"
    )
    advance_service: str = param(
        "/hil_sim/advance", "lockstep: the simulator's service that lets time go on"
    )
    target_pose_topic: str = param(Ros2ControlConfig.target_pose, "target for the controller")
    current_pose_topic: str = param(
        Ros2ControlConfig.current_pose, "measured pose of the tool centre point"
    )
    current_twist_topic: str = param(Ros2ControlConfig.current_twist, "measured twist of it")
    wrench_topic: str = param(Ros2ControlConfig.wrench, "external wrench in the base frame")
    joint_states_topic: str = param(Ros2ControlConfig.joint_states, "measured joint state")
    robot_state_topic: str = param(
        Ros2ControlConfig.robot_state, "FrankaRobotState: mode, errors and success rate"
    )
    controller: str = param(
        Ros2ControlConfig.controller, "Cartesian impedance controller: its node and its name"
    )
    controller_manager: str = param(
        Ros2ControlConfig.controller_manager, "node of ros2_control's controller manager"
    )
    hardware_component: str = param(
        Ros2ControlConfig.hardware_component, "hardware that is activated again by recover"
    )
    error_recovery_action: str = param(
        Ros2ControlConfig.error_recovery, "action that clears the robot's errors"
    )
    state_pairing: float = param(
        0.01,
        "real time: stamps of pose, twist, wrench and joints may differ by this much, s",
        low=0.0,
        high=1.0,
    )
    state_timeout: float = param(
        Ros2ControlConfig.state_timeout,
        "real time: silence of the measured state after which the arm holds, s",
        low=0.01,
        high=10.0,
    )
    status_timeout: float = param(
        Ros2ControlConfig.status_timeout,
        "real time: silence of the robot's mode after which the arm holds, s",
        low=0.01,
        high=10.0,
    )
    service_timeout: float = param(
        Ros2ControlConfig.service_timeout,
        "for services of controller and controller manager, s",
        low=0.1,
        high=60.0,
    )
    recovery_timeout: float = param(
        Ros2ControlConfig.recovery_timeout, "for the robot's error recovery, s", low=0.1, high=60.0
    )
    joint_controller: str = param(
        Ros2ControlConfig.joint_controller, "joint trajectory controller, for joint resets"
    )
    auto_recover_count: int = param(
        0,
        "reflexes that are recovered without being asked; 0: a person is needed",
        low=0,
        high=100,
    )
    auto_recover_period: float = param(
        RecoveryConfig.period, "s in which so many are", low=1.0, high=86400.0
    )
    contact_force: float = param(
        RecoveryConfig.contact,
        "external force after a recovery above which the arm goes back, N",
        low=0.1,
        high=100.0,
    )
    retreat: float = param(
        RecoveryConfig.retreat,
        "longest way back along which it came, m; 0: it stays in contact",
        low=0.0,
        high=0.2,
    )
    joint_reset_every: int = param(
        0, "reset_episode goes by way of joint_home in every so many; 0: never", low=0, high=10000
    )
    joint_home: tuple[float, ...] = param(
        FR3_HOME, "joint positions of a joint reset, rad: ungated, so look at the way first"
    )
    fci_host: str = param("", "fci: address of the robot")
    fci_realtime: bool = param(True, "fci: refuse to run without a real-time kernel")
    fci_priority: int = param(
        0, "fci: real-time priority of the driver's process; 0: none", low=0, high=90
    )
    fci_joint_speed: float = param(
        FciConfig.joint_speed, "fci: speed of joint resets, share of the robot's", low=0.01, high=1
    )
    fci_max_delta_tau: float = param(
        FciConfig.max_delta_tau, "fci: largest change of torque per 1 ms, Nm", low=0.01, high=1
    )
    fci_collision_torque: tuple[float, ...] = param(
        FciConfig.collision_torque, "fci: external joint torques that stop the arm, Nm"
    )
    fci_collision_force: tuple[float, ...] = param(
        FciConfig.collision_force, "fci: external wrench that stops the arm, N and Nm"
    )
    fci_load_mass: float = param(0.0, "fci: load beside what Desk knows, kg", low=0.0, high=3.0)
    fci_load_centre: tuple[float, ...] = param(
        FciConfig.load_centre, "fci: its centre from the flange, m"
    )
    fci_load_inertia: tuple[float, ...] = param(
        FciConfig.load_inertia, "fci: its inertia, nine numbers, kg m^2"
    )
    fci_tool: tuple[float, ...] = param(
        FciConfig.tool,
        "fci: tool centre point in the end-effector frame of Desk: position, quaternion xyzw",
    )
    gripper: str = param("franka_gripper", "node of the gripper; used if the task has one")
    gripper_open_width: float = param(0.08, "width of the open gripper, m", low=0.0, high=0.2)
    gripper_speed: float = param(0.1, "speed of the fingers, m/s", low=0.001, high=1.0)
    gripper_force: float = param(30.0, "force of a grasp, N", low=0.0, high=140.0)
    gripper_dwell: float = param(
        0.5, "shortest time between two gripper commands, s", low=0.0, high=10.0
    )


class BridgeNode(HilNode):
    """The only node that commands the arm."""

    Params = BridgeParams
    params: BridgeParams

    def __init__(self, **options: Any) -> None:
        super().__init__("robot_bridge", **options)
        self._open = False

    # -- lifecycle -------------------------------------------------------------------------------

    def on_setup(self) -> None:
        """Load the task, open driver, topics, services and actions."""
        self._load()
        self._open = True
        try:
            self._connect()
        except Exception:
            self.on_close()
            raise
        if self.gate.latch.latched:
            self.get_logger().warning(f"software stop in force: {self.gate.latch.reason}")

    def _connect(self) -> None:
        self._open_pacer()
        self.bridge = Bridge(
            self.spec,
            self.gate,
            self._driver,
            self._pacer,
            self._lockstep,
            MotionConfig(
                joint_reset_every=self.params.joint_reset_every,
                joint_home=self.params.joint_home,
            ),
            RecoveryConfig(
                count=self.params.auto_recover_count,
                period=self.params.auto_recover_period,
                contact=self.params.contact_force,
                retreat=self.params.retreat,
            ),
            on_change=self._publish_state,
        )
        self._open_topics()
        self._open_services()
        self._open_actions()
        self._driver.connect(self._on_state, self._on_gripper_failure)
        self._every(_DEADLINES, self._watch)
        self._every(_HOUSEKEEPING, self._keep_house)
        if not self._lockstep:
            self._every(1.0 / self.params.state_rate_hz, self._tick)

    def on_start(self) -> None:
        """Follow commands from here on; until one comes, the arm holds."""
        self.bridge.activate()
        self._keep_house()

    def on_hold(self) -> None:
        """Cancel what runs and hold at the measured pose."""
        for action in self._actions:
            action.cancel_all()
        self.bridge.deactivate()

    def on_close(self) -> None:
        """Close everything that on_setup opened."""
        self._open = False
        for action in self._actions:
            action.destroy()
        self._driver.close()
        while self._entities:
            self._entities.pop()()

    def destroy_node(self) -> None:
        """Close what is still open first: there is no executor any more."""
        if self._open:
            for action in self._actions:
                action.destroy()
            self.bridge.deactivate()
            self.on_close()
        super().destroy_node()

    # -- set-up ----------------------------------------------------------------------------------

    def _load(self) -> None:
        """Task, lease and gate."""
        params = self.params
        task = (
            hil_tasks.load_file(params.task_file)
            if params.task_file
            else hil_tasks.load(params.task)
        )
        self.spec = spec = task.spec
        if params.arm not in spec.arms:
            raise ValueError(f"task {spec.name} has no arm '{params.arm}', but {spec.arms}")
        self._lockstep = params.pace == LOCKSTEP
        has_gripper = spec.grippers[spec.arms.index(params.arm)]
        self._timeouts = Timeouts()
        self._entities: list[Callable[[], Any]] = []
        self._actions: list[FiberAction] = []
        self._gripper_text = ""
        self._published = -math.inf
        self._driver = self._make_driver(has_gripper)
        self.lease = Lease()
        self.gate = Gate(self._gate_config(has_gripper), self.lease, StopLatch(self._stop_file()))

    def _make_driver(self, has_gripper: bool) -> Driver:
        params = self.params
        if params.driver == "fci":
            if self._lockstep:
                raise ValueError("driver fci runs in real time only: set pace to realtime")
            log = self.get_logger().warning
            return Fci(self._fci_config(has_gripper), self._timeouts, log)
        config = self._ros2_control_config(has_gripper)
        return Ros2Control(self, config, params.base_frame, self._lockstep, self._timeouts)

    def _fci_config(self, has_gripper: bool) -> FciConfig:
        params = self.params
        return FciConfig(
            host=params.fci_host,
            gripper=has_gripper,
            gripper_width=params.gripper_open_width,
            gripper_speed=params.gripper_speed,
            gripper_force=params.gripper_force,
            rate=params.state_rate_hz,
            joint_speed=params.fci_joint_speed,
            max_delta_tau=params.fci_max_delta_tau,
            collision_torque=params.fci_collision_torque,
            collision_force=params.fci_collision_force,
            load_mass=params.fci_load_mass,
            load_centre=params.fci_load_centre,
            load_inertia=params.fci_load_inertia,
            tool=params.fci_tool,
            realtime=params.fci_realtime,
            priority=params.fci_priority,
        )

    def _ros2_control_config(self, has_gripper: bool) -> Ros2ControlConfig:
        params = self.params
        gripper = GripperConfig(
            params.gripper, params.gripper_open_width, params.gripper_speed, params.gripper_force
        )
        return Ros2ControlConfig(
            target_pose=params.target_pose_topic,
            current_pose=params.current_pose_topic,
            current_twist=params.current_twist_topic,
            wrench=params.wrench_topic,
            joint_states=params.joint_states_topic,
            robot_state=params.robot_state_topic,
            controller=params.controller,
            joint_controller=params.joint_controller,
            controller_manager=params.controller_manager,
            hardware_component=params.hardware_component,
            error_recovery=params.error_recovery_action,
            joints=params.joint_names,
            pairing=0.0 if self._lockstep else params.state_pairing,
            state_timeout=params.state_timeout,
            status_timeout=params.status_timeout,
            service_timeout=params.service_timeout,
            recovery_timeout=params.recovery_timeout,
            gripper=gripper if has_gripper else None,
        )

    def _gate_config(self, has_gripper: bool) -> GateConfig:
        params, spec = self.params, self.spec
        return GateConfig(
            frame_id=params.base_frame,
            limits=Limits.from_spec(spec),
            period=spec.period,
            driver=self._driver.name,
            modes=self._driver.modes,
            gripper=has_gripper,
            gripper_dwell=params.gripper_dwell,
            arm=params.arm,
            max_stamp_age=_STAMP_PERIODS * spec.period,
            joints=JointGuard(params.joint_lower, params.joint_upper, params.joint_margin),
        )

    def _stop_file(self) -> Path:
        if self.params.stop_file:
            return Path(self.params.stop_file).expanduser()
        home = Path(os.environ.get("ROS_HOME", "~/.ros")).expanduser()
        name = self.get_fully_qualified_name().strip("/").replace("/", "_")
        return home / "hil" / f"{name}_{self.context.get_domain_id()}.stop"

    def _open_pacer(self) -> None:
        self._pacer: LockstepPacer | RealtimePacer
        if not self._lockstep:
            self._pacer = RealtimePacer(1.0 / self.params.state_rate_hz)
            return
        client = self.create_client(Advance, self.params.advance_service)
        self._entities.append(lambda: self.destroy_client(client))
        self._pacer = LockstepPacer(
            client,
            self.spec.period,
            lambda: self.lease.holder,
            lambda: self.gate.newest_ns,
            self._timeouts,
        )

    def _open_topics(self) -> None:
        self._state_publisher = self.create_publisher(RobotState, "robot_state", qos.STATE)
        self._result_publisher = self.create_publisher(CommandResult, "command_result", qos.RESULT)
        command = self.subscribe(ArmCommand, "arm_command", self._on_command, qos.COMMAND)
        operator = self.subscribe(
            OperatorCommand, "operator_command", self._on_operator, qos.OPERATOR
        )
        self._entities += [
            lambda: self.destroy_publisher(self._state_publisher),
            lambda: self.destroy_publisher(self._result_publisher),
            lambda: self.destroy_subscription(command),
            lambda: self.destroy_subscription(operator),
        ]
        self._state = RobotState(arm=self.params.arm)
        self._state.header.frame_id = self.params.base_frame
        self._result = CommandResult()
        self._result.header.frame_id = self.params.base_frame

    def _open_services(self) -> None:
        services: list[Any] = [
            self.serve(AcquireLease, "~/acquire", self._acquire),
            self.serve(ReleaseLease, "~/release", self._release),
            self.serve(SetBool, "~/set_stop", self._set_stop),
            DeferredService(self, SetCompliance, "~/set_compliance", self._set_compliance).service,
        ]
        self._entities += [functools.partial(self.destroy_service, each) for each in services]

    def _open_actions(self) -> None:
        self._motions = [
            FiberAction(self, ResetEpisode, "~/reset_episode", self._reset_episode),
            FiberAction(self, MoveTo, "~/move_to", self._move_to),
        ]
        self._actions = [
            *self._motions,
            FiberAction(self, Recover, "~/recover", self._recover),
        ]

    def _every(self, seconds: float, callback: Callable[[], None]) -> None:
        timer = self.every(seconds, callback)
        self._entities.append(lambda: self.destroy_timer(timer))

    # -- what comes in ---------------------------------------------------------------------------

    def _on_state(self, state: ArmState) -> None:
        self.bridge.on_state(state)
        if self._lockstep:
            self.diagnostics.tick("state")
            self._publish_state()
            self._pacer.on_state()  # type: ignore[union-attr]

    def _tick(self) -> None:
        """One period of real time."""
        self._driver.read()
        self.bridge.tick()
        self.diagnostics.tick("state")
        self._publish_state()
        self._pacer.tick()  # type: ignore[union-attr]

    def _on_command(self, message: ArmCommand) -> None:
        stamp, pose = message.header.stamp, message.pose
        point, turn = pose.position, pose.orientation
        command = Command(
            message.owner,
            message.seq,
            stamp.sec * NANOSECONDS + stamp.nanosec,
            message.header.frame_id,
            (point.x, point.y, point.z),
            (turn.x, turn.y, turn.z, turn.w),
            message.control_mode,
            message.gripper,
            message.operator_session,
            message.operator_seq,
        )
        decision = self.bridge.on_command(command)
        self._publish_result(message, decision)

    def _on_operator(self, message: OperatorCommand) -> None:
        arm = self.params.arm
        engaged = any(each.engaged for each in message.arms if each.arm == arm)
        self.bridge.on_operator(message.session, message.seq, engaged)

    def _on_gripper_failure(self, text: str) -> None:
        self.gate.gripper_failed()
        self._gripper_text = text
        self.diagnostics.count("gripper_failures")
        self.diagnostics.warn(text)

    def _watch(self) -> None:
        """Deadlines, and the part of a state that came after its pose."""
        self._timeouts.check()
        if self._lockstep:
            self._driver.read()

    def _keep_house(self) -> None:
        """Look who is there, retry what failed, say how it is."""
        self._driver.watch()
        bridge = self.bridge
        bridge.refresh()
        if bridge.needs_compliance:
            Fiber(bridge.ensure_compliance(), self._report)
        if bridge.recovery_is_due():
            log = self.get_logger().warning
            log(f"recovering from {', '.join(bridge.errors) or 'a reflex'} without being asked")
            Fiber(bridge.recover_unasked(lambda _: None), self._recovered)
        if self._lockstep and self.active and bridge.state is None:
            Fiber(self._pacer.show(), self._ignore_absence)  # type: ignore[union-attr]
        if time.monotonic() - self._published > _AT_REST:
            self._publish_state()
        gate = self.gate
        self.diagnostics.set(
            mode=bridge.mode.name.lower(),
            holder=self.lease.name or self.lease.holder,
            compliance=bridge.preset,
            recoveries=bridge.recoveries,
            recoveries_unasked=bridge.automatic.done,
            reflexes=bridge.reflexes,
            retreats=bridge.retreats,
            stop_latched=gate.latch.latched,
            **{f"commands.{code}": count for code, count in gate.counts.items()},
        )
        if self.active:
            stop = f"software stop: {gate.latch.reason}" if gate.latch.latched else ""
            self.diagnostics.warn(stop or self._gripper_text)
            self.waiting_for(f"the arm: {gate.blocked}" if gate.blocked else "")

    def _report(self, _: Any, error: Exception | None) -> None:
        if error is not None:
            self.fault(error)

    def _recovered(self, outcome: Any, error: Exception | None) -> None:
        self._report(outcome, error)
        if outcome is not None and not outcome.ok:
            self.get_logger().warning(f"recovery failed: {outcome.reason}")

    def _ignore_absence(self, _: Any, error: Exception | None) -> None:
        """No simulator yet: it is asked again."""
        if error is not None and not isinstance(error, DriverError | TimedOut):
            self.fault(error)

    # -- what goes out ---------------------------------------------------------------------------

    def _publish_result(self, command: ArmCommand, decision: Decision) -> None:
        result = self._result
        result.header.stamp = command.header.stamp
        result.owner, result.seq = command.owner, command.seq
        result.status, result.reason = int(decision.status), decision.reason
        result.gripper = decision.gripper
        if decision.pose is not None:
            _fill_pose(result.applied_pose, decision.pose)
        self._result_publisher.publish(result)

    def _publish_state(self) -> None:
        """Publish the newest measurement with what the bridge makes of it."""
        bridge, gate = self.bridge, self.gate
        measured = bridge.state
        if measured is None:
            return
        message = self._state
        stamp = message.header.stamp
        stamp.sec, stamp.nanosec = divmod(measured.stamp_ns, NANOSECONDS)
        _fill_pose(message.pose, measured.pose)
        _fill_six(message.twist.linear, message.twist.angular, measured.twist)
        _fill_six(message.wrench.force, message.wrench.torque, measured.wrench)
        if gate.target is not None:
            _fill_pose(message.target, gate.target)
        message.q, message.dq = measured.q, measured.dq
        message.gripper_width = measured.gripper_width
        message.gripper_command = gate.gripper_command
        message.mode = int(bridge.mode)
        message.mode_text = bridge.mode_text
        message.errors = list(bridge.errors)
        message.control_command_success_rate = bridge.success_rate
        message.stop_latched = gate.latch.latched
        message.operator_hold = gate.operator_hold
        message.command_fresh = gate.fresh
        message.reset_holds_lease = bool(self.lease.busy_with)
        message.owner = self.lease.holder
        message.compliance = bridge.preset
        message.recoveries = bridge.recoveries
        self._state_publisher.publish(message)
        self._published = time.monotonic()

    # -- services --------------------------------------------------------------------------------

    def _acquire(
        self, request: AcquireLease.Request, response: AcquireLease.Response
    ) -> AcquireLease.Response:
        before = self.lease.holder
        answer = self.lease.acquire(request.owner, request.name, to_ns(request.started))
        if answer.ok and before not in ("", request.owner):
            for motion in self._motions:
                motion.cancel_all()
            self.get_logger().info(f"{request.name or request.owner} takes over from {before}")
        response.ok, response.reason = answer.ok, answer.reason
        response.holder = self.lease.holder
        self._publish_state()
        return response

    def _release(
        self, request: ReleaseLease.Request, response: ReleaseLease.Response
    ) -> ReleaseLease.Response:
        answer = self.lease.release(request.owner)
        response.ok, response.reason = answer.ok, answer.reason
        self._publish_state()
        return response

    def _set_stop(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        answer = self.bridge.set_stop(request.data)
        response.success, response.message = answer.ok, answer.reason
        return response

    async def _set_compliance(
        self, request: SetCompliance.Request, response: SetCompliance.Response
    ) -> SetCompliance.Response:
        outcome = await self.bridge.set_compliance(request.preset)
        response.ok, response.reason = outcome.ok, outcome.reason
        return response

    # -- actions ---------------------------------------------------------------------------------

    async def _reset_episode(self, handle: ServerGoalHandle) -> ResetEpisode.Result:
        goal = handle.request
        result = ResetEpisode.Result()
        start, problem = self._goal_pose(goal.start)
        if start is None:
            result.reason = f"start: {problem}"
            return result
        progress = _Feedback(handle, ResetEpisode.Feedback)
        outcome = await self.bridge.reset_episode(goal.owner, start, goal.lift, progress)
        return self._concluded(result, outcome.ok, outcome.reason)

    async def _move_to(self, handle: ServerGoalHandle) -> MoveTo.Result:
        goal = handle.request
        result = MoveTo.Result()
        pose, problem = self._goal_pose(goal.goal)
        if pose is None:
            result.reason = problem
            return result
        progress = _Feedback(handle, MoveTo.Feedback)
        outcome = await self.bridge.move_to(goal.owner, pose, goal.speed, progress)
        return self._concluded(result, outcome.ok, outcome.reason)

    async def _recover(self, handle: ServerGoalHandle) -> Recover.Result:
        def stage(text: str) -> None:
            handle.publish_feedback(Recover.Feedback(stage=text))

        outcome = await self.bridge.recover(stage)
        return Recover.Result(ok=outcome.ok, reason=outcome.reason)

    def _goal_pose(self, message: Any) -> tuple[RigidPose | None, str]:
        """Pose of a goal, or None and why it is none."""
        frame = message.header.frame_id
        if frame != self.params.base_frame:
            return None, f"frame is '{frame}', must be '{self.params.base_frame}'"
        point, turn = message.pose.position, message.pose.orientation
        position = vector3((point.x, point.y, point.z))
        orientation = quaternion((turn.x, turn.y, turn.z, turn.w))
        if not all_finite((*position, *orientation)):
            return None, "pose has a value that is not finite"
        norm = sum(value * value for value in orientation) ** 0.5
        if abs(norm - 1.0) > 1e-3:
            return None, f"quaternion has norm {norm:.4g}, must have 1"
        return RigidPose(position, normalised(orientation)), ""

    def _concluded(self, result: Any, ok: bool, reason: str) -> Any:
        result.ok, result.reason = ok, reason
        if self.gate.measured is not None:
            _fill_pose(result.pose, self.gate.measured)
        return result


class _Feedback:
    """Publishes how far a motion still has to go, now and then."""

    def __init__(self, handle: ServerGoalHandle, message: Any) -> None:
        self._handle = handle
        self._message = message
        self._count = 0

    def __call__(self, left: Span) -> None:
        if self._count % _FEEDBACK_EVERY == 0:
            feedback = self._message(distance=left.translation, angle=left.rotation)
            self._handle.publish_feedback(feedback)
        self._count += 1


def _fill_pose(message: Any, pose: RigidPose) -> None:
    point, turn = message.position, message.orientation
    point.x, point.y, point.z = pose.position
    turn.x, turn.y, turn.z, turn.w = pose.quaternion


def _fill_six(linear: Any, angular: Any, values: tuple[float, ...]) -> None:
    linear.x, linear.y, linear.z, angular.x, angular.y, angular.z = values


def main() -> None:
    """Run the node."""
    run.main(BridgeNode, executor_class=EventsExecutor)


if __name__ == "__main__":
    main()
