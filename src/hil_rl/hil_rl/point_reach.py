"""A sparse 2-D task that costs microseconds: move a point onto a goal. For tests and examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .spaces import Array, Spaces
from .store import FLAG_DEMO, EpisodeStore, Step

SPACES = Spaces({"point": ((2,), "float32"), "goal": ((2,), "float32")}, action_dim=2)
GRASP_SPACES = Spaces({**SPACES.observation, "closed": ((), "float32")}, 2, 1)

Observation = dict[str, Array]


@dataclass
class PointReach:
    """Point and goal in the unit square, steps of at most 0.1, reward 1 within 0.06 of the goal.

    Attributes:
        seed: of points, goals and the expert's noise.
        grasp: the reward needs a closed gripper, too.
        fixed: the goal is always at (0.7, 0.3).
        limit: steps after which an episode is truncated.
    """

    seed: int
    grasp: bool = False
    fixed: bool = False
    limit: int = 25
    point: Array = field(init=False, repr=False)
    goal: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.reset()

    @property
    def spaces(self) -> Spaces:
        """Observation and action layout."""
        return GRASP_SPACES if self.grasp else SPACES

    def reset(self) -> Observation:
        """Start an episode at a random point with a random goal."""
        self.point, self.goal = self.rng.uniform(0.0, 1.0, (2, 2))
        if self.fixed:
            self.goal = np.array([0.7, 0.3])
        self.closed, self.count = 0.0, 0
        return self.observe()

    def observe(self) -> Observation:
        """Point and goal (and gripper)."""
        seen: Observation = {"point": self.point.copy(), "goal": self.goal.copy()}
        return seen | ({"closed": np.array(self.closed)} if self.grasp else {})

    def near(self, point: Array) -> bool:
        """Whether a point counts as being at the goal."""
        return bool(np.linalg.norm(point - self.goal) < 0.06)

    def step(self, action: Array) -> tuple[Observation, float, bool, bool]:
        """Move; gives observation, reward, terminated, truncated."""
        self.point = np.clip(self.point + 0.1 * action[:2], 0.0, 1.0)
        self.count += 1
        if self.grasp and action[2] != 0.0:
            self.closed = float(action[2] < 0.0)
        done = self.near(self.point) and (not self.grasp or self.closed == 1.0)
        return self.observe(), float(done), done, not done and self.count >= self.limit

    def expert(self, noise: float = 0.3) -> Array:
        """A noisy action that leads to success."""
        move = (self.goal - self.point) / 0.1 + noise * self.rng.normal(size=2)
        action = np.clip(move, -1.0, 1.0)
        if self.grasp:
            arrives = self.near(self.point + 0.1 * action)
            action = np.append(action, -1.0 if arrives else self.closed)
        return action.astype(np.float32)


def run_episode(
    env: PointReach,
    act: Callable[[Observation], Array],
    store: EpisodeStore | None = None,
    stream: str = "point/a",
    episode: int = 0,
    seq: int = 1,
    flags: int = 0,
) -> tuple[bool, int]:
    """Run one episode and store its steps.

    Returns:
        Success, and the next step's `seq`.
    """
    observation, number, ended, success = env.reset(), 0, False, False
    while not ended:
        action = act(observation)
        following, reward, success, truncated = env.step(action)
        ended = success or truncated
        if store is not None:
            toggled = env.grasp and action[2] != 0.0
            store.add(
                Step(
                    stream=stream,
                    seq=seq,
                    episode=episode,
                    step=number,
                    policy_version=0,
                    observation=observation,
                    action=action,
                    reward=reward,
                    terminated=success,
                    truncated=truncated,
                    success=success,
                    grasp_penalty=np.full(env.spaces.grippers, -0.02 * toggled, np.float32),
                    flags=flags,
                    final_observation=following if ended else None,
                )
            )
        observation, number, seq = following, number + 1, seq + 1
    return success, seq


def add_demos(store: EpisodeStore, env: PointReach, episodes: int) -> None:
    """Store demonstrations of the expert."""
    seq = 1
    for episode in range(episodes):
        _, seq = run_episode(
            env, lambda _: env.expert(), store, "demo/a", episode, seq, flags=FLAG_DEMO
        )
