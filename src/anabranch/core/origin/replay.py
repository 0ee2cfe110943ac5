"""Nacks and replays: the origin resends past ticks to edges that request them.

A *nack* names ticks that did not arrive; they are resent through the network as they were first
sent, with their marks, but only to that edge. A *replay* requests events that match filters, and is
answered by a message (`ReplayRequest`). Both are answered from memory if possible, and otherwise
after the log has been read.

Rules

1. Only synced ticks are sent; requesting later ones is not an error.
2. Deleted ticks are withheld (nack) or refused (replay).
3. One nack brings at most `nack_ticks_max` ticks and `replay_bytes_max` bytes, and not the same
   tick again for a while (`RecentResends`). The rest is left to the next nack. So are ticks in
   memory if earlier ticks have to be read first: sent before those, they could fill a link or the
   edge, and the earlier ticks would be dropped again and again.
4. At most `reads_max` reads are in progress, and one per edge and replay. A request that would need
   another one is not answered; the edge repeats it.
5. The start of a replay "from a time on" is found by bisection, first in memory, then by reading
   single records, because times never decrease with the tick. A future time means the next tick. If
   ticks of that time may have been deleted, the replay is refused.

State: the reads in progress, and recent resends. Safe to lose.
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
    emissions_of,
    entry_of,
    fitting,
    size_of,
)
from anabranch.core.part_requests import CarryTo, PartRequest
from anabranch.core.ranges import RangeSet
from anabranch.core.routing.contract import Emission, WorkDone
from anabranch.matching.residual_checks import CHECK_WORK
from anabranch.model.encoding import decode_event
from anabranch.model.errors import FilterError, RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import Answer, NotKept, Replay
from anabranch.model.limits import STORED_LIMITS, Limits

EXAMINED_MAX = 4_096
FILTERS_MAX = 1_024
#: The cost of decoding an event, and the number of its bytes that add one to it. Each unit of the
#: weight of searches adds one for that many bytes, too.
_EXAMINE_WORK = 10
_WORK_BYTES = 512
#: The cost of parsing and compiling a filter, and the characters that add one to it.
_FILTER_WORK = 50
_FILTER_CHARACTERS = 8
#: The minimum work for one answer, however small steps are.
_ANSWER_WORK_MIN = 1_000


class ReplayRequest(msgspec.Struct, frozen=True):
    """A validated replay: an edge that catches up requests past events that match its filters.

    The edge receives them in chunks: an answer covers ticks up to `through`, and the edge continues
    from there. The origin keeps no state between two chunks.

    1. An answer examines at most `EXAMINED_MAX` ticks, and no more than fit into one step
       (`step_work_max`). It ends with the event that fills it, at the requested number of events or
       bytes. It examines at least one event, so that there is progress.
    2. Every match from `first` up to `through` is in the answer, or named as withheld.
    3. An event whose hop limit is below the distance to the edge does not exist for that edge.

    Prior art: catch-up streams of durable subscriptions in Gryphon (Bhola et al., DSN 2003).
    """

    edge: str
    request: int
    filters: tuple[Filter, ...]
    #: Total conjunctions of all filters: in the worst case an event is compared with each. And the
    #: weight of their searches.
    conjunctions: int
    search_weight: int
    #: The cost of reading the filters.
    reading_work: int
    events_max: int
    bytes_max: int
    #: Hops from this broker to the edge.
    distance: int
    time_ns: int
    #: Limit for one answer.
    work_max: int


def validated_replay(
    edge: str, replay: Replay, distance: int, options: Options, limits: Limits
) -> ReplayRequest:
    """Validate a replay and apply this broker's limits; `RemoteError` if it is invalid."""
    if len(replay.filters) > FILTERS_MAX:
        raise RemoteError(
            f"a replay has {len(replay.filters)} filters; at most {FILTERS_MAX} are allowed"
        )
    try:
        filters = tuple(Filter.parse(text, limits) for text in replay.filters)
        conjunctions = sum(len(filter_.conjunctions) for filter_ in filters)
        for filter_ in filters:
            filter_.compile()
    except FilterError as error:
        raise RemoteError(f"a replay has an invalid filter: {error}") from error
    events_max = min(max(replay.events_max, 1), options.replay_events_max)
    bytes_max = min(replay.bytes_max, options.replay_bytes_max)
    return ReplayRequest(
        edge,
        replay.request,
        filters,
        conjunctions,
        sum(filter_.search_weight for filter_ in filters),
        sum(_FILTER_WORK + len(text) // _FILTER_CHARACTERS for text in replay.filters),
        events_max,
        bytes_max,
        distance,
        replay.time_ns,
        max(options.step_work_max, _ANSWER_WORK_MIN),
    )


def answer(
    wanted: ReplayRequest, first: int, entries: Sequence[Entry], head: int
) -> tuple[Answer, int]:
    """Answer a replay from these ticks, or from the first of them; also returns the work."""
    data: list[Datum] = []
    withheld: list[Hole] = []
    size = work = 0
    through = first - 1
    for tick, entry in enumerate(entries, first):
        if isinstance(entry, Datum):
            if work > wanted.work_max:
                break
            work += _EXAMINE_WORK + (1 + wanted.search_weight) * len(entry.body) // _WORK_BYTES
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
    return any(filter_.matches(event) for filter_ in wanted.filters)


#: Recent answers per edge.
ANSWERS_MAX = 64


class RecentResends:
    """Recent resends per edge, so that an impatient edge is not served twice.

    An edge that lacks ticks requests them, and again when nothing arrives. Answers and requests may
    cross, paths may be slow, and a peer may repeat itself a hundred times. So a tick goes to the
    same edge at most once in `quiet_s`, half the interval after which an edge repeats a nack. The
    sets are bounded: an edge with too many of them is not answered until the oldest has expired.

    State: safe to lose; an edge may then be answered once more.
    """

    __slots__ = ("_quiet_s", "_recent")

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        #: Edge → (when it expires, resent ticks), oldest first.
        self._recent: dict[str, deque[tuple[float, RangeSet]]] = {}

    def due(self, now: float, edge: str, ranges: Iterable[tuple[int, int]]) -> RangeSet:
        """The ticks of these ranges that were not recently resent to this edge."""
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

    def record_resend(self, now: float, edge: str, ticks: RangeSet) -> None:
        if ticks:
            recent = self._recent.setdefault(edge, deque())
            recent.append((now + self._quiet_s, ticks))


class _Resend(msgspec.Struct, frozen=True):
    """The purpose of a read: to answer a nack."""

    edge: str


class _Chunk(msgspec.Struct, frozen=True):
    """The purpose of a read: to answer a replay."""

    wanted: ReplayRequest


class _Search(msgspec.Struct, frozen=True):
    """The purpose of a read: to find the tick of a time, which is in low … high."""

    wanted: ReplayRequest
    low: int
    high: int


_Purpose = _Resend | _Chunk | _Search


class Replays:
    """Serves nacks and replays of one log. See the rules at the top of this module."""

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
        return len(self._reads)

    # -- nacks ----------------------------------------------------------------------------------

    def nack(
        self, now: float, edge: str, ranges: Sequence[tuple[int, int]], time_ns: int
    ) -> list[PartRequest]:
        """Resend the ticks of these ranges, as far as possible now."""
        for first, last in ranges:
            if not 1 <= first <= last:
                raise RemoteError(f"a nack has {first}–{last}, which is not a range")
        tail = self._tail
        ticks_left = self._options.nack_ticks_max
        bytes_left = self._options.replay_bytes_max
        resent = RangeSet()
        requests: list[PartRequest] = []
        # Every range costs at least one tick, so further ranges could not be served anyway.
        for first, last in self._split_by_location(
            self._resends.due(now, edge, ranges[:ticks_left])
        ):
            has_pending_read = first >= tail.first and any(
                isinstance(request, Read) for request in requests
            )
            if ticks_left <= 0 or bytes_left <= 0 or has_pending_read:
                break
            if last < tail.oldest:
                requests.append(self._withheld(edge, first, last, time_ns))
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
                requests += found
                ticks_left -= last - first + 1
            resent.add(first, last)
        self._resends.record_resend(now, edge, resent)
        return requests

    def _split_by_location(self, ranges: RangeSet) -> Iterator[tuple[int, int]]:
        """The existing parts of these ranges; each is deleted, or on disk only, or in memory."""
        oldest, memory_first, synced = self._tail.oldest, self._tail.first, self._tail.synced
        for first, last in ranges:
            locations = ((1, oldest - 1), (oldest, memory_first - 1), (memory_first, synced))
            for low, high in locations:
                start, end = max(first, low), min(last, high)
                if start <= end:
                    yield start, end

    def _withheld(self, edge: str, first: int, last: int, time_ns: int) -> Emission:
        hole = Hole(first, last, "retention")
        return Emission(self._marks.at(last), [], [], [hole], self._tail.synced, time_ns, edge)

    def _emits(
        self, edge: str, first: int, entries: Sequence[Entry], time_ns: int
    ) -> list[Emission]:
        head = self._tail.synced
        return emissions_of(self._marks, first, entries, head=head, time_ns=time_ns, target=edge)

    # -- replays --------------------------------------------------------------------------------

    def replay(self, wanted: ReplayRequest, first: int) -> list[PartRequest]:
        """The next chunk of a replay from a tick on; 0: from the beginning, or by time."""
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
        """Continue from the first tick of a time, if it still exists."""
        tail = self._tail
        if first <= tail.oldest and wanted.time_ns <= tail.deleted_ns:
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
        return [CarryTo(wanted.edge, found), WorkDone(work)]

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
        """Continue the request that this read was for."""
        purpose = self._reads.pop(read.request, None)
        if purpose is None:
            return []
        records = enumerate(map(decode_record, read.records), read.first)
        entries = [entry_of(tick, record) for tick, record in records]
        if isinstance(purpose, _Search):
            return self._searched(purpose, read.first, entries)
        # The start of the log may have been deleted in the meantime.
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
