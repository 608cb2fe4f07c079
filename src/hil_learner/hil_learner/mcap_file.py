"""MCAP files that grow chunk by chunk, may be torn anywhere, and can be finished afterwards.

`mcap.writer.Writer` cannot go on after a failed write nor finish a file that a killed process
left behind, so the records of `mcap.records` are put together here: data first, and from a
`Summary` of them the end of the file. Reading checks every length before anything is allocated.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import lz4.frame
import zstandard
from mcap.data_stream import ReadDataStream, RecordBuilder
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import (
    Channel,
    Chunk,
    ChunkIndex,
    DataEnd,
    Footer,
    Header,
    McapRecord,
    Message,
    MessageIndex,
    Schema,
    Statistics,
    SummaryOffset,
)
from mcap.writer import MCAP0_MAGIC as MAGIC

MAX_RECORD = 256 * 2**20
"""Longest record and largest uncompressed chunk that is believed, bytes."""

_HEAD = struct.Struct("<BQ")
_MESSAGE = struct.Struct("<HIQQ")
_PRIVATE = 0x80
_OPCODES = frozenset(int(code) for code in Opcode)
_LEVEL = 1  # of zstd: camera frames shrink little more at a higher one


class McapDamage(OSError):
    """A file that cannot be read on from some byte.

    Attributes:
        path, offset: where.
        at_end: nothing follows that could be a record: a write that was cut short.
    """

    def __init__(self, path: Path, offset: int, reason: str, at_end: bool = False) -> None:
        super().__init__(f"{path} is damaged at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.at_end = at_end


@dataclass(frozen=True)
class Topic:
    """One channel: name, message type such as hil_interfaces/msg/Step, its definition."""

    name: str
    type: str
    definition: str


@dataclass(frozen=True)
class Entry:
    """One message of a file. time: when it was logged, ns."""

    topic: str
    type: str
    data: bytes
    time: int


@dataclass
class Summary:
    """What the end of a file tells about its data; see `encode`."""

    schemas: dict[int, Schema] = field(default_factory=dict)
    channels: dict[int, Channel] = field(default_factory=dict)
    chunks: list[ChunkIndex] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    start: int = 0
    stop: int = 0

    @property
    def messages(self) -> int:
        """Number of messages."""
        return sum(self.counts.values())

    def note(self, channel: int, time: int) -> None:
        """Count one message."""
        self.start = min(self.start, time) if self.counts else time
        self.stop = max(self.stop, time)
        self.counts[channel] = self.counts.get(channel, 0) + 1

    def encode(self, offset: int) -> bytes:
        """Everything after the data section, which ends at `offset`."""
        end = RecordBuilder()
        DataEnd(0).write(end)
        start = offset + end.count
        body = RecordBuilder()
        offsets = []
        statistics = Statistics(
            attachment_count=0,
            channel_count=len(self.channels),
            channel_message_counts=dict(sorted(self.counts.items())),
            chunk_count=len(self.chunks),
            message_count=self.messages,
            message_end_time=self.stop,
            message_start_time=self.start,
            metadata_count=0,
            schema_count=len(self.schemas),
        )
        groups: list[tuple[Opcode, Sequence[McapRecord]]] = [
            (Opcode.SCHEMA, list(self.schemas.values())),
            (Opcode.CHANNEL, list(self.channels.values())),
            (Opcode.STATISTICS, [statistics]),
            (Opcode.CHUNK_INDEX, self.chunks),
        ]
        for opcode, records in groups:
            begin = body.count
            for record in records:
                record.write(body)
            offsets.append(SummaryOffset(opcode, begin + start, body.count - begin))
        offset_start = start + body.count
        for each in offsets:
            each.write(body)
        data = body.end()
        head = _HEAD.pack(Opcode.FOOTER, 20) + struct.pack("<QQ", start, offset_start)
        footer = RecordBuilder()
        Footer(start, offset_start, zlib.crc32(head, zlib.crc32(data))).write(footer)
        return bytes(end.end() + data + footer.end() + MAGIC)


def begin(topics: Sequence[Topic]) -> tuple[bytes, Summary]:
    """Return the first bytes of a ROS 2 file with one channel per topic, and its summary."""
    summary, builder = Summary(), RecordBuilder()
    Header("ros2", "hil_learner").write(builder)
    for number, topic in enumerate(topics, 1):
        schema = Schema(
            id=number, name=topic.type, encoding="ros2msg", data=topic.definition.encode()
        )
        channel = Channel(
            id=number,
            schema_id=number,
            topic=topic.name,
            message_encoding="cdr",
            metadata={"offered_qos_profiles": "[]"},
        )
        schema.write(builder)
        channel.write(builder)
        summary.schemas[number], summary.channels[number] = schema, channel
    return MAGIC + builder.end(), summary


def encode_chunk(
    messages: Sequence[Message], offset: int, compressor: zstandard.ZstdCompressor
) -> tuple[bytes, ChunkIndex]:
    """Return messages as one compressed chunk with its message indices, to stand at `offset`."""
    builder = RecordBuilder()
    indices: dict[int, MessageIndex] = {}
    for message in messages:
        index = indices.setdefault(message.channel_id, MessageIndex(message.channel_id, []))
        index.records.append((message.log_time, builder.count))
        message.write(builder)
    plain = builder.end()
    packed = compressor.compress(plain)
    times = [message.log_time for message in messages]
    chunk = Chunk("zstd", packed, max(times), min(times), zlib.crc32(plain), len(plain))
    chunk.write(builder)
    length, places = builder.count, {}
    for number, index in indices.items():
        places[number] = offset + builder.count
        index.write(builder)
    return builder.end(), _chunk_index(chunk, offset, length, places, _index_length(indices))


def _index_length(indices: Mapping[int, MessageIndex]) -> int:
    return sum(_HEAD.size + 6 + 16 * len(index.records) for index in indices.values())


def new_compressor() -> zstandard.ZstdCompressor:
    """Return the compressor of chunks."""
    return zstandard.ZstdCompressor(level=_LEVEL)


def _chunk_index(
    chunk: Chunk, offset: int, length: int, places: dict[int, int], index_length: int
) -> ChunkIndex:
    return ChunkIndex(
        chunk_length=length,
        chunk_start_offset=offset,
        compression=chunk.compression,
        compressed_size=len(chunk.data),
        message_end_time=chunk.message_end_time,
        message_index_length=index_length,
        message_index_offsets=places,
        message_start_time=chunk.message_start_time,
        uncompressed_size=chunk.uncompressed_size,
    )


class Scan:
    """One pass over a file, from its beginning, whatever state its end is in.

    Attributes, right when `entries` is exhausted:
        summary: of the data section.
        end: of the data section: after its last whole record.
        torn: the file ends within a record, before its data section was ended.
        finished: the file is whole: what follows the data section is the end of `summary`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.summary = Summary()
        self.end = 0
        self.torn = True
        self.finished = False
        self._indices: dict[int, MessageIndex] = {}  # of the newest chunk
        self._in_chunk = 0

    def entries(self) -> Iterator[Entry]:
        """Yield every message, in the order of the file.

        Raises:
            McapDamage: something is wrong that is not a torn end.
            OSError: the file cannot be read.
        """
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            magic = file.read(len(MAGIC))
            if len(magic) < len(MAGIC) and MAGIC.startswith(magic):
                return
            if magic != MAGIC:
                raise McapDamage(self.path, 0, "not an MCAP file", at_end=not any(magic))
            self.end = len(MAGIC)
            while True:
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    self._check_zeros(head, file)
                    return
                opcode, length = _HEAD.unpack(head)
                if opcode == Opcode.DATA_END:
                    self.torn = False
                    self.finished = self._is_finished(head, file)
                    return
                self._check_head(opcode, length, file)
                following = self.end + _HEAD.size + length
                if following > size:
                    return
                body = file.read(length)
                try:
                    yield from self._read(opcode, body)
                except (ValueError, OverflowError, struct.error, RuntimeError, McapError) as error:
                    reason = f"{Opcode(opcode).name.lower()}: {error or type(error).__name__}"
                    raise self._damage(reason, file) from error
                self.end = following

    def ending(self) -> tuple[int, bytes]:
        """Return where an unfinished file is to be cut, and what is to follow there.

        A chunk that was written without its message indices gets them: some readers find the
        messages only by them.
        """
        builder, offset = RecordBuilder(), self.end
        chunk = self.summary.chunks[-1] if self.summary.chunks else None
        if self.torn and chunk and chunk.message_index_offsets.keys() != self._indices.keys():
            offset = chunk.chunk_start_offset + chunk.chunk_length
            for number, index in self._indices.items():
                chunk.message_index_offsets[number] = offset + builder.count
                index.write(builder)
            chunk.message_index_length = builder.count
        indices = builder.end()
        return offset, indices + self.summary.encode(offset + len(indices))

    def _check_zeros(self, head: bytes, file: BinaryIO) -> None:
        if head and not any(head):
            raise self._damage("zeros", file)

    def _check_head(self, opcode: int, length: int, file: BinaryIO) -> None:
        if opcode not in _OPCODES and opcode < _PRIVATE:
            raise self._damage(f"no record begins with {opcode:#x}", file)
        if length > MAX_RECORD:
            reason = f"a record of {length} bytes, at most {MAX_RECORD} are read"
            raise self._damage(reason, file)

    def _damage(self, reason: str, file: BinaryIO) -> McapDamage:
        """What is wrong at `end`; the file has been read up to the end of what is wrong."""
        rest = iter(lambda: file.read(2**20), b"")
        return McapDamage(self.path, self.end, reason, at_end=not any(map(any, rest)))

    def _is_finished(self, head: bytes, file: BinaryIO) -> bool:
        wanted = self.summary.encode(self.end)
        return head + file.read(len(wanted) + 1 - len(head)) == wanted

    def _read(self, opcode: int, body: bytes) -> Iterator[Entry]:
        stream = ReadDataStream(BytesIO(body))
        if opcode == Opcode.CHUNK:
            yield from self._chunk(Chunk.read(stream), _HEAD.size + len(body))
        elif opcode == Opcode.MESSAGE:
            yield self._message(body)
        elif opcode == Opcode.SCHEMA:
            schema = Schema.read(stream)
            self.summary.schemas.setdefault(schema.id, schema)
        elif opcode == Opcode.CHANNEL:
            channel = Channel.read(stream)
            self.summary.channels.setdefault(channel.id, channel)
        elif opcode == Opcode.MESSAGE_INDEX and self.summary.chunks:
            chunk, index = self.summary.chunks[-1], MessageIndex.read(stream)
            chunk.message_index_offsets[index.channel_id] = self.end
            chunk.message_index_length += _HEAD.size + len(body)

    def _chunk(self, chunk: Chunk, length: int) -> Iterator[Entry]:
        plain = _decompress(chunk)
        if chunk.uncompressed_crc and zlib.crc32(plain) != chunk.uncompressed_crc:
            raise ValueError("the checksum does not match")
        self.summary.chunks.append(_chunk_index(chunk, self.end, length, {}, 0))
        self._indices, position = {}, 0
        while position < len(plain):
            self._in_chunk = position
            opcode, size = _HEAD.unpack_from(plain, position)
            position += _HEAD.size
            if size > len(plain) - position:
                raise ValueError(f"a record of {size} bytes in a chunk of {len(plain)}")
            body = plain[position : position + size]
            position += size
            if opcode in (Opcode.MESSAGE, Opcode.SCHEMA, Opcode.CHANNEL):
                yield from self._read(opcode, body)

    def _message(self, body: bytes) -> Entry:
        number, _, time, _ = _MESSAGE.unpack_from(body)
        channel = self.summary.channels.get(number)
        schema = self.summary.schemas.get(channel.schema_id) if channel else None
        if channel is None or schema is None:
            raise ValueError(f"a message of channel {number}, which is not described")
        self.summary.note(number, time)
        index = self._indices.setdefault(number, MessageIndex(number, []))
        index.records.append((time, self._in_chunk))
        return Entry(channel.topic, schema.name, body[_MESSAGE.size :], time)


def _decompress(chunk: Chunk) -> bytes:
    size = chunk.uncompressed_size
    if size > MAX_RECORD:
        raise ValueError(f"{size} bytes uncompressed, at most {MAX_RECORD} are read")
    try:
        plain = _plain(chunk)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if len(plain) != size:
        raise ValueError(f"{len(plain)} bytes uncompressed, not {size}")
    return plain


def _plain(chunk: Chunk) -> bytes:
    size = chunk.uncompressed_size
    if chunk.compression == "":
        return chunk.data
    if chunk.compression == "zstd":
        claimed = zstandard.frame_content_size(chunk.data)
        if claimed not in (-1, size):
            raise ValueError(f"the compressed data claim {claimed} bytes, the chunk {size}")
        return zstandard.ZstdDecompressor().decompress(chunk.data, max_output_size=size)
    if chunk.compression == "lz4":
        return bytes(lz4.frame.LZ4FrameDecompressor().decompress(chunk.data, max_length=size))
    raise ValueError(f"unknown compression {chunk.compression[:16]!r}")
