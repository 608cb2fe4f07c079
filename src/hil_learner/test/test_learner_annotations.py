"""Annotations: refused with a reason or applied in order, the same live and on reload."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rclpy.serialization import serialize_message

from hil_interfaces.msg import Annotation
from hil_learner import messages
from hil_learner.annotations import AnnotatedStore, Kind
from hil_learner.ingest import Ingest, Request, Status
from hil_learner.records import FLAG_DEMO, RecordDecoder
from hil_learner.step_bag import StepBag
from hil_learner.synthetic import SPACES, SyntheticActor, synthetic_spec
from hil_rl.store import BASE_VIEWS, Batch, EpisodeStore

SPEC = synthetic_spec()


class World:
    """A learner's way in: log, ingestion and store, and what was said about success."""

    def __init__(self, folder: Path, capacity: int = 400) -> None:
        self.log = StepBag(folder, messages.topics(), split_bytes=30_000)
        self.store = EpisodeStore(SPACES, capacity)
        self.said: list[tuple[str, int, bool]] = []
        self.annotated = AnnotatedStore(self.store, lambda *said: self.said.append(said))
        self.ingest = Ingest(
            RecordDecoder(SPEC, messages.decode_step),
            self.annotated,
            log=self.log,
            decode_annotation=messages.decode_annotation,
        )
        self.replayed = self.ingest.replay()

    def send(self, actor: SyntheticActor, count: int, **options: Any) -> None:
        sent = [actor.next(**options) for _ in range(count)]
        steps = [(s.seq, s.data) for s in sent]
        answer = self.ingest.insert(
            Request(SPEC.run_id, SPEC.fingerprint, actor.actor_id, actor.session, steps)
        )
        assert answer.status == Status.OK, answer.reason

    def say(self, **fields: Any) -> str:
        message = annotation(**fields)
        return self.ingest.annotate(message, serialize_message(message))

    def close(self) -> None:
        self.log.close()


def annotation(**fields: Any) -> Annotation:
    defaults = {
        "id": "one", "author": "person", "kind": int(Kind.LABEL), "run_id": SPEC.run_id,
        "actor_id": "actor", "session": "s", "episode": 0, "last_step": Annotation.LAST,
    }  # fmt: skip
    return Annotation(**{**defaults, **fields})


def new_actor(name: str = "actor", steps: int = 5, seed: int = 0) -> SyntheticActor:
    return SyntheticActor(SPEC, name, "s", seed, episode_steps=steps)


def contents(store: EpisodeStore) -> dict[str, list[Any]]:
    """Every transition of every view, as it would be sampled."""
    found = {}
    for view in BASE_VIEWS:
        columns = arrays(store.gather(np.sort(store.slots(view)))).values()
        found[view] = [[array.tolist() for array in row] for row in zip(*columns, strict=True)]
    return found


def arrays(batch: Batch) -> dict[str, Any]:
    """Fields of a batch; those of images are absent here."""
    return {name: array for name, array in vars(batch).items() if array is not None}


def test_a_label_makes_an_episode_a_success_and_undo_takes_it_back(tmp_path: Path) -> None:
    world, actor = World(tmp_path), new_actor(steps=3, seed=3)
    world.send(actor, 4)  # an episode that was cut by time, and the first step of the next
    before = world.store.episode("actor/s", 0)
    assert before.truncated.tolist() == [False, False, True] and not before.success
    assert world.say(id="a", success=True) == ""
    labels = world.store.episode("actor/s", 0)
    assert labels.success and labels.reward.tolist() == [0.0, 0.0, 1.0]
    assert labels.terminated.tolist() == [False, False, True] and not labels.truncated.any()
    assert world.say(id="b", kind=Kind.RELABEL, rewards=[-1.0, -2.0], last_step=1) == ""
    assert world.store.episode("actor/s", 0).reward.tolist() == [-1.0, -2.0, 1.0]
    assert world.say(id="c", kind=Kind.UNDO, refers_to="a") == ""
    labels = world.store.episode("actor/s", 0)
    assert not labels.success and labels.reward.tolist() == [-1.0, -2.0, 0.0]
    assert labels.truncated[2] and not labels.terminated.any()
    assert world.said == [("actor/s", 0, True), ("actor/s", 0, False)]
    assert world.ingest.counters.annotations == 3


def test_a_veto_takes_a_success_back_and_keep_brings_the_demonstration_in(tmp_path: Path) -> None:
    world, actor = World(tmp_path), new_actor(steps=20)
    world.send(actor, 40, flags=FLAG_DEMO, intervened=True)
    assert world.store.episode("actor/s", 0).success
    demos = world.store.size("demo")
    length = len(world.store.episode("actor/s", 0).step)
    assert world.say(id="veto", kind=Kind.VETO) == ""
    assert world.store.size("demo") == demos - length
    assert world.store.episode("actor/s", 0).reward.max() == 0.0
    assert world.say(id="keep", kind=Kind.KEEP) == ""
    assert world.store.size("demo") == demos
    assert world.say(id="drop", kind=Kind.DROP, last_step=0) == ""
    assert world.store.size("demo") == demos - 1


def test_steps_that_follow_belong_to_what_was_said_of_their_episode(tmp_path: Path) -> None:
    world, actor = World(tmp_path), new_actor(steps=10, seed=3)
    world.send(actor, 3)
    assert world.say(kind=Kind.DROP) == ""
    world.send(actor, 10)
    assert not set(world.store.gather(world.store.slots("all")).episode) & {0}
    assert world.store.size("all") == 2


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"id": ""}, "id: 0 characters"),
        ({"author": "x" * 257}, "author: 257 characters"),
        ({"comment": "x" * 5000}, "comment"),
        ({"kind": 0}, "kind: 0"),
        ({"kind": 9}, "kind: 9"),
        ({"run_id": "yesterday"}, "run_id"),
        ({"actor_id": "nobody"}, "session: no step"),
        ({"session": "none"}, "session: no step"),
        ({"episode": 7}, "episode: 7, the newest"),
        ({"episode": 1}, "episode: 1 has not ended"),
        ({"kind": Kind.KEEP, "first_step": 3, "last_step": 2}, "last_step"),
        ({"kind": Kind.RELABEL}, "rewards: 0"),
        ({"kind": Kind.RELABEL, "rewards": [float("nan")]}, "rewards: not finite"),
        ({"kind": Kind.RELABEL, "rewards": [0.0] * 3, "last_step": 4}, "rewards: 3"),
        ({"kind": Kind.RELABEL, "rewards": [0.0] * 10_001}, "rewards: 10001"),
        ({"kind": Kind.UNDO, "refers_to": "nothing"}, "refers_to: no annotation"),
        ({"kind": Kind.UNDO, "refers_to": "undo"}, "refers_to: no annotation"),
        ({"kind": Kind.UNDO, "refers_to": "undone"}, "undone already"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    world, actor = World(tmp_path), new_actor(steps=3, seed=3)
    world.send(actor, 4)
    assert world.say(id="undone", success=True) == ""
    assert world.say(id="undo", kind=Kind.UNDO, refers_to="undone") == ""
    records, before = world.log.records, contents(world.store)
    answer = world.say(**{"id": "new", **fields})
    assert answer.startswith(reason) or reason in answer
    assert world.log.records == records and contents(world.store) == before


def test_a_repeated_annotation_is_acknowledged_and_ignored(tmp_path: Path) -> None:
    world, actor = World(tmp_path), new_actor(steps=3, seed=3)
    world.send(actor, 4)
    for _ in range(3):
        assert world.say(success=True) == ""
    assert world.ingest.counters.annotations == 1 and world.log.records == 5


def test_an_annotation_waits_for_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, actor = World(tmp_path), new_actor(steps=3, seed=3)
    world.send(actor, 4)
    before = contents(world.store)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(world.log, "_write_at", full)
    assert "No space" in world.say(success=True)
    assert contents(world.store) == before
    monkeypatch.undo()
    assert world.say(success=True) == ""


@pytest.mark.parametrize("seed", range(12))
def test_live_and_reloaded_stores_are_the_same(tmp_path: Path, seed: int) -> None:
    """Random steps and annotations, in a store that wraps around; restarts in between."""
    rng = random.Random(seed)
    capacity = rng.choice([30, 90, 400])
    world = World(tmp_path, capacity)
    actors = [new_actor("left", 6, seed), new_actor("right", 9, seed + 1)]
    ids: list[str] = []
    for turn in range(120):
        if rng.random() < 0.6:
            flags = rng.choice([0, 0, FLAG_DEMO])
            actor = rng.choice(actors)
            world.send(actor, rng.randint(1, 4), flags=flags, intervened=rng.random() < 0.4)
            continue
        kind = rng.choice(list(Kind))
        first = rng.choice([0, 0, rng.randint(0, 6)])
        rewards = [rng.uniform(-1, 1)] if kind == Kind.RELABEL else []
        identifier = f"{turn}"
        refused = world.say(
            id=identifier,
            kind=kind,
            actor_id=rng.choice(["left", "right"]),
            episode=rng.randint(0, 12),
            first_step=first,
            last_step=rng.choice([Annotation.LAST, first + rng.randint(0, 3)]),
            success=rng.random() < 0.5,
            rewards=rewards,
            refers_to=rng.choice(ids) if ids else "none",
        )
        if not refused:
            ids.append(identifier)
        if rng.random() < 0.05:
            before = contents(world.store)
            world.close()
            world = World(tmp_path, capacity)
            assert contents(world.store) == before
    assert len(ids) > 10
    live, revision = contents(world.store), world.store.revision
    samples = [world.store.sample(50, "all", np.random.default_rng(1)) for _ in range(2)]
    world.close()
    again = World(tmp_path, capacity)
    assert contents(again.store) == live and again.store.revision == revision
    for batch in samples:
        other = again.store.sample(50, "all", np.random.default_rng(1))
        for name, array in arrays(batch).items():
            np.testing.assert_array_equal(array, getattr(other, name), err_msg=name)
