"""Parameters of RobotEnv and of the actor node."""

from __future__ import annotations

from dataclasses import dataclass

import hil_tasks
from hil_common.params import NodeParams, param


@dataclass(frozen=True)
class EnvParams(NodeParams):
    """What RobotEnv needs to know of the graph. Times in s of the steady clock."""

    task: str = param("reach", "name of the task")
    task_file: str = param("", "YAML file of the task with overrides; used instead of task")
    pace: str = param(
        "lockstep",
        "lockstep: the simulator advances one period per step, on request; realtime: the steady "
        "clock paces the steps",
        choices=("lockstep", "realtime"),
    )
    base_frame: str = param("base", "frame of poses and commands")
    tool_frame: str = param(
        "fr3_hand_tcp", "frame_id of operator commands that are given in the tool's axes"
    )
    operator: str = param(
        "optional",
        "none: locked out; optional: takes part once heard; required: steps hold without one",
        choices=("none", "optional", "required"),
    )
    operator_barrier_s: float = param(
        5.0,
        "lockstep: longest wait for the operator's answer to an observation; then the step holds",
        low=0.01,
        high=600.0,
    )
    operator_silence_s: float = param(
        0.2,
        "realtime: an operator who is silent for longer is lost, and the arm holds",
        low=0.02,
        high=60.0,
    )
    engage_threshold: float = param(
        0.0,
        "deflection that an engaged device needs to take over (0: the device decides)",
        low=0.0,
        high=1.0,
    )
    release_threshold: float = param(
        0.0, "the person has let go below it; at most engage_threshold", low=0.0, high=1.0
    )
    intervention_hold_s: float = param(
        0.0, "time that the person keeps the arm after letting go", low=0.0, high=60.0
    )
    max_state_age_s: float = param(
        0.15, "realtime: an older robot_state makes the step hold", low=0.01, high=10.0
    )
    max_frame_age_s: float = param(
        0.3, "realtime: an older camera frame makes the step hold", low=0.01, high=60.0
    )
    max_object_age_s: float = param(
        1.0, "realtime: older object poses make the step hold (0: any age)", low=0.0, high=3600.0
    )
    answer_timeout_s: float = param(
        10.0, "longest wait for an answer of bridge or simulator", low=0.1, high=600.0
    )
    reset_timeout_s: float = param(
        60.0, "longest time that bringing the arm to a start may take", low=1.0, high=3600.0
    )
    world_reset: str = param(
        "auto",
        "hil_sim/reset_world at the start of an episode; auto: in lockstep, and where it exists",
        choices=("auto", "always", "never"),
    )
    auto_recover: bool = param(
        False, "recover from a reflex without being asked (never on hardware without thought)"
    )
    late_tolerance_s: float = param(
        0.01,
        "realtime: a step that ends later than this after its period is late",
        low=0.0,
        high=1.0,
    )
    grasp_penalty: float = param(
        0.0,
        "of each executed gripper command that changes what the gripper does",
        low=-10.0,
        high=0.0,
    )


@dataclass(frozen=True)
class ActorParams(EnvParams):
    """Parameters of the actor node."""

    actor_id: str = param("actor", "name of this actor in records; unique in the run")
    run_id: str = param("", "run that the steps belong to; empty: the learner's")
    policy_file: str = param("", "policy (safetensors) to start with; empty: a random one")
    preset: str = param("hil_serl", "agent settings of the random policy, see hil_rl.config")
    seed: int = param(0, "of the random policy and of exploration", low=0, high=2**31 - 1)
    max_policy_bytes: int = param(64 * 2**20, "larger policies are rejected", low=1024, high=2**30)
    autostart_mode: str = param(
        "",
        "episodes to run from activation on, whenever none are asked for: demo, train, evaluate",
        choices=("", "demo", "train", "evaluate"),
    )
    autostart_episodes: int = param(0, "how many of them (0: without end)", low=0, high=2**31 - 1)
    autostart_seed: int = param(0, "of their randomisation", low=0, high=2**31 - 1)
    spool_dir: str = param(
        "runs/_spool",
        "folder of the spool, in which steps wait until the learner has them; on a local disk",
    )
    spool_steps: int = param(
        200_000, "steps that may wait in it; more pause the episode", low=1, high=10_000_000
    )
    spool_bytes: int = param(4 * 2**30, "the same in bytes", low=2**16, high=2**42)
    spool_keep_steps: int = param(
        2000,
        "acknowledged steps that are kept, for a learner that comes back with fewer",
        low=0,
        high=1_000_000,
    )
    spool_keep_bytes: int = param(64 * 2**20, "the same in bytes", low=0, high=2**36)
    durability: str = param(
        "process",
        "what a step in the spool survives: a killed process, or a power loss (fsync; slower)",
        choices=("process", "fsync"),
    )
    send_steps: int = param(200, "most steps in one insert_steps call", low=1, high=2000)
    send_bytes: int = param(4 * 2**20, "most bytes in one call", low=2**12, high=2**28)
    send_interval_s: float = param(
        0.05,
        "shortest time between two calls, so that a call carries what came meanwhile",
        low=0.0,
        high=10.0,
    )
    insert_timeout_s: float = param(
        5.0, "deadline of one insert_steps call; afterwards it is repeated", low=0.1, high=600.0
    )
    flush_timeout_s: float = param(
        3.0, "how long closing waits for the learner to take what is left", low=0.0, high=600.0
    )
    learner_silence_s: float = param(
        60.0,
        "a learner that is silent for longer does not throttle the actor any more",
        low=1.0,
        high=3600.0,
    )


def load_task(params: EnvParams) -> hil_tasks.Task:
    """Task that the parameters name.

    Raises:
        hil_tasks.UnknownTask, hil_tasks.OverrideError, FileNotFoundError: as the loader.
    """
    if params.task_file:
        return hil_tasks.load_file(params.task_file)
    return hil_tasks.load(params.task)
