"""The format of log segments, and the recovery rules after a crash.

A log is a sequence of segments, each an append-only file. This module is the pure part: bytes in,
bytes out. The owner of the files writes what is encoded here and reads it back with `scan`.

    segment    header entry entry … [zeros]
    header     "anabrlog"  format version 2  salt 4  first tick 8  owner 4  CRC 4  0xE7
    entry      kind 1  length 4  tick 8  CRC of these and the salt 4
               body
               CRC of all before 4  0xE7

Numbers are big-endian. The owner is a hash of the network's and the broker's name; 0 is any. A
header of format 1 has no owner and is otherwise the same, so its segments are read and continued as
they are. From format 2 on the header has a fixed size, so that a later format can be distinguished
from damage. An entry is a *record*, the body of one tick, or a *seal*, without a body: all ticks up
to the seal's were synced before it was written. Ticks of records are dense. Zeros at the end are
reserved space that is not used yet.

The writer's duties:

W1. A segment is a new file, never a used one. Its header is synced before the first entry is
    written, and the previous segment is synced completely.
W2. After a sync, a seal is written, which is not synced itself; only then the sync is reported.
W3. After a scan, the file is truncated at `end_offset` (a `torn` header is rewritten), synced and
    sealed, before anything is reported or appended.
W4. After the first error of a write or a sync, nothing more is written to the log in this life.

*Torn or corrupt.* A crash interrupts unsynced writes; nothing of them was confirmed, so their
remains are truncated. Every other damage may have destroyed confirmed records; then the log must
not be used, because its ticks would be assigned a second time. The distinction:

- An interrupted write leaves what was written, or nothing, or zeros where nothing was written yet,
  sector by sector and in any order. It changes no bit of what it wrote. The last byte of an entry
  is not zero, so an entry whose last byte is present was written to its end.
- A seal proves that everything up to its tick was on disk.

The scan reads entries until one is unreadable, at the offset *o*, where tick *t* should be. Rules:

1. Only zeros from *o* on: the segment is `whole`.
2. A valid seal anywhere after *o* names *t* or a later tick: corrupt.
3. The content ends before the entry does, at the end of the file or in zeros up to there: `torn`.
   (If the header of the entry has a wrong CRC: before this header does.) But corrupt if a valid
   record of a later tick follows *o*: then a piece in between is missing.
4. A sector of the entry (or of its header, if that is unreadable) is all zeros, from the beginning
   of the sector or from *o* on: `torn`, a write out of order.
5. Everything else is corrupt: a bit was changed after it was written.
6. A readable entry with an unexpected tick is corrupt, as is a seal of a tick that does not exist,
   and a header that is complete and wrong, or of another owner.
7. The caller may have other evidence that ticks were confirmed: the segment that follows, or the
   catalog. If they are missing, the log is corrupt, regardless of the rules above.

So one changed bit makes the log corrupt wherever it is, even in the very last record, sealed or
not. The only exception is a record that is not sealed and contains a sector of zeros: there rule 4
applies. And since a seal is in the file before anything is confirmed, a confirmed record lacks one
only if the machine lost power before that seal reached the disk, at the latest with the next sync.
A scan of one file cannot detect that its end is missing, seals included; rule 7 covers that.

Bodies are untrusted bytes and may contain what looks like an entry. The salt, a secret number, is
part of every CRC; and a copy of this segment's own past has ticks before *t*.

**The sparse index** of a segment maps ticks and times to offsets. Its numbers are big-endian, times
are signed nanoseconds. There is a point for the first record and then about every `stride_bytes`;
reading starts at the point before the requested record. Rules:

8. An index is written when its segment is full and immutable. Its CRC of the whole segment lets a
   start verify the segment without reading every record.
9. An index is redundant: one that is missing, damaged or of another format is rebuilt from the
   segment.
10. Times never decrease with the tick, so both can be searched by bisection.

The functions are pure. `IndexBuilder` holds the points of the segment that is being written.
"""

import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Literal
from zlib import crc32

import msgspec

from anabranch.model.errors import LocalError

FORMAT_VERSION = 2
#: The minimum size that disks write atomically.
SECTOR_BYTES = 512

_MAGIC = b"anabrlog"
_END = 0xE7
RECORD, SEAL = 0xA6, 0x59
#: The start of an entry with a tick below 2**63, for searching in unreadable data.
_entry_start = re.compile(b"[\xa6\x59](?=.{4}[\0-\x7f])", re.DOTALL)

_segment_fields = struct.Struct(">8sHIQI")
_segment_fields_1 = struct.Struct(">8sHIQ")
_VERSION_END = 10
_entry_fields = struct.Struct(">BIQ")
_entry_head = struct.Struct(">BIQI")
_entry_tail = _segment_tail = struct.Struct(">IB")

HEADER_BYTES = _segment_fields.size + _segment_tail.size
HEAD_BYTES = _entry_head.size
TAIL_BYTES = _entry_tail.size
#: The overhead of an entry beside its body.
ENTRY_OVERHEAD_BYTES = HEAD_BYTES + TAIL_BYTES
#: The maximum length of an entry.
BODY_BYTES_MAX = 2**32 - 1


class CorruptError(LocalError):
    """A log lost or changed records. Only its operator can decide what to do."""

    def __init__(self, reason: str, *, path: str, offset: int, tick: int) -> None:
        self.reason = reason
        self.path = path
        #: The first byte that cannot be trusted.
        self.offset = offset
        #: The first tick that cannot be trusted.
        self.tick = tick
        super().__init__(reason, path, offset, tick)

    def __str__(self) -> str:
        return (
            f"the log is corrupt: {self.path}, byte {self.offset}, tick {self.tick}:"
            f" {self.reason}. The file was left as it is. Put a good copy in its place; or"
            f" give up this tick and all later ones with `anabranch log repair {self.path}`"
        )


class Scan(msgspec.Struct, frozen=True):
    """The content of a segment."""

    #: The bodies of all records; the first belongs to `first_tick`, the others follow.
    records: list[bytes]
    #: The offset of the next entry; 0 if there is no header yet.
    end_offset: int
    #: `torn`: an interrupted write after `end_offset` must be truncated.
    state: Literal["whole", "torn"]
    first_tick: int
    #: Ticks up to this one are proven to be synced; `first_tick` − 1 if there is no proof.
    sealed_tick: int
    #: The salt for further entries of this segment.
    salt: int
    #: The offset of each record's entry.
    offsets: list[int]
    #: The format of the header; `FORMAT_VERSION` if there is none yet.
    version: int

    @property
    def last_tick(self) -> int:
        """The tick of the last record; `first_tick` − 1 if there is none."""
        return self.first_tick + len(self.records) - 1


# -- writing ------------------------------------------------------------------------------------


def segment_owner(network: str, broker: str) -> int:
    """Return the number that identifies a broker in the headers of its segments; never 0."""
    return crc32(f"{network}\0{broker}".encode()) or 1


def segment_header(first_tick: int, salt: int = 0, owner: int = 0) -> bytes:
    """Encode the header of a segment that starts with this tick."""
    fields = _segment_fields.pack(_MAGIC, FORMAT_VERSION, salt, first_tick, owner)
    return fields + _segment_tail.pack(crc32(fields), _END)


def encode_entry(tick: int, body: bytes, salt: int = 0) -> bytes:
    """Encode the record of one tick."""
    if len(body) > BODY_BYTES_MAX:
        raise LocalError(f"a record of {len(body)} bytes is too large; split the event")
    return _entry(RECORD, tick, body, salt)


def encode_entries(first_tick: int, bodies: Iterable[bytes], salt: int = 0) -> list[bytes]:
    """Encode the records of consecutive ticks, to be joined."""
    pack, pack_tail, crc_of = _entry_fields.pack, _entry_tail.pack, crc32
    entries: list[bytes] = []
    for tick, body in enumerate(bodies, first_tick):
        fields = pack(RECORD, len(body), tick)
        crc = crc_of(fields, salt)
        entries.append(fields + crc.to_bytes(4) + body + pack_tail(crc_of(body, crc), _END))
    return entries


def encode_seal(tick: int, salt: int = 0) -> bytes:
    """Encode a seal: all ticks up to this one were synced."""
    return _entry(SEAL, tick, b"", salt)


def _entry(kind: int, tick: int, body: bytes, salt: int) -> bytes:
    fields = _entry_fields.pack(kind, len(body), tick)
    crc = crc32(fields, salt)
    tail = _entry_tail.pack(crc32(body, crc), _END)
    return b"".join((fields, crc.to_bytes(4), body, tail))


# -- reading ------------------------------------------------------------------------------------


def scan(
    data: bytes,
    expected_first_tick: int,
    *,
    confirmed_tick: int = 0,
    owner: int = 0,
    path: str = "segment",
) -> Scan:
    """Read all records of a segment; raise `CorruptError`. See the rules at the top of this module.

    `confirmed_tick`: ticks up to this one must be present. `owner`: the expected owner, unless 0.
    `path` names the file in errors.
    """
    found = _Reading(data, expected_first_tick, owner, path).result()
    if found.last_tick < confirmed_tick:
        raise CorruptError(
            f"ticks up to {confirmed_tick} were confirmed, but the log ends before that",
            path=path,
            offset=found.end_offset,
            tick=found.last_tick + 1,
        )
    return found


class _Reading:
    """One pass over a segment."""

    def __init__(self, data: bytes, first_tick: int, owner: int, path: str) -> None:
        self.data = data
        self.path = path
        self.first_tick = first_tick
        self.owner = owner
        self.salt = 0
        self.version = FORMAT_VERSION
        self.records: list[bytes] = []
        self.offsets: list[int] = []
        #: Everything before this offset is valid.
        self.offset = 0
        #: The tick of the next record.
        self.tick = first_tick
        self.sealed_tick = first_tick - 1

    def result(self) -> Scan:
        if self._has_header():
            self._read_entries()
            content_end = _content_end(self.data, self.offset)
            if content_end > self.offset:
                self._check_torn(content_end)
            state: Literal["whole", "torn"] = "whole" if content_end == self.offset else "torn"
        else:
            state = "torn"
        return Scan(
            self.records,
            self.offset,
            state,
            self.first_tick,
            self.sealed_tick,
            self.salt,
            self.offsets,
            self.version,
        )

    def _corrupt(self, reason: str) -> CorruptError:
        return CorruptError(reason, path=self.path, offset=self.offset, tick=self.tick)

    def _has_header(self) -> bool:
        """Read the header; return False if its write was interrupted."""
        data = self.data
        content = data[: min(HEADER_BYTES, _content_end(data, 0))]
        if content[: len(_MAGIC)] != _MAGIC[: len(content)]:
            raise self._corrupt("this is not a segment of a log")
        version = int.from_bytes(content[len(_MAGIC) : _VERSION_END])
        fields = _segment_fields_1 if version == 1 else _segment_fields
        if len(content) < fields.size + _segment_tail.size:
            return False
        _, _, salt, first_tick, *owners = fields.unpack_from(data)
        good = (crc32(data[: fields.size]), _END)
        if _segment_tail.unpack_from(data, fields.size) != good:
            raise self._corrupt("the header of the segment was changed after it was written")
        if version > FORMAT_VERSION:
            raise LocalError(
                f"{self.path} has format {version}, this program supports only formats up to"
                f" {FORMAT_VERSION}; start the version that wrote it"
            )
        if first_tick != self.first_tick:
            raise self._corrupt(f"the segment begins with tick {first_tick}")
        if any(owner not in (0, self.owner) for owner in owners if self.owner):
            raise self._corrupt("the segment belongs to the log of another broker")
        self.salt, self.version = salt, version
        self.offset = fields.size + _segment_tail.size
        return True

    def _read_entries(self) -> None:
        """Read entries as long as they are valid and in order."""
        for kind, tick, body, end in good_entries(self.data, self.offset, self.salt):
            if kind == RECORD:
                if tick != self.tick:
                    raise self._corrupt(f"the record of tick {tick} is in its place")
                self.offsets.append(self.offset)
                self.records.append(body)
                self.tick += 1
            elif tick >= self.tick:
                raise self._corrupt(f"ticks up to {tick} were confirmed, and it is missing")
            else:
                self.sealed_tick = max(self.sealed_tick, tick)
            self.offset = end

    def _check_torn(self, content_end: int) -> None:
        """Return if an interrupted write explains the data at the offset (rules 2 to 5)."""
        data, offset, salt = self.data, self.offset, self.salt
        following = [*_entries_after(data, offset, salt, self.tick)]
        sealed_tick = max((tick for kind, tick in following if kind == SEAL), default=0)
        if sealed_tick:
            raise self._corrupt(f"it cannot be read, though ticks up to {sealed_tick} were synced")
        head = head_at(data, offset, salt)
        end = offset + (HEAD_BYTES if head is None else ENTRY_OVERHEAD_BYTES + head[1])
        if content_end < end:
            if following:
                raise self._corrupt(f"a part is missing between it and tick {following[0][1]}")
        elif not _has_unwritten_sector(data, offset, end):
            raise self._corrupt("its record was changed after it was written")


def head_at(data: bytes, offset: int, salt: int) -> tuple[int, int, int, int] | None:
    """Return kind, length, tick and CRC of the entry; None if it has no valid header."""
    if len(data) - offset < HEAD_BYTES:
        return None
    head: tuple[int, int, int, int] = _entry_head.unpack_from(data, offset)
    fields = data[offset : offset + _entry_fields.size]
    if head[0] not in (RECORD, SEAL) or crc32(fields, salt) != head[3]:
        return None
    return head


def good_entries(data: bytes, offset: int, salt: int) -> Iterator[tuple[int, int, bytes, int]]:
    """Yield kind, tick, body and end of the entries from `offset` on, up to the first invalid
    one.
    """
    size = len(data) - ENTRY_OVERHEAD_BYTES
    unpack_head, unpack_tail, fields_bytes = (
        _entry_head.unpack_from,
        _entry_tail.unpack_from,
        _entry_fields.size,
    )
    while offset <= size:
        kind, length, tick, crc = unpack_head(data, offset)
        if length > size - offset or crc32(data[offset : offset + fields_bytes], salt) != crc:
            return
        tail = offset + HEAD_BYTES + length
        body = data[offset + HEAD_BYTES : tail]
        if unpack_tail(data, tail) != (crc32(body, crc), _END) or kind not in (RECORD, SEAL):
            return
        offset = tail + TAIL_BYTES
        yield kind, tick, body, offset


def _content_end(data: bytes, start: int) -> int:
    """Return the offset, not before `start`, after which there are only zeros or nothing."""
    return start + len(data[start:].rstrip(b"\0"))


def _entries_after(
    data: bytes, offset: int, salt: int, least_tick: int
) -> Iterator[tuple[int, int]]:
    """Yield kind and tick of every valid entry after `offset` with at least this tick."""
    for start in _entry_start.finditer(data, offset + 1):
        for kind, tick, _, _ in islice(good_entries(data, start.start(), salt), 1):
            if tick >= least_tick:
                yield kind, tick


def newest_tick(data: bytes, offset: int, least_tick: int) -> int:
    """Return the newest tick, from `least_tick` on, of valid entries at or after `offset`; or 0.

    For segments that cannot be read in order: all remaining valid entries count.
    """
    salt = int.from_bytes(data[_VERSION_END : _VERSION_END + 4])
    return max((tick for _, tick in _entries_after(data, offset - 1, salt, least_tick)), default=0)


def _has_unwritten_sector(data: bytes, start: int, end: int) -> bool:
    """Return whether a sector between `start` and `end` is all zeros, the first one from `start`
    on.
    """
    boundary = start - start % SECTOR_BYTES
    for sector in range(boundary, end, SECTOR_BYTES):
        part = data[max(sector, start) : sector + SECTOR_BYTES]
        if part.count(0) == len(part):
            return True
    return False


INDEX_VERSION = 1
_INDEX_MAGIC = b"anabridx"
_fields = struct.Struct(">8sHQQqqIQII")
_point = struct.Struct(">QQq")
_crc = struct.Struct(">I")

#: Returns the time of a record in nanoseconds.
TimeOf = Callable[[bytes], int]


class Point(msgspec.Struct, frozen=True, gc=False):
    """The position of one record."""

    tick: int
    offset: int
    time_ns: int


class SparseIndex(msgspec.Struct, frozen=True):
    """The index of a full segment."""

    first_tick: int
    #: `first_tick` − 1 if the segment holds no record.
    last_tick: int
    #: Times of the first and the last record; 0 if there is none.
    first_time_ns: int
    last_time_ns: int
    salt: int
    #: The size of the segment in bytes, and its CRC.
    length: int
    crc: int
    points: Sequence[Point]


_tick_of = attrgetter("tick")
_time_of = attrgetter("time_ns")


def point_before_tick(points: Sequence[Point], tick: int) -> Point:
    """Return the last point that is not after this tick; the first one if there is none."""
    return points[max(bisect_right(points, tick, key=_tick_of) - 1, 0)]


def point_before_time(points: Sequence[Point], time_ns: int) -> Point:
    """Return the last point before this time; the first one if there is none."""
    return points[max(bisect_left(points, time_ns, key=_time_of) - 1, 0)]


def encode_index(index: SparseIndex) -> bytes:
    head = _fields.pack(
        _INDEX_MAGIC,
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
    """Decode an index file; None if it is damaged or of another format."""
    body = data[: -_crc.size]
    if len(body) < _fields.size or _crc.unpack(data[-_crc.size :])[0] != crc32(body):
        return None
    magic, version, first, last, first_ns, last_ns, salt, length, crc, count = _fields.unpack_from(
        body
    )
    if magic != _INDEX_MAGIC or version != INDEX_VERSION:
        return None
    if len(body) != _fields.size + count * _point.size:
        return None
    points = [Point(*found) for found in _point.iter_unpack(body[_fields.size :])]
    return SparseIndex(first, last, first_ns, last_ns, salt, length, crc, points)


class IndexBuilder:
    """Collects the points of a segment as its records are written."""

    __slots__ = ("_last", "_next_offset", "_stride_bytes", "_time_of", "points")

    def __init__(self, stride_bytes: int, time_of: TimeOf) -> None:
        self._stride_bytes = stride_bytes
        self._time_of = time_of
        #: Append-only, so that another thread may search it.
        self.points: list[Point] = []
        self._next_offset = 0
        self._last = b""

    def add(
        self, first_tick: int, offsets: Iterable[int], records: Sequence[bytes], end: int
    ) -> None:
        """Add records of consecutive ticks at these offsets, all of them before `end`."""
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
        first_time_ns = self.points[0].time_ns if self.points else 0
        last_time_ns = self._time_of(self._last) if self.points else 0
        return SparseIndex(
            first_tick, last_tick, first_time_ns, last_time_ns, salt, length, crc, self.points
        )
