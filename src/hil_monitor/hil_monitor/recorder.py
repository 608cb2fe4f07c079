"""Pictures of the newest episodes, in a bounded ring on disk, for playback. No ROS.

FOLDER/<episode>/<camera>.jpegs   JPEG files, one after the other
FOLDER/<episode>/index.json       where each begins, when and in which step it came; written last
"""

from __future__ import annotations

import io
import json
import re
import shutil
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

MOST_FRAMES = 3000
"""Per camera and episode; what comes later is not kept."""
_KEY = re.compile(r"[A-Za-z0-9._-]{1,80}")
_CAMERA = re.compile(r"[A-Za-z0-9_]{1,40}")


@dataclass
class _Open:
    key: str
    began: float
    files: dict[str, IO[bytes]] = field(default_factory=dict)
    frames: dict[str, list[tuple[int, float, int]]] = field(default_factory=dict)


class EpisodeRing:
    """Writes episodes and reads them back. Writing: one thread; reading: any.

    Args:
        folder: is made when the first episode begins.
        keep: newest episodes that are kept.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._open: _Open | None = None

    def begin(self, key: str, now: float) -> None:
        """Begin an episode; one that is open is closed.

        Raises:
            OSError: the disk does not take it.
        """
        self.end({})
        path = self._folder / _checked(key)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        self._open = _Open(key, now)
        self._forget_old()

    def add(self, camera: str, jpeg: bytes, now: float, step: int) -> None:
        """A picture of the open episode.

        Raises:
            OSError: the disk does not take it.
        """
        episode = self._open
        if episode is None or not _CAMERA.fullmatch(camera):
            return
        frames = episode.frames.setdefault(camera, [])
        if len(frames) >= MOST_FRAMES:
            return
        file = episode.files.get(camera)
        if file is None:
            file = (self._folder / episode.key / f"{camera}.jpegs").open("wb")
            episode.files[camera] = file
        frames.append((file.tell(), round(now - episode.began, 3), step))
        file.write(jpeg)

    def end(self, facts: dict[str, Any]) -> None:
        """Close the open episode; `facts` are kept with it."""
        episode, self._open = self._open, None
        if episode is None:
            return
        cameras = {}
        for camera, file in episode.files.items():
            cameras[camera] = {"size": file.tell(), "frames": episode.frames[camera]}
            file.close()
        index = {"key": episode.key, "facts": facts, "cameras": cameras}
        path = self._folder / episode.key / "index.json"
        path.write_text(json.dumps(index), encoding="utf-8")

    def episodes(self) -> list[dict[str, Any]]:
        """What there is, oldest first: key, facts, and number of frames per camera."""
        return [
            {
                "key": index["key"],
                "facts": index["facts"],
                "cameras": {
                    name: [[at, step] for _, at, step in camera["frames"]]
                    for name, camera in index["cameras"].items()
                },
            }
            for index in map(self._index, self._finished())
            if index and index["cameras"]
        ]

    def frame(self, key: str, camera: str, number: int) -> bytes | None:
        """A picture, or None where there is none."""
        index = self._index(self._folder / key) if _KEY.fullmatch(key) else None
        known = index["cameras"].get(camera) if index else None
        if known is None or not 0 <= number < len(known["frames"]):
            return None
        starts = [start for start, _, _ in known["frames"]] + [known["size"]]
        with (self._folder / key / f"{camera}.jpegs").open("rb") as file:
            file.seek(starts[number])
            return file.read(starts[number + 1] - starts[number])

    def export(self, key: str) -> bytes | None:
        """A ZIP file with the pictures and the index of an episode, or None."""
        index = self._index(self._folder / key) if _KEY.fullmatch(key) else None
        if index is None:
            return None
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("index.json", json.dumps(index, indent=1))
            for camera, known in index["cameras"].items():
                for number in range(len(known["frames"])):
                    name = f"{camera}/{number:05d}.jpg"
                    archive.writestr(name, self.frame(key, camera, number) or b"")
        return buffer.getvalue()

    def _finished(self) -> list[Path]:
        found = self._folder.glob("*/index.json")
        return [p.parent for p in sorted(found, key=lambda p: p.stat().st_mtime)]

    def _forget_old(self) -> None:
        finished = self._finished()
        for path in finished[: max(0, len(finished) + 1 - self._keep)]:
            shutil.rmtree(path, ignore_errors=True)

    def _index(self, path: Path) -> dict[str, Any] | None:
        try:
            index: dict[str, Any] = json.loads((path / "index.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return index


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"episode key {key!r}: letters, digits, '.', '_' and '-' only")
    return key
