"""Conversion of encoded events to Arrow columns.

    columns = Columns(wanted)
    batch = columns.batch(data, count, stream)

`column_types` defines the columns and their nulls. Kernels parse the rows. Rows in an encoding that
the kernels do not handle are decoded one by one, and raise an error if they are invalid.

State: work tables that each batch overwrites; use from one thread only.

A column can hold all attributes of an event, as a map of texts or as a variant, which keeps types.
Such columns serve users who do not know the attributes in advance, or whose attributes change type
over time. Rules:

1. A *map* holds every value as text: texts unchanged, numbers as Arrow formats them (1.0 is `1`),
   booleans as `true` and `false`. The original type is lost.
2. A *variant* is Spark's: `attributes:price::double`, `variant_get`, `schema_of_variant`. Words,
   floats, texts and booleans keep their types.
3. Both hold all attributes of an event, and no nulls.

Kernels do the work (`kernels.variants`); the functions for a single event are the fallback for rows
that the kernels cannot parse.

Prior art: the binary encoding of variants is specified in the Apache Parquet repository.

Arrays. Kernels fill tables: for each row, the position of a text, or the kind of an attribute's
value and its bits. The functions at the top turn a column of such a table into an Arrow array.
Values of another kind are null.
"""

import struct
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.matching.kernels.message_pack import FLOAT, INTEGER, TEXT, TRUTH
from anabranch.model.encoding import decode_event, rows_in
from anabranch.model.errors import RemoteError
from anabranch.model.event import Event, Value
from anabranch.model.limits import STORED_LIMITS
from anabranch.model.timestamps import NS_PER_MICROSECOND
from anabranch.spark.column_types import (
    ARROW,
    ATTRIBUTE_PREFIX,
    ENVELOPE,
    ColumnKind,
    Kind,
    Wanted,
    as_kind,
)
from anabranch.spark.kernels import unpack, variants

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
    size = unpack.place_texts(*table, offsets)
    out = np.empty(size + unpack.SLACK_BYTES, np.uint8)
    unpack.gather(data, *table, offsets, out)
    return array_of(data_type, count, None, offsets, out)


def values(
    kind: ColumnKind, data: Bytes, count: int, table: ValueTable, floats: Floats
) -> pa.Array:
    """The values of one attribute that are of this kind."""
    valid = np.zeros(-(-count // 8), np.uint8)
    if kind == "text":
        offsets = np.empty(count + 1, np.int32)
        some, size = unpack.place_values(*table, offsets, valid)
        out = np.empty(size + unpack.SLACK_BYTES, np.uint8)
        unpack.gather(data, *table[1:], offsets, out)
        return array_of(pa.string(), count, None if some == count else valid, offsets, out)
    found: NDArray[np.generic]
    if kind == "truth":
        found = np.zeros(-(-count // 8), np.uint8)
        some = unpack.truths(*table, count, found, valid)
    elif kind in ("integer", "timestamp"):
        whole: Words = np.empty(count, np.int64)
        some = unpack.integers(*table, whole, valid)
        # Floored: towards the past, also before 1970.
        found = whole // NS_PER_MICROSECOND if kind == "timestamp" else whole
    else:
        found = np.empty(count, np.float64)
        some = floats(*table, found, valid)
    return array_of(ARROW[kind], count, None if some == count else valid, found)


_VARIANT = ARROW["variant"]


class _Entries:
    """The attributes of all rows, concatenated."""

    def __init__(self, data: Bytes, fields: Words, rows: int) -> None:
        self.rows = rows
        self.offsets = np.empty(rows + 1, np.int32)
        count = variants.count_entries(data, fields, self.offsets)
        self.names: Words = np.empty(count, np.int64)
        self.kinds: Bytes = np.empty(count, np.uint8)
        self.bits: Words = np.empty(count, np.int64)
        variants.list_entries(data, fields, self.offsets, self.names, self.kinds, self.bits)


def as_map(data: Bytes, fields: Words, rows: int) -> pa.Array:
    found = _Entries(data, fields, rows)
    count = len(found.names)
    keys = _gathered(data, found.names)
    integers = pa.array(found.bits[found.kinds == INTEGER]).cast(pa.string())
    floats = pa.array(found.bits[found.kinds == FLOAT].view(np.float64)).cast(pa.string())
    texts = _gathered(data, found.bits[found.kinds == TEXT])
    truths = pa.array(found.bits[found.kinds == TRUTH] != 0).cast(pa.string())
    ranks: Words = np.empty(count, np.int64)
    variants.rank(found.kinds, ranks)
    together = pa.concat_arrays([texts, integers, floats, truths])
    values = pc.take(together, pa.array(ranks))
    return pa.MapArray.from_arrays(pa.array(found.offsets), keys, values)


def as_variant(data: Bytes, fields: Words, rows: int) -> pa.Array:
    found = _Entries(data, fields, rows)
    capacity = (
        len(data) + variants.ENTRY_BYTES_MAX * len(found.names) + variants.OBJECT_BYTES_MAX * rows
    )
    value_offsets, name_offsets = np.empty(rows + 1, np.int32), np.empty(rows + 1, np.int32)
    values, names = np.empty(capacity, np.uint8), np.empty(capacity, np.uint8)
    order = np.empty(int(np.diff(found.offsets).max(initial=0)), np.int64)
    variants.write_variants(
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


def _gathered(data: Bytes, spots: Words) -> pa.Array:
    offsets = np.empty(len(spots) + 1, np.int32)
    size = unpack.place_texts(spots, 1, 0, offsets)
    out = np.empty(size + unpack.SLACK_BYTES, np.uint8)
    unpack.gather(data, spots, 1, 0, offsets, out)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), len(spots), buffers)


def _binary(offsets: NDArray[np.int32], data: Bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


# -- single events ---------------------------------------------------------------------------------


def map_of(attributes: Mapping[str, Value]) -> list[tuple[str, str]]:
    return [
        (name, value if isinstance(value, str) else pa.scalar(value).cast(pa.string()).as_py())
        for name, value in attributes.items()
    ]


def variant_of(attributes: Mapping[str, Value]) -> dict[str, bytes]:
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


__all__ = ["ATTRIBUTE_PREFIX", "ENVELOPE", "Columns", "Kind", "Wanted", "as_kind"]

_SPOTS = {
    "publisher": unpack.PUBLISHER,
    "contentType": unpack.CONTENT_TYPE,
    "correlationId": unpack.CORRELATION,
    "payload": unpack.PAYLOAD,
}
_NUMBERS = {"tick": unpack.TICK, "incarnation": unpack.INCARNATION, "seq": unpack.SEQUENCE}
_TIMES = {"timestamp": unpack.STAMP, "loggedAt": unpack.TIME}


class Columns:
    """Builds record batches with these columns. See the top of this module."""

    def __init__(self, wanted: Sequence[Wanted], schema: pa.Schema | None = None) -> None:
        """`schema` describes the same columns, possibly with other nullability."""
        self.wanted = tuple(wanted)
        fields = [pa.field(each.name, each.arrow_type) for each in wanted]
        self.schema = pa.schema(fields) if schema is None else schema
        single = [each.attribute for each in wanted if each.single is not None]
        #: Attribute → index in the value tables; columns of several kinds may share it.
        self._places = {name: place for place, name in enumerate(dict.fromkeys(single))}
        encoded = [name.encode() for name in self._places]
        self._names: Bytes = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
        self._starts: Words = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        heads = [int.from_bytes(each[:8], "little") for each in encoded]
        self._heads: Words = np.array(heads, np.uint64).view(np.int64)
        self._rows = 0
        self._fields: Words = np.empty(0, np.int64)
        self._kinds: Bytes = np.empty(0, np.uint8)
        self._bits: Words = np.empty(0, np.int64)

    def batch(self, data: bytes, count: int, stream: str) -> pa.RecordBatch:
        """The rows of one fetch response. Raises `RemoteError` if they are invalid."""
        if self._is_plain(data, count):
            found: Bytes = np.frombuffer(data, np.uint8)
            arrays = [self._column(each, found, count, stream) for each in self.wanted]
        else:
            arrays = self._one_by_one(data, count, stream)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    # -- kernels --------------------------------------------------------------------------------

    def _is_plain(self, data: bytes, count: int) -> bool:
        """Fill the tables. Returns whether the kernels could parse all rows."""
        width = len(self._places)
        if count > self._rows:
            self._rows = count
            self._fields = np.empty(count * unpack.FIELDS, np.int64)
            self._kinds = np.empty(count * width, np.uint8)
            self._bits = np.empty(count * width, np.int64)
        return bool(
            unpack.unpack(
                np.frombuffer(data, np.uint8),
                count,
                self._names,
                self._starts,
                self._heads,
                self._fields,
                self._kinds,
                self._bits,
            )
        )

    def _column(self, wanted: Wanted, data: Bytes, count: int, stream: str) -> pa.Array:
        name = wanted.name
        if wanted.kind == "map":
            return as_map(data, self._fields, count)
        if wanted.kind == "variant":
            return as_variant(data, self._fields, count)
        if wanted.single is not None:
            place = self._places[wanted.attribute]
            table = (self._kinds, self._bits, len(self._places), place)
            return values(wanted.single, data, count, table, unpack.floats)
        if name == "stream":
            return pa.repeat(pa.scalar(stream, pa.string()), count)
        if name in _SPOTS:
            spots = (self._fields, unpack.FIELDS, _SPOTS[name])
            return texts(wanted.arrow_type, data, count, spots)
        out = np.empty(count, np.int64)
        if name in _TIMES:
            unpack.microseconds(self._fields, unpack.FIELDS, _TIMES[name], unpack.TIME, out)
        else:
            unpack.pick(self._fields, unpack.FIELDS, _NUMBERS[name], out)
        return array_of(wanted.arrow_type, count, None, out)

    # -- one by one -----------------------------------------------------------------------------

    def _one_by_one(self, data: bytes, count: int, stream: str) -> list[pa.Array]:
        rows = [
            (tick, time, decode_event(body, STORED_LIMITS)) for tick, time, body in rows_in(data)
        ]
        if len(rows) != count:
            raise RemoteError(f"{stream!r} announced {count} rows but sent {len(rows)}")
        try:
            return [
                pa.array([_value(each, stream, *row) for row in rows], each.arrow_type)
                for each in self.wanted
            ]
        except (OverflowError, pa.ArrowException) as error:
            raise RemoteError(f"rows of {stream!r} have a number out of range") from error


# -- fallback --------------------------------------------------------------------------------------

_PARTS: dict[str, Callable[[int, int, Event], object]] = {
    "tick": lambda tick, _time, _event: tick,
    "publisher": lambda _tick, _time, event: event.id and event.id.publisher,
    "incarnation": lambda _tick, _time, event: event.id and event.id.incarnation,
    "seq": lambda _tick, _time, event: event.id and event.id.sequence,
    "timestamp": lambda _tick, time, event: (event.header.timestamp_ns or time) // 1_000,
    "loggedAt": lambda _tick, time, _event: time // 1_000,
    "contentType": lambda _tick, _time, event: event.header.content_type,
    "correlationId": lambda _tick, _time, event: event.header.control.correlation_id,
    "payload": lambda _tick, _time, event: event.payload,
}


def _value(wanted: Wanted, stream: str, tick: int, time_ns: int, event: Event) -> object:
    if wanted.kind == "map":
        return map_of(event.attributes)
    if wanted.kind == "variant":
        return variant_of(event.attributes)
    if wanted.single is not None:
        return as_kind(wanted.single, event.attributes.get(wanted.attribute))
    if wanted.name == "stream":
        return stream
    return _PARTS[wanted.name](tick, time_ns, event)
