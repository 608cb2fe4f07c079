"""How much memory is free, also in a container with a limit."""

from __future__ import annotations

from pathlib import Path

import psutil

_LIMIT, _USED = "memory.max", "memory.current"


def available_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process can still get: of the machine, or of its control group if less."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in (_LIMIT, _USED))
        return free if limit == "max" else max(0, min(free, int(limit) - int(used)))
    except (OSError, ValueError):
        return free
