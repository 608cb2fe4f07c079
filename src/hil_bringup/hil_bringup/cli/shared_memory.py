"""Shared-memory files that killed Fast DDS processes leave in /dev/shm.

A process holds an exclusive lock on `NAME_el` as long as it uses `NAME`; the kernel gives the lock
back when the process ends, however it ends. So a file whose lock is free belongs to nobody.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")
_LOCK = re.compile(r"((?:fastrtps|fastdds)_(?:[0-9a-f]{16}|port\d{1,5}))_(?:el|sl)")
MINIMUM_AGE = 1.0
"""Seconds; between making a lock file and locking it a process must not lose it."""


def leftovers(folder: Path = FOLDER) -> list[Path]:
    """Files of processes that are gone."""
    return [path for group in _groups(folder).values() if _abandoned(group) for path in group]


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
    return [path for group in _groups(folder).values() if not _abandoned(group) for path in group]


def _groups(folder: Path) -> dict[str, list[Path]]:
    """Segment or port name → its files."""
    groups: dict[str, list[Path]] = {}
    for path in _entries(folder):
        match = _LOCK.fullmatch(path.name)
        if match:
            groups.setdefault(match[1], []).append(path)
    for name, group in groups.items():
        for other in (folder / name, folder / f"sem.{name}_mutex"):
            if other.exists():
                group.append(other)
    return groups


def _entries(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(folder.iterdir())


def _abandoned(group: list[Path]) -> bool:
    locks = [path for path in group if _LOCK.fullmatch(path.name)]
    return all(_free(path) for path in locks)


def _free(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        if time.time() - os.fstat(descriptor).st_mtime < MINIMUM_AGE:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
