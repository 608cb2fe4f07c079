"""What the learner's log costs: an acknowledged step, with and without surviving a power loss.

- `log.append_ms`, `log.append_fsync_ms`: one state step appended and flushed; fsync: to the disk.
- `log.append_cameras_ms`, `log.append_cameras_fsync_ms`: a step with two frames of 128x128 (noise,
  the worst case of compression).
- `log.bytes_per_step`: of a state step, compressed alone in its chunk.
- `log.replay_steps_per_s`: reading a log back, as at a restart, without decoding the steps.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from _figures import Report, percentile

from hil_learner import messages
from hil_learner.ingest import STEP_TOPIC
from hil_learner.step_bag import StepBag
from hil_learner.synthetic import SyntheticActor, synthetic_spec


def steps(count: int, seed: int, frames: int) -> list[bytes]:
    """Serialized steps; with frames, of so much noise more (49,152 bytes a frame)."""
    rng = np.random.default_rng(seed)
    actor = SyntheticActor(synthetic_spec(), "actor", "s", seed)
    return [actor.next().data + rng.bytes(49_152 * frames) for _ in range(count)]


def append(folder: Path, data: list[bytes], fsync: bool) -> tuple[float, int]:
    """Median milliseconds of one append, and bytes of the file."""
    bag, times = StepBag(folder, messages.topics(), fsync=fsync), []
    for each in data:
        begin = time.perf_counter()
        bag.append([(STEP_TOPIC, each)])
        times.append(1e3 * (time.perf_counter() - begin))
    bag.close()
    return percentile(times, 50), sum(path.stat().st_size for path in folder.glob("*.mcap"))


def main() -> None:
    """Run and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default=".", help="on the disk that is to be measured")
    options = parser.parse_args()
    report = Report(options.seed, options.json)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        root = Path(name)
        for kind, frames, count in (("", 0, 1000), ("_cameras", 2, 200)):
            data = steps(count, options.seed, frames)
            plain, size = append(root / f"plain{kind}", data, fsync=False)
            synced, _ = append(root / f"fsync{kind}", data, fsync=True)
            report.add(f"log.append{kind}_ms", plain, "ms", count)
            report.add(f"log.append{kind}_fsync_ms", synced, "ms", count)
            if not frames:
                report.add("log.bytes_per_step", size / count, "B", count)
        begin = time.perf_counter()
        bag = StepBag(root / "plain", messages.topics())
        count = sum(1 for _ in bag.replay())
        report.add("log.replay_steps_per_s", count / (time.perf_counter() - begin), "1/s", count)


if __name__ == "__main__":
    main()
