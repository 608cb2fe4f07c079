"""Policy publication: conflation, deadlines, restarts and rejections, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hil_learner.publisher import Outcome, Policy, Publisher, PublisherEvents


def policy(version: int) -> Policy:
    return Policy(version, "f", "s", b"data")


@dataclass
class FakeLink:
    """An actor that answers when the test says so."""

    up: bool = True
    closed: bool = False
    transfers: list[tuple[int, Callable[[Outcome], None]]] = field(default_factory=list)

    def ready(self) -> bool:
        return self.up

    def send(self, policy: Policy, done: Callable[[Outcome], None]) -> None:
        self.transfers.append((policy.version, done))

    def close(self) -> None:
        self.closed = True

    @property
    def versions(self) -> list[int]:
        return [version for version, _ in self.transfers]

    def accept(self) -> None:
        version, done = self.transfers[-1]
        done(Outcome(True, "", version))

    def reject(self, reason: str, version: int = 0) -> None:
        self.transfers[-1][1](Outcome(False, reason, version))


class World:
    """A publisher, its links in order of connection, and what it reported."""

    def __init__(self) -> None:
        self.now = 0.0
        self.links: dict[str, list[FakeLink]] = {}
        self.accepted: list[tuple[str, int]] = []
        self.failed: list[tuple[str, int, str]] = []
        self.newer: list[tuple[str, int]] = []
        events = PublisherEvents(
            on_accepted=lambda name, policy, _: self.accepted.append((name, policy.version)),
            on_failed=lambda name, policy, why: self.failed.append((name, policy.version, why)),
            on_newer=lambda name, version: self.newer.append((name, version)),
        )
        self.publisher = Publisher(
            self.connect, lambda: self.now, timeout=10.0, retry=1.0, events=events
        )

    def connect(self, name: str) -> FakeLink:
        self.links.setdefault(name, []).append(FakeLink())
        return self.links[name][-1]

    def link(self, name: str = "a") -> FakeLink:
        return self.links[name][-1]

    def offer(self, version: int) -> None:
        self.publisher.offer(policy(version))
        self.publisher.poll()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.publisher.poll()


def test_a_slow_actor_gets_the_newest_version_not_a_queue() -> None:
    world = World()
    world.publisher.set_actors({"a": "1"})
    for version in range(1, 50):
        world.offer(version)
    assert world.link().versions == [1], "one transfer at a time"
    world.link().accept()
    assert world.link().versions == [1, 49]
    world.link().accept()
    assert world.link().versions == [1, 49]
    assert world.accepted == [("a", 1), ("a", 49)]


def test_a_slow_actor_does_not_delay_another() -> None:
    world = World()
    world.publisher.set_actors({"slow": "1", "fast": "1"})
    for version in (1, 2, 3):
        world.offer(version)
        world.link("fast").accept()
    assert world.link("fast").versions == [1, 2, 3]
    assert world.link("slow").versions == [1]


def test_a_new_actor_is_served_at_once() -> None:
    world = World()
    world.offer(7)
    world.publisher.set_actors({"a": "1"})
    world.publisher.poll()
    assert world.link().versions == [7]


def test_a_restarted_actor_is_served_again_even_in_mid_transfer() -> None:
    world = World()
    world.publisher.set_actors({"a": "1"})
    world.offer(3)
    first = world.link()
    world.publisher.set_actors({"a": "2"})
    world.publisher.poll()
    assert first.closed and world.link() is not first
    assert world.link().versions == [3]
    first.accept()  # the answer of the dead one does not count
    assert world.accepted == []
    world.link().accept()
    assert world.accepted == [("a", 3)]


def test_an_actor_that_left_is_forgotten() -> None:
    world = World()
    world.publisher.set_actors({"a": "1"})
    world.publisher.set_actors({})
    assert world.link().closed and world.publisher.actors == {}
    world.offer(1)
    assert world.link().versions == []


def test_nothing_is_sent_before_the_actor_can_be_reached() -> None:
    world = World()
    world.publisher.set_actors({"a": "1"})
    world.link().up = False
    world.offer(1)
    assert world.link().versions == []
    world.link().up = True
    world.wait(0.1)
    assert world.link().versions == [1]


def test_a_transfer_without_answer_is_given_up_and_tried_again_with_longer_pauses() -> None:
    world = World()
    world.publisher.set_actors({"a": "1"})
    world.offer(1)
    world.wait(9.9)
    assert world.failed == []
    for attempt, pause in enumerate((1.0, 2.0, 4.0), start=1):
        world.wait(10.1)
        assert len(world.failed) == attempt and "no answer" in world.failed[-1][2]
        assert world.links["a"][-2].closed
        world.wait(pause - 0.1)
        assert world.link().versions == []
        world.wait(0.2)
        assert world.link().versions == [1]
    world.link().accept()
    assert world.publisher.actors["a"].failures == 0


def test_the_retry_takes_the_newest_version() -> None:
    world = World()
    world.publisher.set_actors({"a": "1"})
    world.offer(1)
    world.offer(2)
    world.wait(10.1)
    world.wait(1.1)
    assert world.link().versions == [2]


def test_a_rejection_is_reported_and_not_repeated_until_the_next_version() -> None:
    world = World()
    world.publisher.set_actors({"a": "1"})
    world.offer(1)
    world.link().reject("fingerprint differs")
    for _ in range(20):
        world.wait(1.0)
    assert world.link().versions == [1]
    assert world.failed == [("a", 1, "fingerprint differs")]
    assert world.publisher.actors["a"].reason == "fingerprint differs"
    world.offer(2)
    assert world.link().versions == [1, 2]
    world.link().accept()
    assert world.publisher.actors["a"].reason == ""


def test_an_actor_that_has_the_version_already_is_up_to_date() -> None:
    world = World()
    world.publisher.set_actors({"a": "1"})
    world.offer(4)
    world.link().reject("not newer than mine", version=4)
    assert world.failed == [] and world.publisher.actors["a"].version == 4


def test_a_version_above_ours_is_told() -> None:
    world = World()
    world.publisher.set_actors({"a": "1"})
    world.offer(4)
    world.link().reject("older than mine", version=9)
    assert world.newer == [("a", 9)]


def test_the_age_is_that_of_the_newest_version() -> None:
    world = World()
    world.offer(1)
    world.now += 3.0
    assert world.publisher.age == 3.0
    world.offer(2)
    assert world.publisher.age == 0.0
