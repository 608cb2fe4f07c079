"""What hil_manager does next with each node: a state machine without ROS.

Inputs are what is seen (lifecycle states, heartbeats, answers to requests) with the steady time of
it; outputs are the transitions to ask for now and a text for a person. Nodes may appear, disappear
and come back in any order; a node that came back is configured and activated again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class State(enum.IntEnum):
    """Lifecycle states as lifecycle_msgs/State numbers them; UNKNOWN: the node is not there."""

    UNKNOWN = 0
    UNCONFIGURED = 1
    INACTIVE = 2
    ACTIVE = 3
    FINALIZED = 4


class Transition(enum.IntEnum):
    """Transitions as lifecycle_msgs/Transition numbers them."""

    CONFIGURE = 1
    ACTIVATE = 3


_GOALS = {Transition.CONFIGURE: State.INACTIVE, Transition.ACTIVATE: State.ACTIVE}


class Health(enum.IntEnum):
    """How a node does, as diagnostic_msgs/DiagnosticStatus levels."""

    OK = 0
    WARN = 1
    ERROR = 2
    STALE = 3


@dataclass(frozen=True)
class Timing:
    """Periods in seconds."""

    retry: float = 0.5
    """Before a failed transition is tried again; doubled with every failure."""
    longest_retry: float = 5.0
    request_limit: float = 120.0
    """After which an unanswered transition counts as failed."""
    lost_limit: float = 2.0
    """After which an unanswered transition of a node that still answers counts as never received:
    its process was replaced by a new one."""
    verdict_limit: float = 3.0
    """How long a node that deactivated itself may take to say why."""
    heartbeat_limit: float = 5.0
    """Silence on /diagnostics after which a node counts as not responding."""
    wedged_limit: float = 30.0
    """Silence after which a process that still runs is to be ended; 0: never."""
    fault_retries: int = 3
    """How often a node that deactivated itself is activated again..."""
    fault_window: float = 60.0
    """... within this time."""


@dataclass
class _Node:
    state: State = State.UNKNOWN
    requested: Transition | None = None
    requested_at: float = 0.0
    failures: int = 0
    next_try: float = 0.0
    was_active: bool = False
    undecided_since: float | None = None
    """When it became inactive by itself; its next heartbeat tells whether by a fault."""
    faults: tuple[float, ...] = ()
    held: str = ""
    """Why it is left alone until a person asks for another try; empty: it is not."""
    heard_at: float | None = None
    process: int = 0
    """Process id, of a process that may be ended; 0: none known."""
    busy: bool = False
    """It has not said anything since it was asked for a transition, which may take long."""
    level: Health = Health.OK
    message: str = ""
    answered_at: float = 0.0


@dataclass(frozen=True)
class Report:
    """One node as a person should see it."""

    name: str
    state: State
    health: Health
    text: str


class Plan:
    """Brings nodes to ACTIVE and keeps them there.

    Args:
        names: fully qualified names, in the order in which they are brought up.
        hold_on_fault: nodes that a person has to wake up after a fault (an arm's bridge).
        timing: periods.
    """

    def __init__(
        self, names: Sequence[str], hold_on_fault: Iterable[str] = (), timing: Timing | None = None
    ) -> None:
        self._nodes = {name: _Node() for name in names}
        self._hold_on_fault = frozenset(hold_on_fault)
        self._timing = timing or Timing()
        unknown = self._hold_on_fault - self._nodes.keys()
        if unknown:
            raise ValueError(f"hold_on_fault names unknown nodes: {', '.join(sorted(unknown))}")

    @property
    def names(self) -> list[str]:
        """Full names of the nodes."""
        return list(self._nodes)

    # ------------------------------------------------------------------------- what is seen

    def saw_state(self, name: str, state: State, now: float) -> None:
        """The node said in which state it is."""
        node = self._nodes[name]
        node.answered_at, node.busy = now, False
        if state == node.state:
            if node.requested and now - node.requested_at > self._timing.lost_limit:
                node.requested = None
            return
        before, node.state = node.state, state
        if state == State.ACTIVE:
            node.was_active, node.failures, node.held = True, 0, ""
            node.undecided_since = None
        elif before == State.UNKNOWN or state == State.UNCONFIGURED:
            # A new life of the process, or somebody cleaned it up.
            node.was_active, node.requested = False, None
            node.failures, node.next_try, node.held = 0, now, ""
            node.undecided_since = None
        elif state == State.INACTIVE and node.was_active:
            node.was_active, node.undecided_since = False, now

    def saw_nothing(self, name: str, *, process_runs: bool = False) -> None:
        """The node is not in the graph. process_runs: its process is still there, though."""
        old = self._nodes[name]
        self._nodes[name] = new = _Node(faults=old.faults)
        if process_runs:
            new.process, new.heard_at, new.answered_at = old.process, old.heard_at, old.answered_at

    def heard(
        self,
        name: str,
        level: Health,
        message: str,
        state: str,
        now: float,
        process: int = 0,
    ) -> None:
        """The node's own diagnostics arrived.

        Args:
            name: of the node.
            level: how it does.
            message: the same in words.
            state: the lifecycle state that it names.
            now: steady time, s.
            process: id of its process, if that may be ended; 0: it may not.
        """
        node = self._nodes[name]
        node.heard_at, node.level, node.message = now, level, message
        node.process, node.busy = process, False
        if node.undecided_since is not None and state != "active":
            self._deactivated(name, node, now, fault=level == Health.ERROR)

    def answered(self, name: str, success: bool, now: float) -> None:
        """A transition was carried out or refused. States seen before that are history."""
        node = self._nodes[name]
        transition, node.requested = node.requested, None
        node.busy = False
        if not success:
            self._failed(node, now)
        elif transition is not None:
            self.saw_state(name, _GOALS[transition], now)

    def overslept(self, seconds: float) -> None:
        """Nobody was listening for so long: that was not the nodes' silence."""
        for node in self._nodes.values():
            node.answered_at += seconds
            if node.heard_at is not None:
                node.heard_at += seconds

    def retry(self, now: float) -> None:
        """A person asks for another try with the nodes that are held."""
        for node in self._nodes.values():
            if node.held:
                node.held, node.faults, node.failures, node.next_try = "", (), 0, now

    # --------------------------------------------------------------------- what is to be done

    def due(self, now: float) -> list[tuple[str, Transition]]:
        """Transitions to ask for now. Each counts as asked for until `answered`."""
        wanted = {
            State.UNCONFIGURED: Transition.CONFIGURE,
            State.INACTIVE: Transition.ACTIVATE,
        }
        asks = []
        for name, node in self._nodes.items():
            if node.requested and now - node.requested_at > self._timing.request_limit:
                node.requested = None
                self._failed(node, now)
            undecided = node.undecided_since
            if undecided is not None and now - undecided > self._timing.verdict_limit:
                self._deactivated(name, node, now, fault=True)
            transition = wanted.get(node.state)
            if transition is None or node.requested or node.held or now < node.next_try:
                continue
            if node.undecided_since is not None:
                continue
            node.requested, node.requested_at, node.busy = transition, now, True
            asks.append((name, transition))
        return asks

    def wedged(self, now: float) -> list[tuple[str, int, float]]:
        """Name, process and silence (s) of those whose process is to be ended. Each comes once."""
        limit = self._timing.wedged_limit
        found = []
        for name, node in self._nodes.items():
            silent = self._silence(node, now)
            if limit and node.process and not node.busy and silent > limit:
                found.append((name, node.process, silent))
                node.process = 0
        return found

    def process(self, name: str) -> int:
        """Process id of a node, where it may be ended; 0: unknown."""
        return self._nodes[name].process

    # ------------------------------------------------------------------------ for a person

    def ready(self, now: float) -> bool:
        """All nodes are active, and none has fallen silent."""
        return all(
            report.state == State.ACTIVE and report.health != Health.STALE
            for report in self.reports(now)
        )

    def reports(self, now: float) -> list[Report]:
        """All nodes, in the order of the names."""
        return [self._report(name, node, now) for name, node in self._nodes.items()]

    def summary(self, now: float) -> str:
        """One line: 'all nodes active', or who is not, and why; then who waits for what."""
        reports = self.reports(now)
        told = [r for r in reports if r.health != Health.OK]
        told += [r for r in reports if r.health == Health.OK and r.text.startswith("waiting for ")]
        names: dict[str, list[str]] = {}
        for report in told:
            names.setdefault(report.text, []).append(report.name)
        texts = [f"{', '.join(who)}: {text}" for text, who in names.items()]
        return "; ".join(texts) or "all nodes active"

    def _report(self, name: str, node: _Node, now: float) -> Report:
        silent = self._silence(node, now)
        if node.state == State.UNKNOWN:
            return Report(name, node.state, Health.STALE, self._absence(node, silent))
        if silent > self._timing.heartbeat_limit:
            text = f"not responding for {silent:.0f} s"
            return Report(name, node.state, Health.STALE, text)
        if node.held:
            return Report(name, node.state, Health.ERROR, node.held)
        if node.state == State.FINALIZED:
            return Report(name, node.state, Health.ERROR, "has shut down")
        if node.state != State.ACTIVE:
            doing = node.requested.name.lower() if node.requested else node.state.name.lower()
            failed = f", failed {node.failures} times" if node.failures else ""
            reason = f": {node.message}" if node.message not in ("", "ok") else ""
            health = Health.ERROR if node.failures else Health.WARN
            return Report(name, node.state, health, f"{doing}{failed}{reason}")
        return Report(name, node.state, node.level, node.message or "ok")

    def _absence(self, node: _Node, silent: float) -> str:
        """What is known of a node that is not in the graph."""
        if not node.process:
            return "not started or not found yet"
        if silent <= self._timing.heartbeat_limit:
            return f"has left the graph, process {node.process} still runs"
        return f"not responding for {silent:.0f} s, but process {node.process} runs"

    def _silence(self, node: _Node, now: float) -> float:
        last = max(node.answered_at, node.heard_at if node.heard_at is not None else 0.0)
        return now - last

    # --------------------------------------------------------------------------- internals

    def _failed(self, node: _Node, now: float) -> None:
        delay = self._timing.retry * 2**node.failures
        node.failures += 1
        node.next_try = now + min(delay, self._timing.longest_retry)

    def _deactivated(self, name: str, node: _Node, now: float, *, fault: bool) -> None:
        """An active node became inactive by itself: by a fault, or because a person did it."""
        node.undecided_since = None
        if not fault:
            node.held = "deactivated by somebody; hil_manager/retry activates it again"
            return
        window = self._timing.fault_window
        node.faults = (*(t for t in node.faults if now - t < window), now)
        if name in self._hold_on_fault:
            node.held = f"holds after a fault ({node.message}); hil_manager/retry activates it"
        elif len(node.faults) > self._timing.fault_retries:
            node.held = (
                f"{len(node.faults)} faults in {window:.0f} s, the last: {node.message}; "
                "hil_manager/retry activates it again"
            )
        else:
            node.next_try = now + self._timing.retry
