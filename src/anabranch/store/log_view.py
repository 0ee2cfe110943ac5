"""Looking at a log from outside, while its broker runs or does not.

Nothing is locked and nothing is changed. A broker that runs may write to the last segment and
delete the first ones meanwhile. Rules:

1. A segment with a good index is taken as the index says; the last one is read.
2. What a running broker is just writing may look torn, or even damaged, for a moment: then it is
   read again, a few times, before it is called corrupt.
3. A segment that vanished was deleted, with all before it.
4. Of a corrupt segment, what stands before the damage is good, and is shown before the error.

A log is given as a state directory, or as a plain directory of segments: a copy somewhere else,
whose owner and catalog are not known.

This module keeps no state.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from anabranch.core.catalog_recovery import SetAsideRow, decode_aside
from anabranch.model.errors import LocalError
from anabranch.store.catalog import LogFacts
from anabranch.store.files import CATALOG, LOG, read_identity
from anabranch.store.log import SEGMENT_SUFFIX, Piece, segment_paths, stored_index
from anabranch.store.segment import (
    CorruptError,
    IndexBuilder,
    Scan,
    SparseIndex,
    TimeOf,
    scan,
    segment_owner,
)

_ATTEMPTS = 5
_STRIDE_BYTES = 32 * 2**10


class LogPlace(msgspec.Struct, frozen=True):
    """Where a log is, and whose."""

    directory: Path
    #: None for a plain directory of segments.
    state_directory: Path | None
    network: str = ""
    broker: str = ""

    @property
    def owner(self) -> int:
        """The owner that the headers of its segments name; 0 if it is not known."""
        return segment_owner(self.network, self.broker) if self.state_directory else 0


class SegmentView(msgspec.Struct, frozen=True, kw_only=True):
    """One segment, as it is shown."""

    name: str
    first_tick: int
    #: `first_tick` − 1 if it holds no record.
    last_tick: int
    first_time_ns: int
    last_time_ns: int
    #: Bytes in use; the file may be longer by what is reserved.
    used_bytes: int
    file_bytes: int
    #: A full one has an index and is not written to any more.
    full: bool


def locate(path: Path) -> LogPlace:
    """The log in this directory."""
    if not path.is_dir():
        raise LocalError(f"{path} is no directory; give a broker's state directory, or a log")
    if (path / LOG).is_dir():
        return LogPlace(path / LOG, path, *read_identity(path))
    if path.name == LOG and (path.parent / CATALOG).exists():
        return LogPlace(path, path.parent, *read_identity(path.parent))
    if any(path.glob(f"*{SEGMENT_SUFFIX}")):
        return LogPlace(path, None)
    raise LocalError(f"{path} holds no log; give a broker's state directory, or a log")


def read_facts(place: LogPlace) -> LogFacts:
    """What the catalog knows of the log. To be read before the log."""
    rows = _select(place, "SELECT synced, begun FROM log")
    return LogFacts(*rows[0]) if rows else LogFacts()


def read_aside(place: LogPlace) -> list[SetAsideRow]:
    """Records of the catalog that could not be read and were set aside, oldest first."""
    query = "SELECT CAST(key AS INTEGER) AS number, value FROM entry WHERE name = 'set_aside'"
    found = []
    for _, value in _select(place, f"{query} ORDER BY number"):
        # One that was damaged since shows with the next start.
        with contextlib.suppress(msgspec.DecodeError, TypeError):
            found.append(decode_aside(value))
    return found


def _select(place: LogPlace, query: str) -> list[tuple[Any, ...]]:
    """Rows of the catalog; none where there is only a log."""
    if place.state_directory is None:
        return []
    path = place.state_directory / CATALOG
    # Without a write-ahead log nobody uses it, and it can be read on a disk that is read-only.
    unused = not path.with_name(f"{path.name}-wal").exists()
    how = "mode=ro&immutable=1" if unused else "mode=ro"
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{how}", uri=True)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise LocalError(f"the catalog {path} cannot be read: {error}") from error


def segments(
    place: LogPlace, time_of: TimeOf, progress: Callable[[int], None] = lambda _bytes: None
) -> Iterator[tuple[SegmentView, Piece]]:
    """Every segment, with what a reader needs to know of it; `CorruptError` after a damaged one."""
    for first_tick, path in segment_paths(place.directory):
        try:
            file_bytes = path.stat().st_size
            index = stored_index(path)
            if index is not None and (index.first_tick, index.length) != (first_tick, file_bytes):
                index = None
            full = index is not None
            damage = None
            if index is None:
                index, damage = _made_index(path, first_tick, place.owner, time_of)
        except FileNotFoundError:
            continue
        piece = Piece(path, first_tick, index.salt, index.points)
        piece.last_tick, piece.end_offset = index.last_tick, index.length
        progress(file_bytes)
        yield _segment_view(path, index, file_bytes, full), piece
        if damage is not None:
            raise damage


def _segment_view(path: Path, index: SparseIndex, file_bytes: int, full: bool) -> SegmentView:
    return SegmentView(
        name=path.name,
        first_tick=index.first_tick,
        last_tick=index.last_tick,
        first_time_ns=index.first_time_ns,
        last_time_ns=index.last_time_ns,
        used_bytes=index.length,
        file_bytes=file_bytes,
        full=full,
    )


def _made_index(
    path: Path, first_tick: int, owner: int, time_of: TimeOf
) -> tuple[SparseIndex, CorruptError | None]:
    """The index of a segment that has none, or is being written to; of what is good of it."""
    damage: CorruptError | None = None
    try:
        found = scan_steadily(path, first_tick, owner)
    except CorruptError as error:
        damage = error
        good = path.read_bytes()[: error.offset]
        found = scan(good, first_tick, owner=owner, path=str(path))
    builder = IndexBuilder(_STRIDE_BYTES, time_of)
    builder.add(first_tick, found.offsets, found.records, found.end_offset)
    index = builder.finish(first_tick, found.last_tick, found.salt, found.end_offset, 0)
    return index, damage


def scan_steadily(path: Path, first_tick: int, owner: int, confirmed_tick: int = 0) -> Scan:
    """The content of a segment that may be written to just now."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return _scan(path, first_tick, owner, confirmed_tick)
        except CorruptError:
            continue
    return _scan(path, first_tick, owner, confirmed_tick)


def _scan(path: Path, first_tick: int, owner: int, confirmed_tick: int) -> Scan:
    data = path.read_bytes()
    return scan(data, first_tick, confirmed_tick=confirmed_tick, owner=owner, path=str(path))
