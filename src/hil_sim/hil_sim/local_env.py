"""A task in this process: simulated world, task and actions, without ROS.

The control step is the actor's: the action is turned into a target, the target is limited as the
bridge limits it, the world moves on by one control period. For baselines, tuning and tests of
learning; the product itself runs through the graph.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from hil_sim.world import World
from hil_tasks.actions import delta_to_target, target_to_delta
from hil_tasks.geometry import Pose, limit_orientation, step_towards
from hil_tasks.task import Reading, Task

Observation = dict[str, NDArray[Any]]

ARRIVED = (0.004, 0.02)  # m, rad: close enough to the start of an episode
RESET_PERIODS = 100


class LocalEnv(gymnasium.Env[Observation, NDArray[np.float32]]):
    """Gymnasium environment over a `World`.

    Args:
        task: one arm, no gripper command.
        seed: of the episodes, until `reset(seed=...)` gives another one.
        teleport: put the arm at the start of an episode instead of moving it there (faster).

    Attributes:
        reading: what was measured last, with the true and the estimated poses of objects.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, task: Task, seed: int = 0, teleport: bool = True) -> None:
        if task.spec.action_dim != 6:
            raise ValueError("LocalEnv drives one arm without a gripper command")
        self.task = task
        self.spec_ = task.spec
        self.world = World(task, seed)
        self.observation_space = task.spec.observation_space
        self.action_space = task.spec.action_space
        self._seed, self._episode = seed, -1
        self._teleport = teleport
        self._steps = 0
        limit = task.spec.orientation
        self._upright = Rotation.from_quat(limit.reference)
        self.reading: Reading = self.world.reading()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the next episode; with a seed, episode 0 of that seed.

        `options={"episode": n}` picks another one.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._episode = seed, -1
        self._episode = (options or {}).get("episode", self._episode + 1)
        start, world_seed = self.task.episode(self._seed, self._episode)
        if self._teleport:
            self.world.place_arm(start)
        else:
            self._move_to(start)
        self.world.set_compliance(self.task.spec.compliance["policy"])
        self.world.reset_world(world_seed)
        self.world.advance()
        self._steps = 0
        self.reading = self.world.reading()
        return self._observe(), {}

    def step(self, action: NDArray[Any]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One control period. `info` has the executed "action" and "success"."""
        spec, world = self.spec_, self.world
        scheme = (
            world.target,
            self.reading.pose,
            spec.action_scale,
            spec.action_frame,
            spec.reference,
            spec.leash.translation,
            spec.leash.rotation,
        )
        target = self._limited(delta_to_target(action, *scheme))
        executed = target_to_delta(target, *scheme)
        world.set_target(target)
        world.advance()
        self._steps += 1
        self.reading = world.reading()
        outcome = self.task.reward(self.reading)
        truncated = self._steps >= spec.max_episode_steps and not outcome.terminated
        info = {
            "action": executed.astype(np.float32),
            "success": outcome.success,
        }
        return self._observe(), outcome.reward, outcome.terminated, truncated, info

    def render(self) -> NDArray[np.uint8]:
        """Picture of the scene's last camera."""
        return self.world.render(self.world.cameras[-1])

    def close(self) -> None:
        """Release the renderer."""
        self.world.close()

    def _observe(self) -> Observation:
        observation: Observation = {**self.task.observe(self.reading)}
        for camera in self.spec_.cameras:
            observation[camera] = self.world.render(camera)
        return observation

    def _limited(self, target: Pose) -> Pose:
        box, limit = self.spec_.workspace, self.spec_.orientation
        return Pose(
            np.clip(target.position, box.low, box.high),
            limit_orientation(target.rotation, self._upright, limit.cone, limit.twist),
        )

    def _move_to(self, start: Pose) -> None:
        spec, world = self.spec_, self.world
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
