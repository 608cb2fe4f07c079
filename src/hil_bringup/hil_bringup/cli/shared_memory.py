"""Shared-memory files that killed Fast DDS processes leave in /dev/shm.

A process holds an exclusive lock on `NAME_el` as long as it uses `NAME`; the kernel gives the lock
back when the process ends, however it ends. So files whose locks are free belong to nobody.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

FOLDER = Path("/dev/shm")
_NAME = re.compile(
    r"(?:sem\.)?((?:fastrtps|fastdds)_(?:[0-9a-f]{16}|port\d{1,5}))(?:_mutex)?(_el|_sl)?"
)
_MINIMUM_AGE = 1.0
"""Seconds; between making a file and locking it a process must not lose it."""


def leftovers(folder: Path = FOLDER) -> list[Path]:
    """Files of processes that are gone."""
    return [path for group in _groups(folder) if _abandoned(group) for path in group]


def clean(folder: Path = FOLDER) -> int:
    """Remove the files of processes that are gone; return how many were removed.

    Judged and removed at once, one after the other: a new process takes the number of an abandoned
    port, and must not lose what it has just made.
    """
    removed = 0
    for group in _groups(folder):
        with _claimed(group) as claimed:
            removed += sum(_remove(path) for path in group if claimed)
    return removed


def held(folder: Path = FOLDER) -> list[Path]:
    """Files of processes that run."""
    return [path for group in _groups(folder) if not _abandoned(group) for path in group]


def _groups(folder: Path) -> list[list[Path]]:
    """Files that belong together: a segment or port, its semaphore and its locks."""
    groups: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _NAME.fullmatch(path.name)
        if match:
            groups.setdefault(match[1], []).append(path)
    return list(groups.values())


def _abandoned(group: list[Path]) -> bool:
    with _claimed(group) as claimed:
        return claimed


@contextmanager
def _claimed(group: list[Path]) -> Iterator[bool]:
    """Tell whether the files belong to nobody; their locks, if any, are ours meanwhile."""
    locks = [path for path in group if path.name.endswith(("_el", "_sl"))]
    with ExitStack() as stack:
        if locks:
            yield all(_lock(path, stack) for path in locks)
        else:
            # A port has no lock while only its senders are there; it is in use while one has it
            # mapped. To look takes long; the age, looked at last, shows what was made meanwhile.
            yield not any(map(_mapped, group)) and all(map(_old, group))


def _lock(path: Path, stack: ExitStack) -> bool:
    """Lock a file until the stack is left, unless somebody has it or has just made it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return False
    stack.callback(os.close, descriptor)
    if not _old(path):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except (FileNotFoundError, PermissionError):
        return False  # another clean-up was faster, or it is another user's
    return True


def _old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime >= _MINIMUM_AGE
    except FileNotFoundError:
        return False


def _mapped(path: Path) -> bool:
    """Some process that may be looked at has the file mapped."""
    name = str(path).encode() + b"\n"
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if name in maps.read_bytes():
                return True
        except OSError:
            continue  # it has just ended, or is another user's
    return False
