"""What the system tests start and watch: the processes of a graph, its topics, its traces.

Nothing here sleeps for a fixed time: everything waits for what it needs, with limits that are
generous enough for a busy machine.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
from action_msgs.msg import GoalStatus
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.srv import GetState
from rclpy.action import ActionClient
from rclpy.qos import QoSProfile, QoSReliabilityPolicy
from rclpy.serialization import deserialize_message
from std_msgs.msg import Bool, String

from hil_bringup import processes
from hil_bringup.cli import shared_memory
from hil_bringup.graph import Node, graph
from hil_common import qos
from hil_common.tensors import from_msgs
from hil_common.testing import Ros
from hil_interfaces.action import RunEpisodes
from hil_interfaces.msg import ActorState, EpisodeSummary, LearnerStatus, RobotState, Step

ROOT = Path(__file__).resolve().parents[1]

GENEROUS = 200.0
"""Seconds that a busy machine may take for what takes a few."""

_MARK = "HIL_SYSTEM_TEST"
"""Environment variable of every process of a test's graph; its value names the test."""

_DOMAINS = range(215, 231)
"""Other tests use lower ones; the ports of these are above the usual ephemeral ports."""

_SHARED_MEMORY = Path("/dev/shm")
_SEGMENT = re.compile(r"(?:fastrtps|fastdds)_(?:[0-9a-f]{16}|port\d+)")


class Gone(AssertionError):
    """What was to be watched has ended."""


def wait_for(
    condition: Callable[[], Any],
    what: str,
    limit: float = GENEROUS,
    explain: Callable[[], str] = str,
) -> Any:
    """Wait until `condition()` is true and return its value.

    Args:
        condition: looked at many times a second.
        what: is awaited; for the message when it does not come.
        limit: s.
        explain: adds to that message.
    """
    pause, end = threading.Event(), time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit:g} s for {what}\n{explain()}")
        pause.wait(0.02)
    return value


class Domain:
    """A ROS domain that nobody else on this machine uses, and the traces of what ran in it."""

    def __init__(self) -> None:
        self.mark = str(uuid.uuid4())
        self.number = -1
        self._lock: TextIO | None = None

    def __enter__(self) -> Domain:
        self.number = wait_for(self._reserve, "a free ROS domain")
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self.processes(), "killed processes to end")
        shared_memory.clean()
        assert self._lock is not None
        self._lock.close()

    def _reserve(self) -> int:
        """Number of a domain that is reserved now, or 0. The kernel ends it with this process."""
        for number in _DOMAINS:
            path = Path(tempfile.gettempdir()) / f"hil-system-test-domain-{number}"
            with ExitStack() as stack, suppress(OSError):  # locked, or another user's
                lock = stack.enter_context(path.open("a"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                stack.pop_all()
                self._lock = lock
                return number
        return 0

    def environment(self, folder: Path) -> dict[str, str]:
        """Environment of a process in this domain that keeps its traces in `folder`."""
        return {
            **os.environ,
            "ROS_DOMAIN_ID": str(self.number),
            "ROS_HOME": str(folder / "ros_home"),
            "PYTHONUNBUFFERED": "1",
            _MARK: self.mark,
        }

    def processes(self) -> dict[int, str]:
        """Command lines, by process id, of all that was started with `environment` and runs."""
        wanted = f"{_MARK}={self.mark}".encode()
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (path / "environ").read_bytes().split(b"\0"):
                    words = (path / "cmdline").read_bytes().split(b"\0")
                    found[int(path.name)] = " ".join(w.decode() for w in words).strip()
            except OSError:
                continue  # it has just ended, or is another user's
        return found

    def pid(self, executable: str) -> int:
        """Process id of a node, by the name of its executable; 0: it does not run."""
        pids = [pid for pid, line in self.processes().items() if f"/{executable} " in line]
        assert len(pids) < 2, f"{executable} runs more than once"
        return pids[0] if pids else 0

    def segments(self) -> set[str]:
        """Names of the shared-memory segments and ports of DDS that the processes use."""
        return set().union(*(_mapped(pid) for pid in self.processes()))

    @staticmethod
    def left_over(segments: Iterable[str]) -> set[str]:
        """Those of these segments that still exist although no process has them mapped.

        Numbers of ports are given to the next process that wants one, also in other domains.
        """
        exist = {found[0] for p in _SHARED_MEMORY.iterdir() if (found := _SEGMENT.search(p.name))}
        left = exist & set(segments)
        if left:
            pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
            left = left.difference(*(_mapped(pid) for pid in pids))
        return left


def _mapped(pid: int) -> set[str]:
    """Names of the DDS segments that a process has mapped."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return set()  # it has just ended, or is another user's
    lines = (line for line in text.splitlines() if str(_SHARED_MEMORY) in line)
    return {name for line in lines for name in _SEGMENT.findall(line)}


class Graph:
    """The graph `sim`, by `hil up` or one node after the other, in a process each.

    Args:
        domain: to run in.
        folder: for the run folder and all other files.
        arguments: of the graph, beside run_id and run_dir.
    """

    def __init__(self, domain: Domain, folder: Path, **arguments: object) -> None:
        self.domain = domain
        self.folder = folder
        self.arguments = {
            "monitor": "false",
            **{key: str(value) for key, value in arguments.items()},
            "run_id": "run",
            "run_dir": str(folder),
        }
        described = graph("sim")
        self.nodes = {n.name: n for n in described.nodes(described.resolve(self.arguments))}
        self.managed = sorted(n.full_name for n in self.nodes.values() if n.managed)
        self._environment = domain.environment(folder)
        self._output = (folder / "output.log").open("a")
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs; the kind way is a matter of the tests."""
        for process in self._started:
            process.kill()
        for process in self._started:
            process.wait(GENEROUS)
        self._output.close()

    def up(self) -> subprocess.Popen[bytes]:
        """Start `./hil up sim`, as a shell does: in a process group of its own."""
        words = [f"{key}:={value}" for key, value in self.arguments.items()]
        return self.run([sys.executable, str(ROOT / "hil"), "up", "--no-setup", "sim", *words])

    def start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """Start one node by itself."""
        node = self.nodes[name]
        command = processes.process(node, self.folder / "run", "info", self._environment).command
        return self.run([*command, *options])

    def run(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a command in this graph's environment."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env=self._environment,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def pid(self, name: str) -> int:
        """Process id of a node; 0: it does not run."""
        return self.domain.pid(self.nodes[name].executable)

    def output(self, lines: int = 60) -> str:
        """The end of what was printed."""
        text = (self.folder / "output.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for something that the running graph does; a process that ended is not awaited."""

        def look() -> Any:
            ended = [p for p in self._started if p.poll() is not None]
            if ended and not condition():
                codes = ", ".join(str(p.returncode) for p in ended)
                raise Gone(f"ended with {codes} before {what}\n{self.output()}")
            return condition()

        return wait_for(look, what, explain=self.output)


class Awaitable(Protocol):
    """What a Watch has to know of a graph, however it was started."""

    managed: list[str]
    """Full names of the lifecycle nodes, sorted."""

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for something that the graph does."""


class Watch:
    """A person's view of a graph: what it says, and a way to ask the actor for episodes.

    Args:
        domain: number of the ROS domain.
    """

    def __init__(self, domain: int) -> None:
        self.ready = False
        self.status = ""
        self.actor = ActorState()
        self.actor_states: list[ActorState] = []
        self.learner = LearnerStatus()
        self.robot = RobotState()
        self.robot_states: list[RobotState] = []
        self.episodes: list[EpisodeSummary] = []
        self.values: dict[str, dict[str, str]] = {}
        """Newest diagnostics: values by node."""
        self._step_data: list[bytes] = []
        self._steps: list[Step] = []
        self._ros = Ros(domain)
        self._open = True
        self.node = self._ros.node("watch")
        self._states: dict[str, Any] = {}
        self._run = ActionClient(self.node, RunEpisodes, "actor/run_episodes")
        self._subscribe(Bool, "hil_manager/ready", self._on_ready, qos.LATCHED)
        self._subscribe(String, "hil_manager/status", self._on_status, qos.LATCHED)
        self._subscribe(ActorState, "actor/state", self._on_actor, qos.LATCHED)
        self._subscribe(LearnerStatus, "learner/status", self._on_learner, qos.LATCHED)
        self._subscribe(RobotState, "robot_state", self._on_robot, qos.STATE)
        self._subscribe(EpisodeSummary, "episode", self.episodes.append, qos.EVENT)
        self._subscribe(DiagnosticArray, "/diagnostics", self._on_diagnostics, qos.DIAGNOSTICS)
        many = QoSProfile(depth=10_000, reliability=QoSReliabilityPolicy.RELIABLE)
        self._subscribe(Step, "step", self._step_data.append, many, raw=True)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the domain."""
        if self._open:
            self._open = False
            self._run.destroy()
            self._ros.close()

    def _subscribe(self, message: Any, topic: str, callback: Any, profile: Any, **o: Any) -> None:
        self.node.create_subscription(message, topic, callback, profile, **o)

    def _on_ready(self, message: Bool) -> None:
        self.ready = message.data

    def _on_status(self, message: String) -> None:
        self.status = message.data

    def _on_actor(self, message: ActorState) -> None:
        self.actor = message
        self.actor_states.append(message)

    def _on_learner(self, message: LearnerStatus) -> None:
        self.learner = message

    def _on_robot(self, message: RobotState) -> None:
        self.robot = message
        self.robot_states.append(message)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.values[status.name] = {each.key: each.value for each in status.values}

    @property
    def steps(self) -> list[Step]:
        """All step records so far, in the order of arrival."""
        for data in self._step_data[len(self._steps) :]:
            self._steps.append(deserialize_message(data, Step))
        return self._steps

    def lifecycle(self, *names: str) -> dict[str, str]:
        """Lifecycle states of nodes, as they say themselves; of those that answer at once.

        What is asked of a process that was replaced a moment ago is lost: ask again.
        """
        asked = {}
        for name in names:
            if name not in self._states:
                self._states[name] = self.node.create_client(GetState, f"{name}/get_state")
            if self._states[name].service_is_ready():
                asked[name] = self._states[name].call_async(GetState.Request())
        with suppress(AssertionError):
            wait_for(lambda: all(f.done() for f in asked.values()), "answers", limit=5.0)
        for name, future in asked.items():
            self._states[name].remove_pending_request(future)
        return {n: f.result().current_state.label for n, f in asked.items() if f.done()}

    def all_active(self, graph: Awaitable) -> bool:
        """Every managed node says that it is active, and hil_manager that the graph is ready."""
        if not self.ready:
            return False
        states = self.lifecycle(*graph.managed)
        return sorted(states) == graph.managed and set(states.values()) == {"active"}

    def sees(self, node: Node) -> bool:
        """The node is in the ROS graph, with its lifecycle services."""
        wanted = f"{node.full_name}/get_state"
        return any(name == wanted for name, _ in self.node.get_service_names_and_types())

    def interfaces(self) -> set[tuple[str, str]]:
        """Names and types of all topics and services that are seen."""
        pairs = [
            *self.node.get_topic_names_and_types(),
            *self.node.get_service_names_and_types(),
        ]
        return {(name, kind) for name, kinds in pairs for kind in kinds if "/watch" not in name}

    def ask(self, graph: Awaitable, mode: str, **goal: Any) -> Episodes:
        """Ask the actor for episodes."""
        graph.wait_for(self._run.server_is_ready, "the actor's action server")
        return Episodes(self, graph, RunEpisodes.Goal(mode=mode, **goal))

    def episodes_of(self, graph: Awaitable, mode: str, **goal: Any) -> RunEpisodes.Result:
        """Have the actor run episodes; return the result when they are done."""
        asked = self.ask(graph, mode, **goal)
        graph.wait_for(lambda: asked.done, f"{mode} episodes to end")
        assert asked.status == GoalStatus.STATUS_SUCCEEDED, asked.result.reason
        return asked.result


class Episodes:
    """A request to the actor."""

    def __init__(self, watch: Watch, graph: Awaitable, goal: RunEpisodes.Goal) -> None:
        self._handle = self._send(watch, graph, goal)
        assert self._handle.accepted
        self._answer = self._handle.get_result_async()

    @staticmethod
    def _send(watch: Watch, graph: Awaitable, goal: RunEpisodes.Goal) -> Any:
        """Send the goal; again if nothing comes back.

        Discovery is not symmetric: a request can reach a server that does not yet know the client,
        and the answer is then lost.
        """
        while True:
            sent = watch._run.send_goal_async(goal)
            end = time.monotonic() + 10.0
            graph.wait_for(
                lambda: sent.done() or time.monotonic() > end,  # noqa: B023
                "the actor to answer",
            )
            if sent.done():
                return sent.result()

    def cancel(self) -> None:
        """Have the actor stop."""
        self._handle.cancel_goal_async()

    @property
    def done(self) -> bool:
        """It has ended."""
        return bool(self._answer.done())

    @property
    def status(self) -> int:
        """How it ended: action_msgs/GoalStatus."""
        return int(self._answer.result().status)

    @property
    def result(self) -> RunEpisodes.Result:
        """What came of it."""
        return self._answer.result().result


def content(step: Step) -> tuple[Any, ...]:
    """What a step says about the world, comparable: when, tensors, action and judgement."""
    tensors = {**from_msgs(step.observation)}
    tensors.update({f"final {k}": v for k, v in from_msgs(step.final_observation).items()})
    values = tuple((name, value.tobytes()) for name, value in tensors.items())
    action = np.asarray(step.action, dtype=np.float32).tobytes()
    judged = (step.reward, step.terminated, step.truncated, step.success, step.flags)
    stamp = step.header.stamp.sec, step.header.stamp.nanosec
    return step.episode, step.step, stamp, values, action, *judged
