"""Catalog recovery: a start sets unreadable records aside instead of failing.

The parts of a broker read their tables through `rows`. A record is *unreadable* if the disk
corrupted it, if it does not decode, or if its content is impossible (a pattern that does not parse,
a tick below 0).

Rules

1. An unreadable record never keeps a broker from starting. It moves to the table `set_aside`, an
   error message names the record and the consequence, and a metric counts it
   (`anabranch_catalog_set_aside_total`).
2. The broker continues on the safe side of what the record promised. `CONSEQUENCES` states it for
   every table: keep more, redeliver rather than skip, refuse rather than accept twice.
3. All of this is on disk before the life begins, so it happens once. The copy is written before the
   record is deleted: a crash in between sets the record aside a second time and loses nothing.
4. The table is bounded in rows (`set_aside_max`) and bytes (`set_aside_bytes_max`). The oldest rows
   are evicted first; a record that is too large is kept without its bytes. Beyond `LINES_MAX`
   records, one message counts the rest.
5. The log is not covered. A log that is damaged, or that ends before the catalog says, still stops
   the start: a broker must not lose events without its operator.

Table `set_aside`: number → [time, table, key, reason, size, bytes]. No part reads it; it exists for
operators who want to repair a record.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from anabranch.core.contract import DamagedRecord, Effect, Note, Put, Recovered, SetAsideRecord
from anabranch.model.errors import AnabranchError
from anabranch.model.limits import Limits

TABLE = "set_aside"
#: Error messages of one start.
LINES_MAX = 1_000
_REASON_CHARACTERS_MAX = 500
_KEY_CHARACTERS_MAX = 300

#: Table, or table/key → the consequence of an unreadable record.
CONSEQUENCES = {
    "broker/life": (
        "the number of the last life is lost, and the clock supplies the number of this one; if"
        " the clock was set back, neighbours may refuse the broker until it has caught up"
    ),
    "broker/departing": (
        "this broker was leaving the network and continues to leave; to bring it back, give it"
        " a network file with a higher revision"
    ),
    "stream/beginning": (
        "the start of the log is taken from the log itself; ticks that were released but not yet"
        " deleted are kept until they are released again"
    ),
    "stream/checkpoint": "the whole log is read instead; nothing is lost",
    "marks": (
        "the whole log is read instead; ticks whose mark is deleted there carry an older one, and"
        " edges request them with their own filters"
    ),
    "publishers": (
        "the last event of publisher {key!r} is taken from the log; if the log no longer has any"
        " of its events, only incarnations that begin after this start are accepted, so that no"
        " event is accepted twice; an event of an older incarnation is refused, although it may"
        " have been accepted before"
    ),
    "forgotten": (
        "which publishers were forgotten is lost: of publishers that are not on record, only"
        " incarnations that begin after this start are accepted, so that no event is accepted"
        " twice; clients open a new one by themselves"
    ),
    "heard": (
        "the progress of stream {key!r} is lost here: its broker may not learn from this one that"
        " its log is an old copy"
    ),
    "rollback": (
        "neighbours are asked again whether the log is an old copy (row {key!r}); a renewed log"
        " still counts as renewed"
    ),
    "done": "edge {key!r} counts as done with nothing in the log until it reports again",
    "subscriptions": (
        "durable subscription {key!r} and its position are lost; its client must subscribe again,"
        " and receives missed events only from the position that it presents and as far as origins"
        " keep them"
    ),
    "cursors": (
        "subscription and stream {key!r}: the position is lost; the subscription continues with the"
        " oldest event that the origin keeps, so events may be redelivered, and deleted ones are"
        " reported as withheld"
    ),
    "moves": (
        "row {key!r} of positions is lost: its subscriptions continue from older positions, so"
        " events may be redelivered"
    ),
    "edge/run": "the clock supplies the number of this run",
    "copies": (
        "the copy of stream {key!r} at this broker is lost; it is made again, or, if it is this"
        " broker's own stream, fetched from another copy"
    ),
    "carried": "rows of the catalog are carried in the stream again; nothing is lost",
    "sinks": (
        "the newest batch of sink {key!r} is unknown, and a batch that was in progress stays"
        " incomplete; commits to this sink are refused if it has written an event here; look up"
        " its newest batch in the stream, and continue with another sink"
    ),
    "stage": (
        "staged chunk {key!r} and the chunks after it are lost: the token is incomplete, and a"
        " commit that names it is refused; stage the events again with another token"
    ),
    "patterns": (
        "pattern {key!r} is no longer detected here, and its subscription is gone; define it again"
    ),
    "patterns_gone": (
        "the record that pattern {key!r} was here is lost; nothing else changes, unless a message"
        " that moves it here is still in flight"
    ),
    TABLE: "a record that was set aside earlier is lost for good; nothing depends on it",
}
_OTHER = "this version does not read it"

#: All errors that decoding arbitrary bytes can raise.
_FAILURES = (
    AnabranchError,
    ValueError,
    msgspec.MsgspecError,
    RecursionError,
    OverflowError,
    MemoryError,
)

Row = TypeVar("Row")
_encoder = msgspec.msgpack.Encoder()


class SetAsideRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of `set_aside`."""

    time_ns: int
    table: str
    key: str
    reason: str
    #: Size of the record,
    size: int
    #: and its bytes, unless they exceeded the limit.
    value: bytes


_decoder = msgspec.msgpack.Decoder(SetAsideRow)


def decoded(
    recovered: Recovered, table: str, read: Callable[[str, bytes], Row]
) -> tuple[dict[str, Row], list[DamagedRecord]]:
    """The readable rows of a table by key, and the unreadable records.

    `read` decodes a row from its key and bytes, and raises the reason if it cannot."""
    good: dict[str, Row] = {}
    bad = [record for record in recovered.damaged if record.table == table]
    for key, value in recovered.catalog.get(table, {}).items():
        try:
            good[key] = read(key, value)
        except _FAILURES as error:
            bad.append(DamagedRecord(table, key, value, str(error) or type(error).__name__))
    return good, bad


def set_aside(recovered: Recovered, record: DamagedRecord, instead: bytes | None = None) -> None:
    """Set an unreadable record aside; `instead` replaces it, or None deletes it."""
    recovered.aside.append(SetAsideRecord(record, instead))


def rows(recovered: Recovered, table: str, read: Callable[[str, bytes], Row]) -> dict[str, Row]:
    """The readable rows of a table; the others are set aside."""
    good, bad = decoded(recovered, table, read)
    for record in bad:
        set_aside(recovered, record)
    return good


def number_in(text: str | bytes, most: int) -> int:
    """A decimal number as written in a key or row: digits without leading zeros."""
    if isinstance(text, bytes):
        text = text.decode("ascii")
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)):
        raise ValueError(f"{text[:40]!r} is not a number from 0 to {most}")
    number = int(text)
    if str(number) != text or number > most:
        raise ValueError(f"{text[:40]!r} is not a number from 0 to {most}")
    return number


class SetAsideRecords:
    """The records set aside: how many in this life, and how many in total."""

    __slots__ = ("_limits", "_now", "_old", "count", "kept")

    def __init__(self, recovered: Recovered, limits: Limits, now: float) -> None:
        """Construct it after all parts have read the catalog."""
        self._limits = limits
        self._now = now
        self._old = {
            number_in(key, 1 << 62): len(row.value)
            for key, row in rows(recovered, TABLE, _read).items()
        }
        known = {(damaged.record.table, damaged.record.key) for damaged in recovered.aside}
        for damaged in recovered.damaged:
            if (damaged.table, damaged.key) not in known:
                set_aside(recovered, damaged)
        #: Records set aside by this start.
        self.count = len(recovered.aside)
        #: Rows of the table.
        self.kept = len(self._old)

    def effects(self, recovered: Recovered) -> list[Effect]:
        """Writes that must be on disk before the life begins, and the messages about them."""
        out: list[Effect] = [*recovered.repairs]
        out += self._copies(recovered.aside)
        out += [Put(each.record.table, each.record.key, each.instead) for each in recovered.aside]
        out += [Note("error", line(each.record)) for each in recovered.aside[:LINES_MAX]]
        if len(recovered.aside) > LINES_MAX:
            rest = f"{len(recovered.aside) - LINES_MAX} more catalog records were set aside"
            out.append(Note("error", f"{rest}; `anabranch log aside` shows those that are kept"))
        return out

    def _copies(self, aside: list[SetAsideRecord]) -> list[Effect]:
        """Write copies of new records, and evict old ones to make room (rule 4)."""
        rows_max, bytes_max = self._limits.set_aside_max, self._limits.set_aside_bytes_max
        copies: dict[int, SetAsideRow] = {}
        number, size = max(self._old, default=0), 0
        for each in aside[:rows_max]:
            record = each.record
            if record.table == TABLE:
                continue
            number += 1
            value = record.value if size + len(record.value) <= bytes_max else b""
            size += len(value)
            copies[number] = SetAsideRow(
                int(self._now * 1e9),
                record.table,
                record.key,
                record.reason[:_REASON_CHARACTERS_MAX],
                len(record.value),
                value,
            )
        out: list[Effect] = []
        old = dict(sorted(self._old.items()))
        while old and (len(old) + len(copies) > rows_max or size + sum(old.values()) > bytes_max):
            first = next(iter(old))
            del old[first]
            out.append(Put(TABLE, str(first), None))
        self.kept = len(old) + len(copies)
        return out + [Put(TABLE, str(key), _encoder.encode(row)) for key, row in copies.items()]


def _read(key: str, value: bytes) -> SetAsideRow:
    number_in(key, 1 << 62)
    return _decoder.decode(value)


def decode_aside(value: bytes) -> SetAsideRow:
    """A row of `set_aside`; `msgspec.DecodeError` if the bytes are not one."""
    return _decoder.decode(value)


def line(record: DamagedRecord) -> str:
    """The error message about a record that is set aside."""
    table, key = record.table, record.key[:_KEY_CHARACTERS_MAX]
    text = CONSEQUENCES.get(f"{table}/{key}") or CONSEQUENCES.get(table) or _OTHER
    reason = record.reason[:_REASON_CHARACTERS_MAX].replace("\n", " ")
    what = f"catalog record {key!r} of table {table!r} cannot be read ({reason})"
    return f"{what} and was set aside: {text.format(key=key)}"
