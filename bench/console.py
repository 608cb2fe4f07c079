"""Operator console: from a key to the operator command, and camera tiles, on a live graph.

The graph `sim` in real time, driven from the console. A client does what the page does: it has the
controls, sends its input 50 times a second and at once on every change, shows and acknowledges the
tiles of two cameras. Figures:

- console.key_to_command_p50_ms, _p99_ms: from the change's sending to the publication of the
  operator command that has it (DDS source time stamp; both on this machine's wall clock).
- console.joy_to_command_p99_ms: the part of it after hil_monitor, as its own peer.
- console.tile_fps: pictures per second of the slower of two cameras, while the actor trains.
- console.tile_age_p99_ms: age of a picture when it arrives at the page.
- console.late_steps_pct, console.late_steps_unwatched_pct: control steps that took longer than
  their period, with and without anybody who watches the tiles.
- console.monitor_core_pct, console.monitor_unwatched_core_pct: processor time of hil_monitor.
"""

from __future__ import annotations

import argparse
import bisect
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from _figures import Report, StepMark, percentile, share
from _graph import BenchError, Client, Setting, folder, main, options, running, say
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.serialization import deserialize_message
from websockets.sync.client import connect

from hil_common import qos
from hil_common.conversions import to_ns
from hil_interfaces.action import RunEpisodes
from hil_interfaces.msg import OperatorCommand, Step

HEARTBEAT = 0.02
"""Seconds between two messages of the page."""
PAUSES = (0.06, 0.2)
"""Seconds between two changes, drawn evenly."""
ANSWER_LIMIT = 1.0
"""Seconds after which a change counts as never answered."""


def run(chosen: argparse.Namespace, report: Report) -> None:
    """Measure and report."""
    setting = Setting(
        {"task": chosen.task},
        {
            "monitor": {"port": 0},
            "learner": {"progress": "none", "tensorboard": False, "min_demo_steps": 10**6},
        },
        arguments={"monitor": "true", "operator": "console", "pace": "realtime"},
    )
    with (
        folder(chosen.keep, "console") as where,
        running(setting, chosen.seed, where) as client,
    ):
        console = find_console(client)
        say(f"console on port {console}")
        measure_keys(client, console, chosen, report)
        measure_tiles(client, console, chosen, report)


def find_console(client: Client) -> int:
    """Port of the console, from its diagnostics."""
    found: list[int] = []

    def heard(data: bytes, _: int) -> None:
        for status in deserialize_message(data, DiagnosticArray).status:
            urls = [pair.value for pair in status.values if pair.key == "url"]
            if status.name == "/monitor" and urls:
                found.append(int(urls[0].rsplit(":", 1)[1]))

    client.listen(DiagnosticArray, "/diagnostics", heard, qos.DIAGNOSTICS)
    end = time.monotonic() + 30.0
    while not found:
        client.spin(0.2)
        if time.monotonic() > end:
            raise BenchError("the console does not say where it is")
    return found[-1]


# ------------------------------------------------------------------------------------------- keys


class Keys(threading.Thread):
    """A page that has the controls and changes its mind: full forward, full back, and so on.

    Attributes:
        changes: (when it was sent, ns of the wall clock; sign of x).
    """

    def __init__(self, port: int, changes: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.changes: list[tuple[int, int]] = []
        self._url = f"ws://127.0.0.1:{port}/ws"
        self._wanted = changes
        self._random = random.Random(seed)

    def run(self) -> None:
        """Until there are enough changes."""
        with connect(self._url) as socket:
            threading.Thread(target=_drain, args=[socket], daemon=True).start()
            socket.send('{"do": "take"}')
            sign, due = 1, time.monotonic() + 0.5
            while len(self.changes) < self._wanted:
                now = time.monotonic()
                changed = now >= due
                if changed:
                    sign, due = -sign, now + self._random.uniform(*PAUSES)
                    self.changes.append((time.time_ns(), sign))
                text = {"do": "input", "axes": [sign, 0, 0, 0, 0, 0], "buttons": [0, 0, 0]}
                socket.send(json.dumps(text))
                time.sleep(max(0.0, min(HEARTBEAT, due - time.monotonic())))
            socket.send('{"do": "give_back"}')


def measure_keys(client: Client, port: int, chosen: argparse.Namespace, report: Report) -> None:
    """From a change of the page's input to the command that has it."""
    commands: list[tuple[int, int, int]] = []

    def heard(data: bytes, published: int) -> None:
        command = deserialize_message(data, OperatorCommand)
        x = float(command.arms[0].twist[0])
        commands.append((published, (x > 0) - (x < 0), to_ns(command.header.stamp)))

    client.listen(OperatorCommand, "operator_command", heard, qos.OPERATOR)
    keys = Keys(port, chosen.keys, chosen.seed)
    keys.start()
    while keys.is_alive():
        client.spin(0.05)
    end = time.monotonic() + ANSWER_LIMIT
    while time.monotonic() < end:
        client.spin(0.05)
    delays, after_monitor = [], []
    times = [published for published, _, _ in commands]
    for sent, sign in keys.changes:
        later = commands[bisect.bisect_left(times, sent) :]
        answer = next((c for c in later if c[1] == sign), None)
        in_time = answer is not None and answer[0] - sent < ANSWER_LIMIT * 1e9
        delays.append((answer[0] - sent) * 1e-6 if answer and in_time else float("inf"))
        if answer and in_time:
            after_monitor.append((answer[0] - answer[2]) * 1e-6)
    count = len(delays)
    report.add("console.key_to_command_p50_ms", percentile(delays, 50.0), "ms", count)
    report.add("console.key_to_command_p99_ms", percentile(delays, 99.0), "ms", count)
    report.add("console.joy_to_command_p99_ms", percentile(after_monitor, 99.0), "ms", count)


# ------------------------------------------------------------------------------------------ tiles


class Tiles:
    """A page that looks at the cameras.

    Attributes:
        pictures: camera -> when each picture came, s of the steady clock.
        ages: of the pictures when they came, ms.
    """

    def __init__(self) -> None:
        self.pictures: dict[str, list[float]] = {}
        self.ages: list[float] = []

    @contextmanager
    def watching(self, port: int) -> Iterator[None]:
        """Look on meanwhile."""
        with connect(f"ws://127.0.0.1:{port}/tiles", max_size=2**24) as socket:
            thread = threading.Thread(target=self._look, args=[socket], daemon=True)
            thread.start()
            yield
        thread.join(5.0)

    def _look(self, socket: Any) -> None:
        for data in socket:
            header = json.loads(data[1 : 1 + data[0]])
            self.pictures.setdefault(header["c"], []).append(time.monotonic())
            self.ages.append(1e3 * header["age"])
            socket.send(header["c"])


def measure_tiles(client: Client, port: int, chosen: argparse.Namespace, report: Report) -> None:
    """Pictures per second, and what watching costs the control loop."""
    goal = RunEpisodes.Goal(mode="train", max_steps=chosen.steps, seed=chosen.seed)
    unwatched, core = steps_of(client, goal)
    report.add("console.monitor_unwatched_core_pct", core, "%", len(unwatched))
    report.add("console.late_steps_unwatched_pct", late(unwatched), "%", len(unwatched))
    tiles = Tiles()
    with tiles.watching(port):
        watched, core = steps_of(client, goal)
    if len(tiles.pictures) < 2:
        raise BenchError(f"two cameras are wanted, pictures came of {len(tiles.pictures)}")
    rates = [(len(at) - 1) / (at[-1] - at[0]) for at in tiles.pictures.values()]
    count = sum(len(at) for at in tiles.pictures.values())
    report.add("console.tile_fps", min(rates), "1/s", count)
    report.add("console.tile_age_p99_ms", percentile(tiles.ages, 99.0), "ms", count)
    report.add("console.monitor_core_pct", core, "%", len(watched))
    report.add("console.late_steps_pct", late(watched), "%", len(watched))


def steps_of(client: Client, goal: RunEpisodes.Goal) -> tuple[list[StepMark], float]:
    """Steps of a run, and the monitor's share of a core meanwhile."""
    first = len(client.marks())
    before = client.graph.usage()
    client.run(goal, lambda: None)
    used = client.graph.usage().since(before)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        client.spin(0.1)
    return client.marks()[first:], 1e2 * used.processes.get("monitor", 0.0) / used.at


def late(marks: list[StepMark]) -> float:
    """Percentage of steps that took longer than their period."""
    return share(sum(bool(mark.flags & Step.FLAG_LATE) for mark in marks), len(marks))


def _drain(socket: Any) -> None:
    for _ in socket:
        pass


if __name__ == "__main__":
    sys.exit(
        main(
            run,
            options(
                __doc__.splitlines()[0] if __doc__ else "",
                {
                    "keys": (400, "changes of input"),
                    "steps": (200, "control steps, with and without tiles"),
                },
            ),
        )
    )
