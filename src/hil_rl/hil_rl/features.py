"""Frames beside the store: features of a frozen backbone on disk, or the images themselves.

Each slot of the store has one row here. `FeatureCache` keeps, for k random shifts of the frame,
the features that the frozen backbone gives, in half precision, in a file that is mapped into
memory. The file outlives the process: when a log is read again, what is there already is not
computed anew. `ImageRing` keeps the images, for a backbone that is trained, and as the slow way
with the same numbers.

No torch here: the backbone comes in through `Encoder`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from .spaces import Array

FORMAT = "hil_rl.features/1"
_FILES = ("features.f16", "index.u64", "features.json", "projection.safetensors")
_log = logging.getLogger(__name__)


class FeatureError(ValueError):
    """Features that cannot be kept or made; the message says why."""


class Projection:
    """Fixed linear map of channels, from their mean: y = weight @ (x - mean).

    Args:
        mean: (inputs,) float32.
        weight: (outputs, inputs) float32; None: channels are kept as they are.
    """

    def __init__(self, mean: Array, weight: Array | None) -> None:
        self.mean = mean
        self.weight = None if weight is None else np.ascontiguousarray(weight)  # for safetensors
        self._offset = None if weight is None else (weight @ mean)[:, None]

    @staticmethod
    def identity(channels: int) -> Projection:
        """All channels as they are."""
        return Projection(np.zeros(channels, np.float32), None)

    @staticmethod
    def fit(features: Array, outputs: int) -> Projection:
        """Principal components of the channels, over all frames and positions.

        One scale for all of them: they have a mean variance of 1 together, so that half precision
        suits them, and keep their proportions.

        Args:
            features: (n, inputs, positions).
            outputs: number of components.

        Raises:
            FeatureError: the features do not vary.
        """
        inputs = features.shape[1]
        total, mean, square = 0, np.zeros(inputs), np.zeros((inputs, inputs))
        for part in np.array_split(features, max(1, len(features) // 64)):
            x = part.astype(np.float32).transpose(1, 0, 2).reshape(inputs, -1)
            total += x.shape[1]
            mean += x.sum(1)
            square += x @ x.T
        mean /= total
        values, vectors = np.linalg.eigh(square / total - np.outer(mean, mean))
        values, vectors = values[::-1][:outputs], vectors[:, ::-1][:, :outputs]
        variance = values.mean()
        if not variance > 0.0:
            raise FeatureError("the first frames are all alike: nothing to fit a projection to")
        # the sign of an eigenvector is arbitrary: make the largest element positive
        largest = vectors[np.abs(vectors).argmax(0), np.arange(outputs)]
        weight = (vectors * np.sign(largest) / np.sqrt(variance)).T
        return Projection(mean.astype(np.float32), weight.astype(np.float32))

    def __call__(self, features: Array) -> Array:
        """(..., inputs, positions) float32 -> (..., outputs, positions) float16."""
        if self.weight is not None:
            features = self.weight @ features - self._offset
        limit = np.finfo(np.float16).max
        return np.clip(features, -limit, limit).astype(np.float16)

    def arrays(self) -> dict[str, Array]:
        """For a checkpoint or a policy; `from_arrays` is the inverse. Empty for the identity."""
        if self.weight is None:
            return {}
        return {"projection_mean": self.mean, "projection_weight": self.weight}

    @staticmethod
    def from_arrays(arrays: Mapping[str, Array]) -> Projection:
        """Projection from the output of `arrays`."""
        return Projection(
            np.array(arrays["projection_mean"], np.float32),
            np.array(arrays["projection_weight"], np.float32),
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the numbers."""
        weight = b"" if self.weight is None else self.weight.tobytes()
        return hashlib.sha256(self.mean.tobytes() + weight).hexdigest()


class Encoder(Protocol):
    """Frozen backbone with a projection, see `hil_rl.vision.FrameEncoder`."""

    backbone_channels: int
    positions: int
    channels: int
    projection: Projection | None

    def full(self, images: Array) -> Array:
        """(n, height, width, 3) uint8 -> (n, backbone_channels, positions) float32."""

    def __call__(self, images: Array) -> Array:
        """(n, height, width, 3) uint8 -> (n, channels, positions) float16."""


class Shifter(Protocol):
    """See `hil_rl.vision.shift_frames`."""

    def __call__(self, frames: Array, shift: Array, largest: int) -> Array:
        """(n, cameras, height, width, 3) and (n, 2) -> moved copy."""


@dataclass
class Encoded:
    """What is to be kept of the frames of one observation.

    Attributes:
        serial: number of the slot allocation.
        key: digest of the images.
        shift: (augmentations, 2) uint8.
        data: features or images; None: they are there already.
    """

    serial: int
    key: int
    shift: Array
    data: Array | None


def shifts(seed: int, serial: int, augmentations: int, largest: int) -> Array:
    """(augmentations, 2) uint8: the shifts of the frames that were stored as number `serial`."""
    rng = np.random.default_rng([seed, serial])
    return rng.integers(0, 2 * largest + 1, (augmentations, 2)).astype(np.uint8)


class Frames:
    """A row of frames per slot of a store; the part that both kinds share.

    Args:
        capacity: of the store.
        augmentations: shifts per frame; 0: a new shift for every sample.
        largest: shift, pixels.
        seed: of the shifts.

    Attributes:
        shape, dtype: of one row of a batch.
    """

    shape: tuple[int, ...]
    dtype: str

    def __init__(self, capacity: int, augmentations: int, largest: int, seed: int) -> None:
        self.capacity, self.augmentations = capacity, augmentations
        self.largest, self.seed = largest, seed
        self._shift = np.zeros((capacity, augmentations, 2), np.uint8)
        self._serial: Array = np.full(capacity, -1, np.int64)

    @property
    def missing(self) -> int:
        """Steps that are needed before anything can be sampled."""
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes in memory when the ring is full."""
        return self._shift.nbytes + self._serial.nbytes

    def encode(self, serial: int, images: Array) -> Encoded:
        """Prepare the frames of one observation; the slow part, without side effects.

        Args:
            serial: number of the slot allocation, from 0.
            images: (cameras, height, width, 3) uint8.
        """
        raise NotImplementedError

    def put(self, slot: int, encoded: Encoded) -> None:
        """Keep what `encode` gave."""
        raise NotImplementedError

    def holds(self, slot: int, serial: int) -> bool:
        """Whether the row is that of the allocation `serial`."""
        return bool(self._serial[slot] == serial)

    def take(
        self, slots: Array, rng: np.random.Generator | None, out: Array, shift: Array
    ) -> None:
        """Fill rows of a batch.

        Args:
            slots: (n,).
            rng: draws the augmentation; None: the first one.
            out: (n, *shape).
            shift: (n, 2) uint8: the shift that was drawn.
        """
        n = len(slots)
        if not self.augmentations:
            none = np.full((n, 2), self.largest)
            shift[:] = none if rng is None else rng.integers(0, 2 * self.largest + 1, (n, 2))
            which = np.zeros(n, np.int64)
        else:
            which = np.zeros(n, np.int64)
            if rng is not None:
                which = rng.integers(self.augmentations, size=n)
            shift[:] = self._shift[slots, which]
        self._read(slots, which, out)

    def _read(self, slots: Array, which: Array, out: Array) -> None:
        raise NotImplementedError


class ImageRing(Frames):
    """The images themselves.

    Args:
        capacity, augmentations, largest, seed: see `Frames`.
        images: (cameras, height, width, 3).
        folder: keep them in a file there instead of in memory; it is not used again.
    """

    def __init__(
        self,
        capacity: int,
        images: tuple[int, ...],
        augmentations: int = 0,
        largest: int = 4,
        seed: int = 0,
        folder: Path | None = None,
    ) -> None:
        super().__init__(capacity, augmentations, largest, seed)
        self.shape, self.dtype = images, "uint8"
        size = (capacity, *images)
        self._on_disk = folder is not None
        if folder is None:
            self._images: Array = np.zeros(size, np.uint8)
        else:
            self._images = _map(folder / "images.u8", size, np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes in memory when the ring is full."""
        return super().nbytes + (0 if self._on_disk else self._images.nbytes)

    def encode(self, serial: int, images: Array) -> Encoded:
        """See `Frames.encode`."""
        shift = shifts(self.seed, serial, self.augmentations, self.largest)
        return Encoded(serial, 0, shift, images)

    def put(self, slot: int, encoded: Encoded) -> None:
        """See `Frames.put`."""
        self._images[slot] = encoded.data
        self._shift[slot], self._serial[slot] = encoded.shift, encoded.serial

    def _read(self, slots: Array, which: Array, out: Array) -> None:
        np.take(self._images, slots, axis=0, out=out, mode="clip")


class FeatureCache(Frames):
    """Features of a frozen backbone, on disk.

    A row is found again by its place in the order of arrival and a digest of its images, and is
    checked against a checksum: a torn write or another log costs a computation, never a wrong
    row. A row that a later frame of a ring that has wrapped around holds already is left alone
    while the log is read again; its own transition cannot be sampled meanwhile.

    As long as the encoder has no projection, the features of the first frames wait in memory at
    full width; when `fit_steps` are there, the projection is fitted to them, once.

    Args:
        folder: created if it does not exist. What was made with another backbone, projection,
            seed or shape is discarded.
        encoder: frozen; a projection that it has already (from a checkpoint) is kept, else the
            folder's own is used.
        shift_frames: see `hil_rl.vision.shift_frames`.
        weights: SHA-256 of the backbone's weights.
        capacity, augmentations, largest, seed: see `Frames`.
        cameras: images per step.
        fit_steps: rows that the projection is fitted to.

    Raises:
        FeatureError: the disk has no room for the file.

    Attributes:
        computed: rows computed by this object.
        reused: rows that were there.
    """

    def __init__(
        self,
        folder: str | Path,
        encoder: Encoder,
        shift_frames: Shifter,
        weights: str,
        capacity: int,
        cameras: int,
        augmentations: int = 2,
        largest: int = 4,
        seed: int = 0,
        fit_steps: int = 100,
    ) -> None:
        super().__init__(capacity, augmentations, largest, seed)
        if not 1 <= fit_steps <= capacity:
            raise FeatureError(f"fit_steps {fit_steps} is not in [1, capacity {capacity}]")
        self.encoder = encoder
        self.computed = self.reused = 0
        self._shift_frames, self._fit_steps = shift_frames, fit_steps
        self.shape = cameras, encoder.channels, encoder.positions
        self.dtype = "float16"
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._meta = {
            "format": FORMAT,
            "capacity": capacity,
            "row": [augmentations, *self.shape],
            "largest": largest,
            "seed": seed,
            "weights": weights,
        }
        self._pending: dict[int, tuple[Encoded, Array]] = {}
        self._open()

    def _open(self) -> None:
        stored, wanted = self._stored_projection(), self.encoder.projection
        same = stored is not None and (wanted is None or wanted.digest == stored.digest)
        if not same:
            if (self._folder / "features.json").exists():
                _log.warning("%s: features of other settings are discarded", self._folder)
            for name in _FILES:
                (self._folder / name).unlink(missing_ok=True)
            _write(self._folder / "features.json", json.dumps(self._meta).encode())
            if wanted is not None:
                self._save_projection(wanted)
        elif wanted is None:
            self.encoder.projection = stored
        size = (self.capacity, self.augmentations, *self.shape)
        self._features = _map(self._folder / "features.f16", size, np.float16)
        # per row: serial + 1 (0: empty), digest of the images, checksum of the features
        self._index = _map(self._folder / "index.u64", (self.capacity, 3), np.uint64)

    def _stored_projection(self) -> Projection | None:
        """What the folder's features were made with; None if they are not those wanted."""
        channels = self.encoder.backbone_channels
        try:
            if json.loads((self._folder / "features.json").read_bytes()) != self._meta:
                return None
            if self.encoder.channels == channels:
                return Projection.identity(channels)
            data = (self._folder / "projection.safetensors").read_bytes()
            return Projection.from_arrays(safetensors.numpy.load(data))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, SafetensorError, KeyError) as error:
            _log.warning("%s: damaged: %s", self._folder, error)
            return None

    def _save_projection(self, projection: Projection) -> None:
        if arrays := projection.arrays():
            _write(self._folder / "projection.safetensors", safetensors.numpy.save(arrays))

    @property
    def missing(self) -> int:
        """Steps that are needed before the projection is fitted; 0 when it is."""
        if self.encoder.projection is None:
            return self._fit_steps - len(self._pending)
        return int(bool(self._pending))  # it was loaded meanwhile: `put` or `fit` uses it

    @property
    def disk_bytes(self) -> int:
        """Bytes that the files occupy."""
        return sum((self._folder / name).stat().st_blocks * 512 for name in _FILES[:2])

    def encode(self, serial: int, images: Array) -> Encoded:
        """See `Frames.encode`. Nothing is computed for a row that is there already."""
        shift = shifts(self.seed, serial, self.augmentations, self.largest)
        digest = hashlib.blake2b(images.tobytes(), digest_size=8).digest()
        encoded = Encoded(serial, int.from_bytes(digest, "little"), shift, None)
        slot = serial % self.capacity
        held, key, checksum = (int(v) for v in self._index[slot])
        if held > serial + 1:
            return encoded  # the log goes on to a later frame, which is there
        there = (held, key) == (serial + 1, encoded.key)
        if there and zlib.crc32(self._features[slot]) == checksum:
            return encoded
        frames = np.broadcast_to(images, (self.augmentations, *images.shape))
        moved = self._shift_frames(frames, shift, self.largest)
        encode = self.encoder if self.encoder.projection is not None else self.encoder.full
        features = encode(moved.reshape(-1, *images.shape[1:]))
        encoded.data = features.reshape(*moved.shape[:2], *features.shape[1:])
        return encoded

    def put(self, slot: int, encoded: Encoded) -> None:
        """See `Frames.put`. The projection is fitted here when enough frames are there."""
        self._shift[slot] = encoded.shift
        self._pending.pop(slot, None)
        held, key, _ = (int(v) for v in self._index[slot])
        features = encoded.data
        if features is None:
            there = (held, key) == (encoded.serial + 1, encoded.key)
            self._serial[slot] = encoded.serial if there else -1
            self.reused += there
            return
        self.computed += 1
        self._serial[slot] = encoded.serial
        if features.dtype == np.float16:
            self._write(slot, encoded, features)
            return
        self._pending[slot] = encoded, features
        if self.encoder.projection is not None or len(self._pending) >= self._fit_steps:
            self.fit()

    def fit(self) -> None:
        """Fit the projection, if there is none yet, to the frames that wait, and reduce them.

        Raises:
            FeatureError: no frames wait, or they are all alike.
        """
        projection = self.encoder.projection
        if projection is None:
            if not self._pending:
                raise FeatureError("there is no frame to fit a projection to")
            size = self.encoder.backbone_channels, self.encoder.positions
            full = [features.reshape(-1, *size) for _, features in self._pending.values()]
            projection = Projection.fit(np.concatenate(full), self.encoder.channels)
            self.encoder.projection = projection
        self._save_projection(projection)
        for slot, (encoded, features) in self._pending.items():
            self._write(slot, encoded, projection(features))
        self._pending.clear()

    def _write(self, slot: int, encoded: Encoded, features: Array) -> None:
        self._index[slot, 0] = 0  # a row that is being written belongs to nobody
        self._features[slot] = features
        self._index[slot, 1:] = encoded.key, zlib.crc32(self._features[slot])
        self._index[slot, 0] = encoded.serial + 1

    def _read(self, slots: Array, which: Array, out: Array) -> None:
        rows = self._features.reshape(-1, *self.shape)
        np.take(rows, slots * self.augmentations + which, axis=0, out=out, mode="clip")


def _map(path: Path, shape: tuple[int, ...], dtype: Any) -> Array:
    """Array in a file, mapped into memory; a file of another size is replaced by zeros.

    The file has holes: it occupies what was written to it.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    path.parent.mkdir(parents=True, exist_ok=True)
    there = path.stat().st_blocks * 512 if path.exists() else 0
    free = shutil.disk_usage(path.parent).free
    if size - there > free:
        raise FeatureError(
            f"{path}: {shape[0]} slots need {size / 1e9:.1f} GB of disk, {free / 1e9:.1f} GB are "
            f"free: use a capacity of at most {int(shape[0] * (free + there) / size)}"
        )
    mode = os.O_RDWR | os.O_CREAT
    handle = os.open(path, mode, 0o644)
    try:
        if os.fstat(handle).st_size != size:
            os.ftruncate(handle, 0)
            os.ftruncate(handle, size)
    finally:
        os.close(handle)
    return np.memmap(path, dtype, "r+", shape=shape)


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(path.suffix + ".new")
    temporary.write_bytes(data)
    os.replace(temporary, path)
