"""The folder of one training run.

runs/<run_id>/config.yaml           identity, parameters, versions
/steps/                every accepted step and annotation, in order: a rosbag2 bag
/checkpoints/          what a restart continues from
/tensorboard/
/metrics.jsonl         one line per episode and per metrics period
/learning_curve.png
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

_MAX_CONFIG = 2**20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class RunFolderError(RuntimeError):
    """The run folder cannot be used; the text says why and what to do."""


def new_run_id(task: str) -> str:
    """Return a run id that sorts by time, such as peg_insert-20260131-142501-3f9a."""
    return f"{task}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@dataclass(frozen=True)
class RunIdentity:
    """What a run folder must agree on with whoever continues it."""

    run_id: str
    task: str
    fingerprint: str


class RunFolder:
    """An opened run folder; at most one process holds it.

    The lock is the operating system's: it ends with the process, however that ends.
    """

    def __init__(self, path: Path, identity: RunIdentity, lock: IO[str], existed: bool) -> None:
        self.path = path
        self.identity = identity
        self.existed = existed
        """The run was begun by an earlier learner."""
        self._lock = lock
        self.config = path / "config.yaml"
        self.steps = path / "steps"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"
        self.metrics = path / "metrics.jsonl"
        self.learning_curve = path / "learning_curve.png"

    @classmethod
    def open(
        cls, root: Path, identity: RunIdentity, parameters: Mapping[str, Any], *, resume: bool
    ) -> RunFolder:
        """Create the folder of the run, or open the existing one to continue it.

        Raises:
            RunFolderError: an invalid name, a folder that exists although `resume` is off, that
                belongs to another task or specification, or that another learner holds.
        """
        if not _NAME.fullmatch(identity.run_id):
            raise RunFolderError(
                f"run_id {identity.run_id!r}: letters, digits, '.', '_' and '-' only, "
                "beginning with a letter or digit"
            )
        path = root.expanduser().absolute() / identity.run_id
        config = path / "config.yaml"
        existed = config.exists()
        if existed:
            _check_identity(config, identity)
            if not resume:
                raise RunFolderError(
                    f"run folder {path} exists: set resume to continue it, "
                    "or choose another run_id"
                )
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = _lock(path)
        except OSError as error:
            raise RunFolderError(f"run folder {path}: {error}") from error
        folder = cls(path, identity, lock, existed)
        try:
            folder._record(parameters)
        except OSError as error:
            lock.close()
            raise RunFolderError(f"{config}: {error}") from error
        return folder

    def close(self) -> None:
        """Give the folder free for another learner."""
        self._lock.close()

    def _record(self, parameters: Mapping[str, Any]) -> None:
        """Write the parameters, or those that changed since the run began."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        values = yaml.safe_load(yaml.safe_dump(dict(parameters)))
        if self.existed:
            content = _read(self.config)
            before = content["parameters"]
            changed = {k: v for k, v in values.items() if before.get(k) != v}
            content.setdefault("continued", []).append({"time": now, "changed": changed})
        else:
            content = {**vars(self.identity), "created": now, "parameters": values}
        temporary = self.config.with_suffix(".yaml.tmp")
        temporary.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        os.replace(temporary, self.config)


def _read(config: Path) -> dict[str, Any]:
    """Return what `RunFolder` wrote, with the types that it has.

    Raises:
        RunFolderError: it is damaged.
    """
    try:
        if config.stat().st_size > _MAX_CONFIG:
            raise RunFolderError(f"{config}: larger than {_MAX_CONFIG} bytes")
        content = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise RunFolderError(f"{config}: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("parameters"), dict):
        raise RunFolderError(f"{config}: not a run's configuration")
    if not isinstance(content.get("continued", []), list):
        raise RunFolderError(f"{config}: continued is not a list")
    return content


def _check_identity(config: Path, identity: RunIdentity) -> None:
    content = _read(config)
    for name in ("run_id", "task", "fingerprint"):
        found, expected = content.get(name), getattr(identity, name)
        if found != expected:
            raise RunFolderError(
                f"{config}: {name} is {found!r}, this learner has {expected!r}; "
                "its data do not fit: choose another run_id"
            )


def _lock(path: Path) -> IO[str]:
    file = (path / ".lock").open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise RunFolderError(f"run folder {path} is in use by another learner") from error
    return file
