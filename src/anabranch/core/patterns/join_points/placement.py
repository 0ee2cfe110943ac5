"""Where join points should be: looks for better places, and has them moved there.

    has the point      AskPlace ──────────►  a few others
    (or is asked)      WouldTake ◄─────────  what it would cost there
                       and then, as in `moving`

A pattern begins where its client is (`points`); placing it is its first move. Rules:

1. One that is placed by *topology* is placed once, as soon as anybody advertises what it needs. One
   that is placed by *cost* is looked at when it is defined, if statistics say what it will need,
   and every `pattern_review_s`, more seldom after a move. `simple` ones stay.
2. Whoever has a join point asks those that may be better. Only who answers is moved to: a broker
   that is not there would keep the pattern from being detected.
3. Rates are those of statistics; of an origin without any, what came of it since the last look. How
   many matches there are is counted, once there was a look before; guessed until then.
4. One question is open at a time, and is given up after `pattern_again_s`; next is who has waited
   longest. So patterns that are at
   one broker move one after the other, and each sees what the one before has changed: what has come
   or gone is added to the load until that is measured.
5. One that is to go stops reporting until it may go, for `pattern_again_s` at most.

State: what was seen at the last look, and the open question. Safe to lose.

Prior art: DCSR and the movement of join points, spec PADRES section 4.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, sqrt
from typing import Final, NamedTuple

from msgspec.structs import replace

from anabranch.core.contract import Note, earliest
from anabranch.core.part_requests import CarryTo
from anabranch.core.patterns.join_points.join_point import JoinPoint, Turns
from anabranch.core.patterns.join_points.moves import JoinPointMoves
from anabranch.core.patterns.join_points.placement_cost import (
    BrokerBusyness,
    PatternTraffic,
    cost_of,
    least_cost,
    matches_per_s,
    part_rates,
    rate_of,
)
from anabranch.core.patterns.join_points.records import Sources, name_of
from anabranch.core.patterns.join_points.registry import JoinPointState
from anabranch.core.routing.mesh.shared import NetworkDistances
from anabranch.model.errors import RemoteError
from anabranch.model.event import Value
from anabranch.model.frames import AskPlace, WouldTake
from anabranch.model.pattern.match import FINAL, MATCH, PATTERN, PointRecord

# Where a pattern should be detected: who is asked, and whose answer is good enough.
#
# Rules:
#
# 1. *By topology*, a pattern goes from where it was defined towards its sources, as long as one
#    neighbour is nearer to all of them, and is detected where the ways part. Where that broker
#    takes no join points (a relay), at the edge next to it; of several, the one nearest to the
#    sources.
# 2. *By cost*, the `ASKED_MAX` edges with the least traffic over links are asked what it would cost
#    there; their answers know the times of brokers, which nobody else does. An answer below what
#    the links alone cost is taken as that: it cannot be true.
# 3. A place is better if it costs less than `GAIN` of the present one, and by `LEAST` at least. So
#    every move makes the sum of all costs fall by a share of it, and while loads stay as they are
#    there are few: nothing goes back and forth. What is hardly better is not worth a move, which
#    costs one window of events. Rates that were counted are off by about the root of the count, so
#    the fewer events there were, the clearer the gain has to be.
# 4. Whoever has moved waits twice as long as before until it looks again, 2 to the `RESTLESS_MAX`
#    of the usual time at most; a look that finds nothing better halves that. So where somebody
#    lies, or loads sway, a pattern moves once in a while and not at every look.
#
# Distances are those of the network's file. That a broker is there is known by its answer.
#
# These are functions; they keep no state.
#
# Prior art: topology-based routing of composite subscriptions, and DCSR (spec PADRES section 4).
# DCSR decides anew at every broker on the way; here one decision looks at all places.


ASKED_MAX: Final = 8
#: A better place costs less than this part of the present one,
GAIN: Final = 0.8
#: and so much less, in events that are under way.
LEAST: Final = 1e-6
RESTLESS_MAX: Final = 6

#: Edge → broker → links between them.
Distances = Callable[[str], Mapping[str, int]]
#: Broker → those that it has links to.
Neighbours = Callable[[str], Iterable[str]]


def meeting_place(
    start: str,
    sources: Sequence[str],
    edges: Iterable[str],
    distances: Distances,
    neighbours: Neighbours,
) -> str:
    """The edge where a pattern belongs by topology (rule 1)."""
    maps = [distances(source) for source in sources]
    broker = start
    while True:
        nearer = [
            near for near in neighbours(broker) if all(hops[near] < hops[broker] for hops in maps)
        ]
        if not nearer:
            break
        broker = min(nearer, key=lambda near: (sum(hops[near] for hops in maps), near))

    def order(edge: str) -> tuple[int, int, str]:
        return distances(edge)[broker], sum(hops[edge] for hops in maps), edge

    return min(edges, key=order)


def worth_asking(
    traffic: PatternTraffic, own: str, edges: Iterable[str], distances: Distances
) -> dict[str, float]:
    """The edges that may be better, with what they cost at least (rule 2)."""
    floors = {
        edge: least_cost(traffic, lambda end, edge=edge: distances(end)[edge])  # type: ignore[misc]
        for edge in edges
        if edge != own
    }
    best = sorted(floors, key=lambda edge: (floors[edge], edge))[:ASKED_MAX]
    return {edge: floors[edge] for edge in best}


def rest_s(review_s: float, restless: int) -> float:
    """How long until the next look, after so many moves (rule 4)."""
    return review_s * 2.0 ** min(restless, RESTLESS_MAX)


def better_place(
    cost: float,
    offers: Mapping[str, float],
    floors: Mapping[str, float],
    counted: float = inf,
) -> str:
    """The edge that a pattern should move to; "" if it should stay (rule 3). `counted` are the
    events that rates rest on."""
    believed = {edge: max(offer, floors.get(edge, 0.0)) for edge, offer in offers.items()}
    if not believed:
        return ""
    best = min(believed, key=lambda edge: (believed[edge], edge))
    gain = GAIN - (1 / sqrt(counted) if counted else 1.0)
    is_better = believed[best] < gain * cost and cost - believed[best] > LEAST
    return best if is_better else ""


class TrafficCounts(NamedTuple):
    """What was counted since the look before."""

    #: Origin → events per second,
    rates: dict[str, float]
    matches_per_s: float
    #: and how many events that rests on.
    events: int


class _Tally(NamedTuple):
    """What a join point had counted at a look."""

    session: int
    at: float
    by_stream: dict[str, int]
    events: int
    reported: int


class TrafficTallies:
    """Tallies: what came to join points and what they found, between two looks.

    Rates for which there are no statistics are counted. The first look only begins: what a join
    point is given again when it starts came at another time, and counts for nothing.

    State: the counts of the last look. Safe to lose.
    """

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}

    def look(self, now: float, point: JoinPoint) -> TrafficCounts | None:
        """What came since the last look; None if this is the first one of this activation."""
        counters, pattern_id = point.counters, point.record.id
        by_stream = dict(counters.by_stream)
        tally = _Tally(point.session, now, by_stream, counters.events, counters.reported)
        before = self._tallies.get(pattern_id)
        self._tallies[pattern_id] = tally
        if before is None or before.session != tally.session or now <= before.at:
            return None
        for_s = now - before.at
        rates = {
            stream: (count - before.by_stream.get(stream, 0)) / for_s
            for stream, count in by_stream.items()
        }
        matches_per_s = (tally.reported - before.reported) / for_s
        return TrafficCounts(rates, matches_per_s, tally.events - before.events)

    def forgotten(self, pattern_id: str) -> None:
        """It is not here any more."""
        self._tallies.pop(pattern_id, None)


#: Requests of an activation have numbers of its own.
_NUMBERS = 1 << 20
#: Answers that are remembered, for the load that they announce.
_ANSWERS_MAX = 1_024
_RATE_MAX = 1 << 53
_COST_MAX = 1 << 62


class _Inquiry:
    """An open question."""

    __slots__ = ("cost", "counted", "floors", "number", "offers", "pattern", "session", "until")

    def __init__(self, point: JoinPoint, number: int, cost: float, until: float) -> None:
        self.pattern = point.record.id
        self.session = point.session
        self.number = number
        #: What it costs here; by topology, more than anywhere.
        self.cost = cost
        #: How many events the rates rest on.
        self.counted = inf
        #: Who is asked, and what it costs there at least.
        self.floors: dict[str, float] = {}
        #: Who has answered; None if it will not have it.
        self.offers: dict[str, float | None] = {}
        self.until = until


class PlacementCounters:
    """What was done in this life."""

    __slots__ = ("asked", "moved")

    def __init__(self) -> None:
        #: Questions to other brokers, and moves that came of them.
        self.asked = 0
        self.moved = 0


class PlacementReview:
    """Looks for places. See the rules at the top of this module."""

    def __init__(self, state: JoinPointState, moving: JoinPointMoves) -> None:
        self.counters = PlacementCounters()
        #: Id → what it costs here, as of the last look.
        self.costs: dict[str, float] = {}
        self.is_departing = False
        self._state = state
        self._moving = moving
        self._chart = NetworkDistances(state.outlook.network)
        self._number = 0
        #: Which is looked at, and when.
        self._turns = Turns()
        self._tallies = TrafficTallies()
        #: Id → what it has the broker deal with, per second, as of the last look.
        self._brings: dict[str, float] = {}
        self._inquiry: _Inquiry | None = None
        #: Id → where it is to go, and until when that holds.
        self._going: dict[str, tuple[str, float]] = {}
        #: Who asked, and the id → what it would have this broker deal with.
        self._asked: dict[tuple[str, str], float] = {}
        #: Id → until when its coming (or, below 0, going) is not in the measured load, and what it
        #: brings.
        self._shifts: dict[str, tuple[float, float]] = {}

    # -- what there is to look at -----------------------------------------------------------------

    def begins(self, now: float, record: PointRecord, *, is_new: bool) -> None:
        """A join point is here: defined just now, or found at the start."""
        is_fixed = record.placement == "simple" or record.is_placed or record.is_over
        if self._state.outlook.scout is not None and not is_fixed:
            self._turns.wants(record.id, now if is_new else now + self._rest_s(record))

    def _rest_s(self, record: PointRecord) -> float:
        return rest_s(self._state.options.pattern_review_s, record.restless)

    def taken(self, now: float, record: PointRecord) -> None:
        """A join point has come from elsewhere (rule 4)."""
        self.begins(now, record, is_new=False)
        # What others than its giver say of it counts for nothing.
        brings = self._asked.pop((record.came_from, record.id), 0.0)
        self._shifts[record.id] = (now + self._state.options.pattern_review_s, brings)

    def came_back(self, now: float, record: PointRecord) -> None:
        """One that was given away is refused: what it brings has not gone."""
        self.begins(now, record, is_new=False)
        self._shifts.pop(record.id, None)

    def forgotten(self, pattern_id: str) -> None:
        """It is not here any more."""
        self._tallies.forgotten(pattern_id)
        self._turns.remove(pattern_id)
        for each in (self._brings, self._going, self.costs):
            each.pop(pattern_id, None)

    @property
    def _load(self) -> BrokerBusyness:
        """The load as it will be measured."""
        scout = self._state.outlook.scout
        assert scout is not None
        shift = sum(brings for _, brings in self._shifts.values())
        return replace(scout.load, rate_per_s=max(scout.load.rate_per_s + shift, 0.0))

    # -- looking ----------------------------------------------------------------------------------

    def _look(self, now: float, pattern_id: str) -> None:
        """See whether a join point has a better place."""
        state = self._state
        record, point = state.record(pattern_id), state.points.get(pattern_id)
        if record is None or record.goes_to or record.is_over or self.is_departing:
            self.forgotten(pattern_id)
            return
        if point is None or not point.is_ready or record.came_from:
            self._turns.wants(pattern_id, now + state.options.pattern_again_s)
            return
        self._turns.wants(pattern_id, now + self._rest_s(record))
        scout = state.outlook.scout
        assert scout is not None
        sources = scout.sources(point.pattern.of_parts)
        if record.placement == "topology":
            self._look_by_topology(now, point, sources)
        else:
            self._look_by_cost(now, point, sources)

    def _look_by_topology(self, now: float, point: JoinPoint, sources: Sources) -> None:
        state, record = self._state, point.record
        if not sources:
            return
        network, own = state.outlook.network, state.outlook.name
        start = record.edge if record.edge in network.edges else own
        names = sorted(sources)
        chart, links = self._chart.to, network.links_of
        target = meeting_place(start, names, network.edges, chart, links)
        if target == own:
            state.save(replace(record, is_placed=True), lambda _: None)
            self.forgotten(record.id)
        else:
            self._ask(now, point, {target: 0.0}, PatternTraffic({}), float("inf"))

    def _look_by_cost(self, now: float, point: JoinPoint, sources: Sources) -> None:
        state = self._state
        traffic, counted = self._traffic(now, point, sources)
        if traffic is None or not traffic.incoming:
            return
        scout, own = state.outlook.scout, state.outlook.name
        assert scout is not None
        cost = cost_of(traffic, own, scout, self._load, is_here=True)
        if cost is None:
            # The way to somebody is lost for the moment; nobody knows what that costs.
            return
        self.costs[point.record.id] = cost
        self._brings[point.record.id] = traffic.handled_at(own)
        floors = worth_asking(traffic, own, state.outlook.network.edges, self._chart.to)
        if floors:
            self._ask(now, point, floors, traffic, cost)
            assert self._inquiry is not None
            self._inquiry.counted = counted

    # -- what it brings ---------------------------------------------------------------------------

    def _traffic(
        self, now: float, point: JoinPoint, sources: Sources
    ) -> tuple[PatternTraffic | None, float]:
        """What a pattern needs and finds, None if that is not known; and on how many events that
        rests (rule 3)."""
        wanted = point.pattern.wanted
        came = self._tallies.look(now, point)
        rates = {} if came is None else came.rates
        incoming: dict[str, float] = {}
        counted = inf
        for origin in {**sources, **rates}:
            rate = rate_of(sources.get(origin, ()), wanted)
            if rate is None:
                if came is None:
                    return None, 0
                rate, counted = rates.get(origin, 0.0), came.events
            incoming[origin] = rate
        if came is None:
            known = [each for streams in sources.values() for each in streams]
            pattern = point.scheme.pattern
            found = matches_per_s(pattern, part_rates(pattern, known), known)
        else:
            found = came.matches_per_s
        incoming = {origin: rate for origin, rate in incoming.items() if rate > 0}
        return PatternTraffic(incoming, found, self._destinations(point)), counted

    def _destinations(self, point: JoinPoint) -> tuple[str, ...]:
        """The edges that want the matches; where it was defined, if nobody is known to."""
        outlook, record = self._state.outlook, point.record
        assert outlook.scout is not None
        match: dict[str, Value] = {PATTERN: record.id, MATCH: "", FINAL: 0}
        edges = [each for each in outlook.scout.wanting(match) if each in outlook.streams]
        if outlook.wants(match, name_of(record.id)):
            edges.append(outlook.name)
        if not edges and record.edge in outlook.streams:
            edges.append(record.edge)
        return tuple(sorted(edges))

    # -- asking -----------------------------------------------------------------------------------

    def _ask(
        self,
        now: float,
        point: JoinPoint,
        floors: Mapping[str, float],
        traffic: PatternTraffic,
        cost: float,
    ) -> None:
        """Ask others what it would cost there; `cost` is what it costs here."""
        state = self._state
        self._number += 1
        number = point.record.incarnation * _NUMBERS + self._number
        inquiry = _Inquiry(point, number, cost, now + state.options.pattern_again_s)
        inquiry.floors = dict(floors)
        self._inquiry = inquiry
        question = AskPlace(
            number,
            inquiry.pattern,
            {origin: _per_1000_s(rate) for origin, rate in traffic.incoming.items()},
            _per_1000_s(traffic.matches_per_s),
            list(traffic.destinations),
        )
        self.counters.asked += len(floors)
        state.out += [CarryTo(edge, question) for edge in floors]

    def asked(self, source: str, content: AskPlace) -> None:
        """Another broker asks what one would cost here."""
        outlook, limits = self._state.outlook, self._state.limits
        for name in (*content.incoming, *content.destinations):
            if name not in outlook.streams:
                raise RemoteError(f"it asks about the way to {name!r}, which is no edge")
        incoming = {origin: rate / 1e3 for origin, rate in content.incoming.items()}
        # Each once: to ask about the same way many times costs who asks little.
        wanting = tuple(dict.fromkeys(content.destinations))
        traffic = PatternTraffic(incoming, content.matches / 1e3, wanting)
        is_full = len(self._state) >= limits.patterns_max
        cost = None
        if outlook.scout is not None and not is_full and not self.is_departing:
            cost = cost_of(traffic, outlook.name, outlook.scout, self._load, is_here=False)
        answer = WouldTake(content.request, content.pattern, 0, is_refused=True)
        if cost is not None:
            self._asked.pop((source, content.pattern), None)
            self._asked[source, content.pattern] = traffic.handled_at(outlook.name)
            if len(self._asked) > _ANSWERS_MAX:
                del self._asked[next(iter(self._asked))]
            billionths = min(round(cost * 1e9), _COST_MAX)
            answer = WouldTake(content.request, content.pattern, billionths)
        self._state.out.append(CarryTo(source, answer))

    def answered(self, now: float, source: str, content: WouldTake) -> None:
        """Another broker says what it would cost there."""
        inquiry = self._inquiry
        if inquiry is None or (inquiry.number, inquiry.pattern) != (
            content.request,
            content.pattern,
        ):
            return
        if source in inquiry.floors:
            inquiry.offers[source] = None if content.is_refused else content.cost / 1e9
        if len(inquiry.offers) == len(inquiry.floors):
            self._conclude(now, inquiry)

    def _conclude(self, now: float, inquiry: _Inquiry) -> None:
        """All have answered, or time is up."""
        self._inquiry = None
        state = self._state
        point = state.points.get(inquiry.pattern)
        if point is None or point.session != inquiry.session or point.record.is_over:
            return
        offers = {edge: cost for edge, cost in inquiry.offers.items() if cost is not None}
        target = better_place(inquiry.cost, offers, inquiry.floors, inquiry.counted)
        if not target:
            self._rest(now, point)
        else:
            self._going[inquiry.pattern] = (target, now + state.options.pattern_again_s)
            point.is_going = True
            self.may_go(now, point)

    def _rest(self, now: float, point: JoinPoint) -> None:
        """There is no better place: look again sooner than before, if it was restless."""
        record = point.record
        if record.restless:
            # It is written down with whatever is written next.
            point.record = replace(record, restless=record.restless - 1)
            self._turns.wants(record.id, now + self._rest_s(point.record))

    # -- going ------------------------------------------------------------------------------------

    def may_go(self, now: float, point: JoinPoint) -> None:
        """A join point did something: perhaps it can go where it is to go (rule 5)."""
        pattern_id = point.record.id
        going = self._going.get(pattern_id)
        if going is None or not self._moving.may_give(pattern_id):
            return
        state = self._state
        target, _ = going
        state.out.append(Note("info", f"pattern {pattern_id!r} moves to {target!r}"))
        brings = self._brings.get(pattern_id, 0.0)
        self._shifts[pattern_id] = (now + state.options.pattern_review_s, -brings)
        self.forgotten(pattern_id)
        self.counters.moved += 1
        point.record = replace(
            point.record,
            is_placed=point.record.placement == "topology",
            restless=min(point.record.restless + 1, RESTLESS_MAX),
        )
        self._moving.give(now, pattern_id, target)

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> None:
        """Give up what was not answered, and look at what is due."""
        for pattern_id in [key for key, (until, _) in self._shifts.items() if until <= now]:
            del self._shifts[pattern_id]
        for pattern_id in [key for key, (_, until) in self._going.items() if until <= now]:
            del self._going[pattern_id]
            point = self._state.points.get(pattern_id)
            if point is not None:
                point.is_going = False
        if self._inquiry is not None and self._inquiry.until <= now:
            self._conclude(now, self._inquiry)
        while self._inquiry is None and (first := self._turns.take(now)) is not None:
            self._look(now, first)

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        times = [until for _, until in self._going.values()]
        times += [until for until, _ in self._shifts.values()]
        inquiry = self._inquiry
        return earliest(self._turns.next_at() if inquiry is None else inquiry.until, *times)


def _per_1000_s(rate: float) -> int:
    return min(round(rate * 1e3), _RATE_MAX)
