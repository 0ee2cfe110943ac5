"""Bulk reading of a log with kernels. The rules of `slices` apply.

A segment is read chunk by chunk. One kernel call finds the events in a chunk that the client may
receive, a sieve evaluates the filter on them, and another kernel call copies the matches. Python
examines a record only if a kernel reports it as unusual. Rules:

1. Reading starts at the point of the sparse index before the requested tick, and checks every entry
   on the way (`store.log`).
2. A chunk has no more bytes than still fit into the slice, so that little is read twice.
3. A `BulkReader` is used by one thread at a time; it blocks no other thread, on the disk or in
   Python.

State: buffers. Safe to lose.
"""

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anabranch.matching.engine import Words
from anabranch.matching.sieve import Sieve
from anabranch.store.bulk import kernels as at
from anabranch.store.bulk.kernels import pack, walk
from anabranch.store.bulk.slices import (
    FRONT_BYTES,
    JUDGED_MAX,
    SCAN_BYTES_MAX,
    Effort,
    NotKeptError,
    Slice,
    Wanted,
    is_match,
    judged,
)
from anabranch.store.log import Piece
from anabranch.store.segment import CorruptError, point_before_tick

Bytes = NDArray[np.uint8]

CHUNK_BYTES = 262_144
_CHUNK_BYTES_MIN = 16_384
_ROWS_MAX = 4_096
#: The space that `pack` needs after the last row.
_SLACK_BYTES = 8
#: Buffers that grew beyond this for one event are released.
_KEPT_BYTES_MAX = 8 * 2**20


class BulkReader:
    """Reads slices of a log. See the rules at the top of this module."""

    def __init__(
        self,
        chunk_bytes: int = CHUNK_BYTES,
        rows_max: int = _ROWS_MAX,
        scan_bytes_max: int = SCAN_BYTES_MAX,
        judged_max: int = JUDGED_MAX,
    ) -> None:
        self._chunk_bytes = chunk_bytes
        self._judged_max = judged_max
        self._scan_bytes_max = scan_bytes_max
        self._chunk = np.empty(chunk_bytes, np.uint8)
        self._table = np.empty(rows_max * at.ROW_WORDS, np.int64)
        self._attributes = np.empty(0, np.uint8)
        self._out = np.empty(0, np.uint8)
        self._state = np.zeros(at.STATE_WORDS, np.int64)
        self._count = 0
        self._scanned = 0
        self._effort = Effort(judged_max)

    def read(self, pieces: Sequence[Piece], wanted: Wanted, sieve: Sieve | None) -> Slice:
        self._begin(wanted, sieve)
        tick, is_over = wanted.first, False
        for piece in pieces:
            if is_over or not piece.first_tick <= tick <= piece.last_tick:
                continue
            try:
                file = os.open(piece.path, os.O_RDONLY)
            except FileNotFoundError:
                break
            try:
                tick, is_over = self._read_piece(file, piece, tick, wanted, sieve)
            finally:
                os.close(file)
        if tick == wanted.first:
            raise NotKeptError(tick, max(pieces[0].first_tick, tick + 1))
        return Slice(wanted.first, tick - 1, self._count, self._take_slice())

    def _begin(self, wanted: Wanted, sieve: Sieve | None) -> None:
        state = self._state
        state[at.FIRST], state[at.LAST] = wanted.first, wanted.last
        state[at.NOW_NS] = wanted.now_ns
        state[at.IS_SIEVED] = sieve is not None
        state[at.ROOM], state[at.USED] = wanted.bytes_max, 0
        self._count = self._scanned = 0
        self._client = np.frombuffer(wanted.client.encode() or b"\0", np.uint8)
        self._effort = Effort(self._judged_max)
        size = _room_bytes(wanted.bytes_max)
        if len(self._out) != size:
            self._out = np.empty(size, np.uint8)

    def _take_slice(self) -> memoryview:
        """Return the slice with its memory; a small one is copied, so that it does not hold unused
        memory.
        """
        out, size = self._out, FRONT_BYTES + int(self._state[at.USED])
        if size < len(out) // 2:
            return out[:size].copy().data
        self._out = np.empty(0, np.uint8)
        return out.data[:size]

    # -- chunks ---------------------------------------------------------------------------------

    def _read_piece(
        self, file: int, piece: Piece, tick: int, wanted: Wanted, sieve: Sieve | None
    ) -> tuple[int, bool]:
        """Return the tick to continue with, and whether the slice ends before it."""
        state = self._state
        point = point_before_tick(piece.points, tick)
        offset, end = point.offset, piece.end_offset
        state[at.TICK], state[at.SALT] = point.tick, piece.salt
        size = self._next_size(end - offset)
        while offset < end and state[at.TICK] <= wanted.last:
            size = min(size, end - offset)
            chunk = self._filled(file, offset, size)
            stopped_at, why = self._take_chunk(chunk, wanted, sieve)
            if stopped_at:
                return stopped_at, True
            position, needed = int(state[at.POSITION]), int(state[at.NEEDED])
            # An entry that is not completely in the chunk must be so in the piece and in the file.
            is_cut = not needed or offset + needed > end or len(chunk) < size
            if why == at.BAD or (position == 0 and is_cut):
                if piece.is_gone:
                    return max(int(state[at.TICK]), tick), True
                raise _corrupt(piece, offset + position, int(state[at.TICK]))
            offset += position
            self._scanned += position
            if self._scanned >= self._scan_bytes_max and state[at.TICK] > wanted.first:
                return int(state[at.TICK]), True
            size = max(needed, self._next_size(end - offset))
        return int(state[at.TICK]), False

    def _next_size(self, left: int) -> int:
        room = int(self._state[at.ROOM] - self._state[at.USED])
        return min(left, self._chunk_bytes, max(room, _CHUNK_BYTES_MIN))

    def _filled(self, file: int, offset: int, size: int) -> Bytes:
        """Read `size` bytes of a file; fewer where it ends."""
        if size > len(self._chunk) or len(self._chunk) > _KEPT_BYTES_MAX:
            self._chunk = np.empty(max(size, self._chunk_bytes), np.uint8)
        done = 0
        while done < size:
            found = os.preadv(file, [self._chunk.data[done:size]], offset + done)
            if found == 0:
                break
            done += found
        return self._chunk[:done]

    def _take_chunk(self, chunk: Bytes, wanted: Wanted, sieve: Sieve | None) -> tuple[int, int]:
        """Return the tick before which the slice ends, or 0, and why the walk stopped."""
        state, table = self._state, self._table
        attributes_bytes = len(chunk) + len(table) // at.ROW_WORDS
        if sieve is not None and len(self._attributes) < attributes_bytes:
            self._attributes = np.empty(attributes_bytes, np.uint8)
        state[at.POSITION] = 0
        why = at.CROWDED
        while why == at.CROWDED:
            why, count = walk(chunk, state, self._client, table, self._attributes)
            rows = table[: count * at.ROW_WORDS].reshape(count, at.ROW_WORDS)
            stopped_at = self._pack(chunk, rows, self._verdicts(chunk, rows, wanted, sieve))
            if stopped_at:
                return stopped_at, why
        return 0, why

    # -- rows -----------------------------------------------------------------------------------

    def _verdicts(
        self, chunk: Bytes, rows: Words, wanted: Wanted, sieve: Sieve | None
    ) -> NDArray[np.int8]:
        """Return 1 for each wanted row and 0 for others, up to the limit of rows that Python
        evaluates.
        """
        verdicts = np.ones(len(rows), np.int8)
        if sieve is not None and len(rows):
            stops = rows[:, at.T_ATTRIBUTES].copy()
            verdicts = sieve.sift(self._attributes[: stops[-1]], stops)
        filter = None if sieve is None else sieve.filter
        unread = rows[:, at.T_IS_UNREAD] != 0
        places = np.flatnonzero(unread | (verdicts < 0)).tolist()
        if len(places) > (left := self._effort.left):
            verdicts = verdicts[: places[left]]
        for place in places[:left]:
            self._effort.spend()
            row = rows[place]
            tick = int(row[at.T_TICK])
            given = chunk[row[at.T_START] : row[at.T_STOP]].tobytes()
            if not unread[place]:
                assert filter is not None
                verdicts[place] = is_match(tick, given, filter)
            elif (found := judged(tick, given, wanted, filter)) is None:
                verdicts[place] = 0
            else:
                # The event is at the end of its record.
                row[at.T_TIME], row[at.T_START] = found[0], row[at.T_STOP] - len(found[1])
                verdicts[place] = 1
        return verdicts

    def _pack(self, chunk: Bytes, rows: Words, verdicts: NDArray[np.int8]) -> int:
        """Copy the wanted rows; return the tick before which the slice ends, or 0."""
        done = 0
        while done < len(verdicts):
            table = rows[done:].reshape(-1)
            out = self._out[FRONT_BYTES:]
            examined, copied = pack(chunk, table, verdicts[done:], self._state, out)
            self._count += copied
            done += examined
            if done < len(verdicts):
                if self._state[at.USED]:
                    return int(rows[done, at.T_TICK])
                event_bytes = int(rows[done, at.T_STOP] - rows[done, at.T_START])
                self._out = np.empty(_room_bytes(at.ROW_HEAD_BYTES + event_bytes), np.uint8)
        return int(rows[done, at.T_TICK]) if done < len(rows) else 0


def _room_bytes(rows_bytes: int) -> int:
    """Return the buffer size for this many bytes of rows, framing included."""
    return FRONT_BYTES + rows_bytes + _SLACK_BYTES


def _corrupt(piece: Piece, offset: int, tick: int) -> CorruptError:
    reason = "its record was changed after it was written"
    return CorruptError(reason, path=str(piece.path), offset=offset, tick=tick)
