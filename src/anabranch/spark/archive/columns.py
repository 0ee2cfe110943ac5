"""Events as columns of an archive, and back.

An attribute has one column per kind of value that has ever occurred. The first kind gets the name
of the attribute, so that `price` is a column of floats, as users expect; a price that is once a
text goes to `price__text`. Rules:

1. Names are assigned once, when a kind of an attribute is committed for the first time, and never
   change. A commit lists the new ones; files carry the mapping in the metadata of their fields.
2. No two columns differ only in case: Spark and SQL would treat them as one. The name is that of
   the attribute if it is free, else NAME__KIND, else NAME__KIND__2, 3 ….
3. The names of envelope fields and of partition columns are reserved. An attribute with such a name
   is `attributes.NAME`, as in the data source.
4. Of several kinds that are new at once, the one with the most values comes first.

Rows to columns:

    tabling = Tabling()
    batch = tabling.batch(data, count)

A batch has the archive's fixed columns (`OWN`) and one column per attribute and kind that occurs in
it, temporarily named KIND:ATTRIBUTE; final names are assigned when a file is written. The
conversion is lossless: `Restoring` recreates the same events, except for the order of attributes,
which has no meaning. Rules:

1. Kernels parse the rows, with the names of the previous batch. A row with an unknown name is
   decoded, its names are added, and the rows are parsed again. After a few such rounds, the names
   of all rows are collected at once.
2. Rows that the kernels cannot parse, because of unusual encodings, are decoded one by one.
3. At most `columns_max` columns: attribute names that are data, such as one per customer, cannot be
   columns and raise an error.

State: the names of the last batch; use from one thread only.

Columns back to rows, as a broker would return them for a fetch:

    restoring = Restoring(columns_in(table.schema))
    data, count = restoring.rows(batch)

Readers of broker rows can therefore read an archive with the same kernels and the same decoder.
Rules:

1. An event is restored unchanged: the same header, payload, and attributes of the same kinds. The
   order of attributes is that of the columns.
2. With a filter, only matching rows are returned. The sieve decides, as in a broker; the filter
   itself evaluates rows that the sieve leaves undecided.
3. An event whose time limit has expired at `now_ns` is left out, as in a fetch from a broker.

State: the compiled filter; use from one thread only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.matching.kernels.message_pack import FLOAT, INTEGER, TEXT, TRUTH
from anabranch.matching.sieve import Sieve
from anabranch.model.encoding import decode_event, rows_in
from anabranch.model.errors import LocalError
from anabranch.model.event import Event, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import STORED_LIMITS
from anabranch.spark.column_types import (
    ATTRIBUTE_PREFIX,
    ATTRIBUTES,
    ENVELOPE,
    ColumnKind,
    Kind,
)
from anabranch.spark.columns import Bytes, Words, array_of, texts, values
from anabranch.spark.kernels import pack as described
from anabranch.spark.kernels import restore, unpack

#: An attribute, and one of its kinds.
Pair = tuple[str, Kind]

KINDS: Final[tuple[Kind, ...]] = ("text", "integer", "float", "truth")
ARROW: Final[dict[Kind, pa.DataType]] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "truth": pa.bool_(),
}
_TIME = pa.timestamp("us", tz="UTC")
#: Fixed columns of every file, before the attributes. Times are in microseconds, for compatibility,
#: with the remaining nanoseconds in a separate column.
OWN: Final[dict[str, pa.DataType]] = {
    "tick": pa.int64(),
    "loggedAt": _TIME,
    "loggedNanos": pa.int32(),
    "publisher": pa.string(),
    "incarnation": pa.int64(),
    "seq": pa.int64(),
    "timestamp": _TIME,
    "timestampNanos": pa.int32(),
    "contentType": pa.string(),
    "correlationId": pa.string(),
    "payload": pa.binary(),
    "eventStream": pa.string(),
    "priority": pa.int32(),
    "timeLimitNanos": pa.int64(),
    "hopLimit": pa.int64(),
    "levelLimit": pa.int64(),
    "destinations": pa.list_(pa.string()),
}
#: Columns that are encoded in directory names.
PARTITIONS: Final = ("date", "stream")
_ATTRIBUTE, _KIND = b"attribute", b"kind"


class ColumnName(msgspec.Struct, frozen=True):
    """The column of an attribute and kind."""

    name: str
    attribute: str
    kind: Kind

    @property
    def pair(self) -> Pair:
        return self.attribute, self.kind


class Naming:
    """The columns of one archive. See the rules at the top of this module."""

    def __init__(self, known: Iterable[ColumnName] = ()) -> None:
        self._names: dict[Pair, str] = {}
        self._taken = {_folded(name) for name in (*OWN, *ENVELOPE, *PARTITIONS, ATTRIBUTES)}
        for each in known:
            self._names[each.pair] = each.name
            self._taken.add(_folded(each.name))

    def __getitem__(self, pair: Pair) -> str:
        return self._names[pair]

    def __contains__(self, pair: Pair) -> bool:
        return pair in self._names

    @property
    def columns(self) -> list[ColumnName]:
        """All columns, in the order of their creation."""
        return [ColumnName(name, *pair) for pair, name in self._names.items()]

    def kinds(self) -> dict[str, dict[ColumnKind, str]]:
        """Attribute → kind → column."""
        found: dict[str, dict[ColumnKind, str]] = {}
        for (attribute, kind), name in self._names.items():
            found.setdefault(attribute, {})[kind] = name
        return found

    def add(self, counts: Mapping[Pair, int]) -> list[ColumnName]:
        """Assign names to new pairs; `counts` is the number of values of each."""
        new = [pair for pair in counts if pair not in self._names]
        new.sort(key=lambda pair: (pair[0], -counts[pair], KINDS.index(pair[1])))
        return [ColumnName(self._assign(pair), *pair) for pair in new]

    def _assign(self, pair: Pair) -> str:
        attribute, kind = pair
        own = ATTRIBUTE_PREFIX + attribute if self._is_reserved(attribute) else attribute
        name, number = own, 1
        while _folded(name) in self._taken:
            name = f"{own}__{kind}" if number == 1 else f"{own}__{kind}__{number}"
            number += 1
        self._names[pair] = name
        self._taken.add(_folded(name))
        return name

    @staticmethod
    def _is_reserved(attribute: str) -> bool:
        return attribute in (*OWN, *ENVELOPE, *PARTITIONS, ATTRIBUTES)


def _folded(name: str) -> str:
    return name.lower().casefold()


def attribute_field(name: str, pair: Pair) -> pa.Field:
    """The field of a column, with the mapping as metadata."""
    attribute, kind = pair
    metadata = {_ATTRIBUTE: attribute.encode(), _KIND: kind.encode()}
    return pa.field(name, ARROW[kind], metadata=metadata)


def columns_in(schema: pa.Schema) -> list[ColumnName]:
    """The attribute columns of a file, from the metadata of their fields."""
    return [
        ColumnName(
            field.name,
            field.metadata[_ATTRIBUTE].decode(),
            msgspec.convert(field.metadata[_KIND].decode(), Kind),
        )
        for field in schema
        if field.metadata and _ATTRIBUTE in field.metadata
    ]


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
    return f"{pair[1]}:{pair[0]}"


def pair_of(name: str) -> Pair:
    kind, _, attribute = name.partition(":")
    return attribute, msgspec.convert(kind, Kind)


def too_many(columns_max: int, names: Sequence[str]) -> LocalError:
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
            row = unpack.find_kinds(
                found.data, found.fields, count, found.kinds, width, found.masks
            )
            if row == count:
                break
            rounds += 1
            self._learn(found, range(row, count if rounds > _ROUNDS_MAX else row + 1))
        if not unpack.read_controls(found.data, found.fields, count, found.controls):
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
            np.empty(count * unpack.FIELDS, np.int64),
            np.empty(count * unpack.CONTROLS, np.int64),
            np.empty(count * width, np.uint8),
            np.empty(count * width, np.int64),
            np.zeros(width, np.int64),
        )
        is_plain = unpack.unpack(
            data, count, names, starts, heads, found.fields, found.kinds, found.bits
        )
        return found if is_plain else None

    def _learn(self, found: _Unpacked, rows: Iterable[int]) -> None:
        learned: dict[str, None] = {}
        for row in rows:
            place = int(found.fields[row * unpack.FIELDS + unpack.ATTRIBUTES])
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
                    arrays[draft_name((name, kind))] = values(
                        kind, found.data, found.count, table, unpack.only_floats
                    )
        return arrays


def _own_arrays(found: _Unpacked) -> dict[str, pa.Array]:
    def field(column: int) -> Words:
        return found.fields[column :: unpack.FIELDS]

    def control(column: int) -> Words:
        return found.controls[column :: unpack.CONTROLS]

    logged, stamps = field(unpack.TIME), field(unpack.STAMP)
    moments = np.where(stamps == 0, logged, stamps)
    spots = {
        "publisher": (found.fields, unpack.FIELDS, unpack.PUBLISHER),
        "contentType": (found.fields, unpack.FIELDS, unpack.CONTENT_TYPE),
        "correlationId": (found.fields, unpack.FIELDS, unpack.CORRELATION),
        "payload": (found.fields, unpack.FIELDS, unpack.PAYLOAD),
        "eventStream": (found.controls, unpack.CONTROLS, unpack.EVENT_STREAM),
    }
    arrays = {
        name: texts(OWN[name], found.data, found.count, place) for name, place in spots.items()
    }
    arrays |= {
        "tick": _plain("tick", field(unpack.TICK)),
        "loggedAt": _plain("loggedAt", logged // _NS),
        "loggedNanos": _plain("loggedNanos", (logged % _NS).astype(np.int32)),
        "incarnation": _plain("incarnation", field(unpack.INCARNATION)),
        "seq": _plain("seq", field(unpack.SEQUENCE)),
        "timestamp": _plain("timestamp", moments // _NS),
        "timestampNanos": pa.array((stamps % _NS).astype(np.int32), mask=stamps == 0),
        "priority": _plain("priority", control(unpack.PRIORITY).astype(np.int32)),
        "timeLimitNanos": _limits(control(unpack.TIME_LIMIT)),
        "hopLimit": _limits(control(unpack.HOP_LIMIT)),
        "levelLimit": _limits(control(unpack.LEVEL_LIMIT)),
        "destinations": _destinations(found, control(unpack.DESTINATIONS)),
    }
    return {name: arrays[name] for name in OWN}


def _plain(name: str, values: NDArray[np.generic]) -> pa.Array:
    return array_of(OWN[name], len(values), None, np.ascontiguousarray(values))


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


#: Slot of the kernel → column that is copied unchanged.
_NUMBERS = {
    restore.TICK: "tick",
    restore.INCARNATION: "incarnation",
    restore.SEQUENCE: "seq",
    restore.TIME_LIMIT: "timeLimitNanos",
    restore.HOP_LIMIT: "hopLimit",
    restore.LEVEL_LIMIT: "levelLimit",
    restore.PRIORITY: "priority",
}
_TEXTS = {
    restore.PUBLISHER: "publisher",
    restore.STREAM: "eventStream",
    restore.CORRELATION: "correlationId",
    restore.CONTENT_TYPE: "contentType",
    restore.PAYLOAD: "payload",
}
_KINDS: dict[Kind, int] = {
    "text": described.TEXT,
    "integer": described.INTEGER,
    "float": described.FLOAT,
    "truth": described.TRUTH,
}


class Restoring:
    """Encodes batches with these columns as rows. See the rules at the top of this module."""

    def __init__(
        self, columns: Sequence[ColumnName], filter: Filter | None = None, now_ns: int | None = None
    ) -> None:
        self._columns = tuple(columns)
        self._sieve = None
        if filter is not None and filter != Filter.everything():
            self._sieve = Sieve(filter)
        self._now_ns = now_ns
        names = [msgspec.msgpack.encode(each.attribute) for each in columns]
        self._names = np.frombuffer(b"".join(names) or b"\0", np.uint8)
        starts = np.cumsum([0, *map(len, names)], dtype=np.int64)
        self._table = np.zeros((restore.FIRST_ATTRIBUTE + len(names), described.WIDTH), np.int64)
        self._table[restore.FIRST_ATTRIBUTE :, described.NAME_FIRST] = starts[:-1]
        self._table[restore.FIRST_ATTRIBUTE :, described.NAME_LENGTH] = np.diff(starts)

    def rows(self, batch: pa.RecordBatch) -> tuple[bytes, int]:
        count = batch.num_rows
        # Keep a reference to the arrays: the kernel has only their addresses.
        table, arrays = self._described(batch)
        sizes = np.empty((2, count), np.int64)
        restore.measure(table, count, sizes[0], sizes[1])
        maps = np.empty(int(sizes[0].sum()) + restore.SLACK_BYTES, np.uint8)
        stops = np.empty(count, np.int64)
        used = restore.restore_attributes(table, self._names, count, maps, stops)
        wanted = self._wanted(batch, maps[:used], stops)
        out = np.empty(int(sizes[:, wanted].sum()) + restore.SLACK_BYTES, np.uint8)
        size = restore.restore_rows(table, wanted, maps, stops, out)
        del arrays
        return out[:size].tobytes(), len(wanted)

    def _wanted(self, batch: pa.RecordBatch, maps: Bytes, stops: Words) -> Words:
        is_wanted = np.ones(len(stops), np.bool_)
        if self._now_ns is not None and batch.column("timeLimitNanos").null_count < len(stops):
            is_wanted = self._are_alive(batch, self._now_ns)
        if self._sieve is not None and len(stops):
            verdicts = self._sieve.sift(maps.copy(), stops)
            for row in np.flatnonzero(verdicts < 0).tolist():
                first = int(stops[row - 1]) if row else 0
                attributes = _map_decoder.decode(maps[first : int(stops[row])].data)
                verdicts[row] = self._sieve.filter.matches(attributes)
            is_wanted &= verdicts > 0
        return np.flatnonzero(is_wanted)

    @staticmethod
    def _are_alive(batch: pa.RecordBatch, now_ns: int) -> NDArray[np.bool_]:
        limits = batch.column("timeLimitNanos")
        age = now_ns - _nanoseconds(batch, "loggedAt", "loggedNanos").to_numpy(zero_copy_only=False)
        is_limited = limits.is_valid().to_numpy(zero_copy_only=False)
        at_most: Words = pc.fill_null(limits, 0).to_numpy(zero_copy_only=False)
        alive: NDArray[np.bool_] = ~is_limited | (age <= at_most)
        return alive

    def _described(self, batch: pa.RecordBatch) -> tuple[Words, list[pa.Array]]:
        table = self._table.copy()
        arrays = [
            *(
                _describe(table, slot, described.INTEGER, batch.column(name).cast(pa.int64()))
                for slot, name in _NUMBERS.items()
            ),
            *(
                _describe(table, slot, described.TEXT, batch.column(name).cast(OWN[name]))
                for slot, name in _TEXTS.items()
            ),
            _describe(
                table,
                restore.TIME,
                described.INTEGER,
                _nanoseconds(batch, "loggedAt", "loggedNanos"),
            ),
            _describe(
                table,
                restore.STAMP,
                described.INTEGER,
                _nanoseconds(batch, "timestamp", "timestampNanos"),
            ),
            _describe(table, restore.DESTINATIONS, described.TEXT, _encoded_destinations(batch)),
        ]
        for place, column in enumerate(self._columns, restore.FIRST_ATTRIBUTE):
            array = batch.column(column.name).cast(ARROW[column.kind])
            arrays.append(_describe(table, place, _KINDS[column.kind], array))
        return table.reshape(-1), arrays


def _describe(table: Words, place: int, kind: int, array: pa.Array) -> pa.Array:
    """Write the addresses of an array into the column description."""
    validity, first, *others = array.buffers()
    table[place, described.KIND] = kind
    table[place, described.SHIFT] = array.offset
    table[place, described.VALIDITY] = validity.address if array.null_count else 0
    if kind == described.TEXT:
        table[place, described.OFFSETS] = first.address
        first = others[0]
    table[place, described.DATA] = 0 if first is None else first.address
    return array


def _nanoseconds(batch: pa.RecordBatch, moments: str, rest: str) -> pa.Array:
    """Times with nanoseconds, from microseconds and the rest; null where the rest is null."""
    whole = batch.column(moments).cast(pa.int64())
    return pc.add(pc.multiply(whole, _NS), batch.column(rest).cast(pa.int64()))


def _encoded_destinations(batch: pa.RecordBatch) -> pa.Array:
    """Lists of names, encoded."""
    lists = batch.column("destinations")
    if lists.null_count == len(lists):
        return pa.nulls(len(lists), pa.binary())
    encoded = [msgspec.msgpack.encode(each) if each else None for each in lists.to_pylist()]
    return pa.array(encoded, pa.binary())
