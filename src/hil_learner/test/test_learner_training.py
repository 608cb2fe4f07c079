"""The training thread: bounds, pauses, faults, publication, checkpoints; and the whole learner."""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hil_common.params import ParameterError
from hil_learner import learner as learner_module
from hil_learner.ingest import Request, Status
from hil_learner.learner import Learner, _Rate, make_trainer, record_spec, takeover_penalty
from hil_learner.params import LearnerParams
from hil_learner.publisher import Policy
from hil_learner.records import FLAG_DEMO
from hil_learner.run_folder import RunFolderError
from hil_learner.synthetic import SPACES, SyntheticActor, synthetic_spec
from hil_learner.training import ResumeError, Training, TrainingEvents, TrainingOptions
from hil_rl import checkpoint
from hil_rl.bc import BCAgent
from hil_rl.config import SACConfig, TrainerConfig
from hil_rl.policy import Policy as ActingPolicy
from hil_rl.sac import SACAgent
from hil_rl.store import EpisodeStore, Step, TakeoverPenalty
from hil_rl.trainer import Trainer

GENEROUS = 120.0
SMALL = SACConfig(hidden=(16, 16), state_encoder=8)


class Heard:
    """What training said, with a condition to wait on."""

    def __init__(self) -> None:
        self.policies: list[Policy] = []
        self.metrics: list[tuple[int, int, Mapping[str, float]]] = []
        self.faults: list[str] = []
        self.progress = 0
        self._changed = threading.Condition()

    def events(self) -> TrainingEvents:
        return TrainingEvents(
            on_policy=lambda policy: self._note(self.policies.append, policy),
            on_metrics=lambda *row: self._note(self.metrics.append, row),
            on_fault=lambda reason: self._note(self.faults.append, reason),
            on_progress=self._on_progress,
        )

    def wait(self, predicate: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(predicate, GENEROUS)

    def _on_progress(self) -> None:
        with self._changed:
            self.progress += 1
            self._changed.notify_all()

    def _note(self, add: Callable[[Any], None], item: Any) -> None:
        with self._changed:
            add(item)
            self._changed.notify_all()


class Setup:
    """A training thread over a store that the test fills."""

    def __init__(
        self, folder: Path, *, seen: int = 0, trainer: dict[str, Any] | None = None, **options: Any
    ) -> None:
        torch.set_num_threads(1)
        self.store = EpisodeStore(SPACES, 5000)
        config = TrainerConfig(**{"batch_size": 16, "training_starts": 10, **(trainer or {})})
        self.trainer = Trainer(SACAgent(SPACES, SMALL, 0), self.store, config, 0)
        self.heard = Heard()
        defaults = {"fingerprint": "f", "checkpoints": folder, "publish_period": 0}
        self.training = Training(
            self.trainer,
            TrainingOptions(**{**defaults, "checkpoint_period": 0, **options}),
            self.heard.events(),
            seen_version=seen,
        )
        self._count = 0

    def add(self, steps: int, flags: int = 0) -> None:
        for _ in range(steps):
            x = np.full(2, 0.1, np.float32)
            observation = {"position": x, "goal": x, "tag": np.zeros(3, np.float32)}
            self.store.add(
                Step(
                    "a/s", self._count + 1, 0, self._count, 0, observation, x,
                    flags=flags, intervened=bool(flags),
                )
            )  # fmt: skip
            self._count += 1
        self.training.notify()

    def wait_updates(self, count: int) -> None:
        self.heard.wait(lambda: self.trainer.updates >= count)


class Disk:
    """A checkpoint folder on a disk that is full for a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = True
        self.refused = threading.Event()
        self._save = checkpoint.save
        monkeypatch.setattr("hil_learner.training.checkpoint.save", self.save)
        monkeypatch.setattr("hil_learner.training._RETRY_AFTER", 0.01)

    def save(self, *arguments: Any, **options: Any) -> Path:
        if self.full:
            self.refused.set()
            raise OSError("No space left on device")
        return self._save(*arguments, **options)


def test_training_waits_for_room_on_the_disk(
    setups: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, setup = Disk(monkeypatch), setups(checkpoint_period=5)
    setup.training.start()
    setup.add(60)
    setup.training.run()
    assert disk.refused.wait(GENEROUS)
    disk.refused.clear()
    assert disk.refused.wait(GENEROUS), "tried again"
    assert setup.trainer.updates == 5 and setup.heard.faults == []
    assert "No space" in setup.training.waiting_for()
    disk.full = False
    setup.wait_updates(40)
    assert "No space" not in setup.training.waiting_for()


def test_training_is_held_while_the_log_takes_nothing(setups: Callable[..., Setup]) -> None:
    setup = setups()
    setup.training.hold("the log to be written: full")
    setup.training.start()
    setup.training.run()
    setup.add(60)
    setup.training.submit(lambda: None).result(GENEROUS)
    assert setup.trainer.updates == 0
    assert setup.training.waiting_for() == "the log to be written: full"
    setup.training.hold("")
    setup.wait_updates(40)


@pytest.fixture
def setups(tmp_path: Path) -> Iterator[Callable[..., Setup]]:
    made: list[Setup] = []

    def make(**options: Any) -> Setup:
        made.append(Setup(tmp_path / "checkpoints", **options))
        return made[-1]

    yield make
    for setup in made:
        if setup.training._thread.is_alive():
            setup.training.close()


def test_actor_and_learner_stay_within_a_bound_of_each_other(
    setups: Callable[..., Setup],
) -> None:
    """Whoever is faster waits: neither starves nor runs away, at any moment."""
    utd, slack, starts = 0.5, 4, 10
    bounds = {"max_updates_per_env_step": utd, "min_updates_per_env_step": utd}
    setup = setups(trainer={**bounds, "env_step_slack": slack, "training_starts": starts})
    training, store, trainer = setup.training, setup.store, setup.trainer
    training.start()
    training.run()
    for _ in range(150):
        setup.heard.wait(lambda: store.counts.online < training.env_steps_allowed())
        updates = trainer.updates
        setup.add(1)
        online = store.counts.online
        assert online <= starts + slack + trainer.updates / utd, "the actor ran away"
        assert updates <= max(0.0, utd * (online - starts + 1)), "the learner ran away"
    setup.wait_updates(int(utd * (150 - starts)))
    training.pause()
    assert trainer.updates <= utd * (150 - starts + 1)


def test_without_data_or_demonstrations_it_waits_and_says_for_what(
    setups: Callable[..., Setup],
) -> None:
    setup = setups(min_demo_steps=8)
    setup.training.start()
    setup.training.run()
    assert setup.training.waiting_for() == "demonstrations: 8 of 8 steps missing"
    setup.add(5, FLAG_DEMO)
    setup.add(20)
    assert setup.training.waiting_for() == "demonstrations: 3 of 8 steps missing"
    setup.training.submit(lambda: None).result(GENEROUS)
    assert setup.trainer.updates == 0
    setup.add(4, FLAG_DEMO)
    setup.wait_updates(1)
    assert setup.training.waiting_for() == ""


def test_pause_means_that_nothing_moves(setups: Callable[..., Setup]) -> None:
    setup = setups(trainer={"max_updates_per_env_step": 0.0})
    setup.add(20)
    setup.training.start()
    setup.training.run()
    setup.wait_updates(3)
    setup.training.pause()
    updates = setup.trainer.updates
    for _ in range(3):
        setup.training.submit(lambda: None).result(GENEROUS)
    assert setup.trainer.updates == updates and not setup.training.running
    setup.training.run()
    setup.wait_updates(updates + 3)


def test_a_fault_is_told_and_the_data_are_kept(
    setups: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = setups()
    broken = threading.Event()
    broken.set()
    step = setup.trainer.step

    def sometimes() -> dict[str, float]:
        if broken.is_set():
            raise ValueError("the loss is not finite")
        return step()

    monkeypatch.setattr(setup.trainer, "step", sometimes)
    setup.training.start()
    setup.training.run()
    setup.add(20)
    setup.heard.wait(lambda: bool(setup.heard.faults))
    assert setup.heard.faults == ["training: ValueError: the loss is not finite"]
    assert setup.training.fault == setup.heard.faults[0] and not setup.training.running
    setup.add(5)
    assert setup.store.counts.online == 25
    broken.clear()
    setup.training.run()
    setup.wait_updates(1)
    assert setup.training.fault == ""


def test_policies_are_published_every_so_many_updates_and_at_a_save(
    setups: Callable[..., Setup],
) -> None:
    setup = setups(publish_period=5, trainer={"max_updates_per_env_step": 1.0})
    setup.training.start()
    setup.training.run()
    setup.add(10 + 11)
    setup.wait_updates(12)
    setup.training.submit(setup.training.save).result(GENEROUS)
    assert [p.version for p in setup.heard.policies] == [1, 2, 3]
    newest = setup.heard.policies[-1]
    policy = ActingPolicy.decode(newest.data, SPACES, "f")
    assert (policy.version, policy.sha256) == (3, newest.sha256)
    setup.training.submit(setup.training.save).result(GENEROUS)
    assert setup.training.policy_version == 3, "the same weights keep their version"


def test_metrics_are_means_over_their_period(setups: Callable[..., Setup]) -> None:
    setup = setups(metrics_period=4, trainer={"max_updates_per_env_step": 1.0})
    setup.training.start()
    setup.training.run()
    setup.add(10 + 7)
    setup.wait_updates(8)
    setup.heard.wait(lambda: len(setup.heard.metrics) == 2)
    updates, env_steps, figures = setup.heard.metrics[1]
    assert (updates, env_steps) == (8, 17)
    assert figures["critic_loss"] >= 0.0 and "temperature" in figures


def test_a_restart_continues_with_the_same_version_counters_and_weights(
    setups: Callable[..., Setup],
) -> None:
    first = setups(publish_period=5, trainer={"max_updates_per_env_step": 1.0})
    first.training.start()
    first.training.run()
    first.add(10 + 14)
    first.wait_updates(15)
    first.training.close()
    second = setups(publish_period=5)
    assert second.training.restore() == 15
    second.training.start()
    assert second.training.policy_version == first.training.policy_version == 3
    assert second.heard.policies[0].sha256 == first.heard.policies[-1].sha256
    before, after = first.trainer.agent.state(), second.trainer.agent.state()
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)


def test_a_version_that_steps_were_taken_with_does_not_come_again(
    setups: Callable[..., Setup],
) -> None:
    first = setups(publish_period=5)
    first.add(20)
    first.training.start()
    first.training.run()
    first.wait_updates(10)
    first.training.close()
    version = first.training.policy_version
    second = setups(seen=version + 7)
    second.training.restore()
    second.training.start()
    assert [p.version for p in second.heard.policies] == [version + 8]
    second.training.renumber(version + 20)
    second.heard.wait(lambda: second.training.policy_version == version + 21)
    second.training.renumber(5)
    second.training.submit(lambda: None).result(GENEROUS)
    assert second.training.policy_version == version + 21


def test_periodic_checkpoints_are_written_and_old_ones_removed(
    setups: Callable[..., Setup], tmp_path: Path
) -> None:
    setup = setups(
        checkpoint_period=4, checkpoints_kept=2, trainer={"max_updates_per_env_step": 1.0}
    )
    setup.training.start()
    setup.training.run()
    setup.add(10 + 13)
    setup.wait_updates(14)
    setup.training.close()
    names = sorted(p.name for p in (tmp_path / "checkpoints").glob("*.json"))
    assert names == ["step_000000000012.json", "step_000000000014.json"]


def test_a_checkpoint_of_something_else_is_refused(setups: Callable[..., Setup]) -> None:
    first = setups()
    first.add(20)
    first.training.start()
    first.training.submit(first.training.save).result(GENEROUS)
    with pytest.raises(ResumeError, match="is of specification f"):
        setups(fingerprint="g").training.restore()


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="no thread priorities here")
def test_the_training_thread_is_nicer_than_the_others(setups: Callable[..., Setup]) -> None:
    setup = setups(nice=3)
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    setup.training.start()

    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert setup.training.submit(priority).result(GENEROUS) == own + 3


# ------------------------------------------------------------------------- the whole learner

TINY = ("hidden=[16, 16]", "state_encoder=8")


def params(tmp_path: Path, **changes: Any) -> LearnerParams:
    defaults = LearnerParams(
        run_dir=str(tmp_path), agent=TINY, batch_size=16, training_starts=20, min_demo_steps=10,
        publish_period_updates=10, metrics_period=10, checkpoint_period=25, capacity=5000,
    )  # fmt: skip
    return dataclasses.replace(defaults, **changes)


def open_learner(tmp_path: Path, heard: Heard, **changes: Any) -> Learner:
    return Learner(params(tmp_path, **changes), heard.events(), synthetic_spec())


def send(learner: Learner, actor: SyntheticActor, count: int, **options: Any) -> None:
    sent = [actor.next(**options) for _ in range(count)]
    steps = [(s.seq, s.data) for s in sent]
    spec = learner.spec
    answer = learner.insert(
        Request(spec.run_id, spec.fingerprint, actor.actor_id, actor.session, steps)
    )
    assert answer.status == Status.OK, answer.reason


def test_a_run_from_demonstrations_to_curves_and_its_continuation(tmp_path: Path) -> None:
    heard = Heard()
    learner = open_learner(tmp_path, heard)
    actor = SyntheticActor(learner.spec, "actor", "s1", seed=0)
    assert learner.status().phase == "paused"
    learner.training.run()
    assert learner.status().phase == "waiting"
    send(learner, actor, 40, flags=FLAG_DEMO, intervened=True)
    send(learner, actor, 60)
    send(learner, actor, 5, intervened=True)
    # one update per training step after the first twenty; the episode's end is not known yet
    heard.wait(lambda: learner.training.updates >= 45)
    status = learner.status()
    assert (status.env_steps, status.demo_steps, status.intervened_steps) == (65, 40, 5)
    assert status.policy_version == 4 and status.phase == "training"
    assert status.env_steps_allowed == 20 + 20 + learner.training.updates
    assert status.demo_episodes >= 2 and 0.0 <= status.success_rate <= 1.0
    learner.save().result(GENEROUS)
    curve = learner.folder.learning_curve
    assert curve.read_bytes().startswith(b"\x89PNG")
    learner.close()
    learner.close()
    assert learner.status().phase == "stopped"

    again = Heard()
    continued = open_learner(tmp_path, again)
    assert continued.replayed == 105
    assert continued.resumed_updates == learner.training.updates
    now, before = continued.status(), learner.status()
    for name in ("env_steps", "demo_steps", "demo_episodes", "episodes", "intervened_steps",
                 "updates", "policy_version", "success_rate", "intervention_rate"):  # fmt: skip
        assert getattr(now, name) == getattr(before, name), name
    assert continued.store.counts == learner.store.counts
    assert continued.ingest.last_seq("actor", "s1") == 105
    continued.training.run()
    send(continued, actor, 20)
    again.wait(lambda: continued.training.updates >= learner.training.updates + 20)
    continued.close()


def test_what_was_acknowledged_survives_a_killed_learner(tmp_path: Path) -> None:
    learner = open_learner(tmp_path, Heard())
    actor = SyntheticActor(learner.spec, "actor", "s1", seed=0)
    send(learner, actor, 33)
    learner.folder.close()  # as a killed process does: no checkpoint, nothing flushed
    continued = open_learner(tmp_path, Heard())
    assert continued.replayed == 33 and continued.store.counts == learner.store.counts
    send(continued, actor, 1)
    continued.close()
    learner.training.close()


def test_a_folder_in_use_or_not_to_be_continued_is_refused(tmp_path: Path) -> None:
    learner = open_learner(tmp_path, Heard())
    with pytest.raises(RunFolderError, match="in use"):
        open_learner(tmp_path, Heard())
    learner.close()
    with pytest.raises(RunFolderError, match="exists"):
        open_learner(tmp_path, Heard(), resume=False)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"preset": "hil_sel"}, "hil_serl"),
        ({"agent": ("discuont=0.9",)}, "discount"),
        ({"agent": ("discount",)}, "name=value"),
        ({"agent": ("discount=2.0",)}, "discount 2.0"),
        ({"method": "hg_dagger", "cloning": ("stepz=5",)}, "steps"),
    ],
)
def test_settings_that_do_not_exist_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(ParameterError, match=word):
        open_learner(tmp_path, Heard(), **changes)
    assert not list(tmp_path.iterdir()), "refused before a run folder is made"


def test_the_method_and_the_takeover_penalty_are_parameters() -> None:
    params = LearnerParams(
        method="hg_dagger",
        cloning=("steps=7", "hidden=[8]"),
        takeover_penalty=-0.5,
        takeover_horizon=3,
    )
    assert takeover_penalty(params) == TakeoverPenalty(-0.5, 3)
    trainer = make_trainer(params, synthetic_spec("run"), EpisodeStore(SPACES, 100))
    assert isinstance(trainer.agent, BCAgent) and trainer.agent.config.steps == 7
    assert trainer.config.demo_ratio == 1.0 and trainer.config.initial_updates == 7


def test_the_record_specification_follows_the_task() -> None:
    from hil_tasks import load

    task = load("reach").spec
    spec = record_spec(task, "")
    assert spec.fingerprint == task.fingerprint() and spec.run_id.startswith("reach-")
    assert spec.spaces.action_size == task.action_dim
    assert list(spec.spaces.observation) == list(task.observation)
    two = dataclasses.replace(task, arms=("left", "right"), grippers=(False, True))
    assert record_spec(two, "r").spaces.gripper_indices == (12,)
    assert record_spec(two, "r").arms == 2


def test_a_long_wait_neither_trains_nor_piles_anything_up(tmp_path: Path) -> None:
    heard = Heard()
    learner = open_learner(tmp_path, heard)
    actor = SyntheticActor(learner.spec, "actor", "s1", seed=0)
    send(learner, actor, 40, flags=FLAG_DEMO, intervened=True)
    send(learner, actor, 60)
    learner.training.run()
    heard.wait(lambda: learner.training.updates >= 41)
    for _ in range(200):  # nobody sends; whoever asks gets an answer
        learner.training.notify()
        learner.training.submit(lambda: None).result(GENEROUS)
        learner.status()
    assert learner.training.updates == 41
    assert learner.training._trainer.waiting_for().startswith("new steps")
    assert not learner.training._requests and len(learner._log._pending) <= 1
    learner.close()


def test_more_requests_than_can_wait_are_refused(setups: Callable[..., Setup]) -> None:
    setup = setups()
    waiting = [setup.training.submit(lambda: None) for _ in range(110)]  # not started yet
    with pytest.raises(RuntimeError, match="too many"):
        waiting[-1].result(0)
    setup.training.start()
    waiting[0].result(GENEROUS)


def test_the_rate_of_a_counter_keeps_the_last_seconds_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = itertools.count(0.0, 0.05)
    monkeypatch.setattr(learner_module.time, "monotonic", lambda: next(now))
    rate = _Rate()
    for count in range(5000):
        rate.of(count)
    assert len(rate._samples) < 60 and rate.latest == pytest.approx(20.0)
