"""The newest policy to every actor, without ROS.

There is one slot, not a queue: an actor that is slow gets the newest version once its transfer
is through. At most one transfer runs per actor, each has a deadline, a failed one is tried again
after a pause that grows, and a policy that an actor rejects is reported and not sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Policy:
    """One version on its way. data: safetensors; sha256: of data, hexadecimal."""

    version: int
    fingerprint: str
    sha256: str
    data: bytes


@dataclass(frozen=True)
class Outcome:
    """How a transfer ended. version: the actor's version now."""

    accepted: bool
    reason: str
    version: int


class Link(Protocol):
    """The way to one actor."""

    def ready(self) -> bool:
        """The actor can be reached now."""

    def send(self, policy: Policy, done: Callable[[Outcome], None]) -> None:
        """Begin a transfer; `done` is called later, once, on the thread that polls."""

    def close(self) -> None:
        """Drop the link; a transfer under way is not reported any more."""


@dataclass
class ActorRecord:
    """One actor as the publisher sees it. instance: changes when the actor is restarted."""

    instance: str
    link: Link
    version: int | None = None
    """Version that the actor has confirmed."""
    sending: Policy | None = None
    rejected: int | None = None
    reason: str = ""
    """Why the newest transfer failed; empty after a success."""
    failures: int = 0
    transfer: int = 0
    started: float = 0.0
    retry_at: float = 0.0
    last_transfer_s: float = 0.0


@dataclass
class PublisherEvents:
    """What the owner of a publisher wants to hear. Called on the thread that polls."""

    on_accepted: Callable[[str, Policy, float], None] = field(default=lambda *_: None)
    on_failed: Callable[[str, Policy, str], None] = field(default=lambda *_: None)
    on_newer: Callable[[str, int], None] = field(default=lambda *_: None)
    """An actor holds a version above ours: an earlier learner was further when it died."""


class Publisher:
    """Conflating publication. `offer` may be called from any thread, the rest from one.

    connect: actor name -> Link. timeout: s that one transfer may take. retry: s of the first
    pause after a failed one, doubled up to `timeout`. clock: steady, s.
    """

    def __init__(
        self,
        connect: Callable[[str], Link],
        clock: Callable[[], float],
        *,
        timeout: float = 10.0,
        retry: float = 0.5,
        events: PublisherEvents | None = None,
    ) -> None:
        self.actors: dict[str, ActorRecord] = {}
        self._connect = connect
        self._clock = clock
        self._timeout = timeout
        self._retry = retry
        self._events = events or PublisherEvents()
        self._lock = threading.Lock()
        self._newest: Policy | None = None
        self._offered_at = clock()

    @property
    def newest(self) -> Policy | None:
        """Version that was offered last."""
        with self._lock:
            return self._newest

    @property
    def age(self) -> float:
        """Seconds since the newest version was offered (since the start, before the first)."""
        with self._lock:
            return self._clock() - self._offered_at

    def offer(self, policy: Policy) -> None:
        """Replace the version that actors get next."""
        with self._lock:
            self._newest = policy
            self._offered_at = self._clock()

    def set_actors(self, present: Mapping[str, str]) -> None:
        """Take note of who is there: actor name -> identity of its present life."""
        for name in [n for n in self.actors if n not in present]:
            self.actors.pop(name).link.close()
        for name, instance in present.items():
            known = self.actors.get(name)
            if known is None:
                self.actors[name] = ActorRecord(instance, self._connect(name))
            elif known.instance != instance:
                known.link.close()
                self.actors[name] = ActorRecord(instance, self._connect(name))

    def poll(self) -> None:
        """Give up what is overdue and begin the transfers that are due."""
        now = self._clock()
        newest = self.newest
        for name, actor in list(self.actors.items()):
            if actor.sending is not None and now - actor.started > self._timeout:
                self._give_up(name, actor, now)
            if newest is not None and self._due(actor, newest, now):
                self._send(name, actor, newest, now)

    def close(self) -> None:
        """Drop all links."""
        self.set_actors({})

    def _due(self, actor: ActorRecord, newest: Policy, now: float) -> bool:
        return (
            actor.sending is None
            and newest.version not in (actor.version, actor.rejected)
            and now >= actor.retry_at
            and actor.link.ready()
        )

    def _send(self, name: str, actor: ActorRecord, policy: Policy, now: float) -> None:
        actor.transfer += 1
        actor.sending = policy
        actor.started = now
        transfer = actor.transfer

        def done(outcome: Outcome) -> None:
            current = self.actors.get(name) is actor and actor.transfer == transfer
            if current and actor.sending is not None:
                self._finish(name, actor, policy, outcome)

        actor.link.send(policy, done)

    def _finish(self, name: str, actor: ActorRecord, policy: Policy, outcome: Outcome) -> None:
        now = self._clock()
        actor.sending = None
        actor.failures = 0
        actor.retry_at = now
        if outcome.accepted or outcome.version == policy.version:
            actor.version = policy.version
            actor.reason = ""
            actor.last_transfer_s = now - actor.started
            self._events.on_accepted(name, policy, actor.last_transfer_s)
        else:
            actor.rejected = policy.version
            actor.reason = outcome.reason or "rejected without a reason"
            self._events.on_failed(name, policy, actor.reason)
            if outcome.version > policy.version:
                self._events.on_newer(name, outcome.version)
        self.poll()

    def _give_up(self, name: str, actor: ActorRecord, now: float) -> None:
        sent, actor.sending = actor.sending, None
        actor.transfer += 1
        actor.failures += 1
        actor.reason = f"no answer within {self._timeout:g} s"
        actor.retry_at = now + min(self._retry * 2 ** (actor.failures - 1), self._timeout)
        actor.link.close()
        actor.link = self._connect(name)
        if sent is not None:
            self._events.on_failed(name, sent, actor.reason)
