"""Reading a log in bulk without kernels: every record by itself. The rules are in `slices`.

This is for machines without numba, and for tests, which hold the kernels against it. It keeps no
state.
"""

from collections.abc import Sequence

from anabranch.model.filter import Filter
from anabranch.model.rows import encode_row
from anabranch.store.bulk.effort import JUDGED_MAX, Effort
from anabranch.store.bulk.slices import (
    FRONT_BYTES,
    SCAN_BYTES_MAX,
    NotKeptError,
    Slice,
    Wanted,
    judged,
)
from anabranch.store.reading import Piece, records_after


def read_plainly(
    pieces: Sequence[Piece],
    wanted: Wanted,
    filter: Filter | None,
    scan_bytes_max: int = SCAN_BYTES_MAX,
    judged_max: int = JUDGED_MAX,
) -> Slice:
    """The next slice of what is wanted."""
    rows: list[bytes] = []
    size = scanned = 0
    through = wanted.first - 1
    effort = Effort(judged_max)
    for tick, record in records_after(pieces, wanted.first):
        scanned += len(record)
        effort.spend()
        found = judged(tick, record, wanted, filter)
        if found is not None:
            row = encode_row(tick, *found)
            if rows and size + len(row) > wanted.bytes_max:
                break
            rows.append(row)
            size += len(row)
        through = tick
        if tick == wanted.last or scanned >= scan_bytes_max or not effort.left:
            break
    if through < wanted.first:
        raise NotKeptError(wanted.first, max(pieces[0].first_tick, wanted.first + 1))
    buffer = memoryview(bytearray(FRONT_BYTES) + b"".join(rows))
    return Slice(wanted.first, through, len(rows), buffer)
