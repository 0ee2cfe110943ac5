"""Rows: events of a stream in bulk, as bytes, one behind the other.

    row     tick 8  time 8  length 4  event

Numbers are unsigned and little-endian, as machines and Arrow have them, so that whoever reads
millions of rows can do so in a compiled loop without turning bytes round. The time is the origin's
clock when the tick was made, in nanoseconds; the event is as it was published (`encoding`). Ticks
ascend. What is between two ticks, and where rows begin and end, is said by the frame they come in
(`client_frames.Fetched`).

The functions here are the plain way to write and read rows. They keep no state.
"""

import struct
from collections.abc import Iterator

from anabranch.model.errors import RemoteError

_head = struct.Struct("<QQI")
#: What stands before an event.
ROW_HEAD_BYTES = _head.size


def encode_row(tick: int, time_ns: int, body: bytes) -> bytes:
    """One row."""
    return _head.pack(tick, time_ns, len(body)) + body


def rows_in(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Tick, time and encoded event of every row; `RemoteError` where there is none."""
    position, size = 0, len(data)
    while position < size:
        if size - position < ROW_HEAD_BYTES:
            raise RemoteError(f"rows of {size} bytes end in the head of one")
        tick, time_ns, length = _head.unpack_from(data, position)
        start = position + ROW_HEAD_BYTES
        position = start + length
        if position > size:
            raise RemoteError(f"rows of {size} bytes end in the event of tick {tick}")
        yield tick, time_ns, data[start:position]
