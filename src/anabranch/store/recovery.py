"""Opening a log: what its files hold, and whether to believe them.

Every segment but the last is full, and has a segment behind it. It is verified by the CRC in its
index; only if that does not fit, or is missing, it is read record by record, and a new index made.
The last one is always read record by record. Rules:

1. The first ticks of the segments follow from each other. What lies between is confirmed, since a
   segment is begun when the one before is synced as a whole.
2. So there is nothing torn in a full segment: whatever cannot be read there is corrupt. The same
   goes for a full segment that is shorter than its index says.
3. The last segment ends where its last whole entry does, and what is torn behind is cut off, with
   a note. Its header may be torn only if the catalog does not know yet that it was begun.
4. What the catalog says was synced is there.
5. Until all of this is found to be so, no file is changed.

This module keeps no state.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import msgspec

from anabranch.model.errors import LocalError
from anabranch.store.catalog import LogFacts
from anabranch.store.files import read_pieces
from anabranch.store.index import IndexBuilder, SparseIndex, TimeOf, decode_index
from anabranch.store.segment import CorruptError, Scan, scan

SEGMENT_SUFFIX = ".segment"
INDEX_SUFFIX = ".index"
_CHUNK_BYTES = 1 << 20


class Opened(msgspec.Struct, frozen=True):
    """A log as it was found, nothing changed yet."""

    full: list[tuple[Path, SparseIndex]]
    #: Full segments whose index is to be written again.
    renewed: list[tuple[Path, SparseIndex]]
    #: The last segment; None if there is none at all.
    last_path: Path | None
    last: Scan | None
    #: How many bytes of the last segment's file are not in use: torn, or reserved.
    last_bytes: int
    last_crc: int
    #: Indexes without a segment.
    stray: list[Path]
    notes: list[str]


def segment_path(directory: Path, first_tick: int) -> Path:
    """The file of the segment that begins with this tick."""
    return directory / f"{first_tick:020}{SEGMENT_SUFFIX}"


def index_path(segment: Path) -> Path:
    """The file of a segment's index."""
    return segment.with_suffix(INDEX_SUFFIX)


def segment_paths(directory: Path) -> list[tuple[int, Path]]:
    """First tick and file of every segment, in order."""
    found = []
    for path in sorted(directory.glob(f"*{SEGMENT_SUFFIX}")):
        if not (path.stem.isdecimal() and path == segment_path(directory, int(path.stem))):
            raise LocalError(f"{path} is no name of a segment; take it out of the log")
        found.append((int(path.stem), path))
    return found


class Examination:
    """One look at all files of a log. See the rules at the top of this module."""

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
        #: Told of bytes that were looked at.
        self._progress = progress
        self._notes: list[str] = []

    def result(self, facts: LogFacts) -> Opened:
        """What the log holds, or `CorruptError`."""
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
                "the segment is missing, though the catalog knows it",
                path=str(path),
                offset=0,
                tick=facts.begun_tick,
            )

    # -- full segments --------------------------------------------------------------------------

    def _full(self, path: Path, first_tick: int, next_tick: int) -> tuple[SparseIndex, bool]:
        """The index of a full segment, and whether it had to be made again."""
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
        self._notes.append(f"made the index of {path.name} again: it was missing or did not fit")
        crc = crc32(data[: found.end_offset])
        return self.index_of(found, crc), True

    def _is_verified(self, path: Path, index: SparseIndex) -> bool:
        crc = 0

        def see(piece: bytes) -> None:
            nonlocal crc
            crc = crc32(piece, crc)
            self._progress(len(piece))

        return read_pieces(path, _CHUNK_BYTES, see) == index.length and crc == index.crc

    def index_of(self, found: Scan, crc: int) -> SparseIndex:
        """The index of a segment that was read record by record."""
        builder = self.builder_of(found)
        return builder.finish(found.first_tick, found.last_tick, found.salt, found.end_offset, crc)

    def builder_of(self, found: Scan) -> IndexBuilder:
        """The points of a segment that was read record by record."""
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
                f"cut off an interrupted write of {max(torn_bytes, 0)} bytes at the end of the log:"
                f" {path}, byte {found.end_offset}, tick {found.last_tick + 1}"
            )
        return found, data


def check_header(path: Path, found: Scan, facts: LogFacts) -> None:
    """The last segment has its header, if the catalog knows that it was begun; rule 3."""
    if found.end_offset == 0 and found.first_tick <= facts.begun_tick:
        reason = "the header is missing, though it was synced"
        raise CorruptError(reason, path=str(path), offset=0, tick=found.first_tick)


def stored_index(path: Path) -> SparseIndex | None:
    """The index that is stored for a segment, if there is a good one; it may not fit."""
    try:
        return decode_index(index_path(path).read_bytes())
    except FileNotFoundError:
        return None
