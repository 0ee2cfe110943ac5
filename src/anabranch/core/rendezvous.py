"""Rendezvous hashing: rank names by a hash of a key and each name.

Brokers that know the same names compute the same order, different keys spread over the names, and a
name that is added or removed leaves the order of the others as it was.

Prior art: Thaler, Ravishankar 1998, "Using name-based mappings to increase hit rates".
"""

from collections.abc import Iterable
from zlib import crc32


def ranked(key: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names, best first for this key."""
    return tuple(sorted(names, key=lambda name: (_weight(key, name), name)))


def _weight(key: str, name: str) -> int:
    """A well-mixed hash of both: a CRC alone would favour some names."""
    mixed = crc32(f"{key}/{name}".encode())
    mixed = ((mixed ^ (mixed >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return mixed ^ (mixed >> 16)
