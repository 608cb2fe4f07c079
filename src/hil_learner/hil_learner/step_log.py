"""Append-only log of accepted steps: the bytes as they came, each with length and checksum.

    file   = header, record*
    record = length (u32), CRC-32 of the data (u32), data      (little endian)

A record that a killed process left unfinished can only be the last one; it was never
acknowledged and is cut off when the log is opened.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from hil_learner.ingest import Record

HEADER = b"hil_learner.steps/1\n"
_FRAME = struct.Struct("<II")


class StepLogError(OSError):
    """The log is not one, or is damaged before its end."""


class StepFile:
    """A log in one file, see `hil_learner.ingest.StepLog`.

    path: created if absent. max_bytes: of one step. fsync: survive a power loss too, at the cost
    of a disk write per acknowledgement.
    """

    def __init__(self, path: Path, max_bytes: int, *, fsync: bool = False) -> None:
        self.path = path
        self.cut = 0
        """Bytes of an unfinished record that were cut off at opening."""
        self._max_bytes = max_bytes
        self._fsync = fsync
        self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        try:
            self._end = self._recover()
        except BaseException:
            self._file.close()
            raise

    def append(self, records: Sequence[Record]) -> None:
        """Write the records in one piece; on an error the file is as it was before."""
        block = b"".join(
            part
            for record in records
            for part in (_FRAME.pack(len(record.data), zlib.crc32(record.data)), record.data)
        )
        try:
            self._write(block)
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(block)

    def replay(self) -> Iterator[bytes]:
        """Yield every step of the log, oldest first; complete it before the next `append`."""
        with self.path.open("rb") as file:
            yield from (data for data, _ in self._records(file))

    def close(self) -> None:
        """Close the file; everything appended is already written."""
        self._file.close()

    def _write(self, block: bytes) -> None:
        self._file.seek(self._end)
        view = memoryview(block)
        while view:
            view = view[self._file.write(view) :]
        if self._fsync:
            os.fsync(self._file.fileno())

    def _recover(self) -> int:
        """Cut a torn tail; return the end of the last whole record."""
        size = os.fstat(self._file.fileno()).st_size
        end = len(HEADER)
        if size < end:
            self._end = 0
            self._file.truncate(0)
            self._write(HEADER)
            return end
        with self.path.open("rb") as file:
            for _, position in self._records(file):
                end = position
        self.cut = size - end
        if self.cut:
            self._file.truncate(end)
        return end

    def _records(self, file: BinaryIO) -> Iterator[tuple[bytes, int]]:
        """Yield every whole record and the position after it."""
        if file.read(len(HEADER)) != HEADER:
            raise StepLogError(f"{self.path} is not a step log")
        size = os.fstat(file.fileno()).st_size
        position = len(HEADER)
        while True:
            frame = file.read(_FRAME.size)
            if len(frame) < _FRAME.size:
                return
            length, checksum = _FRAME.unpack(frame)
            end = position + _FRAME.size + length
            if end > size:
                return
            data = file.read(length) if length <= self._max_bytes else b""
            if len(data) != length or zlib.crc32(data) != checksum:
                if end < size:
                    raise StepLogError(f"{self.path} is damaged at byte {position}")
                return
            position = end
            yield data, position
