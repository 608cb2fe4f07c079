"""Subscriptions that are looked at instead of being called back: fast topics cost nothing between.

Not for the EventsExecutor, which knows no callback groups.
"""

from __future__ import annotations

from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription


class NeverExecuted(CallbackGroup):
    """Entities that no executor serves."""

    def can_execute(self, entity: Any) -> bool:
        """Return False, for executors."""
        return False

    def beginning_execution(self, entity: Any) -> bool:
        """Return False, for executors."""
        return False

    def ending_execution(self, entity: Any) -> None:
        """Nothing was begun."""


class PolledSubscription:
    """Newest message of a topic, taken when asked for, from any one thread.

    Args:
        node: owner.
        message: type.
        topic: name.
        profile: QoS, depth 1.
    """

    def __init__(self, node: Node, message: Any, topic: str, profile: QoSProfile) -> None:
        self._node = node
        self._subscription: Subscription = node.create_subscription(
            message, topic, _unused, profile, callback_group=NeverExecuted()
        )

    def take(self) -> Any:
        """Return the newest message since the last call, or None."""
        subscription = self._subscription
        with subscription.handle:
            taken = subscription.handle.take_message(subscription.msg_type, subscription.raw)
        return None if taken is None else taken[0]

    def close(self) -> None:
        """Remove the subscription."""
        self._node.destroy_subscription(self._subscription)


def _unused(message: Any) -> None:
    raise AssertionError("no executor serves a polled subscription")
