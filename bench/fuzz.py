"""Hostile requests and files: 200,000 cases, each refused with a reason or harmless.

- `fuzz.cases`, `fuzz.refused`: how many were made, and refused.
- `fuzz.failures`: crashes, hangs, refusals without a reason; the first one ends the run.
- `fuzz.growth_mb`: growth of the process's memory at its highest, over that after a tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterator

import _fuzz
from _figures import Report

_HANG = 300
"""Seconds that a tenth of the cases may take."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what the middleware's C code says about every malformed message off the terminal."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def main() -> int:
    """Run and print the figures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=200_000)
    options = parser.parse_args()
    report, cases, refused, memory = Report(options.seed, options.json), 0, 0, 0
    failure = ""
    for part in range(10):
        signal.alarm(_HANG)  # a hang ends the process
        try:
            with quiet():
                result = _fuzz.run(options.cases // 10, 10 * options.seed + part)
        except _fuzz.Failure as error:
            failure = str(error)
            break
        cases += result.cases.total()
        refused += result.refused.total()
        memory = memory or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.alarm(0)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    report.add("fuzz.cases", cases, "", cases)
    report.add("fuzz.refused", refused, "", cases)
    report.add("fuzz.failures", float(bool(failure)), "", cases)
    report.add("fuzz.growth_mb", growth, "MB", cases)
    if failure:
        print(failure, file=sys.stderr)
    return bool(failure)


if __name__ == "__main__":
    sys.exit(main())
