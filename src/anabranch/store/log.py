"""The log of a stream: segments in a directory, one of which is being written.

    log/00000000000000000001.segment    ticks from 1 on, full
    log/00000000000000000001.index      its sparse index
    log/00000000000000004711.segment    ticks from 4711 on, the last one

One thread writes; others read by `pieces`. The duties W1 to W4 of `segment` are done here. Rules:

1. What is appended can be read at once, and is durable when `sync` returns.
2. Room is reserved ahead of what is written. When it cannot be had the log is *full*: what is left
   of the reserve can still be used, so that what was under way when the news came finds room.
3. A segment over its size is left for a new one after a sync. If there is no room for a new one,
   the old one goes on.
4. Records are deleted by whole segments, the oldest first, and never the last one: it knows the
   newest tick.
5. Zeros are written ahead into what is reserved, with a sync that is due anyway. A write over
   blocks that have been written is synced in about half the time of one into blocks that are only
   reserved: the file system has nothing to note down about it.
"""

import contextlib
import os
import secrets
import threading
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from zlib import crc32

import msgspec

from anabranch.core.records import decode_record
from anabranch.store.catalog import LogFacts
from anabranch.store.files import DiskFile, OpenFile, is_no_room, sync_directory, write_whole
from anabranch.store.index import IndexBuilder, SparseIndex, TimeOf, encode_index
from anabranch.store.reading import Piece
from anabranch.store.recovery import Examination, Opened, index_path, segment_path
from anabranch.store.segment import (
    ENTRY_OVERHEAD_BYTES,
    HEADER_BYTES,
    encode_entries,
    encode_seal,
    segment_header,
)


def record_time_ns(record: bytes) -> int:
    """When a record of the core was made."""
    return decode_record(record).time_ns


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the log is cut into files."""

    #: A segment that is larger is full.
    segment_bytes: int = 32 * 2**20
    #: How much room is reserved ahead.
    reserve_bytes: int = 4 * 2**20
    #: How much of that has zeros written to it at a time.
    blank_bytes: int = 256 * 2**10
    #: How far the points of the sparse index are apart.
    stride_bytes: int = 32 * 2**10


class SegmentedLog:
    """The log of one broker. See the rules at the top of this module."""

    def __init__(
        self,
        directory: Path,
        *,
        owner: int = 0,
        facts: LogFacts = LogFacts(),  # noqa: B008 - frozen
        options: LogOptions = LogOptions(),  # noqa: B008 - frozen
        time_of: TimeOf = record_time_ns,
        open_file: OpenFile = DiskFile,
    ) -> None:
        self._directory = directory
        self._owner = owner
        self._options = options
        self._time_of = time_of
        self._open_file = open_file
        self._table = threading.Lock()
        self._pieces: list[Piece] = []
        #: The records that were found in the last segment, until somebody takes them.
        self._recent: list[bytes] = []
        self.is_full = False
        look = Examination(
            directory, owner=owner, stride_bytes=options.stride_bytes, time_of=time_of
        )
        opened = look.result(facts)
        self.notes = opened.notes
        self._take_over(opened, look)

    # -- opening --------------------------------------------------------------------------------

    def _take_over(self, opened: Opened, look: Examination) -> None:
        for path in opened.stray:
            path.unlink()
        for path, index in opened.renewed:
            # It may have room at its end that was reserved and never used.
            os.truncate(path, index.length)
            self._write_index(path, index)
        for path, index in opened.full:
            piece = Piece(path, index.first_tick, index.salt, index.points)
            piece.last_tick, piece.end_offset = index.last_tick, index.length
            self._pieces.append(piece)
        if opened.last is None or opened.last_path is None:
            self._begin(self._open_file(segment_path(self._directory, 1), fresh=True), 1, 0)
        elif opened.last.end_offset == 0:
            file = self._open_file(opened.last_path)
            file.cut(0)
            self._begin(file, opened.last.first_tick, 0)
        else:
            self._go_on(opened, look)

    def _go_on(self, opened: Opened, look: Examination) -> None:
        """Write on in the last segment: W3."""
        found, path = opened.last, opened.last_path
        assert found is not None
        assert path is not None
        self._file = self._open_file(path)
        self._builder = look.builder_of(found)
        self._piece = piece = Piece(path, found.first_tick, found.salt, self._builder.points)
        piece.last_tick, piece.end_offset = found.last_tick, found.end_offset
        self._pieces.append(piece)
        self._crc = opened.last_crc
        self._recent = found.records
        self._reserved = piece.end_offset
        self._blank_end = self._synced_end = 0
        self._file.cut(piece.end_offset)
        self._file.sync()
        if found.sealed_tick < found.last_tick:
            self._seal()

    def _begin(self, file: DiskFile, first_tick: int, reserved: int) -> None:
        """Begin a segment: W1. The one before it is synced as a whole."""
        salt = secrets.randbits(32)
        header = segment_header(first_tick, salt, self._owner)
        file.write(header, 0)
        file.sync()
        sync_directory(self._directory)
        self._file = file
        self._builder = IndexBuilder(self._options.stride_bytes, self._time_of)
        self._piece = Piece(file.path, first_tick, salt, self._builder.points)
        self._piece.end_offset = HEADER_BYTES
        self._reserved = max(reserved, HEADER_BYTES)
        self._blank_end = self._synced_end = 0
        self._crc = crc32(header)
        with self._table:
            self._pieces.append(self._piece)

    # -- what is there --------------------------------------------------------------------------

    @property
    def pieces(self) -> Sequence[Piece]:
        """What there is to read, at this moment."""
        with self._table:
            return tuple(self._pieces)

    @property
    def first_tick(self) -> int:
        """The oldest tick that is there, or the first that will be."""
        return self._pieces[0].first_tick

    @property
    def last_tick(self) -> int:
        """The newest tick."""
        return self._piece.last_tick

    @property
    def begun_tick(self) -> int:
        """The first tick of the segment that is being written."""
        return self._piece.first_tick

    def take_recent(self) -> tuple[int, list[bytes]]:
        """First tick and records of the last segment as it was opened; only once."""
        recent, self._recent = self._recent, []
        return self.last_tick + 1 - len(recent), recent

    # -- writing --------------------------------------------------------------------------------

    def reserve(self, size: int) -> bool:
        """Whether so many bytes can be appended. Tries to have room beyond that; see `is_full`."""
        end = self._piece.end_offset + size
        ahead = self._options.reserve_bytes
        if self.is_full or self._reserved < end + ahead // 2:
            wanted = max(end + ahead, self._reserved)
            # After a segment that found no room, all that is wanted may be reserved already.
            has_room = wanted == self._reserved or self._file.reserve(self._reserved, wanted)
            self.is_full = not has_room
            if not self.is_full:
                self._reserved = wanted
        return end <= self._reserved

    def give_back(self) -> None:
        """Leave half of the reserve to others, who need room more urgently."""
        end = self._piece.end_offset
        self.is_full = True
        if self._reserved - end > self._options.reserve_bytes // 4:
            self._reserved = end + (self._reserved - end) // 2
            self._file.cut(self._reserved)
            self._blank_end = min(self._blank_end, self._reserved)

    def append(self, records: Sequence[bytes]) -> None:
        """Write records, unsynced. Their ticks follow the newest one."""
        piece = self._piece
        first_tick = piece.last_tick + 1
        data = b"".join(encode_entries(first_tick, records, piece.salt))
        sizes = (len(record) + ENTRY_OVERHEAD_BYTES for record in records)
        offsets = accumulate(sizes, initial=piece.end_offset)
        self._builder.add(first_tick, offsets, records, piece.end_offset + len(data))
        self._write(data)
        # Last, because a reader looks at it first.
        piece.last_tick += len(records)

    def _write(self, data: bytes) -> None:
        offset = self._piece.end_offset
        self._file.write(data, offset)
        self._crc = crc32(data, self._crc)
        self._piece.end_offset = offset + len(data)
        self._reserved = max(self._reserved, offset + len(data))

    def sync(self) -> None:
        """Everything appended is durable when this returns: W2."""
        self._blank_ahead()
        self._file.sync()
        self._seal()

    def _blank_ahead(self) -> None:
        """Rule 5. Large writes do without: they have little to gain, and zeros cost as much."""
        end, ahead = self._piece.end_offset, self._options.blank_bytes // 2
        is_large = end - self._synced_end > ahead
        self._synced_end = end
        if is_large or self._blank_end >= end + ahead:
            return
        begin = max(self._blank_end, end)
        self._blank_end = min(begin + self._options.blank_bytes, self._reserved)
        if self._blank_end > begin:
            self._file.write(bytes(self._blank_end - begin), begin)

    def _seal(self) -> None:
        self._write(encode_seal(self._piece.last_tick, self._piece.salt))

    # -- segments come and go -------------------------------------------------------------------

    def rotate(self) -> bool:
        """Go on in a new segment, if this one is over its size; everything is synced."""
        piece = self._piece
        if piece.end_offset < self._options.segment_bytes or piece.last_tick < piece.first_tick:
            return False
        self._file.sync()
        path = segment_path(self._directory, piece.last_tick + 1)
        file = self._open_file(path, fresh=True)
        reserved = self._options.reserve_bytes
        if not file.reserve(0, reserved):
            file.close()
            path.unlink()
            # Or a power cut may bring the name back, behind records of the segment that goes on.
            sync_directory(self._directory)
            self.is_full = True
            return False
        self._finish()
        self._begin(file, piece.last_tick + 1, reserved)
        return True

    def _finish(self) -> None:
        """The segment is full: it ends here, and gets its index."""
        piece = self._piece
        self._file.cut(piece.end_offset)
        self._file.sync()
        self._file.close()
        index = self._builder.finish(
            piece.first_tick, piece.last_tick, piece.salt, piece.end_offset, self._crc
        )
        self._write_index(piece.path, index)

    def _write_index(self, path: Path, index: SparseIndex) -> None:
        try:
            write_whole(index_path(path), encode_index(index))
        except OSError as error:
            # The next start makes it again, which takes a little longer.
            if not is_no_room(error):
                raise

    def forget(self, tick: int) -> None:
        """Delete the segments that hold nothing beyond this tick."""
        gone = []
        with self._table:
            while len(self._pieces) > 1 and self._pieces[0].last_tick <= tick:
                gone.append(self._pieces.pop(0))
        for piece in gone:
            piece.path.unlink(missing_ok=True)
            index_path(piece.path).unlink(missing_ok=True)
            # One by one: a crash must not leave a hole.
            sync_directory(self._directory)

    def abandon(self) -> None:
        """Let the file go as it is, after an error."""
        with contextlib.suppress(OSError):
            self._file.close()

    def close(self) -> None:
        """Give back what was reserved, and the file."""
        self._file.cut(self._piece.end_offset)
        self._file.sync()
        self._file.close()
