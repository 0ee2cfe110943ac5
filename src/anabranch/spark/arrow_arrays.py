"""Arrow arrays of what the kernels have found in rows of events.

Kernels leave tables: for each row, where a text is, or of which kind the value of an attribute is,
and its bits. Here a column of such a table becomes an array. What it is not to hold is null.

This module keeps no state.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.spark.column_types import ARROW, Kind
from anabranch.spark.kernels import gather

Bytes = NDArray[np.uint8]
Words = NDArray[np.int64]
#: Where things are in the data, a row's things side by side; how many, and which is meant.
SpotTable = tuple[Words, int, int]
#: Kinds and bits of values, a row's values side by side; how many a row has, and which is meant.
ValueTable = tuple[Bytes, Words, int, int]
#: A kernel that gathers floats: with the integers among them, or without.
Floats = Callable[..., int]


def array_of(
    form: pa.DataType, count: int, valid: Bytes | None, *buffers: NDArray[np.generic]
) -> pa.Array:
    """An array round buffers that are not copied; without `valid` nothing is null."""
    wrapped = [None if valid is None else pa.py_buffer(valid), *map(pa.py_buffer, buffers)]
    return pa.Array.from_buffers(form, count, wrapped)


def texts(form: pa.DataType, data: Bytes, count: int, table: SpotTable) -> pa.Array:
    """Texts, or bytes, of which a table says where in `data` they are."""
    offsets = np.empty(count + 1, np.int32)
    size = gather.place_texts(*table, offsets)
    out = np.empty(size + gather.SLACK_BYTES, np.uint8)
    gather.gather(data, *table, offsets, out)
    return array_of(form, count, None, offsets, out)


def values(kind: Kind, data: Bytes, count: int, table: ValueTable, floats: Floats) -> pa.Array:
    """The values of one attribute that are of a kind."""
    valid = np.zeros(-(-count // 8), np.uint8)
    if kind == "text":
        offsets = np.empty(count + 1, np.int32)
        some, size = gather.place_values(*table, offsets, valid)
        out = np.empty(size + gather.SLACK_BYTES, np.uint8)
        gather.gather(data, *table[1:], offsets, out)
        return array_of(pa.string(), count, None if some == count else valid, offsets, out)
    found: NDArray[np.generic]
    if kind == "truth":
        found = np.zeros(-(-count // 8), np.uint8)
        some = gather.truths(*table, count, found, valid)
    elif kind == "integer":
        found = np.empty(count, np.int64)
        some = gather.integers(*table, found, valid)
    else:
        found = np.empty(count, np.float64)
        some = floats(*table, found, valid)
    return array_of(ARROW[kind], count, None if some == count else valid, found)
