"""The segmented log of a stream: reading, opening and writing.

    log/00000000000000000001.segment    ticks from 1 on, full
    log/00000000000000000001.index      its sparse index
    log/00000000000000004711.segment    ticks from 4711 on, the last one

One thread writes; others read from `pieces`. This module fulfils the duties W1 to W4 of `segment`.
Writing:

1. Appended records can be read at once, and are durable when `sync` returns.
2. Space is reserved ahead of writes. If it cannot be reserved, the log is *full*: the rest of the
   reserve can still be used, so that operations in progress find space.
3. After a sync, a segment over its size is replaced by a new one. If there is no space for a new
   one, the old one continues.
4. Records are deleted by whole segments, the oldest first, and never the last one: it has the
   newest tick.
5. A log may begin with any tick. The file of a copy (`copies`) is open only while it is written, so
   that there can be many, and its first segment is created only if there is space.
6. Zeros are written ahead into reserved space, with a sync that is due anyway. Syncing a write over
   written blocks takes about half the time of a write into blocks that are only reserved: the file
   system has no metadata to update.
7. Records are never cut off in place, where seals and readers know of them. `write_beginning` makes
   another log with the same beginning: full segments are the same files under other names, the last
   one is written again, with another salt.
8. `reset` replaces a log by an empty one. Its segment may have the name of one of the old ones, so
   their pieces are marked first (`Piece.is_gone`).

Reading. A *piece* describes one segment for readers. The pieces of a log are in tick order, without
gaps. Only the writer changes a piece; any thread reads it.

9. Reading starts at the point of the sparse index before the requested record, and checks the CRC
   of every entry on the way.
10. It never goes beyond the end of a piece, which moves only after more was written.
11. A segment that no longer exists was deleted, and reading ends before it. The deleted ones are
   the oldest, or all, so nothing is skipped.
12. An unreadable entry is corrupt, unless its segment is gone: it was readable when the log was
   opened.
"""

import contextlib
import errno
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from zlib import crc32

import msgspec

from anabranch.core.origin.log_tail import decode_record
from anabranch.model.durable_files import read_pieces, sync_directory, write_whole
from anabranch.model.errors import LocalError
from anabranch.store.catalog import LogFacts
from anabranch.store.files import DiskFile, OpenFile, is_no_room, link_or_copy
from anabranch.store.segment import (
    ENTRY_OVERHEAD_BYTES,
    HEADER_BYTES,
    RECORD,
    CorruptError,
    IndexBuilder,
    Point,
    Scan,
    SparseIndex,
    TimeOf,
    decode_index,
    encode_entries,
    encode_index,
    encode_seal,
    good_entries,
    head_at,
    point_before_tick,
    point_before_time,
    scan,
    segment_header,
)

_CHUNK_BYTES = 262_144


class Piece:
    """A segment, as readers see it."""

    __slots__ = ("end_offset", "first_tick", "is_gone", "last_tick", "path", "points", "salt")

    def __init__(self, path: Path, first_tick: int, salt: int, points: Sequence[Point]) -> None:
        self.path = path
        self.first_tick = first_tick
        self.salt = salt
        #: Invariant: append-only; has a point for the first record, if there is one.
        self.points = points
        #: The tick of the last readable record; `first_tick` − 1 if there is none.
        self.last_tick = first_tick - 1
        #: Entries up to this offset are readable.
        self.end_offset = 0
        #: Whether the segment was deleted, and another one may have its name. Set before that.
        self.is_gone = False

    @property
    def index(self) -> SparseIndex:
        """What is known of a full segment, except for times and CRC."""
        return SparseIndex(
            self.first_tick, self.last_tick, 0, 0, self.salt, self.end_offset, 0, self.points
        )


def records_from(piece: Piece, start: Point) -> Iterator[tuple[int, bytes]]:
    """Yield tick and body of every record of a piece, from a point on."""
    end_offset, salt = piece.end_offset, piece.salt
    offset, tick = start.offset, start.tick
    with piece.path.open("rb", buffering=0) as file:
        while offset < end_offset:
            data = _chunk(file.fileno(), offset, end_offset, salt)
            good_bytes = 0
            for kind, at_tick, body, end in good_entries(data, 0, salt):
                if kind == RECORD:
                    tick = at_tick + 1
                    yield at_tick, body
                good_bytes = end
            if not good_bytes:
                if piece.is_gone:
                    return
                reason = "its record was changed after it was written"
                raise CorruptError(reason, path=str(piece.path), offset=offset, tick=tick)
            offset += good_bytes


def _chunk(descriptor: int, offset: int, end_offset: int, salt: int) -> bytes:
    """Read bytes from `offset` on, with at least one whole entry, if there is one."""
    data = os.pread(descriptor, min(_CHUNK_BYTES, end_offset - offset), offset)
    head = head_at(data, 0, salt)
    if head is not None and ENTRY_OVERHEAD_BYTES + head[1] > len(data):
        data = os.pread(descriptor, ENTRY_OVERHEAD_BYTES + head[1], offset)
    return data


def read_records(
    pieces: Sequence[Piece], first: int, last: int, bytes_max: int
) -> tuple[bytes, ...]:
    """Return records from `first` to `last`: about `bytes_max` bytes, at least one if it exists."""
    found: list[bytes] = []
    size = 0
    for tick, body in records_after(pieces, first):
        if tick > last or (found and size + len(body) > bytes_max):
            break
        size += len(body)
        found.append(body)
    return tuple(found)


def records_after(pieces: Sequence[Piece], first: int) -> Iterator[tuple[int, bytes]]:
    """Yield all records from this tick on; none if it does not exist."""
    expected = first
    for piece in pieces:
        if not piece.first_tick <= expected <= piece.last_tick:
            continue
        try:
            for tick, body in records_from(piece, point_before_tick(piece.points, expected)):
                if tick >= expected:
                    yield tick, body
                    expected += 1
        except FileNotFoundError:
            return


def tick_at_time(pieces: Sequence[Piece], time_ns: int, time_of: TimeOf) -> int:
    """Return the first tick at this time or later; the next tick if all are older."""
    candidates = [piece for piece in pieces if piece.points]
    if not candidates:
        return pieces[-1].last_tick + 1 if pieces else 1
    # The last piece that begins before that time contains the tick, or it begins the next piece.
    chosen = candidates[0]
    for piece in candidates:
        if piece.points[0].time_ns < time_ns:
            chosen = piece
    for tick, body in records_from(chosen, point_before_time(chosen.points, time_ns)):
        if time_of(body) >= time_ns:
            return tick
    return chosen.last_tick + 1


SEGMENT_SUFFIX = ".segment"
INDEX_SUFFIX = ".index"
_RECOVERY_CHUNK_BYTES = 1 << 20


class Opened(msgspec.Struct, frozen=True):
    """A log as found on disk, nothing changed yet."""

    full: list[tuple[Path, SparseIndex]]
    #: Full segments whose index must be rewritten.
    renewed: list[tuple[Path, SparseIndex]]
    #: The last segment; None if there is none at all.
    last_path: Path | None
    last: Scan | None
    #: Unused bytes at the end of the last segment's file: torn, or reserved.
    last_bytes: int
    last_crc: int
    #: Indexes without a segment.
    stray: list[Path]
    notes: list[str]


def delete_log(directory: Path) -> None:
    """Delete all segments and indexes; a crash may leave some of them."""
    for suffix in (SEGMENT_SUFFIX, INDEX_SUFFIX):
        for path in directory.glob(f"*{suffix}"):
            path.unlink()
    sync_directory(directory)


def segment_path(directory: Path, first_tick: int) -> Path:
    return directory / f"{first_tick:020}{SEGMENT_SUFFIX}"


def index_path(segment: Path) -> Path:
    return segment.with_suffix(INDEX_SUFFIX)


def segment_paths(directory: Path) -> list[tuple[int, Path]]:
    """Return first tick and file of every segment, in order."""
    found = []
    for path in sorted(directory.glob(f"*{SEGMENT_SUFFIX}")):
        if not (path.stem.isdecimal() and path == segment_path(directory, int(path.stem))):
            raise LocalError(f"{path} is not the name of a segment; remove it from the log")
        found.append((int(path.stem), path))
    return found


class Examination:
    """Opens a log: verifies its files without changing them.

    Every segment but the last is full and is followed by another. It is verified by the CRC in its
    index; only if that is wrong or missing, it is read record by record, and the index is rebuilt.
    The last one is always read record by record. Rules:

    1. The first tick of each segment continues the previous one. The records in between are
       confirmed, because a segment begins only after the previous one was synced completely.
    2. A full segment is therefore never torn: anything unreadable in it is corrupt. The same
       applies to a full segment that is shorter than its index says.
    3. The last segment ends with its last whole entry; a torn write after it is truncated, with a
       note. Its header may be torn only if the catalog does not record yet that it was begun.
    4. Everything that the catalog records as synced is present, and the oldest tick, if recorded.
    5. No file is changed until all of this is verified.
    """

    def __init__(
        self,
        directory: Path,
        *,
        owner: int,
        stride_bytes: int,
        time_of: TimeOf,
        progress: Callable[[int], None] = lambda _bytes: None,
    ) -> None:
        self._directory = directory
        self._owner = owner
        self._stride_bytes = stride_bytes
        self._time_of = time_of
        #: Called with the number of bytes examined.
        self._progress = progress
        self._notes: list[str] = []

    def result(self, facts: LogFacts) -> Opened:
        """Return the content of the log; raise `CorruptError`."""
        paths = segment_paths(self._directory)
        self._check_begun(paths, facts)
        full, renewed = [], []
        for (first_tick, path), (next_tick, _) in pairwise(paths):
            index, is_new = self._full(path, first_tick, next_tick)
            full.append((path, index))
            if is_new:
                renewed.append((path, index))
        known = {index_path(path) for path, _ in full}
        stray = [path for path in self._directory.glob(f"*{INDEX_SUFFIX}") if path not in known]
        last_path, last, last_bytes, last_crc = None, None, 0, 0
        if paths:
            last_path = paths[-1][1]
            last, data = self._last(*paths[-1], facts)
            last_bytes, last_crc = len(data) - last.end_offset, crc32(data[: last.end_offset])
        return Opened(full, renewed, last_path, last, last_bytes, last_crc, stray, self._notes)

    def _check_begun(self, paths: list[tuple[int, Path]], facts: LogFacts) -> None:
        newest = paths[-1][0] if paths else 0
        if newest < facts.begun_tick:
            path = segment_path(self._directory, facts.begun_tick)
            raise CorruptError(
                "the segment is missing, though the catalog records it",
                path=str(path),
                offset=0,
                tick=facts.begun_tick,
            )
        check_first(paths, facts)

    # -- full segments --------------------------------------------------------------------------

    def _full(self, path: Path, first_tick: int, next_tick: int) -> tuple[SparseIndex, bool]:
        """Return the index of a full segment, and whether it was rebuilt."""
        index = stored_index(path)
        if index is not None:
            if (index.first_tick, index.last_tick) != (first_tick, next_tick - 1):
                index = None
            elif self._is_verified(path, index):
                return index, False
        data = path.read_bytes()
        found = scan(
            data, first_tick, confirmed_tick=next_tick - 1, owner=self._owner, path=str(path)
        )
        shorter = index is not None and found.end_offset < index.length
        if found.state == "torn" or found.last_tick >= next_tick or shorter:
            raise CorruptError(
                "the segment is full, but it does not end as it was written",
                path=str(path),
                offset=found.end_offset,
                tick=min(found.last_tick + 1, next_tick),
            )
        self._notes.append(f"rebuilt the index of {path.name}: it was missing or did not fit")
        crc = crc32(data[: found.end_offset])
        return self.index_of(found, crc), True

    def _is_verified(self, path: Path, index: SparseIndex) -> bool:
        crc = 0

        def see(piece: bytes) -> None:
            nonlocal crc
            crc = crc32(piece, crc)
            self._progress(len(piece))

        return read_pieces(path, _RECOVERY_CHUNK_BYTES, see) == index.length and crc == index.crc

    def index_of(self, found: Scan, crc: int) -> SparseIndex:
        builder = self.builder_of(found)
        return builder.finish(found.first_tick, found.last_tick, found.salt, found.end_offset, crc)

    def builder_of(self, found: Scan) -> IndexBuilder:
        builder = IndexBuilder(self._stride_bytes, self._time_of)
        builder.add(found.first_tick, found.offsets, found.records, found.end_offset)
        return builder

    # -- the last segment -----------------------------------------------------------------------

    def _last(self, first_tick: int, path: Path, facts: LogFacts) -> tuple[Scan, bytes]:
        data = path.read_bytes()
        self._progress(len(data))
        found = scan(
            data, first_tick, confirmed_tick=facts.synced_tick, owner=self._owner, path=str(path)
        )
        check_header(path, found, facts)
        if found.state == "torn":
            torn_bytes = len(data.rstrip(b"\0")) - found.end_offset
            self._notes.append(
                f"truncated an interrupted write of {max(torn_bytes, 0)} bytes"
                f" at the end of the log: {path}, byte {found.end_offset},"
                f" tick {found.last_tick + 1}"
            )
        return found, data


def check_first(paths: list[tuple[int, Path]], facts: LogFacts) -> None:
    """Raise `CorruptError` if the oldest tick that was kept is missing."""
    if paths and 0 < facts.kept_tick < paths[0][0]:
        reason = f"the log begins with it, though tick {facts.kept_tick} was not deleted"
        raise CorruptError(reason, path=str(paths[0][1]), offset=0, tick=facts.kept_tick)


def check_header(path: Path, found: Scan, facts: LogFacts) -> None:
    """Raise `CorruptError` if the header of a segment that the catalog records is missing (rule
    3).
    """
    if found.end_offset == 0 and found.first_tick <= facts.begun_tick:
        reason = "the header is missing, though it was synced"
        raise CorruptError(reason, path=str(path), offset=0, tick=found.first_tick)


def stored_index(path: Path) -> SparseIndex | None:
    """Return the stored index of a segment if it is valid; it may not fit the segment."""
    try:
        return decode_index(index_path(path).read_bytes())
    except FileNotFoundError:
        return None


def record_time_ns(record: bytes) -> int:
    """Return the time of a record of the core."""
    return decode_record(record).time_ns


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of segments and reserves."""

    #: A larger segment is full.
    segment_bytes: int = 32 * 2**20
    #: The space reserved ahead.
    reserve_bytes: int = 4 * 2**20
    #: The part of it that is zeroed at a time.
    blank_bytes: int = 256 * 2**10
    #: The distance between points of the sparse index.
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
        first_tick: int = 1,
        is_copy: bool = False,
        opened: Opened | None = None,
    ) -> None:
        """`first_tick`: if there is no segment, it begins with this tick. If there is no space for
        the first segment of a copy, the constructor raises `OSError` and leaves no file. `opened`:
        what is on disk, if it was just written.
        """
        self._directory = directory
        self._owner = owner
        self._options = options
        self._time_of = time_of
        self._open_file = open_file
        self._table = threading.Lock()
        self._pieces: list[Piece] = []
        #: The records found in the last segment, until `take_recent`.
        self._recent: list[bytes] = []
        self.is_full = False
        self._is_copy = is_copy
        #: Whether the file is closed (rule 5).
        self.is_resting = False
        examination = Examination(
            directory, owner=owner, stride_bytes=options.stride_bytes, time_of=time_of
        )
        if opened is None:
            opened = examination.result(facts)
        self.notes = opened.notes
        self._take_over(opened, examination, facts, first_tick)

    # -- opening --------------------------------------------------------------------------------

    def _take_over(
        self, opened: Opened, examination: Examination, facts: LogFacts, first_tick: int
    ) -> None:
        for path in opened.stray:
            path.unlink()
        for path, index in opened.renewed:
            # It may end with reserved space that was never used.
            os.truncate(path, index.length)
            self._write_index(path, index)
        for path, index in opened.full:
            piece = Piece(path, index.first_tick, index.salt, index.points)
            piece.last_tick, piece.end_offset = index.last_tick, index.length
            self._pieces.append(piece)
        if opened.last is None or opened.last_path is None:
            self._begin_first(first_tick)
        elif opened.last.end_offset == 0:
            file = self._open_file(opened.last_path)
            file.cut(0)
            self._begin(file, opened.last.first_tick, 0)
        else:
            self._continue(opened, examination, facts)

    def _begin_first(self, first_tick: int) -> None:
        path = segment_path(self._directory, first_tick)
        file = self._open_file(path, fresh=True)
        reserved = self._options.reserve_bytes if self._is_copy else 0
        if reserved and not file.reserve(0, reserved):
            file.close()
            path.unlink()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        self._begin(file, first_tick, reserved)

    def _continue(self, opened: Opened, examination: Examination, facts: LogFacts) -> None:
        """Continue the last segment (W3)."""
        found, path = opened.last, opened.last_path
        assert found is not None
        assert path is not None
        self._builder = examination.builder_of(found)
        self._piece = piece = Piece(path, found.first_tick, found.salt, self._builder.points)
        piece.last_tick, piece.end_offset = found.last_tick, found.end_offset
        self._pieces.append(piece)
        self._crc = opened.last_crc
        self._recent = found.records
        self._reserved = piece.end_offset
        self._blank_end = self._synced_end = 0
        is_sealed = found.sealed_tick >= found.last_tick
        if self._is_copy and is_sealed and found.state == "whole":
            # There is nothing to truncate but reserved space, and nothing to sync.
            self.is_resting = facts.synced_tick >= found.last_tick
        if self.is_resting:
            return
        self._file = self._open_file(path)
        self._file.cut(piece.end_offset)
        self._file.sync()
        if not is_sealed:
            self._seal()

    def _begin(self, file: DiskFile, first_tick: int, reserved: int) -> None:
        """Begin a segment (W1). The previous one is synced completely."""
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

    # -- state ----------------------------------------------------------------------------------

    @property
    def pieces(self) -> Sequence[Piece]:
        """The readable pieces at this moment."""
        with self._table:
            return tuple(self._pieces)

    @property
    def first_tick(self) -> int:
        return self._pieces[0].first_tick

    @property
    def last_tick(self) -> int:
        return self._piece.last_tick

    @property
    def begun_tick(self) -> int:
        """The first tick of the segment that is being written."""
        return self._piece.first_tick

    def take_recent(self) -> tuple[int, list[bytes]]:
        """Return first tick and records of the last segment as opened; only once."""
        recent, self._recent = self._recent, []
        return self.last_tick + 1 - len(recent), recent

    # -- the file of a copy ---------------------------------------------------------------------

    def wake(self) -> None:
        """Open the file, to write."""
        if self.is_resting:
            self._file = self._open_file(self._piece.path)
            self.is_resting = False

    def rest(self) -> None:
        """Close the file; everything but a seal is synced."""
        if not self.is_resting:
            self.is_resting = True
            self._file.close()

    @property
    def reserve_left(self) -> int:
        """The bytes that can be written into the reserve."""
        return self._reserved - self._piece.end_offset

    # -- writing --------------------------------------------------------------------------------

    def reserve(self, size: int) -> bool:
        """Return whether `size` bytes can be appended. Tries to reserve more; see `is_full`."""
        end = self._piece.end_offset + size
        ahead = self._options.reserve_bytes
        if self.is_full or self._reserved < end + ahead // 2:
            wanted = max(end + ahead, self._reserved)
            # After a failed rotation, everything needed may be reserved already.
            has_room = wanted == self._reserved or self._file.reserve(self._reserved, wanted)
            self.is_full = not has_room
            if not self.is_full:
                self._reserved = wanted
        return end <= self._reserved

    def give_back(self) -> None:
        """Return half of the reserve to the file system, for more urgent writes."""
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
        # Last, because readers check it first.
        piece.last_tick += len(records)

    def _write(self, data: bytes) -> None:
        offset = self._piece.end_offset
        self._file.write(data, offset)
        self._crc = crc32(data, self._crc)
        self._piece.end_offset = offset + len(data)
        self._reserved = max(self._reserved, offset + len(data))

    def sync(self) -> None:
        """Make everything appended durable (W2)."""
        self._blank_ahead()
        self._file.sync()
        self._seal()

    def _blank_ahead(self) -> None:
        """Write zeros ahead (rule 6). Large writes skip it: they gain little, and zeros cost as
        much.
        """
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

    # -- rotation and deletion ------------------------------------------------------------------

    def rotate(self) -> bool:
        """Begin a new segment if this one is over its size; everything is synced."""
        piece = self._piece
        if piece.end_offset < self._options.segment_bytes or piece.last_tick < piece.first_tick:
            return False
        self._file.sync()
        path = segment_path(self._directory, piece.last_tick + 1)
        try:
            file = self._open_file(path, fresh=True)
        except OSError as error:
            if not is_no_room(error):
                raise
            self.is_full = True
            return False
        reserved = self._options.reserve_bytes
        if not file.reserve(0, reserved):
            file.close()
            path.unlink()
            # Otherwise a power failure may restore the name, after records of the continued
            # segment.
            sync_directory(self._directory)
            self.is_full = True
            return False
        self._finish()
        self._begin(file, piece.last_tick + 1, reserved)
        return True

    def _finish(self) -> None:
        """Close the full segment and write its index."""
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
            # The next start rebuilds it, which takes a little longer.
            if not is_no_room(error):
                raise

    def kept_after(self, tick: int) -> int:
        """Return the first tick that `forget` leaves."""
        later = (piece.first_tick for piece in self._pieces if piece.last_tick > tick)
        return next(later, self._piece.first_tick)

    def forget(self, tick: int) -> None:
        """Delete the segments without ticks after this one."""
        deleted = []
        with self._table:
            while len(self._pieces) > 1 and self._pieces[0].last_tick <= tick:
                deleted.append(self._pieces.pop(0))
        for piece in deleted:
            piece.path.unlink(missing_ok=True)
            index_path(piece.path).unlink(missing_ok=True)
            # One by one: a crash must not leave a gap.
            sync_directory(self._directory)

    def reset(self, first_tick: int) -> None:
        """Delete everything, and begin an empty log with this tick (rule 8)."""
        self.rest()
        for piece in self._pieces:
            piece.is_gone = True
        delete_log(self._directory)
        self._recent, self.is_full = [], False
        self._begin_first(first_tick)
        self.is_resting = False
        with self._table:
            self._pieces = [self._piece]

    def write_beginning(self, directory: Path, first_tick: int, last_tick: int) -> Opened:
        """Write the records of this log up to a tick into another directory (rule 7), where it
        begins with the segment of `first_tick`; return what is there. Everything is synced then.
        """
        assert first_tick <= last_tick < self.last_tick
        kept = [piece for piece in self._pieces if piece.last_tick >= first_tick]
        full = [piece for piece in kept if piece.last_tick <= last_tick]
        cut = kept[len(full)]
        linked = []
        for piece in full:
            path = directory / piece.path.name
            for old in (piece.path, index_path(piece.path)):
                with contextlib.suppress(FileNotFoundError):
                    link_or_copy(old, directory / old.name)
            linked.append((path, piece.index))
        begin, bodies = cut.first_tick, []
        if begin <= last_tick:
            for tick, body in records_from(cut, cut.points[0]):
                if tick > last_tick:
                    break
                bodies.append(body)
            assert len(bodies) == last_tick + 1 - begin, "a record is missing"
        salt = secrets.randbits(32)
        entries = encode_entries(begin, bodies, salt)
        header = segment_header(begin, salt, self._owner)
        data = b"".join((header, *entries, encode_seal(last_tick, salt) if bodies else b""))
        path = segment_path(directory, begin)
        file = self._open_file(path, fresh=True)
        try:
            file.write(data, 0)
            file.sync()
        finally:
            file.close()
        sync_directory(directory)
        found = scan(data, begin, owner=self._owner, path=str(path))
        return Opened(linked, [], path, found, 0, crc32(data), [], [])

    def abandon(self) -> None:
        """Close the file as it is, after an error."""
        if not self.is_resting:
            with contextlib.suppress(OSError):
                self._file.close()

    def close(self) -> None:
        """Release the reserved space and close the file."""
        if self._is_copy:
            self._close_copy()
            return
        self._file.cut(self._piece.end_offset)
        self._file.sync()
        self.rest()

    def _close_copy(self) -> None:
        """Do not wait for the disk: everything but a seal is synced, which the catalog records, and
        a truncation that is lost leaves reserved space.
        """
        if self.reserve_left:
            self.wake()
            self._file.cut(self._piece.end_offset)
        self.rest()
