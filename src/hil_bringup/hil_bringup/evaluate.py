"""`hil eval`: success of a checkpoint in simulation, deterministic, without graph and operator."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hil_bringup.demo_result import wilson

EVALUATION_SEED = 1_000_000
"""Added to the seed: evaluation episodes differ from those that were trained on."""


class EvaluationError(RuntimeError):
    """There is nothing to evaluate, or it does not fit; the text says why."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of a command line; ends the process with a text on help or a mistake."""
    parser = argparse.ArgumentParser(
        prog="hil eval",
        description="Evaluates a checkpoint in simulation: the policy's mean action, no operator, "
        "the same episodes for the same seed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "checkpoint",
        metavar="RUN_OR_CHECKPOINT",
        help="run folder (its newest checkpoint), folder of checkpoints, or a checkpoint's .json",
    )
    parser.add_argument("--episodes", type=int, default=50, help="number of episodes")
    parser.add_argument("--seed", type=int, default=0, help="of the episodes")
    parser.add_argument("--task-file", default="", help="YAML file of the task with overrides")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args(list(arguments))
    if options.episodes < 1:
        parser.error("--episodes must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate; return the exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        line = evaluate(
            Path(options.checkpoint), options.episodes, options.seed, options.task_file
        )
    except (EvaluationError, ValueError) as error:
        print(f"hil eval: {error}", file=sys.stderr)
        return 1
    print(json.dumps(line) if options.json else _text(line))
    return 0


def evaluate(path: Path, episodes: int, seed: int, task_file: str = "") -> dict[str, Any]:
    """Return the figures of a checkpoint: success with its interval, and what was evaluated.

    Raises:
        EvaluationError: no checkpoint there, or of another task.
        CheckpointError, StateError, PolicyError: it is damaged.
    """
    import torch

    import hil_tasks
    from hil_rl import checkpoint

    torch.set_num_threads(1)
    loaded = checkpoint.load(_find(path))
    task = hil_tasks.load_file(task_file) if task_file else hil_tasks.load(_task(loaded.meta))
    fingerprint = task.spec.fingerprint()
    if loaded.meta["fingerprint"] != fingerprint:
        raise EvaluationError(
            f"{loaded.path} was trained for specification {loaded.meta['fingerprint'][:16]}…, "
            f"task {task.spec.name!r} is {fingerprint[:16]}…: give --task-file"
        )
    policy = _policy(loaded.tensors, loaded.meta)
    env = importlib.import_module("hil_sim.local_env").LocalEnv(task, seed)
    first = EVALUATION_SEED + seed
    lengths = [_episode(env, policy, first + i) for i in range(episodes)]
    env.close()
    successes = sum(success for success, _ in lengths)
    low, high = wilson(successes, episodes)
    return {
        "task": task.spec.name,
        "success_rate": round(successes / episodes, 4),
        "ci95": [round(low, 4), round(high, 4)],
        "episodes": episodes,
        "mean_steps": round(sum(steps for _, steps in lengths) / episodes, 1),
        "updates": loaded.meta["trainer"]["updates"],
        "env_steps": loaded.meta["env_steps"],
        "sha256": loaded.sha256,
        "checkpoint": str(loaded.path),
        "seed": seed,
    }


def _find(path: Path) -> Path:
    from hil_rl import checkpoint

    if path.suffix == ".json":
        return path
    for folder in (path / "checkpoints", path):
        found = checkpoint.latest(folder)
        if found is not None:
            return found
    raise EvaluationError(f"{path}: no checkpoint there")


def _task(meta: Mapping[str, Any]) -> str:
    name = meta.get("task")
    if not isinstance(name, str) or not name:
        raise EvaluationError("the checkpoint does not name its task: give --task-file")
    return name


def _policy(arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    from hil_rl.methods import agent_of
    from hil_rl.policy import Policy, encode

    agent, fingerprint = agent_of(meta["trainer"]), meta["fingerprint"]
    agent.load_state(arrays)
    return Policy.decode(encode(agent, 1, fingerprint), agent.spaces, fingerprint)


def _episode(env: Any, policy: Any, seed: int) -> tuple[bool, int]:
    """Whether an episode succeeded, and its steps."""
    import numpy as np

    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    steps = 0
    while True:
        action = policy.act(observation, True, rng)
        observation, _, terminated, truncated, info = env.step(action)
        steps += 1
        if terminated or truncated:
            return bool(info["success"]), steps


def _text(line: Mapping[str, Any]) -> str:
    low, high = line["ci95"]
    return (
        f"{line['task']}: success rate {line['success_rate']:.0%} in {line['episodes']} episodes "
        f"(95 % interval {low:.0%} to {high:.0%}), {line['mean_steps']} steps on average\n"
        f"{line['checkpoint']} after {line['updates']} updates\nsha256 {line['sha256']}"
    )


if __name__ == "__main__":
    sys.exit(main())
