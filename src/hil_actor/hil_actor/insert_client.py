"""The way to the learner's `insert_steps` service."""

from __future__ import annotations

import array
from collections.abc import Sequence

from rclpy.node import Node

from hil_actor.poller import CallTimeout, Interrupted, Poller
from hil_actor.sender import Reply
from hil_actor.step_store import Committed, Stream
from hil_interfaces.msg import StepBytes
from hil_interfaces.srv import InsertSteps


class InsertClient:
    """Transport of a Sender. Waits on the sender's own thread, so it works without an executor."""

    def __init__(self, node: Node) -> None:
        self._poller = Poller(node)
        self._client = self._poller.client(InsertSteps, "learner/insert_steps")

    def ready(self) -> bool:
        """The service is there."""
        return bool(self._client.service_is_ready())

    def wait_ready(self, timeout: float) -> bool:
        """Wait until the service is there, at most `timeout` s; return whether it is."""
        return self._poller.wait(self.ready, timeout)

    def insert(self, stream: Stream, steps: Sequence[Committed], timeout: float) -> Reply:
        """Call the service.

        Raises:
            TimeoutError: no answer within `timeout` s, or interrupted.
        """
        request = InsertSteps.Request(
            run_id=stream.run_id,
            fingerprint=stream.fingerprint,
            actor_id=stream.actor_id,
            session=stream.session,
            steps=[StepBytes(seq=s.seq, data=array.array("B", s.data)) for s in steps],
        )
        try:
            answer = self._poller.call(self._client, request, timeout)
        except (CallTimeout, Interrupted) as error:
            raise TimeoutError(str(error) or "interrupted") from error
        return Reply(
            answer.status, answer.reason, answer.run_id, answer.last_seq, answer.wanted_seq
        )

    def interrupt(self) -> None:
        """Break off a call under way. From any thread."""
        self._poller.interrupt()

    def close(self) -> None:
        """Destroy the client; after the sender's thread has ended."""
        self._poller.close()
