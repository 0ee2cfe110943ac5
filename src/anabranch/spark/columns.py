"""Conversion of encoded events to Arrow columns.

    columns = Columns(wanted)
    batch = columns.batch(data, count, stream)

`column_types` defines the columns and their nulls. Kernels parse the rows. Rows in an encoding that
the kernels do not handle are decoded one by one, and raise an error if they are invalid.

State: work tables that each batch overwrites; use from one thread only.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.model.encoding import decode_event, rows_in
from anabranch.model.errors import RemoteError
from anabranch.model.event import Event
from anabranch.model.limits import STORED_LIMITS
from anabranch.spark import arrow_arrays, attribute_maps
from anabranch.spark.arrow_arrays import Bytes
from anabranch.spark.column_types import ATTRIBUTE_PREFIX, ENVELOPE, Kind, Wanted, as_kind
from anabranch.spark.kernels import unpack as at

__all__ = ["ATTRIBUTE_PREFIX", "ENVELOPE", "Columns", "Kind", "Wanted", "as_kind"]

_SPOTS = {
    "publisher": at.PUBLISHER,
    "contentType": at.CONTENT_TYPE,
    "correlationId": at.CORRELATION,
    "payload": at.PAYLOAD,
}
_NUMBERS = {"tick": at.TICK, "incarnation": at.INCARNATION, "seq": at.SEQUENCE}
_TIMES = {"timestamp": at.STAMP, "loggedAt": at.TIME}

Integers = NDArray[np.int64]


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
        self._starts: Integers = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        heads = [int.from_bytes(each[:8], "little") for each in encoded]
        self._heads: Integers = np.array(heads, np.uint64).view(np.int64)
        self._rows = 0
        self._fields: Integers = np.empty(0, np.int64)
        self._kinds: Bytes = np.empty(0, np.uint8)
        self._bits: Integers = np.empty(0, np.int64)

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
            self._fields = np.empty(count * at.FIELDS, np.int64)
            self._kinds = np.empty(count * width, np.uint8)
            self._bits = np.empty(count * width, np.int64)
        return bool(
            at.unpack(
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
            return attribute_maps.as_map(data, self._fields, count)
        if wanted.kind == "variant":
            return attribute_maps.as_variant(data, self._fields, count)
        if wanted.single is not None:
            place = self._places[wanted.attribute]
            table = (self._kinds, self._bits, len(self._places), place)
            return arrow_arrays.values(wanted.single, data, count, table, at.floats)
        if name == "stream":
            return pa.repeat(pa.scalar(stream, pa.string()), count)
        if name in _SPOTS:
            spots = (self._fields, at.FIELDS, _SPOTS[name])
            return arrow_arrays.texts(wanted.arrow_type, data, count, spots)
        out = np.empty(count, np.int64)
        if name in _TIMES:
            at.microseconds(self._fields, at.FIELDS, _TIMES[name], at.TIME, out)
        else:
            at.pick(self._fields, at.FIELDS, _NUMBERS[name], out)
        return arrow_arrays.array_of(wanted.arrow_type, count, None, out)

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
        return attribute_maps.map_of(event.attributes)
    if wanted.kind == "variant":
        return attribute_maps.variant_of(event.attributes)
    if wanted.single is not None:
        return as_kind(wanted.single, event.attributes.get(wanted.attribute))
    if wanted.name == "stream":
        return stream
    return _PARTS[wanted.name](tick, time_ns, event)
