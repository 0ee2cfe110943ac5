"""Read-only inspection of a log, whether or not its broker runs.

Nothing is locked or changed. A running broker may write to the last segment and delete the first
ones meanwhile. Rules:

1. A segment with a valid index is described by the index; the last one is read.
2. Data that a running broker is writing may look torn or even damaged for a moment. It is read
   again, a few times, before it is called corrupt.
3. A segment that disappeared was deleted, with all before it.
4. The part of a corrupt segment before the damage is valid, and is shown before the error.

5. A copy of another stream is read like a log, with the facts in its row of the catalog.

A log is given as a state directory, or as a plain directory of segments: a copy elsewhere, whose
owner and catalog are unknown.

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
from anabranch.store.catalog import (
    COPY_QUERY,
    COPY_TABLE_QUERY,
    CopyFacts,
    LogFacts,
    copy_facts,
)
from anabranch.store.copies import directory_name
from anabranch.store.files import CATALOG, COPIES, LOG, read_identity
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
    """The location and owner of a log."""

    directory: Path
    #: None for a plain directory of segments.
    state_directory: Path | None
    network: str = ""
    broker: str = ""

    @property
    def owner(self) -> int:
        """The owner in the headers of its segments; 0 if unknown."""
        return segment_owner(self.network, self.broker) if self.state_directory else 0


class SegmentView(msgspec.Struct, frozen=True, kw_only=True):
    """A segment, as shown to the user."""

    name: str
    first_tick: int
    #: `first_tick` − 1 if it has no records.
    last_tick: int
    first_time_ns: int
    last_time_ns: int
    #: Bytes in use; the file may be longer by the reserved space.
    used_bytes: int
    file_bytes: int
    #: A full segment has an index and is no longer written to.
    full: bool


class CopyView(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of another stream, as shown to the user."""

    stream: str
    first_tick: int
    #: The last tick that the catalog knows; a running broker may have more.
    last_tick: int
    bytes: int
    directory: str
    #: Whether it was damaged and set aside.
    is_lost: bool


def locate(path: Path) -> LogPlace:
    """Return the log in this directory."""
    if not path.is_dir():
        raise LocalError(f"{path} is not a directory; give a broker's state directory, or a log")
    if (path / LOG).is_dir():
        return LogPlace(path / LOG, path, *read_identity(path))
    if path.name == LOG and (path.parent / CATALOG).exists():
        return LogPlace(path, path.parent, *read_identity(path.parent))
    if any(path.glob(f"*{SEGMENT_SUFFIX}")):
        return LogPlace(path, None)
    raise LocalError(f"{path} contains no log; give a broker's state directory, or a log")


def read_facts(place: LogPlace) -> LogFacts:
    """Return the catalog's facts about the log. Call this before reading the log."""
    rows = _select(place, "SELECT synced, begun FROM log")
    return LogFacts(*rows[0]) if rows else LogFacts()


def read_copies(place: LogPlace) -> list[CopyFacts]:
    """Return the copies of other streams in a state directory, by stream. A damaged row is left
    out; the next start reports it.
    """
    if not _select(place, COPY_TABLE_QUERY):
        return []
    found = [copy_facts(row) for row in _select(place, COPY_QUERY)]
    return sorted((facts for facts in found if facts is not None), key=lambda facts: facts.stream)


def copy_place(place: LogPlace, facts: CopyFacts) -> LogPlace:
    """Return the location of a copy in the state directory of a log."""
    assert place.state_directory is not None
    directory = place.state_directory / COPIES / directory_name(facts.stream, facts.number)
    return LogPlace(directory, place.state_directory, place.network, facts.stream)


def copy_view(place: LogPlace, facts: CopyFacts) -> CopyView:
    directory = copy_place(place, facts).directory
    sizes = []
    for path in directory.glob(f"*{SEGMENT_SUFFIX}"):
        # A running broker may delete it.
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return CopyView(
        stream=facts.stream,
        first_tick=facts.first_tick,
        last_tick=facts.synced_tick,
        bytes=sum(sizes),
        directory=str(directory),
        is_lost=facts.is_lost,
    )


def read_aside(place: LogPlace) -> list[SetAsideRow]:
    """Return unreadable records that were set aside in the catalog, oldest first."""
    query = "SELECT CAST(key AS INTEGER) AS number, value FROM entry WHERE name = 'set_aside'"
    found = []
    for _, value in _select(place, f"{query} ORDER BY number"):
        # The next start reports a row that was damaged since.
        with contextlib.suppress(msgspec.DecodeError, TypeError):
            found.append(decode_aside(value))
    return found


def _select(place: LogPlace, query: str) -> list[tuple[Any, ...]]:
    """Query the catalog; no rows if there is only a log."""
    if place.state_directory is None:
        return []
    path = place.state_directory / CATALOG
    # Without a write-ahead log it is unused, and can be read on a read-only disk.
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
    """Yield every segment with its `Piece`; raise `CorruptError` after a damaged one."""
    for first_tick, path in segment_paths(place.directory):
        try:
            file_bytes = path.stat().st_size
            index = stored_index(path)
            if index is not None and (index.first_tick, index.length) != (first_tick, file_bytes):
                index = None
            full = index is not None
            damage = None
            if index is None:
                index, damage = _built_index(path, first_tick, place.owner, time_of)
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


def _built_index(
    path: Path, first_tick: int, owner: int, time_of: TimeOf
) -> tuple[SparseIndex, CorruptError | None]:
    """Build the index of a segment that has none or is being written; of its valid part if
    damaged.
    """
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
    """Scan a segment that may be written to at the same time."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return _scan(path, first_tick, owner, confirmed_tick)
        except CorruptError:
            continue
    return _scan(path, first_tick, owner, confirmed_tick)


def _scan(path: Path, first_tick: int, owner: int, confirmed_tick: int) -> Scan:
    data = path.read_bytes()
    return scan(data, first_tick, confirmed_tick=confirmed_tick, owner=owner, path=str(path))
