"""The learner is killed and stays away while the robot works on in real time.

The loop must not feel it: `outage.late_pct` are the steps that ended late while the learner was
away, to be compared with `outage.late_with_learner_pct`, before and after; `outage.rate_hz` are
the steps per second within episodes while it was away. Everything must arrive afterwards:
`outage.lost`, and `outage.catch_up_s` from the first sign of life of the new learner until it had
every step that was taken until then.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import ExitStack
from statistics import fmean

import _graph
from _figures import Report, share, step_intervals
from _learner import LearnerProcess

from hil_common import qos
from hil_interfaces.action import RunEpisodes
from hil_interfaces.msg import LearnerStatus, Step

CAMERAS = ["wrist", "side"]
BEFORE = 50
"""Steps before the learner is killed."""
AFTER = 100
"""Steps after the new learner has caught up."""
ARRIVAL_LIMIT = 300.0


class LearnerStarter:
    """Starts learners of one run."""

    def __init__(self, graph: _graph.RunningGraph) -> None:
        self._folder, self._graph = graph.run_folder.parent, graph

    def __call__(self) -> LearnerProcess:
        """A new learner process."""
        environment = {**os.environ, "ROS_DOMAIN_ID": str(self._graph.domain)}
        return LearnerProcess(self._folder, "run", self._graph.task_file, environment)


class Outage:
    """Kills the learner, waits, starts it again, and notes when."""

    def __init__(self, client: _graph.Client, start: LearnerStarter, seconds: float) -> None:
        self._client, self._start, self._seconds = client, start, seconds
        self._learner = start()
        self.killed_at = self.started_at = self.alive_at = self.caught_up_at = 0
        """ns of the wall clock; 0: not yet."""
        self._target = 0
        self.stored = -1
        client.node.create_subscription(
            LearnerStatus, "learner/status", self._on_status, qos.LATCHED
        )

    def turn(self) -> None:
        """Do what is due."""
        now = time.time_ns()
        if not self.killed_at:
            if self._client.steps >= BEFORE and self.stored > 0:
                self._learner.kill()
                self.killed_at, self.stored = now, -1
        elif not self.started_at and now - self.killed_at >= self._seconds * 1e9:
            self._learner = self._start()
            self.started_at = now

    def stop(self) -> None:
        """End the learner."""
        self._learner.stop()

    def _on_status(self, message: LearnerStatus) -> None:
        if self.killed_at and not self.started_at:
            return  # sent before it died
        self.stored = message.env_steps
        if self.started_at and not self.alive_at:
            self.alive_at, self._target = time.time_ns(), self._client.steps
        if self.alive_at and not self.caught_up_at and self.stored >= self._target:
            self.caught_up_at = time.time_ns()


def run(chosen: argparse.Namespace, report: Report) -> None:
    """Measure one outage."""
    setting = _graph.Setting(
        task={"task": chosen.task, "control_hz": 10.0, "cameras": CAMERAS},
        arguments={"pace": "realtime", "operator": "none", "learner": "false"},
    )
    with (
        _graph.folder(chosen.keep, "outage") as where,
        _graph.running(setting, chosen.seed, where) as client,
        ExitStack() as stack,
    ):
        outage = Outage(client, LearnerStarter(client.graph), chosen.seconds)
        stack.callback(outage.stop)
        steps = BEFORE + 10 * chosen.seconds + AFTER
        _graph.say(f"{steps} steps at 10 Hz, {chosen.seconds} s of them without a learner")
        goal = RunEpisodes.Goal(mode=RunEpisodes.Goal.TRAIN, seed=chosen.seed, max_steps=steps)
        taken = client.run(goal, outage.turn).steps
        end = time.monotonic() + ARRIVAL_LIMIT
        while outage.stored < taken and time.monotonic() < end:
            client.spin(0.2)
            outage.turn()
        marks = client.marks()
    away = [m for m in marks if outage.killed_at < m.published < outage.started_at]
    late = sum(bool(mark.flags & Step.FLAG_LATE) for mark in away)
    present = [m for m in marks if not outage.killed_at <= m.published <= outage.started_at]
    late_present = sum(bool(mark.flags & Step.FLAG_LATE) for mark in present)
    intervals = step_intervals(away)
    report.add("outage.late_pct", share(late, len(away)), "%", len(away))
    baseline = share(late_present, len(present))
    report.add("outage.late_with_learner_pct", baseline, "%", len(present))
    report.add("outage.rate_hz", 1.0 / fmean(intervals), "Hz", len(intervals))
    report.add("outage.lost", taken - max(outage.stored, 0), "steps", taken)
    caught_up = (outage.caught_up_at - outage.alive_at) * 1e-9
    report.add("outage.catch_up_s", caught_up if outage.caught_up_at else float("nan"), "s", 1)


if __name__ == "__main__":
    sys.exit(
        _graph.main(
            run,
            _graph.options(
                __doc__ or "",
                {"seconds": (60, "that the learner stays away")},
            ),
        )
    )
