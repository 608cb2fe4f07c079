"""A task in this process: simulated world, task and actions, without ROS.

The control step is the actor's: the action is turned into a target, the target is limited as the
bridge limits it, the world moves on by one control period. Two things differ from the graph: the
arm is put at the start of an episode instead of being moved there (unless `teleport` is off), and
the bridge's speed limit is left out, which these tasks' actions cannot exceed. For baselines,
evaluation, long experiments and tests of learning; the product itself runs through the graph.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hil_sim.fr3 import GRIPPER_WIDTH
from hil_sim.world import World
from hil_tasks.actions import delta_to_target, target_to_delta
from hil_tasks.geometry import Pose, limit_orientation, step_towards
from hil_tasks.task import Outcome, Reading, Task

Observation = dict[str, NDArray[Any]]
Action = NDArray[np.float32]

ARRIVED = (0.004, 0.02)  # m, rad: close enough to the start of an episode
RESET_PERIODS = 100
GRIPPER_DWELL = 0.5  # s between two gripper commands, as the bridge's default
GRIPPER_SPEED = 0.1  # m/s, as the bridge's default


class LocalEnv(gymnasium.Env[Observation, Action]):
    """Gymnasium environment over a `World`.

    Args:
        task: of one arm, with or without a gripper command.
        seed: of the episodes, until `reset(seed=...)` gives another one.
        teleport: put the arm at the start of an episode instead of moving it there (faster).

    Attributes:
        reading: what was measured last, with the true and the estimated poses of objects.
        observation: of that reading.
        gripper: gripper command in force: -1, 0, 1.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, task: Task, seed: int = 0, teleport: bool = True) -> None:
        if len(task.spec.arms) != 1:
            raise ValueError(f"LocalEnv drives one arm; {task.spec.name} has several")
        super().reset(seed=seed)
        self.task = task
        self.world = World(task, seed)
        self.observation_space = task.spec.observation_space
        self.action_space = task.spec.action_space
        self.gripper = 0
        self._gripper_at = -np.inf
        self._teleport = teleport
        self._steps = 0
        self._upright = Rotation.from_quat(task.spec.orientation.reference)
        self.reading: Reading = self.world.reading()
        self.observation: Observation = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the next episode; with a seed the same one as `hil_actor.env.RobotEnv`."""
        super().reset(seed=seed)
        start = self.task.sample_start(self.np_random)
        world_seed = int(self.np_random.integers(2**63))
        if self._teleport:
            self.world.place_arm(start)
        else:
            self._move_to(start)
        self.world.set_compliance(self.task.spec.compliance["policy"])
        self.world.reset_world(world_seed)
        self.world.advance()
        self._steps = 0
        self.gripper, self._gripper_at = self.task.spec.reset.gripper, -np.inf
        self._look()
        return self.observation, {}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One control period. `info` has the executed "action" and "success"."""
        spec = self.task.spec
        scheme = (
            self.world.target,
            self.reading.pose,
            spec.action_scale,
            spec.action_frame,
            spec.reference,
            spec.leash.translation,
            spec.leash.rotation,
        )
        asked = round(float(action[6])) if spec.grippers[0] else 0
        target, gripper = self.carry_out(delta_to_target(action[:6], *scheme), asked)
        executed = np.append(target_to_delta(target, *scheme), [gripper] * spec.grippers[0])
        outcome = self.task.reward(self.reading)
        info = {"action": executed.astype(np.float32), "success": outcome.success}
        truncated = self.truncated(outcome)
        return self.observation, outcome.reward, outcome.terminated, truncated, info

    def carry_out(self, target: Pose, gripper: int = 0) -> tuple[Pose, int]:
        """Do what the bridge does with a command, and let one control period pass.

        Args:
            target: pose that is asked for.
            gripper: -1 close, 0 stay, 1 open.

        Returns:
            The target after the bridge's limits, and the gripper command that was passed on: 0 if
            it is in force already, or came before the dwell time of the last one was over.
        """
        target = self._limited(target)
        self.world.set_target(target)
        now = self._steps * self.task.spec.period
        if gripper in (0, self.gripper) or now - self._gripper_at < GRIPPER_DWELL:
            gripper = 0
        else:
            self.gripper, self._gripper_at = gripper, now
            self.world.gripper.move(GRIPPER_WIDTH if gripper > 0 else 0.0, GRIPPER_SPEED)
        self.world.advance()
        self._steps += 1
        self._look()
        return target, gripper

    def truncated(self, outcome: Outcome) -> bool:
        """Whether the episode ends here because its time is over."""
        return self._steps >= self.task.spec.max_episode_steps and not outcome.terminated

    def render(self) -> NDArray[np.uint8]:
        """Picture of the scene's last camera."""
        return self.world.render(self.world.cameras[-1])

    def close(self) -> None:
        """Release the renderer."""
        self.world.close()

    def _look(self) -> None:
        self.reading = self.world.reading()
        self.observation = {**self.task.observe(self.reading)}
        for camera in self.task.spec.cameras:
            self.observation[camera] = self.world.render(camera)

    def _limited(self, target: Pose) -> Pose:
        box, limit = self.task.spec.workspace, self.task.spec.orientation
        return Pose(
            np.clip(target.position, box.low, box.high),
            limit_orientation(target.rotation, self._upright, limit.cone, limit.twist),
        )

    def _move_to(self, start: Pose) -> None:
        spec, world = self.task.spec, self.world
        reset = spec.reset
        world.set_compliance(spec.compliance["reset"])
        up = np.array([0.0, 0.0, reset.lift])
        lifted = Pose(world.pose.position + up, world.pose.rotation)
        limits = (reset.linear_speed * spec.period, reset.angular_speed * spec.period)
        for goal in (self._limited(lifted), start):
            for _ in range(RESET_PERIODS):
                world.set_target(step_towards(world.target, goal, *limits))
                world.advance()
                metres, radians = world.pose.distance(goal)
                if metres < ARRIVED[0] and radians < ARRIVED[1]:
                    break
