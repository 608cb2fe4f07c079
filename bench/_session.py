"""A whole training session in this process, without ROS: world, person, store and learner.

One thread, seeded, and resumable between episodes to the same bits. The order of things is that
of the graph in lockstep: demonstrations, then training steps with the updates that the ratio
allows after each of them, a new policy every so many updates, evaluation with the operator locked
out. The graph's actor may be up to `throttle_steps` ahead of its learner; here it never is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _local_env import LocalStep, OperatedEnv
from numpy.typing import NDArray

import hil_tasks
from hil_actor.control_step import Flag
from hil_actor.intervention import ArmInput
from hil_bringup.graph import config_folder
from hil_rl import checkpoint
from hil_rl.config import BCConfig, SACConfig, TrainerConfig
from hil_rl.methods import make_trainer
from hil_rl.policy import Policy, encode
from hil_rl.spaces import Spaces
from hil_rl.store import EpisodeStore, Step, TakeoverPenalty
from hil_teleop.expert import ExpertConfig, ScriptedExpert

EVALUATION_SEED = 1_000_000
"""Added to the seed: evaluation episodes differ from those that were trained on."""
STREAM = "local/0"
_FIELDS = (
    "seq", "episode", "step", "policy_version", "action", "intervened", "reward", "terminated",
    "truncated", "success", "grasp_penalty", "flags",
)  # fmt: skip


@dataclass(frozen=True)
class SessionConfig:
    """What is run. The defaults are those of `./hil demo` (and of config/graphs/demo.yaml).

    Attributes:
        task: name of the task.
        task_overrides: what differs from its defaults.
        method: see `hil_rl.methods`.
        preset: of the SAC agent.
        agent: what differs from the preset.
        cloning: settings of behaviour cloning.
        seed: of everything.
        demos: successful demonstrations first.
        demo_steps: that many steps of demonstrations instead, the last one cut short; 0: `demos`.
        interventions: the operator takes part in training.
        operator_steps: steps that the operator drives, demonstrations included; afterwards the
            policy is on its own. 0: as many as the operator likes.
        steps: training steps.
        utd: updates per training step.
        training_starts: training steps before the first update.
        publish_period: updates between two policies.
        takeover_penalty, takeover_horizon: see `hil_rl.store.TakeoverPenalty`; 0: off.
        grasp_penalty: of gripper commands that change what the gripper does.
        eval_period: training steps between two evaluations.
        eval_episodes: of those.
        final_episodes: of the last evaluation.
    """

    task: str = "peg_insert"
    task_overrides: Mapping[str, Any] = field(default_factory=dict)
    method: str = "rlpd"
    preset: str = "sparse"
    agent: Mapping[str, Any] = field(default_factory=dict)
    cloning: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    demos: int = 3
    demo_steps: int = 0
    interventions: bool = True
    operator_steps: int = 0
    steps: int = 12_000
    utd: float = 2.0
    training_starts: int = 100
    publish_period: int = 50
    takeover_penalty: float = 0.0
    takeover_horizon: int = 0
    grasp_penalty: float = 0.0
    eval_period: int = 2_000
    eval_episodes: int = 20
    final_episodes: int = 50


@dataclass(frozen=True)
class Evaluated:
    """Deterministic episodes without the operator.

    Attributes:
        env_steps, operator_steps: training steps, and steps that the operator drove, until then.
        episodes, successes: counts.
        time: mean time of the successful episodes, s; NaN without one.
    """

    env_steps: int
    operator_steps: int
    episodes: int
    successes: int
    time: float


@dataclass
class Progress:
    """Where a session stands; plain data.

    Attributes:
        env_steps: training steps.
        demo_steps: steps of demonstrations.
        demo_successes: demonstrations that succeeded.
        intervened_steps: training steps that the operator drove.
        episode: number of the next episode.
        version: of the policy that acts.
        published: updates at which it was made.
        training: per training episode: steps, intervened steps, takeovers, success.
        evaluations: in order.
        cpu_s: process time that was spent.
        done: nothing is left to do.
    """

    env_steps: int = 0
    demo_steps: int = 0
    demo_successes: int = 0
    intervened_steps: int = 0
    episode: int = 0
    version: int = 0
    published: int = 0
    training: list[list[int]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    cpu_s: float = 0.0
    done: bool = False

    @property
    def operator_steps(self) -> int:
        """Steps that the operator drove."""
        return self.demo_steps + self.intervened_steps


class Session:
    """One run of a method on a task with one seed.

    Args:
        config: what is run.
        folder: for checkpoints; a session that was broken off continues from there. None: none.
        checkpoint_s: seconds between two checkpoints.

    Raises:
        ValueError: unknown task, method, preset or setting; or a checkpoint of another session.
    """

    def __init__(
        self, config: SessionConfig, folder: Path | None = None, checkpoint_s: float = 120.0
    ) -> None:
        torch.set_num_threads(1)
        self.config = config
        self.progress = Progress()
        self._folder, self._checkpoint_s = folder, checkpoint_s
        self.task = hil_tasks.load(config.task, config.task_overrides)
        self.env = OperatedEnv(self.task, config.seed, grasp_penalty=config.grasp_penalty)
        settings = ExpertConfig.load(config_folder() / "teleop" / "scripted_expert.yaml")
        self.expert = ScriptedExpert(self.task, settings, config.seed)
        spec = self.task.spec
        self.spaces = Spaces(
            {name: (s.shape, s.dtype) for name, s in spec.observation.items()},
            spec.action_dim - sum(spec.grippers),
            sum(spec.grippers),
        )
        penalty = TakeoverPenalty(config.takeover_penalty, config.takeover_horizon)
        self.store = EpisodeStore(
            self.spaces, 2 * (config.steps + 5_000), takeover_penalty=penalty
        )
        sac = SACConfig.preset(config.preset, **config.agent)
        trainer = TrainerConfig(
            training_starts=config.training_starts, max_updates_per_env_step=config.utd
        )
        self.trainer = make_trainer(
            config.method, self.store, sac, BCConfig(**config.cloning), trainer, config.seed
        )
        self._fingerprint = spec.fingerprint()
        self.policy = Policy.random(self.spaces, sac, config.seed, self._fingerprint)
        self._steps: list[Step] = []
        self._spent = 0.0
        if folder is not None and (path := checkpoint.latest(folder)) is not None:
            self._restore(path)

    def run(self, stopping: Callable[[], bool] = lambda: False) -> Progress:
        """Run until all is done, or until `stopping()`; it is asked between episodes."""
        self._begun = self._saved = time.process_time()
        while not self.progress.done and not stopping():
            self._next()
            if time.process_time() - self._saved > self._checkpoint_s:
                self.save()
        self.save()
        return self.progress

    def save(self) -> None:
        """Write a checkpoint."""
        now = time.process_time()
        self.progress.cpu_s += now - self._begun
        self._begun = self._saved = now
        if self._folder is None:
            return
        arrays, trainer = self.trainer.state()
        arrays = {f"trainer.{n}": value for n, value in arrays.items()}
        arrays["policy"] = np.frombuffer(self.policy.data, np.uint8)
        arrays |= _columns(self._steps, self.spaces)
        meta = {"session": _plain(self.config), "progress": asdict(self.progress)}
        meta["trainer"] = trainer
        done = self.progress.env_steps + self.progress.demo_steps
        checkpoint.save(self._folder, done, arrays, meta, keep=1)

    # ---------------------------------------------------------------------------- phases

    def _next(self) -> None:
        """One episode, or an evaluation."""
        config, progress = self.config, self.progress
        if self._demos_left():
            self._demonstrate()
            if not self._demos_left():
                self._learn()
        elif progress.env_steps < config.steps:
            self._train()
            due = progress.env_steps // config.eval_period > len(progress.evaluations)
            if due and progress.env_steps < config.steps:
                self._evaluate(config.eval_episodes)
        else:
            self._learn()
            self._publish()
            self._evaluate(config.final_episodes)
            progress.done = True

    def _demos_left(self) -> bool:
        config, progress = self.config, self.progress
        if config.demo_steps:
            return progress.demo_steps < config.demo_steps
        return progress.demo_successes < config.demos

    def _demonstrate(self) -> None:
        config, progress = self.config, self.progress
        index = progress.episode
        self._begin(index, config.seed, demo=True)
        while True:
            done = self.env.control(None, self._operator())
            progress.demo_steps += 1
            last = 0 < config.demo_steps <= progress.demo_steps
            if self._record(done, 0, Flag.DEMO, last):
                break
        progress.demo_successes += done.success

    def _train(self) -> None:
        config, progress = self.config, self.progress
        # Demonstrations and training count their episodes on their own, as in `./hil demo`.
        index = len(progress.training)
        self._begin(index, config.seed, demo=False)
        rng = np.random.default_rng([config.seed, config.seed, index])
        steps = intervened = takeovers = 0
        while True:
            given = self._operator() if self._operator_allowed() else None
            proposal = self.policy.act(self.env.observation, False, rng)
            done = self.env.control(proposal, given)
            progress.env_steps += 1
            progress.intervened_steps += done.intervened
            steps += 1
            intervened += done.intervened
            takeovers += done.takeover
            last = progress.env_steps >= config.steps
            ended = self._record(done, self.policy.version, Flag(0), last)
            self._learn()
            if ended:
                break
        progress.training.append([steps, intervened, takeovers, int(done.success)])

    def _evaluate(self, episodes: int) -> None:
        """Deterministic episodes; nothing of them is kept."""
        lengths = self._drive(episodes, lambda: self._policy_acts(True), demo=False)
        seconds = float(np.mean(lengths)) * self.task.spec.period if lengths else float("nan")
        progress = self.progress
        point = Evaluated(
            progress.env_steps, progress.operator_steps, episodes, len(lengths), seconds
        )
        progress.evaluations.append(asdict(point))

    def success_of_policy(self, episodes: int, deterministic: bool = True) -> float:
        """Share of evaluation episodes that the present policy solves alone."""
        lengths = self._drive(episodes, lambda: self._policy_acts(deterministic), demo=False)
        return len(lengths) / episodes

    def success_of_expert(self, episodes: int) -> float:
        """Share of evaluation episodes that the expert solves alone."""
        drive = self._drive(episodes, lambda: self.env.control(None, self._operator()), demo=True)
        return len(drive) / episodes

    def _policy_acts(self, deterministic: bool) -> LocalStep:
        action = self.policy.act(self.env.observation, deterministic, self._eval_rng)
        return self.env.control(action)

    def _drive(self, episodes: int, act: Callable[[], LocalStep], demo: bool) -> list[int]:
        """Steps of each successful one of the evaluation episodes."""
        seed, lengths = self.config.seed + EVALUATION_SEED, []
        self._eval_rng = np.random.default_rng(seed)
        self.env.demonstrating = demo
        for index in range(episodes):
            self.env.reset(seed=episode_seed(seed, index))
            self.expert.begin(seed + index, demo=demo)
            steps, done = 1, act()
            while not (done.terminated or done.truncated):
                steps, done = steps + 1, act()
            if done.success:
                lengths.append(steps)
        return lengths

    # ----------------------------------------------------------------------------- parts

    def _begin(self, index: int, seed: int, demo: bool) -> None:
        self.env.reset(seed=episode_seed(seed, index))
        self.env.demonstrating = demo
        self.expert.begin(self.progress.episode, demo=demo)
        self._step = 0

    def _operator_allowed(self) -> bool:
        config = self.config
        within = self.progress.operator_steps < config.operator_steps
        return config.interventions and (within or not config.operator_steps)

    def _operator(self) -> ArmInput:
        given = self.expert.act(self.env.reading)
        return ArmInput(given.engaged, np.array(given.twist), given.gripper)

    def _record(self, done: LocalStep, version: int, kind: Flag, last: bool) -> bool:
        """Store a step; return whether the episode is over."""
        interrupted = last and not (done.terminated or done.truncated)
        ended = done.terminated or done.truncated or interrupted
        step = Step(
            stream=STREAM,
            seq=len(self._steps) + 1,
            episode=self.progress.episode,
            step=self._step,
            policy_version=version,
            observation=done.observation,
            action=done.action,
            policy_action=done.proposal,
            intervened=done.intervened,
            reward=done.reward,
            terminated=done.terminated,
            truncated=done.truncated or interrupted,
            success=done.success,
            grasp_penalty=done.grasp_penalty,
            flags=int(done.flags | kind | (Flag.INTERRUPTED if interrupted else Flag(0))),
            final_observation=done.next_observation if ended else None,
        )
        self.store.add(step)
        self._steps.append(step)
        self._step += 1
        self.progress.episode += ended
        return ended

    def _learn(self) -> None:
        """Do the updates that are due."""
        trainer = self.trainer
        for _ in range(trainer.updates_due()):
            trainer.step()
            if trainer.updates % self.config.publish_period == 0:
                self._publish()

    def _publish(self) -> None:
        progress, trainer = self.progress, self.trainer
        if progress.published == trainer.updates:
            return
        progress.version += 1
        progress.published = trainer.updates
        data = encode(trainer.agent, progress.version, self._fingerprint)
        self.policy = Policy.decode(data, self.spaces, self._fingerprint)

    def _restore(self, path: Path) -> None:
        loaded = checkpoint.load(path)
        if loaded.meta["session"] != _plain(self.config):
            raise ValueError(f"{path} is of another session: {loaded.meta['session']}")
        for step in _steps(loaded.tensors, self.spaces):
            self.store.add(step)
            self._steps.append(step)
        mine = {n[8:]: a for n, a in loaded.tensors.items() if n.startswith("trainer.")}
        self.trainer.load_state(mine, loaded.meta["trainer"])
        data = loaded.tensors["policy"].tobytes()
        self.policy = Policy.decode(data, self.spaces, self._fingerprint)
        self.progress = Progress(**loaded.meta["progress"])


def episode_seed(seed: int, index: int) -> int:
    """Seed of one episode of a run, as in `hil_actor.loop`."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])


def _plain(config: SessionConfig) -> dict[str, Any]:
    """Plain data, the same before and after JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def _columns(steps: list[Step], spaces: Spaces) -> dict[str, NDArray[Any]]:
    """Steps as arrays."""
    arrays = {f"step.{name}": np.array([getattr(s, name) for s in steps]) for name in _FIELDS}
    arrays["step.state"] = np.array([spaces.flatten(s.observation) for s in steps], np.float32)
    ends = [s.final_observation for s in steps if s.final_observation is not None]
    arrays["step.final"] = np.array([spaces.flatten(o) for o in ends], np.float32)
    return arrays


def _steps(arrays: Mapping[str, NDArray[Any]], spaces: Spaces) -> list[Step]:
    """Inverse of `_columns`; the policy's own actions are not kept."""
    final = iter(arrays["step.final"])
    steps = []
    for row, state in enumerate(arrays["step.state"]):
        values = {n: arrays[f"step.{n}"][row] for n in _FIELDS}
        plain: dict[str, Any] = {
            n: v if isinstance(v, np.ndarray) else v.item() for n, v in values.items()
        }
        step = Step(stream=STREAM, observation=_unflatten(state, spaces), **plain)
        if step.terminated or step.truncated:
            step.final_observation = _unflatten(next(final), spaces)
        steps.append(step)
    return steps


def _unflatten(state: NDArray[Any], spaces: Spaces) -> dict[str, NDArray[Any]]:
    sizes = [int(np.prod(shape)) for shape in spaces.vectors.values()]
    parts = np.split(state, np.cumsum(sizes)[:-1])
    return {
        n: part.reshape(shape)
        for (n, shape), part in zip(spaces.vectors.items(), parts, strict=True)
    }
