"""`hil up GRAPH key:=value ...`: start the processes of a graph under the supervisor."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from hil_bringup.arguments import ArgumentError, split
from hil_bringup.cli import shared_memory
from hil_bringup.console import FORMAT, Console
from hil_bringup.graph import GRAPHS, Graph, Node, graph, network_environment, stop_order
from hil_bringup.processes import process, process_name
from hil_bringup.supervisor import Process, Supervisor

CONSOLE_TOKEN = "HIL_CONSOLE_TOKEN"
"""Environment variable from which hil_monitor takes its token (a test compares them)."""


@dataclass(frozen=True)
class Request:
    """What is to be started."""

    graph: Graph
    values: SimpleNamespace

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.values.run_dir).expanduser().absolute() / str(self.values.run_id)


def parse(arguments: Sequence[str]) -> Request:
    """Graph and values of a command line; ends the process with a text on help or a mistake."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        sys.exit(0)
    try:
        chosen = graph(arguments[0])
        if any(a in ("-h", "--help", "--show-args", "-s") for a in arguments[1:]):
            print(_help(chosen))
            sys.exit(0)
        return Request(chosen, chosen.resolve(split(arguments[1:])))
    except ArgumentError as error:
        sys.exit(_usage_error(str(error)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a graph until Ctrl-C or until something required has died; return the exit code."""
    request = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        nodes = request.graph.nodes(request.values)
        return run(request, nodes)
    except ArgumentError as error:
        return _usage_error(str(error))


def run(
    request: Request,
    nodes: Sequence[Node],
    *,
    more: Sequence[Process] = (),
    console: Console | None = None,
) -> int:
    """Run the nodes and `more` processes (stopped first) of a request; return the exit code."""
    environment = {
        "RCUTILS_CONSOLE_OUTPUT_FORMAT": FORMAT,
        "RCUTILS_LOGGING_BUFFERED_STREAM": "1",
        "PYTHONUNBUFFERED": "1",
        "ROS_LOG_DIR": str(request.folder / "log" / "ros"),
        **os.environ,
        **network_environment(request.values),
    }
    processes = [
        *(process(n, request.folder, request.values.log_level, environment) for n in nodes),
        *more,
    ]
    console = console or Console(p.name for p in processes)
    removed = shared_memory.clean()
    if removed:
        console.show("", f"removed {removed} shared-memory files of killed processes")
    console.show("", f"run folder: {request.folder}")
    if any(node.name == "monitor" for node in nodes) and request.values.network == "lan":
        # To the terminal and to the process; never into a file, a log or a command line.
        token = environment.setdefault(CONSOLE_TOKEN, secrets.token_urlsafe(24))
        console.show("", f"console: https://{socket.gethostname()}:8642/login#{token}")
    order = [[process_name(node) for node in group] for group in stop_order(nodes)]
    supervisor = Supervisor(processes, order, environment, request.folder / "log", console.show)
    try:
        return asyncio.run(_run(supervisor))
    finally:
        shared_memory.clean()


async def _run(supervisor: Supervisor) -> int:
    return await supervisor.run()


def _overview() -> str:
    lines = ["usage: hil up GRAPH [key:=value ...]", "", "graphs:"]
    lines += [f"  {g.name:<14} {g.doc}" for g in GRAPHS.values()]
    return "\n".join([*lines, "", "hil up GRAPH --help shows the arguments of a graph."])


def _help(chosen: Graph) -> str:
    lines = [f"usage: hil up {chosen.name} [key:=value ...]", "", chosen.doc, "", "arguments:"]
    for argument in chosen.arguments:
        default = argument.default_text or "''"
        lines += [f"  {argument.name}:={default}", f"      {argument.text}"]
    return "\n".join(lines)


def _usage_error(text: str) -> int:
    print(f"hil up: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
