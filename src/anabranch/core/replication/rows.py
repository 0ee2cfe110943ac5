"""Rows: what a broker puts into its catalog goes into its stream too, for its copies.

The puts of a step of the broker become one record of its stream (`RowsRecord`), a silent tick. A
broker that lost its disk fetches the records and the rows, and continues where it was.

Rules

1. Not carried: rows about this disk or this process (`LOCAL_TABLES`), and rows that the records of
   the stream imply: its marks, checkpoints and beginning. The writer tells the beginning itself.
2. Of the done positions of edges only those are carried that a hold lowered. A value that is too
   low only delays deletion.
3. Rows of positions (`_POSITIONS`) wait until something else happens that matters: a frame of a
   client, an event, a message about subscriptions. Silence moves positions too; if that made a
   tick, the tick would be silence for others, and two idle brokers would keep each other busy for
   ever. All other rows are carried at once.

4. A copy that does not begin with the first record of a stream that had copies from the beginning
   gets the rows in the catalog before it gets records: those of deleted records are nowhere else.
   Records that are older than these rows may set some of them back; later records in turn correct
   that, and the copy does not count before it has them.

5. A crash may keep rows and lose the record that carries them, or the other way round. The table
   `carried` tells: its row is put after the rows, with the tick of their record. A start puts the
   rows of all later records; if that record is lost, it carries the whole catalog again.

State: the row in `carried`; rows that wait, which are safe to lose like unsynced puts.
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from anabranch.core.catalog_recovery import decoded, number_in, set_aside
from anabranch.core.contract import SEPARATOR, Put, Recovered
from anabranch.core.origin.log_tail import RowsRecord, decode_record
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.event import Count
from anabranch.model.frame_parts import TICK_MAX, Position
from anabranch.model.replication import Row

#: Table with the row `tick`: the newest record that carries rows, put after these.
CARRIED = "carried"
CARRIED_KEY = "tick"
LOCAL_TABLES = frozenset(
    {"broker", "heard", "rollback", "set_aside", "copies", "copy_rows", "marks", "stream", CARRIED}
)
_DONE = "done"
_POSITIONS = frozenset({"cursors", "moves", "patterns"})
#: The tag of a `RowsRecord`, the second byte of its encoding.
_ROWS_TAG = 5
#: Bytes of rows in one record, unless a single one is larger.
RECORD_BYTES_MAX = 256 << 10

_done_decoder = msgspec.msgpack.Decoder(tuple[Position, Count])


#: All other tables, in the order in which a new copy gets them.
REPLICATED_TABLES = (
    "done",
    "edge",
    "forgotten",
    "publishers",
    "sinks",
    "stage",
    "subscriptions",
    "cursors",
    "moves",
    "patterns",
    "patterns_gone",
)


def is_replicated(table: str) -> bool:
    return table not in LOCAL_TABLES


def rows_in(record: bytes) -> list[Row]:
    """The catalog rows that a record carries; `RemoteError` if it cannot be read."""
    if len(record) < 2 or record[1] != _ROWS_TAG:
        return []
    try:
        decoded = decode_record(record)
    except LocalError as error:
        raise RemoteError(f"a record with catalog rows is invalid: {error}") from error
    rows = decoded.rows if isinstance(decoded, RowsRecord) else []
    check_rows(rows)
    return rows


def check_rows(rows: Iterable[Row]) -> None:
    """`RemoteError` if no stream can carry these."""
    for table, _, _ in rows:
        if not is_replicated(table) or SEPARATOR in table:
            raise RemoteError(f"rows of table {table!r} are in no stream")


def carried_tick(recovered: Recovered) -> int:
    """The newest record that carries rows, according to the catalog; 0 if that cannot be read."""
    good, bad = decoded(recovered, CARRIED, lambda _key, value: number_in(value, TICK_MAX))
    for damaged in bad:
        set_aside(recovered, damaged)
    return good.get(CARRIED_KEY, 0)


def carried_put(tick: int) -> Put:
    return Put(CARRIED, CARRIED_KEY, b"%d" % tick)


def with_rows_of(recovered: Recovered) -> Recovered:
    """The state with the rows of records that the catalog does not have yet (rule 5)."""
    carried = carried_tick(recovered)
    first = recovered.records_first or recovered.first_tick
    catalog = {table: dict(rows) for table, rows in recovered.catalog.items()}
    newest = 0
    for tick, record in enumerate(recovered.records, first):
        rows = rows_in(record) if tick > carried else []
        for table, key, value in rows:
            newest = tick
            recovered.repairs.append(Put(table, key, value))
            if value is None:
                catalog.get(table, {}).pop(key, None)
            else:
                catalog.setdefault(table, {})[key] = value
    if newest:
        recovered.repairs.append(carried_put(newest))
    return replace(recovered, catalog=catalog)


def all_rows(recovered: Recovered) -> list[Put]:
    """The whole catalog, if the record of its newest rows is lost (rule 5)."""
    if carried_tick(recovered) <= recovered.last_tick:
        return []
    return [
        Put(table, key, value)
        for table in REPLICATED_TABLES
        for key, value in recovered.catalog.get(table, {}).items()
    ]


class WaitingRows:
    """Rows of this broker that are not in its stream yet."""

    __slots__ = ("_done", "_is_active", "_is_due", "_rows")

    def __init__(self, puts: Iterable[Put] = ()) -> None:
        """`puts` are rows that are in the catalog and not in the stream."""
        self._rows: dict[tuple[str, str], bytes | None] = {
            (put.table, put.key): put.value for put in puts
        }
        #: Edge → its lowest done position that was carried.
        self._done: dict[str, int] = {}
        #: Whether something happened that matters to positions (rule 3), since any were carried.
        self._is_active = False
        #: Whether rows that do not wait are among them.
        self._is_due = bool(self._rows)

    def note_activity(self) -> None:
        self._is_active = True

    def add(self, put: Put) -> None:
        if put.table in LOCAL_TABLES or (put.table == _DONE and not self._is_hold(put)):
            return
        place = (put.table, put.key)
        # The newest value counts, at the place of the newest put.
        self._rows.pop(place, None)
        self._rows[place] = put.value
        self._is_due |= put.table not in _POSITIONS

    def _is_hold(self, put: Put) -> bool:
        if put.value is None:
            return self._done.pop(put.key, None) is not None
        tick = _done_decoder.decode(put.value)[0]
        known = self._done.get(put.key)
        self._done[put.key] = tick
        return known is None or tick < known

    def take(self) -> Iterable[list[Row]]:
        """The rows to carry now, one list for each record."""
        if not self._rows or not (self._is_due or self._is_active):
            return []
        self._is_due = False
        if any(table in _POSITIONS for table, _ in self._rows):
            self._is_active = False
        rows, self._rows = self._rows, {}
        found: list[list[Row]] = [[]]
        size = 0
        for (table, key), value in rows.items():
            bytes_ = len(key) + len(value or b"") + 16
            if found[-1] and size + bytes_ > RECORD_BYTES_MAX:
                found.append([])
                size = 0
            found[-1].append((table, key, value))
            size += bytes_
        return found
