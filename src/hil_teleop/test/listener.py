"""Collects what arrives on a topic, for the node tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray

from hil_common.testing import Ros


class Listener:
    """Everything that arrives on a topic.

    Attributes:
        messages: in the order of arrival.
    """

    def __init__(self, ros: Ros, kind: Any, topic: str, profile: Any) -> None:
        self.ros = ros
        self.messages: list[Any] = []
        node = ros.node(f"listener_{topic.strip('/').replace('/', '_')}")
        node.create_subscription(kind, topic, self.messages.append, profile)

    def wait(self, predicate: Callable[[Any], bool], what: str = "") -> Any:
        """First message from now on that fulfils the predicate."""
        start = len(self.messages)

        def found() -> Any:
            return next((m for m in self.messages[start:] if predicate(m)), None)

        return self.ros.wait_for(found, what=what)


def diagnosed(message: DiagnosticArray, node: str, text: str) -> bool:
    """Whether a node says this in its diagnostics."""
    return any(s.name.endswith(node) and text in s.message for s in message.status)
