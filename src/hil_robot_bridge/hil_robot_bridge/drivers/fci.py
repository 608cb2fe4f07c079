"""Driver for a Franka arm through its control interface (FCI) alone: franky, no ros2_control.

The connection lives in a process of its own (`hil_robot_bridge.drivers.fci_process`), which holds
the arm when the bridge is silent and brings it to rest when the bridge is gone. The same driver
runs against franka-sim, which speaks the robot's protocol.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hil_robot_bridge import packets
from hil_robot_bridge.drivers import fci_process
from hil_robot_bridge.drivers.base import DriverError, Health, RobotMode
from hil_robot_bridge.drivers.fci_process import INSTALL, FciConfig
from hil_robot_bridge.drivers.franka_state import FrankaMode, FrankaStatus
from hil_robot_bridge.fibers import Promise, Timeouts
from hil_robot_bridge.gate import Mode
from hil_robot_bridge.packets import Packet, Packets
from hil_robot_bridge.poses import RigidPose, quaternion, vector3
from hil_robot_bridge.state import ArmState
from hil_tasks.spec import ComplianceSpec

_HEARTBEAT = 0.02  # s
_STATE_TIMEOUT = 0.2  # s
_START_LIMIT = 10.0  # s until the process speaks
_RESTART_DELAY = 1.0  # s
_END_LIMIT = 3.0  # s for the process to bring the arm to rest
_OPERATION_LIMIT = 10.0  # s
_JOINTS_LIMIT = 60.0  # s
_TOLERANCE = 1e-6


class Fci:
    """The driver; see `hil_robot_bridge.drivers.base.Driver`.

    Args:
        config: of the connection.
        timeouts: deadlines of what it waits for.
        log: takes warnings.
        clock: steady, s.
    """

    name = "fci"
    modes = frozenset({Mode.IMPEDANCE, Mode.HOLD})

    def __init__(
        self,
        config: FciConfig,
        timeouts: Timeouts,
        log: Callable[[str], Any] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._timeouts = timeouts
        self._log = log
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Packets | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[Promise[Packet], Callable[[str], None]]] = {}
        self._state_at = self._sent_at = -math.inf
        self._started_at = -math.inf
        self._absent = "the driver's process is starting"
        self._status: FrankaStatus | None = None
        self._ready = False
        self._joints_move = False

    # -- Driver ----------------------------------------------------------------------------------

    def connect(
        self, on_state: Callable[[ArmState], None], on_gripper_failure: Callable[[str], None]
    ) -> None:
        """Start the process; the robot does not have to be there yet."""
        if not self._config.host:
            raise DriverError("fci needs the robot's address: set the parameter fci_host")
        if importlib.util.find_spec("franky") is None:
            raise DriverError(f"the driver fci needs franky-control: {INSTALL}")
        self._on_state = on_state
        self._on_gripper_failure = on_gripper_failure
        self._start()

    def read(self) -> None:
        """Take what the process has sent, and tell it that the bridge lives."""
        end = self._end
        if end is None:
            return
        newest: Packet | None = None
        for packet in end.receive():
            if "id" in packet:
                self._answer(packet)
            elif "gripper_failure" in packet:
                self._on_gripper_failure(packet["gripper_failure"])
            else:
                newest = packet
        if newest is not None:
            self._take(newest)
        if self._clock() - self._sent_at > _HEARTBEAT:
            self._send({})
        if end.closed:
            self._died()

    def watch(self) -> None:
        """Start the process again if it has died."""
        if self._end is None and self._clock() - self._started_at > _RESTART_DELAY:
            self._start()

    def health(self) -> Health:
        """Whether the robot can follow, and what to do if not."""
        status = self._status
        errors = status.errors if status is not None else ()
        rate = status.success_rate if status is not None else 1.0
        if self._absent:
            return Health(RobotMode.DISCONNECTED, self._absent, errors, rate)
        if not self._waiting and self._clock() - self._state_at > _STATE_TIMEOUT:
            text = f"robot state is older than {_STATE_TIMEOUT:g} s"
            return Health(RobotMode.DISCONNECTED, text, errors, rate, passing=True)
        assert status is not None
        if self._ready or self._joints_move:
            return Health(RobotMode.HOLD, "", errors, rate)
        mode, text = status.judgement
        if not text:
            mode, text = RobotMode.IDLE, "the robot is busy with something else: call recover"
        return Health(mode, text, errors, rate)

    def command_pose(self, pose: RigidPose, stamp_ns: int) -> None:
        """Send a target."""
        self._send({"target": [*pose.position, *pose.quaternion]})

    def command_gripper(self, command: int) -> None:
        """Begin to close (-1) or open (1)."""
        self._send({"gripper": command})

    async def set_compliance(self, spec: ComplianceSpec) -> None:
        """Set gains and clips and compare what the law has then."""
        wanted: dict[str, list[float]] = {
            "stiffness": [*spec.translational_stiffness, *spec.rotational_stiffness],
            "damping": [*spec.translational_damping, *spec.rotational_damping],
            "clip": list(spec.error_clip),
            "posture": [
                spec.nullspace_stiffness,
                spec.nullspace_damping,
                spec.nullspace_max_tau,
            ],
        }
        answer = await self._ask({"do": "compliance", "impedance": wanted}, _OPERATION_LIMIT)
        for name, values in wanted.items():
            found = answer["values"][name]
            if any(abs(a - b) > _TOLERANCE for a, b in zip(found, values, strict=True)):
                raise DriverError(f"compliance read back wrong: {name} is {found}, not {values}")

    async def recover(self, stage: Callable[[str], None]) -> None:
        """Clear the error and let the law hold the measured pose."""
        await self._ask({"do": "recover"}, _OPERATION_LIMIT, stage)

    async def move_joints(
        self, q: Sequence[float], next_period: Callable[[], Awaitable[None]]
    ) -> None:
        """Joint motion of the robot's own planner."""
        self._joints_move = True
        try:
            await self._ask({"do": "joints", "q": list(q)}, _JOINTS_LIMIT)
        except BaseException:
            self._send({"cancel": True})
            raise
        finally:
            self._joints_move = False

    def close(self) -> None:
        """Close the connection: the process brings the arm to rest and ends."""
        process, end = self._process, self._end
        self._process = self._end = None
        if end is not None:
            end.close()
        if process is not None:
            try:
                process.wait(_END_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # -- the process -----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Process id; 0 without one."""
        return self._process.pid if self._process is not None else 0

    def _start(self) -> None:
        mine, theirs = packets.pair()
        command = [sys.executable, "-m", fci_process.__name__]
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno()), self._config.dump()], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self._end = Packets(mine)
        self._started_at = self._clock()
        self._absent = "the driver's process is starting"

    def _died(self) -> None:
        assert self._process is not None and self._end is not None
        self._end.close()
        self._end = None
        try:
            code: object = self._process.wait(_END_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if not self._absent or self._status is not None:
            self._absent = f"the driver's process has died (exit code {code}): it is started again"
        self._log(self._absent)
        self._status = None
        waiting, self._waiting = self._waiting, {}
        for promise, _ in waiting.values():
            promise.fail(DriverError(self._absent))

    def _send(self, packet: Packet) -> None:
        if self._end is not None:
            self._sent_at = self._clock()
            self._end.send(packet)

    def _take(self, packet: Packet) -> None:
        if "absent" in packet:
            self._absent = packet["absent"]
            return
        self._absent = ""
        self._state_at = self._clock()
        self._ready = packet["ready"]
        self._status = FrankaStatus(
            packet["state"]["stamp_ns"] * 1e-9,
            packet["success_rate"],
            FrankaMode(packet["mode"]),
            tuple(packet["errors"]),
        )
        state = packet["state"]
        pose = state["pose"]
        self._on_state(
            ArmState(
                state["stamp_ns"],
                RigidPose(vector3(pose[:3]), quaternion(pose[3:])),
                tuple(state["twist"]),
                tuple(state["wrench"]),
                tuple(state["q"]),
                tuple(state["dq"]),
                packet.get("width", 0.0),
            )
        )

    # -- operations ------------------------------------------------------------------------------

    async def _ask(
        self, packet: Packet, seconds: float, stage: Callable[[str], None] = lambda _: None
    ) -> Packet:
        number = next(self._numbers)
        promise: Promise[Packet] = Promise()
        if self._end is None or not self._end.send({"id": number, **packet}):
            raise DriverError(self._absent or "the driver's process does not take requests")
        self._waiting[number] = (promise, stage)
        try:
            answer = await self._timeouts.wait(promise, seconds, f"{packet['do']} of driver fci")
        finally:
            self._waiting.pop(number, None)
            self._state_at = self._clock()
        if answer["error"]:
            raise DriverError(answer["error"])
        return answer

    def _answer(self, packet: Packet) -> None:
        promise, stage = self._waiting.get(packet["id"], (None, None))
        if promise is None or stage is None:
            return
        if "stage" in packet:
            stage(packet["stage"])
        else:
            promise.keep(packet)
