"""Parameters of the learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from hil_common.params import NodeParams, ParameterError, param
from hil_rl.config import METHODS, BCConfig, SACConfig, TrainerConfig


@dataclass(frozen=True)
class LearnerParams(NodeParams):
    """Everything a user tunes. Periods counted in updates: 0 switches the thing off."""

    run_id: str = param(
        "", "name of the run and of its folder; empty: a new one, named by task and time"
    )
    run_dir: str = param("runs", "folder that holds the run folders")
    resume: bool = param(True, "continue the run if its folder exists; false: refuse to")
    durability: str = param(
        "process",
        "what an acknowledged step survives: a killed process, or a power loss (fsync; slower)",
        choices=("process", "fsync"),
    )
    log_split_mb: int = param(
        256, "MB after which the log goes on in another file", low=1, high=65536
    )

    task: str = param("peg_insert", "name of the task")
    task_file: str = param("", "YAML file of the task with overrides; used instead of task")

    method: str = param(
        "rlpd",
        "how is learned, see hil_rl.methods: rlpd is HIL-SERL; the others are baselines",
        choices=METHODS,
    )
    cloning: tuple[str, ...] = param(
        (), "settings of behaviour cloning (bc, hg_dagger) that differ, as name=value"
    )
    preset: str = param("hil_serl", "named settings of the agent, see hil_rl.config")
    agent: tuple[str, ...] = param(
        (), "settings of the agent that differ from the preset, as name=value"
    )
    seed: int = param(0, "of network initialisation and sampling", low=0, high=2**31 - 1)
    batch_size: int = param(
        256, "transitions per critic update, demonstrations included", low=2, high=16384
    )
    demo_ratio: float = param(
        0.5, "share of each batch from demonstrations and interventions", low=0.0, high=0.99
    )
    cta_ratio: int = param(
        2, "critic updates per update; the last one also moves the actor", low=1, high=100
    )
    utd: float = param(
        1.0, "largest number of updates per training step; 0: no bound", low=0.0, high=1000.0
    )
    throttle: bool = param(
        True,
        "actors in lockstep wait for a learner that is behind utd: results do not depend "
        "on the machine's speed",
    )
    throttle_steps: int = param(
        20, "training steps that actors may be ahead of the learner", low=1, high=100_000
    )
    training_starts: int = param(
        100, "training steps stored before the first update", low=1, high=10_000_000
    )
    min_demo_steps: int = param(
        0, "demonstration steps stored before the first update", low=0, high=10_000_000
    )
    initial_updates: int = param(
        0, "updates that are due as soon as training starts", low=0, high=10_000_000
    )
    capacity: int = param(
        200_000, "steps that the store holds; the oldest are overwritten", low=2, high=100_000_000
    )

    takeover_penalty: float = param(
        0.0,
        "added to the reward of the policy's own steps right before a takeover; 0: off",
        low=-1000.0,
        high=0.0,
    )
    takeover_horizon: int = param(
        0,
        "number of these steps; value_range has to leave room for it",
        low=0,
        high=1000,
    )
    successful_demos: bool = param(
        True, "train on demonstrations that ended with success, and on those that a person keeps"
    )

    publish_period_updates: int = param(50, "updates between two policies", low=0, high=1_000_000)
    checkpoint_period: int = param(
        2000,
        "updates between two checkpoints; one is also written at the end",
        low=0,
        high=100_000_000,
    )
    checkpoints_kept: int = param(5, "newest checkpoints that stay", low=1, high=10_000)
    metrics_period: int = param(
        100, "updates that one row of training metrics covers", low=0, high=1_000_000
    )
    tensorboard: bool = param(True, "write TensorBoard files into the run folder")

    policy_timeout_s: float = param(
        10.0,
        "time that an actor may take for one policy before it is sent again",
        low=0.1,
        high=600.0,
    )
    discovery_period_s: float = param(
        0.25, "time between two looks for new actors", low=0.02, high=10.0
    )
    max_insert_steps: int = param(
        2000, "steps that one call of insert_steps may carry", low=1, high=100_000
    )

    progress: str = param(
        "auto",
        "auto: a live panel on a terminal, else a line every progress_period_s",
        choices=("auto", "none"),
    )
    progress_period_s: float = param(10.0, "time between two progress lines", low=0.5, high=3600.0)
    torch_threads: int = param(
        1,
        "threads of one torch operation; more than 1 only where cores are idle",
        low=1,
        high=256,
    )
    training_nice: int = param(
        5,
        "added to the niceness of the training thread, so that control loops come first",
        low=0,
        high=19,
    )

    def agent_config(self) -> SACConfig:
        """Return the agent's configuration.

        Raises:
            ParameterError: unknown preset or setting, or an impossible value.
        """
        try:
            return SACConfig.preset(self.preset, **assignments(self.agent))
        except (ValueError, TypeError) as error:
            settings = f"preset {self.preset!r}, agent {list(self.agent)}"
            raise ParameterError(f"{settings}: {error}") from error

    def cloning_config(self) -> BCConfig:
        """Return the configuration of behaviour cloning.

        Raises:
            ParameterError: unknown setting, or an impossible value.
        """
        try:
            return BCConfig.from_dict(assignments(self.cloning))
        except (ValueError, TypeError) as error:
            raise ParameterError(f"cloning {list(self.cloning)}: {error}") from error

    def trainer_config(self) -> TrainerConfig:
        """Return the training loop's configuration.

        Raises:
            ParameterError: values that do not go together.
        """
        try:
            return TrainerConfig(
                batch_size=self.batch_size,
                demo_ratio=self.demo_ratio,
                cta_ratio=self.cta_ratio,
                training_starts=self.training_starts,
                max_updates_per_env_step=self.utd,
                min_updates_per_env_step=self.utd if self.throttle else 0.0,
                env_step_slack=self.throttle_steps,
                initial_updates=self.initial_updates,
            )
        except ValueError as error:
            raise ParameterError(str(error)) from error


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Parse name=value pairs; values are YAML.

    Raises:
        ValueError: a text is not such a pair.
    """
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{text!r} is not name=value")
        try:
            values[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"{text!r}: {error}") from error
    return values
