"""Arrow arrays built from kernel tables.

Kernels fill tables: for each row, the position of a text, or the kind of an attribute's value and
its bits. This module turns a column of such a table into an Arrow array. Values of another kind are
null.

This module keeps no state.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.spark.column_types import ARROW, Kind
from anabranch.spark.kernels import unpack as at

Bytes = NDArray[np.uint8]
Words = NDArray[np.int64]
#: Positions in the data, row by row; number of positions per row, and the index of the column.
SpotTable = tuple[Words, int, int]
#: Kinds and bits of values, row by row; number of values per row, and the index of the column.
ValueTable = tuple[Bytes, Words, int, int]
#: A kernel that gathers floats, with or without converting integers.
Floats = Callable[..., int]


def array_of(
    data_type: pa.DataType, count: int, valid: Bytes | None, *buffers: NDArray[np.generic]
) -> pa.Array:
    """An array around buffers, without copying; without `valid` nothing is null."""
    wrapped = [None if valid is None else pa.py_buffer(valid), *map(pa.py_buffer, buffers)]
    return pa.Array.from_buffers(data_type, count, wrapped)


def texts(data_type: pa.DataType, data: Bytes, count: int, table: SpotTable) -> pa.Array:
    """Texts, or bytes, at the positions in `data` that a table gives."""
    offsets = np.empty(count + 1, np.int32)
    size = at.place_texts(*table, offsets)
    out = np.empty(size + at.SLACK_BYTES, np.uint8)
    at.gather(data, *table, offsets, out)
    return array_of(data_type, count, None, offsets, out)


def values(kind: Kind, data: Bytes, count: int, table: ValueTable, floats: Floats) -> pa.Array:
    """The values of one attribute that are of this kind."""
    valid = np.zeros(-(-count // 8), np.uint8)
    if kind == "text":
        offsets = np.empty(count + 1, np.int32)
        some, size = at.place_values(*table, offsets, valid)
        out = np.empty(size + at.SLACK_BYTES, np.uint8)
        at.gather(data, *table[1:], offsets, out)
        return array_of(pa.string(), count, None if some == count else valid, offsets, out)
    found: NDArray[np.generic]
    if kind == "truth":
        found = np.zeros(-(-count // 8), np.uint8)
        some = at.truths(*table, count, found, valid)
    elif kind == "integer":
        found = np.empty(count, np.int64)
        some = at.integers(*table, found, valid)
    else:
        found = np.empty(count, np.float64)
        some = floats(*table, found, valid)
    return array_of(ARROW[kind], count, None if some == count else valid, found)
