"""The process that holds the connection to the robot (FCI) and keeps its 1 kHz loop alive.

franky's loop is a C++ thread, so it goes on whatever Python does here or in the bridge. This
process imports no ROS. It takes requests and sends states as packets (`hil_robot_bridge.packets`):

- in: {"target": pose} (seven numbers), {"gripper": -1 or 1}, {"id": n, "do": what, ...} with what
  one of compliance, gains, recover, joints; {} says that the bridge lives.
- out: {"state": ...} or {"absent": why}, {"id": n, "stage": text},
  {"id": n, "error": text or "", "values": ...}, {"gripper_failure": text}.

Watchdog: after `silence` seconds without a packet the measured pose becomes the target; when the
bridge's end is closed, the arm is brought to rest and the process ends.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from hil_robot_bridge.packets import Packet, Packets

INSTALL = "pip install -r requirements-fci.txt"
_RETRY = 1.0  # s between two attempts to connect
_STOP_LIMIT = 1.0  # s; franky brings the arm to rest in 0.2 s
_RESTARTS = ("recover", "joints")  # after these the arm holds where it is
_FROZEN = 0.1  # s without a new state of the robot
_HAND_PERIOD = 0.1  # s between two looks at the gripper
MOST_STIFFNESS = (3000.0,) * 3 + (300.0,) * 3
"""Stiffness that is accepted at most, N/m and Nm/rad: bounds of the robot's own impedance."""

# Robot server version -> libfranka that speaks it (Franka's compatibility matrix).
_LIBRARIES = {
    3: "0.7",
    4: "0.8",
    5: "0.9 (Panda/FER)",
    6: "0.10 to 0.13.2",
    7: "0.13.3 to 0.14.0",
    8: "0.14.1",
    9: "0.15 to 0.17",
    10: "0.18 or newer",
}


@dataclass(frozen=True)
class FciConfig:
    """Numbers of the connection to the robot.

    Attributes:
        host: address of the robot.
        gripper: the arm has Franka's hand.
        gripper_width: of the open hand, m.
        gripper_speed: m/s.
        gripper_force: of a grasp, N.
        rate: states per second.
        silence: seconds without a word from the bridge after which the arm holds.
        joint_speed: of joint resets, share of the robot's limits.
        max_delta_tau: largest change of torque per 1 ms, Nm.
        collision_torque: (7,), external joint torques that stop the arm by reflex, Nm.
        collision_force: (6,), external wrench that does, N and Nm.
        load_mass, load_centre, load_inertia: what the flange carries beside what Desk knows, kg,
            (3,) m from the flange, (9,) kg m^2; the robot compensates it.
        tool: (7,), pose of the tool centre point in the end-effector frame of Desk (set_EE).
        realtime: refuse to run without a real-time kernel.
        priority: real-time priority of this process; 0: none.
    """

    host: str = ""
    gripper: bool = True
    gripper_width: float = 0.08
    gripper_speed: float = 0.1
    gripper_force: float = 30.0
    rate: float = 50.0
    silence: float = 0.15
    joint_speed: float = 0.1
    max_delta_tau: float = 1.0
    collision_torque: tuple[float, ...] = (35.0, 35.0, 32.0, 30.0, 29.0, 27.0, 24.0)
    collision_force: tuple[float, ...] = (40.0, 40.0, 40.0, 35.0, 35.0, 35.0)
    load_mass: float = 0.0
    load_centre: tuple[float, ...] = (0.0, 0.0, 0.0)
    load_inertia: tuple[float, ...] = (0.0,) * 9
    tool: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    realtime: bool = True
    priority: int = 0

    def dump(self) -> str:
        """As text for the command line of the process."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> FciConfig:
        """From the text of `dump`."""
        values: dict[str, Any] = json.loads(text)
        for name, value in values.items():
            if isinstance(value, list):
                values[name] = tuple(value)
        return cls(**values)


@dataclass(frozen=True)
class Impedance:
    """Gains and clips as franky takes them.

    Attributes:
        stiffness, damping: (6,), translation and rotation.
        clip: (6,), m and rad.
        posture: stiffness (Nm/rad), damping (Nm s/rad) and largest torque (Nm) of the nullspace.
    """

    stiffness: tuple[float, ...]
    damping: tuple[float, ...]
    clip: tuple[float, ...]
    posture: tuple[float, ...]

    def problem(self) -> str:
        """Why it is refused; "" if it is not."""
        for value, most, axis in zip(
            self.stiffness, MOST_STIFFNESS, ("x", "y", "z", "rx", "ry", "rz"), strict=True
        ):
            if not 0.0 <= value <= most:
                return f"stiffness {value:g} about {axis} must be from 0 to {most:g}"
        return ""


class Refused(Exception):
    """The robot or the library did not do as asked; the text is for a person."""


def version_text(message: str) -> str:
    """What to install for a robot whose server version does not fit the library's.

    Args:
        message: of libfranka's exception.
    """
    found = re.search(r"server version: (\d+)", message)
    if found is None:
        return f"robot and library do not fit: {message}"
    server = int(found[1])
    library = _LIBRARIES.get(server, "the one that Franka's compatibility matrix names for it")
    return (
        f"the robot's server has version {server} and needs libfranka {library}: install the "
        f"franky-control built for robot server version {server} (franky's documentation, "
        "server version mismatch), or update the robot"
    )


class Arm:
    """The robot through franky.

    Attributes:
        armed: control may start without a person: true until the robot has stopped by itself.
        absent: why there is no connection; "" if there is one.
    """

    def __init__(self, franky: Any, config: FciConfig) -> None:
        self._franky = franky
        self._config = config
        self._robot: Any = None
        self._motion: Any = None
        self._impedance: Impedance | None = None
        self._posture: Any = None
        self._holding = False
        self._joints_move = False
        self._robot_time, self._robot_time_at = -1.0, 0.0
        self._next_try = 0.0
        self.armed = True
        self.absent = f"not connected to the robot at {config.host} yet"
        self._errors = [name for name in dir(franky.Errors) if not name.startswith("_")]

    # -- connection ------------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect if it is time to try."""
        if self._robot is not None or time.monotonic() < self._next_try:
            return
        franky, config = self._franky, self._config
        mode = franky.RealtimeConfig.Enforce if config.realtime else franky.RealtimeConfig.Ignore
        try:
            self._robot = franky.Robot(config.host, realtime_config=mode)
            self._configure()
            self.absent = ""
        except franky.IncompatibleVersionException as error:
            self.absent = version_text(str(error))
        except franky.RealtimeException as error:
            self.absent = (
                f"no real-time scheduling ({error}): boot a real-time kernel, allow the user "
                "rtprio, or set fci_realtime to false"
            )
        except Exception as error:
            self.absent = (
                f"no connection to FCI at {config.host} ({_first_line(error)}): switch the robot "
                "on, open the brakes and activate FCI in Desk, check the cable"
            )
        if self.absent:
            self._lose(self.absent)
        self._next_try = time.monotonic() + _RETRY

    def _configure(self) -> None:
        robot, config = self._robot, self._config
        robot.set_collision_behavior(list(config.collision_torque), list(config.collision_force))
        if config.load_mass:
            robot.set_load(config.load_mass, list(config.load_centre), list(config.load_inertia))
        if tuple(config.tool) != FciConfig.tool:
            tool = self._affine(config.tool).matrix
            robot.set_ee([float(value) for value in tool.T.flatten()])

    def _lose(self, why: str) -> None:
        """The connection is gone: control has to be given anew."""
        self.absent = why
        self._robot = self._motion = None

    # -- state -----------------------------------------------------------------------------------

    @property
    def controlled(self) -> bool:
        """Whether the impedance law drives the arm."""
        return self._robot is not None and self._motion is not None and self._robot.is_in_control

    def read(self) -> Packet | None:
        """State of now, or why there is none; None: the robot is silent at the moment."""
        self.connect()
        if self._robot is None:
            return {"absent": self.absent}
        try:
            stamp = time.time_ns()
            state = self._robot.state
            controlled = self._watch(state)
        except Exception as error:
            self.armed = False
            self._lose(
                f"the connection to {self._config.host} broke ({_first_line(error)}): check power "
                "and cable, activate FCI in Desk, then call recover"
            )
            return {"absent": self.absent}
        if self._frozen(state):
            return None
        pose = state.O_T_EE
        # franky estimates a twist only while it controls.
        twist = self._jacobian(state) @ state.dq
        return {
            "state": {
                "stamp_ns": stamp,
                "pose": _numbers([*pose.translation, *pose.quaternion]),
                "twist": _numbers(twist),
                "wrench": _numbers(state.O_F_ext_hat_K),
                "q": _numbers(state.q),
                "dq": _numbers(state.dq),
            },
            "mode": int(state.robot_mode.value),
            "errors": self._names_of(state),
            "success_rate": state.control_command_success_rate if controlled else 1.0,
            "controlled": controlled,
            "ready": controlled or (self.armed and self._impedance is None),
        }

    def _names_of(self, state: Any) -> list[str]:
        """Names of current errors; costly to read, so only where there can be some."""
        if state.robot_mode in (self._franky.RobotMode.Move, self._franky.RobotMode.Idle):
            return []
        return [name for name in self._errors if getattr(state.current_errors, name)]

    def _frozen(self, state: Any) -> bool:
        """While franky controls, it shows the last state it got, however old that is."""
        robot_time, now = state.time.to_sec(), time.monotonic()
        if robot_time != self._robot_time:
            self._robot_time, self._robot_time_at = robot_time, now
        return now - self._robot_time_at > _FROZEN

    def _jacobian(self, state: Any) -> Any:
        return self._robot.model.zero_jacobian(self._franky.Frame.EndEffector, state)

    def _watch(self, state: Any) -> bool:
        """Notice that the robot has ended control by itself."""
        if self._joints_move:
            return False
        controlled = self.controlled
        if self._motion is not None and not controlled:
            self._motion, self.armed = None, False
            with suppress(Exception):
                self._robot.join_motion(_STOP_LIMIT)  # its exception belongs to the past
        elif self._motion is None and state.robot_mode != self._franky.RobotMode.Idle:
            self.armed = False
        return controlled

    # -- commands --------------------------------------------------------------------------------

    def target(self, pose: Sequence[float]) -> None:
        """Set the target pose: position and quaternion xyzw."""
        if self.controlled:
            self._holding = False
            self._refer(self._affine(pose))

    def hold(self) -> None:
        """Make the measured pose the target, once."""
        if self.controlled and not self._holding:
            self._holding = True
            self._refer(self._robot.state.O_T_EE)

    def set_impedance(self, wanted: Impedance) -> Packet:
        """Apply gains and clips; returns what the law has now.

        Control starts here for the first time: nothing is left to defaults.

        Raises:
            Refused: says why.
        """
        problem = wanted.problem()
        if problem:
            raise Refused(problem)
        self.read()
        if self._robot is None:
            raise Refused(self.absent)
        if time.monotonic() - self._robot_time_at > _FROZEN:
            raise Refused("the robot is silent: check power and cable")
        before, self._impedance = self._impedance, wanted
        if not self.controlled:
            if not self.armed:
                raise Refused("the robot is not under control: call recover")
            self._start()
        elif before is None or before.clip != wanted.clip:
            self._replace(before or wanted)
        self._retune()
        return self.impedance_in_force()

    def recover(self, stage: Callable[[str], None]) -> None:
        """Clear the error, then let the law hold the measured pose.

        Raises:
            Refused: says what keeps the robot from it.
        """
        modes = self._franky.RobotMode
        stage("connection")
        self._next_try = 0.0
        self.connect()
        if self._robot is None:
            raise Refused(self.absent)
        mode = self._robot.state.robot_mode
        if mode in (modes.UserStopped, modes.Guiding, modes.Other):
            raise Refused(f"the robot is in mode {mode.name}: a person has to end that at the arm")
        if self.controlled:
            return
        stage("error recovery")
        self._robot.recover_from_errors()
        if self._robot.state.robot_mode != modes.Idle:
            raise Refused("the robot did not clear its error: look at the robot and at Desk")
        self.armed = True
        if self._impedance is not None:
            stage("controller")
            self._start()

    def go_to_joints(self, q: Sequence[float], alive: Callable[[], bool]) -> None:
        """Move to joint positions, slowly, then hold there.

        Args:
            q: rad.
            alive: polled; the motion ends when it says no.

        Raises:
            Refused: the motion did not end at the goal.
        """
        if not self.controlled:
            raise Refused("the robot is not under control: call recover")
        self._leave_control()
        robot = self._robot
        motion = self._franky.JointMotion(
            list(q), relative_dynamics_factor=self._config.joint_speed
        )
        self._joints_move = True
        try:
            robot.move(motion, asynchronous=True)
            while not robot.poll_motion():
                if not alive():
                    robot.stop()
                    break
            robot.join_motion(_STOP_LIMIT)
        except Exception as error:
            self.armed = False
            raise Refused(f"joint motion ended early: {_first_line(error)}") from error
        finally:
            self._joints_move = False
        self._posture = None
        self._start()

    def release(self) -> None:
        """Bring the arm to rest and give control back to the robot."""
        if self.controlled:
            with suppress(Exception):
                self._leave_control()

    # -- inside ----------------------------------------------------------------------------------

    def _start(self) -> None:
        assert self._impedance is not None
        try:
            self._motion = self._new_motion(self._impedance)
            self._refer(self._robot.state.O_T_EE)
            self._robot.move(self._motion, asynchronous=True)
        except Exception as error:
            self._motion = None
            raise Refused(f"control did not start: {_first_line(error)}") from error
        self._holding = True

    def _replace(self, impedance: Impedance) -> None:
        """Go over to a motion with the wanted clips, with the gains of before: no jump."""
        wanted = self._impedance
        assert wanted is not None
        reference = self._motion.get_reference()
        self._motion = self._new_motion(
            Impedance(impedance.stiffness, impedance.damping, wanted.clip, impedance.posture)
        )
        self._motion.set_reference(reference)
        self._robot.move(self._motion, asynchronous=True)

    def _new_motion(self, impedance: Impedance) -> Any:
        import numpy as np

        if self._posture is None:
            self._posture = self._robot.state.q
        stiffness, damping, torque = impedance.posture
        motion = self._franky.CartesianImpedanceTrackingMotion(
            posture_task=self._franky.PostureTask(
                self._posture, np.full(7, stiffness), np.full(7, damping), torque
            ),
            max_delta_tau=self._config.max_delta_tau,
            translational_error_clip=np.array(impedance.clip[:3]),
            rotational_error_clip=np.array(impedance.clip[3:]),
        )
        motion.set_gains(self._gains(impedance))
        return motion

    def _retune(self) -> None:
        impedance = self._impedance
        assert impedance is not None
        self._motion.set_gains(self._gains(impedance))
        nullspace = self._motion.get_nullspace_gains()
        (
            nullspace.posture_stiffness,
            nullspace.posture_damping,
            nullspace.posture_max_torque,
        ) = impedance.posture
        self._motion.set_nullspace_gains(nullspace)

    def _gains(self, impedance: Impedance) -> Any:
        return self._franky.CartesianImpedanceGains.diagonal(
            list(impedance.stiffness), list(impedance.damping)
        )

    def impedance_in_force(self) -> Packet:
        """What the law has: the fields of Impedance.

        Raises:
            Refused: no law is in force.
        """
        if self._motion is None:
            raise Refused("the robot is not under control: call recover")
        gains, nullspace = self._motion.get_gains(), self._motion.get_nullspace_gains()
        params = self._motion.params
        return {
            "stiffness": _numbers(gains.stiffness.diagonal()),
            "damping": _numbers(gains.damping.diagonal()),
            "clip": _numbers([*params.translational_error_clip, *params.rotational_error_clip]),
            "posture": _numbers(
                [
                    nullspace.posture_stiffness[0],
                    nullspace.posture_damping[0],
                    nullspace.posture_max_torque,
                ]
            ),
        }

    def _leave_control(self) -> None:
        self._robot.move(self._franky.TorqueStopMotion(), asynchronous=True)
        with suppress(self._franky.ControlException):
            self._robot.join_motion(_STOP_LIMIT)
        self._motion = None

    def _refer(self, pose: Any) -> None:
        self._motion.set_reference(self._franky.CartesianReference(target=pose))

    def _affine(self, pose: Sequence[float]) -> Any:
        return self._franky.Affine(list(pose[:3]), list(pose[3:]))


class Hand:
    """Franka's hand, on a thread of its own: reading it waits for the hand.

    Attributes:
        width: measured, m.
        failure: text that has not been reported yet; "".
    """

    def __init__(self, franky: Any, config: FciConfig) -> None:
        self._franky, self._config = franky, config
        self._wanted = 0
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self.width = 0.0
        self.failure = ""
        threading.Thread(target=self._run, name="hand", daemon=True).start()

    def command(self, command: int) -> None:
        """Begin to close (-1) or open (1); the newest command counts."""
        with self._lock:
            self._wanted = command
        self._changed.set()

    def take_failure(self) -> str:
        """What went wrong since the last call; "" if nothing did."""
        with self._lock:
            failure, self.failure = self.failure, ""
        return failure

    def _run(self) -> None:
        hand, running = None, None
        while True:
            self._changed.wait(_HAND_PERIOD)
            self._changed.clear()
            try:
                if hand is None:
                    hand = self._franky.Gripper(self._config.host)
                self.width = hand.state.width
                running = self._serve(hand, running)
            except Exception as error:
                hand = running = None
                self._fail(f"gripper: {_first_line(error)}")
                time.sleep(_RETRY)

    def _serve(self, hand: Any, running: Any) -> Any:
        """One command at a time; returns the one under way."""
        if running is not None:
            command, future = running
            if not future.wait(0.0):
                return running
            good = future.get()
            if not good and command > 0:
                self._fail("gripper did not open: blocked")
        with self._lock:
            command, self._wanted = self._wanted, 0
        if not command:
            return None
        config = self._config
        if command > 0:
            return command, hand.move_async(config.gripper_width, config.gripper_speed)
        everything = config.gripper_width + 0.01
        future = hand.grasp_async(
            0.0, config.gripper_speed, config.gripper_force, everything, everything
        )
        return command, future

    def _fail(self, text: str) -> None:
        with self._lock:
            self.failure, self._wanted = text, 0


@dataclass
class Worker:
    """Serves one bridge until it is gone."""

    arm: Arm
    hand: Hand | None
    packets: Packets
    config: FciConfig
    _heard: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Take packets as they come, send a state per period; ends when the bridge is gone."""
        period = 1.0 / self.config.rate
        due = time.monotonic()
        while not self.packets.closed:
            wait = max(0.0, due - time.monotonic())
            select.select([self.packets], [], [], wait)
            self._take(self.packets.receive())
            now = time.monotonic()
            if now - self._heard > self.config.silence:
                self.arm.hold()
            if now >= due:
                due = max(due + period, now)
                self._report()
        self.arm.release()

    def _take(self, packets: list[Packet]) -> None:
        if packets:
            self._heard = time.monotonic()
        target: Sequence[float] | None = None
        for packet in packets:
            target = packet.get("target", target)
            if "gripper" in packet and self.hand is not None:
                self.hand.command(packet["gripper"])
            if "do" in packet:
                self._do(packet)
                if packet["do"] in _RESTARTS:
                    target = None
                    self._drop_targets()
        if target is not None:
            self.arm.target(target)

    def _drop_targets(self) -> None:
        """What was sent before the arm held its measured pose is void."""
        late = self.packets.receive()
        self._take([packet for packet in late if "target" not in packet])

    def _do(self, packet: Packet) -> None:
        answer: Packet = {"id": packet["id"], "error": ""}

        def stage(text: str) -> None:
            self.packets.send({"id": packet["id"], "stage": text})

        try:
            if packet["do"] == "compliance":
                wanted = {key: tuple(value) for key, value in packet["impedance"].items()}
                answer["values"] = self.arm.set_impedance(Impedance(**wanted))
            elif packet["do"] == "gains":
                answer["values"] = self.arm.impedance_in_force()
            elif packet["do"] == "recover":
                self.arm.recover(stage)
            elif packet["do"] == "joints":
                self.arm.go_to_joints(packet["q"], self._alive)
        except Refused as refused:
            answer["error"] = str(refused)
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {_first_line(error)}"
        self.packets.send(answer)

    def _alive(self) -> bool:
        """Whether the bridge is there and wants the motion that runs; states go on meanwhile."""
        select.select([self.packets], [], [], 1.0 / self.config.rate)
        packets = self.packets.receive()
        if packets:
            self._heard = time.monotonic()
        self._report()
        silent = time.monotonic() - self._heard > self.config.silence
        cancelled = any("cancel" in packet for packet in packets)
        return not (self.packets.closed or silent or cancelled)

    def _report(self) -> None:
        packet = self.arm.read()
        if packet is None:
            return
        if self.hand is not None:
            packet["width"] = self.hand.width
            failure = self.hand.take_failure()
            if failure:
                self.packets.send({"gripper_failure": failure})
        self.packets.send(packet)


def _numbers(values: Any) -> list[float]:
    return [float(value) for value in values]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def main(arguments: Sequence[str] = tuple(sys.argv[1:])) -> None:
    """Run: file descriptor of the socket, configuration."""
    descriptor, text = arguments
    packets, config = Packets(socket.socket(fileno=int(descriptor))), FciConfig.load(text)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bridge ends it by closing its end
    if config.priority:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(config.priority))
    try:
        import franky
    except ImportError as error:
        packets.send({"absent": f"franky-control cannot be loaded ({error}): {INSTALL}"})
        return
    hand = Hand(franky, config) if config.gripper else None
    Worker(Arm(franky, config), hand, packets, config).run()


if __name__ == "__main__":
    main()
