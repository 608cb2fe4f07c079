"""insert_steps: exactly once, whatever is repeated, lost, reordered or restarted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message

from hil_interfaces.msg import Step as StepMessage
from hil_learner import messages
from hil_learner.ingest import Answer, Ingest, Request, Status
from hil_learner.records import FLAG_DEMO, FLAG_EVALUATION, FLAG_INTERRUPTED, RecordDecoder
from hil_learner.step_bag import StepBag
from hil_learner.synthetic import SPACES, Sent, SyntheticActor, synthetic_spec
from hil_rl.store import EpisodeStore, Step

SPEC = synthetic_spec()


@dataclass
class ListStore:
    steps: list[Step] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.steps.append(step)


@dataclass
class Interruptions:
    streams: list[str] = field(default_factory=list)
    seen: list[tuple[str, int]] = field(default_factory=list)

    def on_step(self, actor_id: str, step: Step) -> None:
        self.seen.append((step.stream, step.seq))

    def on_interrupted(self, stream: str) -> None:
        self.streams.append(stream)


def make(store: ListStore | EpisodeStore, **options: object) -> Ingest:
    decoder = RecordDecoder(SPEC, lambda data: deserialize_message(data, StepMessage))
    return Ingest(decoder, store, **options)  # type: ignore[arg-type]


def request(actor: SyntheticActor, steps: Sequence[Sent], **changes: str) -> Request:
    identity = {
        "run_id": SPEC.run_id,
        "fingerprint": SPEC.fingerprint,
        "actor_id": actor.actor_id,
        "session": actor.session,
    }
    return Request(**{**identity, **changes}, steps=[(s.seq, s.data) for s in steps])


def new_actor(name: str = "actor", session: str = "s1", seed: int = 0) -> SyntheticActor:
    return SyntheticActor(SPEC, name, session, seed, episode_steps=6)


def test_in_order_repeat_and_gap() -> None:
    store = ListStore()
    ingest, actor = make(store), new_actor()
    sent = [actor.next() for _ in range(5)]
    assert ingest.insert(request(actor, [])) == Answer(Status.OK, "", 0, 1)
    assert ingest.insert(request(actor, sent[:2])) == Answer(Status.OK, "", 2, 3)
    assert ingest.insert(request(actor, sent[:3])) == Answer(Status.OK, "", 3, 4)
    gap = ingest.insert(request(actor, sent[4:]))
    assert (gap.status, gap.last_seq, gap.wanted_seq) == (Status.GAP, 3, 4)
    assert "wanted 4" in gap.reason
    assert ingest.insert(request(actor, sent[3:])).last_seq == 5
    assert [s.seq for s in store.steps] == [1, 2, 3, 4, 5]
    assert ingest.counters.repeats == 2


def test_a_gap_within_a_request_keeps_what_comes_before_it() -> None:
    store = ListStore()
    ingest, actor = make(store), new_actor()
    sent = [actor.next() for _ in range(4)]
    answer = ingest.insert(request(actor, [sent[0], sent[1], sent[3]]))
    assert (answer.status, answer.wanted_seq) == (Status.GAP, 3)
    assert [s.seq for s in store.steps] == [1, 2]


def test_another_run_or_specification_is_refused_with_the_reason() -> None:
    ingest, actor = make(ListStore()), new_actor()
    sent = [actor.next()]
    wrong = ingest.insert(request(actor, sent, run_id="yesterday"))
    assert wrong.status == Status.WRONG_RUN and "yesterday" in wrong.reason
    wrong = ingest.insert(request(actor, sent, fingerprint="0" * 64))
    assert wrong.status == Status.WRONG_SPEC and "fingerprint" in wrong.reason
    assert ingest.counters.env_steps == 0


@pytest.mark.parametrize("name", ["actor_id", "session"])
@pytest.mark.parametrize("value", ["", "x" * 257])
def test_bad_names_are_malformed(name: str, value: str) -> None:
    answer = make(ListStore()).insert(request(new_actor(), [], **{name: value}))
    assert answer.status == Status.MALFORMED and answer.reason.startswith(name)


def test_too_many_steps_in_one_call_are_refused() -> None:
    ingest, actor = make(ListStore(), max_steps=3), new_actor()
    answer = ingest.insert(request(actor, [actor.next() for _ in range(4)]))
    assert answer.status == Status.MALFORMED and "at most 3" in answer.reason


def test_a_malformed_step_stops_the_request_and_names_its_field() -> None:
    store = ListStore()
    ingest, actor = make(store), new_actor()
    sent = [actor.next() for _ in range(3)]
    sent[1].message.reward = float("nan")
    sent[1].data = serialize_message(sent[1].message)
    answer = ingest.insert(request(actor, sent))
    assert answer.status == Status.MALFORMED
    assert answer.reason.startswith("step 2: reward") and answer.last_seq == 1
    zero = Request(SPEC.run_id, SPEC.fingerprint, "a", "s", [(0, sent[0].data)])
    assert ingest.insert(zero).status == Status.MALFORMED
    assert len(store.steps) == 1


@pytest.mark.parametrize(
    ("episode", "step", "word"), [(0, 2, "step"), (1, 3, "begins"), (0, 0, "step: 0 after")]
)
def test_steps_that_do_not_continue_their_session_are_refused(
    episode: int, step: int, word: str
) -> None:
    ingest, actor = make(ListStore()), new_actor()
    first, second = actor.next(), actor.next()
    assert ingest.insert(request(actor, [first])).status == Status.OK
    second.message.episode, second.message.step = episode, step
    second.data = serialize_message(second.message)
    answer = ingest.insert(request(actor, [second]))
    assert answer.status == Status.MALFORMED and word in answer.reason


def test_evaluation_is_counted_but_not_stored_and_demos_go_to_the_demo_view() -> None:
    store = EpisodeStore(SPACES, 1000)
    ingest, actor = make(store), new_actor()
    demo = new_actor("demo")
    ingest.insert(request(demo, [demo.next(flags=FLAG_DEMO, intervened=True) for _ in range(30)]))
    ingest.insert(request(actor, [actor.next() for _ in range(20)]))
    evaluated = new_actor("evaluated")
    ingest.insert(request(evaluated, [evaluated.next(flags=FLAG_EVALUATION) for _ in range(9)]))
    counters = ingest.counters
    assert (counters.demo_steps, counters.env_steps, counters.evaluation_steps) == (30, 20, 9)
    assert store.counts.online == 20 and store.counts.demo == 30
    labels = [store.episode("demo/s1", number) for number in range(30)]
    succeeded = sum(len(episode.step) for episode in labels if episode.success)
    assert 0 < store.size("demo") == succeeded < 30 and 19 <= store.size("all") <= 20


def test_a_newer_session_interrupts_the_episode_that_was_open() -> None:
    heard = Interruptions()
    ingest = make(ListStore(), observers=[heard])
    old, new, other = new_actor(), new_actor(session="s2"), new_actor("other")
    late = [old.next(), old.next()]
    ingest.insert(request(old, late[:1]))
    ingest.insert(request(other, [other.next()]))
    ingest.insert(request(new, [new.next()]))
    assert heard.streams == ["actor/s1"]
    # A stopped actor may continue after all: its steps are as good as any.
    assert ingest.insert(request(old, late[1:])).status == Status.OK


def test_a_step_that_closes_its_episode_as_interrupted_ends_it() -> None:
    ingest, actor = make(ListStore()), new_actor()
    last = actor.next(flags=FLAG_INTERRUPTED)
    assert ingest.insert(request(actor, [last])).status == Status.OK
    answer = ingest.insert(request(actor, [actor.next()]))
    assert answer.status == Status.MALFORMED and "already ended" in answer.reason


class FullDisk:
    def append(self, records: Sequence[object]) -> None:
        raise OSError("No space left on device")

    def replay(self) -> list[bytes]:
        return []


def test_nothing_is_acknowledged_that_the_log_does_not_take() -> None:
    store = ListStore()
    ingest, actor = make(store, log=FullDisk()), new_actor()
    answer = ingest.insert(request(actor, [actor.next()]))
    assert (answer.status, answer.last_seq) == (Status.BUSY, 0) and "No space" in answer.reason
    assert store.steps == [] and ingest.counters.env_steps == 0


def test_busy_says_why() -> None:
    ingest, actor = make(ListStore()), new_actor()
    ingest.busy_reason = "the disk is full"
    answer = ingest.insert(request(actor, [actor.next()]))
    assert (answer.status, answer.reason) == (Status.BUSY, "the disk is full")


class Sender:
    """An actor with a spool, on a line that loses, repeats and reorders what it sends."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.rng = rng
        self.name = name
        self.lives = 0
        self.truth: list[tuple[str, int, int, int]] = []
        self.restart()

    def restart(self) -> None:
        """Begin a new session; what was not acknowledged is lost with the process."""
        self.lives += 1
        seed = self.rng.randrange(2**31)
        self.actor = new_actor(self.name, f"s{self.lives}", seed)
        self.spool: list[Sent] = []
        self.history: list[Sent] = []
        self.acknowledged = 0

    def request(self) -> Request:
        for _ in range(self.rng.randint(0, 4)):
            step = self.actor.next()
            self.spool.append(step)
            self.history.append(step)
        kind = self.rng.random()
        steps: list[Sent] = self.spool
        if kind < 0.2:  # an old message arrives again
            start = self.rng.randint(0, len(self.history))
            steps = self.history[start : start + 5]
        elif kind < 0.35:  # a message before this one was lost
            steps = self.spool[self.rng.randint(0, len(self.spool)) :]
        return request(self.actor, steps)

    def take(self, answer: Answer) -> None:
        for step in self.spool:
            if self.acknowledged < step.seq <= answer.last_seq:
                message = step.message
                name = f"{self.name}/{self.actor.session}"
                self.truth.append((name, step.seq, message.episode, message.step))
        self.acknowledged = max(self.acknowledged, answer.last_seq)
        self.spool = [s for s in self.spool if s.seq > answer.last_seq]


@pytest.mark.parametrize("seed", range(8))
def test_the_store_is_what_was_acknowledged(seed: int, tmp_path: Path) -> None:
    """Two actors, repeats, gaps, lost answers, restarts of actors and of the learner."""
    rng = random.Random(seed)
    senders = [Sender("left", rng), Sender("right", rng)]
    topics = messages.topics()
    store, log = ListStore(), StepBag(tmp_path, topics, split_bytes=20_000)
    ingest = make(store, log=log)
    for _ in range(250):
        sender = rng.choice(senders)
        answer = ingest.insert(sender.request())
        assert answer.status in (Status.OK, Status.GAP)
        if rng.random() < 0.8:  # otherwise the answer is lost
            sender.take(answer)
        if rng.random() < 0.05:
            sender.take(ingest.insert(request(sender.actor, [])))
            sender.restart()
        if rng.random() < 0.03:
            log.close()
            store, log = ListStore(), StepBag(tmp_path, topics, split_bytes=20_000)
            ingest = make(store, log=log)
            ingest.replay()
    for sender in senders:
        sender.take(ingest.insert(request(sender.actor, [])))
        stored = [
            (s.stream, s.seq, s.episode, s.step)
            for s in store.steps
            if s.stream.startswith(sender.name)
        ]
        assert stored == sender.truth and len(stored) > 100
    log.close()


@pytest.mark.parametrize("seed", range(3))
def test_sampled_pairs_are_successors(seed: int) -> None:
    """The tags in the observations of every stored transition name consecutive steps."""
    rng = random.Random(seed)
    senders = [Sender("left", rng), Sender("right", rng)]
    store = EpisodeStore(SPACES, 150)
    ingest = make(store)
    for _ in range(300):
        sender = rng.choice(senders)
        sender.take(ingest.insert(sender.request()))
        if rng.random() < 0.05:
            sender.restart()
    batch = store.gather(store.slots("all"))
    assert len(batch) > 80
    tag, following = batch.state[:, 4:], batch.next_state[:, 4:]
    np.testing.assert_array_equal(following[:, 1], tag[:, 1])  # same episode
    np.testing.assert_array_equal(following[:, 2], tag[:, 2] + 1)  # next step
    inner = following[:, 0] != tag[:, 0]  # the final observation has the last step's number
    np.testing.assert_array_equal(following[inner, 0], tag[inner, 0] + 1)
