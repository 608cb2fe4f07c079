"""The simulated robot itself: franka-sim with a task's scene, run by franka-sim's own Python.

franka-sim needs other versions of NumPy and MuJoCo than the rest, so this file stands for the
robot: it runs in an environment of its own and imports nothing of this project. Added to
franka-sim: the scene, poses at the tool centre point instead of joint 7, external wrenches from
the contacts, a reflex when they exceed the collision thresholds, the modes that a person brings
about by hand, and faults on demand.

Requests come as JSON objects, one per packet, on the socket that `--control` names; a snapshot
goes back at `--rate`. Keys of a request: "objects" (name -> position and quaternion wxyz),
"fault" (an error's name), "hand" ("user_stop", "guiding" or "released").
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

import mujoco
import numpy as np
from franka_sim import mujoco_franka_sim
from franka_sim.franka_protocol import RobotMode, SetCollisionBehaviorCommand
from franka_sim.franka_sim_server import FrankaSimServer
from franka_sim.gripper.physics import FrankaHandPhysics
from franka_sim.gripper.server import FrankaGripperServer
from franka_sim.mujoco_franka_sim import MujocoFrankaSim

# Flange to the tool centre point of the hand, as a robot with the hand has it from Desk.
HAND_YAW, TCP_OFFSET = -np.pi / 4, 0.1034
WRENCH_TIME_CONSTANT = 0.02  # s
PACKET = 65536
# Places of errors in the robot's state; see franka_msgs/Errors for their meaning.
FAULTS = {
    "self_collision_avoidance_violation": 2,
    "joint_velocity_violation": 3,
    "cartesian_velocity_violation": 4,
    "joint_reflex": 6,
    "cartesian_reflex": 7,
    "communication_constraints_violation": 25,
    "power_limit_violation": 26,
}
HAND_MODES = {"user_stop": RobotMode.kUserStopped, "guiding": RobotMode.kGuiding}


class TaskSim(MujocoFrankaSim):
    """Physics of franka-sim with a task's objects and external wrenches."""

    def __init__(self, model_path: str, enable_hand: bool) -> None:
        super().__init__(model_path=model_path, enable_hand=enable_hand)
        self.requests: deque[dict[str, Any]] = deque()
        self.published: dict[str, Any] = {}
        self.server: TaskServer | None = None
        self._wrench = np.zeros(6)
        self._smooth = 1.0 - np.exp(-self.dt / WRENCH_TIME_CONSTANT)

    def _bind_model(self) -> None:
        super()._bind_model()
        model = self.model
        self.ee_body_id = model.body(f"{self.prefix}link8").id
        tool = {self.ee_body_id}
        for body in range(model.nbody):
            if model.body_parentid[body] in tool:
                tool.add(body)
        self._of_tool = np.isin(model.geom_bodyid, list(tool))

    def _configure_model(self) -> None:
        super()._configure_model()
        for joint in range(self.model.njnt):
            if self.model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE:
                self.model.body_gravcomp[self.model.jnt_bodyid[joint]] = 0.0

    def _read_and_publish_state(self) -> None:
        while self.requests:
            self._apply(self.requests.popleft())
        super()._read_and_publish_state()
        snapshot, data = self._state_snapshot, self.data
        wrench = self._contact_wrench()
        self._wrench += self._smooth * (wrench - self._wrench)
        snapshot["tau_ext_hat_filtered"] = snapshot["O_J_EE"].T @ self._wrench
        snapshot["O_F_ext_hat_K"] = self._wrench.copy()
        turn = self.ee_pose()[:3, :3]
        snapshot["K_F_ext_hat_K"] = np.concatenate(
            (turn.T @ self._wrench[:3], turn.T @ self._wrench[3:])
        )
        self.published = {
            "time": data.time,
            "qpos": data.qpos,
            "mocap_pos": data.mocap_pos,
            "mocap_quat": data.mocap_quat,
        }
        if self.server is not None:
            self.server.watch_contacts(self._wrench, snapshot["tau_ext_hat_filtered"])

    def _contact_wrench(self) -> np.ndarray:
        """Wrench of the environment on the tool centre point, base axes."""
        data, total = self.data, np.zeros(6)
        if not data.ncon:
            return total
        geoms = data.contact.geom[: data.ncon]
        touching = self._of_tool[geoms[:, 0]] != self._of_tool[geoms[:, 1]]
        if not touching.any():
            return total
        centre, local = self.ee_pose()[:3, 3], np.zeros(6)
        for index in np.flatnonzero(touching):
            contact = data.contact[index]
            mujoco.mj_contactForce(self.model, data, index, local)
            frame = contact.frame.reshape(3, 3)
            # MuJoCo gives the force of the first geom on the second.
            sign = -1.0 if self._of_tool[contact.geom[0]] else 1.0
            force = sign * (local[:3] @ frame)
            total[:3] += force
            total[3:] += np.cross(contact.pos - centre, force) + sign * (local[3:] @ frame)
        return total

    def _apply(self, request: dict[str, Any]) -> None:
        for name, (position, quaternion) in request.get("objects", {}).items():
            body = self.model.body(name)
            if body.mocapid[0] >= 0:
                self.data.mocap_pos[body.mocapid[0]] = position
                self.data.mocap_quat[body.mocapid[0]] = quaternion
            else:
                start, speed = body.jntadr[0], body.dofadr[0]
                place = self.model.jnt_qposadr[start]
                self.data.qpos[place : place + 7] = (*position, *quaternion)
                self.data.qvel[speed : speed + 6] = 0.0


class TaskServer(FrankaSimServer):
    """The robot's protocol, with collision thresholds, a hand, and a person beside it."""

    def __init__(self, **options: Any) -> None:
        self._hand_mode: RobotMode | None = None
        self._force_threshold = np.full(6, np.inf)
        self._torque_threshold = np.full(7, np.inf)
        super().__init__(**options)

    def reset_state(self) -> None:
        """A new connection: the hand is still there, and so is the person."""
        super().reset_state()
        c, s = np.cos(HAND_YAW), np.sin(HAND_YAW)
        hand = [[c, -s, 0, 0], [s, c, 0, 0], [0, 0, 1, TCP_OFFSET], [0, 0, 0, 1]]
        self.robot_state.state["F_T_NE"] = [float(v) for v in np.array(hand).T.flatten()]
        self._refresh_ee_transform()
        self._show_hand_mode()

    def handle_set_collision_behavior_command(
        self, client_socket: Any, header: Any, payload: bytes
    ) -> None:
        """Note the thresholds, which franka-sim itself ignores."""
        command = SetCollisionBehaviorCommand.from_bytes(payload)
        self._force_threshold = np.array(command.upper_force_thresholds_nominal)
        self._torque_threshold = np.array(command.upper_torque_thresholds_nominal)
        super().handle_set_collision_behavior_command(client_socket, header, payload)

    def _refuse_move_while_latched(self, client_socket: Any, header: Any) -> bool:
        if self._hand_mode is None:
            return bool(super()._refuse_move_while_latched(client_socket, header))
        mode, self.robot_state.state["robot_mode"] = self._hand_mode, RobotMode.kReflex
        refused = bool(super()._refuse_move_while_latched(client_socket, header))
        self.robot_state.state["robot_mode"] = mode
        return refused

    def watch_contacts(self, wrench: np.ndarray, torque: np.ndarray) -> None:
        """Stop by reflex when contacts exceed the thresholds. Physics thread, 1 kHz."""
        self._show_hand_mode()
        if (np.abs(wrench) > self._force_threshold).any():
            self.fail("cartesian_reflex")
        elif (np.abs(torque) > self._torque_threshold).any():
            self.fail("joint_reflex")

    def fail(self, error: str) -> None:
        """Abort the motion with an error, as the robot does; without one, nothing happens."""
        if self.robot_state.state["robot_mode"] == RobotMode.kMove:
            self._abort_with_error(FAULTS[error], error)

    def by_hand(self, what: str) -> None:
        """What a person does at the arm."""
        if what == "released":
            self._hand_mode = None
            self.robot_state.state["robot_mode"] = RobotMode.kIdle
            return
        self._hand_mode = HAND_MODES[what]
        self._abort_with_error((), what)
        self._show_hand_mode()

    def _show_hand_mode(self) -> None:
        if self._hand_mode is not None:
            self.robot_state.state["robot_mode"] = self._hand_mode


def serve_control(control: socket.socket, sim: TaskSim, server: TaskServer, rate: float) -> None:
    """Take requests and send snapshots until the other side is gone; then end the process."""
    control.setblocking(False)
    due = time.monotonic()
    with suppress(ConnectionError):
        while True:
            select.select([control], [], [], max(0.0, due - time.monotonic()))
            if not take_request(control, sim, server):
                break
            if time.monotonic() >= due:
                due = max(due + 1.0 / rate, time.monotonic())
                send_snapshot(control, sim, server)
    sim.stop()


def take_request(control: socket.socket, sim: TaskSim, server: TaskServer) -> bool:
    """Carry out a request, if one has come; returns whether the other side is still there."""
    try:
        packet = control.recv(PACKET)
    except BlockingIOError:
        return True
    if packet:
        request = json.loads(packet)
        if "fault" in request:
            server.fail(request["fault"])
        if "hand" in request:
            server.by_hand(request["hand"])
        sim.requests.append(request)
    return bool(packet)


def send_snapshot(control: socket.socket, sim: TaskSim, server: TaskServer) -> None:
    """Send where everything is; it is lost if nobody reads."""
    message = {key: np.round(value, 6).tolist() for key, value in sim.published.items()}
    message["mode"] = int(server.robot_state.state["robot_mode"])
    with suppress(BlockingIOError):
        control.send(json.dumps(message).encode())


def main() -> None:
    """Entry point: see the module's text and `--help`."""
    parser = argparse.ArgumentParser(description="A simulated FR3 behind the robot's protocol.")
    parser.add_argument("--model", required=True, help="MJCF of the arm and its surroundings")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at")
    parser.add_argument("--control", type=int, required=True, help="file descriptor of a socket")
    parser.add_argument("--rate", type=float, default=30.0, help="snapshots per second")
    parser.add_argument("--home", help="seven joint positions at the start, rad, with commas")
    parser.add_argument("--enforce", action="store_true", help="the robot's limits abort motions")
    parser.add_argument(
        "--priority", type=int, default=0, help="real-time priority, as the robot has; 0: none"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if options.priority:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(options.priority))
    if options.home:
        mujoco_franka_sim.ARM_INITIAL_Q = np.array(
            [float(text) for text in options.home.split(",")]
        )
    sim = TaskSim(options.model, enable_hand=True)
    server = TaskServer(
        host=options.host,
        physics_sim=sim,
        enable_gripper=False,
        enforce_comm_constraints=options.enforce,
        enforce_motion_limits=options.enforce,
    )
    sim.server = server
    hand = FrankaGripperServer(host=options.host, backend=FrankaHandPhysics(sim))
    control = socket.socket(fileno=options.control)
    for target in (hand.run_server, lambda: serve_control(control, sim, server, options.rate)):
        threading.Thread(target=target, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it closes the socket
    signal.signal(signal.SIGTERM, lambda *_: sim.stop())
    server.start()
    server.stop()
    time.sleep(0.1)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
