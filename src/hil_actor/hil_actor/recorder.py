"""Step records: made once, serialized once; the same bytes are published, kept and sent."""

from __future__ import annotations

import array
from collections.abc import Callable
from dataclasses import dataclass

from rclpy.serialization import serialize_message

from hil_actor.control_step import Flag
from hil_actor.env import Transition
from hil_actor.step_store import StepStore
from hil_common.conversions import from_ns
from hil_common.tensors import to_msgs
from hil_interfaces.msg import Step

_NO_FLOATS = array.array("f")
_KINDS = {"demo": Flag.DEMO, "train": Flag(0), "evaluate": Flag.EVALUATION}


@dataclass(frozen=True)
class Place:
    """Where a step belongs.

    Attributes:
        mode: demo, train or evaluate.
        episode, step: within the session, within the episode.
        policy_version: that acted; 0 for none.
    """

    mode: str
    episode: int
    step: int
    policy_version: int


class StepRecorder:
    """Turns transitions into records.

    Args:
        store: gets every record before it is published, and commits it on a thread of its own.
        publish: puts the bytes on the `step` topic.
        fingerprint, actor_id, session, task: the same in all records.
        frame: frame_id of the records.
    """

    def __init__(
        self,
        store: StepStore,
        publish: Callable[[bytes], None],
        *,
        fingerprint: str,
        actor_id: str,
        session: str,
        task: str,
        frame: str = "base",
    ) -> None:
        self._store = store
        self._publish = publish
        self._message = Step(
            fingerprint=fingerprint, actor_id=actor_id, session=session, task=task
        )
        self._message.header.frame_id = frame

    @property
    def run_id(self) -> str:
        """Run that the records belong to; to be set before the first one."""
        return self._message.run_id

    @run_id.setter
    def run_id(self, value: str) -> None:
        self._message.run_id = value

    def record(self, done: Transition, place: Place, interrupted: bool = False) -> int:
        """Hand over and publish one step; return its number.

        Args:
            done: the step; terminated or truncated on the last one of an episode.
            place: where it belongs.
            interrupted: it is the last one because the actor ends the episode, not the task.

        Raises:
            StoreFull: nothing was handed over.
        """
        message = self._message
        message.header.stamp = from_ns(done.stamp)
        message.seq = self._store.last_seq + 1
        message.episode, message.step = place.episode, place.step
        message.policy_version = place.policy_version
        message.observation = to_msgs(done.observation)
        message.action = array.array("f", done.action.tobytes())
        message.policy_action = (
            _NO_FLOATS if done.proposal is None else array.array("f", done.proposal.tobytes())
        )
        message.intervened = list(done.intervened)
        message.reward = done.reward
        message.terminated = done.terminated
        message.truncated = done.truncated or interrupted
        message.success = done.success
        message.grasp_penalty = array.array("f", done.grasp_penalty.tobytes())
        message.flags = int(
            done.flags | _KINDS[place.mode] | (Flag.INTERRUPTED if interrupted else Flag(0))
        )
        last = message.terminated or message.truncated
        message.final_observation = to_msgs(done.next_observation) if last else []
        data = bytes(serialize_message(message))
        seq = self._store.append(data)
        assert seq == message.seq, "the store has another writer"
        self._publish(data)
        return seq
