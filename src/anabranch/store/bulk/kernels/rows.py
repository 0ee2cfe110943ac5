"""Copies events from a chunk, as rows (`model.encoding`), into memory that is ready to be sent.

No byte is written outside that memory, and none read outside the chunk, if the table was built from
it by `entries.walk`.
"""

import numpy as np

from anabranch.matching.kernels.machine import borrowed, copy, put
from anabranch.store.bulk.kernels import layout as at
from anabranch.store.bulk.kernels.machine import entry_point


@entry_point
def pack(chunk, table, wanted, state, out):
    """Copy the wanted events as rows; return (rows examined, rows copied).

    It stops before a row that would exceed ROOM, unless that is the first one, and before one that
    does not fit into `out`.
    """
    chunk, table, wanted = borrowed(chunk), borrowed(table), borrowed(wanted)
    state, out = borrowed(state), borrowed(out)
    copied = np.int64(0)
    for number in range(wanted.shape[0]):
        if wanted[number] == 0:
            continue
        row = number * at.ROW_WORDS
        start = table[row + at.T_START]
        length = table[row + at.T_STOP] - start
        used = state[at.USED]
        end = used + at.ROW_HEAD_BYTES + length
        if (end > state[at.ROOM] and used > 0) or end + 8 > out.shape[0]:
            return np.int64(number), copied
        # The length first, as eight bytes: the event overwrites its upper half.
        put(out, used + 16, length)
        put(out, used, table[row + at.T_TICK])
        put(out, used + 8, table[row + at.T_TIME])
        copy(chunk, start, out, used + at.ROW_HEAD_BYTES, length)
        state[at.USED] = end
        copied += 1
    return np.int64(wanted.shape[0]), copied
