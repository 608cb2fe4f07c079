"""Node `hil_manager`: brings the lifecycle nodes of the graph up, keeps them up, and reports."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import TransitionEvent
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.client import Client
from rclpy.task import Future
from std_msgs.msg import Bool, String
from std_srvs.srv import Trigger

from hil_bringup.lifecycle_plan import Health, Plan, State, Timing, Transition
from hil_common import qos
from hil_common.lifecycle import HilNode
from hil_common.params import NodeParams, param
from hil_common.run import main as run

_DIGITS = re.compile(r"\d+")
_ANSWER_LIMIT = 1.0
"""Seconds after which get_state is asked anew: what was asked of a process that has just been
replaced may be lost."""
_LOG_PERIOD = 2.0
"""Seconds between two lines about what is under way."""
_STACK_LIMIT = 3.0
"""Seconds that a wedged process has to print its stack and end, before SIGKILL."""


@dataclass(frozen=True)
class ManagerParams(NodeParams):
    """Parameters of hil_manager."""

    nodes: tuple[str, ...] = param((), "full names of the lifecycle nodes, in the order of start")
    hold_on_fault: tuple[str, ...] = param(
        (), "those that a person activates again after a fault (hil_manager/retry)"
    )
    poll_period_s: float = param(
        0.25, "time between two looks at nodes that are not active", low=0.05, high=10.0
    )
    active_poll_period_s: float = param(
        2.0, "time between two looks at an active node", low=0.1, high=60.0
    )
    heartbeat_limit_s: float = param(
        5.0, "silence after which a node counts as not responding", low=1.0, high=600.0
    )
    end_wedged_after_s: float = param(
        30.0,
        "silence after which a process that still runs is ended, so that its supervisor starts it "
        "again; only processes that have the same parent as hil_manager; 0: never",
        low=0.0,
        high=3600.0,
    )
    fault_retries: int = param(
        3, "how often in a minute a node is activated again after a fault", low=0, high=1000
    )


@dataclass
class _Contact:
    """Clients of one node, and its unanswered get_state."""

    get_state: Client
    change_state: Client
    asked: Future | None = None
    asked_at: float = 0.0


class ManagerNode(HilNode):
    """Publishes `hil_manager/ready` (Bool) and `hil_manager/status` (text), both latched."""

    Params = ManagerParams
    params: ManagerParams

    def __init__(self, **options: Any) -> None:
        super().__init__("hil_manager", **options)
        self._logged, self._logged_at = "", 0.0
        self._looked_at = 0.0
        self._ending: dict[int, float] = {}
        self._news: tuple[bool, frozenset[str]] | None = None
        self._said: tuple[bool, str] | None = None
        self._ready = self.create_publisher(Bool, "hil_manager/ready", qos.LATCHED)
        self._status = self.create_publisher(String, "hil_manager/status", qos.LATCHED)

    def on_setup(self) -> None:
        """Make the clients of all nodes."""
        timing = Timing(
            heartbeat_limit=self.params.heartbeat_limit_s,
            wedged_limit=self.params.end_wedged_after_s,
            fault_retries=self.params.fault_retries,
        )
        self.plan = Plan(self.params.nodes, self.params.hold_on_fault, timing)
        self._contacts = {name: self._contact(name) for name in self.plan.names}
        self._entities = [
            self.subscribe(DiagnosticArray, "/diagnostics", self._on_diagnostics, qos.DIAGNOSTICS),
            *(
                self.subscribe(
                    TransitionEvent, f"{name}/transition_event", self._on_event(name), qos.EVENT
                )
                for name in self.plan.names
            ),
        ]
        self._retry_service = self.serve(Trigger, "hil_manager/retry", self._on_retry)

    def on_start(self) -> None:
        """Begin to look."""
        self._looked_at = time.monotonic()
        self._timer = self.every(self.params.poll_period_s, self._look)
        self._look()

    def on_hold(self) -> None:
        """Leave all nodes as they are."""
        self.destroy_timer(self._timer)

    def on_close(self) -> None:
        """Remove the clients."""
        for contact in self._contacts.values():
            self.destroy_client(contact.get_state)
            self.destroy_client(contact.change_state)
        for entity in self._entities:
            self.destroy_subscription(entity)
        self.destroy_service(self._retry_service)

    def _contact(self, name: str) -> _Contact:
        return _Contact(
            self.create_client(GetState, f"{name}/get_state"),
            self.create_client(ChangeState, f"{name}/change_state"),
        )

    # ------------------------------------------------------------------------ what is seen

    def _look(self) -> None:
        now = time.monotonic()
        self._notice_own_pause(now)
        states = {report.name: report.state for report in self.plan.reports(now)}
        for name, contact in self._contacts.items():
            if not contact.get_state.service_is_ready():
                self._forget(contact)
                self.plan.saw_nothing(name, process_runs=_is_ours(self.plan.process(name)))
                continue
            active = states[name] == State.ACTIVE
            period = self.params.active_poll_period_s if active else self.params.poll_period_s
            if contact.asked and now - contact.asked_at > _ANSWER_LIMIT:
                self._forget(contact)
            if contact.asked is None and now - contact.asked_at >= period:
                self._ask(name, contact, now)
        self._act(now)
        self._end_wedged(now)

    def _notice_own_pause(self, now: float) -> None:
        """Hold nothing against the nodes that happened while this process was stopped itself."""
        late = now - self._looked_at - self.params.poll_period_s
        self._looked_at = now
        if late > 1.0:
            self.plan.overslept(late)

    def _ask(self, name: str, contact: _Contact, now: float) -> None:
        def answered(future: Future) -> None:
            if contact.asked is not None and contact.asked is future:
                contact.asked = None
                response: Any = future.result()
                self._saw(name, response.current_state.id)

        asked = contact.get_state.call_async(GetState.Request())
        contact.asked, contact.asked_at = asked, now
        asked.add_done_callback(self.guard(answered))

    def _forget(self, contact: _Contact) -> None:
        if contact.asked is not None:
            contact.get_state.remove_pending_request(contact.asked)
            contact.asked = None

    def _on_event(self, name: str) -> Callable[[TransitionEvent], None]:
        """A transition was made: time to ask for the state.

        The event itself is not taken for it: it may arrive after the answer to a later request.
        """

        def look(event: TransitionEvent) -> None:
            contact = self._contacts[name]
            self._forget(contact)
            if self.active and contact.get_state.service_is_ready():
                self._ask(name, contact, time.monotonic())

        return look

    def _saw(self, name: str, state: int) -> None:
        now = time.monotonic()
        if state in {int(known) for known in State if known != State.UNKNOWN}:
            self.plan.saw_state(name, State(state), now)
        self._act(now)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        now = time.monotonic()
        for status in message.status:
            if status.name in self._contacts:
                values = {value.key: value.value for value in status.values}
                level = Health(int.from_bytes(status.level, "little"))
                self.plan.heard(
                    status.name, level, status.message, values.get("state", ""), now,
                    _process(values),
                )  # fmt: skip

    # -------------------------------------------------------------------------- what is done

    def _act(self, now: float) -> None:
        if not self.active:
            return
        for name, transition in self.plan.due(now):
            self._request(name, transition)
        self._say(now)

    def _request(self, name: str, transition: Transition) -> None:
        request = ChangeState.Request()
        request.transition.id = int(transition)
        # With the label an impossible transition is refused; by number alone it ends rclpy's node.
        request.transition.label = transition.name.lower()
        contact = self._contacts[name]

        def answered(future: Future) -> None:
            self._forget(contact)  # its answer may be older than this one
            now = time.monotonic()
            response: Any = future.result()
            self.plan.answered(name, bool(response.success), now)
            self._act(now)

        future = contact.change_state.call_async(request)
        future.add_done_callback(self.guard(answered))

    def _end_wedged(self, now: float) -> None:
        """End processes that do not respond; whoever has started them starts them again."""
        for name, process, silent in self.plan.wedged(now):
            if not _is_ours(process):
                continue
            self.get_logger().error(
                f"{name}: process {process} runs, but has not responded for {silent:.0f} s; "
                "ending it (SIGABRT, so that its stack is in the crash report)"
            )
            self._ending[process] = now
            _send(process, signal.SIGABRT)
            _send(process, signal.SIGCONT)
        for process, since in list(self._ending.items()):
            if not _is_ours(process):
                del self._ending[process]
            elif now - since > _STACK_LIMIT:
                _send(process, signal.SIGKILL)

    def _on_retry(self, request: Any, response: Any) -> Any:
        self.plan.retry(time.monotonic())
        response.success = True
        return response

    def _say(self, now: float) -> None:
        ready, summary = self.plan.ready(now), self.plan.summary(now)
        if self._said != (ready, summary):
            self._said = (ready, summary)
            self._ready.publish(Bool(data=ready))
            self._status.publish(String(data=summary))
        self._log(now, ready, summary)
        self.diagnostics.set(
            ready=ready,
            **{r.name: f"{r.state.name.lower()}: {r.text}" for r in self.plan.reports(now)},
        )

    def _log(self, now: float, ready: bool, summary: str) -> None:
        """Log what has changed: at once when it is good or bad news, else now and then."""
        bad = {r.text for r in self.plan.reports(now) if r.health in (Health.ERROR, Health.STALE)}
        news = (ready, frozenset(_DIGITS.sub("", text) for text in bad))
        logged = _DIGITS.sub("", summary)
        if news == self._news and (logged == self._logged or now - self._logged_at < _LOG_PERIOD):
            return
        self._news, self._logged, self._logged_at = news, logged, now
        self.get_logger().info(summary)


def _process(values: Mapping[str, str]) -> int:
    """Id of the process that diagnostics name, if it may be ended; else 0."""
    pid = values.get("pid", "")
    if values.get("host") != socket.gethostname() or not pid.isdecimal():
        return 0
    return int(pid) if _is_ours(int(pid)) else 0


def _is_ours(process: int) -> bool:
    """Tell whether a process runs that the same supervisor has started as this one.

    Nothing else is ever sent a signal, whatever a message names.
    """
    parent = os.getppid()
    if process <= 1 or parent <= 1:
        return False
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return False
    state, its_parent = status.rsplit(")", 1)[1].split()[:2]
    return int(its_parent) == parent and state not in ("Z", "X")


def _send(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)


def main() -> None:
    """Entry point."""
    run(ManagerNode)


if __name__ == "__main__":
    main()
