"""The table that is the point of HIL-SERL: learning methods on one task with equal data.

Every method that uses the operator gets the same number of operator steps: all of them before
training as demonstrations (BC, SAC with demonstrations), or three demonstrations and then
interventions (HG-DAgger, HIL-SERL). The task is `peg_insert` with a tighter hole: at the shipped
clearance so many demonstrations are enough for BC. The scripted operator's settings are those of
config/teleop/scripted_expert.yaml. Each run is written to docs/results/methods/ when it is done;
the table and the curves are made of what is there. A run that was stopped continues with --resume.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _figures import Report
from _runs import (
    ROOT,
    Result,
    Runs,
    arguments,
    load,
    mean_time,
    provenance,
    stop_on_signals,
    success,
)
from _session import SessionConfig
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

RESULTS = ROOT / "docs" / "results"
OPERATOR_STEPS = 600
"""Steps that the operator drives where he takes part, demonstrations included."""
TIGHT = {"params": {"clearance": 0.0003}}

BASE = SessionConfig(
    task_overrides=TIGHT,
    # The same widths and input normalisation as the SAC agent's policy.
    cloning={"steps": 3_000, "normalize": True, "hidden": (256, 256)},
    operator_steps=OPERATOR_STEPS,
)
ALL_AS_DEMOS = {"demo_steps": OPERATOR_STEPS, "interventions": False}
PENALTY = {
    "takeover_penalty": -0.1,
    "takeover_horizon": 5,
    "agent": {"value_range": (-0.5, 1.0)},
}
METHODS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "bc": ("BC", {"method": "bc", "steps": 0, **ALL_AS_DEMOS}),
    "hg_dagger": ("HG-DAgger", {"method": "hg_dagger"}),
    "sac": ("SAC alone", {"method": "sac", "demos": 0, "interventions": False}),
    "sac_demos": ("SAC + demos (RLPD)", ALL_AS_DEMOS),
    "hil_serl": ("HIL-SERL (demos + interventions)", {}),
    "hil_serl_penalty": ("HIL-SERL with pre-takeover penalty", PENALTY),
    "demo": (
        "HIL-SERL as in `./hil demo`: shipped hole, no limit for the operator",
        {"task_overrides": {}, "operator_steps": 0},
    ),
}
"""Name -> title, and what differs from `BASE`."""


def main() -> int:
    """Run what is missing, then write the table."""
    parser = arguments(__doc__, "methods")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    options = parser.parse_args()
    seeds = options.seeds if options.seed is None else [options.seed]
    runs = Runs(RESULTS / "methods", options.run_dir, options.resume, stop_on_signals())
    for seed in () if options.report else seeds:
        for name in options.methods:
            config = replace(BASE, seed=seed, steps=options.steps)
            if not runs.run(name, replace(config, **dict(METHODS[name][1]))):
                print(f"{name}, seed {seed}: stopped; go on with --resume", file=sys.stderr)
                return 130
    results = load(RESULTS / "methods", METHODS)
    write(results)
    report = Report(seeds[0], options.json)
    for name, found in results.items():
        rates = [success(each) for each in found]
        report.add(f"methods.{name}_success", float(np.mean(rates)), "1", len(rates))
        report.add(f"methods.{name}_time_s", mean_time(found), "s", len(rates))
    return 0


def write(results: Mapping[str, Sequence[Result]]) -> None:
    """Write docs/results/methods.md and docs/images/methods.png."""
    draw(results, ROOT / "docs" / "images" / "methods.png")
    lines = [
        "# Methods on peg insertion, from state\n",
        "Success and mean time to success over 50 deterministic episodes after training, without "
        "any operator.\n",
        "| method | seed: success | mean | time to success, s | operator steps | "
        "training steps | updates |",
        "|---|---|---|---|---|---|---|",
        *(_row(name, runs) for name, runs in results.items()),
        "",
        _notes(results),
        "\n![Success of the evaluations during training](../images/methods.png)\n",
    ]
    notes = RESULTS / "methods_notes.md"
    if notes.is_file():
        lines.append(notes.read_text())
    (RESULTS / "methods.md").write_text("\n".join(lines))


def _row(name: str, runs: Sequence[Result]) -> str:
    each = ", ".join(f"{run['seed']}: {success(run):.2f}" for run in runs)
    mean = float(np.mean([success(run) for run in runs]))
    seconds = mean_time(runs)
    time = "-" if math.isnan(seconds) else f"{seconds:.1f}"
    driven = _numbers(run["operator_steps"] for run in runs)
    steps = _numbers(run["env_steps"] for run in runs)
    updates = _numbers(run["updates"] for run in runs)
    return (
        f"| {METHODS[name][0]} | {each} | {mean:.2f} | {time} | {driven} | {steps} | {updates} |"
    )


def _numbers(values: Any) -> str:
    """One number, or the range."""
    found = sorted(set(values))
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def _notes(results: Mapping[str, Sequence[Result]]) -> str:
    missing = {n: {0, 1, 2} - {run["seed"] for run in results.get(n, ())} for n in METHODS}
    left = ", ".join(f"{name} {sorted(seeds)}" for name, seeds in missing.items() if seeds)
    state = f" Not run yet (method [seeds]): {left}." if left else ""
    every = [run for runs in results.values() for run in runs]
    return (
        f"{provenance('./hil bench methods --seeds 0 1 2 --resume', every)}{state}\n\n"
        f"Equal data: every method that uses the operator gets {OPERATOR_STEPS} operator steps. "
        "BC and SAC + demos get all of them as demonstrations before training; HG-DAgger and "
        "HIL-SERL get three successful demonstrations (the steps of failed attempts count) and "
        "interventions, then the operator leaves. Task: `peg_insert` with a clearance of "
        f"{1000 * TIGHT['params']['clearance']:.1f} mm instead of 0.6 mm on each side. Expert: "
        "config/teleop/scripted_expert.yaml, frozen before the first run."
    )


def draw(results: Mapping[str, Sequence[Result]], path: Path) -> None:
    """Success over training steps, one panel for learning and one for the operator's share."""
    figure = Figure(figsize=(8.0, 6.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True)
    top.set_ylabel("success, deterministic")
    top.set_ylim(-0.03, 1.03)
    bottom.set_ylabel("operator steps")
    bottom.set_xlabel("training steps")
    for index, (name, runs) in enumerate(results.items()):
        colour = f"C{index}"
        for number, run in enumerate(runs):
            points = run["evaluations"]
            label = METHODS[name][0] if number == 0 else None
            steps = [point["env_steps"] for point in points]
            rates = [point["successes"] / point["episodes"] for point in points]
            if len(points) == 1:
                top.axhline(rates[0], color=colour, ls=":", lw=1, label=label)
                continue
            top.plot(steps, rates, color=colour, marker=".", lw=1, alpha=0.8, label=label)
            driven = np.cumsum([episode[1] for episode in run["training"]]) + run["demo_steps"]
            at = np.cumsum([episode[0] for episode in run["training"]])
            bottom.plot(at, driven, color=colour, lw=1, alpha=0.8)
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
    if results:
        top.legend(fontsize=7, loc="best")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


if __name__ == "__main__":
    sys.exit(main())
