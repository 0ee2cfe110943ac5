"""Placement: decides at which broker a pattern is detected, and moves join points there.

    has the join point   AskPlace ──────────►  a few other edges
                         WouldTake ◄─────────  the cost there
                         then moves it (`registry`)

A pattern starts at the broker of its client; its placement is its first move. Rules:

1. *When.* A pattern placed by *topology* is placed once, as soon as a publisher advertises what it
   needs. A pattern placed by *cost* is reviewed when it is defined, if statistics give its rates,
   and every `pattern_review_s`, less often after a move. A `simple` pattern stays.
2. *Who.* The broker that has a join point asks the edges that may be better. It moves the join
   point only to an edge that answers: at an unreachable broker the pattern would not be detected.
3. *Rates* come from statistics; for an origin without any, from the events counted since the last
   review. Matches are counted too, from the second review on; before that they are estimated.
4. *One at a time.* One inquiry is open at a time and expires after `pattern_again_s`; the pattern
   that has waited longest is next. So the patterns of a broker move one after another, and each
   review includes the effect of the previous move: the load of arrived and departed join points is
   added until it is measured.
5. *Pause.* A join point that is to move stops publishing until it can move, for at most
   `pattern_again_s`.
6. *By topology*, a pattern moves from where it was defined towards its sources, as long as one
   neighbour is nearer to all of them, and is detected where the paths diverge. If that broker takes
   no join points (a relay), it is detected at the nearest edge; among several, at the one nearest
   to the sources.
7. *By cost*, the `ASKED_MAX` edges with the least link traffic are asked for the cost there; only
   their answers include the load of the brokers. An answer below the cost of the links alone is
   raised to that cost, because it cannot be true.
8. *Hysteresis.* An edge is better if it costs less than `GAIN` times the present cost, and at least
   `LEAST` less. So every move reduces the total cost by a fraction, and while loads stay the same
   there are few moves: nothing oscillates. A marginal gain does not justify a move, which costs one
   window of events. Counted rates have an error of about the square root of the count, so the
   fewer events were counted, the clearer the gain must be.
9. *Back-off.* After a move the pause before the next review doubles, up to 2 to the power of
   `RESTLESS_MAX` times the usual one; a review that finds nothing better halves it. So if a broker
   lies or loads fluctuate, a pattern moves occasionally, not at every review.

Distances are those of the network file. An answer proves that a broker is reachable.

State: the counts at the last review, and the open inquiry. Safe to lose.

Prior art: topology-based routing of composite subscriptions, DCSR and the movement of join points
(spec PADRES section 4). DCSR decides again at every broker on the path; here one decision considers
all edges.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, sqrt
from typing import Final, NamedTuple

from msgspec.structs import replace

from anabranch.core.contract import Note, earliest
from anabranch.core.part_requests import CarryTo
from anabranch.core.patterns.join_points.join_point import FairQueue, JoinPoint
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
from anabranch.core.patterns.join_points.registry import JoinPointMoves, JoinPointState
from anabranch.core.routing.mesh.shared import NetworkDistances
from anabranch.model.errors import RemoteError
from anabranch.model.event import Value
from anabranch.model.frames import AskPlace, WouldTake
from anabranch.model.pattern.match import FINAL, MATCH, PATTERN, PointRecord

ASKED_MAX: Final = 8
#: A better edge costs less than this fraction of the present cost,
GAIN: Final = 0.8
#: and at least this much less, in events in flight.
LEAST: Final = 1e-6
RESTLESS_MAX: Final = 6

#: Edge → broker → number of links between them.
Distances = Callable[[str], Mapping[str, int]]
#: Broker → its neighbours.
Neighbours = Callable[[str], Iterable[str]]


def edge_by_topology(
    start: str,
    sources: Sequence[str],
    edges: Iterable[str],
    distances: Distances,
    neighbours: Neighbours,
) -> str:
    """The edge where a pattern belongs by topology (rule 6)."""
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


def edges_to_ask(
    traffic: PatternTraffic, own: str, edges: Iterable[str], distances: Distances
) -> dict[str, float]:
    """The edges that may be better, with their lowest possible cost (rule 7)."""
    floors = {
        edge: least_cost(traffic, lambda end, edge=edge: distances(end)[edge])  # type: ignore[misc]
        for edge in edges
        if edge != own
    }
    best = sorted(floors, key=lambda edge: (floors[edge], edge))[:ASKED_MAX]
    return {edge: floors[edge] for edge in best}


def review_pause_s(review_s: float, restless: int) -> float:
    """Seconds until the next review, after this many moves (rule 9)."""
    return review_s * 2.0 ** min(restless, RESTLESS_MAX)


def better_edge(
    cost: float,
    offers: Mapping[str, float],
    floors: Mapping[str, float],
    counted: float = inf,
) -> str:
    """The edge that a pattern should move to; "" if it should stay (rule 8). `counted` is the
    number of events on which the rates are based."""
    believed = {edge: max(offer, floors.get(edge, 0.0)) for edge, offer in offers.items()}
    if not believed:
        return ""
    best = min(believed, key=lambda edge: (believed[edge], edge))
    gain = GAIN - (1 / sqrt(counted) if counted else 1.0)
    is_better = believed[best] < gain * cost and cost - believed[best] > LEAST
    return best if is_better else ""


class TrafficCounts(NamedTuple):
    """Counts since the previous review."""

    #: Origin → events per second.
    rates: dict[str, float]
    matches_per_s: float
    #: Number of events on which that is based.
    events: int


class _Counters(NamedTuple):
    """The counters of a join point at a review."""

    session: int
    at: float
    by_stream: dict[str, int]
    events: int
    reported: int


class TrafficHistory:
    """Rates of events and matches between two reviews.

    Rates without statistics are counted. The first review of an activation only records counters:
    events that are redelivered at a start belong to an earlier time and do not count.

    State: the counters at the last review. Safe to lose.
    """

    def __init__(self) -> None:
        self._history: dict[str, _Counters] = {}

    def since_last_review(self, now: float, point: JoinPoint) -> TrafficCounts | None:
        """Counts since the last review; None if this is the first of this activation."""
        counters, pattern_id = point.counters, point.record.id
        by_stream = dict(counters.by_stream)
        tally = _Counters(point.session, now, by_stream, counters.events, counters.reported)
        before = self._history.get(pattern_id)
        self._history[pattern_id] = tally
        if before is None or before.session != tally.session or now <= before.at:
            return None
        for_s = now - before.at
        rates = {
            stream: (count - before.by_stream.get(stream, 0)) / for_s
            for stream, count in by_stream.items()
        }
        matches_per_s = (tally.reported - before.reported) / for_s
        return TrafficCounts(rates, matches_per_s, tally.events - before.events)

    def forget(self, pattern_id: str) -> None:
        self._history.pop(pattern_id, None)


#: Request numbers per activation.
_NUMBERS = 1 << 20
#: Answers that are remembered, for the load that they announce.
_ANSWERS_MAX = 1_024
_RATE_MAX = 1 << 53
_COST_MAX = 1 << 62


class _Inquiry:
    """An open inquiry."""

    __slots__ = ("cost", "counted", "floors", "number", "offers", "pattern", "session", "until")

    def __init__(self, point: JoinPoint, number: int, cost: float, until: float) -> None:
        self.pattern = point.record.id
        self.session = point.session
        self.number = number
        #: The cost here; infinite by topology.
        self.cost = cost
        #: Number of events on which the rates are based.
        self.counted = inf
        #: Edge asked → its lowest possible cost.
        self.floors: dict[str, float] = {}
        #: Edge that answered → its cost; None if it refuses.
        self.offers: dict[str, float | None] = {}
        self.until = until


class PlacementCounters:
    """Counts since the broker started."""

    __slots__ = ("asked", "moved")

    def __init__(self) -> None:
        #: Requests to other brokers, and resulting moves.
        self.asked = 0
        self.moved = 0


class PlacementReview:
    """Reviews the placement of join points. See the rules at the top of this module."""

    def __init__(self, state: JoinPointState, moves: JoinPointMoves) -> None:
        self.counters = PlacementCounters()
        #: Id → its cost here at the last review.
        self.costs: dict[str, float] = {}
        self.is_departing = False
        self._state = state
        self._moves = moves
        self._distances = NetworkDistances(state.broker.network)
        self._number = 0
        #: When to review which pattern.
        self._turns = FairQueue()
        self._history = TrafficHistory()
        #: Id → events per second that it causes here, at the last review.
        self._load_of: dict[str, float] = {}
        self._inquiry: _Inquiry | None = None
        #: Id → (edge to move to, when that expires).
        self._targets: dict[str, tuple[str, float]] = {}
        #: (Asking edge, id) → events per second that it would cause here.
        self._announced_load: dict[tuple[str, str], float] = {}
        #: Id → (until when its arrival or, if negative, departure is not in the measured load, the
        #: events per second it adds).
        self._unmeasured_load: dict[str, tuple[float, float]] = {}

    def depart(self) -> None:
        """Review no pattern and accept none from now on."""
        self.is_departing = True

    # -- schedule ---------------------------------------------------------------------------------

    def schedule(self, now: float, record: PointRecord, *, is_new: bool) -> None:
        """Schedule reviews of a join point that was defined, or recovered at a start."""
        is_fixed = record.placement == "simple" or record.is_placed or record.is_over
        if self._state.broker.placement_facts is not None and not is_fixed:
            self._turns.schedule(record.id, now if is_new else now + self._pause_s(record))

    def _pause_s(self, record: PointRecord) -> float:
        return review_pause_s(self._state.options.pattern_review_s, record.restless)

    def arrived(self, now: float, record: PointRecord) -> None:
        """Schedule reviews of a join point that moved here, and add its load (rule 4)."""
        self.schedule(now, record, is_new=False)
        # Only the announcement of its giver counts.
        load_per_s = self._announced_load.pop((record.came_from, record.id), 0.0)
        self._unmeasured_load[record.id] = (now + self._state.options.pattern_review_s, load_per_s)

    def returned(self, now: float, record: PointRecord) -> None:
        """Resume reviews of a join point whose move was refused: its load has not left."""
        self.schedule(now, record, is_new=False)
        self._unmeasured_load.pop(record.id, None)

    def forget(self, pattern_id: str) -> None:
        self._history.forget(pattern_id)
        self._turns.remove(pattern_id)
        for each in (self._load_of, self._targets, self.costs):
            each.pop(pattern_id, None)

    @property
    def _load(self) -> BrokerBusyness:
        """The load including moves that are not measured yet."""
        facts = self._state.broker.placement_facts
        assert facts is not None
        shift = sum(load_per_s for _, load_per_s in self._unmeasured_load.values())
        return replace(facts.load, rate_per_s=max(facts.load.rate_per_s + shift, 0.0))

    # -- review -----------------------------------------------------------------------------------

    def _review(self, now: float, pattern_id: str) -> None:
        """Check whether a join point has a better place."""
        state = self._state
        record, point = state.record(pattern_id), state.points.get(pattern_id)
        if record is None or record.goes_to or record.is_over or self.is_departing:
            self.forget(pattern_id)
            return
        if point is None or not point.is_ready or record.came_from:
            self._turns.schedule(pattern_id, now + state.options.pattern_again_s)
            return
        self._turns.schedule(pattern_id, now + self._pause_s(record))
        facts = state.broker.placement_facts
        assert facts is not None
        sources = facts.sources(point.pattern.of_parts)
        if record.placement == "topology":
            self._review_by_topology(now, point, sources)
        else:
            self._review_by_cost(now, point, sources)

    def _review_by_topology(self, now: float, point: JoinPoint, sources: Sources) -> None:
        state, record = self._state, point.record
        if not sources:
            return
        network, own = state.broker.network, state.broker.name
        start = record.edge if record.edge in network.edges else own
        names = sorted(sources)
        chart, links = self._distances.to, network.links_of
        target = edge_by_topology(start, names, network.edges, chart, links)
        if target == own:
            state.save(replace(record, is_placed=True), lambda _: None)
            self.forget(record.id)
        else:
            self._ask(now, point, {target: 0.0}, PatternTraffic({}), float("inf"))

    def _review_by_cost(self, now: float, point: JoinPoint, sources: Sources) -> None:
        state = self._state
        traffic, counted = self._traffic(now, point, sources)
        if traffic is None or not traffic.incoming:
            return
        facts, own = state.broker.placement_facts, state.broker.name
        assert facts is not None
        cost = cost_of(traffic, own, facts, self._load, is_here=True)
        if cost is None:
            # The route to an edge is lost temporarily, so the cost is unknown.
            return
        self.costs[point.record.id] = cost
        self._load_of[point.record.id] = traffic.handled_at(own)
        floors = edges_to_ask(traffic, own, state.broker.network.edges, self._distances.to)
        if floors:
            self._ask(now, point, floors, traffic, cost)
            assert self._inquiry is not None
            self._inquiry.counted = counted

    # -- traffic ----------------------------------------------------------------------------------

    def _traffic(
        self, now: float, point: JoinPoint, sources: Sources
    ) -> tuple[PatternTraffic | None, float]:
        """The traffic of a pattern, None if unknown; and the number of events on which it is based
        (rule 3)."""
        wanted = point.pattern.wanted
        counted_traffic = self._history.since_last_review(now, point)
        rates = {} if counted_traffic is None else counted_traffic.rates
        incoming: dict[str, float] = {}
        counted = inf
        for origin in {**sources, **rates}:
            rate = rate_of(sources.get(origin, ()), wanted)
            if rate is None:
                if counted_traffic is None:
                    return None, 0
                rate, counted = rates.get(origin, 0.0), counted_traffic.events
            incoming[origin] = rate
        if counted_traffic is None:
            known = [each for streams in sources.values() for each in streams]
            pattern = point.scheme.pattern
            found = matches_per_s(pattern, part_rates(pattern, known), known)
        else:
            found = counted_traffic.matches_per_s
        incoming = {origin: rate for origin, rate in incoming.items() if rate > 0}
        return PatternTraffic(incoming, found, self._destinations(point)), counted

    def _destinations(self, point: JoinPoint) -> tuple[str, ...]:
        """The edges that want the matches; the edge where it was defined, if none is known."""
        broker, record = self._state.broker, point.record
        assert broker.placement_facts is not None
        match: dict[str, Value] = {PATTERN: record.id, MATCH: "", FINAL: 0}
        edges = [each for each in broker.placement_facts.wanting(match) if each in broker.streams]
        if broker.wants(match, name_of(record.id)):
            edges.append(broker.name)
        if not edges and record.edge in broker.streams:
            edges.append(record.edge)
        return tuple(sorted(edges))

    # -- inquiry ----------------------------------------------------------------------------------

    def _ask(
        self,
        now: float,
        point: JoinPoint,
        floors: Mapping[str, float],
        traffic: PatternTraffic,
        cost: float,
    ) -> None:
        """Ask other edges for their cost; `cost` is the cost here."""
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
        state.emit(*[CarryTo(edge, question) for edge in floors])

    def asked(self, source: str, content: AskPlace) -> None:
        """Answer another broker that asks for the cost here."""
        broker, limits = self._state.broker, self._state.limits
        for name in (*content.incoming, *content.destinations):
            if name not in broker.streams:
                raise RemoteError(f"the request names {name!r}, which is not an edge")
        incoming = {origin: rate / 1e3 for origin, rate in content.incoming.items()}
        # Count each name once: repeating it costs the sender little.
        wanting = tuple(dict.fromkeys(content.destinations))
        traffic = PatternTraffic(incoming, content.matches / 1e3, wanting)
        is_full = len(self._state) >= limits.patterns_max
        cost = None
        if broker.placement_facts is not None and not is_full and not self.is_departing:
            cost = cost_of(traffic, broker.name, broker.placement_facts, self._load, is_here=False)
        answer = WouldTake(content.request, content.pattern, 0, is_refused=True)
        if cost is not None:
            self._announced_load.pop((source, content.pattern), None)
            self._announced_load[source, content.pattern] = traffic.handled_at(broker.name)
            if len(self._announced_load) > _ANSWERS_MAX:
                del self._announced_load[next(iter(self._announced_load))]
            billionths = min(round(cost * 1e9), _COST_MAX)
            answer = WouldTake(content.request, content.pattern, billionths)
        self._state.emit(CarryTo(source, answer))

    def answered(self, now: float, source: str, content: WouldTake) -> None:
        """Record the cost at another broker."""
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
        """Decide: all edges have answered, or the inquiry has expired."""
        self._inquiry = None
        state = self._state
        point = state.points.get(inquiry.pattern)
        if point is None or point.session != inquiry.session or point.record.is_over:
            return
        offers = {edge: cost for edge, cost in inquiry.offers.items() if cost is not None}
        target = better_edge(inquiry.cost, offers, inquiry.floors, inquiry.counted)
        if not target:
            self._shorten_pause(now, point)
        else:
            self._targets[inquiry.pattern] = (target, now + state.options.pattern_again_s)
            point.set_moving(True)
            self.move_if_ready(now, point)

    def _shorten_pause(self, now: float, point: JoinPoint) -> None:
        """Nothing is better: review sooner than before, if it moved recently."""
        record = point.record
        if record.restless:
            # It is stored with the next write of the record.
            point.set_record(replace(record, restless=record.restless - 1))
            self._turns.schedule(record.id, now + self._pause_s(point.record))

    # -- move -------------------------------------------------------------------------------------

    def move_if_ready(self, now: float, point: JoinPoint) -> None:
        """Move a join point to its new edge, if it can go now (rule 5)."""
        pattern_id = point.record.id
        going = self._targets.get(pattern_id)
        if going is None or not self._moves.may_give(pattern_id):
            return
        state = self._state
        target, _ = going
        state.emit(Note("info", f"pattern {pattern_id!r} moves to {target!r}"))
        load_per_s = self._load_of.get(pattern_id, 0.0)
        self._unmeasured_load[pattern_id] = (now + state.options.pattern_review_s, -load_per_s)
        self.forget(pattern_id)
        self.counters.moved += 1
        record = point.record
        is_placed, restless = record.placement == "topology", min(record.restless + 1, RESTLESS_MAX)
        point.set_record(replace(record, is_placed=is_placed, restless=restless))
        self._moves.give(now, pattern_id, target)

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> None:
        """Expire inquiries and announced moves, and do the reviews that are due."""
        for pattern_id in [
            key for key, (until, _) in self._unmeasured_load.items() if until <= now
        ]:
            del self._unmeasured_load[pattern_id]
        for pattern_id in [key for key, (_, until) in self._targets.items() if until <= now]:
            del self._targets[pattern_id]
            point = self._state.points.get(pattern_id)
            if point is not None:
                point.set_moving(False)
        if self._inquiry is not None and self._inquiry.until <= now:
            self._conclude(now, self._inquiry)
        while self._inquiry is None and (first := self._turns.pop(now)) is not None:
            self._review(now, first)

    def next_deadline(self) -> float | None:
        times = [until for _, until in self._targets.values()]
        times += [until for until, _ in self._unmeasured_load.values()]
        inquiry = self._inquiry
        return earliest(self._turns.next_at() if inquiry is None else inquiry.until, *times)


def _per_1000_s(rate: float) -> int:
    return min(round(rate * 1e3), _RATE_MAX)
