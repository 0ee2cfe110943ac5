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

State: rows that wait. Safe to lose like unsynced puts: what they say about silence is found again.
"""

from collections.abc import Iterable

import msgspec

from anabranch.core.contract import Put
from anabranch.model.event import Count
from anabranch.model.frame_parts import Position
from anabranch.model.replication import Row

LOCAL_TABLES = frozenset(
    {"broker", "heard", "rollback", "set_aside", "copies", "copy_rows", "marks", "stream"}
)
_DONE = "done"
_POSITIONS = frozenset({"cursors", "moves", "patterns"})
#: Bytes of rows in one record, unless a single one is larger.
RECORD_BYTES_MAX = 256 << 10

_done_decoder = msgspec.msgpack.Decoder(tuple[Position, Count])


def is_replicated(table: str) -> bool:
    return table not in LOCAL_TABLES


class WaitingRows:
    """Rows of this broker that are not in its stream yet."""

    __slots__ = ("_done", "_rows", "is_due")

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], bytes | None] = {}
        #: Edge → its lowest done position that was carried.
        self._done: dict[str, int] = {}
        #: Whether something happened that matters (rule 3).
        self.is_due = False

    def note_activity(self) -> None:
        self.is_due = True

    def add(self, put: Put) -> None:
        if put.table in LOCAL_TABLES or (put.table == _DONE and not self._is_hold(put)):
            return
        place = (put.table, put.key)
        # The newest value counts, at the place of the newest put.
        self._rows.pop(place, None)
        self._rows[place] = put.value
        self.is_due |= put.table not in _POSITIONS

    def _is_hold(self, put: Put) -> bool:
        if put.value is None:
            return self._done.pop(put.key, None) is not None
        tick = _done_decoder.decode(put.value)[0]
        known = self._done.get(put.key)
        self._done[put.key] = tick
        return known is None or tick < known

    def take(self) -> Iterable[list[Row]]:
        """The rows to carry now, one list for each record."""
        if not self.is_due or not self._rows:
            return []
        self.is_due = False
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
