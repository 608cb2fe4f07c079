"""Shared-memory files that killed Fast DDS processes leave in /dev/shm.

A process holds an exclusive lock on `NAME_el` as long as it uses `NAME`; the kernel gives the lock
back when the process ends, however it ends. So files whose locks are free belong to nobody.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
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
    """Remove the files of processes that are gone; return how many were removed."""
    removed = 0
    for path in leftovers(folder):
        try:
            path.unlink()
            removed += 1
        except (FileNotFoundError, PermissionError):
            continue  # another clean-up was faster, or it is another user's
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
    locks = [path for path in group if path.name.endswith(("_el", "_sl"))]
    if locks:
        return all(_free(path) for path in locks)
    # A port has no lock while only its senders are there; it is in use while one has it mapped.
    return all(_old(path) for path in group) and not any(_mapped(path) for path in group)


def _free(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        if not _old(path):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


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
