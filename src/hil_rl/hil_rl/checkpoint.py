"""Atomic checkpoints: safetensors for arrays, JSON for the rest, both under a digest.

A checkpoint is two files in a folder::

    step_000000001200-1f0c9a3b.safetensors    arrays
    step_000000001200.json                    manifest: meta, name and sha256 of the arrays

The manifest is written last, by renaming: a checkpoint exists when its manifest does. What a
killed process leaves behind is never taken for one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.numpy
from safetensors import SafetensorError

from .spaces import Array

FORMAT = "hil_rl.checkpoint/1"
_MAX_MANIFEST = 16 * 2**20
_MANIFEST = re.compile(r"step_(\d{12})\.json")
_TENSORS = re.compile(r"step_\d{12}-[0-9a-f]{8}\.safetensors")
_log = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that is missing, incomplete or damaged; the message says which and why."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        step: that it was saved under.
        tensors: name -> array.
        meta: plain data.
        sha256: hex digest of the arrays' file.
        path: of the manifest.
    """

    step: int
    tensors: dict[str, Array]
    meta: dict[str, Any]
    sha256: str
    path: Path


def save(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Array],
    meta: Mapping[str, Any],
    keep: int = 5,
) -> Path:
    """Write a checkpoint and remove old ones.

    Args:
        folder: created if it does not exist.
        step: 0 or more; a checkpoint of the same step is replaced.
        tensors: name -> array.
        meta: data that JSON can hold.
        keep: number of newest checkpoints that stay, at least 1.

    Returns:
        Path of the manifest, for `load`.

    Raises:
        ValueError: negative step, keep below 1, or meta is not JSON (TypeError).
        OSError: the folder cannot be written; older checkpoints are untouched.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"step {step} must be >= 0 and keep {keep} >= 1")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = safetensors.numpy.save(dict(tensors))
    digest = hashlib.sha256(data).hexdigest()
    name = f"step_{step:012d}"
    manifest = {
        "format": FORMAT,
        "step": step,
        "tensors": f"{name}-{digest[:8]}.safetensors",
        "sha256": digest,
        "meta": meta,
    }
    manifest["manifest_sha256"] = _manifest_digest(manifest)
    text = json.dumps(manifest, indent=1)
    _write(folder / str(manifest["tensors"]), data)
    path = folder / f"{name}.json"
    _write(path, text.encode())
    _remove_old(folder, keep)
    return path


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint and check its digests.

    Raises:
        CheckpointError: missing, incomplete or damaged.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _MAX_MANIFEST:
            raise CheckpointError(f"{path}: damaged: larger than {_MAX_MANIFEST} bytes")
        manifest = json.loads(path.read_bytes())
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path}: format {manifest['format']!r}, not {FORMAT!r}")
        expected = manifest.pop("manifest_sha256")
        if expected != _manifest_digest(manifest):
            raise CheckpointError(f"{path}: the manifest's digest does not match")
        data = (path.parent / Path(manifest["tensors"]).name).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest != manifest["sha256"]:
            raise CheckpointError(f"{path}: the digest of {manifest['tensors']} does not match")
        tensors = safetensors.numpy.load(data)
        step, meta = int(manifest["step"]), dict(manifest["meta"])
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}: {error.filename}") from error
    except (KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path}: damaged: {error!r}") from error
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: damaged: {error}") from error
    return Checkpoint(step, tensors, meta, digest, path)


def latest(folder: str | Path) -> Path | None:
    """Newest checkpoint of a folder that is whole; damaged ones are reported and skipped."""
    for path in _newest_first(Path(folder)):
        try:
            load(path)
        except CheckpointError as error:
            _log.warning("skipping a checkpoint: %s", error)
        else:
            return path
    return None


def _newest_first(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        names = [p.name for p in folder.iterdir() if _MANIFEST.fullmatch(p.name)]
        yield from (folder / name for name in sorted(names, reverse=True))


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _write(path: Path, data: bytes) -> None:
    """Write a file so that it is either whole or absent, also after a power loss."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _remove_old(folder: Path, keep: int) -> None:
    """Keep the newest `keep` manifests and what they name; nothing else of ours."""
    kept = set()
    for i, path in enumerate(_newest_first(folder)):
        if i >= keep:
            path.unlink(missing_ok=True)
            continue
        try:
            kept.add(json.loads(path.read_bytes())["tensors"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s: unreadable checkpoint: %r", path, error)
    for path in folder.iterdir():
        temporary = path.name.startswith(".step_")
        if temporary or (_TENSORS.fullmatch(path.name) and path.name not in kept):
            path.unlink(missing_ok=True)
