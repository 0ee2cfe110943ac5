"""Reads from copies: a keeper answers edges while the origin of a stream does not.

An edge that misses ticks sends `NackCopy`, one that catches up sends `ReplayCopy`
(`core.edge.sources` decides when). The keeper reads its copy and answers with `Resent`
or `Answer`. It knows less than the origin: not the newest ticks, not the interest of edges, not the
events that were never on disk. So it claims less (ADR 0030, rules 17 to 19).

Rules

1. Nothing is said about ticks that the keeper does not know to be confirmed and has on its disk. It
   never says that there is nothing more: a replay from such a tick on is answered by `NotInCopy`,
   so that the edge asks the origin at once.
2. `Resent` has every event of its ticks, so it is valid for any interest of the edge. A tick
   without an event is silent: a mark, a life, catalog rows.
3. Ticks before the beginning of the copy are deleted at the origin, which told that beginning. They
   are withheld (`Resent`) or refused (`NotKept`).
4. A transient event was never written. Its tick is withheld only if the edge has not heard of the
   origin for long; otherwise it is left to the origin, which may have it in memory: an answer to a
   replay ends before it, and a replay from it on is answered by `NotInCopy`.
5. As at the origin, a nack brings at most `nack_ticks_max` ticks and `replay_bytes_max` bytes, and
   no tick again for a while; a replay examines at most `EXAMINED_MAX` ticks and one step of work.
   One nack and one replay of an edge are read at a time, and few reads in all. What finds no place
   gets no answer; the edge asks again, perhaps another broker.
6. Starts by time, holds and ownership are asked of the origin only.

State: the reads in progress, and recent resends. Safe to lose.
"""

from collections.abc import Sequence

import msgspec

from anabranch.core.contract import LogRead, Read
from anabranch.core.options import Options
from anabranch.core.origin.log_tail import (
    TRANSIENT,
    Entry,
    SilentTick,
    by_kind,
    decode_record,
    entry_of,
)
from anabranch.core.origin.replay import (
    EXAMINED_MAX,
    RecentResends,
    ReplayRequest,
    answer,
    validated_replay,
)
from anabranch.core.part_requests import CarryTo, PartRequest
from anabranch.core.ranges import RangeSet
from anabranch.core.replication.keeper import Keeper, KeptCopy
from anabranch.core.routing.contract import WorkDone
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import ForCopies, NackCopy, NotInCopy, NotKept, ReplayCopy, Resent
from anabranch.model.limits import Limits
from anabranch.model.network import Network

#: Above all requests of the keeper itself.
FIRST_REQUEST = 1 << 50
#: Of the reads that the origin may have in progress, one in so many.
_READS_SHARE = 4
#: The cost of one tick of a resend.
_TICK_WORK = 5


class _Resend(msgspec.Struct, frozen=True):
    """The purpose of a read: to answer a nack."""

    edge: str
    copy: KeptCopy
    ticks: RangeSet
    withheld: list[Hole]
    is_last_resort: bool


class _Chunk(msgspec.Struct, frozen=True):
    """The purpose of a read: to answer a replay."""

    wanted: ReplayRequest
    copy: KeptCopy
    is_last_resort: bool


def known_through(copy: KeptCopy) -> int:
    """The newest tick of a copy that may be served (rule 1)."""
    return min(copy.confirmed, copy.synced)


class CopyReads:
    """Serves nacks and replays from all copies of a broker. See the top of this module."""

    __slots__ = (
        "_keeper",
        "_limits",
        "_network",
        "_options",
        "_reads",
        "_reads_max",
        "_request",
        "_resends",
    )

    def __init__(self, keeper: Keeper, network: Network, options: Options, limits: Limits) -> None:
        self._keeper = keeper
        self._network = network
        self._options = options
        self._limits = limits
        self._reads: dict[int, _Resend | _Chunk] = {}
        self._reads_max = max(options.reads_max // _READS_SHARE, 1)
        self._request = FIRST_REQUEST
        #: Stream → what was recently resent.
        self._resends: dict[str, RecentResends] = {}

    def carried(self, now: float, source: str, content: ForCopies) -> Sequence[PartRequest]:
        """Process a request of an edge; `RemoteError` if it is invalid."""
        if source not in self._network.edges:
            raise RemoteError(f"{source!r} is not an edge of this network")
        copy = self._keeper.copy_of(content.stream)
        if copy is None or not copy.row.is_open:
            return []
        if isinstance(content, NackCopy):
            return self._nack(now, source, content, copy)
        return self._replay(source, content, copy)

    # -- nacks ------------------------------------------------------------------------------------

    def _nack(self, now: float, edge: str, nack: NackCopy, copy: KeptCopy) -> Sequence[PartRequest]:
        for first, last in nack.ranges:
            if not 1 <= first <= last:
                raise RemoteError(f"a nack has {first}–{last}, which is not a range")
        known, oldest = known_through(copy), copy.row.first
        if not nack.ranges:
            return [CarryTo(edge, Resent(copy.stream, [], head=known))] if known else []
        ticks_max = self._options.nack_ticks_max
        due = self._recent(copy.stream).due(now, edge, nack.ranges[:ticks_max])
        withheld = [Hole(*each, "retention") for each in due.overlap(1, oldest - 1)]
        found = due.overlap(oldest, known)
        if not found:
            return self._deleted(now, edge, copy, withheld)
        first = found[0][0]
        last = min(found[-1][1], first + ticks_max - 1)
        resend = _Resend(
            edge, copy, RangeSet(due.overlap(first, last)), withheld, nack.is_last_resort
        )
        if self._is_reading(resend):
            return []
        return self._read(resend, copy, first, last)

    def _deleted(
        self, now: float, edge: str, copy: KeptCopy, withheld: list[Hole]
    ) -> Sequence[PartRequest]:
        if not withheld:
            return []
        ticks = RangeSet((hole.first, hole.last) for hole in withheld)
        self._recent(copy.stream).record_resend(now, edge, ticks)
        head = known_through(copy)
        return [CarryTo(edge, Resent(copy.stream, [], withheld=withheld, head=head))]

    def _recent(self, stream: str) -> RecentResends:
        recent = self._resends.get(stream)
        if recent is None:
            recent = self._resends[stream] = RecentResends(self._options.nack_again_s / 2)
        return recent

    def _resent(
        self, now: float, resend: _Resend, first: int, entries: Sequence[Entry]
    ) -> Sequence[PartRequest]:
        sent = RangeSet((hole.first, hole.last) for hole in resend.withheld)
        data: list[Datum] = []
        silent: list[tuple[int, int]] = []
        withheld = list(resend.withheld)
        for start, end in resend.ticks.overlap(first, first + len(entries) - 1):
            part = entries[start - first : end - first + 1]
            some_data, some_silent, some_withheld = by_kind(start, part)
            if not resend.is_last_resort:
                some_withheld = [hole for hole in some_withheld if hole.reason != TRANSIENT]
            data += some_data
            silent += some_silent
            withheld += some_withheld
            sent.add(start, end)
        if not (data or silent or withheld):
            return []
        copy = resend.copy
        self._recent(copy.stream).record_resend(now, resend.edge, sent)
        found = Resent(copy.stream, data, silent, withheld, known_through(copy))
        return [CarryTo(resend.edge, found), WorkDone(_TICK_WORK * len(entries))]

    # -- replays ----------------------------------------------------------------------------------

    def _replay(self, edge: str, content: ReplayCopy, copy: KeptCopy) -> Sequence[PartRequest]:
        replay = content.replay
        if not replay.first:
            raise RemoteError("a replay from a copy begins at a tick")
        if replay.first < copy.row.first:
            return [CarryTo(edge, NotKept(replay.request, copy.row.first))]
        known = known_through(copy)
        if replay.first > known:
            return [CarryTo(edge, NotInCopy(replay.request))]
        if self._is_full:
            return []
        distance = self._network.distance(copy.stream, edge)
        wanted = validated_replay(edge, replay, distance, self._options, self._limits)
        chunk = _Chunk(wanted, copy, content.is_last_resort)
        if self._is_reading(chunk):
            return [WorkDone(wanted.reading_work)]
        last = min(known, replay.first + EXAMINED_MAX - 1)
        return [*self._read(chunk, copy, replay.first, last), WorkDone(wanted.reading_work)]

    def _answered(
        self, chunk: _Chunk, first: int, entries: Sequence[Entry]
    ) -> Sequence[PartRequest]:
        if not chunk.is_last_resort:
            # Rule 4.
            places = (place for place, entry in enumerate(entries) if _is_transient(entry))
            entries = entries[: next(places, len(entries))]
        if not entries:
            return [CarryTo(chunk.wanted.edge, NotInCopy(chunk.wanted.request))]
        found, work = answer(chunk.wanted, first, entries, known_through(chunk.copy))
        return [CarryTo(chunk.wanted.edge, found), WorkDone(work)]

    # -- the disk ---------------------------------------------------------------------------------

    @property
    def _is_full(self) -> bool:
        return len(self._reads) >= self._reads_max

    def _is_reading(self, purpose: _Resend | _Chunk) -> bool:
        """Whether a read for the same purpose is in progress (rule 5)."""
        return any(_is_same(each, purpose) for each in self._reads.values())

    def _read(
        self, purpose: _Resend | _Chunk, copy: KeptCopy, first: int, last: int
    ) -> list[PartRequest]:
        if self._is_full:
            return []
        self._request += 1
        self._reads[self._request] = purpose
        bytes_max = self._options.replay_bytes_max
        return [Read(self._request, first, last, bytes_max, copy.stream)]

    def log_read(self, now: float, read: LogRead) -> Sequence[PartRequest]:
        """Records of a copy were read for an edge."""
        purpose = self._reads.pop(read.request, None)
        if purpose is None:
            return []
        copy = purpose.copy
        if self._keeper.copy_of(copy.stream) is not copy or read.first < copy.row.first:
            # Dropped, or deleted meanwhile.
            return []
        records = read.records[: max(known_through(copy) - read.first + 1, 0)]
        entries = [
            entry_of(tick, decode_record(record)) for tick, record in enumerate(records, read.first)
        ]
        if isinstance(purpose, _Resend):
            return self._resent(now, purpose, read.first, entries)
        return self._answered(purpose, read.first, entries)


def _is_transient(entry: Entry) -> bool:
    return isinstance(entry, SilentTick) and entry.reason == TRANSIENT


def _is_same(one: _Resend | _Chunk, other: _Resend | _Chunk) -> bool:
    if one.copy is not other.copy:
        return False
    if isinstance(one, _Resend) or isinstance(other, _Resend):
        return isinstance(one, _Resend) and isinstance(other, _Resend) and one.edge == other.edge
    return one.wanted.edge == other.wanted.edge and one.wanted.request == other.wanted.request
