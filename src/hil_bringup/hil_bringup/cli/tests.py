"""`hil test`: ruff, mypy, pytest; each always runs, and the exit code tells whether all passed."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hil_bringup.cli.workspace import Workspace


def run(workspace: Workspace, environment: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Run everything; pytest comes last, so that its summary is the last line.

    `arguments` go to pytest; with them only pytest runs.
    """
    python = str(workspace.python)
    failed: list[str] = []
    checks: dict[str, list[str]] = {
        "ruff check": [python, "-m", "ruff", "check"],
        "ruff format": [python, "-m", "ruff", "format", "--check"],
        "mypy": [python, "-m", "mypy"],
    }
    for name, command in {} if arguments else checks.items():
        print(f"== {name}", flush=True)
        if subprocess.run(command, cwd=workspace.root, env=environment, check=False).returncode:
            failed.append(name)
    if failed:
        print(
            f"== FAILED: {', '.join(failed)} (see above); the tests run all the same", flush=True
        )
    folders = [] if any(not a.startswith("-") for a in arguments) else test_folders(workspace.root)
    command = [python, "-m", "pytest", *folders, *arguments]
    print(f"== pytest {' '.join([*folders, *arguments])}", flush=True)
    code = subprocess.run(command, cwd=workspace.root, env=environment, check=False).returncode
    return code or (1 if failed else 0)


def test_folders(root: Path) -> list[str]:
    """Folders with tests: of each package, of the system, of the benchmarks."""
    folders = [*sorted(root.glob("src/*/test")), root / "test", root / "bench"]
    return [str(f.relative_to(root)) for f in folders if any(f.glob("test_*.py"))]
