"""Conversion of archive columns back to event rows, as a broker would return them for a fetch.

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

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anabranch.matching.sieve import Sieve
from anabranch.model.filter import Filter
from anabranch.spark.archive.columns import ARROW, OWN, ColumnName
from anabranch.spark.column_types import Kind
from anabranch.spark.kernels import pack as described
from anabranch.spark.kernels import restore as at

Words = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_NS = 1_000
#: Slot of the kernel → column that is copied unchanged.
_NUMBERS = {
    at.TICK: "tick",
    at.INCARNATION: "incarnation",
    at.SEQUENCE: "seq",
    at.TIME_LIMIT: "timeLimitNanos",
    at.HOP_LIMIT: "hopLimit",
    at.LEVEL_LIMIT: "levelLimit",
    at.PRIORITY: "priority",
}
_TEXTS = {
    at.PUBLISHER: "publisher",
    at.STREAM: "eventStream",
    at.CORRELATION: "correlationId",
    at.CONTENT_TYPE: "contentType",
    at.PAYLOAD: "payload",
}
_KINDS: dict[Kind, int] = {
    "text": described.TEXT,
    "integer": described.INTEGER,
    "float": described.FLOAT,
    "truth": described.TRUTH,
}
_map_decoder = msgspec.msgpack.Decoder(dict[str, str | int | float | bool])


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
        self._table = np.zeros((at.FIRST_ATTRIBUTE + len(names), described.WIDTH), np.int64)
        self._table[at.FIRST_ATTRIBUTE :, described.NAME_FIRST] = starts[:-1]
        self._table[at.FIRST_ATTRIBUTE :, described.NAME_LENGTH] = np.diff(starts)

    def rows(self, batch: pa.RecordBatch) -> tuple[bytes, int]:
        """The wanted rows of a batch, and their number."""
        count = batch.num_rows
        # Keep a reference to the arrays: the kernel has only their addresses.
        table, arrays = self._described(batch)
        sizes = np.empty((2, count), np.int64)
        at.measure(table, count, sizes[0], sizes[1])
        maps = np.empty(int(sizes[0].sum()) + at.SLACK_BYTES, np.uint8)
        stops = np.empty(count, np.int64)
        used = at.restore_attributes(table, self._names, count, maps, stops)
        wanted = self._wanted(batch, maps[:used], stops)
        out = np.empty(int(sizes[:, wanted].sum()) + at.SLACK_BYTES, np.uint8)
        size = at.restore_rows(table, wanted, maps, stops, out)
        del arrays
        return out[:size].tobytes(), len(wanted)

    def _wanted(self, batch: pa.RecordBatch, maps: Bytes, stops: Words) -> Words:
        """Indexes of the wanted rows."""
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
                table, at.TIME, described.INTEGER, _nanoseconds(batch, "loggedAt", "loggedNanos")
            ),
            _describe(
                table,
                at.STAMP,
                described.INTEGER,
                _nanoseconds(batch, "timestamp", "timestampNanos"),
            ),
            _describe(table, at.DESTINATIONS, described.TEXT, _destinations(batch)),
        ]
        for place, column in enumerate(self._columns, at.FIRST_ATTRIBUTE):
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


def _destinations(batch: pa.RecordBatch) -> pa.Array:
    """Lists of names, encoded."""
    lists = batch.column("destinations")
    if lists.null_count == len(lists):
        return pa.nulls(len(lists), pa.binary())
    encoded = [msgspec.msgpack.encode(each) if each else None for each in lists.to_pylist()]
    return pa.array(encoded, pa.binary())
