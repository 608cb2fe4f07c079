"""The policy in force, and how a newer one gets there. No ROS.

There is one slot, not a queue: of several policies that wait, only the newest is decoded. Checking
and decoding happen on a thread of their own; the control loop reads `PolicySlot.current` at the
start of a step.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

from hil_rl.policy import Policy, PolicyError
from hil_rl.spaces import Spaces


@dataclass(frozen=True)
class Verdict:
    """What became of an offered policy. version: the one in force now."""

    accepted: bool
    reason: str
    version: int


@dataclass(frozen=True)
class Offer:
    """A policy that was sent. data: safetensors. done: called once, on any thread."""

    version: int
    fingerprint: str
    sha256: str
    data: bytes
    done: Callable[[Verdict], None]


class PolicySlot:
    """Holds the newest policy.

    Args:
        first: policy to begin with.
        spaces: that a policy has to fit.
        fingerprint: of the task's specification.
        max_bytes: larger ones are rejected unread.
    """

    def __init__(self, first: Policy, spaces: Spaces, fingerprint: str, max_bytes: int) -> None:
        self._current = first
        self._spaces = spaces
        self._fingerprint = fingerprint
        self._max_bytes = max_bytes
        self._condition = threading.Condition()
        self._waiting: Offer | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="policy", daemon=True)
        self._thread.start()

    @property
    def current(self) -> Policy:
        """Policy to act with."""
        return self._current

    def offer(self, offer: Offer) -> None:
        """Take a policy in; `offer.done` tells what becomes of it."""
        reason = self._objection(offer)
        if reason:
            offer.done(self._reject(reason))
            return
        with self._condition:
            older, self._waiting = self._waiting, offer
            self._condition.notify()
        if older is not None:
            older.done(self._reject(f"superseded by version {offer.version}"))

    def close(self) -> None:
        """End the thread; a policy that waits is rejected."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()
        if self._waiting is not None:
            self._waiting.done(self._reject("the actor is closing"))
            self._waiting = None

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting is not None or self._closed)
                if self._closed:
                    return
                offer, self._waiting = self._waiting, None
            assert offer is not None
            offer.done(self._install(offer))

    def _objection(self, offer: Offer) -> str:
        """Why an offer is not worth decoding, or ""."""
        if not 0 < len(offer.data) <= self._max_bytes:
            return f"data has {len(offer.data)} bytes, 1 to {self._max_bytes} are allowed"
        if offer.fingerprint != self._fingerprint:
            return (
                f"the policy is for specification {offer.fingerprint[:12]!r}, "
                f"this actor's is {self._fingerprint[:12]!r}"
            )
        if offer.version < self._current.version:
            return f"version {offer.version} is older than {self._current.version}, which is here"
        return ""

    def _install(self, offer: Offer) -> Verdict:
        if hashlib.sha256(offer.data).hexdigest() != offer.sha256.lower():
            return self._reject("the data does not have the sha256 that was given")
        try:
            policy = Policy.decode(
                offer.data, self._spaces, self._fingerprint, max_bytes=self._max_bytes
            )
        except PolicyError as error:
            return self._reject(str(error))
        if policy.version != offer.version:
            return self._reject(
                f"the data is version {policy.version}, version {offer.version} was announced"
            )
        if policy.version < self._current.version:
            return self._reject(f"version {self._current.version} is here")
        self._current = policy
        return Verdict(True, "", policy.version)

    def _reject(self, reason: str) -> Verdict:
        return Verdict(False, reason, self._current.version)
