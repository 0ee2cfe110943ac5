"""History: what edges ask for of ticks that were sent before.

Two questions, with two kinds of answer. A *nack* names ticks that did not arrive; they are sent
again through the network as they were sent first, with the marks they have, but only to that edge.
A *replay* asks by filters, and is answered by a message (see `replaying`). Both are answered from
memory where that reaches back far enough, and otherwise when the log has been read. Rules:

1. Nothing beyond what is synced is told; asking for it is no error.
2. What the log does not have any more is withheld (a nack) or refused (a replay).
3. One nack brings at most `nack_ticks_max` ticks and `replay_bytes_max` bytes, and the same tick
   not again for a while (see `resending`). The rest is left to the next nack. So is what is in
   memory, if earlier ticks have to be read: sent before them it could fill a link, or the edge,
   and they would be dropped, time and again.
4. At most `reads_max` reads are under way, and one per edge and replay. What would need another one
   is left unanswered: whoever needs an answer asks again.
5. "From a time on" is found by bisection, first in memory, then by reading single records, since
   times never decrease with the tick. A time that has not come yet means the next tick. If ticks
   of that time may have been forgotten, it is refused.

State: the reads under way, and what was resent lately. Safe to lose.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from anabranch.core.contract import LogRead, Read
from anabranch.core.options import Options
from anabranch.core.origin.log_tail import (
    Entry,
    InterestMarks,
    LogTail,
    add_hole,
    decode_record,
    emits_of,
    entry_of,
    fitting,
    size_of,
)
from anabranch.core.part_requests import CarryTo, PartRequest
from anabranch.core.ranges import RangeSet
from anabranch.core.routing.contract import CHECK_WORK, Emission, WorkDone
from anabranch.model.encoding import decode_event
from anabranch.model.errors import FilterError, RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import Answer, NotKept, Replay
from anabranch.model.limits import STORED_LIMITS, Limits

# Replays: the part of the past that an edge wants, by its filters.
#
# An edge that has to catch up asks for what matches some filters from a tick on, and gets it in
# chunks: an answer goes up to a tick, and the edge asks from there. The origin remembers nothing
# between two chunks. Rules:
#
# 1. An answer examines at most `EXAMINED_MAX` ticks, and no more than one step has time for
#    (`step_work_max`). It ends with the first event that fills it: at most as many events and bytes
#    as were asked for. It examines one event at least, so that there is progress.
# 2. Everything that matches from `first` up to `through` is in the answer, or named as withheld.
# 3. An event with a hop limit below the distance to the edge does not exist for it.
#
# This module keeps no state.
#
# Prior art: catch-up streams of durable subscriptions in Gryphon (Bhola et al., DSN 2003).


EXAMINED_MAX = 4_096
FILTERS_MAX = 1_024
#: What it costs to decode an event, and one more for each so many bytes of it, which is also what a
#: conjunction costs that searches its texts.
_EXAMINE_WORK = 10
_WORKED_BYTES = 512
#: So much is done for one answer, however small steps are.
_LEAST_WORK = 1_000


class ReplayRequest(msgspec.Struct, frozen=True):
    """A replay that is understood."""

    edge: str
    request: int
    filters: tuple[Filter, ...]
    #: Of all filters: an event is compared with each, in the worst case.
    conjunctions: int
    events_max: int
    bytes_max: int
    #: Hops from here to the edge.
    distance: int
    time_ns: int
    #: Of one answer.
    work_max: int


def understood(
    edge: str, replay: Replay, distance: int, options: Options, limits: Limits
) -> ReplayRequest:
    """What an edge wants, within our own bounds."""
    if len(replay.filters) > FILTERS_MAX:
        raise RemoteError(
            f"a replay has {len(replay.filters)} filters; at most {FILTERS_MAX} are allowed"
        )
    try:
        filters = tuple(Filter.parse(text, limits) for text in replay.filters)
        conjunctions = sum(len(each.conjunctions) for each in filters)
    except FilterError as error:
        raise RemoteError(f"a replay has a filter that is none: {error}") from error
    events_max = min(max(replay.events_max, 1), options.replay_events_max)
    bytes_max = min(replay.bytes_max, options.replay_bytes_max)
    return ReplayRequest(
        edge,
        replay.request,
        filters,
        conjunctions,
        events_max,
        bytes_max,
        distance,
        replay.time_ns,
        max(options.step_work_max, _LEAST_WORK),
    )


def answer(
    wanted: ReplayRequest, first: int, entries: Sequence[Entry], head: int
) -> tuple[Answer, int]:
    """What is wanted of these ticks, or the beginning of it; and the work that it took."""
    data: list[Datum] = []
    withheld: list[Hole] = []
    size = work = 0
    through = first - 1
    for tick, entry in enumerate(entries, first):
        if isinstance(entry, Datum):
            if work > wanted.work_max:
                break
            work += _EXAMINE_WORK + (1 + wanted.conjunctions) * len(entry.body) // _WORKED_BYTES
            work += CHECK_WORK * len(wanted.filters) + wanted.conjunctions
            if _is_wanted(wanted, entry):
                size += len(entry.body)
                if data and size > wanted.bytes_max:
                    break
                data.append(entry)
        elif entry.reason:
            add_hole(withheld, tick, entry.reason)
        through = tick
        if len(data) >= wanted.events_max:
            break
    return Answer(wanted.request, first, through, head, data, withheld), work


def _is_wanted(wanted: ReplayRequest, datum: Datum) -> bool:
    event = decode_event(datum.body, STORED_LIMITS)
    hop_limit = event.control.hop_limit
    if hop_limit is not None and hop_limit < wanted.distance:
        return False
    return any(each.matches(event) for each in wanted.filters)


#: Answers to one edge that are remembered at a time.
ANSWERS_MAX = 64


class RecentResends:
    """What was resent to whom lately, so that an impatient edge is not served twice.

    An edge that lacks ticks asks, and asks again when nothing comes. Answers and questions may
    cross, paths may be slow, and a peer may repeat itself a hundred times. So a tick goes to the
    same edge at most once in `quiet_s`, which is half the time after which an edge asks again. The
    sets are bounded: an edge with too many of them is not answered until the oldest has expired.

    State: safe to lose; an edge is then answered once more.
    """

    __slots__ = ("_quiet_s", "_recent")

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        #: Edge → (when it may ask again, what it got), oldest first.
        self._recent: dict[str, deque[tuple[float, RangeSet]]] = {}

    def due(self, now: float, edge: str, ranges: Iterable[tuple[int, int]]) -> RangeSet:
        """What of these ranges was not resent to this edge lately."""
        recent = self._recent.get(edge)
        while recent and recent[0][0] <= now:
            recent.popleft()
        if recent and len(recent) >= ANSWERS_MAX:
            return RangeSet()
        wanted = RangeSet(ranges)
        for _, ticks in recent or ():
            for first, last in ticks:
                wanted.remove(first, last)
        return wanted

    def resent(self, now: float, edge: str, ticks: RangeSet) -> None:
        """These ticks are on the way to this edge."""
        if ticks:
            recent = self._recent.setdefault(edge, deque())
            recent.append((now + self._quiet_s, ticks))


#: What costs no more than this is not worth a word.
_LITTLE_WORK = 500


class _Resend(msgspec.Struct, frozen=True):
    """A read for a nack."""

    edge: str


class _Chunk(msgspec.Struct, frozen=True):
    """A read for a replay."""

    wanted: ReplayRequest


class _Search(msgspec.Struct, frozen=True):
    """A read for finding the tick of a time: it is in low … high."""

    wanted: ReplayRequest
    low: int
    high: int


_Purpose = _Resend | _Chunk | _Search


class Replays:
    """Answers from memory and log. See the rules at the top of this module."""

    __slots__ = ("_marks", "_options", "_reads", "_request", "_resends", "_tail")

    def __init__(self, tail: LogTail, marks: InterestMarks, options: Options) -> None:
        self._tail = tail
        self._marks = marks
        self._options = options
        self._resends = RecentResends(options.nack_again_s / 2)
        self._reads: dict[int, _Purpose] = {}
        self._request = 0

    @property
    def reads(self) -> int:
        """Reads of the log that are under way."""
        return len(self._reads)

    # -- nacks ----------------------------------------------------------------------------------

    def nack(
        self, now: float, edge: str, ranges: Sequence[tuple[int, int]], time_ns: int
    ) -> list[PartRequest]:
        """Resend what of these ranges can be resent now."""
        for first, last in ranges:
            if not 1 <= first <= last:
                raise RemoteError(f"a nack has the range {first}–{last}, which is none")
        tail = self._tail
        ticks_left = self._options.nack_ticks_max
        bytes_left = self._options.replay_bytes_max
        resent = RangeSet()
        asks: list[PartRequest] = []
        # Every range costs one tick at least, so further ones could not be served anyway.
        for first, last in self._by_place(self._resends.due(now, edge, ranges[:ticks_left])):
            must_wait = first >= tail.first and any(isinstance(ask, Read) for ask in asks)
            if ticks_left <= 0 or bytes_left <= 0 or must_wait:
                break
            if last < tail.oldest:
                asks.append(self._hole(edge, first, last, time_ns))
                ticks_left -= 1
            else:
                last = min(last, first + ticks_left - 1)
                if first < tail.first:
                    found: Sequence[PartRequest] = self._read(_Resend(edge), first, last)
                else:
                    entries = fitting(tail.between(first, last), bytes_left)
                    last = first + len(entries) - 1
                    bytes_left -= sum(map(size_of, entries))
                    found = self._emits(edge, first, entries, time_ns)
                if not found:
                    break
                asks += found
                ticks_left -= last - first + 1
            resent.add(first, last)
        self._resends.resent(now, edge, resent)
        return asks

    def _by_place(self, ranges: RangeSet) -> Iterator[tuple[int, int]]:
        """What exists of these ranges; each part is gone, or in the log only, or in memory."""
        oldest, first_here, synced = self._tail.oldest, self._tail.first, self._tail.synced
        for first, last in ranges:
            places = ((1, oldest - 1), (oldest, first_here - 1), (first_here, synced))
            for low, high in places:
                start, end = max(first, low), min(last, high)
                if start <= end:
                    yield start, end

    def _hole(self, edge: str, first: int, last: int, time_ns: int) -> Emission:
        hole = Hole(first, last, "retention")
        return Emission(self._marks.at(last), [], [], [hole], self._tail.synced, time_ns, edge)

    def _emits(
        self, edge: str, first: int, entries: Sequence[Entry], time_ns: int
    ) -> list[Emission]:
        head = self._tail.synced
        return emits_of(self._marks, first, entries, head=head, time_ns=time_ns, target=edge)

    # -- replays --------------------------------------------------------------------------------

    def replay(self, wanted: ReplayRequest, first: int) -> list[PartRequest]:
        """The next chunk of what is wanted, from a tick on; 0: from the beginning, or by time."""
        for purpose in self._reads.values():
            if isinstance(purpose, _Chunk | _Search) and _is_same(purpose.wanted, wanted):
                return []
        if first:
            return self._from_tick(wanted, first)
        tail = self._tail
        if not wanted.time_ns:
            return self._from_tick(wanted, tail.oldest)
        found = tail.first_at(wanted.time_ns)
        if found > tail.first or tail.first == tail.oldest:
            return self._from_time(wanted, min(found, tail.synced + 1))
        return self._search(wanted, tail.oldest, tail.first)

    def _from_time(self, wanted: ReplayRequest, first: int) -> list[PartRequest]:
        """From the first tick of a time that is still there."""
        tail = self._tail
        if first <= tail.oldest and wanted.time_ns <= tail.forgotten_ns:
            return [CarryTo(wanted.edge, NotKept(wanted.request, tail.oldest))]
        return self._from_tick(wanted, first)

    def _from_tick(self, wanted: ReplayRequest, first: int) -> list[PartRequest]:
        tail = self._tail
        if first < tail.oldest:
            return [CarryTo(wanted.edge, NotKept(wanted.request, tail.oldest))]
        if first > tail.synced:
            nothing = Answer(wanted.request, first, tail.synced, tail.synced, [])
            return [CarryTo(wanted.edge, nothing)]
        last = min(first + EXAMINED_MAX - 1, tail.synced)
        if first >= tail.first:
            return self._answer(wanted, first, tail.between(first, last))
        return [*self._read(_Chunk(wanted), first, min(last, tail.first - 1))]

    def _answer(
        self, wanted: ReplayRequest, first: int, entries: Sequence[Entry]
    ) -> list[PartRequest]:
        found, work = answer(wanted, first, entries, self._tail.synced)
        asks: list[PartRequest] = [CarryTo(wanted.edge, found)]
        return [*asks, WorkDone(work)] if work > _LITTLE_WORK else asks

    def _search(self, wanted: ReplayRequest, low: int, high: int) -> list[PartRequest]:
        low = max(low, self._tail.oldest)
        if low >= high:
            return self._from_time(wanted, low)
        middle = (low + high) // 2
        return [*self._read(_Search(wanted, low, high), middle, middle)]

    # -- the log --------------------------------------------------------------------------------

    def _read(self, purpose: _Purpose, first: int, last: int) -> list[Read]:
        if len(self._reads) >= self._options.reads_max:
            return []
        self._request += 1
        self._reads[self._request] = purpose
        return [Read(self._request, first, last, self._options.replay_bytes_max)]

    def log_read(self, read: LogRead, time_ns: int) -> list[PartRequest]:
        """The log was read for somebody."""
        purpose = self._reads.pop(read.request, None)
        if purpose is None:
            return []
        records = enumerate(map(decode_record, read.records), read.first)
        entries = [entry_of(tick, record) for tick, record in records]
        if isinstance(purpose, _Search):
            return self._searched(purpose, read.first, entries)
        # The log may have lost its beginning meanwhile.
        lost = max(self._tail.oldest - read.first, 0)
        if isinstance(purpose, _Resend):
            return [*self._emits(purpose.edge, read.first + lost, entries[lost:], time_ns)]
        if lost or not entries:
            return self._from_tick(purpose.wanted, read.first) if lost else []
        return self._answer(purpose.wanted, read.first, entries)

    def _searched(self, search: _Search, tick: int, entries: Sequence[Entry]) -> list[PartRequest]:
        if tick < self._tail.oldest:
            return self._search(search.wanted, self._tail.oldest, search.high)
        if not entries:
            return []
        if entries[0].time_ns >= search.wanted.time_ns:
            return self._search(search.wanted, search.low, tick)
        return self._search(search.wanted, tick + 1, search.high)


def _is_same(one: ReplayRequest, other: ReplayRequest) -> bool:
    return (one.edge, one.request) == (other.edge, other.request)
