"""Feeds crafted bytes to the kernels of reading in bulk, in memory with forbidden pages round it.

Run as a program with a seed (or the word `bite`) and a number of cases. A kernel that reads or
writes one byte outside of its arrays ends the process with a signal. At the end the number of rows
that were read is printed, which shows that the kernels did not refuse everything at first sight.
"""

import ctypes
import mmap
import sys
from random import Random

import numpy as np
from numba import njit
from numpy.typing import NDArray

from anabranch.core.origin.log_tail import BlankRecord, EventRecord, encode_record
from anabranch.matching.kernels.machine import get
from anabranch.matching.sieve import Sieve
from anabranch.model.event import EventId
from anabranch.model.filter import Filter
from anabranch.store.bulk import kernels as at
from anabranch.store.bulk.kernels import pack, walk
from anabranch.store.segment import encode_entry, encode_seal
from tests.event_parts import frame, with_control

PAGE = mmap.PAGESIZE
ROWS_MAX = 8
SALT = 77
libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """Memory between two pages that nobody may touch."""

    def __init__(self, pages: int) -> None:
        self._size = pages * PAGE
        self._whole = mmap.mmap(-1, self._size + 2 * PAGE)
        self._all = np.frombuffer(self._whole, np.uint8)
        start = self._all.ctypes.data
        for guard in (start, start + PAGE + self._size):
            if libc.mprotect(ctypes.c_void_p(guard), PAGE, 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")

    def bytes(self, size: int, at_end: bool) -> NDArray[np.uint8]:
        """So many bytes that end, or begin, at a forbidden page."""
        first = PAGE + (self._size - size if at_end else 0)
        return self._all[first : first + size]

    def words(self, count: int, at_end: bool) -> NDArray[np.int64]:
        return self.bytes(8 * count, at_end).view(np.int64)


SEEDS = [
    frame(),
    frame(attributes={f"name-{n}": n for n in range(20)}),
    frame(attributes={"text": "x" * 300, "price": -1.5}, payload=b"p" * 400),
    with_control(1, 10**15),
    with_control(6, ["reader-1", "reader-2"]),
    with_control(6, [f"reader-{n}" for n in range(30)]),
]


def crafted(draw: Random) -> bytes:
    """A record that is nearly right, or not at all."""
    kind = draw.randrange(8)
    if kind == 0:
        return draw.randbytes(draw.randrange(60))
    if kind == 1:
        return encode_record(BlankRecord(1, EventId("p", 1, 1)))
    body = bytearray(draw.choice(SEEDS))
    for _ in range(draw.choice([0, 1, 1, 2, 5])):
        body[draw.randrange(len(body))] = draw.choice([draw.randrange(256), 0xDB, 0xCF, 0xDC, 0xC6])
    record = bytearray(encode_record(EventRecord(draw.choice([0, 10**18]), bytes(body))))
    if draw.random() < 0.3:
        record[draw.randrange(min(len(record), 16))] = draw.randrange(256)
    if draw.random() < 0.3:
        del record[draw.randrange(len(record)) :]
    return bytes(record)


def chunk_of(draw: Random) -> bytes:
    entries = []
    for tick in range(1, draw.randrange(2, 12)):
        entries.append(encode_entry(tick, crafted(draw), SALT))
        if draw.random() < 0.2:
            entries.append(encode_seal(tick, SALT))
    data = bytearray(b"".join(entries))
    if draw.random() < 0.3:
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data[: draw.randrange(len(data) + 1)] if draw.random() < 0.3 else data)


def main(seed: int, cases: int) -> int:
    draw = Random(seed)
    memory, table_memory, attributes_memory, out_memory = (Guarded(8) for _ in range(4))
    client = Guarded(1).bytes(8, at_end=True)
    client[:] = np.frombuffer(b"reader-1", np.uint8)
    client.flags.writeable = False
    state = np.zeros(at.STATE_WORDS, np.int64)
    sieve = Sieve(Filter.parse("price > 3 OR symbol = 'IBM' OR text LIKE 'x%'"))
    rows_read = 0
    for case in range(cases):
        data = chunk_of(draw)
        at_end, is_sieved = bool(case & 1), bool(case & 2)
        chunk = memory.bytes(len(data), at_end)
        chunk[:] = np.frombuffer(data, np.uint8)
        table = table_memory.words(ROWS_MAX * at.ROW_WORDS, at_end)
        attributes = attributes_memory.bytes(len(data) + ROWS_MAX, at_end)
        state[:] = 0
        state[[at.TICK, at.FIRST, at.LAST]] = 1, draw.randrange(1, 4), 11
        state[[at.SALT, at.NOW_NS, at.IS_SIEVED]] = SALT, 10**18 + 5, is_sieved
        why = at.CROWDED
        while why == at.CROWDED:
            why, count = walk(chunk, state, client, table, attributes)
            rows = table[: count * at.ROW_WORDS].reshape(count, at.ROW_WORDS)
            rows_read += int(count - rows[:, at.T_IS_UNREAD].sum())
            if is_sieved and count:
                stops = rows[:, at.T_ATTRIBUTES].copy()
                found = attributes_memory.bytes(int(stops[-1]), at_end)
                if at_end:
                    found[:] = attributes[: stops[-1]].copy()
                sieve.sift(found, stops)
            out = out_memory.bytes(draw.randrange(1, 2_000), at_end)
            state[[at.ROOM, at.USED]] = draw.randrange(1, 3_000), 0
            pack(chunk, table[: count * at.ROW_WORDS], np.ones(count, np.int8), state, out)
    return rows_read


def bite() -> None:
    """Read one byte too many, to show that it is noticed."""
    chunk = Guarded(1).bytes(8, at_end=True)
    chunk[:] = 0
    print(_read(chunk, 7), _read(chunk, 8))


@njit
def _read(chunk, position):  # type: ignore[no-untyped-def]
    return get(chunk, position)  # type: ignore[call-arg]


if __name__ == "__main__":
    if sys.argv[1] == "bite":
        bite()
    print(main(int(sys.argv[1]), int(sys.argv[2])))
