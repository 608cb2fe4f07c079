"""Hindsight experience replay against Stable-Baselines3, and against doing without it.

FetchReach until 95 % success beside DDPG + HER + VecNormalize of Stable-Baselines3; bit flipping
with 15 bits with and without HER; the time to sample a batch at 20,000 and at 1,000,000
transitions; on FetchPush the share of goals from which nothing is learned. Writes curves and a
table into docs/results.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import torch
from _figures import Report

ROOT = Path(__file__).resolve().parents[1]
PEERS = {"gymnasium_robotics": "gymnasium-robotics", "stable_baselines3": "stable-baselines3"}
REACH_LIMIT, BITS_LIMIT, PUSH_STEPS = 3_000, 7_500, 3_000
BAND = (0.1, 0.5)


def require_peers() -> None:
    """End with the command that brings what is missing."""
    missing = [name for module, name in PEERS.items() if importlib.util.find_spec(module) is None]
    if missing:
        sys.exit(
            f"./hil bench her needs {' and '.join(missing)}: run\n"
            "  .venv/bin/pip install --no-deps -r requirements-bench.txt"
        )


def main() -> None:
    """Run and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="folder")
    options = parser.parse_args()
    require_peers()
    torch.set_num_threads(1)
    import _her_runs as runs

    from hil_rl.config import HindsightConfig

    seeds, report = options.seeds, Report(options.seeds[0], options.json)
    n = len(seeds)
    reach: list[runs.Curve] = []
    for seed in seeds:  # in turns, so that what else the machine does hits both
        for run in (runs.reach, runs.reach_sb3):
            reach.append(_told(run(seed, REACH_LIMIT)))
    for suffix, curves in (("", reach[0::2]), ("_sb3", reach[1::2])):
        solved = [curve.solved() for curve in curves]
        report.add(f"her.reach_steps_to_95{suffix}", median(s for s, _ in solved), "steps", n)
        report.add(f"her.reach_cpu_s_to_95{suffix}", median(c for _, c in solved), "s", n)
    bits = [_told(runs.bits(seed, BITS_LIMIT, hindsight=True)) for seed in seeds]
    without = [_told(runs.bits(seed, BITS_LIMIT, hindsight=False)) for seed in seeds]
    report.add("her.bits15_steps_to_95", median(c.solved()[0] for c in bits), "steps", n)
    report.add("her.bits15_success_without", median(max(c.success) for c in without), "1", n)
    for transitions, name in ((20_000, "20k"), (1_000_000, "1m")):
        value = runs.sample_ms(transitions, seeds[0])
        report.add(f"her.sample_ms_{name}", value, "ms", 400)
        value = runs.sample_ms_sb3(transitions, seeds[0])
        report.add(f"her.sample_ms_{name}_sb3", value, "ms", 400)
    for suffix, config in (
        ("", HindsightConfig()),
        ("_band", HindsightConfig(band=BAND)),
        ("_keep_reached", HindsightConfig(keep_reached=0.0)),
    ):
        figures = [runs.push_trivial(seed, PUSH_STEPS, config) for seed in seeds]
        value = median(f.get("relabel_trivial_fraction", 0.0) for f in figures)
        report.add(f"her.push_trivial_fraction{suffix}", value, "1", n)
        value = median(f["relabel_rejected_fraction"] for f in figures)
        report.add(f"her.push_rejected_fraction{suffix}", value, "1", n)

    options.out.mkdir(parents=True, exist_ok=True)
    draw(reach, [*bits, *without], options.out / "her.png")
    write(report, [*reach, *bits, *without], seeds, options.out / "her.md")


def _told(curve: Any) -> Any:
    """Say on the error output what a run came to."""
    steps, cpu = curve.solved()
    text = f"{curve.label}, seed {curve.seed}: {steps:g} steps, {cpu:.1f} CPU s to 95 %"
    print(text, file=sys.stderr, flush=True)
    return curve


def draw(reach: list[Any], bits: list[Any], path: Path) -> None:
    """Success over environment steps, one line per run."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, curves, title in (
        (axes[0], reach, "FetchReach-v4"),
        (axes[1], bits, "bit flipping, 15 bits"),
    ):
        colours: dict[str, str] = {}
        for curve in curves:
            label = None if curve.label in colours else curve.label
            colour = colours.setdefault(curve.label, f"C{len(colours)}")
            axis.plot([0, *curve.steps], [0.0, *curve.success], f"{colour}o-", ms=3, label=label)
        axis.axhline(0.95, color="grey", lw=0.8, ls="--")
        axis.set(title=title, xlabel="environment steps")
        axis.legend()
    axes[0].set_ylabel("success, deterministic")
    figure.savefig(path, dpi=120)


def write(report: Report, curves: list[Any], seeds: list[int], path: Path) -> None:
    """Write the page with command, commit, machine, figures and the runs."""
    command = f"./hil bench her --seeds {' '.join(map(str, seeds))}"
    lines = [
        "# Hindsight experience replay",
        "",
        f"`{command}`, commit {_commit()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, one thread; Python {platform.python_version()}, "
        f"torch {torch.__version__}.",
        "",
        "Steps and CPU time to the first evaluation with at least 95 % success (every 250 steps "
        "on FetchReach, 20 episodes; every 500 with bit flipping, 50 episodes; deterministic, "
        "success at the last step). CPU time is that of collecting and training, not of "
        "evaluation. Medians over the seeds.",
        "",
        "![Success over environment steps](her.png)",
        "",
        "| figure | value | unit |",
        "|---|---|---|",
        *(f"| `{f.figure}` | {f.value:.4g} | {f.unit} |" for f in report.figures),
        "",
        "| run | seed | steps to 95 % | CPU s | best success |",
        "|---|---|---|---|---|",
    ]
    for curve in curves:
        steps, cpu = curve.solved()
        lines.append(
            f"| {curve.label} | {curve.seed} | {steps:g} | {cpu:.3g} | {max(curve.success):.2f} |"
        )
    notes = path.with_name("her_notes.md")
    if notes.exists():  # how the settings were found; written by hand
        lines += ["", f"How far these figures carry: [{notes.name}]({notes.name})."]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
