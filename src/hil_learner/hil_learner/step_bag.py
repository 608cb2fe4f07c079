"""The learner's log: a rosbag2 folder of MCAP files that survives the death of its writer.

    steps/metadata.yaml     of the finished files, for rosbag2 tools
          steps_0.mcap ...  files of at most `split_bytes`, in order

What `append` is given stands in the file when it returns, as whole chunks. A file that a killed
process left without its end is cut behind its last whole record and finished when the folder is
read again; what is cut was never acknowledged. Nothing else is ever removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import yaml
from mcap.records import Message

from hil_learner.mcap_file import (
    Entry,
    McapDamage,
    Scan,
    Summary,
    Topic,
    begin,
    encode_chunk,
    new_compressor,
)

CHUNK_BYTES = 4 * 2**20
"""A batch that is larger uncompressed becomes several chunks."""

_NUMBER = re.compile(r"(\d+)(?=\.mcap$)")


class BagError(OSError):
    """A bag that cannot be read or continued; the text says why and what to do."""


@dataclass(frozen=True)
class _Finished:
    name: str
    summary: Summary


def mcap_files(path: Path) -> list[Path]:
    """Return the files of a bag in order: of a folder, or the file itself.

    Raises:
        BagError: there is none.
    """
    if path.is_dir():
        found = sorted(path.glob("*.mcap"), key=lambda p: (_number(p), p.name))
    else:
        found = [path] if path.suffix == ".mcap" and path.is_file() else []
    if not found:
        raise BagError(f"{path}: no .mcap file there; a bag is a folder of them, or one of them")
    return found


def read_bag(path: Path) -> Iterator[Entry]:
    """Yield every message of a bag that any program recorded; a torn end is left out.

    Raises:
        BagError: there is no bag.
        McapDamage: a file is damaged before its end.
    """
    for file in mcap_files(path):
        try:
            yield from Scan(file).entries()
        except McapDamage as error:
            if not error.at_end:
                raise


class StepBag:
    """A log in a folder, see `hil_learner.ingest.StepLog`. Safe for several threads.

    Args:
        folder: created if it does not exist.
        topics: that records may be of.
        split_bytes: a file that has reached this size is finished and another one begun.
        fsync: survive a power loss too, at the cost of a disk write per acknowledgement.
        clock: ns, of the records; made to increase strictly.

    Attributes:
        records: number of records in the log.
        notes: what was cut or repaired at opening, in words.
    """

    def __init__(
        self,
        folder: Path,
        topics: Sequence[Topic],
        *,
        split_bytes: int = 256 * 2**20,
        fsync: bool = False,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.folder = folder
        self.records = 0
        self.notes: list[str] = []
        self._topics = tuple(topics)
        self._channels = {topic.name: i for i, topic in enumerate(topics, 1)}
        self._split_bytes = split_bytes
        self._fsync = fsync
        self._clock = clock
        self._compressor = new_compressor()
        self._lock = threading.Lock()
        self._pending: list[tuple[str, bytes]] = []
        self._finished: list[_Finished] = []
        self._file: FileIO | None = None
        self._summary = Summary()
        self._end = 0
        self._torn = False
        self._newest = 0
        folder.mkdir(parents=True, exist_ok=True)
        left = sorted(folder.glob("*.mcap"), key=_number)
        self._next = _number(left[-1]) + 1 if left else 0
        self._unread = bool(left)

    # --------------------------------------------------------------------------- reading

    def replay(self) -> Iterator[Entry]:
        """Yield every record, oldest first, and repair what a killed process left behind.

        To be exhausted before the first `append`.

        Raises:
            McapDamage: a file is damaged; nothing was changed.
            OSError: a file cannot be read or repaired.
        """
        self._finished, self.records = [], 0
        files = sorted(self.folder.glob("*.mcap"), key=_number)
        for file in files:
            scan = Scan(file)
            try:
                yield from self._count(file, scan.entries())
            except McapDamage as error:
                if not (error.at_end and file == files[-1]):
                    raise BagError(_advice(error)) from error
                self._keep_copy(file, scan.end)
            else:
                if scan.torn and file != files[-1]:
                    raise BagError(_advice(McapDamage(file, scan.end, "it ends there")))
            self._repair(scan)
        if files:
            self._write_metadata()
        self._unread = False

    def _count(self, file: Path, entries: Iterator[Entry]) -> Iterator[Entry]:
        for entry in entries:
            if entry.topic not in self._channels:
                raise BagError(
                    f"{file}: topic {entry.topic!r} is none of this log's; move it away"
                )
            self.records += 1
            self._newest = max(self._newest, entry.time)
            yield entry

    def _keep_copy(self, file: Path, offset: int) -> None:
        """More than a torn record: what is about to be cut is kept beside the file."""
        copy = file.with_name(f"{file.name}.cut-{offset}")
        with file.open("rb") as source, copy.open("wb") as target:
            source.seek(offset)
            shutil.copyfileobj(source, target)
        self.notes.append(f"{file.name}: what was damaged at its end is in {copy.name}")

    def _repair(self, scan: Scan) -> None:
        """Finish a file that is not."""
        if not scan.finished:
            cut, ending = scan.ending()
            torn = scan.path.stat().st_size - cut if scan.torn else 0
            if not scan.summary.messages:  # torn before the first record was in it
                scan.path.unlink()
                return
            with scan.path.open("r+b") as file:
                file.truncate(cut)
                file.seek(cut)
                file.write(ending)
                file.flush()
                os.fsync(file.fileno())
            self.notes.append(f"{scan.path.name}: {torn} bytes cut, its end written")
        self._finished.append(_Finished(scan.path.name, scan.summary))

    # --------------------------------------------------------------------------- writing

    def append(self, records: Sequence[tuple[str, bytes]]) -> None:
        """Write (topic, data) records, and what waits; on an error nothing is appended.

        Raises:
            OSError: the disk does not take it; may be tried again.
        """
        with self._lock:
            waiting = len(self._pending)
            self._append([*records, *self._pending])
            del self._pending[:waiting]

    def later(self, topic: str, data: bytes, replaces: bool = False) -> None:
        """Have a record written with the next append, so that it costs no chunk of its own.

        replaces: takes the place of the newest one that waits, if there is one.
        """
        with self._lock:
            if replaces and self._pending:
                self._pending.pop()
            self._pending.append((topic, data))

    def flush(self) -> int:
        """Write what waits; return the number of records in the log.

        Raises:
            OSError: see `append`.
        """
        self.append([])
        return self.records

    def close(self) -> None:
        """Write what waits and finish the file.

        Raises:
            OSError: the end could not be written; reading the folder again repairs that.
        """
        try:
            if not self._unread:
                self.flush()
                self._finish()
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _append(self, records: Sequence[tuple[str, bytes]]) -> None:
        if self._unread:
            raise RuntimeError("the log has to be replayed before it is continued")
        if not records:
            return
        if self._end >= self._split_bytes:
            self._finish()
        if self._file is None:
            self._open()
        messages, blocks, indices = self._messages(records), [], []
        position = self._end
        for part in _parts(messages):
            block, index = encode_chunk(part, position, self._compressor)
            position += len(block)
            blocks.append(block)
            indices.append(index)
        self._write(b"".join(blocks))
        self._summary.chunks += indices
        for message in messages:
            self._summary.note(message.channel_id, message.log_time)
        self._newest = messages[-1].log_time
        self.records += len(messages)

    def _messages(self, records: Sequence[tuple[str, bytes]]) -> list[Message]:
        first = max(self._newest + 1, self._clock())
        return [
            Message(self._channels[topic], first + i, data, first + i, (self.records + i) % 2**32)
            for i, (topic, data) in enumerate(records)
        ]

    def _open(self) -> None:
        head, self._summary = begin(self._topics)
        path = self.folder / f"{self.folder.name}_{self._next}.mcap"
        self._file, self._end = FileIO(path, "w+"), 0
        try:
            self._write(head)
            self._sync_folder()
        except OSError:
            self._file.close()
            self._file = None
            raise
        self._next += 1

    def _finish(self) -> None:
        """End the file that is being written."""
        if self._file is None:
            return
        end = self._end
        self._write(self._summary.encode(end))
        self._end = end  # should what follows fail, the end is written again
        self._finished.append(_Finished(Path(str(self._file.name)).name, self._summary))
        self._file.close()
        self._file, self._end = None, 0
        self._write_metadata()

    def _write(self, data: bytes) -> None:
        """Write at the end, or leave the file as it was."""
        file = self._file
        assert file is not None
        if self._torn:
            file.truncate(self._end)
            self._torn = False
        try:
            self._write_at(file, data)
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):  # else before the next write
                file.truncate(self._end)
                self._torn = False
            raise
        self._end += len(data)

    def _write_at(self, file: FileIO, data: bytes) -> None:
        file.seek(self._end)
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        if self._fsync:
            os.fsync(file.fileno())

    def _sync_folder(self) -> None:
        if self._fsync:
            handle = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    # -------------------------------------------------------------------------- metadata

    def _write_metadata(self) -> None:
        path = self.folder / "metadata.yaml"
        temporary = path.with_suffix(".yaml.tmp")
        text = yaml.safe_dump({"rosbag2_bagfile_information": self._metadata()}, sort_keys=False)
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)

    def _metadata(self) -> dict[str, Any]:
        counts = dict.fromkeys(self._channels, 0)
        for file in self._finished:
            for number, count in file.summary.counts.items():
                counts[file.summary.channels[number].topic] += count
        summaries = [file.summary for file in self._finished]
        start = min((s.start for s in summaries), default=0)
        stop = max((s.stop for s in summaries), default=0)
        return {
            "version": 9,
            "storage_identifier": "mcap",
            "duration": {"nanoseconds": stop - start},
            "starting_time": {"nanoseconds_since_epoch": start},
            "message_count": sum(s.messages for s in summaries),
            "topics_with_message_count": [
                {"topic_metadata": _topic_metadata(topic), "message_count": counts[topic.name]}
                for topic in self._topics
            ],
            "compression_format": "",
            "compression_mode": "",
            "relative_file_paths": [file.name for file in self._finished],
            "files": [
                {
                    "path": file.name,
                    "starting_time": {"nanoseconds_since_epoch": file.summary.start},
                    "duration": {"nanoseconds": file.summary.stop - file.summary.start},
                    "message_count": file.summary.messages,
                }
                for file in self._finished
            ],
            "custom_data": None,
            "ros_distro": "jazzy",
        }


def _topic_metadata(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "type": topic.type,
        "serialization_format": "cdr",
        "offered_qos_profiles": [],
        "type_description_hash": "",
    }


def _parts(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Cut a batch into chunks."""
    part: list[Message] = []
    size = 0
    for message in messages:
        if part and size + len(message.data) > CHUNK_BYTES:
            yield part
            part, size = [], 0
        part.append(message)
        size += len(message.data)
    yield part


def _number(path: Path) -> int:
    found = _NUMBER.search(path.name)
    return int(found[0]) if found else -1


def _advice(error: McapDamage) -> str:
    return (
        f"{error}. Nothing was changed. Put back a copy of that file, or begin another run. To go "
        f"on without the steps from there on: copy the folder, move the later files out of it and "
        f"run `truncate -s {error.offset} {error.path}`"
    )
