"""Ends what `hil up` has left when it was killed itself. Standard library only.

The supervisor starts this process first, in a session of its own, and writes to its standard
input which process groups run (`+ID`) and which have ended (`-ID`). When the pipe closes with
groups still running, the supervisor is gone: they get SIGINT (an arm holds, files are closed),
then SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from hil_bringup.cli import shared_memory

GRACE = 5.0
"""Seconds between SIGINT and SIGKILL."""
KILL_LIMIT = 30.0
"""Seconds that the kernel may take on a busy machine to take a killed process apart."""


def alive(groups: Iterable[int]) -> bool:
    """Tell whether a process of one of these groups runs (zombies do not count)."""
    wanted = set(groups)
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = path.read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if int(group) in wanted and state not in ("Z", "X"):
            return True
    return False


def send(group: int, number: int) -> None:
    """Send a signal to a process group that may be gone."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def end(groups: set[int]) -> None:
    """End process groups, kindly first; return when they are gone."""
    for number, limit in ((signal.SIGINT, GRACE), (signal.SIGKILL, KILL_LIMIT)):
        for group in groups:
            send(group, number)
        until = time.monotonic() + limit
        while alive(groups) and time.monotonic() < until:
            time.sleep(0.05)


def main() -> None:
    """Read until the supervisor closes the pipe, then end what still runs."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    if groups:
        end(groups)
        shared_memory.clean()


if __name__ == "__main__":
    main()
