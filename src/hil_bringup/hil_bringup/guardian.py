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

from hil_bringup.cli import shared_memory

GRACE = 5.0
"""Seconds between SIGINT and SIGKILL."""


def alive(group: int) -> bool:
    """Tell whether a process group has a member that runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def send(group: int, number: int) -> None:
    """Send a signal to a process group that may be gone."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def end(groups: set[int]) -> None:
    """End process groups, kindly first."""
    for group in groups:
        send(group, signal.SIGINT)
    limit = time.monotonic() + GRACE
    while any(alive(group) for group in groups) and time.monotonic() < limit:
        time.sleep(0.05)
    for group in groups:
        send(group, signal.SIGKILL)


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
        # A lock is given back a moment after its process has ended.
        time.sleep(shared_memory.MINIMUM_AGE)
        shared_memory.clean()


if __name__ == "__main__":
    main()
