"""Nothing is lost and nothing hangs: training in lockstep while processes are killed at random.

Every process of the graph is, by turns, killed (SIGKILL), stopped for 0.2 to 5 s (SIGSTOP) or
restarted (SIGINT). Afterwards the learner's log is compared with the ledgers of the simulators,
which say what was carried out (see _pairing). `chaos.lost`, `chaos.duplicated`,
`chaos.mispaired`: steps, all 0 if nothing is wrong. `chaos.in_flight`: steps that were under way
when their actor died, one per death at most; `chaos.in_flight_simulator`: the same for the
simulator. `chaos.recovery_p50_s`: from a fault to the next step that the learner accepted.
`chaos.stuck`: faults after which an actor took no step for five minutes.

With --soak no process is harmed: memory and open files of each process are written down for so
many minutes. `chaos.rss_growth_mb.NAME`, `chaos.fd_growth.NAME`: median of the last fifth less
the median of the second fifth.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import _graph
import numpy as np
import psutil
from _figures import Report, percentile
from _pairing import Comparison, Logged, Place, Position, compare, place
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from mcap.exceptions import EndOfFile, McapError
from mcap.records import Channel, Message
from mcap.stream_reader import StreamReader
from rclpy.serialization import deserialize_message

import hil_tasks
from hil_common import qos
from hil_common.conversions import to_ns
from hil_common.tensors import from_msgs
from hil_interfaces.msg import LearnerStatus, Step
from hil_sim import ledger
from hil_tasks.reach import CENTRE

TASK = "reach"
ROLES = ("actor", "learner", "bridge", "sim", "teleop", "manager")
_EXECUTABLES = {
    "actor_node": "actor",
    "learner_node": "learner",
    "bridge_node": "bridge",
    "sim_node": "sim",
    "scripted_expert_node": "teleop",
    "manager_node": "manager",
}
STUCK_LIMIT = 300.0
"""Seconds without a step after which the graph counts as stuck. A busy machine takes more than a
minute to start a learner, which may be hit again meanwhile."""
QUIET = 3.0
"""Seconds without a new step after which the actors' backlog counts as drained."""
SAMPLE_PERIOD = 10.0
"""Seconds between two looks at memory and files."""
MEGABYTE = 2**20


@dataclass(frozen=True)
class Fault:
    """One blow. at: steady clock, s; wall: wall clock, s."""

    role: str
    name: str
    kind: str
    at: float
    wall: float


@dataclass
class Progress:
    """What the learner has, as it says itself."""

    total: int = 0
    changed_at: float = field(default_factory=time.monotonic)
    open_faults: list[Fault] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)

    def heard(self, data: bytes, _: int) -> None:
        """Take a LearnerStatus. A learner that is reading its log again counts from zero."""
        status = deserialize_message(data, LearnerStatus)
        if status.env_steps <= self.total:
            return
        now = time.monotonic()
        self.total, self.changed_at = status.env_steps, now
        self.recoveries += [now - fault.at for fault in self.open_faults]
        self.open_faults.clear()

    @property
    def silence(self) -> float:
        """Seconds since the last new step."""
        return time.monotonic() - self.changed_at


class Chaos:
    """Harms the processes of a graph, by a seed.

    Args:
        client: of the graph.
        progress: is told the faults.
        seed: of what is done to whom, and when.
        log: one line per fault.
    """

    def __init__(self, client: _graph.Client, progress: Progress, seed: int, log: TextIO) -> None:
        self.faults: list[Fault] = []
        self._client, self._progress, self._log = client, progress, log
        self._random = random.Random(seed)
        self._roles: list[str] = []

    def run(self, seconds: float, count: int) -> None:
        """Do so many blows in so many seconds, then let everybody go on.

        Raises:
            _graph.BenchError: the graph has ended, or is stuck.
        """
        moments = sorted(self._random.uniform(0.0, seconds) for _ in range(count))
        begun = time.monotonic()
        for moment in moments:
            self._spin_until(begun + moment)
            self._strike()
        self._spin_until(begun + seconds)

    def _spin_until(self, end: float) -> None:
        while (left := end - time.monotonic()) > 0.0:
            self._client.spin(min(left, 0.2))
            if self._progress.silence > STUCK_LIMIT:
                raise _graph.BenchError(f"stuck: {self._client.status}")

    def _strike(self) -> None:
        role = self._next_role()
        chosen = self._victim(role)
        kind = self._random.choice(("kill", "stop", "restart"))
        length = self._random.uniform(0.2, 5.0)
        if chosen is None:
            return
        name, process = chosen
        fault = Fault(role, name, kind, time.monotonic(), time.time())
        self.faults.append(fault)
        self._progress.open_faults.append(fault)
        note = {"wall": fault.wall, "name": name, "kind": kind, "length": length}
        print(json.dumps(note), file=self._log, flush=True)
        with suppress(psutil.NoSuchProcess):
            if kind == "kill":
                process.kill()
            elif kind == "restart":
                process.send_signal(signal.SIGINT)
            else:
                process.suspend()
                try:
                    self._spin_until(fault.at + length)
                finally:
                    process.resume()

    def _next_role(self) -> str:
        """Every role in turn, in ever new orders."""
        if not self._roles:
            self._roles = random.Random.sample(self._random, ROLES, len(ROLES))
        return self._roles.pop()

    def _victim(self, role: str) -> tuple[str, psutil.Process] | None:
        """A process of that role. Waits until one runs: it may just be starting again."""
        end = time.monotonic() + STUCK_LIMIT
        while time.monotonic() < end:
            found = _processes(self._client.graph, role)
            if found:
                return self._random.choice(sorted(found.items()))
            self._client.spin(0.2)
        return None


def _processes(graph: _graph.RunningGraph, role: str) -> dict[str, psutil.Process]:
    """Processes of a role, by name."""
    found = {}
    for name, process in graph.processes().items():
        with suppress(psutil.NoSuchProcess):
            names = {Path(word).name for word in process.cmdline()[:2]}
            if role in {_EXECUTABLES.get(each) for each in names}:
                found[name] = process
    return found


class Actors:
    """The actors of a graph, to be stopped between two steps."""

    def __init__(self, client: _graph.Client) -> None:
        self._client = client
        self._names = sorted(_processes(client.graph, "actor"))

    def deactivate(self) -> None:
        """Deactivate all, and wait until they are.

        Raises:
            _graph.BenchError: one does not become inactive.
        """
        node = self._client.node
        for name in self._names:
            full = "/" + name.replace(".", "/")
            change = node.create_client(ChangeState, f"{full}/change_state")
            look = node.create_client(GetState, f"{full}/get_state")
            end = time.monotonic() + STUCK_LIMIT
            while self._ask(look, GetState.Request(), "current_state.id") != (
                State.PRIMARY_STATE_INACTIVE
            ):
                request = ChangeState.Request()
                request.transition.id = Transition.TRANSITION_DEACTIVATE
                request.transition.label = "deactivate"
                self._ask(change, request, "success")
                if time.monotonic() > end:
                    raise _graph.BenchError(f"{full} does not deactivate")

    def _ask(self, client: Any, request: Any, field_name: str) -> Any:
        """A field of the answer; None if none comes."""
        end = time.monotonic() + 20.0
        while not client.service_is_ready() and time.monotonic() < end:
            self._client.spin(0.1)
        future = client.call_async(request)
        while not future.done() and time.monotonic() < end:
            self._client.spin(0.1)
        if not future.done():
            client.remove_pending_request(future)
            return None
        value = future.result()
        for part in field_name.split("."):
            value = getattr(value, part)
        return value


# ----------------------------------------------------------------------------------- comparison


def logged_steps(run_folder: Path) -> Iterator[Logged]:
    """Every step of the learner's log, in order."""
    folder = run_folder / "steps"
    for path in sorted(folder.glob("*.mcap"), key=lambda p: int(p.stem.rpartition("_")[2])):
        for channel, data in _messages(path):
            if channel.rpartition("/")[2] == "step":
                yield _logged(deserialize_message(data, Step))


def _messages(path: Path) -> Iterator[tuple[str, bytes]]:
    """Topic and data of all messages up to where a killed learner left the file torn."""
    topics: dict[int, str] = {}
    with path.open("rb") as file, suppress(McapError, EndOfFile):
        for record in StreamReader(file).records:
            if isinstance(record, Channel):
                topics[record.id] = record.topic
            elif isinstance(record, Message):
                yield topics[record.channel_id], record.data


def _logged(step: Step) -> Logged:
    final = from_msgs(step.final_observation)
    return Logged(
        Place(step.actor_id, step.session, step.episode, step.step),
        step.seq,
        to_ns(step.header.stamp),
        _position(from_msgs(step.observation)),
        _position(final) if final else None,
    )


def _position(observation: Any) -> Position:
    """Of the tool centre point, m: undo what the task does to it."""
    x, y, z = np.asarray(observation["achieved"], dtype=float) * _scale() + np.asarray(CENTRE)
    return float(x), float(y), float(z)


@functools.cache
def _scale() -> float:
    return float(hil_tasks.load(TASK).spec.observation["achieved"].scale[0])


def stuck_faults(faults: list[Fault], ledgers: list[list[ledger.Entry]]) -> int:
    """Faults after which an actor took no step for too long."""
    moments: dict[str, list[float]] = defaultdict(list)
    for entry in (e for entries in ledgers for e in entries if e.step):
        moments[place(entry.step).actor].append(entry.at)
    stuck = 0
    for fault in faults:
        waits = [min((t - fault.wall for t in times if t > fault.wall), default=np.inf)
                 for times in moments.values()]  # fmt: skip
        stuck += max(waits, default=np.inf) > STUCK_LIMIT
    return stuck


def report_comparison(report: Report, found: Comparison) -> None:
    """Print the figures, and name what is wrong."""
    steps = found.steps
    report.add("chaos.steps", steps, "", steps)
    report.add("chaos.lost", len(found.lost), "steps", steps)
    report.add("chaos.duplicated", len(found.duplicated), "steps", steps)
    report.add("chaos.mispaired", len(found.mispaired), "steps", steps)
    report.add("chaos.in_flight", len(found.in_flight), "steps", steps)
    report.add("chaos.in_flight_simulator", len(found.in_flight_simulator), "steps", steps)
    for kind in ("lost", "duplicated", "mispaired"):
        for which in getattr(found, kind)[:20]:
            _graph.say(f"{kind}: {which}")


# ----------------------------------------------------------------------------------------- runs


def setting(where: Path, actors: int) -> _graph.Setting:
    """The graph: small networks, no camera, ledgers."""
    parameters: dict[str, dict[str, Any]] = {
        "/**/learner": {
            "agent": ["hidden=[32, 32]", "state_encoder=16"],
            "batch_size": 32,
            "utd": 0.25,
            "training_starts": 50,
            "throttle_steps": 50,
            "publish_period_updates": 20,
            "checkpoint_period": 200,
            "tensorboard": False,
            "progress": "none",
        },
        "/**/actor": {"autostart_mode": "train"},
    }
    for name in ["/"] if actors == 1 else [f"/actor{n}/" for n in range(1, actors + 1)]:
        path = where / f"ledger{name.replace('/', '_')}.jsonl"
        parameters[f"{name}hil_sim"] = {"ledger": str(path)}
    arguments = {"pace": "lockstep", "operator": "scripted_expert", "actors": str(actors)}
    return _graph.Setting(task={"task": TASK}, parameters=parameters, arguments=arguments)


def harm(chosen: argparse.Namespace, report: Report) -> None:
    """The chaos run."""
    seconds = 60.0 * chosen.minutes
    count = round(chosen.faults_per_minute * chosen.minutes)
    progress = Progress()
    with (
        _graph.folder(chosen.keep, "chaos") as where,
        _graph.running(setting(where, chosen.actors), chosen.seed, where, actor="") as client,
        (where / "faults.jsonl").open("w") as log,
    ):
        client.listen(LearnerStatus, "learner/status", progress.heard, qos.LATCHED)
        _await_steps(client, progress, 100)
        chaos = Chaos(client, progress, chosen.seed, log)
        stuck = 0
        try:
            chaos.run(seconds, count)
            _await_steps(client, progress, 100)
            Actors(client).deactivate()
            while progress.silence < QUIET:
                client.spin(0.2)
        except _graph.BenchError as error:
            _graph.say(f"{error}\n{client.graph.last_words()}")
            stuck = 1
        client.graph.stop()
        ledgers = [list(ledger.read(path)) for path in sorted(where.glob("ledger*.jsonl"))]
        found = compare(ledgers, logged_steps(client.graph.run_folder))
    report.add("chaos.faults", len(chaos.faults), "", len(chaos.faults))
    report_comparison(report, found)
    recoveries = progress.recoveries
    for name, percent in (("p50", 50.0), ("p95", 95.0), ("max", 100.0)):
        value = percentile(recoveries, percent)
        report.add(f"chaos.recovery_{name}_s", value, "s", len(recoveries))
    stuck += stuck_faults(chaos.faults, ledgers)
    report.add("chaos.stuck", stuck, "", len(chaos.faults))


def _await_steps(client: _graph.Client, progress: Progress, steps: int) -> None:
    """Wait until all nodes are active and so many more steps were taken.

    Raises:
        _graph.BenchError: they do not come.
    """
    wanted, end = progress.total + steps, time.monotonic() + STUCK_LIMIT
    while progress.total < wanted or not client.ready:
        client.spin(0.2)
        if time.monotonic() > end:
            raise _graph.BenchError(f"stuck: {client.status}")


def soak(chosen: argparse.Namespace, report: Report) -> None:
    """The soak run."""
    progress = Progress()
    curves: dict[str, list[tuple[float, int]]] = defaultdict(list)
    with (
        _graph.folder(chosen.keep, "soak") as where,
        _graph.running(setting(where, chosen.actors), chosen.seed, where, actor="") as client,
        (where / "soak.jsonl").open("w") as log,
    ):
        client.listen(LearnerStatus, "learner/status", progress.heard, qos.LATCHED)
        _await_steps(client, progress, 100)
        begun = time.monotonic()
        while (now := time.monotonic() - begun) < 60.0 * chosen.soak:
            for name, process in client.graph.processes().items():
                try:
                    rss, files = process.memory_info().rss / MEGABYTE, process.num_fds()
                except psutil.NoSuchProcess:
                    continue
                curves[name].append((rss, files))
                note = {"s": now, "name": name, "rss_mb": rss, "fds": files}
                print(json.dumps({**note, "steps": progress.total}), file=log, flush=True)
            while time.monotonic() - begun < now + SAMPLE_PERIOD:
                client.spin(0.5)
    report.add("chaos.soak_steps", progress.total, "", progress.total)
    for name, curve in sorted(curves.items()):
        fifth = max(1, len(curve) // 5)
        for figure, index, unit in (("rss_growth_mb", 0, "MB"), ("fd_growth", 1, "files")):
            early = statistics.median(row[index] for row in curve[fifth : 2 * fifth] or curve)
            late = statistics.median(row[index] for row in curve[-fifth:])
            report.add(f"chaos.{figure}.{name}", late - early, unit, len(curve))


def run(chosen: argparse.Namespace, report: Report) -> None:
    """Do what the options say."""
    (soak if chosen.soak else harm)(chosen, report)


def options() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per figure")
    parser.add_argument("--seed", type=int, default=0, help="of everything")
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults (10)")
    parser.add_argument("--faults-per-minute", type=float, default=6.5, help="(6.5)")
    parser.add_argument("--actors", type=int, default=2, help="(2)")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="no faults")
    parser.add_argument("--keep", metavar="FOLDER", help="keep run folder, ledgers and logs there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(_graph.main(run, options()))
