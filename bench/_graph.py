"""A graph of its own for a benchmark: started, asked for episodes, listened to, stopped.

What is timed carries the publisher's own time stamp (DDS source time stamps, the wall clock of
this machine), so a benchmark process that is scheduled late falsifies nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import rclpy
import yaml
from _figures import Report, StepMark
from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rclpy.signals import SignalHandlerOptions
from std_msgs.msg import Bool, String

from hil_common import qos
from hil_interfaces.action import RunEpisodes
from hil_interfaces.msg import Step

START_LIMIT = 180.0
"""Seconds until the graph has to be ready."""
REST = 5.0
"""Seconds over which the graph at rest is measured."""
SILENCE_LIMIT = 60.0
"""Seconds without a step after which a run is given up."""
_STOP_LIMITS = ((signal.SIGINT, 60.0), (signal.SIGTERM, 20.0), (signal.SIGKILL, 30.0))
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class BenchError(RuntimeError):
    """The benchmark cannot go on; the text says why."""


def options(description: str, steps: Mapping[str, tuple[int, str]]) -> argparse.Namespace:
    """Command line of a benchmark.

    Args:
        description: what it measures.
        steps: name of an option -> default, help; numbers of steps.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    parser.add_argument("--seed", type=int, default=0, help="of everything")
    parser.add_argument("--task", default="peg_insert", help="what is done")
    for name, (default, text) in steps.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    parser.add_argument("--keep", metavar="FOLDER", help="keep run folders and logs there")
    return parser.parse_args()


def main(
    benchmark: Callable[[argparse.Namespace, Report], None], chosen: argparse.Namespace
) -> int:
    """Run a benchmark; return the exit code. SIGTERM ends it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        benchmark(chosen, Report(chosen.seed, chosen.json))
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def say(text: str) -> None:
    """Tell a person what goes on; figures alone go to standard output."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Setting:
    """A graph to measure.

    Attributes:
        task: overrides of the task, see config/tasks; with its name under "task".
        parameters: node -> parameters that differ from what the graph `sim` sets.
        files: name -> content of YAML files; a parameter with such a name gets the file's path.
        arguments: of the graph `sim`.
    """

    task: Mapping[str, Any]
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> tuple[Path, dict[str, str]]:
        """Write what the graph reads; return the task's file and the arguments."""
        for name, content in self.files.items():
            (folder / name).write_text(yaml.safe_dump(content))
        task_file = folder / "task.yaml"
        task_file.write_text(yaml.safe_dump(dict(self.task)))
        overrides = {
            node: {
                "ros__parameters": {
                    name: self._file(folder, value) for name, value in parameters.items()
                }
            }
            for node, parameters in self.parameters.items()
        }
        path = folder / "parameters.yaml"
        path.write_text(yaml.safe_dump(overrides))
        return task_file, {"params_file": str(path), **self.arguments}

    def _file(self, folder: Path, value: Any) -> Any:
        """Path of the file of that name; any other value as it is."""
        return str(folder / value) if isinstance(value, str) and value in self.files else value


@dataclass(frozen=True)
class Usage:
    """Processor time at one moment, s. processes: of each process of the graph, and `bench`."""

    at: float
    processes: Mapping[str, float]
    machine: float
    """Everything that was not idle, all cores."""

    def since(self, before: Usage) -> Usage:
        """Difference; a process that was replaced counts from its start."""
        return Usage(
            self.at - before.at,
            {n: max(0.0, v - before.processes.get(n, 0.0)) for n, v in self.processes.items()},
            self.machine - before.machine,
        )

    @property
    def others(self) -> float:
        """Percentage of the machine's cores that went to everything else."""
        rest = self.machine - sum(self.processes.values())
        return 100.0 * max(0.0, rest) / (self.at * (os.cpu_count() or 1))


class RunningGraph:
    """The processes of a graph. Use `running`."""

    def __init__(self, folder: Path, task_file: Path, arguments: Mapping[str, str]) -> None:
        self.run_folder = folder / "run"
        self.task_file = task_file
        self.domain = _domain()
        self._log = folder / "graph.log"
        given = {
            "task_file": str(task_file),
            "run_dir": str(folder),
            "run_id": "run",
            "monitor": "false",
            **arguments,
        }
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hil_bringup.up", "sim"]
                + [f"{name}:={value}" for name, value in given.items()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "ROS_DOMAIN_ID": str(self.domain)},
                start_new_session=True,
                preexec_fn=_stop_with_parent,
            )

    @property
    def ended(self) -> bool:
        """It has ended by itself."""
        return self._process.poll() is not None

    def usage(self) -> Usage:
        """Processor time used until now."""
        times = {"bench": _seconds(psutil.Process())}
        for name, process in self.processes().items():
            with suppress(psutil.NoSuchProcess):
                times[name] = _seconds(process)
        total = psutil.cpu_times()
        busy = sum(total) - total.idle - total.iowait - total.guest - total.guest_nice
        return Usage(time.monotonic(), times, busy)

    def processes(self) -> dict[str, psutil.Process]:
        """Processes of nodes, by name, that run now."""
        found = {}
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if name := _node_name(process):
                    found[name] = process
        return found

    def stop(self) -> None:
        """Stop everything, as Ctrl-C does."""
        for number, limit in _STOP_LIMITS:
            if self.ended:
                return
            self._process.send_signal(number)
            try:
                self._process.wait(limit)
            except subprocess.TimeoutExpired:
                say(f"the graph has not ended {limit:.0f} s after {number.name}")

    def last_words(self) -> str:
        """End of what the graph printed."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-30:])


@contextmanager
def folder(keep: str | None, name: str) -> Iterator[Path]:
    """A folder for a graph: temporary, or a new one in `keep`."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="hil-bench-") as temporary:
            yield Path(temporary)
        return
    path = Path(keep).absolute() / f"{name}-{time.strftime('%H%M%S')}"
    path.mkdir(parents=True)
    yield path


@contextmanager
def running(setting: Setting, seed: int, where: Path, *, actor: str = "actor") -> Iterator[Client]:
    """A graph that is ready, and its client; everything is stopped at the end.

    What the graph leaves is in the folder `where`. actor: see Client.
    """
    task_file, arguments = setting.write(where)
    graph = RunningGraph(where, task_file, {"seed": str(seed), **arguments})
    client = None
    try:
        client = Client(graph, actor)
        client.wait_ready()
        yield client
    finally:
        graph.stop()
        if client is not None:
            client.close()


class Client:
    """Listens to a graph and asks its actor for episodes.

    Attributes:
        graph: the processes.
        node: for further subscriptions.
        steps: number of step records received.
        ready: every node is active, as hil_manager says.
        status: what hil_manager says.

    Args:
        graph: to be listened to.
        actor: name of the actor whose steps are kept and which is asked for episodes; "": none.
    """

    def __init__(self, graph: RunningGraph, actor: str = "actor") -> None:
        self.graph = graph
        self.steps = 0
        self._raw: list[tuple[bytes, int]] = []
        self._marks: list[StepMark] = []
        self.ready, self.status = False, "waiting for hil_manager"
        self._context = Context()
        rclpy.init(
            context=self._context,
            domain_id=graph.domain,
            signal_handler_options=SignalHandlerOptions.NO,
        )
        self.node = Node("bench", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._runner: ActionClient | None = None
        self.node.create_subscription(Bool, "hil_manager/ready", self._on_ready, qos.LATCHED)
        self.node.create_subscription(String, "hil_manager/status", self._on_status, qos.LATCHED)
        if actor:
            self._runner = ActionClient(self.node, RunEpisodes, f"{actor}/run_episodes")
            self.listen(Step, "step", self._on_step, qos.STEP)

    def listen(
        self, message: Any, topic: str, heard: Callable[[bytes, int], None], profile: QoSProfile
    ) -> None:
        """Have serialized messages handed over with the time of their publication, ns.

        The queue is longer than the profile's: what one looks at later must not get lost.
        """
        deep = QoSProfile(
            depth=1000, reliability=profile.reliability, durability=profile.durability
        )

        def callback(data: bytes, info: Mapping[str, int]) -> None:
            heard(data, info["source_timestamp"])

        self.node.create_subscription(message, topic, callback, deep, raw=True)

    def spin(self, seconds: float) -> None:
        """Handle what comes within that time (at least one wait, at most one callback)."""
        self._executor.spin_once(timeout_sec=seconds)
        if self.graph.ended:
            raise BenchError(f"the graph has ended:\n{self.graph.last_words()}")

    def wait_ready(self) -> None:
        """Wait until every node is active and the actor, if there is to be one, can be asked.

        Raises:
            BenchError: it takes too long, or the graph has ended.
        """
        end = time.monotonic() + START_LIMIT
        while not (self.ready and (self._runner is None or self._runner.server_is_ready())):
            self.spin(0.2)
            if time.monotonic() > end:
                raise BenchError(f"not ready: {self.status}\n{self.graph.last_words()}")

    def rest(self, seconds: float = REST) -> Usage:
        """What the graph uses while it does nothing, over so many seconds."""
        before = self.graph.usage()
        while time.monotonic() - before.at < seconds:
            self.spin(0.2)
        return self.graph.usage().since(before)

    def run(self, goal: RunEpisodes.Goal, each_turn: Callable[[], None]) -> RunEpisodes.Result:
        """Have the actor run episodes to the end; `each_turn` is called again and again.

        Raises:
            BenchError: it is refused, fails, or no step comes for a long time.
        """
        assert self._runner is not None
        sent = self._runner.send_goal_async(goal)
        result = None
        heard, steps = time.monotonic(), self.steps
        while result is None or not result.done():
            self.spin(0.2)
            each_turn()
            if result is None and sent.done():
                if not sent.result().accepted:
                    raise BenchError("the actor does not accept the request")
                result = sent.result().get_result_async()
            if self.steps != steps:
                heard, steps = time.monotonic(), self.steps
            elif time.monotonic() - heard > SILENCE_LIMIT:
                raise BenchError(f"no step for {SILENCE_LIMIT:.0f} s\n{self.graph.last_words()}")
        answer = result.result()
        if answer.status != GoalStatus.STATUS_SUCCEEDED:
            raise BenchError(f"the episodes stopped: {answer.result.reason}")
        return answer.result

    def marks(self) -> list[StepMark]:
        """All steps received so far, in order."""
        raw, self._raw = self._raw, []
        for data, published in raw:
            step = deserialize_message(data, Step)
            self._marks.append(
                StepMark(
                    step.session, step.seq, step.episode, step.step, published, step.flags,
                    any(step.intervened),
                )
            )  # fmt: skip
        return self._marks

    def close(self) -> None:
        """Leave the graph."""
        self._executor.shutdown()
        self.node.destroy_node()
        self._context.try_shutdown()

    def _on_ready(self, message: Bool) -> None:
        self.ready = message.data

    def _on_status(self, message: String) -> None:
        self.status = message.data

    def _on_step(self, data: bytes, published: int) -> None:
        self.steps += 1
        self._raw.append((data, published))


def report_step_costs(report: Report, prefix: str, used: Usage, steps: int, rest: Usage) -> None:
    """Processor time per step of each process and of all.

    What the processes use anyhow is taken off: it is paid by the second, not by the step.

    Args:
        report: gets the figures.
        prefix: of their names.
        used: during the steps.
        steps: number of them.
        rest: while no steps were taken.
    """
    share = used.at / rest.at
    per_step = {
        name: 1e3 * (seconds - rest.processes.get(name, 0.0) * share) / steps
        for name, seconds in used.processes.items()
    }
    for name, milliseconds in sorted(per_step.items(), key=lambda item: -item[1]):
        report.add(f"{prefix}_cpu_ms_per_step.{name}", milliseconds, "ms", steps)
    report.add(f"{prefix}_cpu_ms_per_step.all", sum(per_step.values()), "ms", steps)


def report_load(report: Report, prefix: str, used: Usage, steps: int) -> None:
    """Share of one core of each process and of all, and of the machine for everything else."""
    for name, seconds in sorted(used.processes.items(), key=lambda item: -item[1]):
        report.add(f"{prefix}_core_pct.{name}", 1e2 * seconds / used.at, "%", steps)
    total = sum(used.processes.values())
    report.add(f"{prefix}_core_pct.all", 1e2 * total / used.at, "%", steps)
    report.add(f"{prefix}_other_load_pct", used.others, "%", steps)


def _domain() -> int:
    """Domain of the environment, else one that other runs on this machine hardly have."""
    return int(os.environ.get("ROS_DOMAIN_ID", 30 + os.getpid() % 70))


def _node_name(process: psutil.Process) -> str:
    """Name of a node, which has a parameter file of its own; "" of a process without a node."""
    for word in process.cmdline():
        if word.endswith(".yaml") and Path(word).parent.name == "parameters":
            return Path(word).stem
    return ""


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _stop_with_parent() -> None:
    """Runs in the child before its program: as Ctrl-C when the benchmark is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
