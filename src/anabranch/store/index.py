"""The sparse index of a segment: which tick and which time stand about where.

    index    "anabridx"  format version 2
             first tick 8  last tick 8  first time 8  last time 8  salt 4
             length of the segment 8  CRC of the segment 4  count 4
             point …
             CRC of all before 4
    point    tick 8  offset 8  time 8

Numbers are big-endian, times are nanoseconds and signed. There is a point for the first record and
then for one about every so many bytes; reading starts at the point before what is wanted. Rules:

1. An index is written when its segment is full and will not change any more. Its CRC of the whole
   segment lets a start verify the segment without looking at every record.
2. An index holds nothing of its own: one that is missing, damaged or of another format is made
   again from the segment.
3. Times never decrease with the tick, so both can be searched by halving.

The functions are pure. `IndexBuilder` keeps the points of the segment that is being written.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from zlib import crc32

import msgspec

INDEX_VERSION = 1
_MAGIC = b"anabridx"
_fields = struct.Struct(">8sHQQqqIQII")
_point = struct.Struct(">QQq")
_crc = struct.Struct(">I")

#: When the record was made, in nanoseconds.
TimeOf = Callable[[bytes], int]


class Point(msgspec.Struct, frozen=True, gc=False):
    """Where one record stands."""

    tick: int
    offset: int
    time_ns: int


class SparseIndex(msgspec.Struct, frozen=True):
    """What is known of a full segment."""

    first_tick: int
    #: `first_tick` − 1 if the segment holds no record.
    last_tick: int
    #: Times of the first and the last record; 0 if there is none.
    first_time_ns: int
    last_time_ns: int
    salt: int
    #: Of the segment: its bytes, and the CRC of all of them.
    length: int
    crc: int
    points: Sequence[Point]


_tick_of = attrgetter("tick")
_time_of = attrgetter("time_ns")


def point_before_tick(points: Sequence[Point], tick: int) -> Point:
    """The last point that is not behind this tick; the first one if there is none."""
    return points[max(bisect_right(points, tick, key=_tick_of) - 1, 0)]


def point_before_time(points: Sequence[Point], time_ns: int) -> Point:
    """The last point before this time; the first one if there is none."""
    return points[max(bisect_left(points, time_ns, key=_time_of) - 1, 0)]


def encode_index(index: SparseIndex) -> bytes:
    """The index as the bytes of its file."""
    head = _fields.pack(
        _MAGIC,
        INDEX_VERSION,
        index.first_tick,
        index.last_tick,
        index.first_time_ns,
        index.last_time_ns,
        index.salt,
        index.length,
        index.crc,
        len(index.points),
    )
    points = (_point.pack(point.tick, point.offset, point.time_ns) for point in index.points)
    data = head + b"".join(points)
    return data + _crc.pack(crc32(data))


def decode_index(data: bytes) -> SparseIndex | None:
    """The index that these bytes are; None if they are damaged or of another format."""
    body = data[: -_crc.size]
    if len(body) < _fields.size or _crc.unpack(data[-_crc.size :])[0] != crc32(body):
        return None
    magic, version, first, last, first_ns, last_ns, salt, length, crc, count = _fields.unpack_from(
        body
    )
    if magic != _MAGIC or version != INDEX_VERSION:
        return None
    if len(body) != _fields.size + count * _point.size:
        return None
    points = [Point(*found) for found in _point.iter_unpack(body[_fields.size :])]
    return SparseIndex(first, last, first_ns, last_ns, salt, length, crc, points)


class IndexBuilder:
    """Gathers the points of a segment as its records come."""

    __slots__ = ("_last", "_next_offset", "_stride_bytes", "_time_of", "points")

    def __init__(self, stride_bytes: int, time_of: TimeOf) -> None:
        self._stride_bytes = stride_bytes
        self._time_of = time_of
        #: Only ever grows, so that another thread may look things up in it.
        self.points: list[Point] = []
        self._next_offset = 0
        self._last = b""

    def add(
        self, first_tick: int, offsets: Iterable[int], records: Sequence[bytes], end: int
    ) -> None:
        """Records of consecutive ticks follow, at these offsets; all of them before `end`."""
        if records:
            self._last = records[-1]
        next_offset = self._next_offset
        if end <= next_offset:
            return
        for place, offset in zip(range(len(records)), offsets, strict=False):
            if offset >= next_offset:
                time_ns = self._time_of(records[place])
                self.points.append(Point(first_tick + place, offset, time_ns))
                next_offset = offset + self._stride_bytes
        self._next_offset = next_offset

    def finish(
        self, first_tick: int, last_tick: int, salt: int, length: int, crc: int
    ) -> SparseIndex:
        """The index of the segment, which is full."""
        first_time_ns = self.points[0].time_ns if self.points else 0
        last_time_ns = self._time_of(self._last) if self.points else 0
        return SparseIndex(
            first_tick, last_tick, first_time_ns, last_time_ns, salt, length, crc, self.points
        )
