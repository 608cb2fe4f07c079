"""Lifecycle base of the project's nodes.

configure opens (`on_setup`), activate lets the node command (`on_start`), deactivate holds
(`on_hold`), cleanup and shutdown close (`on_close`). Each of the four may raise: the transition
then fails and the reason stands in /diagnostics. rclpy has no error transition out of ACTIVE by
itself, so an exception in a guarded callback deactivates the node: `on_hold` runs and the reason
stands in /diagnostics.
"""

from __future__ import annotations

import functools
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, ClassVar

from rclpy.context import Context
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from rclpy.service import Service
from rclpy.subscription import Subscription
from rclpy.timer import Timer

from hil_common.diagnostics import STEADY, Diagnostics
from hil_common.params import NodeParams, declare

RCLError = rclpy_implementation.RCLError
SUCCESS = TransitionCallbackReturn.SUCCESS
FAILURE = TransitionCallbackReturn.FAILURE


class HilNode(LifecycleNode):
    """A lifecycle node with typed parameters, diagnostics and guarded callbacks.

    Attributes:
        Params: dataclass of the node's parameters; a subclass of NodeParams.
        params: the values in force.
        active: whether the node may command.
    """

    Params: ClassVar[type[NodeParams]] = NodeParams
    params: Any

    def __init__(
        self,
        name: str,
        *,
        namespace: str | None = None,
        context: Context | None = None,
        parameter_overrides: Sequence[Parameter] | None = None,
    ) -> None:
        super().__init__(
            name,
            namespace=namespace,
            context=context,
            parameter_overrides=list(parameter_overrides or []),
        )
        self.params = declare(self, self.Params)
        self.active = False
        self.diagnostics = Diagnostics(self)
        self.diagnostics.set(
            pid=os.getpid(), host=socket.gethostname(), version=version("hil_common")
        )
        self._fault = ""
        self._show_state("unconfigured")
        service = self._service_change_state
        service.callback = self._refuse_impossible(service.callback)

    # What a node overrides.

    def on_setup(self) -> None:
        """Configure: open devices, create publishers. Raise to refuse."""

    def on_start(self) -> None:
        """Activate: from here on the node may command."""

    def on_hold(self) -> None:
        """Deactivate: bring everything to a safe standstill."""

    def on_close(self) -> None:
        """Cleanup or shutdown: close what on_setup opened."""

    # What a node calls.

    def subscribe(
        self,
        message: Any,
        topic: str,
        callback: Callable[[Any], None],
        profile: QoSProfile,
        **options: Any,
    ) -> Subscription:
        """Subscription whose callback is guarded."""
        return self.create_subscription(message, topic, self.guard(callback), profile, **options)

    def serve(
        self, service: Any, name: str, callback: Callable[[Any, Any], Any], **options: Any
    ) -> Service:
        """Service whose callback is guarded: a fault answers with the reason."""

        @functools.wraps(callback)
        def answer(request: Any, response: Any) -> Any:
            try:
                return callback(request, response)
            except Exception as error:
                self.fault(error)
                return refuse(service.Response(), str(error))

        return self.create_service(service, name, answer, **options)

    def every(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Timer on the steady clock whose callback is guarded."""
        return self.create_timer(seconds, self.guard(callback), clock=STEADY)

    def guard(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Wrap a callback: an exception in it becomes a fault of this node."""

        @functools.wraps(callback)
        def guarded(*args: Any, **kwargs: Any) -> None:
            try:
                callback(*args, **kwargs)
            except Exception as error:
                self.fault(error)

        return guarded

    def fault(self, reason: str | Exception) -> None:
        """Deactivate this node, with the reason in /diagnostics. Safe to call from any thread."""
        if isinstance(reason, Exception):
            trace = "".join(traceback.format_exception(reason))
            self.get_logger().error(trace)
            reason = f"{type(reason).__name__}: {reason}"
        self._fault = reason
        self.diagnostics.error(reason)
        if self.executor is not None:
            self.executor.create_task(self._deactivate_faulty)

    def waiting_for(self, text: str) -> None:
        """Say what the node waits for (empty: nothing)."""
        self.diagnostics.waiting_for(text)

    # Lifecycle callbacks of rclpy.

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run on_setup."""
        self._clear_fault()
        return self._transition(self.on_setup, "inactive")

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run on_start."""
        self._clear_fault()
        super().on_activate(state)
        self.active = True
        result = self._transition(self.on_start, "active")
        self.active = result == SUCCESS
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run on_hold."""
        self.active = False
        super().on_deactivate(state)
        return self._transition(self.on_hold, "inactive")

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Run on_close."""
        return self._transition(self.on_close, "unconfigured")

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Hold if active, then close if configured."""
        if self.active:
            self.active = False
            self._transition(self.on_hold, "inactive")
        if state.label != "unconfigured":
            self._transition(self.on_close, "finalized")
        return SUCCESS

    def _transition(self, step: Callable[[], None], goal: str) -> TransitionCallbackReturn:
        try:
            step()
        except Exception as error:
            self.get_logger().error(traceback.format_exc())
            self.diagnostics.error(f"{type(error).__name__}: {error}")
            return FAILURE
        self._show_state(goal)
        return SUCCESS

    def _refuse_impossible(self, change: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Answer a request for an impossible transition: rclpy lets it end the process."""

        def answer(request: Any, response: Any) -> Any:
            try:
                return change(request, response)
            except RCLError as error:
                wanted = request.transition.label or request.transition.id
                self.get_logger().warning(f"change_state to {wanted} refused: {error}")
                response.success = False
                return response

        return answer

    def _deactivate_faulty(self) -> None:
        if self._fault and self.active:
            self.trigger_deactivate()

    def _clear_fault(self) -> None:
        self._fault = ""
        self.diagnostics.error("")

    def _show_state(self, state: str) -> None:
        self.diagnostics.set(state=state)


def refuse(response: Any, reason: str) -> Any:
    """Fill a service response so that it refuses with a reason, whatever its field names are."""
    for field in ("ok", "success", "accepted"):
        if hasattr(response, field):
            setattr(response, field, False)
    for field in ("reason", "message", "error"):
        if hasattr(response, field):
            setattr(response, field, reason)
    return response
