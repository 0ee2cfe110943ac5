"""Release: how far the log of a stream may be deleted.

Every edge of the network tells, now and then, up to which tick it needs nothing any more: it is
*done*. What all edges are done with may be deleted; an edge that was never heard of is done with
what was deleted before, and nothing else. Rules:

1. An edge's done never goes back by itself: what says less than is known is old, and ignored.
2. A *hold* lowers it: a subscription that moves to an edge may stand behind what that edge is done
   with. It is granted if the log still has what it asks for, and answered when it is on disk. It
   lasts until the edge says more.
3. What an edge said before a hold and arrives after it is void: the numbers of its requests tell.
   An edge that does not number is believed.
4. An edge that has left the network needs nothing. Its row goes with the next checkpoint.
5. *Waive.* A subscription may hold back a limited number of bytes of the log
   (`held_back_bytes_max`). Beyond that its edge counts as done, whatever it says, and the
   subscription is told later that the ticks are withheld. So one client that never acknowledges
   cannot fill a log and stop every publisher.

State: in the catalog (table `done`), where a hold is put at once, and the rest before records are
deleted. A value that is too low after a crash only delays deletion. A row that cannot be read, or
says more than the log has, counts as that of an edge that was never heard of.
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
from anabranch.model.version import Version

TABLE = "done"

#: Tick, and request number of the newest hold.
_Stored = tuple[int, int]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Position, Count])


class Retention:
    """What each edge is done with. See the rules at the top of this module."""

    __slots__ = ("_done", "_holds", "_left", "_stored")

    def __init__(self, edges: Iterable[str], recovered: Recovered, forgotten: int) -> None:
        last = recovered.last_tick

        def read(edge: str, value: bytes) -> _Stored:
            found = _decoder.decode(value)
            if found[0] > last:
                raise ValueError(f"{edge!r} is done with tick {found[0]}, and the newest is {last}")
            return found

        stored = rows(recovered, TABLE, read)
        #: Invariant: every edge of the network is in here, in the order of the network.
        self._done: dict[str, int] = {}
        #: Edge → request number of its newest hold.
        self._holds: dict[str, int] = {}
        self._stored: dict[str, _Stored] = {}
        for edge in edges:
            found = stored.get(edge, (forgotten, 0))
            self._done[edge], self._holds[edge] = self._stored[edge] = found
        #: Edges that are in the catalog only.
        self._left = [edge for edge in stored if edge not in self._done]

    def is_known(self, edge: str) -> bool:
        """Whether there is such an edge in the network."""
        return edge in self._done

    def done(self, edge: str, tick: int, request: int) -> None:
        """This edge is done with everything up to this tick."""
        if request == 0 or request >= self._holds[edge]:
            self._done[edge] = max(self._done[edge], tick)

    def hold(self, edge: str, tick: int, request: int) -> list[Put]:
        """This edge needs everything after this tick, from now on; what to put for it."""
        self._holds[edge] = max(self._holds[edge], request)
        self._done[edge] = min(self._done[edge], tick)
        return [self._put(edge)]

    def waive(self, tick: int) -> list[str]:
        """Keep nothing up to this tick for any edge (rule 5); return the edges that needed it."""
        needing = self.needing(tick)
        for edge in needing:
            self._done[edge] = tick
        return needing

    def all_done(self) -> int:
        """What every edge is done with."""
        return min(self._done.values())

    def needing(self, tick: int) -> list[str]:
        """The edges that are not done with this tick."""
        return [edge for edge, done in self._done.items() if done < tick]

    def checkpoint(self) -> list[Put]:
        """What the catalog should have before records are deleted."""
        now = {edge: (tick, self._holds[edge]) for edge, tick in self._done.items()}
        gone = [Put(TABLE, edge, None) for edge in self._left]
        self._left = []
        return gone + [self._put(edge) for edge, each in now.items() if each != self._stored[edge]]

    def _put(self, edge: str) -> Put:
        found = self._stored[edge] = (self._done[edge], self._holds[edge])
        return Put(TABLE, edge, _encoder.encode(found))


_PARTS = 64
_NEVER = float("inf")


class LogSection(msgspec.Struct, array_like=True, gc=False):
    """Some neighbouring ticks."""

    #: When its first, and when its last tick was seen.
    began_s: float
    seen_s: float
    last: int = 0
    size: int = 0


class LogSections:
    """Chapters: how old and how large the parts of a log are, for logs that are long.

    A limit of age or of bytes has to know where the log is too old or too large, though most of it
    is on disk only. Nothing is kept per tick: neighbouring ticks form a *chapter*, with its last
    tick, the time of that, and its bytes. Rules:

    1. A chapter is closed once it spans a 64th of the age limit, of the time for which ticks are
       kept, or of the bytes that are allowed. So there are some hundreds of them at most, however
       long the log, if what is too old is forgotten.
    2. Age goes by chapters: a tick is too old when the last tick of its chapter is. That is never
       too early, and at most a 64th of the limit too late.
    3. Bytes are those of records. A chapter of which a part is forgotten counts as a whole until
       all of it is: never too little, and at most a 64th of the limit too much.
    4. *Seen* is when this life first knew of a tick: when it was made, or, for one that a restart
       found with a time that is yet to come, the restart. So a clock that went back delays what is
       forgotten by no more than the limit itself, and nothing is forgotten earlier for it.

    State: in the checkpoint, and built from the records after it when a broker starts.
    """

    __slots__ = ("_age_s_max", "_bytes_part", "_chapters", "_span_s", "size")

    def __init__(self, age_s_max: float | None, bytes_max: int, keep_s: float = 0.0) -> None:
        self._age_s_max = age_s_max
        self._span_s = min(age_s_max or _NEVER, keep_s or _NEVER) / _PARTS
        self._bytes_part = bytes_max // _PARTS
        #: Oldest first.
        self._chapters: deque[LogSection] = deque()
        #: Bytes of all of them.
        self.size = 0

    def __len__(self) -> int:
        return len(self._chapters)

    def add(self, tick: int, size: int, seen_s: float) -> None:
        """The next tick, with the bytes of its record."""
        chapters = self._chapters
        last = chapters[-1] if chapters else None
        if last is None or last.size >= self._bytes_part or seen_s - last.began_s >= self._span_s:
            last = LogSection(seen_s, seen_s)
            chapters.append(last)
        last.last = tick
        last.seen_s = seen_s
        last.size += size
        self.size += size

    def restore(self, chapters: Iterable[LogSection], now: float) -> None:
        """What a checkpoint kept; before anything is added."""
        for each in chapters:
            began_s, seen_s = min(each.began_s, now), min(each.seen_s, now)
            self._chapters.append(LogSection(began_s, seen_s, each.last, each.size))
            self.size += each.size

    def up_to(self, tick: int) -> tuple[LogSection, ...]:
        """What there is up to a tick, oldest first; one that goes on beyond it counts whole."""
        found = []
        began_after = 0
        for each in self._chapters:
            if began_after < tick:
                found.append(LogSection(each.began_s, each.seen_s, min(each.last, tick), each.size))
            began_after = each.last
        return tuple(found)

    def forget(self, tick: int) -> None:
        """The log begins after this tick."""
        chapters = self._chapters
        while chapters and chapters[0].last <= tick:
            self.size -= chapters.popleft().size

    def old_at(self, synced: int) -> float | None:
        """When the oldest chapter will be too old; None if none will, or it is not all synced."""
        if self._age_s_max is None:
            return None
        return self.aged_at(self._age_s_max, synced)

    def aged_at(self, age_s: float, synced: int) -> float | None:
        """When the oldest chapter will be of this age; None if there is none that is all synced."""
        if not self._chapters or self._chapters[0].last > synced:
            return None
        return self._chapters[0].seen_s + age_s

    def too_old(self, now: float, synced: int) -> int:
        """The newest synced tick that is too old; 0 if there is none."""
        return 0 if self._age_s_max is None else self.aged(self._age_s_max, now, synced)

    def aged(self, age_s: float, now: float, synced: int) -> int:
        """The newest synced tick of this age; 0 if there is none."""
        found = 0
        for chapter in self._chapters:
            if chapter.last > synced or chapter.seen_s + age_s > now:
                break
            found = chapter.last
        return found

    def beyond(self, bytes_max: int) -> int:
        """The tick up to which to forget so that at most so many bytes stay; 0 if they do."""
        size, found = self.size, 0
        for chapter in self._chapters:
            if size <= bytes_max:
                break
            size -= chapter.size
            found = chapter.last
        return found


# Checkpoints: what the catalog knows of a log, so that a start need not read all of it.
#
# Everything an origin promised can be found in its log, but a long log takes long to read. So now
# and then, after `checkpoint_ticks` synced ticks, the catalog takes over what the records up to a
# tick told: which events of each publisher are safe (`publishers`), which marks there are, and how
# old and how large the log is. A start reads the records after that tick, and no others. Rules:
#
# 1. A checkpoint is of a synced tick. Its row is put after all that it stands for; a crash keeps
#    puts in their order, so where it is, the rest is too.
# 2. A log that ends before its checkpoint has lost what was on disk: the broker does not start.
# 3. Where a row that it stands for cannot be read (`marks`, `publishers`), it is void: the whole
#    log is read. Its row goes before the unreadable one, so that no later start believes it.
# 4. Marks are put one by one, once, and taken out when the log has forgotten them or keeps no
#    vector for them any more. Rows beyond the checkpoint are left over from a crash; the log has
#    them too.
#
# Tables: `marks` (tick → vector), and the row `checkpoint` of `stream`.


STREAM = "stream"
MARKS = "marks"
KEY = "checkpoint"


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """How far the catalog speaks for the log, and what was true there."""

    tick: Position = 0
    #: No tick after it was made before this.
    time_ns: Nanoseconds = 0
    chapters: tuple[LogSection, ...] = ()


_checkpoint_encoder = msgspec.msgpack.Encoder()
_checkpoint_decoder = msgspec.msgpack.Decoder(tuple[Position, Nanoseconds, tuple[LogSection, ...]])
_vector_decoder = msgspec.msgpack.Decoder(dict[str, Version])

Catalog = Mapping[str, Mapping[str, bytes]]
Vector = dict[str, Version]


def read_checkpoint(value: bytes) -> Checkpoint:
    """The row `checkpoint` of `stream`."""
    found = Checkpoint(*_checkpoint_decoder.decode(value))
    last = 0
    for chapter in found.chapters:
        if not (isfinite(chapter.began_s) and isfinite(chapter.seen_s)) or chapter.size < 0:
            raise ValueError("a chapter has a time or a size that cannot be")
        if not last <= chapter.last <= found.tick:
            raise ValueError("its chapters are not in order")
        last = chapter.last
    return found


def read_marks(recovered: Recovered) -> tuple[dict[int, Vector], list[DamagedRecord]]:
    """Tick → the vector of a mark, ascending; and the rows that cannot be read."""
    good, bad = decoded(recovered, MARKS, _read_mark)
    return dict(sorted(good.values())), bad


def _read_mark(key: str, value: bytes) -> tuple[int, Vector]:
    return number_in(key, TICK_MAX), _vector_decoder.decode(value)


class StoredMarks:
    """The marks that the catalog has. See rule 4 at the top of this module."""

    __slots__ = ("_ticks",)

    def __init__(self, ticks: Iterable[int]) -> None:
        self._ticks = dict.fromkeys(sorted(ticks))

    def puts(self, marks: InterestMarks, synced: int) -> list[Put]:
        """What makes the catalog have the marks there are, as far as they are synced."""
        kept = {tick: vector for tick, vector in marks if 0 < tick <= synced}
        puts = [Put(MARKS, str(tick), None) for tick in self._ticks if tick not in kept]
        for tick, vector in kept.items():
            if tick not in self._ticks:
                puts.append(Put(MARKS, str(tick), _checkpoint_encoder.encode(vector)))
        self._ticks = dict.fromkeys(kept)
        return puts


def checkpoint_put(checkpoint: Checkpoint) -> Put:
    """The row of a checkpoint; to be put last."""
    return Put(STREAM, KEY, _checkpoint_encoder.encode(checkpoint))
