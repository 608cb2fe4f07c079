"""The graph side of policy publication: which actors there are, and the way to each."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from rclpy.action import ActionClient
from rclpy.action.graph import get_action_names_and_types
from rclpy.node import Node

from hil_interfaces.action import UpdatePolicy
from hil_learner.publisher import Outcome, Policy

_TYPE = "hil_interfaces/action/UpdatePolicy"


def find_actors(node: Node) -> dict[str, str]:
    """Return the action name of every actor in the graph, with the identity of its present life.

    The identity is that of the server's endpoint, so a restarted actor is a new one even while
    its killed predecessor still stands in the graph.
    """
    found = {}
    for name, types in get_action_names_and_types(node):
        if _TYPE not in types:
            continue
        servers = node.get_publishers_info_by_topic(f"{name}/_action/status")
        if servers:
            found[name] = " ".join(sorted(bytes(s.endpoint_gid).hex() for s in servers))
    return found


class ActionLink:
    """The way to one actor: its `update_policy` action.

    guard: wraps callbacks, so that an exception in one becomes a fault of the node.
    """

    def __init__(self, node: Node, name: str, guard: Callable[[Any], Any]) -> None:
        self._client = ActionClient(node, UpdatePolicy, name)
        self._guard = guard
        self._closed = False

    def ready(self) -> bool:
        """The actor's action server is matched."""
        return bool(self._client.server_is_ready())

    def send(self, policy: Policy, done: Callable[[Outcome], None]) -> None:
        """Send the policy as a goal; the result is the outcome."""
        goal = UpdatePolicy.Goal(
            version=policy.version,
            fingerprint=policy.fingerprint,
            sha256=policy.sha256,
            data=array("B", policy.data),
        )

        def on_response(future: Any) -> None:
            if self._closed:
                return
            handle = future.result()
            if handle.accepted:
                handle.get_result_async().add_done_callback(self._guard(on_result))
            else:
                done(Outcome(False, "the actor did not accept the transfer", 0))

        def on_result(future: Any) -> None:
            if not self._closed:
                result = future.result().result
                done(Outcome(result.accepted, result.reason, result.version))

        self._client.send_goal_async(goal).add_done_callback(self._guard(on_response))

    def close(self) -> None:
        """Drop the client; nothing is reported any more."""
        self._closed = True
        self._client.destroy()
