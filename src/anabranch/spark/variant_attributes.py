"""Decoding of variant columns into attribute lists, for writing.

    listed = list_variants(column, before)

The inverse of `attribute_maps.as_variant`: attributes that were read as one variant column are
written back with their types. A null row has no attributes. A row that is not an object, or that
has an entry of a type that attributes do not have, raises a `RowError`. Spark parses JSON numbers
with a decimal point as decimals, which are not an attribute type: cast them to double first.

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
    """The attributes of all rows, concatenated."""

    #: Row → index of its first attribute.
    offsets: NDArray[np.int32]
    keys: pa.Array
    kinds: NDArray[np.uint8]
    #: Numbers as they are; for texts, position in `texts` and length.
    bits: Integers
    texts: pa.Buffer


def list_variants(column: pa.Array, before: int) -> Listed:
    """Decode the variants of a column; `before` is the number of rows that precede it."""
    values, names = column.field("value"), column.field("metadata")
    data, value_offsets = _binary(values)
    dictionary, name_offsets = _binary(names)
    is_valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    report = np.zeros(at.TOLD, np.int64)
    capacity = at.count_fields(data, value_offsets, is_valid, len(column), report)
    if capacity < 0:
        raise RowError(_problem(report, before, dictionary))
    offsets = np.zeros(len(column) + 1, np.int32)
    spots, bits = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    kinds = np.empty(capacity, np.uint8)
    count = at.list_fields(
        data,
        value_offsets,
        dictionary,
        name_offsets,
        is_valid,
        offsets,
        spots,
        kinds,
        bits,
        report,
    )
    if count < 0:
        raise RowError(_problem(report, before, dictionary))
    buffer = values.buffers()[2]
    keys = _keys(dictionary, spots[:count])
    return Listed(offsets, keys, kinds, bits, pa.py_buffer(b"\0") if buffer is None else buffer)


def _binary(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """The data and offsets of a binary array."""
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return np.frombuffer(b"\0" if data is None or not data.size else data, np.uint8), places


def _keys(dictionary: NDArray[np.uint8], spots: Integers) -> pa.Array:
    offsets = np.empty(len(spots) + 1, np.int32)
    out = np.empty(int((spots & 0xFFFF_FFFF).sum()) or 1, np.uint8)
    at.copy_names(dictionary, spots, offsets, out)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), len(spots), buffers)


def _problem(report: Integers, before: int, dictionary: NDArray[np.uint8]) -> str:
    where = f"row {before + int(report[at.ROW])}: column 'attributes'"
    if report[at.PROBLEM] == at.NO_OBJECT:
        return f"{where} is a variant but not an object"
    if report[at.PROBLEM] == at.BROKEN:
        return f"{where} is not a valid variant"
    first, length = int(report[at.KEY_FIRST]), int(report[at.KEY_LENGTH])
    key = dictionary[first : first + length].tobytes().decode(errors="replace")
    return (
        f"{where}, key {key!r} is not a text, integer, float or boolean; cast it (a decimal to"
        " double), or leave it out"
    )
