"""What the demo's task asks for, without reinforcement learning, in this process (no ROS).

A randomly initialised policy, the scripted expert alone, and behaviour cloning of as many of its
demonstrations as `./hil demo` records: if one of the first two is wrong the task is trivial or
impossible, if cloning is enough nothing is left to learn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from _figures import Report
from _local_env import LocalEnv
from numpy.typing import NDArray

import hil_tasks
from hil_bringup.graph import config_folder
from hil_rl import bc
from hil_rl.config import BCConfig, SACConfig
from hil_rl.policy import Policy
from hil_rl.spaces import Spaces
from hil_rl.store import FLAG_DEMO, EpisodeStore, Step
from hil_tasks.task import Task
from hil_teleop.expert import ExpertConfig, ScriptedExpert

Act = Callable[[Mapping[str, NDArray[Any]]], NDArray[Any]]
EVALUATION_SEED = 1_000_000


class Baselines:
    """Episodes of one task by different drivers."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self.env = LocalEnv(task, seed)
        shapes = {name: (s.shape, s.dtype) for name, s in task.spec.observation.items()}
        self.spaces = Spaces(shapes, 6)
        settings = ExpertConfig.load(config_folder() / "teleop" / "scripted_expert.yaml")
        self.expert = ScriptedExpert(task, settings, seed)
        self._seq = 0

    def episode(self, seed: int, act: Act) -> tuple[bool, list[Step]]:
        """One episode; whether it succeeded, and its steps."""
        observation, _ = self.env.reset(seed=seed)
        steps: list[Step] = []
        while True:
            after, reward, terminated, truncated, info = self.env.step(act(observation))
            last = terminated or truncated
            steps.append(
                Step(
                    "baselines/0", self._seq + len(steps) + 1, seed, len(steps), 0, observation,
                    info["action"], None, True, reward, terminated, truncated, info["success"],
                    flags=FLAG_DEMO, final_observation=after if last else None,
                )
            )  # fmt: skip
            observation = after
            if last:
                return bool(info["success"]), steps

    def success(self, episodes: int, act: Act) -> float:
        """Share of successful evaluation episodes."""
        first = EVALUATION_SEED + self.seed
        return float(np.mean([self.episode(first + i, act)[0] for i in range(episodes)]))

    def expert_success(self, episodes: int) -> float:
        """Share of episodes that the expert solves alone."""
        first = EVALUATION_SEED + self.seed
        return float(np.mean([self.demonstration(first + i)[0] for i in range(episodes)]))

    def demonstration(self, seed: int) -> tuple[bool, list[Step]]:
        """One episode driven by the expert."""
        self.expert.begin(seed, demo=True)
        return self.episode(
            seed, lambda _: np.array(self.expert.act(self.env.reading).twist, np.float32)
        )

    def clone(self, demos: int, config: BCConfig) -> Policy:
        """Policy cloned from the first successful demonstrations."""
        store, found, seed = EpisodeStore(self.spaces, 100_000), 0, self.seed
        while found < demos:
            good, steps = self.demonstration(seed)
            seed += 1
            if good:
                found, self._seq = found + 1, self._seq + len(steps)
                for step in steps:
                    store.add(step)
        return bc.train(store, config, self.seed, 1, self.task.spec.fingerprint())


def main() -> None:
    """Run and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--task", default="peg_insert")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--demos", type=int, default=3, help="as many as ./hil demo records")
    parser.add_argument("--bc-steps", type=int, default=3_000)
    parser.add_argument("--episodes", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = hil_tasks.load(options.task)
    baselines, report = Baselines(task, options.seed), Report(options.seed, options.json)
    rng = np.random.default_rng(options.seed)
    random = Policy.random(
        baselines.spaces, SACConfig.preset("sparse"), options.seed, task.spec.fingerprint()
    )
    n = options.episodes
    value = baselines.success(n, lambda o: random.act(o, False, rng))
    report.add("baselines.random_success", value, "1", n)
    report.add("baselines.expert_success", baselines.expert_success(n), "1", n)
    # The same input normalisation as the demo's preset; widths of its policy.
    config = BCConfig(steps=options.bc_steps, normalize=True, hidden=(256, 256))
    cloned = baselines.clone(options.demos, config)
    value = baselines.success(n, lambda o: cloned.act(o, True, rng))
    report.add("baselines.bc_success", value, "1", n)


if __name__ == "__main__":
    main()
