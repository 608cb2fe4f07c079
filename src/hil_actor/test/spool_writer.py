"""Process that writes steps to a spool until it is killed, and prints how many are committed."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from hil_actor.spool import Spool, SpoolOptions
from hil_actor.step_store import StoreFull, Stream


def content(session: str, seq: int) -> bytes:
    """What step `seq` of a session has: of very different sizes."""
    rng = random.Random(f"{session}/{seq}")
    return rng.randbytes(rng.choice((0, 1, 500, 5_000, 100_000)))


def main() -> None:
    """Write for ever. Arguments: folder of the spool, name of the session."""
    folder, session = Path(sys.argv[1]), sys.argv[2]
    spool = Spool(
        folder,
        "actor",
        SpoolOptions(keep_steps=20),
        on_commit=lambda: os.write(1, b"%d\n" % spool.committed),
    )
    spool.begin(Stream("run", "spec", "actor", session))
    seq = 0
    while True:
        try:
            spool.append(content(session, seq + 1))
        except StoreFull:
            spool.settle(60.0)
            continue
        seq += 1
        # Acknowledged now and then, so that kills also hit deletions.
        if seq % 50 == 0:
            spool.acknowledge(spool.committed // 2)


if __name__ == "__main__":
    main()
