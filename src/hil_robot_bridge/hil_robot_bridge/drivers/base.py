"""What a driver offers to the bridge, and what it says of the robot's health."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from hil_robot_bridge.gate import Mode
from hil_robot_bridge.poses import RigidPose
from hil_robot_bridge.state import ArmState
from hil_tasks.spec import ComplianceSpec


class DriverError(Exception):
    """The driver could not do what it was asked; the text says what and why."""


class RobotMode(IntEnum):
    """What the robot can do now; values of hil_interfaces/RobotState."""

    DISCONNECTED = 0
    HOLD = 1
    MOVING = 2
    RESETTING = 3
    REFLEX = 4
    USER_STOPPED = 5
    GUIDING = 6
    IDLE = 7


@dataclass(frozen=True)
class Health:
    """Whether the robot can follow targets.

    Attributes:
        mode: HOLD if it can.
        text: what to do about it, for the person at the robot; "" if it can.
        errors: names of active robot errors.
        success_rate: share of control commands that reached the robot in time, 0..1.
        passing: it may pass by itself, and the controller keeps its settings meanwhile.
    """

    mode: RobotMode
    text: str = ""
    errors: tuple[str, ...] = ()
    success_rate: float = 1.0
    passing: bool = False


class Driver(Protocol):
    """One way to reach the controller of one arm.

    Everything runs on one thread and nothing blocks: what takes time is a coroutine (see
    `hil_robot_bridge.fibers`).

    Attributes:
        name: how refusals call it.
        modes: control modes that it has.
    """

    name: str
    modes: frozenset[Mode]

    def connect(
        self, on_state: Callable[[ArmState], None], on_gripper_failure: Callable[[str], None]
    ) -> None:
        """Open everything. `on_state` is called with every new complete state.

        Raises:
            DriverError: it cannot be opened at all. A robot that is not there yet is no error.
        """

    def read(self) -> None:
        """Take what has arrived meanwhile (real time; in lockstep states come by themselves)."""

    def watch(self) -> None:
        """Look who is there, open again what was lost. Called a few times a second."""

    def health(self) -> Health:
        """Whether the robot can follow. Cheap."""

    def command_pose(self, pose: RigidPose, stamp_ns: int) -> None:
        """Send a target; the stamp is that of the command."""

    def command_gripper(self, command: int) -> None:
        """Begin to close (-1) or open (1). Does not block; the newest command counts."""

    async def set_compliance(self, spec: ComplianceSpec) -> None:
        """Set gains and clips and read them back.

        Raises:
            DriverError: the controller does not have them now.
        """

    async def move_joints(
        self, q: Sequence[float], next_period: Callable[[], Awaitable[None]]
    ) -> None:
        """Move the arm to joint positions (rad), slowly and ungated; then hold the pose there.

        Args:
            q: one per joint.
            next_period: lets one control period pass.

        Raises:
            DriverError: it did not get there; says why.
        """

    async def recover(self, stage: Callable[[str], None]) -> None:
        """Clear the robot's error and activate the controller, which holds the measured pose.

        Raises:
            DriverError: names the step that failed.
        """

    def close(self) -> None:
        """Close what `connect` opened."""
