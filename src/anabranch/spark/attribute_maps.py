"""Columns that hold all attributes of an event: a map of texts, or a variant, which keeps types.

They serve users who do not know the attributes in advance, or whose attributes change type over
time. Rules:

1. A *map* holds every value as text: texts unchanged, numbers as Arrow formats them (1.0 is `1`),
   booleans as `true` and `false`. The original type is lost.
2. A *variant* is Spark's: `attributes:price::double`, `variant_get`, `schema_of_variant`. Integers,
   floats, texts and booleans keep their types.
3. Both hold all attributes of an event, and no nulls.

This module keeps no state. Kernels do the work (`kernels.variants`); the functions for a single
event are the fallback for rows that the kernels cannot parse.

Prior art: the binary encoding of variants is specified in the Apache Parquet repository.
"""

import struct
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.matching.kernels.message_pack import FLOAT, INTEGER, TEXT, TRUTH
from anabranch.model.event import Value
from anabranch.spark.column_types import ARROW
from anabranch.spark.kernels import variants as at
from anabranch.spark.kernels.unpack import SLACK_BYTES, gather, place_texts

_VARIANT = ARROW["variant"]

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]


class _Entries:
    """The attributes of all rows, concatenated."""

    def __init__(self, data: Bytes, fields: Integers, rows: int) -> None:
        self.rows = rows
        self.offsets = np.empty(rows + 1, np.int32)
        count = at.count_entries(data, fields, self.offsets)
        self.names: Integers = np.empty(count, np.int64)
        self.kinds: Bytes = np.empty(count, np.uint8)
        self.bits: Integers = np.empty(count, np.int64)
        at.list_entries(data, fields, self.offsets, self.names, self.kinds, self.bits)


def as_map(data: Bytes, fields: Integers, rows: int) -> pa.Array:
    """A column of maps, from the table of `kernels.unpack`."""
    found = _Entries(data, fields, rows)
    count = len(found.names)
    keys = _gathered(data, found.names)
    integers = pa.array(found.bits[found.kinds == INTEGER]).cast(pa.string())
    floats = pa.array(found.bits[found.kinds == FLOAT].view(np.float64)).cast(pa.string())
    texts = _gathered(data, found.bits[found.kinds == TEXT])
    truths = pa.array(found.bits[found.kinds == TRUTH] != 0).cast(pa.string())
    ranks: Integers = np.empty(count, np.int64)
    at.rank(found.kinds, ranks)
    together = pa.concat_arrays([texts, integers, floats, truths])
    values = pc.take(together, pa.array(ranks))
    return pa.MapArray.from_arrays(pa.array(found.offsets), keys, values)


def as_variant(data: Bytes, fields: Integers, rows: int) -> pa.Array:
    """A column of variants, from the table of `kernels.unpack`."""
    found = _Entries(data, fields, rows)
    capacity = len(data) + at.ENTRY_BYTES_MAX * len(found.names) + at.OBJECT_BYTES_MAX * rows
    value_offsets, name_offsets = np.empty(rows + 1, np.int32), np.empty(rows + 1, np.int32)
    values, names = np.empty(capacity, np.uint8), np.empty(capacity, np.uint8)
    order = np.empty(int(np.diff(found.offsets).max(initial=0)), np.int64)
    at.write_variants(
        data,
        found.offsets,
        found.names,
        found.kinds,
        found.bits,
        order,
        value_offsets,
        values,
        name_offsets,
        names,
    )
    return pa.StructArray.from_arrays(
        [_binary(value_offsets, values), _binary(name_offsets, names)], fields=list(_VARIANT)
    )


def _gathered(data: Bytes, spots: Integers) -> pa.Array:
    offsets = np.empty(len(spots) + 1, np.int32)
    size = place_texts(spots, 1, 0, offsets)
    out = np.empty(size + SLACK_BYTES, np.uint8)
    gather(data, spots, 1, 0, offsets, out)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), len(spots), buffers)


def _binary(offsets: NDArray[np.int32], data: Bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


# -- single events ---------------------------------------------------------------------------------


def map_of(attributes: Mapping[str, Value]) -> list[tuple[str, str]]:
    """The attributes of one event as a map."""
    return [
        (name, value if isinstance(value, str) else pa.scalar(value).cast(pa.string()).as_py())
        for name, value in attributes.items()
    ]


def variant_of(attributes: Mapping[str, Value]) -> dict[str, bytes]:
    """The attributes of one event as a variant."""
    # Java compares strings by UTF-16 code units.
    names = sorted(attributes, key=lambda name: name.encode("utf-16-be"))
    encoded = [name.encode() for name in names]
    ends = _ends(encoded)
    size = _size_of(max(ends[-1], len(names)))
    metadata = bytes([0x11 | (size - 1) << 6]) + b"".join(
        [number.to_bytes(size, "little") for number in (len(names), *ends)] + encoded
    )
    values = [_primitive(attributes[name]) for name in names]
    ends = _ends(values)
    is_large = len(names) > 255
    ids = _size_of(max(len(names) - 1, 0))
    size = _size_of(ends[-1])
    head = bytes([2 | (size - 1) << 2 | (ids - 1) << 4 | is_large << 6])
    listed = [len(names).to_bytes(4 if is_large else 1, "little")]
    listed += [number.to_bytes(ids, "little") for number in range(len(names))]
    listed += [number.to_bytes(size, "little") for number in ends]
    return {"value": head + b"".join([*listed, *values]), "metadata": metadata}


def _ends(parts: Sequence[bytes]) -> list[int]:
    """The start of each part, and the end of the last."""
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    return ends


def _size_of(number: int) -> int:
    return max((number.bit_length() + 7) // 8, 1)


def _primitive(value: Value) -> bytes:
    if isinstance(value, bool):
        return bytes([(1 if value else 2) << 2])
    if isinstance(value, float):
        return bytes([7 << 2]) + struct.pack("<d", value)
    if isinstance(value, int):
        for code, form in ((3, "<b"), (4, "<h"), (5, "<i"), (6, "<q")):
            bits = 8 * struct.calcsize(form) - 1
            if -(1 << bits) <= value < 1 << bits:
                return bytes([code << 2]) + struct.pack(form, value)
    assert isinstance(value, str)
    text = value.encode()
    if len(text) < 64:
        return bytes([1 | len(text) << 2]) + text
    return bytes([16 << 2]) + struct.pack("<i", len(text)) + text
