"""Training from bags: the live run's updates again, the same weights, clear refusals."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from rclpy.serialization import serialize_message

from hil_bringup import train as command
from hil_common.params import ParameterError
from hil_interfaces.msg import Annotation
from hil_learner import offline
from hil_learner.annotations import Kind
from hil_learner.ingest import Request, Status
from hil_learner.learner import Learner
from hil_learner.messages import Updates
from hil_learner.offline import ReplayError, parameters, train
from hil_learner.params import LearnerParams
from hil_learner.records import FLAG_DEMO
from hil_learner.step_bag import read_bag
from hil_learner.synthetic import SyntheticActor, synthetic_spec
from hil_learner.training import TrainingEvents
from hil_rl import checkpoint

SPEC = synthetic_spec()
GENEROUS = 120.0
PARAMS = LearnerParams(
    agent=("hidden=[16, 16]", "state_encoder=8"), batch_size=16, training_starts=20, seed=3,
    publish_period_updates=10, checkpoint_period=25, capacity=120, tensorboard=False,
)  # fmt: skip


class Live:
    """A learner that trains while a made-up actor sends and a person annotates."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.params = dataclasses.replace(PARAMS, run_dir=str(folder), run_id=SPEC.run_id)
        self.rng = random.Random(seed)
        self.actors = [SyntheticActor(SPEC, name, "s", i, 7) for i, name in enumerate("ab")]
        self.annotations = 0
        self.open()

    def open(self) -> None:
        self.changed = threading.Condition()
        events = TrainingEvents(on_progress=self._on_progress)
        self.learner = Learner(self.params, events, SPEC)
        self.learner.training.run()

    def _on_progress(self) -> None:
        with self.changed:
            self.changed.notify()

    def settle(self) -> None:
        """Wait until every update that is due was made, as an actor in lockstep does."""
        due = self.learner.training._trainer.updates_due
        with self.changed:
            assert self.changed.wait_for(lambda: not due(), GENEROUS)

    def drive(self, turns: int) -> None:
        for _ in range(turns):
            actor, flags = self.rng.choice(self.actors), self.rng.choice([0, 0, 0, FLAG_DEMO])
            sent = [actor.next(flags=flags, intervened=bool(flags)) for _ in range(3)]
            request = Request(
                SPEC.run_id, SPEC.fingerprint, actor.actor_id, "s", [(s.seq, s.data) for s in sent]
            )
            assert self.learner.insert(request).status == Status.OK
            if self.rng.random() < 0.3:
                self.annotate(actor, sent[-1].message.episode - 1)
            if self.rng.random() < 0.3:
                training = self.learner.training
                training.submit(training.save).result(GENEROUS)
            if self.rng.random() < 0.3 and self.learner.training.running:
                self.settle()

    def annotate(self, actor: SyntheticActor, episode: int) -> None:
        if episode < 0:
            return
        self.annotations += 1
        message = Annotation(
            id=str(self.annotations), kind=int(self.rng.choice([Kind.LABEL, Kind.DROP])),
            run_id=SPEC.run_id, actor_id=actor.actor_id, session="s", episode=episode,
            last_step=Annotation.LAST, success=self.rng.random() < 0.5,
        )  # fmt: skip
        assert self.learner.annotate(message, serialize_message(message)) == ""

    def close(self) -> tuple[Path, str]:
        """Return the run's bag and the digest of its last checkpoint."""
        self.learner.close()
        return self.learner.folder.steps, self.digest()

    def digest(self) -> str:
        path = checkpoint.latest(self.learner.folder.checkpoints)
        assert path is not None
        return checkpoint.load(path).sha256


@pytest.mark.parametrize("seed", range(3))
def test_the_live_updates_are_repeated_bit_for_bit(tmp_path: Path, seed: int) -> None:
    """While training ran beside ingestion, at whatever speed the threads had."""
    live = Live(tmp_path / "runs", seed)
    live.drive(40)
    live.settle()
    bag, digest = live.close()
    result = train([bag], PARAMS, tmp_path / "out", repeat=True, spec=SPEC)
    assert result.sha256 == digest
    assert result.updates == live.learner.training.updates > 30
    assert result.tally.annotations == live.annotations > 0


def test_they_are_repeated_across_a_restart_and_a_killed_learner(tmp_path: Path) -> None:
    live = Live(tmp_path / "runs")
    live.drive(30)
    live.close()
    live.open()
    live.drive(20)
    killed = live.learner
    killed.training.pause()
    # A killed process writes nothing more: what it had not saved is done anew.
    updates = checkpoint.latest(killed.folder.checkpoints)
    shutil.copytree(killed.folder.path, tmp_path / "second" / SPEC.run_id)
    killed.close()
    assert updates is not None
    live.params = dataclasses.replace(live.params, run_dir=str(tmp_path / "second"))
    live.open()
    live.drive(20)
    bag, digest = live.close()
    result = train([bag], PARAMS, tmp_path / "out", repeat=True, spec=SPEC)
    assert result.sha256 == digest


def test_updates_that_were_made_anew_replace_those_that_were_lost() -> None:
    rows = [Updates(1, 3, 5), Updates(4, 2, 6), Updates(3, 1, 9), Updates(4, 4, 10)]
    entries = [offline.Entry("/u", "", offline.messages.encode_updates(row), 0) for row in rows]
    assert offline._effective(entries) == [Updates(1, 2, 5), Updates(3, 1, 9), Updates(4, 4, 10)]


def test_resuming_equals_not_stopping(tmp_path: Path) -> None:
    """N + M updates in one life and in two, with the learner's own log and checkpoint."""
    digests = []
    for lives in (1, 2):
        live = Live(tmp_path / f"{lives}")
        live.learner.training.pause()
        live.drive(30)
        training = live.learner.training
        due = training._trainer.updates_due()
        for _ in range(due // 2):
            training.submit(training._update).result(GENEROUS)
        if lives == 2:
            live.close()
            live.learner = Learner(live.params, TrainingEvents(), SPEC)
            training = live.learner.training
        for _ in range(due - due // 2):
            training.submit(training._update).result(GENEROUS)
        digests.append(live.close()[1])
    assert digests[0] == digests[1]


def test_the_same_bags_and_seed_give_the_same_weights(tmp_path: Path) -> None:
    live = Live(tmp_path / "runs")
    live.learner.training.pause()
    live.drive(30)
    live.learner.close()
    bag = live.learner.folder.steps
    params = dataclasses.replace(PARAMS, capacity=1000)
    first = train([bag], params, tmp_path / "a", spec=SPEC, updates=20)
    second = train([bag], params, tmp_path / "b", spec=SPEC, updates=20)
    other = train(
        [bag], dataclasses.replace(params, seed=4), tmp_path / "c", spec=SPEC, updates=20
    )
    assert first.sha256 == second.sha256 != other.sha256
    twice = train([bag, bag], params, tmp_path / "d", spec=SPEC, updates=20)
    assert twice.sha256 == first.sha256 and twice.tally.repeats == first.tally.steps + (
        first.tally.annotations
    )
    assert json.loads(first.line())["updates"] == 20


def test_bags_that_do_not_do_are_refused_with_the_reason(tmp_path: Path) -> None:
    live = Live(tmp_path / "runs")
    live.learner.training.pause()
    live.drive(20)
    live.learner.close()
    bag = live.learner.folder.steps
    with pytest.raises(ReplayError, match="utd is 0"):
        train([bag], dataclasses.replace(PARAMS, utd=0.0), tmp_path, spec=SPEC)
    with pytest.raises(ReplayError, match="more steps before training starts"):
        train([bag], dataclasses.replace(PARAMS, training_starts=500), tmp_path, spec=SPEC)
    other = dataclasses.replace(SPEC, fingerprint="0" * 64)
    with pytest.raises(ReplayError, match="fingerprint"):
        train([bag], PARAMS, tmp_path, spec=other)
    with pytest.raises(OSError, match=r"no \.mcap file"):
        list(read_bag(tmp_path / "nothing"))


def test_settings_come_from_the_run_and_may_be_changed(tmp_path: Path) -> None:
    live = Live(tmp_path / "runs")
    live.learner.close()
    bag = live.learner.folder.steps
    assert parameters(bag).batch_size == 16 and parameters(bag).agent == PARAMS.agent
    changed = parameters(bag, ["batch_size=32", "utd=2", "agent=[discount=0.9]"])
    assert (changed.batch_size, changed.utd, changed.agent) == (32, 2.0, ("discount=0.9",))
    assert parameters(tmp_path).batch_size == LearnerParams().batch_size
    for wrong in ("batchsize=32", "batch_size=many", "batch_size"):
        with pytest.raises(ParameterError, match="batch"):
            parameters(bag, [wrong])
    live.learner.folder.config.write_text("- 1")
    with pytest.raises(ReplayError, match="configuration"):
        parameters(bag)


def test_the_command_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[Any]
) -> None:
    assert command.main(["--from-bag", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "no .mcap file" in capsys.readouterr().out
