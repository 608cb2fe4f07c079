"""Camera pictures for the page: encoded once, and only while somebody wants them. No ROS."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image


@dataclass(frozen=True)
class Frame:
    """A picture. number: rises by one per camera. arrived: steady time, s."""

    camera: str
    number: int
    arrived: float
    jpeg: bytes


def encode(pixels: NDArray[np.uint8], quality: int, largest: int) -> bytes:
    """JPEG of an RGB picture (H, W, 3), shrunk so that no edge is longer than `largest`."""
    picture = Image.fromarray(pixels)
    if max(picture.size) > largest:
        picture.thumbnail((largest, largest), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


class FrameHub:
    """Newest picture of every camera, and who waits for the next. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, Frame] = {}
        self._listeners: list[Callable[[], None]] = []

    @property
    def watched(self) -> bool:
        """Whether somebody looks."""
        return bool(self._listeners)

    def watch(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have a function called after every new picture; returns what ends that."""
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                self._listeners.remove(listener)

        return end

    def put(self, camera: str, jpeg: bytes, arrived: float) -> Frame:
        """A new picture."""
        with self._lock:
            before = self._newest.get(camera)
            frame = Frame(camera, before.number + 1 if before else 1, arrived, jpeg)
            self._newest[camera] = frame
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
        return frame

    def newest(self) -> list[Frame]:
        """Newest picture of every camera, by name."""
        with self._lock:
            return [self._newest[name] for name in sorted(self._newest)]
