"""`hil status`: what the running graph says of itself, for people or as JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

MANAGER = "/hil_manager"
_LEVELS = ("ok", "warning", "error", "stale")
_SETTLE = 0.5
"""Seconds after the last thing that was missing: latched messages may still be on their way."""


@dataclass(frozen=True)
class NodeStatus:
    """One node.

    Attributes:
        name: full name.
        state: lifecycle state.
        level: ok, warning, error or stale (it does not speak).
        text: what it says, or what hil_manager says of it.
        age_s: of its newest heartbeat; None: none was heard.
        values: everything else that it reports.
    """

    name: str
    state: str
    level: str
    text: str
    age_s: float | None
    values: Mapping[str, str] = field(default_factory=dict)

    def streams(self) -> list[str]:
        """Rates and ages of what it receives or does, in words."""
        found = []
        for key, rate in self.values.items():
            name, _, kind = key.rpartition(".")
            if kind == "rate_hz":
                age = self.values.get(f"{name}.age_s", "?")
                found.append(f"{name} {rate} Hz, {age} s ago")
        return found


@dataclass(frozen=True)
class Status:
    """The graph at one moment.

    Attributes:
        domain: number of the ROS domain.
        summary: what hil_manager says; "" if it says nothing.
        nodes: by name.
        learner: fields of LearnerStatus; None: no learner speaks.
        actors: fields of ActorState, by actor.
    """

    domain: int
    summary: str
    nodes: Sequence[NodeStatus]
    learner: Mapping[str, Any] | None
    actors: Sequence[Mapping[str, Any]]


@dataclass
class Heard:
    """What has come in.

    Attributes:
        diagnostics: name -> (level, message, values, when: s of the steady clock).
        summary: newest hil_manager/status.
        learner: newest LearnerStatus, as a mapping.
        actors: newest ActorState of each actor, as a mapping.
    """

    diagnostics: dict[str, tuple[int, str, dict[str, str], float]] = field(default_factory=dict)
    summary: str = ""
    learner: dict[str, Any] | None = None
    actors: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def missing(self) -> set[str]:
        """Names of nodes that are known, but were not heard."""
        return {MANAGER, *self.managed} - self.diagnostics.keys()

    @property
    def managed(self) -> dict[str, str]:
        """What hil_manager says of each node: "STATE: TEXT"."""
        _, _, values, _ = self.diagnostics.get(MANAGER, (0, "", {}, 0.0))
        return {name: said for name, said in values.items() if name.startswith("/")}

    def status(self, domain: int, now: float) -> Status:
        """Put it together. now: s of the steady clock."""
        names = sorted({*self.managed, *self.diagnostics})
        actors = [self.actors[name] for name in sorted(self.actors)]
        nodes = [self._node(name, now) for name in names]
        return Status(domain, self.summary, nodes, self.learner, actors)

    def _node(self, name: str, now: float) -> NodeStatus:
        state, _, said = self.managed.get(name, "").partition(": ")
        if name not in self.diagnostics:
            return NodeStatus(name, state or "unknown", "stale", said or "does not speak", None)
        level, message, values, at = self.diagnostics[name]
        word = _LEVELS[level] if level < len(_LEVELS) else str(level)
        own = values.get("state", state)
        rest = {k: v for k, v in values.items() if k != "state" and k not in self.managed}
        return NodeStatus(name, own, word, message, round(now - at, 3), rest)


def text(status: Status) -> str:
    """For people."""
    lines = [f"ROS domain {status.domain}: {status.summary or 'hil_manager does not speak'}", ""]
    rows = [("node", "state", "heartbeat", "")]
    for node in status.nodes:
        age = "-" if node.age_s is None else f"{node.age_s:.1f} s"
        level = "" if node.level == "ok" else f"{node.level}: "
        rows.append((node.name, node.state, age, level + node.text))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[3]]).rstrip())
    lines += ["", *_learner_lines(status.learner), *map(_actor_line, status.actors)]
    streams = [f"  {n.name}: {s}" for n in status.nodes for s in n.streams()]
    return "\n".join([*lines, *(["", "streams", *streams] if streams else [])]).rstrip()


def _learner_lines(learner: Mapping[str, Any] | None) -> list[str]:
    if learner is None:
        return ["learner: none speaks"]
    waits = f", waits for {learner['waiting_for']}" if learner["waiting_for"] else ""
    return [
        f"run {learner['run_id']}",
        f"learner: {learner['phase']}{waits}; {learner['env_steps']} training steps, "
        f"{learner['demo_steps']} demonstrated, {learner['episodes']} episodes; "
        f"{learner['updates']} updates ({learner['updates_per_s']:.1f} /s), "
        f"policy {learner['policy_version']}",
    ]


def _actor_line(actor: Mapping[str, Any]) -> str:
    waits = f" ({actor['text']})" if actor["text"] else ""
    drives = ", the person drives" if actor["intervened"] else ""
    return (
        f"{actor['actor_id']}: {actor['mode'] or 'idle'}, {actor['phase']}{waits}{drives}; "
        f"episode {actor['episode']}, step {actor['step']}, policy {actor['policy_version']}"
    )


def listen(seconds: float) -> Heard:
    """Listen to the graph for at most so many seconds; less where everybody has spoken."""
    import rclpy  # not there before set-up
    from rclpy.context import Context
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.node import Node
    from rclpy.signals import SignalHandlerOptions

    context = Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    executor = SingleThreadedExecutor(context=context)
    node = Node(f"hil_status_{os.getpid()}", context=context)
    executor.add_node(node)
    heard = Heard()
    try:
        look = _listener(node, heard)
        end, complete = time.monotonic() + seconds, None
        while (now := time.monotonic()) < end:
            look()
            executor.spin_once(timeout_sec=0.1)
            complete = None if heard.missing else complete or now
            if complete is not None and now - complete > _SETTLE:
                break
    finally:
        executor.shutdown()
        node.destroy_node()
        context.try_shutdown()
    return heard


def _listener(node: Any, heard: Heard) -> Callable[[], None]:
    """Function that subscribes to what has appeared; everything is written into `heard`."""
    from diagnostic_msgs.msg import DiagnosticArray
    from std_msgs.msg import String

    from hil_common import qos
    from hil_interfaces.msg import ActorState, LearnerStatus

    def on_diagnostics(message: DiagnosticArray) -> None:
        for each in message.status:
            values = {value.key: value.value for value in each.values}
            level = int.from_bytes(each.level, "little")
            heard.diagnostics[each.name] = (level, each.message, values, time.monotonic())

    def on_summary(message: String) -> None:
        heard.summary = message.data

    def on_learner(message: LearnerStatus) -> None:
        heard.learner = _fields(message)

    def on_actor(message: ActorState) -> None:
        heard.actors[message.actor_id] = _fields(message)

    node.create_subscription(DiagnosticArray, "/diagnostics", on_diagnostics, qos.DIAGNOSTICS)
    node.create_subscription(String, "hil_manager/status", on_summary, qos.LATCHED)
    wanted = {
        "hil_interfaces/msg/LearnerStatus": (LearnerStatus, on_learner),
        "hil_interfaces/msg/ActorState": (ActorState, on_actor),
    }
    known: set[str] = set()

    def look() -> None:
        for topic, kinds in node.get_topic_names_and_types():
            if topic not in known and kinds[0] in wanted:
                known.add(topic)
                message, callback = wanted[kinds[0]]
                node.create_subscription(message, topic, callback, qos.LATCHED)

    return look


def _fields(message: Any) -> dict[str, Any]:
    """Plain fields of a message; stamps and headers are left out."""
    kinds = (bool, int, float, str)
    values = {name: getattr(message, name) for name in message.get_fields_and_field_types()}
    return {name: value for name, value in values.items() if isinstance(value, kinds)}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of a command line; ends the process with a text on help or a mistake."""
    parser = argparse.ArgumentParser(
        prog="hil status",
        description="Shows the running graph: states, versions, ages, rates, who waits for what.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--wait", type=float, default=4.0, help="longest time to listen, s")
    return parser.parse_args(list(arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the graph; return the exit code: 1 if there is none."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    heard = listen(options.wait)
    domain = int(os.environ.get("ROS_DOMAIN_ID", "0"))
    if not heard.diagnostics:
        reach = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
        print(
            f"hil status: no graph runs in ROS domain {domain}, as far as discovery reaches "
            f"({reach}). ./hil up starts one; ROS_DOMAIN_ID names another domain",
            file=sys.stderr,
        )
        return 1
    status = heard.status(domain, time.monotonic())
    print(json.dumps(_finite(asdict(status))) if options.json else text(status))
    return 0


def _finite(value: Any) -> Any:
    """The same without NaN and infinities, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
