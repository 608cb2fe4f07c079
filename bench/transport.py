"""Steps from actors to the learner: how many per second, how soon, and at what cost.

The actor's own code (recorder, spool, sender) streams made-up steps to a learner process, which
decodes, logs, stores and acknowledges them, and does not train. `state`: no image; `cameras`: two
128x128 RGB images of noise in each step. Rates are those of actors that wait for nothing but the
spool; delays (`ack`: from the recording of a step to its acknowledgement; `control_thread`: what
recording costs the thread that drives the arm) are those of actors at 10 steps per second.
`cpu_ms_per_step` does not depend on what else the machine does.
`backlog`: steps that were recorded before there was a learner. `..._of_<n>` are figures of n
actors at once, `actors1` and `actors5` the same amounts for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import _graph
import yaml
from _figures import Report, percentile
from _learner import LearnerProcess, learner

CAMERAS = ["wrist", "side"]
RUN = "transport"
RATE = 10.0
_ACTOR = str(Path(__file__).with_name("_transport_actor.py"))


class Place:
    """A folder, a task and a ROS domain for one measurement."""

    def __init__(self, folder: Path, chosen: argparse.Namespace, cameras: bool) -> None:
        self.folder, self.seed = folder, chosen.seed
        self.task_file = folder / "task.yaml"
        task = {"task": chosen.task, "cameras": CAMERAS if cameras else []}
        self.task_file.write_text(yaml.safe_dump(task))
        self.environment = {**os.environ, "ROS_DOMAIN_ID": str(_graph._domain())}

    def learner(self) -> AbstractContextManager[LearnerProcess]:
        """A learner process, ended afterwards."""
        return learner(self.folder, RUN, self.task_file, self.environment)

    def actor(self, number: int, steps: int, *more: str) -> Actor:
        """An actor process; see _transport_actor."""
        arguments = {
            "--task-file": self.task_file,
            "--run-id": RUN,
            "--spool": self.folder / "spool",
            "--actor": f"actor{number}",
            "--steps": steps,
            "--seed": self.seed + number,
        }
        flat = [str(word) for pair in arguments.items() for word in pair]
        return Actor([sys.executable, _ACTOR, *flat, *more], self.environment, steps)


class Actor:
    """A process that records steps."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], steps: int) -> None:
        self._steps = steps
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
            preexec_fn=_graph._stop_with_parent,
        )

    def wait_for(self, word: str) -> None:
        """Wait until it says so."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if line != word:
            raise _graph.BenchError(f"an actor says {line!r}, not {word!r}")

    def start(self) -> None:
        """Have it record."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """What it measured, once the learner has everything."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if self._process.wait() or not line:
            raise _graph.BenchError("an actor ended without a result")
        result: dict[str, Any] = json.loads(line)
        result["lost"] = self._steps - result["acknowledged"]
        return result

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def run_actors(
    chosen: argparse.Namespace, name: str, count: int, steps: int, rate: float, cameras: bool
) -> list[dict[str, Any]]:
    """Results of so many actors that stream to one learner at the same time."""
    _graph.say(f"{name}: {count} x {steps} steps" + (f" at {rate:g} Hz" if rate else ""))
    with _graph.folder(chosen.keep, name) as folder, ExitStack() as stack:
        place = Place(folder, chosen, cameras)
        process = stack.enter_context(place.learner())
        more = ("--rate", str(rate))
        actors = [place.actor(n, steps, *more) for n in range(1, count + 1)]
        for actor in actors:
            stack.callback(actor.close)
        for actor in actors:
            actor.wait_for("ready")
        before = process.cpu_s()
        for actor in actors:
            actor.start()
        results = [actor.result() for actor in actors]
        results[0]["learner_cpu_s"] = process.cpu_s() - before
        return results


def throughput(results: Sequence[dict[str, Any]]) -> float:
    """Steps per second of all actors together."""
    taken = sum(result["acknowledged"] for result in results)
    return taken / max(result["seconds"] for result in results)


def gathered(results: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Samples of all actors."""
    return [value for result in results for value in result[name]]


def rates(report: Report, chosen: argparse.Namespace) -> None:
    """One actor, as fast as it goes."""
    for kind, steps in (("state", chosen.steps), ("cameras", chosen.camera_steps)):
        if steps:
            results = run_actors(chosen, f"{kind}", 1, steps, 0.0, kind == "cameras")
            report.add(f"transport.{kind}_steps_per_s", throughput(results), "1/s", steps)
            for name in ("actor", "learner"):
                used = 1e3 * results[0][f"{name}_cpu_s"] / steps
                report.add(f"transport.{kind}_cpu_ms_per_step.{name}", used, "ms", steps)


def delays(report: Report, chosen: argparse.Namespace) -> None:
    """One actor at the rate of control."""
    steps = chosen.paced_steps
    if not steps:
        return
    results = run_actors(chosen, "cameras-paced", 1, steps, RATE, True)
    acks, n = gathered(results, "ack_ms"), len(gathered(results, "ack_ms"))
    report.add("transport.cameras_ack_p50_ms", percentile(acks, 50), "ms", n)
    report.add("transport.cameras_ack_p99_ms", percentile(acks, 99), "ms", n)
    for name, samples in (("", "wall_ms"), ("_cpu", "cpu_ms")):
        values = gathered(results, samples)
        report.add(f"transport.control_thread{name}_ms", percentile(values, 50), "ms", n)
    wall = gathered(results, "wall_ms")
    report.add("transport.control_thread_p99_ms", percentile(wall, 99), "ms", n)


def several(report: Report, chosen: argparse.Namespace) -> None:
    """Five actors against one, with cameras: all steps per second, and each one's delay."""
    for count in (1, 5):
        if chosen.camera_steps:
            steps = chosen.camera_steps // count
            results = run_actors(chosen, f"actors{count}", count, steps, 0.0, True)
            figure = f"transport.actors{count}_steps_per_s"
            report.add(figure, throughput(results), "1/s", count * steps)
        if chosen.paced_steps:
            name = f"actors{count}-paced"
            results = run_actors(chosen, name, count, chosen.paced_steps, RATE, True)
            acks = gathered(results, "ack_ms")
            figure = f"transport.actors{count}_ack_p99_ms"
            report.add(figure, percentile(acks, 99), "ms", len(acks))
            slowest = max(percentile(r["ack_ms"], 99) for r in results)
            report.add(f"transport.actors{count}_slowest_ack_p99_ms", slowest, "ms", count)


def backlog(report: Report, chosen: argparse.Namespace) -> None:
    """Steps that waited for the learner: all of them have to arrive."""
    steps = chosen.backlog
    if not steps:
        return
    _graph.say(f"backlog: {steps} steps")
    with _graph.folder(chosen.keep, "backlog") as folder, ExitStack() as stack:
        place = Place(folder, chosen, True)
        actor = place.actor(1, steps, "--unattended")
        stack.callback(actor.close)
        actor.wait_for("ready")
        actor.start()
        actor.wait_for("recorded")
        stack.enter_context(place.learner())
        result = actor.result()
    report.add("transport.backlog_lost", result["lost"], "steps", steps)
    report.add("transport.backlog_catch_up_s", result["catch_up_s"], "s", steps)


def run(chosen: argparse.Namespace, report: Report) -> None:
    """Measure everything."""
    rates(report, chosen)
    delays(report, chosen)
    backlog(report, chosen)
    several(report, chosen)


if __name__ == "__main__":
    sys.exit(
        _graph.main(
            run,
            _graph.options(
                __doc__ or "",
                {
                    "steps": (20_000, "without images; 0: none"),
                    "camera-steps": (2000, "with two images; 0: none"),
                    "paced-steps": (300, "of each actor at 10 Hz; 0: none"),
                    "backlog": (2000, "with two images, before there is a learner; 0: none"),
                },
            ),
        )
    )
