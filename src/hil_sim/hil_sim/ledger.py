"""The simulator's own account of what it carried out, against which step records are checked."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """One advance that was carried out.

    Attributes:
        life: of the simulator; its time begins anew in each.
        step: identity of the step, see Advance.step_id; "" for the bridge's own motions.
        owner: who held the arm's lease.
        periods: control periods.
        before, after: stamps of the state, ns.
        position_before, position_after: of the tool centre point, base frame, m.
        at: wall clock, s.
    """

    life: str
    step: str
    owner: str
    periods: int
    before: int
    after: int
    position_before: tuple[float, float, float]
    position_after: tuple[float, float, float]
    at: float


class Ledger:
    """Appends one line of JSON per advance to a file; each is handed to the system at once.

    The file goes on over restarts of the simulator. A line that a killed process left unfinished
    is closed off; `read` passes over it.

    Args:
        path: created with its folder where it does not exist.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._life = str(uuid.uuid4())
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def note(
        self,
        step: str,
        owner: str,
        periods: int,
        stamps: tuple[int, int],
        positions: tuple[tuple[float, float, float], tuple[float, float, float]],
    ) -> None:
        """Write down an advance; see Entry.

        Raises:
            OSError: it cannot be written.
        """
        entry = Entry(self._life, step, owner, periods, *stamps, *positions, time.time())
        os.write(self._file, json.dumps(asdict(entry)).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(path: Path) -> Iterator[Entry]:
    """Yield the entries of a ledger in the order in which they were carried out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                values = json.loads(line)
            except json.JSONDecodeError:
                continue  # torn by a SIGKILL
            for name in ("position_before", "position_after"):
                values[name] = tuple(values[name])
            yield Entry(**values)
