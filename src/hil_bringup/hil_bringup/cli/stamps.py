"""Stamps: what a step of set-up was made from, so that only what changed is made again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def digest(*parts: str | bytes) -> str:
    """Hash of parts, none of which can run into the next."""
    result = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        result.update(str(len(data)).encode() + b":" + data)
    return result.hexdigest()


def digest_files(files: Iterable[Path], root: Path) -> str:
    """Hash of the names (relative to `root`) and contents of files; order does not matter."""
    parts: list[str | bytes] = []
    for path in sorted(set(files)):
        parts += [str(path.relative_to(root)), path.read_bytes()]
    return digest(*parts)


class Stamp:
    """A small file that says from which inputs a thing was made; it lies inside that thing.

    It is removed before the thing is made again: a step that is cut short is repeated.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def fresh(self, inputs: str) -> bool:
        """Tell whether the thing was made, to the end, from these inputs."""
        return self.read() == inputs

    def read(self) -> str | None:
        """What the stamp says; None where there is none."""
        try:
            return self.path.read_text()
        except FileNotFoundError:
            return None

    def clear(self) -> None:
        """Say that the thing is being made."""
        self.path.unlink(missing_ok=True)

    def set(self, inputs: str) -> None:
        """Say that the thing is made. Atomic."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(inputs)
        os.replace(temporary, self.path)
