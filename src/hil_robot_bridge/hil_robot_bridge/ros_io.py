"""rclpy pieces that let the bridge wait without blocking and without polling coroutines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

from rclpy.action import ActionClient, ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.callback_groups import CallbackGroup
from rclpy.client import Client
from rclpy.qos import QoSProfile
from rclpy.service import Service
from rclpy.subscription import Subscription
from rclpy.task import Future

from hil_common.lifecycle import HilNode, refuse
from hil_robot_bridge.drivers.base import DriverError
from hil_robot_bridge.fibers import Cancelled, Fiber, Promise, TimedOut, Timeouts


def promise_of(future: Future) -> Promise[Any]:
    """Promise that is kept when an rclpy future is done."""
    promise: Promise[Any] = Promise()

    def settle(done: Future) -> None:
        error = done.exception()
        if error is not None:
            promise.fail(DriverError(str(error)))
        else:
            promise.keep(done.result())

    future.add_done_callback(settle)
    return promise


async def call(client: Client, request: Any, timeouts: Timeouts, seconds: float) -> Any:
    """Response of a service.

    Raises:
        DriverError: there is no such service.
        TimedOut: no answer in time.
    """
    name = client.srv_name
    if not client.service_is_ready():
        raise DriverError(f"service {name} is not there")
    future = client.call_async(request)
    try:
        return await timeouts.wait(promise_of(future), seconds, f"service {name}")
    finally:
        client.remove_pending_request(future)


async def run_goal(
    client: ActionClient, name: str, goal: Any, timeouts: Timeouts, seconds: float
) -> tuple[int, Any]:
    """Status (action_msgs/GoalStatus) and result of an action.

    Raises:
        DriverError: there is no such action, or it rejected the goal.
        TimedOut: it was not accepted or did not end in time.
    """
    if not client.server_is_ready():
        raise DriverError(f"action {name} is not there")
    what = f"action {name}"
    accepted = await timeouts.wait(promise_of(client.send_goal_async(goal)), seconds, what)
    if not accepted.accepted:
        raise DriverError(f"{what} rejected the goal")
    answer = await timeouts.wait(promise_of(accepted.get_result_async()), seconds, what)
    return int(answer.status), answer.result


class _NeverExecuted(CallbackGroup):
    """Keeps the executor's hands off a subscription that is polled."""

    def can_execute(self, entity: Any) -> bool:
        return False

    def beginning_execution(self, entity: Any) -> bool:
        return False

    def ending_execution(self, entity: Any) -> None:
        return None


class PolledSubscription:
    """Newest message of a topic, taken when asked for: fast topics cost nothing in between.

    Args:
        node: owner.
        message: type.
        topic: name.
        profile: QoS, depth 1.
        raw: give the serialized bytes.
    """

    def __init__(
        self, node: HilNode, message: Any, topic: str, profile: QoSProfile, raw: bool = False
    ) -> None:
        self._delivered: Any = None
        self.subscription: Subscription = node.create_subscription(
            message, topic, self._deliver, profile, callback_group=_NeverExecuted(), raw=raw
        )

    @property
    def topic(self) -> str:
        """Resolved name of the topic."""
        return str(self.subscription.topic_name)

    def take(self) -> Any:
        """Return the newest message since the last call, or None."""
        subscription = self.subscription
        with subscription.handle:
            taken = subscription.handle.take_message(subscription.msg_type, subscription.raw)
        if taken is not None:
            self._delivered = None
            return taken[0]
        delivered, self._delivered = self._delivered, None
        return delivered

    def _deliver(self, message: Any) -> None:
        """For executors that know no callback groups (EventsExecutor)."""
        self._delivered = message


class DeferredService:
    """Service whose answer comes from a coroutine; meanwhile the executor goes on.

    An error of the coroutine is answered as a refusal with its text.

    Args:
        node: owner.
        service: type.
        name: of the service.
        answer: coroutine function of the request; fills and returns the response.
    """

    _PENDING = object()

    def __init__(
        self,
        node: HilNode,
        service: Any,
        name: str,
        answer: Callable[[Any, Any], Coroutine[Any, None, Any]],
    ) -> None:
        self._answer = answer
        self._started: _Exchange | None = None
        self.service: Service = node.serve(service, name, self._begin)
        self._send = self.service.send_response
        # Every executor of rclpy sends what the callback returned through this method.
        self.service.send_response = self._send_or_wait

    def _begin(self, request: Any, response: Any) -> Any:
        exchange = _Exchange()
        self._started = exchange
        Fiber(self._answer(request, response), functools.partial(self._end, exchange, response))
        return self._PENDING

    def _send_or_wait(self, response: Any, header: Any) -> None:
        if response is not self._PENDING:
            self._send(response, header)
            return
        exchange, self._started = self._started, None
        assert exchange is not None
        exchange.header = header
        self._finish(exchange)

    def _end(
        self, exchange: _Exchange, response: Any, value: Any, error: Exception | None
    ) -> None:
        exchange.response = refuse(response, str(error)) if error is not None else value
        self._finish(exchange)

    def _finish(self, exchange: _Exchange) -> None:
        if exchange.header is not None and exchange.response is not None:
            self._send(exchange.response, exchange.header)


class _Exchange:
    """One request that is being answered."""

    def __init__(self) -> None:
        self.header: Any = None
        self.response: Any = None


class FiberAction:
    """Action server whose goals run as fibers, one at a time.

    A goal stays `accepted` (not `executing`) while it runs, because rclpy's execute callback
    would have to block or to poll. It can be cancelled all the same.

    Args:
        node: owner.
        action: type.
        name: of the action.
        run: coroutine function of the goal handle; returns a result with `ok` and `reason`.
    """

    def __init__(
        self,
        node: HilNode,
        action: Any,
        name: str,
        run: Callable[[ServerGoalHandle], Coroutine[Any, None, Any]],
    ) -> None:
        self._node = node
        self._run = run
        self._action = action
        self._fibers: dict[bytes, Fiber] = {}
        self._closed = False
        self.server = ActionServer(
            node,
            action,
            name,
            execute_callback=self._never,
            goal_callback=lambda _: GoalResponse.ACCEPT,
            handle_accepted_callback=node.guard(self._begin),
            cancel_callback=self._cancel,
        )

    def cancel_all(self) -> None:
        """Cancel what runs."""
        for fiber in list(self._fibers.values()):
            fiber.cancel()

    def destroy(self) -> None:
        """Stop what runs, with no answer to whoever asked, and close the server."""
        if not self._closed:
            self._closed = True
            self.cancel_all()
            self.server.destroy()

    def _begin(self, handle: ServerGoalHandle) -> None:
        key = bytes(handle.goal_id.uuid)
        fiber = Fiber(self._run(handle), functools.partial(self._end, key, handle))
        if fiber.alive:
            self._fibers[key] = fiber

    def _end(
        self, key: bytes, handle: ServerGoalHandle, value: Any, error: Exception | None
    ) -> None:
        self._fibers.pop(key, None)
        if self._closed:
            return
        result = value
        if isinstance(error, Cancelled | DriverError | TimedOut):
            result = self._action.Result(ok=False, reason=str(error) or "cancelled")
        elif error is not None:
            self._node.fault(error)
            result = self._action.Result(ok=False, reason=str(error))

        def conclude(goal: ServerGoalHandle) -> Any:
            if goal.is_cancel_requested:
                goal.canceled()
            elif result.ok:
                goal.succeed()
            else:
                goal.abort()
            return result

        handle.execute(conclude)

    def _cancel(self, handle: ServerGoalHandle) -> CancelResponse:
        fiber = self._fibers.get(bytes(handle.goal_id.uuid))
        if fiber is None:
            return CancelResponse.REJECT
        # The goal becomes `canceling` when this callback has returned; only then may it end.
        self._node.executor.create_task(self._node.guard(fiber.cancel))
        return CancelResponse.ACCEPT

    def _never(self, handle: ServerGoalHandle) -> Any:
        raise RuntimeError("goals run as fibers")
