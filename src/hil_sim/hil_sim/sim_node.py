"""Node `hil_sim`: the simulated arm behind the ROS interface of the real one."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
from rclpy.experimental import EventsExecutor
from rclpy.parameter import Parameter
from rclpy.qos import qos_profile_sensor_data
from rosgraph_msgs.msg import Clock

import hil_tasks
from hil_common.conversions import from_ns, to_ns
from hil_common.lifecycle import HilNode
from hil_common.params import NodeParams, param
from hil_common.run import main as run
from hil_interfaces.srv import Advance, ResetWorld
from hil_sim import robot
from hil_sim.camera_publisher import CameraPublisher
from hil_sim.companions import Companions
from hil_sim.ledger import Ledger
from hil_sim.lockstep import CarriedOut
from hil_sim.pacing import Countdown, Pacer
from hil_sim.robot import Robot
from hil_sim.robot_interface import ERROR_NAMES, RobotInterface
from hil_sim.target import TargetReader
from hil_sim.world import World

FIRST_STAMP = 1_000_000_000  # ns; simulated time begins here in lockstep, so no stamp is zero
STATE_EVERY = 10  # lockstep: robot_state in every so many periods
INJECT = "inject"
_HAND_MODES = {"user_stop": robot.MODE_USER_STOPPED, "guiding": robot.MODE_GUIDING}


@dataclass(frozen=True)
class SimParams(NodeParams):
    """Parameters of the simulator."""

    task: str = param("peg_insert", "name of the task whose scene is simulated")
    task_file: str = param("", "YAML file with the task and its overrides; wins over `task`")
    pace: str = param(
        "lockstep",
        "lockstep: time moves only through ~/advance; realtime: it runs freely",
        choices=("lockstep", "realtime"),
    )
    seed: int = param(0, "of the objects' first poses", low=0)
    base_frame: str = param("base", "frame id of poses, twists and wrenches")
    cameras: tuple[str, ...] = param((), "cameras to offer; none given: all of the task's")
    image_size: int = param(128, "edge of the camera images, pixels", low=16, high=640)
    physics_hz: int = param(1000, "physics steps per simulated second", low=500, high=10000)
    state_rate_hz: float = param(100.0, "real time: rate of the state topics", low=1.0, high=500.0)
    robot_state_rate_hz: float = param(
        20.0,
        "real time: rate of robot_state, which is expensive; changes come at once",
        low=1.0,
        high=500.0,
    )
    camera_rate_hz: float = param(30.0, "real time: frames per second", low=1.0, high=60.0)
    target_timeout: float = param(
        2.0,
        "lockstep: how long advance waits for the target_pose it names, s",
        low=0.01,
        high=60.0,
    )
    ledger: str = param(
        "",
        "lockstep: file to which each advance that was carried out is appended, a line of JSON "
        "each; empty: none",
    )


class SimNode(HilNode):
    """World, robot interface and pace. Time stands still unless the node is active.

    For tests of fault handling the node has a parameter `inject` that can be set while it runs:
    the name of a robot error (a field of franka_msgs/Errors), "user_stop", "guiding", "released"
    (ends those two), "lose_state" (the next publication of the state is lost) or
    "freeze CAMERA" and "thaw CAMERA".
    """

    Params = SimParams
    params: SimParams

    def __init__(self, **options: Any) -> None:
        super().__init__("hil_sim", **options)
        self._lock = threading.RLock()
        self._pacers: list[Pacer] = []
        self._companions: Companions | None = None
        self._lose_state = False
        self._ledger: Ledger | None = None
        text = "fault to inject, for tests: see the documentation of the simulator"
        self.declare_parameter(INJECT, "", ParameterDescriptor(description=text))
        self.add_on_set_parameters_callback(self._on_parameters)

    # -- lifecycle -------------------------------------------------------------------------------

    def on_setup(self) -> None:
        """Build the world and offer the interface."""
        params = self.params
        task = (
            hil_tasks.load_file(params.task_file)
            if params.task_file
            else hil_tasks.load(params.task)
        )
        self.world = World(task, params.seed, params.cameras, params.image_size, params.physics_hz)
        self.robot = Robot(self.world, self._robot_changed)
        self._companions = Companions(
            self.context, self.get_namespace(), self.world, self.robot, self._lock
        )
        self._interface = RobotInterface(self, self.world, self.robot, params.base_frame)
        self._cameras = CameraPublisher(self, self.world, params.image_size, self._lock)
        self._target = TargetReader(self)
        self._clock_topic = self.create_publisher(Clock, "/clock", qos_profile_sensor_data)
        self._carried_out = CarriedOut()
        if params.ledger:
            self._ledger = Ledger(Path(params.ledger))
        self._first_stamp = FIRST_STAMP
        self._full_state_every = Countdown(STATE_EVERY)
        self._services_offered = [
            self.serve(Advance, "~/advance", self._advance),
            self.serve(ResetWorld, "~/reset_world", self._reset_world),
        ]
        self.diagnostics.set(task=task.spec.name, pace=params.pace)
        self._interface.describe()

    def on_start(self) -> None:
        """Let time move: at once in real time, through ~/advance in lockstep."""
        self._publish_all(complete=True)
        if self.params.pace == "lockstep":
            return
        params, tick_ns = self.params, self.world.tick_ns
        self._first_stamp = self.get_clock().now().nanoseconds - self.world.time_ns
        ticks = max(1, round(1e9 / params.state_rate_hz / tick_ns))
        self._chunk = 2 if ticks % 2 == 0 else 1
        self._state_every = Countdown(ticks // self._chunk)
        period = ticks * tick_ns * 1e-9
        self._robot_state_every = Countdown(round(1.0 / params.robot_state_rate_hz / period))
        self._pacers = [
            Pacer(self._run_physics, self._chunk * tick_ns * 1e-9, self.fault, "physics"),
            Pacer(self._run_cameras, 1.0 / params.camera_rate_hz, self.fault, "cameras"),
        ]
        for pacer in self._pacers:
            pacer.start()

    def on_hold(self) -> None:
        """Time stands still."""
        for pacer in self._pacers:
            pacer.stop()
        if self._pacers:
            self._first_stamp = self.stamp_ns - self.world.time_ns
        self._pacers = []

    def on_close(self) -> None:
        """Take everything down."""
        self._stop_threads()
        for service in self._services_offered:
            self.destroy_service(service)
        self.destroy_publisher(self._clock_topic)
        self._target.close()
        self._interface.close()
        self._cameras.close()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def destroy_node(self) -> None:
        """Destroy the node, its threads and the robot's other nodes."""
        self._stop_threads()
        super().destroy_node()

    def _stop_threads(self) -> None:
        self.on_hold()
        if self._companions is not None:
            self._companions.close()
            self._companions = None

    # -- time ------------------------------------------------------------------------------------

    @property
    def stamp_ns(self) -> int:
        """Stamp of the present state, ns.

        In real time it keeps to the wall clock, also where the machine was too slow and the
        simulated arm stood still for a while.
        """
        lost = self._pacers[0].lost_ns if self._pacers else 0
        return self._first_stamp + self.world.time_ns + lost

    def _advance(self, request: Advance.Request, response: Advance.Response) -> Advance.Response:
        """Service ~/advance."""
        refusal = self._refusal()
        known = self._carried_out.find(request.step_id)
        if not refusal and known is None:
            refusal = self._elsewhere(request) or self._carry_out(request)
            known = self.stamp_ns
            if not refusal and request.periods:
                self._carried_out.note(request.step_id, known)
        response.ok, response.reason = not refusal, refusal
        response.stamp = from_ns(known or 0)
        return response

    def _elsewhere(self, request: Advance.Request) -> str:
        """Why the step does not start from the present state; "" if it does."""
        observed = to_ns(request.observed_stamp)
        if observed in (0, self.stamp_ns):
            return ""
        return (
            f"the step starts from an observation of {observed} ns, but it is {self.stamp_ns} ns "
            "now: the simulator was restarted, or the bridge has moved the arm"
        )

    def _carry_out(self, request: Advance.Request) -> str:
        """Apply the target, simulate, publish; returns why not, or ""."""
        wanted = to_ns(request.target_stamp)
        try:
            target = self._target.wait(wanted, self.params.target_timeout)
        except TimeoutError as error:
            self.diagnostics.warn(str(error))
            return str(error)
        self.diagnostics.warn(self._target.problem)
        with self._lock:
            if target is not None and self.robot.controlled:
                self.world.set_target(target)
            if request.periods:
                self._let_pass(request)
        self._publish_all(complete=not request.periods)
        return ""

    def _let_pass(self, request: Advance.Request) -> None:
        """Simulate the periods, and write them down before anybody hears of them."""
        before, was_at = self.stamp_ns, self._position()
        self.world.advance(request.periods)
        self.robot.poll()
        self._companions_update()
        if self._ledger is not None:
            stamps, positions = (before, self.stamp_ns), (was_at, self._position())
            self._ledger.note(request.step_id, request.owner, request.periods, stamps, positions)

    def _position(self) -> tuple[float, float, float]:
        x, y, z = self.world.pose.position
        return float(x), float(y), float(z)

    def _reset_world(
        self, request: ResetWorld.Request, response: ResetWorld.Response
    ) -> ResetWorld.Response:
        """Service ~/reset_world."""
        with self._lock:
            self.world.reset_world(request.seed)
        response.ok = True
        response.stamp = from_ns(self.stamp_ns)
        return response

    def _refusal(self) -> str:
        if not self.active:
            return "the simulator is not active"
        return "pace is realtime: time moves by itself" if self.params.pace != "lockstep" else ""

    def _run_physics(self) -> None:
        """Run a few milliseconds of real time, so that a new target is felt soon."""
        target = self._target.poll()
        with self._lock:
            if target is not None and self.robot.controlled:
                self.world.set_target(target)
            self.world.tick(self._chunk)
            self.robot.poll()
        if not self._state_every.due():
            return
        self._companions_update()
        self.diagnostics.warn(self._target.problem)
        self.diagnostics.set(lost_s=round(self._pacers[0].lost_ns * 1e-9, 3))
        with self._lock:
            self._stamp()
            if self._robot_state_every.due():
                self._interface.publish_robot_state()
            self._publish_state()

    def _run_cameras(self) -> None:
        self._cameras.publish(from_ns(self.stamp_ns))

    # -- publishing ------------------------------------------------------------------------------

    def _publish_all(self, complete: bool) -> None:
        """State and frames of now; robot_state if complete, and in every STATE_EVERY-th call."""
        with self._lock:
            self._stamp()
            if self._full_state_every.due() or complete:
                self._interface.publish_robot_state()
            self._publish_state()
            if self.params.pace == "lockstep":
                self._cameras.publish(self._interface.stamp)

    def _publish_state(self) -> None:
        if self._lose_state:
            self._lose_state = False
            return
        self._clock_topic.publish(Clock(clock=self._interface.stamp))
        self._interface.publish()
        self._interface.publish_transforms()

    def _stamp(self) -> None:
        stamp = self._interface.stamp
        stamp.sec, stamp.nanosec = divmod(self.stamp_ns, 1_000_000_000)

    def _robot_changed(self) -> None:
        """Mode, errors, hardware or controllers changed: say so at once."""
        mode = {
            robot.MODE_IDLE: "idle",
            robot.MODE_MOVE: "move",
            robot.MODE_REFLEX: "reflex",
            robot.MODE_GUIDING: "guiding",
            robot.MODE_USER_STOPPED: "user stopped",
        }
        self.diagnostics.set(robot_mode=mode[self.robot.mode], errors=", ".join(self.robot.errors))
        self._stamp()
        self._interface.publish_robot_state()
        if self._companions is not None:
            self._companions.manager.publish_activity()

    def _companions_update(self) -> None:
        if self._companions is not None:
            self._companions.gripper.update()

    # -- faults on demand ------------------------------------------------------------------------

    def _on_parameters(self, parameters: list[Parameter]) -> SetParametersResult:
        for parameter in parameters:
            if parameter.name == INJECT and parameter.value:
                reason = self._inject(str(parameter.value))
                if reason:
                    return SetParametersResult(successful=False, reason=reason)
        return SetParametersResult(successful=True)

    def _inject(self, what: str) -> str:
        """Inject a fault; returns why not, or ""."""
        command, _, camera = what.partition(" ")
        if not hasattr(self, "world"):
            return "the simulator is not configured"
        with self._lock:
            if what in ERROR_NAMES:
                self.robot.fail(what)
            elif what in _HAND_MODES:
                self.robot.stop_by_hand(_HAND_MODES[what])
            elif what == "released":
                self.robot.release_by_hand()
            elif what == "lose_state":
                self._lose_state = True
            elif command == "freeze" and camera in self.world.cameras:
                self._cameras.frozen.add(camera)
            elif command == "thaw" and camera in self.world.cameras:
                self._cameras.frozen.discard(camera)
            else:
                return f"cannot inject {what!r}"
        return ""


def main() -> None:
    """Entry point."""
    run(SimNode, executor_class=EventsExecutor)
