"""The messages of the log: their topics, and bytes to objects and back. No graph is involved."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from builtin_interfaces.msg import Time
from rclpy.serialization import deserialize_message, serialize_message

from hil_interfaces.msg import Annotation, LearnerUpdates, Step
from hil_learner.definitions import definition, message_type
from hil_learner.ingest import ANNOTATION_TOPIC, STEP_TOPIC, UPDATES_TOPIC
from hil_learner.mcap_file import Topic
from hil_learner.step_bag import StepBag

_CLASSES = {STEP_TOPIC: Step, ANNOTATION_TOPIC: Annotation, UPDATES_TOPIC: LearnerUpdates}

TYPES = {topic: message_type(each) for topic, each in _CLASSES.items()}
"""Topic -> message type."""


@dataclass(frozen=True)
class Updates:
    """Updates first, first + 1, ... made on one revision of the store."""

    first: int
    count: int
    seen: int


def topics() -> list[Topic]:
    """Return the topics of a learner's log."""
    return [Topic(name, TYPES[name], definition(each)) for name, each in _CLASSES.items()]


def decode_step(data: bytes) -> Any:
    """Return bytes as hil_interfaces/Step; raises on others."""
    return deserialize_message(data, Step)


def decode_annotation(data: bytes) -> Any:
    """Return bytes as hil_interfaces/Annotation; raises on others."""
    return deserialize_message(data, Annotation)


def decode_updates(data: bytes) -> Updates:
    """Return bytes of hil_interfaces/LearnerUpdates; raises on others."""
    message = deserialize_message(data, LearnerUpdates)
    return Updates(int(message.first), int(message.count), int(message.seen))


def encode_updates(updates: Updates) -> bytes:
    """Return the serialization of hil_interfaces/LearnerUpdates, stamped now."""
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    stamp = Time(sec=seconds, nanosec=nanoseconds)
    return bytes(serialize_message(LearnerUpdates(stamp=stamp, **vars(updates))))


class UpdateRecorder:
    """Notes updates in a log, one record for those made on the same revision of the store.

    See `hil_learner.training.UpdateLog`; belongs to the training thread.
    """

    def __init__(self, bag: StepBag) -> None:
        self._bag = bag
        self._row = Updates(0, 0, -1)

    def note_update(self, number: int, seen: int) -> None:
        """Update `number` was made on revision `seen` of the store."""
        row = self._row
        follows = seen == row.seen and number == row.first + row.count
        self._row = (
            Updates(row.first, row.count + 1, seen) if follows else Updates(number, 1, seen)
        )
        self._bag.later(UPDATES_TOPIC, encode_updates(self._row), replaces=follows)

    def flush(self) -> int:
        """Write what was noted; return the number of records in the log."""
        return self._bag.flush()
