"""Encoding of data frames as drafts: rows become events without an id.

Columns become parts of events:

    parts = parts_of(schema, ignore_envelope=False)

Rules:

1. A column becomes the attribute of the same name, unless an envelope field has that name. Write
   such an attribute as `attributes.NAME`; the prefix is allowed for every other attribute, too.
2. Attribute types: STRING; BIGINT and smaller integers; DOUBLE and FLOAT; BOOLEAN; TIMESTAMP, as
   integer nanoseconds (`attribute_types`). Any other type is an error that names the column and the
   casts to choose from: dates and decimals need an explicit one by the user.
3. `payload`, `contentType`, `correlationId` and `timestamp` are written to the envelope.
   `attributes` is a map or a variant whose entries become attributes, in addition to those that
   have columns.
4. Columns that the broker assigns (`stream`, `tick`, `publisher`, `incarnation`, `seq`, `loggedAt`)
   cannot be written. They are an error, because the user may expect to read these values back,
   unless the option `ignoreEnvelope` leaves them out.
5. All columns are checked before the first row is processed.

A kernel encodes the rows of Arrow batches:

    drafting = Drafting(parts)
    for chunk in drafting.chunks(batches):
        stager.stage(...)

Rules:

1. The output equals that of `model.encoding.encode_draft` for the same events, byte by byte. The
   broker validates it again.
2. A row that cannot be encoded raises a `RowError` that names the row and the column; rows are
   counted from 0 over all batches of a task. No part of its chunk is returned.
3. A null timestamp becomes the time of writing. NaN, −0.0 and the infinities are ordinary floats,
   as in all events.

State: a buffer; use from one thread only.

Variant columns become lists of attributes:

    listed = list_variants(column, before)

The inverse of `columns.as_variant`: attributes that were read as one variant column are written
back with their types. A null row has no attributes. A row that is not an object, or that has an
entry of a type that attributes do not have, raises a `RowError`. Spark parses JSON numbers with a
decimal point as decimals, which are not an attribute type: cast them to double first.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import (
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from anabranch.model.encoding import encode_draft
from anabranch.model.errors import EventError, LocalError
from anabranch.model.event import DEFAULT_CONTROL, INT_MAX, Event
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_name
from anabranch.model.timestamps import NS_PER_MICROSECOND
from anabranch.spark.attribute_types import cast_for, column_kind_of
from anabranch.spark.column_types import ATTRIBUTE_PREFIX, ATTRIBUTES, ENVELOPE, ColumnKind
from anabranch.spark.kernels import pack as at
from anabranch.spark.kernels import variants
from anabranch.spark.kernels.pack import pack

Role = Literal["attribute", "attributes", "timestamp", "correlationId", "contentType", "payload"]


class RowError(LocalError):
    """A row that cannot be encoded as an event."""


class Part(msgspec.Struct, frozen=True):
    """The part of an event that a column becomes."""

    column: str
    #: Index of the column in the frame.
    place: int
    role: Role
    #: For role "attribute": its name.
    attribute: str = ""
    #: Kind of the attribute, or of the values of an `attributes` map.
    kind: ColumnKind = "text"
    #: For role "attributes": whether each value carries its own kind.
    is_variant: bool = False


_WRITTEN: Final[dict[str, tuple[Role, type[DataType], str]]] = {
    "timestamp": ("timestamp", TimestampType, "timestamp"),
    "correlationId": ("correlationId", StringType, "string"),
    "contentType": ("contentType", StringType, "string"),
    "payload": ("payload", BinaryType, "binary"),
}
_TYPES: Final = "string, bigint, int, smallint, tinyint, double, float, boolean or timestamp"
#: Envelope fields that the broker assigns.
ASSIGNED: Final = tuple(name for name in ENVELOPE if name not in _WRITTEN)


def parts_of(
    schema: StructType, *, ignore_envelope: bool, limits: Limits = DEFAULT_LIMITS
) -> tuple[Part, ...]:
    """The part that each column becomes. Raises `LocalError` if one cannot be written."""
    found: list[Part] = []
    for place, field in enumerate(schema.fields):
        if field.name in ASSIGNED:
            if not ignore_envelope:
                raise LocalError(_assigned(field.name))
            continue
        found.append(_part(field.name, place, field.dataType, limits))
    _check_names(found)
    return tuple(found)


def _assigned(name: str) -> str:
    return (
        f"column {name!r} is assigned by the broker and cannot be written: drop it, rename it, name"
        f" it {ATTRIBUTE_PREFIX}{name} if it is an attribute, or leave out all such columns with"
        " the option ignoreEnvelope=true"
    )


def _part(name: str, place: int, data_type: DataType, limits: Limits) -> Part:
    if name in _WRITTEN:
        role, wanted, words = _WRITTEN[name]
        if not isinstance(data_type, wanted):
            raise LocalError(
                f"column {name!r} is an envelope field of type {words}, not"
                f" {data_type.simpleString()}: cast it, or name it {ATTRIBUTE_PREFIX}{name} if it"
                " is an attribute"
            )
        return Part(name, place, role)
    if name == ATTRIBUTES and isinstance(data_type, MapType):
        return _map_part(name, place, data_type)
    if name == ATTRIBUTES and isinstance(data_type, VariantType):
        return Part(name, place, "attributes", is_variant=True)
    attribute = name.removeprefix(ATTRIBUTE_PREFIX)
    try:
        check_name(attribute, f"column {name!r}: its name", limits.name_bytes_max)
    except EventError as error:
        raise LocalError(str(error)) from error
    return Part(name, place, "attribute", attribute, _kind(f"column {name!r} is", data_type))


def _map_part(name: str, place: int, data_type: MapType) -> Part:
    if not isinstance(data_type.keyType, StringType):
        raise LocalError(
            f"column {name!r} is {data_type.simpleString()}; a map of attributes needs string keys"
        )
    kind = _kind(
        f"column {name!r} is {data_type.simpleString()}, with values that are", data_type.valueType
    )
    if kind == "timestamp":
        raise LocalError(
            f"column {name!r} is {data_type.simpleString()}; only a column of its own can be a"
            " timestamp: use transform_values(attributes, (k, v) -> unix_micros(v) * 1000)"
        )
    return Part(name, place, "attributes", kind=kind)


def _kind(words: str, data_type: DataType) -> ColumnKind:
    kind = column_kind_of(data_type)
    if kind is None:
        raise LocalError(
            f"{words} {data_type.simpleString()}; attributes are {_TYPES}: {cast_for(data_type)}"
        )
    return kind


def _check_names(parts: list[Part]) -> None:
    seen: dict[tuple[Role, str], str] = {}
    for part in parts:
        key = (part.role, part.attribute)
        if key in seen:
            raise LocalError(
                f"columns {seen[key]!r} and {part.column!r} become the same part of an event; drop"
                " one of them"
            )
        seen[key] = part.column


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
    report = np.zeros(variants.TOLD, np.int64)
    capacity = variants.count_fields(data, value_offsets, is_valid, len(column), report)
    if capacity < 0:
        raise RowError(_problem(report, before, dictionary))
    offsets = np.zeros(len(column) + 1, np.int32)
    spots, bits = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    kinds = np.empty(capacity, np.uint8)
    count = variants.list_fields(
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
    variants.copy_names(dictionary, spots, offsets, out)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), len(spots), buffers)


def _problem(report: Integers, before: int, dictionary: NDArray[np.uint8]) -> str:
    where = f"row {before + int(report[variants.ROW])}: column 'attributes'"
    if report[variants.PROBLEM] == variants.NO_OBJECT:
        return f"{where} is a variant but not an object"
    if report[variants.PROBLEM] == variants.BROKEN:
        return f"{where} is not a valid variant"
    first, length = int(report[variants.KEY_FIRST]), int(report[variants.KEY_LENGTH])
    key = dictionary[first : first + length].tobytes().decode(errors="replace")
    return (
        f"{where}, key {key!r} is not a text, integer, float or boolean; cast it (a decimal to"
        " double, a timestamp t to unix_micros(t) * 1000), or leave it out"
    )


#: Maximum size of a chunk; it has to fit into the frames of every broker.
CHUNK_EVENTS: Final = 256
CHUNK_BYTES: Final = 262_144
_SPARE_BYTES: Final = 65_536
#: Size of an event id in addition to its name; see `model.encoding`.
_ID_FRAMING_BYTES_MAX: Final = 24

_ARROW: Final[dict[ColumnKind, tuple[int, pa.DataType]]] = {
    "text": (at.TEXT, pa.string()),
    "integer": (at.INTEGER, pa.int64()),
    "float": (at.FLOAT, pa.float64()),
    "truth": (at.TRUTH, pa.bool_()),
    "timestamp": (at.INTEGER, pa.int64()),
}
_SLOTS: Final[dict[Role, int]] = {
    "timestamp": at.STAMP,
    "correlationId": at.CORRELATION,
    "contentType": at.CONTENT_TYPE,
    "payload": at.PAYLOAD,
    "attributes": at.ENTRIES,
}
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")
_MICROSECONDS_MAX: Final = INT_MAX // NS_PER_MICROSECOND
_OUTSIDE: Final = "is a time outside of 64-bit nanoseconds (1677 to 2262)"

_list_decoder = msgspec.msgpack.Decoder(list[bytes])


class Drafting:
    """Encodes rows as drafts. See the rules at the top of this module."""

    def __init__(
        self,
        parts: Sequence[Part],
        limits: Limits = DEFAULT_LIMITS,
        *,
        chunk_events: int = CHUNK_EVENTS,
        chunk_bytes: int = CHUNK_BYTES,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._parts = tuple(parts)
        self._limits = limits
        self._clock = clock
        self._attributes = [part for part in self._parts if part.role == "attribute"]
        names = [msgspec.msgpack.encode(part.attribute) for part in self._attributes]
        self._names = np.frombuffer(b"".join(names) or b"\0", np.uint8)
        starts = np.cumsum([0, *map(len, names)], dtype=np.int64)
        #: Column description without addresses, but with the names of attributes.
        self._table = np.zeros(((at.FIRST_ATTRIBUTE + len(names)), at.WIDTH), np.int64)
        described = self._table[at.FIRST_ATTRIBUTE :]
        described[:, at.NAME_FIRST] = starts[:-1]
        described[:, at.NAME_LENGTH] = np.diff(starts)
        described[:, at.NAME_SIZE] = [len(part.attribute.encode()) for part in self._attributes]
        self._heads, self._split = _heads()
        self._bounds = _bounds(limits, chunk_events, chunk_bytes)
        self._out = np.empty(chunk_bytes + _SPARE_BYTES, np.uint8)
        self._report = np.zeros(at.TOLD, np.int64)
        #: Referenced here while the kernel uses their addresses.
        self._listed: Listed | None = None

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[bytes]]:
        """The rows of all batches, in order, as drafts; no chunk is empty."""
        before = 0
        for batch in batches:
            yield from self._chunks(batch, before)
            before += batch.num_rows

    def _chunks(self, batch: pa.RecordBatch, before: int) -> Iterator[list[bytes]]:
        # Keep a reference to the arrays: the kernel has only their addresses.
        table, arrays = self._described(batch, before)
        row = 0
        while row < batch.num_rows:
            size = pack(
                table, self._names, self._heads, self._split, self._bounds,
                row, batch.num_rows, self._clock(), self._out, self._report,
            )  # fmt: skip
            row = int(self._report[at.NEXT])
            if self._report[at.PROBLEM] == at.FULL:
                self._out = np.empty(int(self._report[at.SIZE]) + _SPARE_BYTES, np.uint8)
            elif self._report[at.PROBLEM] != at.FINE:
                raise self._problem(before + row, arrays)
            else:
                yield _list_decoder.decode(self._out[:size].data)

    # -- columns --------------------------------------------------------------------------------

    def _described(
        self, batch: pa.RecordBatch, before: int
    ) -> tuple[NDArray[np.int64], dict[int, pa.Array]]:
        """Column description of a batch for the kernel, and the arrays that it refers to."""
        table = self._table.copy()
        arrays: dict[int, pa.Array] = {}
        slot = at.FIRST_ATTRIBUTE
        for part in self._parts:
            array = batch.column(part.place)
            if part.role == "attribute":
                kind, data_type = _ARROW[part.kind]
                if part.kind == "timestamp":
                    array = _nanoseconds(part.column, array, before)
                arrays[slot] = _describe(table, slot, kind, _as(array, data_type))
                slot += 1
            elif part.role == "attributes" and part.is_variant:
                self._listed = list_variants(array, before)
                arrays[at.KEYS] = _describe_listed(table, self._listed)
            elif part.role == "attributes":
                arrays |= _describe_map(table, array, part.kind)
            elif part.role == "timestamp":
                moments = _as(_as(array, _MICROSECONDS), pa.int64())
                arrays[at.STAMP] = _describe(table, at.STAMP, at.INTEGER, moments)
            else:
                data_type = pa.binary() if part.role == "payload" else pa.string()
                place = _SLOTS[part.role]
                arrays[place] = _describe(table, place, at.TEXT, _as(array, data_type))
        for place, array in arrays.items():
            if array.type == pa.string():
                self._check_text(place, array, before)
        return table.reshape(-1), arrays

    def _check_text(self, place: int, array: pa.Array, before: int) -> None:
        """Raise `RowError` for invalid UTF-8; a frame may hold any bytes in a text column."""
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            row = next((i for i, each in enumerate(array.cast(pa.binary())) if _is_bad(each)), 0)
            where = "" if place in {at.KEYS, at.VALUES} else f"row {before + row}: "
            raise RowError(
                f"{where}column {self._column(place)!r} is not valid UTF-8: {error}"
            ) from error

    def _column(self, place: int) -> str:
        if place >= at.FIRST_ATTRIBUTE:
            return self._attributes[place - at.FIRST_ATTRIBUTE].column
        slot = at.ENTRIES if place in {at.KEYS, at.VALUES} else place
        return next(p.column for p in self._parts if _SLOTS.get(p.role) == slot)

    def _problem(self, row: int, arrays: dict[int, pa.Array]) -> RowError:
        """The error that the kernel reports, as an exception."""
        limits, report = self._limits, self._report
        problem, place, size = (int(report[each]) for each in (at.PROBLEM, at.COLUMN, at.SIZE))
        if problem == at.MANY:
            return RowError(f"row {row}: more than {limits.attributes_max} attributes")
        if problem == at.LARGE:
            most = self._bounds[at.EVENT_BYTES]
            return RowError(f"row {row}: the encoded event has {size} bytes; the limit is {most}")
        what = f"row {row}: column {self._column(place)!r}"
        if place in {at.KEYS, at.VALUES}:
            what += f", key {arrays[at.KEYS][int(report[at.ENTRY])].as_py()!r}"
        texts = {
            at.LONG_VALUE: f"has {size} bytes; the limit is {limits.value_bytes_max}, put large"
            " content into the payload",
            at.LONG_PAYLOAD: f"has {size} bytes; the limit is {limits.payload_bytes_max}",
            at.BAD_NAME: f"is not a valid name: it has {size} bytes (allowed: 1 to"
            f" {limits.name_bytes_max}), or a control character",
            at.TWICE: "is a duplicate attribute in this row",
            at.BAD_STAMP: _OUTSIDE,
        }
        return RowError(f"{what} {texts[problem]}")


def _heads() -> tuple[NDArray[np.uint8], int]:
    """The constant bytes of a draft before and after the timestamp, and where they are split."""
    control = msgspec.msgpack.encode(DEFAULT_CONTROL)
    # Without correlation id and destinations, which are empty.
    control = control[:-2]
    draft = encode_draft(Event({}), 1)
    split = draft.index(b"\x01" + control)
    return np.frombuffer(draft[:split] + control, np.uint8), split


def _bounds(limits: Limits, chunk_events: int, chunk_bytes: int) -> NDArray[np.int64]:
    bounds = np.zeros(at.BOUNDS, np.int64)
    bounds[at.CHUNK_EVENTS] = chunk_events
    bounds[at.CHUNK_BYTES] = chunk_bytes
    bounds[at.EVENT_BYTES] = limits.event_bytes_max - limits.name_bytes_max - _ID_FRAMING_BYTES_MAX
    bounds[at.PAYLOAD_BYTES] = limits.payload_bytes_max
    bounds[at.VALUE_BYTES] = limits.value_bytes_max
    bounds[at.NAME_BYTES] = limits.name_bytes_max
    bounds[at.ATTRIBUTES] = limits.attributes_max
    return bounds


def _as(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    return array if array.type == data_type else array.cast(data_type)


def _nanoseconds(column: str, array: pa.Array, before: int) -> pa.Array:
    """A column of timestamps as integers; `before` is the number of rows that precede it."""
    moments = _as(_as(array, _MICROSECONDS), pa.int64())
    found: Integers = moments.fill_null(0).to_numpy(zero_copy_only=False)
    outside = np.flatnonzero((found > _MICROSECONDS_MAX) | (found < -_MICROSECONDS_MAX))
    if len(outside):
        raise RowError(f"row {before + int(outside[0])}: column {column!r} {_OUTSIDE}")
    return pc.multiply(moments, NS_PER_MICROSECOND)


def _describe(table: NDArray[np.int64], place: int, kind: int, array: pa.Array) -> pa.Array:
    """Write the addresses of an array into the column description."""
    buffers = array.buffers()
    table[place, at.KIND] = kind
    table[place, at.SHIFT] = array.offset
    table[place, at.VALIDITY] = _address(buffers[0]) if array.null_count else 0
    if kind in {at.TEXT, at.MAP}:
        table[place, at.OFFSETS] = _address(buffers[1])
    if kind != at.MAP:
        table[place, at.DATA] = _address(buffers[2 if kind == at.TEXT else 1])
    return array


def _describe_map(
    table: NDArray[np.int64], array: pa.Array, kind: ColumnKind
) -> dict[int, pa.Array]:
    number, data_type = _ARROW[kind]
    return {
        at.ENTRIES: _describe(table, at.ENTRIES, at.MAP, array),
        at.KEYS: _describe(table, at.KEYS, at.TEXT, _as(array.keys, pa.string())),
        at.VALUES: _describe(table, at.VALUES, number, _as(array.items, data_type)),
    }


def _describe_listed(table: NDArray[np.int64], found: Listed) -> pa.Array:
    """Describe decoded variants. Returns the array of their names."""
    table[at.ENTRIES, at.KIND] = at.MAP
    table[at.ENTRIES, at.OFFSETS] = found.offsets.ctypes.data
    table[at.VALUES, at.KIND] = at.MIXED
    table[at.VALUES, at.OFFSETS] = found.kinds.ctypes.data
    table[at.VALUES, at.DATA] = found.bits.ctypes.data
    table[at.VALUES, at.TEXTS] = _address(found.texts)
    return _describe(table, at.KEYS, at.TEXT, found.keys)


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)


def _is_bad(value: pa.Scalar) -> bool:
    try:
        (value.as_py() or b"").decode()
    except UnicodeDecodeError:
        return True
    return False
