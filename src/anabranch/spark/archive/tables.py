"""Conversion of event rows to Arrow tables in the columns of an archive.

    tabling = Tabling()
    batch = tabling.batch(data, count)

A batch has the archive's fixed columns (`columns.OWN`) and one column per attribute and kind that
occurs in it, temporarily named KIND:ATTRIBUTE; final names are assigned when a file is written. The
conversion is lossless: `restored_rows` recreates the same events, except for the order of
attributes, which has no meaning. Rules:

1. Kernels parse the rows, with the names of the previous batch. A row with an unknown name is
   decoded, its names are added, and the rows are parsed again. After a few such rounds, the names
   of all rows are collected at once.
2. Rows that the kernels cannot parse, because of unusual encodings, are decoded one by one.
3. At most `columns_max` columns: attribute names that are data, such as one per customer, cannot be
   columns and raise an error.

State: the names of the last batch; use from one thread only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.matching.kernels.message_pack import FLOAT, INTEGER, TEXT, TRUTH
from anabranch.model.encoding import decode_event, rows_in
from anabranch.model.errors import LocalError
from anabranch.model.event import Event, Value
from anabranch.model.limits import STORED_LIMITS
from anabranch.spark import arrow_arrays
from anabranch.spark.archive.columns import ARROW, KINDS, OWN, Pair
from anabranch.spark.arrow_arrays import Bytes, Words
from anabranch.spark.column_types import Kind
from anabranch.spark.kernels import unpack as at

COLUMNS_MAX: Final = 2_000
#: Rounds in which names are learned from one row, before all rows of a batch are decoded.
_ROUNDS_MAX: Final = 8
_NS: Final = 1_000

_Row = tuple[int, int, Event]
#: Kernels number kinds from 1 on.
_NUMBERED: Final[tuple[tuple[int, Kind], ...]] = tuple(
    zip((TEXT, INTEGER, FLOAT, TRUTH), KINDS, strict=True)
)
_map_decoder = msgspec.msgpack.Decoder(dict[str, str | int | float | bool])


def draft_name(pair: Pair) -> str:
    """The temporary name of a column."""
    return f"{pair[1]}:{pair[0]}"


def pair_of(name: str) -> Pair:
    """The attribute and kind of a temporary name."""
    kind, _, attribute = name.partition(":")
    return attribute, msgspec.convert(kind, Kind)


def too_many(columns_max: int, names: Sequence[str]) -> LocalError:
    """The error for an unbounded number of attribute names."""
    return LocalError(
        f"events have more than {columns_max} distinct attributes, such as"
        f" {', '.join(map(repr, names[-3:]))}: names that are data cannot be columns; publish them"
        " as values, or in the payload"
    )


class _Unpacked(msgspec.Struct):
    """The tables that the kernels have filled."""

    data: Bytes
    count: int
    fields: Words
    controls: Words
    kinds: Bytes
    bits: Words
    #: For each name, a bit mask of the kinds that occur.
    masks: Words


class Tabling:
    """Builds record batches. See the rules at the top of this module."""

    def __init__(self, columns_max: int = COLUMNS_MAX) -> None:
        self._columns_max = columns_max
        self._names: list[str] = []

    def batch(self, data: bytes, count: int) -> pa.RecordBatch:
        """The rows of one fetch response. Raises `RemoteError` if they are invalid."""
        unpacked = self._unpacked(data, count)
        if unpacked is None:
            rows = [
                (tick, time, decode_event(body, STORED_LIMITS))
                for tick, time, body in rows_in(data)
            ]
            return _one_by_one(rows)
        arrays = {**_own_arrays(unpacked), **self._attribute_arrays(unpacked)}
        return pa.RecordBatch.from_pydict(arrays)

    # -- discovering names ----------------------------------------------------------------------

    def _unpacked(self, data: bytes, count: int) -> _Unpacked | None:
        """The rows as parsed by the kernels, with all their names; None if they are odd."""
        rounds = 0
        while True:
            found = self._try_unpack(np.frombuffer(data, np.uint8), count)
            if found is None:
                return None
            width = len(self._names)
            row = at.find_kinds(found.data, found.fields, count, found.kinds, width, found.masks)
            if row == count:
                break
            rounds += 1
            self._learn(found, range(row, count if rounds > _ROUNDS_MAX else row + 1))
        if not at.read_controls(found.data, found.fields, count, found.controls):
            return None
        return found

    def _try_unpack(self, data: Bytes, count: int) -> _Unpacked | None:
        encoded = [name.encode() for name in self._names]
        names = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
        starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        heads = np.array(
            [int.from_bytes(each[:8].ljust(8, b"\0"), "little", signed=True) for each in encoded],
            np.int64,
        )
        width = len(encoded)
        found = _Unpacked(
            data,
            count,
            np.empty(count * at.FIELDS, np.int64),
            np.empty(count * at.CONTROLS, np.int64),
            np.empty(count * width, np.uint8),
            np.empty(count * width, np.int64),
            np.zeros(width, np.int64),
        )
        is_plain = at.unpack(
            data, count, names, starts, heads, found.fields, found.kinds, found.bits
        )
        return found if is_plain else None

    def _learn(self, found: _Unpacked, rows: Iterable[int]) -> None:
        """Add the names of some rows."""
        learned: dict[str, None] = {}
        for row in rows:
            place = int(found.fields[row * at.FIELDS + at.ATTRIBUTES])
            first, length = place >> 32, place & 0xFFFF_FFFF
            learned |= dict.fromkeys(_map_decoder.decode(found.data[first : first + length].data))
        known = dict.fromkeys(self._names) | learned
        if len(known) > self._columns_max:
            # Names of earlier batches may no longer occur; drop them, and learn needed ones again.
            masks = found.masks.tolist()
            seen = (name for name, mask in zip(self._names, masks, strict=True) if mask)
            known = dict.fromkeys(seen) | learned
        if len(known) > self._columns_max:
            raise too_many(self._columns_max, [*known])
        self._names = list(known)

    # -- arrays ---------------------------------------------------------------------------------

    def _attribute_arrays(self, found: _Unpacked) -> dict[str, pa.Array]:
        arrays = {}
        for place, name in enumerate(self._names):
            mask = int(found.masks[place])
            for number, kind in _NUMBERED:
                if mask >> number & 1:
                    table = (found.kinds, found.bits, len(self._names), place)
                    arrays[draft_name((name, kind))] = arrow_arrays.values(
                        kind, found.data, found.count, table, at.only_floats
                    )
        return arrays


def _own_arrays(found: _Unpacked) -> dict[str, pa.Array]:
    def field(column: int) -> Words:
        return found.fields[column :: at.FIELDS]

    def control(column: int) -> Words:
        return found.controls[column :: at.CONTROLS]

    logged, stamps = field(at.TIME), field(at.STAMP)
    moments = np.where(stamps == 0, logged, stamps)
    spots = {
        "publisher": (found.fields, at.FIELDS, at.PUBLISHER),
        "contentType": (found.fields, at.FIELDS, at.CONTENT_TYPE),
        "correlationId": (found.fields, at.FIELDS, at.CORRELATION),
        "payload": (found.fields, at.FIELDS, at.PAYLOAD),
        "eventStream": (found.controls, at.CONTROLS, at.EVENT_STREAM),
    }
    arrays = {
        name: arrow_arrays.texts(OWN[name], found.data, found.count, place)
        for name, place in spots.items()
    }
    arrays |= {
        "tick": _plain("tick", field(at.TICK)),
        "loggedAt": _plain("loggedAt", logged // _NS),
        "loggedNanos": _plain("loggedNanos", (logged % _NS).astype(np.int32)),
        "incarnation": _plain("incarnation", field(at.INCARNATION)),
        "seq": _plain("seq", field(at.SEQUENCE)),
        "timestamp": _plain("timestamp", moments // _NS),
        "timestampNanos": pa.array((stamps % _NS).astype(np.int32), mask=stamps == 0),
        "priority": _plain("priority", control(at.PRIORITY).astype(np.int32)),
        "timeLimitNanos": _limits(control(at.TIME_LIMIT)),
        "hopLimit": _limits(control(at.HOP_LIMIT)),
        "levelLimit": _limits(control(at.LEVEL_LIMIT)),
        "destinations": _destinations(found, control(at.DESTINATIONS)),
    }
    return {name: arrays[name] for name in OWN}


def _plain(name: str, values: NDArray[np.generic]) -> pa.Array:
    return arrow_arrays.array_of(OWN[name], len(values), None, np.ascontiguousarray(values))


def _limits(values: Words) -> pa.Array:
    return pa.array(np.ascontiguousarray(values), mask=values < 0)


def _destinations(found: _Unpacked, spots: Words) -> pa.Array:
    if not spots.any():
        return pa.nulls(found.count, OWN["destinations"])
    named = [
        msgspec.msgpack.decode(found.data[spot >> 32 :][: spot & 0xFFFF_FFFF].data)
        if spot
        else None
        for spot in spots.tolist()
    ]
    return pa.array(named, OWN["destinations"])


# -- fallback --------------------------------------------------------------------------------------


def _one_by_one(rows: Sequence[_Row]) -> pa.RecordBatch:
    columns: dict[str, list[object]] = {name: [] for name in OWN}
    for tick, time_ns, event in rows:
        for name, value in _own_values(tick, time_ns, event).items():
            columns[name].append(value)
    arrays = {name: pa.array(values, OWN[name]) for name, values in columns.items()}
    pairs = {
        (name, kind_of(value)): None
        for *_, event in rows
        for name, value in event.attributes.items()
    }
    for name, kind in pairs:
        values = [_of_kind(event.attributes.get(name), kind) for *_, event in rows]
        arrays[draft_name((name, kind))] = pa.array(values, ARROW[kind])
    return pa.RecordBatch.from_pydict(arrays)


def _own_values(tick: int, time_ns: int, event: Event) -> Mapping[str, object]:
    header, control = event.header, event.control
    assert header.id is not None
    return {
        "tick": tick,
        "loggedAt": time_ns // _NS,
        "loggedNanos": time_ns % _NS,
        "publisher": header.id.publisher,
        "incarnation": header.id.incarnation,
        "seq": header.id.sequence,
        "timestamp": (header.timestamp_ns or time_ns) // _NS,
        "timestampNanos": header.timestamp_ns % _NS if header.timestamp_ns else None,
        "contentType": header.content_type,
        "correlationId": control.correlation_id,
        "payload": event.payload,
        "eventStream": header.stream,
        "priority": control.priority,
        "timeLimitNanos": control.time_limit_ns,
        "hopLimit": control.hop_limit,
        "levelLimit": control.level_limit,
        "destinations": list(control.destinations) or None,
    }


def kind_of(value: Value) -> Kind:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int):
        return "integer"
    return "float" if isinstance(value, float) else "text"


def _of_kind(value: Value | None, kind: Kind) -> Value | None:
    return value if value is not None and kind_of(value) == kind else None
