"""What the robot's software stack does around the arm: modes, errors, hardware, controllers.

Behaves like an FR3 under franka_ros2 (v3.4) and ros2_control: an error stops the arm, the hardware
component becomes unconfigured and the commanding controllers are deactivated. Recovery takes three
steps in this order: error recovery, hardware component to active, controller to active. No ROS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hil_sim.world import World

HARDWARE = "FrankaHardwareInterface"
IMPEDANCE = "cartesian_impedance_controller"
JOINT_TRAJECTORY = "joint_trajectory_controller"
BROADCASTERS = ("joint_state_broadcaster", "franka_robot_state_broadcaster", "pose_broadcaster")

MODE_IDLE, MODE_MOVE, MODE_GUIDING, MODE_REFLEX, MODE_USER_STOPPED = 1, 2, 3, 4, 5
BEST_EFFORT, STRICT = 1, 2

# Commanding controllers that exist beside the impedance controller, as a lab has them loaded.
OTHER_CONTROLLERS = (
    JOINT_TRAJECTORY,
    "gravity_compensation",
    "joint_impedance_controller",
)


@dataclass(frozen=True)
class Reply:
    """Answer to a request: whether it was carried out, and why not."""

    ok: bool
    reason: str = ""


class Robot:
    """Mode, errors, hardware component and controllers of one arm.

    Args:
        world: the arm that is braked and released.
        changed: called after every change of what is visible from outside.
    """

    def __init__(self, world: World, changed: Callable[[], None] = lambda: None) -> None:
        self._world = world
        self._changed = changed
        self.errors: tuple[str, ...] = ()
        self.last_errors: tuple[str, ...] = ()
        self.hardware = "active"
        self.controllers = dict.fromkeys(BROADCASTERS, "active")
        self.controllers[IMPEDANCE] = "active"
        self.controllers |= dict.fromkeys(OTHER_CONTROLLERS, "inactive")
        self._hand_mode = 0  # user stop or guiding: set by a person at the arm
        self.version = 0  # rises with every change

    @property
    def mode(self) -> int:
        """Robot mode, a constant of franka_msgs/FrankaRobotState."""
        if self._hand_mode:
            return self._hand_mode
        if self.errors:
            return MODE_REFLEX
        return MODE_IDLE if self.idle else MODE_MOVE

    @property
    def idle(self) -> bool:
        """Whether no controller claims a command interface."""
        return all(self.controllers[name] != "active" for name in (IMPEDANCE, *OTHER_CONTROLLERS))

    @property
    def controlled(self) -> bool:
        """Whether the impedance controller drives the arm."""
        return self.controllers[IMPEDANCE] == "active"

    def poll(self) -> None:
        """Take over a fault that the world raised since the last call."""
        if self._world.fault and not self.errors:
            self._abort((self._world.fault,))

    def fail(self, error: str) -> None:
        """Robot error by name (a field of franka_msgs/Errors): for tests of fault handling."""
        self._world.raise_fault(error)
        self._abort((error,))

    def stop_by_hand(self, mode: int) -> None:
        """A person presses the enabling device (MODE_USER_STOPPED) or guides (MODE_GUIDING)."""
        self._hand_mode = mode
        self._world.brake()
        self._abort(())

    def release_by_hand(self) -> None:
        """The person lets go; the arm stays idle until it is activated again."""
        self._hand_mode = 0
        self._note()

    def recover(self) -> Reply:
        """Step 1: clear the errors. The arm stays idle."""
        if self._hand_mode:
            return Reply(False, "a person holds the robot: user stop or guiding is active")
        self.errors = ()
        self._world.fault = ""
        self._note()
        return Reply(True)

    def set_hardware(self, name: str, state: str) -> Reply:
        """Step 2: bring the hardware component to a lifecycle state."""
        if name != HARDWARE:
            return Reply(False, f"no hardware component {name!r}; there is {HARDWARE}")
        if state not in ("active", "inactive", "unconfigured"):
            return Reply(False, f"hardware component cannot become {state!r}")
        if state == "active" and self._hand_mode:
            return Reply(False, "a person holds the robot: user stop or guiding is active")
        if state == "active" and self.errors:
            return Reply(False, f"robot has errors: {', '.join(self.errors)}; recover first")
        if state != "active":
            self._stop_controllers()
        self.hardware = state
        self._note()
        return Reply(True)

    def switch(self, activate: Sequence[str], deactivate: Sequence[str], strictness: int) -> Reply:
        """Step 3: switch controllers. With STRICT nothing happens unless everything can."""
        strict = strictness != BEST_EFFORT
        start, problems = [], []
        for name in activate:
            problem = self._activation_problem(name, deactivate)
            if problem:
                problems.append(problem)
            elif self.controllers[name] != "active":
                start.append(name)
        problems += [
            f"no controller {name!r}" for name in deactivate if name not in self.controllers
        ]
        if problems and strict:
            return Reply(False, "; ".join(problems))
        for name in deactivate:
            if name in self.controllers:
                self._set_controller(name, "inactive")
        for name in start:
            self._set_controller(name, "active")
        self._note()
        return Reply(True, "; ".join(problems))

    def _activation_problem(self, name: str, deactivate: Sequence[str]) -> str:
        if name not in self.controllers:
            return f"no controller {name!r}"
        if self.hardware != "active":
            return f"{name}: hardware component {HARDWARE} is {self.hardware}"
        if name in BROADCASTERS:
            return ""
        holders = [
            other
            for other in (IMPEDANCE, *OTHER_CONTROLLERS)
            if other != name and other not in deactivate and self.controllers[other] == "active"
        ]
        return f"{name}: command interfaces are claimed by {holders[0]}" if holders else ""

    def _set_controller(self, name: str, state: str) -> None:
        before, self.controllers[name] = self.controllers[name], state
        if name not in (IMPEDANCE, JOINT_TRAJECTORY) or before == state:
            return
        if state != "active":
            self._world.brake()
        elif name == IMPEDANCE:
            self._world.release()
        else:
            self._world.release_to_joints()

    def _stop_controllers(self) -> None:
        for name in (IMPEDANCE, *OTHER_CONTROLLERS):
            self._set_controller(name, "inactive")

    def _abort(self, errors: tuple[str, ...]) -> None:
        self.errors = errors
        if errors:
            self.last_errors = errors
        self._stop_controllers()
        self.hardware = "unconfigured"
        self._note()

    def _note(self) -> None:
        self.version += 1
        self._changed()
