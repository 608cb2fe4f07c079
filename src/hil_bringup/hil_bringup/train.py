"""`hil train`: trains from recorded bags alone, without graph and robot, reproducibly."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of a command line; ends the process with a text on help or a mistake."""
    parser = argparse.ArgumentParser(
        prog="hil train",
        description="Trains from recorded bags alone. The same bags, settings and seed give the "
        "same weights. Settings are those of the run that the first bag lies in, or the defaults.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--from-bag", nargs="+", required=True, metavar="PATH", help="bag folders or .mcap files"
    )
    parser.add_argument(
        "--repeat",
        action="store_true",
        help="make the updates that the live run made, each on what it had seen",
    )
    parser.add_argument("--updates", type=_count, help="stop after that many")
    parser.add_argument("--seed", type=_count, help="of networks and sampling")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the learner, see docs/interfaces.md",
    )
    parser.add_argument(
        "--out", default="runs/replay", help="folder of the checkpoint (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    return parser.parse_args(list(arguments))


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Train; return the exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    code: int = importlib.import_module("hil_learner.offline").run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
