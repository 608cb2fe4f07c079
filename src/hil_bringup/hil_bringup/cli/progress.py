"""Run a long command: its output goes to a log, a person sees that it moves."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

_FRAMES = "|/-\\"
_REPORT_PERIOD = 10.0
"""Seconds between two lines where the output is not a terminal."""
_TAIL = 15
_STOP_LIMIT = 5.0
_CI_TAIL = 40


class CommandError(RuntimeError):
    """A command of a step failed; the text holds the end of its output."""


class Progress:
    """Shows one step at a time: on a terminal a line that is rewritten, else one now and then."""

    def __init__(self, log: Path, stream: TextIO | None = None) -> None:
        self.log = log
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._title = ""
        self._started = 0.0
        self._reported = 0.0
        self._frame = 0
        self._last = ""

    def say(self, text: str) -> None:
        """Print a line of its own."""
        self._clear()
        print(text, file=self._stream, flush=True)

    def run(
        self,
        title: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: Path | None = None,
    ) -> None:
        """Run a command to its end.

        Ctrl-C and SIGTERM end it with everything that it started.

        Raises:
            CommandError: it failed.
            KeyboardInterrupt: the person stopped it.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._begin(title)
        with self.log.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            try:
                process = subprocess.Popen(
                    command,
                    env=dict(environment),
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise CommandError(f"{title}: {error}") from error
            try:
                lines = self._follow(process, log)
            except BaseException:
                _stop(process)
                self._clear()
                raise
        if process.returncode != 0:
            self._fail(title, command, process.returncode, lines)
        self._end()

    def _follow(self, process: subprocess.Popen[bytes], log: BinaryIO) -> list[str]:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        tail: list[str] = []
        pending = b""
        while True:
            ready, _, _ = select.select([descriptor], [], [], 0.2)
            if ready:
                chunk = os.read(descriptor, 65536)
                if not chunk:
                    break
                log.write(chunk)
                log.flush()
                *whole, pending = (pending + chunk).split(b"\n")
                for line in whole:
                    text = line.decode(errors="replace").rstrip()
                    if text:
                        tail = [*tail[-(_CI_TAIL - 1) :], text]
                        self._last = text
            self._show()
        process.wait()
        return tail

    def _fail(self, title: str, command: Sequence[str], code: int, lines: list[str]) -> None:
        self._clear()
        shown = lines[-(_CI_TAIL if os.environ.get("CI") == "true" else _TAIL) :]
        raise CommandError(
            "\n".join(
                [
                    f"{title}: {Path(command[0]).name} failed with exit code {code}",
                    *(f"  | {line}" for line in shown),
                    f"  full log: {self.log}",
                ]
            )
        )

    def _begin(self, title: str) -> None:
        self._title, self._last = title, ""
        self._started = self._reported = time.monotonic()
        if not self._terminal:
            print(f"{title} ...", file=self._stream, flush=True)

    def _end(self) -> None:
        self._clear()
        elapsed = time.monotonic() - self._started
        if self._terminal:
            print(f"{self._title}: done in {elapsed:.0f} s", file=self._stream, flush=True)
        else:
            print(f"    done in {elapsed:.0f} s", file=self._stream, flush=True)

    def _show(self) -> None:
        now = time.monotonic()
        elapsed = now - self._started
        if self._terminal:
            self._frame += 1
            text = f"{_FRAMES[self._frame % 4]} {self._title}  {elapsed:3.0f} s  {self._last}"
            width = os.get_terminal_size(self._stream.fileno()).columns
            print(f"\r\x1b[K{text[: width - 1]}", end="", file=self._stream, flush=True)
        elif now - self._reported >= _REPORT_PERIOD:
            self._reported = now
            print(f"    {elapsed:3.0f} s  {self._last[:110]}", file=self._stream, flush=True)

    def _clear(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=self._stream, flush=True)


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(_STOP_LIMIT)
        except subprocess.TimeoutExpired:
            continue
    if process.stdout is not None:
        process.stdout.close()


def interrupt_on_sigterm() -> None:
    """Treat SIGTERM as Ctrl-C, so that being stopped by a supervisor cleans up too."""

    def handler(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, handler)
