"""Variants as lists of attributes, for writing: names, and values of any kind.

    listed = list_variants(column, before)

The way back from `whole.as_variant`: what was read as one column of attributes is written as it was
read, each value with its type. Null rows have no attributes. A row that is no object, or has an
entry that no attribute can be, is a `RowError`. Numbers with a decimal point that come from JSON
are decimals to Spark, which are no attributes: cast them to double before.

This module keeps no state.
"""

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.spark.kernels import variants as at
from anabranch.spark.write_columns import RowError

Integers = NDArray[np.int64]


class Listed(msgspec.Struct):
    """The attributes of all rows, one behind the other."""

    #: Row → where its attributes begin.
    offsets: NDArray[np.int32]
    keys: pa.Array
    kinds: NDArray[np.uint8]
    #: Numbers as they are; of texts the place in `texts`, and the length.
    bits: Integers
    texts: pa.Buffer


def list_variants(column: pa.Array, before: int) -> Listed:
    """What the variants of a column hold; `before` rows were before it."""
    values, names = column.field("value"), column.field("metadata")
    data, value_offsets = _binary(values)
    dictionary, name_offsets = _binary(names)
    is_there = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    told = np.zeros(at.TOLD, np.int64)
    room = at.count_fields(data, value_offsets, is_there, len(column), told)
    if room < 0:
        raise RowError(_problem(told, before, dictionary))
    offsets = np.zeros(len(column) + 1, np.int32)
    spots, bits = np.empty(room, np.int64), np.empty(room, np.int64)
    kinds = np.empty(room, np.uint8)
    count = at.list_fields(
        data, value_offsets, dictionary, name_offsets, is_there, offsets, spots, kinds, bits, told
    )
    if count < 0:
        raise RowError(_problem(told, before, dictionary))
    buffer = values.buffers()[2]
    keys = _keys(dictionary, spots[:count])
    return Listed(offsets, keys, kinds, bits, pa.py_buffer(b"\0") if buffer is None else buffer)


def _binary(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """The bytes of an array of binary strings, and where each begins in them."""
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(b"\0" if data is None or not data.size else data, np.uint8), places


def _keys(dictionary: NDArray[np.uint8], spots: Integers) -> pa.Array:
    offsets = np.empty(len(spots) + 1, np.int32)
    out = np.empty(int((spots & 0xFFFF_FFFF).sum()) or 1, np.uint8)
    at.copy_names(dictionary, spots, offsets, out)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), len(spots), buffers)


def _problem(told: Integers, before: int, dictionary: NDArray[np.uint8]) -> str:
    where = f"row {before + int(told[at.ROW])}: column 'attributes'"
    if told[at.PROBLEM] == at.NO_OBJECT:
        return f"{where} is a variant, but no object with attributes in it"
    if told[at.PROBLEM] == at.BROKEN:
        return f"{where} is no variant that can be read"
    first, length = int(told[at.KEY_FIRST]), int(told[at.KEY_LENGTH])
    key = dictionary[first : first + length].tobytes().decode(errors="replace")
    return (
        f"{where}, key {key!r} is no text, integer, float or boolean; cast it (a decimal to"
        " double), or leave it out"
    )
