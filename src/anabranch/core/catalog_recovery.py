"""Reading the catalog at a start: a record that cannot be read is set aside, and the broker starts.

The parts of a broker read their tables through `rows`. A record is *unreadable* if the disk changed
it, if it does not decode, or if what it says cannot be true (a pattern that does not parse, a tick
below 0). Rules:

1. An unreadable record never keeps a broker from starting. It moves to the table `set_aside`, an
   error line names it and what it promised, and a metric counts it
   (`anabranch_catalog_set_aside_total`).
2. What follows is the safe side of what the record promised. `CONSEQUENCES` says it for every
   table: keep more, deliver again rather than skip, refuse rather than repeat.
3. All this is on disk before the life begins, so it happens once. The copy is put before the record
   goes: a crash in between sets it aside a second time and loses nothing.
4. The table is bounded, in rows (`set_aside_max`) and bytes (`set_aside_bytes_max`). The oldest
   rows go first; a record that is too large is kept without its bytes. Beyond `LINES_MAX` records
   one line counts the rest.
5. The log is not read here. One that is damaged, or ends before the catalog says, is refused as
   before: events are what a broker must not lose without its operator.

Table `set_aside`: number → [time, table, key, reason, size, bytes]. Nothing depends on it; it is
there for people who want to repair something.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from anabranch.core.contract import DamagedRecord, Effect, Note, Put, Recovered, SetAsideRecord
from anabranch.model.errors import AnabranchError
from anabranch.model.limits import Limits

TABLE = "set_aside"
#: Error lines of one start.
LINES_MAX = 1_000
_REASON_CHARACTERS_MAX = 500
_KEY_CHARACTERS_MAX = 300

#: Table, or table/key → what an unreadable record promised, and what holds in its place.
CONSEQUENCES = {
    "broker/life": (
        "the number of the last life is lost: the clock gives this one its number; if the clock"
        " was set back, neighbours may refuse the broker until it has caught up"
    ),
    "broker/departing": (
        "this broker was told to leave the network, and leaves it still; to bring it back, give it"
        " a network file with a higher revision"
    ),
    "stream/beginning": (
        "where the log begins is taken from the log; ticks that were released and not deleted yet"
        " are kept until they are released again"
    ),
    "stream/checkpoint": "the whole log is read in its place; nothing is lost",
    "marks": (
        "the whole log is read in its place; ticks whose mark is deleted there carry an older one,"
        " and edges ask for them by their own filters"
    ),
    "publishers": (
        "the last event of publisher {key!r} is taken from the log; where the log has none of its"
        " events any more, only incarnations that begin after this start are accepted, so that"
        " nothing is taken twice; an event of an older one is refused, though it may have been"
        " taken before"
    ),
    "heard": (
        "how far stream {key!r} had come is forgotten here: its broker may not learn from this one"
        " that its log is an old copy"
    ),
    "rollback": (
        "whether the log is an old copy is asked of neighbours again (row {key!r}); a log that was"
        " renewed still counts as renewed"
    ),
    "done": "edge {key!r} counts as not done with anything that the log has until it says so again",
    "subscriptions": (
        "durable subscription {key!r} is gone, with its position; its client must subscribe again,"
        " and gets what it missed only as far as it brings its own position and origins keep it"
    ),
    "cursors": (
        "subscription and stream {key!r}: the position is lost; the subscription goes on with the"
        " oldest event that the origin keeps, so events may come again, and what is not kept is"
        " told as withheld"
    ),
    "moves": (
        "row {key!r} of positions is lost: the subscriptions in it go on from older positions, so"
        " events may come again"
    ),
    "edge/run": "the clock gives this run its number",
    "sinks": (
        "the newest batch of sink {key!r} is unknown, and a batch that was under way stays as it"
        " is; commits to this sink are refused if it has written an event here; look into the"
        " stream for its newest batch, and go on with another sink"
    ),
    "stage": (
        "staged chunk {key!r} is lost, with the chunks after it: its token is not complete, and a"
        " commit that names it is refused; stage the events again with another token"
    ),
    "patterns": (
        "pattern {key!r} is not detected here any more, and its subscription is gone; define it"
        " again"
    ),
    "patterns_gone": (
        "that pattern {key!r} was here is forgotten; nothing else changes, unless a message that"
        " moves it here is still under way"
    ),
    TABLE: "a record that was set aside before is lost for good; nothing depends on it",
}
_OTHER = "nothing in this version reads it"

#: Everything that reading unknown bytes can raise.
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
    """One row of `set_aside`."""

    time_ns: int
    table: str
    key: str
    reason: str
    #: Bytes of the record,
    size: int
    #: which are here, unless they were too many.
    value: bytes


_decoder = msgspec.msgpack.Decoder(SetAsideRow)


def decoded(
    recovered: Recovered, table: str, read: Callable[[str, bytes], Row]
) -> tuple[dict[str, Row], list[DamagedRecord]]:
    """The rows of a table by key, and those that are unreadable.

    `read` makes a row of key and bytes; what it raises is why it cannot."""
    good: dict[str, Row] = {}
    bad = [each for each in recovered.damaged if each.table == table]
    for key, value in recovered.catalog.get(table, {}).items():
        try:
            good[key] = read(key, value)
        except _FAILURES as error:
            bad.append(DamagedRecord(table, key, value, str(error) or type(error).__name__))
    return good, bad


def set_aside(recovered: Recovered, record: DamagedRecord, instead: bytes | None = None) -> None:
    """A record is unreadable; this row takes its place, or none."""
    recovered.aside.append(SetAsideRecord(record, instead))


def rows(recovered: Recovered, table: str, read: Callable[[str, bytes], Row]) -> dict[str, Row]:
    """The rows of a table that can be read; the others are set aside."""
    good, bad = decoded(recovered, table, read)
    for each in bad:
        set_aside(recovered, each)
    return good


def number_in(text: str | bytes, most: int) -> int:
    """A number as this program writes it in a key or a row: digits, no zero in front."""
    if isinstance(text, bytes):
        text = text.decode("ascii")
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)):
        raise ValueError(f"{text[:40]!r} is not a number from 0 to {most}")
    number = int(text)
    if str(number) != text or number > most:
        raise ValueError(f"{text[:40]!r} is not a number from 0 to {most}")
    return number


class SetAsideRecords:
    """The records that are set aside: how many in this life, and how many there are."""

    __slots__ = ("_limits", "_now", "_old", "count", "kept")

    def __init__(self, recovered: Recovered, limits: Limits, now: float) -> None:
        """To be made when all parts have read the catalog."""
        self._limits = limits
        self._now = now
        self._old = {
            number_in(key, 1 << 62): len(row.value)
            for key, row in rows(recovered, TABLE, _read).items()
        }
        known = {(each.record.table, each.record.key) for each in recovered.aside}
        for each in recovered.damaged:
            if (each.table, each.key) not in known:
                set_aside(recovered, each)
        #: Records that this start has set aside.
        self.count = len(recovered.aside)
        #: Rows of the table.
        self.kept = len(self._old)

    def effects(self, recovered: Recovered) -> list[Effect]:
        """What is to be on disk before the life begins, and what to say."""
        out: list[Effect] = [*recovered.repairs]
        out += self._copies(recovered.aside)
        out += [Put(each.record.table, each.record.key, each.instead) for each in recovered.aside]
        out += [Note("error", line(each.record)) for each in recovered.aside[:LINES_MAX]]
        if len(recovered.aside) > LINES_MAX:
            rest = f"{len(recovered.aside) - LINES_MAX} more records of the catalog are set aside"
            out.append(Note("error", f"{rest}; `anabranch log aside` shows those that are kept"))
        return out

    def _copies(self, aside: list[SetAsideRecord]) -> list[Effect]:
        """Put copies of what is new, and make room for them (rule 4)."""
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
    """A row of `set_aside`; `msgspec.DecodeError` if it is none."""
    return _decoder.decode(value)


def line(record: DamagedRecord) -> str:
    """What is said about one record that is set aside."""
    table, key = record.table, record.key[:_KEY_CHARACTERS_MAX]
    text = CONSEQUENCES.get(f"{table}/{key}") or CONSEQUENCES.get(table) or _OTHER
    reason = record.reason[:_REASON_CHARACTERS_MAX].replace("\n", " ")
    what = f"the catalog's record {key!r} of the table {table!r} cannot be read ({reason})"
    return f"{what} and is set aside: {text.format(key=key)}"
