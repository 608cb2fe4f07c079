"""How fast the whole graph steps in lockstep, with an idle learner, at 10 Hz of control.

`lockstep.state_steps_per_s`: no camera. `lockstep.cameras_steps_per_s`: two cameras are rendered
and delivered in every step; the policy still acts on the state. Both from the mean time between
consecutive steps of an episode; `..._with_resets_...` counts the time between episodes, too. The
processor time of each process is what does not depend on the load of the machine
(`..._other_load_pct`: how much of it went to everything else).
"""

from __future__ import annotations

import argparse
import sys
from statistics import fmean

import _graph
from _figures import Report, rate_with_resets, step_intervals

from hil_interfaces.action import RunEpisodes

CAMERAS = ["wrist", "side"]
WARM_UP = 60
"""Steps before the measurement: everything has been touched once."""


def measure(report: Report, chosen: argparse.Namespace, kind: str, steps: int) -> None:
    """One graph: state only, or with cameras."""
    setting = _graph.Setting(
        task={
            "task": chosen.task,
            "control_hz": 10.0,
            "cameras": CAMERAS if kind == "cameras" else [],
        },
        parameters={"learner": {"training_starts": 10_000_000, "progress": "none"}},
        arguments={"pace": "lockstep", "operator": "scripted_expert"},
    )
    _graph.say(f"{kind}: {steps} steps")
    with (
        _graph.folder(chosen.keep, f"lockstep-{kind}") as where,
        _graph.running(setting, chosen.seed, where) as client,
    ):
        rest = client.rest()
        marks_before, before = 0, client.graph.usage()

        def note_warm() -> None:
            nonlocal marks_before, before
            if not marks_before and client.steps >= WARM_UP:
                marks_before, before = client.steps, client.graph.usage()

        goal = RunEpisodes.Goal(
            mode=RunEpisodes.Goal.TRAIN, seed=chosen.seed, max_steps=WARM_UP + steps
        )
        client.run(goal, note_warm)
        used = client.graph.usage().since(before)
        marks = client.marks()[marks_before:]
    intervals = step_intervals(marks)
    if not intervals:
        raise _graph.BenchError("not enough steps for a measurement")
    prefix = f"lockstep.{kind}"
    report.add(f"{prefix}_steps_per_s", 1.0 / fmean(intervals), "1/s", len(intervals))
    rate, count = rate_with_resets(marks)
    report.add(f"{prefix}_steps_per_s_with_resets", rate, "1/s", count)
    _graph.report_step_costs(report, prefix, used, len(marks), rest)
    _graph.report_load(report, prefix, used, len(marks))


def run(chosen: argparse.Namespace, report: Report) -> None:
    """Measure both kinds."""
    if chosen.steps:
        measure(report, chosen, "state", chosen.steps)
    if chosen.camera_steps:
        measure(report, chosen, "cameras", chosen.camera_steps)


if __name__ == "__main__":
    sys.exit(
        _graph.main(
            run,
            _graph.options(
                __doc__ or "",
                {
                    "steps": (2000, "without cameras; 0: none"),
                    "camera-steps": (1000, "with two cameras; 0: none"),
                },
            ),
        )
    )
