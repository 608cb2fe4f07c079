"""The learner as a whole, without the graph: run folder, ingestion, store, training, metrics.

Two threads meet here. `insert` and the views (`status`, `progress`) belong to the caller's
thread, training to its own; what they share is thread-safe by itself.
"""

from __future__ import annotations

import math
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import hil_tasks
from hil_learner import curves, messages, metrics
from hil_learner.annotations import AnnotatedStore
from hil_learner.episodes import EpisodeStatistics, rates
from hil_learner.first_batch import MeteredStore
from hil_learner.ingest import Answer, Ingest, Request
from hil_learner.metrics import Metrics
from hil_learner.params import LearnerParams
from hil_learner.progress import ActorView, Progress
from hil_learner.records import RecordDecoder, RecordSpec
from hil_learner.run_folder import RunFolder, RunIdentity, new_run_id
from hil_learner.step_bag import StepBag
from hil_learner.training import Training, TrainingEvents, TrainingOptions
from hil_rl import methods
from hil_rl.spaces import Spaces
from hil_rl.store import EpisodeStore, Step, TakeoverPenalty
from hil_rl.trainer import Trainer

_RATE_WINDOW = 5.0


@dataclass(frozen=True)
class Status:
    """Where the learner stands; the fields of hil_interfaces/LearnerStatus."""

    run_id: str
    fingerprint: str
    env_steps: int
    demo_steps: int
    demo_episodes: int
    episodes: int
    intervened_steps: int
    updates: int
    policy_version: int
    env_steps_allowed: int
    phase: str
    waiting_for: str
    updates_per_s: float
    success_rate: float
    intervention_rate: float


class Learner:
    """One run, from opening its folder to closing it.

    Args:
        params: see `LearnerParams`.
        events: what the owner wants to hear of training; `on_metrics` is taken.
        spec: specification of the steps; None: that of the task in `params`.

    Raises:
        RunFolderError, ResumeError, BagError, RecordError: the run folder cannot be used.
        ParameterError, hil_tasks.UnknownTask, hil_tasks.OverrideError: wrong parameters.
    """

    def __init__(
        self,
        params: LearnerParams,
        events: TrainingEvents,
        spec: RecordSpec | None = None,
    ) -> None:
        torch.set_num_threads(params.torch_threads)
        params.agent_config()  # wrong settings are told before anything is opened
        params.trainer_config()
        params.cloning_config()
        if spec is None:
            spec = record_spec(load_task(params).spec, params.run_id)
        self.params = params
        self.spec = spec
        identity = RunIdentity(spec.run_id, spec.task, spec.fingerprint)
        self.folder = RunFolder.open(
            Path(params.run_dir), identity, asdict(params), resume=params.resume
        )
        self._updates = _Rate()
        self._env_steps = _Rate()
        self._closed = False
        try:
            self._open(events)
        except BaseException:
            self.folder.close()
            raise

    def _open(self, events: TrainingEvents) -> None:
        params, spec = self.params, self.spec
        self.store = MeteredStore(
            spec.spaces,
            params.capacity,
            successful_demos=params.successful_demos,
            takeover_penalty=takeover_penalty(params),
        )
        self.statistics = EpisodeStatistics(on_episode=lambda _: None)
        versions = _NewestVersion()
        self._log = StepBag(
            self.folder.steps,
            messages.topics(),
            split_bytes=params.log_split_mb * 2**20,
            fsync=params.durability == "fsync",
        )
        self.ingest = Ingest(
            RecordDecoder(spec, messages.decode_step),
            AnnotatedStore(self.store, self.statistics.on_success),
            log=self._log,
            decode_annotation=messages.decode_annotation,
            observers=(self.statistics, versions),
            max_steps=params.max_insert_steps,
        )
        self.replayed = self.ingest.replay()
        self.log_notes = self._log.notes
        self.store.metering = True
        self.metrics = Metrics(
            self.folder.metrics, self.folder.tensorboard if params.tensorboard else None
        )
        self.statistics.on_episode = self.metrics.episode
        events.on_metrics = self._on_metrics
        options = TrainingOptions(
            fingerprint=spec.fingerprint,
            task=spec.task,
            checkpoints=self.folder.checkpoints,
            publish_period=params.publish_period_updates,
            checkpoint_period=params.checkpoint_period,
            checkpoints_kept=params.checkpoints_kept,
            metrics_period=params.metrics_period,
            min_demo_steps=params.min_demo_steps,
            nice=params.training_nice,
        )
        trainer = make_trainer(params, spec, self.store)
        self.training = Training(
            trainer,
            options,
            events,
            seen_version=versions.newest,
            log=messages.UpdateRecorder(self._log),
        )
        self.resumed_updates = self.training.restore()
        self.metrics.start(self.ingest.counters.env_steps, self.training.updates)
        self.training.start()

    # ------------------------------------------------------------------------------ steps

    def insert(self, request: Request) -> Answer:
        """Take steps in, see `Ingest.insert`, and let training know."""
        before = self.ingest.last_seq(request.actor_id, request.session)
        answer = self.ingest.insert(request)
        if answer.last_seq != before:
            self.training.notify()
        self.training.hold(self.ingest.log_problem)
        return answer

    def annotate(self, message: Any, data: bytes) -> str:
        """Take an annotation in, see `Ingest.annotate`."""
        return self.ingest.annotate(message, data)

    # -------------------------------------------------------------------------------- views

    def status(self) -> Status:
        """Return where the learner stands now."""
        counters, recent = self.ingest.counters, self.statistics.rates()
        updates = self.training.updates
        phase, waiting_for = self._phase()
        return Status(
            run_id=self.spec.run_id,
            fingerprint=self.spec.fingerprint,
            env_steps=counters.env_steps,
            demo_steps=counters.demo_steps,
            demo_episodes=self.statistics.demo_episodes,
            episodes=self.statistics.episodes,
            intervened_steps=counters.intervened_steps,
            updates=updates,
            policy_version=self.training.policy_version,
            env_steps_allowed=self.training.env_steps_allowed(),
            phase=phase,
            waiting_for=waiting_for,
            updates_per_s=self._updates.of(updates),
            success_rate=recent.success,
            intervention_rate=recent.intervention,
        )

    def progress(self, actors: tuple[ActorView, ...], policy_age_s: float) -> Progress:
        """Return what a person is shown."""
        status = self.status()
        return Progress(
            run_id=status.run_id,
            phase=status.phase,
            waiting_for=status.waiting_for,
            env_steps=status.env_steps,
            env_steps_allowed=status.env_steps_allowed,
            demo_steps=status.demo_steps,
            demo_episodes=status.demo_episodes,
            episodes=status.episodes,
            intervened_steps=status.intervened_steps,
            updates=status.updates,
            updates_per_s=status.updates_per_s,
            env_steps_per_s=self._env_steps.of(status.env_steps),
            policy_version=status.policy_version,
            policy_age_s=policy_age_s,
            rates=self.statistics.rates(),
            evaluation=rates(self.statistics.evaluated),
            actors=actors,
        )

    def _phase(self) -> tuple[str, str]:
        if self._closed:
            return "stopped", ""
        if not self.training.running:
            return "paused", self.training.fault or "activation"
        waiting_for = self.training.waiting_for()
        return ("waiting", waiting_for) if waiting_for else ("training", "")

    # ------------------------------------------------------------------------------ control

    def save(self) -> Future[Path]:
        """Have a checkpoint and the curves written; the result is the checkpoint's path."""

        def work() -> Path:
            path = self.training.save()
            self.draw()
            return path

        return self.training.submit(work)

    def draw(self) -> None:
        """Write the learning curves.

        Raises:
            OSError: they cannot be written.
        """
        title = f"{self.spec.task}, run {self.spec.run_id}"
        curves.draw(metrics.read(self.folder.metrics), title, self.folder.learning_curve)

    def close(self) -> None:
        """Write checkpoint and curves and give the run folder free.

        Raises:
            OSError: something could not be written; the rest is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.training.close()
            self.metrics.first_batches(self.store.take_first_batches())
            self.draw()
        finally:
            self.metrics.close()
            try:
                self._log.close()
            finally:
                self.folder.close()

    def _on_metrics(self, updates: int, env_steps: int, figures: Any) -> None:
        extra = {
            "updates_per_s": self._updates.latest,
            "updates_per_step": updates / env_steps if env_steps else math.nan,
            "policy_version": float(self.training.policy_version),
            "store_online": float(self.store.size("all")),
            "store_demo": float(self.store.size("demo")),
            **self.store.first_batch_figures(),
        }
        self.metrics.training(updates, env_steps, {**figures, **extra})
        self.metrics.first_batches(self.store.take_first_batches())


def load_task(params: LearnerParams) -> hil_tasks.Task:
    """Return the task that the parameters name."""
    if params.task_file:
        return hil_tasks.load_file(params.task_file)
    return hil_tasks.load(params.task)


def record_spec(task: hil_tasks.TaskSpec, run_id: str) -> RecordSpec:
    """Return what the steps of a run of a task look like; an empty run_id gets a new one."""
    position, gripper_indices = 0, []
    for gripper in task.grippers:
        position += 6
        if gripper:
            gripper_indices.append(position)
            position += 1
    spaces = Spaces(
        {name: (tensor.shape, tensor.dtype) for name, tensor in task.observation.items()},
        action_dim=task.action_dim - len(gripper_indices),
        grippers=len(gripper_indices),
        gripper_indices=tuple(gripper_indices),
    )
    frame = (task.image_size, task.image_size, 3)
    return RecordSpec(
        run_id=run_id or new_run_id(task.name),
        fingerprint=task.fingerprint(),
        task=task.name,
        spaces=spaces,
        arms=len(task.arms),
        unused={camera: (frame, "uint8") for camera in task.cameras},
    )


def make_trainer(params: LearnerParams, spec: RecordSpec, store: EpisodeStore) -> Trainer:
    """Return an untrained agent with its training loop.

    Raises:
        ParameterError: wrong settings.
    """
    return methods.make_trainer(
        params.method,
        store,
        params.agent_config(),
        params.cloning_config(),
        params.trainer_config(),
        params.seed,
    )


def takeover_penalty(params: LearnerParams) -> TakeoverPenalty:
    """Return what the store does with steps before a takeover."""
    return TakeoverPenalty(params.takeover_penalty, params.takeover_horizon)


class _NewestVersion:
    """Highest policy version that a step was taken with."""

    def __init__(self) -> None:
        self.newest = 0

    def on_step(self, actor_id: str, step: Step) -> None:
        self.newest = max(self.newest, step.policy_version)

    def on_interrupted(self, stream: str) -> None:
        pass


class _Rate:
    """Rate of a counter over the last seconds, 1/s."""

    def __init__(self) -> None:
        self.latest = 0.0
        self._samples: deque[tuple[float, int]] = deque()

    def of(self, count: int) -> float:
        """Note the counter's value now and return its rate."""
        now = time.monotonic()
        if not self._samples or now - self._samples[-1][0] > 0.1:
            self._samples.append((now, count))
        while len(self._samples) > 2 and now - self._samples[1][0] > _RATE_WINDOW:
            self._samples.popleft()
        then, before = self._samples[0]
        self.latest = (count - before) / (now - then) if now > then else 0.0
        return self.latest
