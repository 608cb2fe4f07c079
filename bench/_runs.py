"""Long training runs of a benchmark: resumable, one file of results each, and how to read them."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _session import Session, SessionConfig

ROOT = Path(__file__).resolve().parents[1]
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Runs:
    """Runs of one benchmark.

    Attributes:
        results: folder of the results, one JSON file per run.
        folder: of the checkpoints of unfinished runs.
        resume: keep results that are there and continue from checkpoints; else run anew.
        stopping: asked between episodes.
    """

    results: Path
    folder: Path
    resume: bool
    stopping: Callable[[], bool]

    def run(self, name: str, config: SessionConfig) -> bool:
        """One run, unless its result is there; False if it was stopped."""
        file = self.results / f"{name}_{config.seed}.json"
        folder = self.folder / file.stem
        if self.resume and file.is_file():
            return True
        if not self.resume and folder.exists():
            shutil.rmtree(folder)
        session = Session(config, folder)
        progress = session.run(self.stopping)
        if not progress.done:
            return False
        result = {
            "method": name,
            "seed": config.seed,
            "commit": _commit(),
            "machine": _machine(),
            "demo_steps": progress.demo_steps,
            "operator_steps": progress.operator_steps,
            "env_steps": progress.env_steps,
            "updates": session.trainer.updates,
            "cpu_s": round(progress.cpu_s),
            "evaluations": progress.evaluations,
            "training": progress.training,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps(result) + "\n")
        os.replace(temporary, file)
        shutil.rmtree(folder)
        return True


def arguments(description: str | None, folder: str) -> argparse.ArgumentParser:
    """Options that all long benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, help="one seed; short for --seeds SEED")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=SessionConfig().steps, help="training steps")
    parser.add_argument("--resume", action="store_true", help="keep what is there, continue")
    parser.add_argument("--report", action="store_true", help="only write what runs came to")
    parser.add_argument("--run-dir", type=Path, default=ROOT / "runs" / folder)
    return parser


def stop_on_signals() -> Callable[[], bool]:
    """Whether SIGINT or SIGTERM has come; from now on they do not end the process."""
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stopped.append(number))
    return lambda: bool(stopped)


def load(folder: Path, names: Iterable[str]) -> dict[str, list[Result]]:
    """Results by name, in order; names without one are left out."""
    found: dict[str, list[Result]] = {}
    for name in names:
        files = sorted(folder.glob(f"{name}_[0-9]*.json"))
        runs = [json.loads(file.read_text()) for file in files]
        if runs:
            found[name] = runs
    return found


def success(result: Result) -> float:
    """Success rate of a run's last evaluation."""
    last = result["evaluations"][-1]
    return float(last["successes"] / last["episodes"])


def mean_time(runs: Sequence[Result]) -> float:
    """Mean time of the successful episodes of the last evaluations, s; NaN without one."""
    lasts = [each["evaluations"][-1] for each in runs]
    total = sum(each["time"] * each["successes"] for each in lasts if each["successes"])
    count = sum(each["successes"] for each in lasts)
    return total / count if count else math.nan


def provenance(command: str, runs: Iterable[Result]) -> str:
    """How results came about, in words."""
    runs = list(runs)
    commits = ", ".join(sorted({run["commit"] for run in runs}))
    machines = "; ".join(sorted({run["machine"] for run in runs}))
    cpu = sum(run["cpu_s"] for run in runs) / 60
    return (
        f"Command: `{command}`. Commit {commits}. Machine: {machines}, shared with other work; "
        f"{cpu:.0f} minutes of CPU for all runs."
    )


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return found or "unknown"


def _machine() -> str:
    name = platform.processor() or platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as stream:
        for line in stream:
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{os.cpu_count()} x {name}"
