"""Reading a log: records by tick and by time, out of segments that may still be written to.

A *piece* is what a reader needs to know of one segment. The pieces of a log are in the order of
their ticks, without a gap. Rules:

1. Reading starts at the point of the sparse index before what is wanted, and checks the CRC of
   every entry on its way.
2. It never goes beyond the end of a piece, which moves only when more has been written.
3. A segment that is not there any more was deleted, and reading ends before it. The deleted ones
   are the oldest, so nothing is skipped.
4. An entry that cannot be read is corrupt: it could be, when the log was opened.

A piece is changed by the writer alone, and read by anybody.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from anabranch.store.index import Point, TimeOf, point_before_tick, point_before_time
from anabranch.store.segment import (
    ENTRY_OVERHEAD_BYTES,
    RECORD,
    CorruptError,
    good_entries,
    head_at,
)

_CHUNK_BYTES = 262_144


class Piece:
    """What is known of one segment."""

    __slots__ = ("end_offset", "first_tick", "last_tick", "path", "points", "salt")

    def __init__(self, path: Path, first_tick: int, salt: int, points: Sequence[Point]) -> None:
        self.path = path
        self.first_tick = first_tick
        self.salt = salt
        #: Invariant: it only ever grows; there is one for the first record, if there is any.
        self.points = points
        #: Of the last record that can be read; `first_tick` − 1 if there is none.
        self.last_tick = first_tick - 1
        #: Entries up to here can be read.
        self.end_offset = 0


def records_from(piece: Piece, start: Point) -> Iterator[tuple[int, bytes]]:
    """Tick and body of every record of a piece, from a point on."""
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
                reason = "its record was changed after it was written"
                raise CorruptError(reason, path=str(piece.path), offset=offset, tick=tick)
            offset += good_bytes


def _chunk(descriptor: int, offset: int, end_offset: int, salt: int) -> bytes:
    """Bytes from there on, with at least one whole entry, if there is one."""
    data = os.pread(descriptor, min(_CHUNK_BYTES, end_offset - offset), offset)
    head = head_at(data, 0, salt)
    if head is not None and ENTRY_OVERHEAD_BYTES + head[1] > len(data):
        data = os.pread(descriptor, ENTRY_OVERHEAD_BYTES + head[1], offset)
    return data


def read_records(
    pieces: Sequence[Piece], first: int, last: int, bytes_max: int
) -> tuple[bytes, ...]:
    """Records from `first` on up to `last`: about so many bytes, at least one if it is there."""
    found: list[bytes] = []
    size = 0
    for tick, body in records_after(pieces, first):
        if tick > last or (found and size + len(body) > bytes_max):
            break
        size += len(body)
        found.append(body)
    return tuple(found)


def records_after(pieces: Sequence[Piece], first: int) -> Iterator[tuple[int, bytes]]:
    """All records from this tick on; none if it is not there."""
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
    """The first tick that was made at this time or later; the next one if all are older."""
    candidates = [piece for piece in pieces if piece.points]
    if not candidates:
        return pieces[-1].last_tick + 1 if pieces else 1
    # The last piece that begins before that time; what is wanted is in there, or begins the next.
    chosen = candidates[0]
    for piece in candidates:
        if piece.points[0].time_ns < time_ns:
            chosen = piece
    for tick, body in records_from(chosen, point_before_time(chosen.points, time_ns)):
        if time_of(body) >= time_ns:
            return tick
    return chosen.last_tick + 1
