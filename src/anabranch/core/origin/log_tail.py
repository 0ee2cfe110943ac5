"""The log of a stream: its records, its marks, and its recent ticks in memory.

A broker's log has one record per tick (`LogRecord`). Some ticks are marks, which hold the versions
of interest that ticks carry (`InterestMarks`). Edges mostly request recent ticks, so the newest
ones are kept in memory in the form in which they are sent (`LogTail`); older ticks are on disk
only.

Rules of the tail

1. Ticks run without a gap from `first` to `last`; the log begins at `oldest` ≤ `first`, and is on
   disk up to `synced` ≤ `last`. Unsynced ticks are always in memory.
2. The origin never sends a tick beyond `synced`.
3. A tick without an event is *silent* if it is a mark, the beginning of a life, or holds catalog
   rows, and *withheld* if its event was transient
   and is gone, or if the event is lost. The body of a transient event is only in memory, for as
   long as it fits.
4. Times never decrease with the tick.

State: restored from the log, except the bodies of transient events, which are safe to lose.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

import msgspec

from anabranch.core.routing.contract import Emission
from anabranch.model.errors import LocalError
from anabranch.model.event import EventId
from anabranch.model.frame_parts import Datum, Hole, Nanoseconds
from anabranch.model.replication import CopySet, Life, Row
from anabranch.model.version import Vector, Version

MARKS_MAX = 1_024

MarkVector = Mapping[str, Version]


class InterestMarks:
    """Marks: the versions of interest that the ticks of a stream carry.

    A mark is a tick without an event. It holds a vector: for each edge, the version of its interest
    that the network knew when the mark was appended. Every tick carries the vector of the newest
    mark at or before it, including the mark itself; before the first mark the vector is empty. In
    Gryphon's terms the vector is V^m, and the tick of the mark is its digest: unique, ordered, and
    on disk before it is announced.

    Rules

    1. Vectors never decrease with the tick.
    2. The newest mark at or before the deleted ticks is kept: the first ticks of the log carry it.
    3. At most `MARKS_MAX` marks are kept. Beyond that the oldest ticks share one: a tick whose mark
       is dropped carries the mark before it. A lower vector promises less and is never wrong; an
       edge that needs more of such an old tick requests it with its own filter.

    State: restored from the records of the log; the mark at its beginning from the catalog.

    Prior art: Zhao 2006, §4.1.3 (V^m), §4.4 (digests).
    """

    __slots__ = ("_ticks", "_vectors")

    def __init__(self, mark: int, vector: MarkVector) -> None:
        #: Ascending, never empty.
        self._ticks = [mark]
        self._vectors = {mark: vector}

    @property
    def newest(self) -> int:
        """The newest mark, synced or not."""
        return self._ticks[-1]

    def vector(self, mark: int) -> MarkVector:
        return self._vectors[mark]

    def __iter__(self) -> Iterator[tuple[int, MarkVector]]:
        return ((tick, self._vectors[tick]) for tick in self._ticks)

    def add(self, mark: int, vector: MarkVector) -> None:
        """Add a mark, later than all others."""
        assert mark > self._ticks[-1], (mark, self._ticks[-1])
        self._ticks.append(mark)
        self._vectors[mark] = vector
        if len(self._ticks) > MARKS_MAX:
            del self._vectors[self._ticks.pop(1)]

    def at(self, tick: int) -> int:
        """The mark that this tick carries; for a deleted tick, the oldest mark."""
        return self._ticks[max(bisect_right(self._ticks, tick) - 1, 0)]

    def delete_through(self, tick: int) -> None:
        """Drop marks that only ticks up to this one carry."""
        dropped = max(bisect_right(self._ticks, tick) - 1, 0)
        for mark in self._ticks[:dropped]:
            del self._vectors[mark]
        del self._ticks[:dropped]

    def spans(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """These ticks by the mark that they carry: (mark, first, last), ascending."""
        found = []
        place = bisect_right(self._ticks, first)
        mark = self._ticks[max(place - 1, 0)]
        for following in self._ticks[place : bisect_right(self._ticks, last)]:
            if first < following:
                found.append((mark, first, following - 1))
            mark = first = following
        if first <= last:
            found.append((mark, first, last))
        return found


#: Publisher of the ids of lost events: those in ticks that a repair gave up or a renewal left out.
LOST_PUBLISHER = "anabranch-log-repair"


class LogRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The record of one tick: a MessagePack array of tag, time and content.

    1. Every record has the origin's clock at the time of the append, so "from time t on" can find
       its tick.
    2. A record does not contain its own tick: the log knows the position of each record, and checks
       it with the framing (`store`).
    3. Bytes from a log have passed its checksums. If they cannot be decoded nevertheless, a newer
       or faulty program wrote them; that is a local error, which names the problem.
    """

    #: The origin's clock when the tick was appended.
    time_ns: Nanoseconds


class EventRecord(LogRecord, frozen=True, tag=1):
    """A tick with an event."""

    #: The encoded event.
    body: bytes


class BlankRecord(LogRecord, frozen=True, tag=2):
    """A tick whose event was transient: its body was in memory only, for a short time."""

    id: EventId


class MarkRecord(LogRecord, frozen=True, tag=3):
    """A tick without an event: the versions of interest that later ticks carry."""

    vector: Vector


class LifeRecord(LogRecord, frozen=True, tag=4):
    """A tick without an event: a life of the stream's writer begins (`core.replication`)."""

    life: Life
    copies: CopySet


class RowsRecord(LogRecord, frozen=True, tag=5):
    """A tick without an event: catalog rows of the broker, so that its copies have them."""

    rows: list[Row]


AnyRecord = EventRecord | BlankRecord | MarkRecord | LifeRecord | RowsRecord

#: All errors that decoding arbitrary bytes can raise.
_FAILURES = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    OverflowError,
    MemoryError,
)
_REASON_CHARACTERS_MAX = 200

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


def encode_record(record: AnyRecord) -> bytes:
    return _encoder.encode(record)


def decode_record(data: bytes) -> AnyRecord:
    try:
        return _decoder.decode(data)
    except _FAILURES as error:
        raise LocalError(
            f"a record of {len(data)} bytes in the log cannot be read by this version"
            f" ({str(error)[:_REASON_CHARACTERS_MAX]}); start the version that wrote the log"
        ) from error


#: Ticks, and bytes of their events, per emission.
EMIT_TICKS_MAX = 1_024
EMIT_BYTES_MAX = 1_048_576

#: The reason of withheld ticks whose event the log has lost,
LOST = "lost"
#: and of those whose event was in memory only.
TRANSIENT = "transient"


class SilentTick(msgspec.Struct, frozen=True, gc=False):
    """A tick without an event."""

    time_ns: int
    #: Why its event is withheld; "" if there never was one.
    reason: str = ""


Entry = Datum | SilentTick

_time_of = attrgetter("time_ns")


def entry_of(tick: int, record: AnyRecord) -> Entry:
    if isinstance(record, EventRecord):
        return Datum(tick, record.time_ns, record.body)
    if isinstance(record, BlankRecord):
        is_lost = record.id.publisher == LOST_PUBLISHER
        return SilentTick(record.time_ns, LOST if is_lost else TRANSIENT)
    return SilentTick(record.time_ns)


def size_of(entry: Entry) -> int:
    return len(entry.body) if isinstance(entry, Datum) else 0


def fitting(entries: Sequence[Entry], bytes_max: int) -> Sequence[Entry]:
    """The first entries with at most `bytes_max` bytes in total; at least one."""
    size = 0
    for place, entry in enumerate(entries):
        size += size_of(entry)
        if size > bytes_max and place:
            return entries[:place]
    return entries


class LogTail:
    """The newest ticks of one log. See the rules at the top of this module."""

    __slots__ = (
        "_bytes",
        "_entries",
        "deleted_ns",
        "first",
        "oldest",
        "synced",
        "unsynced_bytes",
    )

    def __init__(self, oldest: int, first: int, deleted_ns: int = 0) -> None:
        #: The oldest tick of the log, or the next one if the log is empty.
        self.oldest = oldest
        #: No deleted tick is newer than this.
        self.deleted_ns = deleted_ns
        #: The oldest tick in memory, or the next one if there is none.
        self.first = first
        #: The newest tick on disk.
        self.synced = first - 1
        self._entries: list[Entry] = []
        self._bytes = 0
        self.unsynced_bytes = 0

    @property
    def last(self) -> int:
        """The newest tick, synced or not."""
        return self.first + len(self._entries) - 1

    @property
    def log_ticks(self) -> int:
        return self.first + len(self._entries) - self.oldest

    @property
    def last_time_ns(self) -> int:
        """The time of the newest tick; 0 if it is not in memory."""
        return self._entries[-1].time_ns if self._entries else 0

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)
        if isinstance(entry, Datum):
            size = len(entry.body)
            self._bytes += size
            self.unsynced_bytes += size

    def between(self, first: int, last: int) -> list[Entry]:
        """The ticks of a range, all of them in memory."""
        assert self.first <= first, (self.first, first)
        return self._entries[first - self.first : last - self.first + 1]

    def time_of(self, tick: int) -> int | None:
        """The time of a tick; None if it is not in memory, or if the tick is lost."""
        place = tick - self.first
        entry = self._entries[place] if 0 <= place < len(self._entries) else None
        if entry is None or (isinstance(entry, SilentTick) and entry.reason == LOST):
            return None
        return entry.time_ns

    def first_at(self, time_ns: int) -> int:
        """The first tick in memory at or after this time, or the next one."""
        return self.first + bisect_left(self._entries, time_ns, key=_time_of)

    def head_time_ns(self, clock_ns: int) -> int:
        """No tick after `synced` is older than this time."""
        place = self.synced + 1 - self.first
        return self._entries[place].time_ns if place < len(self._entries) else clock_ns

    def sync(self, tick: int) -> None:
        """Everything up to this tick is on disk."""
        if tick == self.last:
            self.unsynced_bytes = 0
        else:
            self.unsynced_bytes -= sum(map(size_of, self.between(self.synced + 1, tick)))
        self.synced = tick

    def trim(self, ticks_max: int, bytes_max: int) -> None:
        """Drop the oldest synced ticks from memory beyond these limits."""
        excess = len(self._entries) - ticks_max
        # Not one by one, because each deletion moves the whole list.
        if excess * 4 <= ticks_max and self._bytes <= bytes_max:
            return
        size = self._bytes
        count = 0
        for entry in self._entries[: self.synced - self.first + 1]:
            if count >= excess and size <= bytes_max:
                break
            size -= size_of(entry)
            count += 1
        self._drop(count, size)

    def delete_through(self, tick: int, time_ns: int) -> None:
        """Start the log after this tick, which is synced and not newer than this time."""
        self.oldest = tick + 1
        self.deleted_ns = time_ns
        if self.first <= tick:
            count = tick + 1 - self.first
            self._drop(count, self._bytes - sum(map(size_of, self._entries[:count])))

    def _drop(self, count: int, size: int) -> None:
        """Drop the first `count` entries; `size` bytes are left."""
        self._bytes = size
        del self._entries[:count]
        self.first += count


# -- emissions ----------------------------------------------------------------------------------


def emissions_of(
    marks: InterestMarks,
    first: int,
    entries: Sequence[Entry],
    *,
    head: int,
    time_ns: int,
    target: str = "",
) -> list[Emission]:
    """These ticks as emissions, each with one mark and of bounded size."""
    emits = []
    for mark, start, end in marks.spans(first, first + len(entries) - 1):
        while start <= end:
            stop = min(end, start + EMIT_TICKS_MAX - 1)
            part = fitting(entries[start - first : stop - first + 1], EMIT_BYTES_MAX)
            data, silent, withheld = by_kind(start, part)
            emits.append(Emission(mark, data, silent, withheld, head, time_ns, target))
            start += len(part)
    return emits


def by_kind(
    first: int, entries: Sequence[Entry]
) -> tuple[list[Datum], list[tuple[int, int]], list[Hole]]:
    """Consecutive ticks as events, silent ranges and withheld ranges."""
    data: list[Datum] = []
    silent: list[tuple[int, int]] = []
    withheld: list[Hole] = []
    for tick, entry in enumerate(entries, first):
        if isinstance(entry, Datum):
            data.append(entry)
        elif entry.reason:
            add_hole(withheld, tick, entry.reason)
        elif silent and silent[-1][1] == tick - 1:
            silent[-1] = (silent[-1][0], tick)
        else:
            silent.append((tick, tick))
    return data, silent, withheld


def add_hole(holes: list[Hole], tick: int, reason: str) -> None:
    """Add a withheld tick; extend the last hole if it adjoins with the same reason."""
    if holes and holes[-1].last == tick - 1 and holes[-1].reason == reason:
        holes[-1] = Hole(holes[-1].first, tick, reason)
    else:
        holes.append(Hole(tick, tick, reason))
