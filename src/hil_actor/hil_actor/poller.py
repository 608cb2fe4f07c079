"""Waiting for messages on the thread that needs them, without an executor.

rclpy's executors rebuild a wait set and a task for every message, and hand the message from their
thread to the one that waits for it. A control loop waits for a known handful of messages: here
they are taken and handled on its own thread, inside `Poller.wait`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from rclpy.action import ActionClient
from rclpy.callback_groups import CallbackGroup
from rclpy.client import Client
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription
from rclpy.task import Future

Predicate = Callable[[], Any]

# Longest single wait (s): so soon a shutdown of the context is noticed.
_SLICE = 0.5
# After how long without an action's result it is asked for again (s).
_ASK_AGAIN = 5.0


def never() -> bool:
    """Predicate of a wait that only lets time pass."""
    return False


class Interrupted(Exception):
    """The wait was given up because its thread is to stop."""


class CallTimeout(Exception):
    """A service or action did not answer in time; the text says which."""


class ManualGroup(CallbackGroup):
    """Entities that no executor serves: a Poller does."""

    def can_execute(self, entity: Any) -> bool:
        """Return False, for executors."""
        return False

    def beginning_execution(self, entity: Any) -> bool:
        """Return False, for executors."""
        return False

    def ending_execution(self, entity: Any) -> None:
        """Nothing was begun."""


class Poller:
    """Subscriptions and clients of one node that one thread waits for.

    Every method but `interrupt`, `resume` and `wake` belongs to that thread once waiting began.

    Args:
        node: owns the entities; it may be spun by an executor, which does not see them.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._group = ManualGroup()
        self._subscriptions: list[tuple[Subscription, Callable[[Any], None]]] = []
        self._clients: list[Client] = []
        self._actions: list[ActionClient] = []
        self._guard = node.create_guard_condition(None, callback_group=self._group)
        self._interrupted = threading.Event()
        self._wait_set: Any = None

    def subscribe(
        self, message: Any, topic: str, callback: Callable[[Any], None], profile: QoSProfile
    ) -> Subscription:
        """Subscription whose callback runs inside `wait`."""
        subscription = self._node.create_subscription(
            message, topic, callback, profile, callback_group=self._group
        )
        self._subscriptions.append((subscription, callback))
        self._wait_set = None
        return subscription

    def client(self, service: Any, name: str) -> Client:
        """Client of a service, for `call`."""
        client = self._node.create_client(service, name, callback_group=self._group)
        self._clients.append(client)
        self._wait_set = None
        return client

    def action(self, action: Any, name: str) -> ActionClient:
        """Client of an action, for `run`."""
        client = ActionClient(self._node, action, name, callback_group=self._group)
        self._actions.append(client)
        self._wait_set = None
        return client

    def close(self) -> None:
        """Destroy the entities."""
        for subscription, _ in self._subscriptions:
            self._node.destroy_subscription(subscription)
        for client in self._clients:
            self._node.destroy_client(client)
        for action in self._actions:
            action.destroy()
        self._node.destroy_guard_condition(self._guard)
        self._subscriptions, self._clients, self._actions = [], [], []
        self._wait_set = None

    def interrupt(self) -> None:
        """Make the present wait and all further ones raise Interrupted. From any thread."""
        self._interrupted.set()
        self.wake()

    def resume(self) -> None:
        """End `interrupt`."""
        self._interrupted.clear()

    def wake(self) -> None:
        """Have the waiting thread look at its predicate. From any thread."""
        self._guard.trigger()

    def wait(self, predicate: Predicate, timeout: float) -> bool:
        """Handle messages until `predicate()` is true or `timeout` s have passed.

        Returns:
            Whether the predicate is true.

        Raises:
            Interrupted: by `interrupt`, or the context was shut down.
        """
        end = time.monotonic() + timeout
        while not predicate():
            if self._interrupted.is_set() or not self._node.context.ok():
                raise Interrupted
            remaining = end - time.monotonic()
            if remaining <= 0.0:
                return False
            self._serve(min(remaining, _SLICE))
        return True

    def poll(self) -> None:
        """Handle what is there, without waiting."""
        self._serve(0.0)

    def call(self, client: Client, request: Any, timeout: float) -> Any:
        """Response of a service.

        Raises:
            CallTimeout: no server, or no answer within `timeout` s.
            Interrupted: see `wait`.
        """
        if not client.service_is_ready():
            self.wait(client.service_is_ready, min(timeout, _SLICE))
        future = client.call_async(request)
        try:
            if not self.wait(lambda: not future._pending(), timeout):
                raise CallTimeout(f"{client.srv_name} did not answer within {timeout:g} s")
        finally:
            client.remove_pending_request(future)
        return future.result()

    def run(
        self,
        client: ActionClient,
        goal: Any,
        timeout: float,
        feedback: Callable[[Any], None] | None = None,
        give_up: Predicate = never,
    ) -> Any:
        """Run an action to its end and return its result message.

        Args:
            client: from `action`.
            goal: goal message.
            timeout: s; afterwards the goal is cancelled.
            feedback: gets every feedback message.
            give_up: if true, the goal is cancelled. It is lost with its server, too.

        Raises:
            CallTimeout: not accepted, or not finished in time.
            Interrupted: see `wait`; the goal is cancelled.
        """
        name = client._action_name
        if not self.wait(client.server_is_ready, min(timeout, 5.0)):
            raise CallTimeout(f"there is no action server {name}")
        on_feedback = None if feedback is None else lambda message: feedback(message.feedback)
        sent = client.send_goal_async(goal, feedback_callback=on_feedback)
        if not self._done(sent, min(timeout, 5.0)):
            raise CallTimeout(f"{name} did not answer within 5 s")
        handle = sent.result()
        if not handle.accepted:
            raise CallTimeout(f"{name} did not accept the goal")
        results: list[Future] = []

        def finished() -> bool:
            return any(not result._pending() for result in results)

        def lost() -> bool:
            return bool(give_up()) or not client.server_is_ready()

        end = time.monotonic() + timeout
        try:
            while not (finished() or (results and lost())) and time.monotonic() < end:
                # Asked again now and then: an answer may be lost on its way.
                results.append(handle.get_result_async())
                self.wait(lambda: finished() or lost(), min(_ASK_AGAIN, end - time.monotonic()))
        finally:
            if not finished():
                handle.cancel_goal_async()
        for result in results:
            if not result._pending():
                return result.result().result
        raise CallTimeout(f"{name} was given up, lost, or not finished within {timeout:g} s")

    def _done(self, future: Future, timeout: float) -> bool:
        return self.wait(lambda: not future._pending(), timeout)

    def _build(self) -> Any:
        entities = [action.get_num_entities() for action in self._actions]
        subscriptions = sum(e.num_subscriptions for e in entities) + len(self._subscriptions)
        clients = sum(e.num_clients for e in entities) + len(self._clients)
        guards = sum(e.num_guard_conditions for e in entities) + 1
        return _rclpy.WaitSet(subscriptions, guards, 0, clients, 0, 0, self._node.context.handle)

    def _serve(self, timeout: float) -> None:
        """Wait once, at most `timeout` s, and handle everything that is ready."""
        wait_set = self._wait_set
        if wait_set is None:
            wait_set = self._wait_set = self._build()
        wait_set.clear_entities()
        for subscription, _ in self._subscriptions:
            wait_set.add_subscription(subscription.handle)
        for client in self._clients:
            wait_set.add_client(client.handle)
        wait_set.add_guard_condition(self._guard.handle)
        for action in self._actions:
            action.add_to_wait_set(wait_set)
        wait_set.wait(int(timeout * 1e9))
        ready = [action for action in self._actions if action.is_ready(wait_set)]
        for index, (subscription, callback) in enumerate(self._subscriptions):
            if wait_set.is_ready("subscription", index):
                self._take(subscription, callback)
        for index, client in enumerate(self._clients):
            if wait_set.is_ready("client", index):
                _answer(client)
        for action in ready:
            _drive(action.execute(action.take_data()))

    @staticmethod
    def _take(subscription: Subscription, callback: Callable[[Any], None]) -> None:
        taken = subscription.handle.take_message(subscription.msg_type, subscription.raw)
        if taken is not None:
            callback(taken[0])


def _answer(client: Client) -> None:
    header, response = client.handle.take_response(client.srv_type.Response)
    if header is None:
        return
    try:
        future = client.get_pending_request(header.request_id.sequence_number)
    except KeyError:
        return  # given up meanwhile
    future.set_result(response)


def _drive(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that awaits nothing to its end."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise RuntimeError("an action client's handler awaited something")
