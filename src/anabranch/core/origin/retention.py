"""Retention: how far the log of a stream may be deleted, and checkpoints of the log.

Every edge of the network reports occasionally up to which tick it needs nothing: it is *done* with
those ticks. Ticks that all edges are done with may be deleted. An edge that has never reported is
done with the ticks that were deleted before, and no others.

Rules

1. An edge's done position never decreases by itself: a report below it is out of date and ignored.
2. *Hold.* A hold lowers it: a subscription that moves to an edge may be behind that edge's done
   position. A hold is granted if the log still has the ticks, and answered once it is on disk. It
   lasts until the edge reports more.
3. A report that was sent before a hold and arrives after it is void, as the request numbers show. A
   report without a number is accepted.
4. An edge that has left the network needs nothing. Its row is deleted with the next checkpoint.
5. *Waive.* A subscription may hold back a limited number of log bytes (`held_back_bytes_max`).
   Beyond that its edge counts as done regardless of its reports, and the subscription later
   receives the ticks as withheld. So a client that never acknowledges cannot fill a log and stop
   every publisher.

State: in the catalog (table `done`). Holds are written at once, the rest before records are
deleted. A value that is too low after a crash only delays deletion. An edge whose row cannot be
read, or is beyond the end of the log, counts as one that has never reported.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from math import isfinite

import msgspec

from anabranch.core.catalog_recovery import decoded, number_in, rows
from anabranch.core.contract import DamagedRecord, Put, Recovered
from anabranch.core.origin.log_tail import InterestMarks
from anabranch.model.event import Count
from anabranch.model.frame_parts import TICK_MAX, Nanoseconds, Position
from anabranch.model.version import Vector, Version

TABLE = "done"

#: Tick, and request number of the newest hold.
_Stored = tuple[int, int]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Position, Count])


class Retention:
    """The done positions of all edges. See the rules at the top of this module."""

    __slots__ = ("_departed_edges", "_done", "_holds", "_stored")

    def __init__(self, edges: Iterable[str], recovered: Recovered, forgotten: int) -> None:
        last = recovered.last_tick

        def read(edge: str, value: bytes) -> _Stored:
            found = _decoder.decode(value)
            if found[0] > last:
                raise ValueError(f"{edge!r} is done with tick {found[0]}, but the newest is {last}")
            return found

        stored = rows(recovered, TABLE, read)
        #: Invariant: contains every edge of the network, in the order of the network.
        self._done: dict[str, int] = {}
        #: Edge → request number of its newest hold.
        self._holds: dict[str, int] = {}
        self._stored: dict[str, _Stored] = {}
        for edge in edges:
            found = stored.get(edge, (forgotten, 0))
            self._done[edge], self._holds[edge] = self._stored[edge] = found
        #: Edges that are in the catalog but no longer in the network.
        self._departed_edges = [edge for edge in stored if edge not in self._done]

    def is_known(self, edge: str) -> bool:
        return edge in self._done

    def done(self, edge: str, tick: int, request: int) -> None:
        if request == 0 or request >= self._holds[edge]:
            self._done[edge] = max(self._done[edge], tick)

    def hold(self, edge: str, tick: int, request: int) -> list[Put]:
        """Keep everything after this tick for an edge; returns the puts for it."""
        self._holds[edge] = max(self._holds[edge], request)
        self._done[edge] = min(self._done[edge], tick)
        return [self._put(edge)]

    def waive(self, tick: int) -> list[str]:
        """Release everything up to this tick (rule 5); returns the edges that needed it."""
        needing = self.edges_needing(tick)
        for edge in needing:
            self._done[edge] = tick
        return needing

    def done_by_all(self) -> int:
        """The tick up to which every edge is done."""
        return min(self._done.values())

    def edges_needing(self, tick: int) -> list[str]:
        return [edge for edge, done in self._done.items() if done < tick]

    def checkpoint(self) -> list[Put]:
        """Puts that must precede the deletion of records."""
        current = {edge: (tick, self._holds[edge]) for edge, tick in self._done.items()}
        deletions = [Put(TABLE, edge, None) for edge in self._departed_edges]
        self._departed_edges = []
        return deletions + [
            self._put(edge) for edge, row in current.items() if row != self._stored[edge]
        ]

    def _put(self, edge: str) -> Put:
        found = self._stored[edge] = (self._done[edge], self._holds[edge])
        return Put(TABLE, edge, _encoder.encode(found))


_PARTS = 64
_NEVER = float("inf")


class LogSection(msgspec.Struct, array_like=True, gc=False):
    """A run of consecutive ticks."""

    #: When its first and its last tick were seen.
    began_s: float
    seen_s: float
    last: int = 0
    size: int = 0


class LogSections:
    """Age and size of a long log, in sections.

    The limits of age and size require the point where a log is too old or too large, although most
    of it is only on disk. Nothing is kept per tick: consecutive ticks form a *section*, with its
    last tick, that tick's time, and its size in bytes.

    Rules

    1. A section is closed once it spans a 64th of the age limit, of the retention time, or of the
       size limit. So there are at most some hundreds of them, regardless of the length of the log,
       provided that old ones are deleted.
    2. Age is decided per section: a tick is too old when the last tick of its section is. That is
       never too early, and late by at most a 64th of the limit.
    3. Size is that of the records. A partly deleted section counts completely until all of it is
       deleted: never too little, and too much by at most a 64th of the limit.
    4. A tick is *seen* when this life first knew of it: at its append or, for one that a restart
       found with a future time, at the restart. So a clock that went back delays deletion by at
       most the limit itself, and never causes an early one.

    State: in the checkpoint, and rebuilt from the records after it at a start.
    """

    __slots__ = ("_age_s_max", "_bytes_part", "_sections", "_span_s", "size")

    def __init__(self, age_s_max: float | None, bytes_max: int, keep_s: float = 0.0) -> None:
        self._age_s_max = age_s_max
        self._span_s = min(age_s_max or _NEVER, keep_s or _NEVER) / _PARTS
        self._bytes_part = bytes_max // _PARTS
        #: Oldest first.
        self._sections: deque[LogSection] = deque()
        #: Total size in bytes.
        self.size = 0

    def __len__(self) -> int:
        return len(self._sections)

    def add(self, tick: int, size: int, seen_s: float) -> None:
        """Add the next tick, with the size of its record."""
        sections = self._sections
        last = sections[-1] if sections else None
        if last is None or last.size >= self._bytes_part or seen_s - last.began_s >= self._span_s:
            last = LogSection(seen_s, seen_s)
            sections.append(last)
        last.last = tick
        last.seen_s = seen_s
        last.size += size
        self.size += size

    def restore(self, sections: Iterable[LogSection], now: float) -> None:
        """Restore the sections of a checkpoint, before anything is added."""
        for section in sections:
            began_s, seen_s = min(section.began_s, now), min(section.seen_s, now)
            self._sections.append(LogSection(began_s, seen_s, section.last, section.size))
            self.size += section.size

    def up_to(self, tick: int) -> tuple[LogSection, ...]:
        """The sections up to a tick, oldest first; one that extends beyond it keeps its size."""
        found = []
        began_after = 0
        for section in self._sections:
            if began_after < tick:
                found.append(
                    LogSection(
                        section.began_s, section.seen_s, min(section.last, tick), section.size
                    )
                )
            began_after = section.last
        return tuple(found)

    def delete_through(self, tick: int) -> None:
        sections = self._sections
        while sections and sections[0].last <= tick:
            self.size -= sections.popleft().size

    def too_old_at(self, synced: int) -> float | None:
        """When the oldest section is too old; None if there is no limit, or it is not synced."""
        if self._age_s_max is None:
            return None
        return self.aged_at(self._age_s_max, synced)

    def aged_at(self, age_s: float, synced: int) -> float | None:
        """When the oldest section reaches this age; None if no section is synced completely."""
        if not self._sections or self._sections[0].last > synced:
            return None
        return self._sections[0].seen_s + age_s

    def too_old(self, now: float, synced: int) -> int:
        """The newest synced tick that is too old; 0 if there is none."""
        return 0 if self._age_s_max is None else self.aged(self._age_s_max, now, synced)

    def aged(self, age_s: float, now: float, synced: int) -> int:
        """The newest synced tick of at least this age; 0 if there is none."""
        found = 0
        for section in self._sections:
            if section.last > synced or section.seen_s + age_s > now:
                break
            found = section.last
        return found

    def beyond(self, bytes_max: int) -> int:
        """The tick up to which to delete so that at most `bytes_max` remain; 0 if they do."""
        size, found = self.size, 0
        for section in self._sections:
            if size <= bytes_max:
                break
            size -= section.size
            found = section.last
        return found


STREAM = "stream"
MARKS = "marks"
KEY = "checkpoint"


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint: state of the log in the catalog, so that a start need not read all records.

    The log is enough to restore every guarantee of an origin, but a long log takes long to read. So
    after every `checkpoint_ticks` synced ticks, the catalog takes over the state that the records
    up to a tick carry: which events of each publisher are synced (`publishers`), the marks, and the
    age and size of the log. A start reads only the records after that tick.

    Rules

    1. A checkpoint is for a synced tick. Its row is written after everything that it covers; a
       crash keeps puts in their order, so if the row is on disk, the rest is too.
    2. A log that ends before its checkpoint has lost synced records: the broker does not start.
    3. If a row that it covers (`marks`, `publishers`) cannot be read, it is void: the whole log is
       read. Its row is deleted before the unreadable one, so that no later start trusts it.
    4. Marks are written one by one, once, and deleted when the log has deleted them or no longer
       keeps a vector for them. Rows beyond the checkpoint are left over from a crash; the log has
       them too.

    Tables: `marks` (tick → vector), and the row `checkpoint` of `stream`.
    """

    tick: Position = 0
    #: No later tick is older than this.
    time_ns: Nanoseconds = 0
    sections: tuple[LogSection, ...] = ()


_checkpoint_encoder = msgspec.msgpack.Encoder()
_checkpoint_decoder = msgspec.msgpack.Decoder(tuple[Position, Nanoseconds, tuple[LogSection, ...]])
_vector_decoder = msgspec.msgpack.Decoder(dict[str, Version])

Catalog = Mapping[str, Mapping[str, bytes]]


def read_checkpoint(value: bytes) -> Checkpoint:
    """Decode the row `checkpoint` of `stream`; `ValueError` if its content is impossible."""
    found = Checkpoint(*_checkpoint_decoder.decode(value))
    last = 0
    for section in found.sections:
        if not (isfinite(section.began_s) and isfinite(section.seen_s)) or section.size < 0:
            raise ValueError("a section has an impossible time or size")
        if not last <= section.last <= found.tick:
            raise ValueError("its sections are not in order")
        last = section.last
    return found


def read_marks(recovered: Recovered) -> tuple[dict[int, Vector], list[DamagedRecord]]:
    """Tick → the vector of a mark, ascending; and the rows that cannot be read."""
    good, bad = decoded(recovered, MARKS, _read_mark)
    return dict(sorted(good.values())), bad


def _read_mark(key: str, value: bytes) -> tuple[int, Vector]:
    return number_in(key, TICK_MAX), _vector_decoder.decode(value)


class StoredMarks:
    """The marks in the catalog. See rule 4 of `Checkpoint`."""

    __slots__ = ("_ticks",)

    def __init__(self, ticks: Iterable[int]) -> None:
        self._ticks = dict.fromkeys(sorted(ticks))

    def puts(self, marks: InterestMarks, synced: int) -> list[Put]:
        """Puts that update the catalog to the present synced marks."""
        kept = {tick: vector for tick, vector in marks if 0 < tick <= synced}
        puts = [Put(MARKS, str(tick), None) for tick in self._ticks if tick not in kept]
        for tick, vector in kept.items():
            if tick not in self._ticks:
                puts.append(Put(MARKS, str(tick), _checkpoint_encoder.encode(vector)))
        self._ticks = dict.fromkeys(kept)
        return puts


def checkpoint_put(checkpoint: Checkpoint) -> Put:
    """The put of a checkpoint's row; it must come last."""
    return Put(STREAM, KEY, _checkpoint_encoder.encode(checkpoint))
