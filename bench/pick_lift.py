"""`pick_lift` from state: HIL-SERL with the grasp critic, and what the task asks for without it.

Randomly initialised policy and scripted expert drive as many episodes as the trained policy. Each
run is written to docs/results/pick_lift/ when it is done; the page is made of what is there. A run
that was stopped continues with --resume.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from _figures import Report
from _runs import ROOT, Result, Runs, arguments, load, mean_time, provenance, stop_on_signals
from _runs import success as success_of
from _session import Session, SessionConfig

PAGE = ROOT / "docs" / "results" / "pick_lift.md"
RESULTS = PAGE.with_suffix("")
NAME = "hil_serl"
BASE = SessionConfig(task="pick_lift", demos=5, grasp_penalty=-0.02, agent={"grasp_epsilon": 0.05})


def main() -> int:
    """Run what is missing, then write the page."""
    options = arguments(__doc__, "pick_lift").parse_args()
    seeds = options.seeds if options.seed is None else [options.seed]
    runs = Runs(RESULTS, options.run_dir, options.resume, stop_on_signals())
    for seed in () if options.report else seeds:
        config = replace(BASE, seed=seed, steps=options.steps)
        baselines(config)
        if not runs.run(NAME, config):
            print(f"seed {seed}: stopped; go on with --resume", file=sys.stderr)
            return 130
    found = load(RESULTS, [NAME]).get(NAME, [])
    PAGE.write_text(page(found))
    report = Report(seeds[0], options.json)
    for run in found:
        report.add(f"pick_lift.success_seed{run['seed']}", success_of(run), "1", 50)
    return 0


def baselines(config: SessionConfig) -> None:
    """Success of a random policy and of the expert alone; kept in a file beside the runs."""
    file = RESULTS / f"baselines_{config.seed}.json"
    if file.is_file():
        return
    session = Session(config)
    rates = {
        "random": session.success_of_policy(config.final_episodes, deterministic=False),
        "expert": session.success_of_expert(config.final_episodes),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rates) + "\n")


def page(runs: Sequence[Result]) -> str:
    """Text of docs/results/pick_lift.md."""
    lines = [
        "# Pick and lift, from state\n",
        "HIL-SERL with the grasp critic (6 + 1 actions), 5 demonstrations, interventions without "
        "a limit. Success over 50 deterministic episodes without any operator.\n",
        "| seed | success | time to success, s | training steps | operator steps | curve |",
        "|---|---|---|---|---|---|",
        *(_row(run) for run in runs),
        "\n| seed | randomly initialised policy | scripted expert alone |",
        "|---|---|---|",
    ]
    for file in sorted(RESULTS.glob("baselines_*.json")):
        rates: Mapping[str, float] = json.loads(file.read_text())
        seed = file.stem.rpartition("_")[2]
        lines.append(f"| {seed} | {rates['random']:.2f} | {rates['expert']:.2f} |")
    lines.append("\n" + provenance("./hil bench pick_lift --seeds 0 1 2 --resume", runs))
    return "\n".join(lines) + "\n"


def _row(run: Result) -> str:
    curve = ", ".join(
        f"{p['env_steps']:,}: {p['successes'] / p['episodes']:.2f}" for p in run["evaluations"]
    )
    cells = [
        str(run["seed"]),
        f"{success_of(run):.2f}",
        f"{mean_time([run]):.1f}",
        f"{run['env_steps']:,}",
        f"{run['operator_steps']:,}",
        curve,
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
