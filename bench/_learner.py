"""A learner process of a benchmark's own: it takes steps in and does not train."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import _graph
import psutil
import yaml

from hil_bringup.graph import Node
from hil_bringup.processes import find_executable

_STOP_LIMIT = 60.0


class LearnerProcess:
    """The learner of a run; its run folder is FOLDER/runs/RUN_ID."""

    def __init__(
        self, folder: Path, run_id: str, task_file: Path, environment: Mapping[str, str]
    ) -> None:
        parameters = {
            "run_id": run_id,
            "run_dir": str(folder / "runs"),
            "task_file": str(task_file),
            "training_starts": 10_000_000,
            "throttle": False,
            "progress": "none",
            "tensorboard": False,
            "autostart": True,
        }
        file = folder / "learner.yaml"
        file.write_text(yaml.safe_dump({"learner": {"ros__parameters": parameters}}))
        executable = find_executable(Node("hil_learner", "learner_node", "learner"), environment)
        with (folder / "learner.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(executable), "--ros-args", "--params-file", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_graph._stop_with_parent,
            )

    def cpu_s(self) -> float:
        """Processor time used until now, s."""
        return _graph._seconds(psutil.Process(self._process.pid))

    def kill(self) -> None:
        """End it without warning."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def learner(
    folder: Path, run_id: str, task_file: Path, environment: Mapping[str, str]
) -> Iterator[LearnerProcess]:
    """A learner that is stopped at the end."""
    process = LearnerProcess(folder, run_id, task_file, environment)
    try:
        yield process
    finally:
        process.stop()
