"""The software stop: latched on disk, so that it outlives the bridge.

A software stop is no safety device. The robot's own enabling device and emergency stop are.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


class StopLatch:
    """A stop that stays until it is released, also across a restart.

    A file that exists but cannot be understood counts as a stop.

    Args:
        path: where the stop is remembered; None: only in memory.

    Attributes:
        latched: whether the stop is in force.
        reason: who or what stopped, in words.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.latched = False
        self.reason = ""
        if path is not None and path.exists():
            self.latched = True
            self.reason = _read(path)

    def stop(self, reason: str) -> None:
        """Latch the stop.

        Raises:
            OSError: it is in force but could not be written down.
        """
        self.latched, self.reason = True, reason
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            scratch = self.path.with_name(self.path.name + ".new")
            with open(scratch, "w", encoding="utf-8") as stream:
                json.dump({"stopped": True, "reason": reason}, stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(scratch, self.path)

    def release(self) -> None:
        """Release the stop.

        Raises:
            OSError: the file cannot be removed; the stop stays in force.
        """
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.latched, self.reason = False, ""


def _read(path: Path) -> str:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return str(content["reason"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path} cannot be read ({error})"
