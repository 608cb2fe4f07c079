"""The `hil` command: what each subcommand does, in which environment."""

from __future__ import annotations

import argparse
import fcntl
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hil_bringup.cli import checks, doctor, tests
from hil_bringup.cli.environment import run_environment
from hil_bringup.cli.interpreters import candidates, choose
from hil_bringup.cli.progress import CommandError, Progress, interrupt_on_sigterm
from hil_bringup.cli.setup_steps import Setup
from hil_bringup.cli.workspace import Workspace, system_ros

_DESCRIPTION = """\
Human-in-the-loop reinforcement learning on a ROS 2 node graph.

  ./hil demo     set everything up, train peg insertion with a scripted operator, evaluate
  ./hil test     set everything up, then lint, type-check and test everything
"""


class SetupError(RuntimeError):
    """Set-up cannot begin; the text says what is missing and the command that brings it."""


def main(root: str, arguments: Sequence[str]) -> int:
    """Entry point of the `hil` file; returns the exit code."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.passes_on:
        parser.error(f"unknown argument: {rest[0]}")
    options.rest = [*getattr(options, "rest", []), *rest]
    interrupt_on_sigterm()
    try:
        code: int = options.run(Workspace(Path(root)), options)
        return code
    except (SetupError, CommandError) as error:
        print(f"hil {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nhil {options.command}: stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hil",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str,
        text: str,
        run: Callable[[Workspace, argparse.Namespace], int],
        *,
        needs_setup: bool,
        passes_on: bool = False,
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=text, description=text, add_help=not passes_on, allow_abbrev=False
        )
        sub.set_defaults(run=run, passes_on=passes_on)
        if needs_setup:
            sub.add_argument(
                "--no-setup",
                action="store_true",
                help="use what is there, check and build nothing",
            )
        if needs_setup or name == "setup":
            sub.add_argument(
                "--install",
                action="store_true",
                help="as root on Debian and Ubuntu: apt-get install what the machine lacks "
                "(also when CI=true)",
            )
        return sub

    add(
        "setup",
        "install and build everything; does only what changed",
        _setup,
        needs_setup=False,
    )
    add(
        "doctor",
        "what is here, what is missing, and the command that brings it",
        _doctor,
        needs_setup=False,
    )
    add(
        "status",
        "what the running graph says of itself: [--json]",
        _status,
        needs_setup=False,
        passes_on=True,
    )
    for name, text, run in (
        ("demo", "train with a scripted operator in simulation, and evaluate", _module("demo")),
        ("test", "lint, type-check and test everything; more arguments go to pytest", _test),
        ("up", "start a graph: up GRAPH key:=value ... (up alone lists them)", _module("up")),
        ("spool", "steps that wait on disk: spool list, spool import FILE", _spool),
        ("train", "train from recorded bags: train --from-bag PATH ...", _module("train")),
        ("eval", "evaluate a checkpoint in simulation", _module("evaluate")),
        ("robot", "a tool for the arm: robot TOOL (robot alone lists them)", _robot),
        ("bench", "run a benchmark: bench NAME [--json] (bench alone lists them)", _bench),
    ):
        add(name, text, run, needs_setup=True, passes_on=True)
    return parser


def _setup(workspace: Workspace, options: argparse.Namespace) -> int:
    count = ensure_setup(workspace, install=options.install)
    print("set-up complete" if count else "set-up is up to date")
    return 0


def _doctor(workspace: Workspace, options: argparse.Namespace) -> int:
    return doctor.run(workspace)


def _status(workspace: Workspace, options: argparse.Namespace) -> int:
    importlib.import_module("hil_bringup.status").parse(options.rest)
    if not workspace.python.is_file():
        raise SetupError("nothing is set up here yet: ./hil setup")
    return _replace(workspace, ["-m", "hil_bringup.status", *options.rest])


def _test(workspace: Workspace, options: argparse.Namespace) -> int:
    _prepare(workspace, options)
    return tests.run(workspace, run_environment(workspace), options.rest)


def _bench(workspace: Workspace, options: argparse.Namespace) -> int:
    scripts = (workspace.root / "bench").glob("[a-z]*.py")
    names = sorted(p.stem for p in scripts if not p.stem.startswith("test_"))
    if not options.rest or options.rest[0] not in names:
        wrong = f"no benchmark {options.rest[0]!r}; " if options.rest else ""
        print(f"{wrong}benchmarks: {', '.join(names) or 'none'}", file=sys.stderr)
        return 2 if options.rest else 0
    _prepare(workspace, options)
    script = workspace.root / "bench" / f"{options.rest[0]}.py"
    return _replace(workspace, [str(script), *options.rest[1:]])


def _spool(workspace: Workspace, options: argparse.Namespace) -> int:
    _prepare(workspace, options)
    return _replace(workspace, ["-m", "hil_actor.spool_tool", *options.rest])


_ROBOT_TOOLS = {"selftest": "hil_robot_bridge.selftest_main"}


def _robot(workspace: Workspace, options: argparse.Namespace) -> int:
    name, *rest = options.rest or [""]
    if name not in _ROBOT_TOOLS:
        wrong = f"no tool {name!r}; " if name else ""
        print(f"{wrong}tools: {', '.join(_ROBOT_TOOLS)}", file=sys.stderr)
        return 2 if name else 0
    _prepare(workspace, options)
    return _replace(workspace, ["-m", _ROBOT_TOOLS[name], *rest])


def _module(name: str) -> Callable[[Workspace, argparse.Namespace], int]:
    """A subcommand that is a module of hil_bringup.

    Its arguments are parsed twice: here, so that help and mistakes do not wait for set-up, and
    there, in the virtual environment.
    """

    def run(workspace: Workspace, options: argparse.Namespace) -> int:
        importlib.import_module(f"hil_bringup.{name}").parse(options.rest)
        _prepare(workspace, options)
        return _replace(workspace, ["-m", f"hil_bringup.{name}", *options.rest])

    return run


def _prepare(workspace: Workspace, options: argparse.Namespace) -> None:
    if not options.no_setup:
        ensure_setup(workspace, install=options.install)


def _replace(workspace: Workspace, arguments: list[str]) -> int:
    """Go on as a Python of the virtual environment. Does not return."""
    environment = run_environment(workspace)
    sys.stdout.flush()
    os.execve(workspace.python, [str(workspace.python), *arguments], environment)


def ensure_setup(workspace: Workspace, *, install: bool) -> int:
    """Make everything that is not there or out of date; return the number of steps done.

    Raises:
        SetupError: the machine lacks something.
        CommandError: a step failed.
    """
    with _lock(workspace):
        ros = bool(system_ros(os.environ))
        interpreter = choose(candidates(workspace, system_only=ros))
        progress = Progress(workspace.log / "setup.log")
        if interpreter is not None:
            setup = Setup(workspace, interpreter, progress)
            if all(step.fresh for step in setup.steps()):
                return 0
        found = checks.run_checks(interpreter, workspace.root)
        lacking = checks.missing(found)
        if lacking and (install or os.environ.get("CI") == "true"):
            _install_system_packages(checks.packages(found), progress)
            interpreter = choose(candidates(workspace, system_only=ros))
            found = checks.run_checks(interpreter, workspace.root)
            lacking = checks.missing(found)
        if lacking or interpreter is None:
            raise SetupError(f"this machine lacks something.\n{checks.report(found)}")
        return Setup(workspace, interpreter, progress).run()


def _install_system_packages(names: Sequence[str], progress: Progress) -> None:
    if not names:
        return
    if not checks.is_debian() or os.geteuid() != 0:
        raise SetupError(
            "--install works as root on Debian and Ubuntu; needed: " + " ".join(names)
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    progress.run("package lists of the distribution", ["apt-get", "update"], environment)
    command = ["apt-get", "install", "-y", "--no-install-recommends", *names]
    progress.run("packages of the distribution: " + " ".join(names), command, environment)


@contextmanager
def _lock(workspace: Workspace) -> Iterator[None]:
    """One set-up at a time in a checkout; the lock ends with the process."""
    workspace.log.mkdir(parents=True, exist_ok=True)
    with (workspace.log / "setup.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another ./hil sets this checkout up; waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
