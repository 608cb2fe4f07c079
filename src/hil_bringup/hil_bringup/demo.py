"""`hil demo`: the whole graph trains peg insertion with a scripted operator, and is evaluated.

The graph is `hil up sim` in lockstep; beside it runs hil_bringup.demo_driver, which takes the
actor through demonstrations, training and evaluation. When the driver has ended, the graph ends.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from hil_bringup import up
from hil_bringup.arguments import ArgumentError
from hil_bringup.console import Console
from hil_bringup.graph import NEVER, graph
from hil_bringup.processes import process_name
from hil_bringup.supervisor import Process

RESULT = "demo.json"
"""File in the run folder with the line that `--json` prints."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of a command line; ends the process with a text on help or a mistake."""
    parser = argparse.ArgumentParser(
        prog="hil demo",
        description="Trains with a scripted operator in simulation, live, and evaluates.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--task", default="peg_insert", help="what is learned")
    parser.add_argument("--seed", type=int, default=0, help="of everything")
    parser.add_argument("--demos", type=int, default=3, help="successful demonstrations first")
    parser.add_argument("--steps", type=int, default=12_000, help="training steps")
    parser.add_argument("--eval-episodes", type=int, default=50, help="without the operator")
    parser.add_argument("--run-dir", default="runs", help="folder that holds the run folders")
    return parser.parse_args(list(arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    chosen = graph("sim")
    given = {
        "task": options.task,
        "seed": str(options.seed),
        "run_dir": options.run_dir,
        "params_file": "graphs/demo",
        "pace": "lockstep",
        "operator": "scripted_expert",
        "monitor": "false",
    }
    try:
        request = up.Request(chosen, chosen.resolve(given))
        nodes = chosen.nodes(request.values)
        driver = Process("demo", _driver_command(options, request), NEVER, foreground=True)
        names = [*map(process_name, nodes), driver.name]
        stream = sys.stderr if options.json else sys.stdout
        console = Console(names, stream, quiet=True)
        code = up.run(request, nodes, more=[driver], console=console)
    except ArgumentError as error:
        print(f"hil demo: {error}", file=sys.stderr)
        return 2
    result = request.folder / RESULT
    if code != 0 or not result.is_file():
        # Stopped by a person, or something died: there is no result to show.
        return code or 130
    line = json.loads(result.read_text())
    print(json.dumps(line) if options.json else _text(line, request))
    return 0


def _driver_command(options: argparse.Namespace, request: up.Request) -> tuple[str, ...]:
    command = [sys.executable, "-m", "hil_bringup.demo_driver", str(request.folder / RESULT)]
    for name in ("task", "seed", "demos", "steps", "eval_episodes"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    return tuple(command)


def _text(line: dict[str, Any], request: up.Request) -> str:
    low, high = line["ci95"]
    first, last = line["intervention_rate_first"], line["intervention_rate_last"]
    return (
        f"\n{line['task']}: success rate {line['success_rate']:.0%} in {line['eval_episodes']} "
        f"episodes without any intervention (95 % interval {low:.0%} to {high:.0%})\n"
        f"trained for {line['env_steps']} steps after {line['demos']} demonstrations, "
        f"{line['train_s']:.0f} s; the operator drove {first:.0%} of the steps in the first "
        f"fifth, {last:.0%} in the last\n"
        f"curves, checkpoints, logs: {request.folder}"
    )


if __name__ == "__main__":
    sys.exit(main())
