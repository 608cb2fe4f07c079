"""Starts processes, shows and keeps their output, restarts and stops them, leaves nothing behind.

Standard library only; knows nothing of ROS.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hil_bringup import crash_report, guardian
from hil_bringup.graph import Respawn

WRONG_CONFIGURATION = 2
"""Exit code of a process that was given a wrong parameter: a restart would not help."""
_LAST_LINES = 12
_OWN_SIGNALS = (-signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL)
"""Exit codes of what the supervisor has ended itself."""
_LONGEST_LINE = 2**20
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Process:
    """One process to run."""

    name: str
    command: tuple[str, ...]
    respawn: Respawn = field(default_factory=Respawn)
    required: bool = True
    foreground: bool = False
    """It writes to the terminal itself, instead of into the prefixed log."""


@dataclass(frozen=True)
class Limits:
    """Seconds that a process may take to end."""

    interrupt: float = 15.0
    """After SIGINT, before SIGTERM."""
    terminate: float = 3.0
    """After SIGTERM, before SIGKILL."""


@dataclass
class _State:
    """What the supervisor knows of one process."""

    process: Process
    handle: asyncio.subprocess.Process | None = None
    started_at: float = 0.0
    starting: bool = False
    restarts: deque[float] = field(default_factory=deque)
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=crash_report.LINES))

    @property
    def running(self) -> bool:
        return self.handle is not None and self.handle.returncode is None


class Supervisor:
    """Runs a set of processes until one that is required has ended for good, or `stop` is called.

    Args:
        processes: what to run.
        stop_order: groups of names in the order of stopping; who is not named stops first.
        environment: of all processes.
        folder: for their logs, one file each.
        show: is given name, line of every line of output, and of the supervisor's own (name "").
        limits: time to end.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        stop_order: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        folder: Path,
        show: Callable[[str, str], None],
        limits: Limits | None = None,
    ) -> None:
        self._states = {process.name: _State(process) for process in processes}
        named = {name for group in stop_order for name in group}
        self._stop_order = [
            [name for name in self._states if name not in named],
            *[list(group) for group in stop_order],
        ]
        self._environment = dict(environment)
        self._folder = folder
        self._show = show
        self._limits = limits or Limits()
        self._stop_requests = 0
        self._code = 0
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._guardian: subprocess.Popen[bytes] | None = None

    async def run(self) -> int:
        """Start everything, wait, stop everything; return the exit code.

        0 after `stop`; else that of the required process that ended (128 + number for a signal).
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._start_guardian()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop)
        keepers = [asyncio.create_task(self._keep(state)) for state in self._states.values()]
        try:
            await self._stopping.wait()
            await self._stop_all()
            await asyncio.gather(*keepers)
        finally:
            for state in self._states.values():
                if state.running and state.handle is not None:
                    guardian.send(state.handle.pid, signal.SIGKILL)
            self._end_guardian()
        return self._code

    def stop(self) -> None:
        """Stop in order. Called again: at once (SIGTERM); a third time: SIGKILL."""
        self._stop_requests += 1
        if self._stop_requests == 1:
            self._say("stopping")
            self._stopping.set()
            return
        number = signal.SIGTERM if self._stop_requests == 2 else signal.SIGKILL
        self._say(f"{number.name} to everything")
        self._hurry.set()
        for state in self._states.values():
            if state.running and state.handle is not None:
                guardian.send(state.handle.pid, number)

    def pids(self) -> dict[str, int]:
        """Process ids of what runs, by name."""
        return {
            name: state.handle.pid
            for name, state in self._states.items()
            if state.running and state.handle is not None
        }

    # ------------------------------------------------------------------------ one process

    async def _keep(self, state: _State) -> None:
        """Run a process and start it again as its policy says."""
        process, policy = state.process, state.process.respawn
        while not self._stopping.is_set():
            try:
                code = await self._run_once(state)
            except OSError as error:
                state.handle = None
                self._give_up(state, 1, f"does not start: {error}")
                return
            ending = _ending(code)
            if self._stopping.is_set():
                if code not in _OWN_SIGNALS:
                    self._report_crash(state, code, "the graph was being stopped")
                return
            now = time.monotonic()
            while state.restarts and now - state.restarts[0] > policy.window:
                state.restarts.popleft()
            if not _restartable(policy, code):
                self._give_up(state, code, ending)
                return
            if len(state.restarts) >= policy.limit:
                times = f"{policy.limit} restarts in {policy.window:.0f} s did not help"
                self._give_up(state, code, f"{ending}; {times}")
                return
            delay = min(policy.delay * 2 ** len(state.restarts), policy.longest_delay)
            state.restarts.append(now)
            outcome = f"starting it again in {delay:.1f} s"
            self._say(f"{process.name} {ending}; {outcome}")
            self._report_crash(state, code, outcome)
            if await self._stopped_within(delay):
                return

    async def _run_once(self, state: _State) -> int:
        process = state.process
        output, ours = (None, None) if process.foreground else _pipe()
        state.starting = True
        try:
            handle = await asyncio.create_subprocess_exec(
                *process.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
            state.handle, state.started_at = handle, time.monotonic()
            state.last_lines.clear()
        finally:
            state.starting = False
            if output is not None:
                os.close(output)
        self._tell_guardian(f"+{handle.pid}")
        path = self._folder / f"{process.name}.log"
        with path.open("a", encoding="utf-8", buffering=1) as log:
            log.write(f"--- {time.strftime('%F %T')} {' '.join(process.command)}\n")
            reader = asyncio.create_task(self._read(state, ours, log))
            code = await handle.wait()
            guardian.send(handle.pid, signal.SIGKILL)  # what it has started itself
            await reader
            log.write(f"--- {time.strftime('%F %T')} {_ending(code)}\n")
        self._tell_guardian(f"-{handle.pid}")
        return code

    async def _read(self, state: _State, pipe: IO[bytes] | None, log: IO[str]) -> None:
        """Show and keep what comes out of a pipe.

        It is one of our own: unlike asyncio's, it may stay open when the process has ended, in the
        hands of what that has started.
        """
        if pipe is None:
            return
        stream = asyncio.StreamReader(limit=_LONGEST_LINE)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), pipe
        )
        while True:
            try:
                data = await stream.readline()
            except ValueError:  # longer than the limit: what is left comes as a line of its own
                continue
            if not data:
                break
            line = data.decode(errors="replace").rstrip("\n")
            log.write(f"{time.time():.3f} {line}\n")
            state.last_lines.append(line)
            self._show(state.process.name, line)
        transport.close()

    def _give_up(self, state: _State, code: int, ending: str) -> None:
        goes_on = not state.process.required
        outcome = "the graph goes on without it" if goes_on else "the graph ends"
        self._say(f"{state.process.name} {ending}; {outcome}")
        self._report_crash(state, code, outcome)
        if goes_on:
            return
        if code != 0:
            for line in list(state.last_lines)[-_LAST_LINES:]:
                self._say(f"  | {line}")
        if not self._stopping.is_set():
            self._code = exit_code(code)
            self._stop_requests += 1
            self._stopping.set()

    def _report_crash(self, state: _State, code: int, outcome: str) -> None:
        """Write a crash report and name it, unless all has been said already."""
        if code in (0, WRONG_CONFIGURATION) or state.handle is None or state.process.foreground:
            return
        process, seconds = state.process, time.monotonic() - state.started_at
        crash = crash_report.Crash(
            process.name, _ending(code), outcome, process.command, state.handle.pid, seconds,
            state.last_lines,
        )  # fmt: skip
        try:
            path = crash_report.write(self._folder, crash)
        except OSError as error:
            self._say(f"no crash report of {process.name}: {error}")
        else:
            self._say(f"crash report: {path}")

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    # --------------------------------------------------------------------------- stopping

    async def _stop_all(self) -> None:
        while any(state.starting for state in self._states.values()):
            await asyncio.sleep(0.01)
        for group in self._stop_order:
            states = [s for name in group if (s := self._states.get(name)) and s.running]
            for number, limit in (
                (signal.SIGINT, self._limits.interrupt),
                (signal.SIGTERM, self._limits.terminate),
                (signal.SIGKILL, None),
            ):
                if not await self._signal(states, number, limit):
                    break

    async def _signal(
        self, states: Sequence[_State], number: signal.Signals, limit: float | None
    ) -> bool:
        """Send a signal to those that run and wait; return whether any runs still."""
        left = [s.handle for s in states if s.running and s.handle is not None]
        if not left:
            return False
        for handle in left:
            guardian.send(handle.pid, number)
        ended = asyncio.create_task(_all_ended(left))
        hurry = asyncio.create_task(self._hurry.wait())
        watched = {ended, hurry} if number is signal.SIGINT else {ended}
        await asyncio.wait(watched, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        ended.cancel()
        late = [s.process.name for s in states if s.running]
        if late and not self._hurry.is_set():
            self._say(f"{', '.join(late)}: not ended {limit:.0f} s after {number.name}")
        return bool(late)

    # --------------------------------------------------------------------------- guardian

    def _start_guardian(self) -> None:
        self._guardian = subprocess.Popen(
            [sys.executable, "-S", "-m", "hil_bringup.guardian"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**self._environment, "PYTHONPATH": _import_path(self._environment)},
            start_new_session=True,
        )

    def _tell_guardian(self, text: str) -> None:
        if self._guardian is None or self._guardian.stdin is None:
            return
        try:
            self._guardian.stdin.write(f"{text}\n".encode())
            self._guardian.stdin.flush()
        except BrokenPipeError:
            self._say("the guardian process is gone: if this one is killed, nodes may stay")
            self._guardian = None

    def _end_guardian(self) -> None:
        if self._guardian is not None and self._guardian.stdin is not None:
            self._guardian.stdin.close()
            self._guardian.wait()

    def _say(self, text: str) -> None:
        self._show("", text)


async def _all_ended(handles: Sequence[asyncio.subprocess.Process]) -> None:
    for handle in handles:
        await handle.wait()


def exit_code(returncode: int) -> int:
    """Exit code for a shell: 128 + number where a signal ended the process."""
    return returncode if returncode >= 0 else 128 - returncode


def _restartable(policy: Respawn, code: int) -> bool:
    if code == WRONG_CONFIGURATION or policy.policy == "never":
        return False
    return policy.policy == "always" or code != 0


def _ending(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _pipe() -> tuple[int, IO[bytes]]:
    """End for a process to write to, and ours to read from."""
    ours, theirs = os.pipe()
    return theirs, os.fdopen(ours, "rb", 0)


def _die_with_parent() -> None:
    """Runs in the child before its program: SIGTERM when the supervisor dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _import_path(environment: Mapping[str, str]) -> str:
    package_parent = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join(filter(None, [package_parent, environment.get("PYTHONPATH", "")]))
