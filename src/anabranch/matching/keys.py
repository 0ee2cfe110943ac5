"""Numbers and texts as sortable 64-bit keys, in Python.

The kernels compare keys, not values; `kernels.keys` defines the keys of numbers. The key of a text
is its first seven bytes, then a byte with its length up to eight. Keys of texts sort like the
texts, and two texts of at most seven bytes have equal keys only if they are equal. So keys decide a
bound of at most seven bytes; with a longer one they only narrow down the candidates.
"""

import struct

from anabranch.model.event import FLOAT_EXACT_MAX, Number

_FLOAT = struct.Struct("<d")
_INTEGER = struct.Struct("<q")
_FLIP = 0x7FFFFFFFFFFFFFFF
_HALF = 1 << 63

#: Texts up to here have a key of their own.
TEXT_EXACT_BYTES = 7


def is_float(number: Number) -> bool:
    """Whether some 64-bit float equals the number."""
    if isinstance(number, float) or -FLOAT_EXACT_MAX <= number <= FLOAT_EXACT_MAX:
        return True
    return int(float(number)) == number


def key_of_float(number: float) -> int:
    bits: int = _INTEGER.unpack(_FLOAT.pack(number + 0.0))[0]
    return bits if bits >= 0 else bits ^ _FLIP


def key_and_rest(number: Number) -> tuple[int, int]:
    """(key of the greatest float not above `number`, how far above it lies)."""
    if is_float(number):
        return key_of_float(float(number)), 0
    nearest = float(number)
    key = key_of_float(nearest)
    if nearest > number:
        key -= 1
        nearest = _float_of_key(key)
    return key, int(number) - int(nearest)


def _float_of_key(key: int) -> float:
    number: float = _FLOAT.unpack(_INTEGER.pack(key if key >= 0 else key ^ _FLIP))[0]
    return number


def key_of_text(text: str) -> int:
    return key_of_bytes(text.encode())


def key_of_bytes(data: bytes) -> int:
    """The key of a text that is given in UTF-8."""
    first = int.from_bytes(data[:7].ljust(7, b"\0"), "big")
    return (first << 8 | min(len(data), 8)) - _HALF


def is_long(text: str) -> bool:
    """Whether the key of a text may be that of others too."""
    return len(text.encode()) > TEXT_EXACT_BYTES


def keys_of_texts(start: str, end: str | None) -> tuple[int, int]:
    """(lowest, highest) key of the texts from `start` up to but not including `end`."""
    low = key_of_text(start)
    if end is None:
        return low, _HALF - 1
    return low, key_of_text(end) - (0 if is_long(end) else 1)
