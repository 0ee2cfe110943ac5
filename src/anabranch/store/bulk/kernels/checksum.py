"""CRC-32 over a range of bytes, equal to `zlib.crc32`.

Processes sixteen bytes at a time, with a table for each of them.

Prior art: Kounavis and Berry, A Systematic Approach to Building High Performance Software-Based CRC
Generators (2005): "slicing".
"""

import numpy as np

from anabranch.matching.kernels.machine import get, half_of_bytes, inlined, kernel, word_of_bytes


def _crc_tables():
    """Table k: the CRC-32 of a byte followed by k zero bytes."""
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 16):
        before = tables[k - 1]
        tables[k] = (before >> 8) ^ tables[0][before & 0xFF]
    return tables.reshape(-1)


_TABLES = _crc_tables()
_BYTE = np.uint64(0xFF)


@inlined
def _look(table, word, shift):
    """Return the entry of a table for one byte of a word."""
    byte = (np.uint64(word) >> np.uint64(shift)) & _BYTE
    return np.uint64(get(_TABLES, np.int64(np.uint64(table * 256) + byte)))


@inlined
def _eight(crc, word, table):
    """Return the CRC over the eight bytes of a word that is followed by `table` more bytes."""
    word = np.uint64(word) ^ crc
    return (
        _look(table + 7, word, 0)
        ^ _look(table + 6, word, 8)
        ^ _look(table + 5, word, 16)
        ^ _look(table + 4, word, 24)
        ^ _look(table + 3, word, 32)
        ^ _look(table + 2, word, 40)
        ^ _look(table + 1, word, 48)
        ^ _look(table, word, 56)
    )


@kernel
def crc32(data, first, stop, crc):
    """`zlib.crc32(data[first:stop], crc)`."""
    crc = np.uint64(crc) ^ np.uint64(0xFFFFFFFF)
    position = first
    while stop - position >= 16:
        one = _eight(crc, word_of_bytes(data, position), 8)
        crc = one ^ _eight(np.uint64(0), word_of_bytes(data, position + 8), 0)
        position += 16
    if stop - position >= 8:
        crc = _eight(crc, word_of_bytes(data, position), 0)
        position += 8
    if stop - position >= 4:
        word = np.uint64(half_of_bytes(data, position)) ^ crc
        crc = _look(3, word, 0) ^ _look(2, word, 8) ^ _look(1, word, 16) ^ _look(0, word, 24)
        position += 4
    while position < stop:
        crc = (crc >> np.uint64(8)) ^ _look(0, crc ^ np.uint64(get(data, position)), 0)
        position += 1
    return np.int64(crc ^ np.uint64(0xFFFFFFFF))
