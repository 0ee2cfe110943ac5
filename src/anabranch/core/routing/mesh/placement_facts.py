"""Facts for placing a pattern: how long events take, who publishes them, and who wants matches.

*Delays.* The driver periodically reports how many events arrived, how long their processing took,
and how long they were queued. Brokers announce changes to their neighbours. So every broker has the
cost of the next hop of a path, and estimates the others. It answers requests for the cost of a
pattern with these (`core.patterns.join_points.placement_cost`). Rules:

1. Measurements are smoothed. They are announced to neighbours when they have changed by a quarter
   and by `NEWS_S`, at most once per measurement, and to each new neighbour.
2. An announcement is bounded (`mesh_frames.LoadIs`), and counts only for the hop over that
   neighbour. For all farther hops the *median* of the known values counts, so that a faulty
   neighbour changes only the cost of paths through itself.
3. A broker without events has no processing time of its own, which does not make it faster: it uses
   the median of those that have one.
4. The length of a path comes from the tree of its end; without a path there is no cost. The origin
   does not count: it processes its events on every path.

*Sources* are the origins whose advertisements could match, each with the statistics that came with
its table. Join points advertise their matches, which have only attributes of their own: they are
sources for patterns over matches, and for no others. Invalid statistics are noted once and then
ignored: their origin is at fault, not the neighbour that forwarded them.

State: a few numbers per neighbour, and decoded statistics; safe to lose.

Prior art: the exchange of queue and match times between neighbours, spec PADRES section 4.
"""

from collections.abc import Mapping, Sequence
from statistics import median_low

from anabranch.core.contract import Note
from anabranch.core.patterns.join_points.placement_cost import LINK_S, TIME_S_MAX, BrokerBusyness
from anabranch.core.patterns.join_points.records import Sources
from anabranch.core.routing.mesh.advertisements import Advertisements, ComparisonBudget
from anabranch.core.routing.mesh.origin_interest import OriginInterest
from anabranch.core.routing.mesh.shared import MeshState
from anabranch.core.routing.mesh.trees import Trees
from anabranch.model.errors import RemoteError
from anabranch.model.event import Value
from anabranch.model.filter import Filter
from anabranch.model.mesh_frames import LoadIs
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.pattern.match import PATTERN
from anabranch.model.statistics import StreamStatistics, read_excerpt

#: Weight of a new measurement.
_SMOOTHING = 0.5
#: Smaller changes, in seconds, are not announced.
NEWS_S = 1e-4
_NEWS_FRACTION = 0.25


class NeighbourDelays:
    """What a broker knows of delays. See the rules at the top of this module."""

    def __init__(self, shared: MeshState, trees: Trees) -> None:
        self._shared = shared
        self._trees = trees
        #: Load of this broker; None before the first measurement.
        self._own: BrokerBusyness | None = None
        self._announced = BrokerBusyness()
        #: Neighbour → its announced load; the rate is not announced.
        self._others: dict[str, BrokerBusyness] = {}

    # -- queries ----------------------------------------------------------------------------------

    @property
    def load(self) -> BrokerBusyness:
        own = self._own or BrokerBusyness()
        return (
            own
            if own.match_s
            else BrokerBusyness(own.rate_per_s, own.queue_s, self._usual_match_s())
        )

    def times(self) -> dict[str, float]:
        """Neighbour → its announced seconds per event."""
        return {peer: self._time_of(load) for peer, load in self._others.items()}

    def _usual_match_s(self) -> float:
        """Processing time where none was measured (rule 3)."""
        loads = [self._own or BrokerBusyness(), *self._others.values()]
        known = [load.match_s for load in loads if load.match_s]
        return median_low(known) if known else 0.0

    def _time_of(self, load: BrokerBusyness) -> float:
        match_s = load.match_s or self._usual_match_s()
        return min(load.queue_s + match_s, TIME_S_MAX)

    def come_s(self, edge: str) -> float | None:
        """Seconds from an edge to this broker; None without a path (rule 4)."""
        return self._path_s(edge, 0)

    def go_s(self, edge: str) -> float | None:
        """Seconds from this broker to an edge, including processing there; None without a path."""
        return self._path_s(edge, 1)

    def _path_s(self, edge: str, ends: int) -> float | None:
        if edge == self._shared.name:
            return 0.0
        hop, distance = self._trees.next_hop(edge), self._trees.distance_to(edge)
        if hop is None or distance is None:
            return None
        path_s, brokers = distance * LINK_S, distance - 1 + ends
        if brokers:
            times = self.times()
            usual_s = median_low([self.load.hop_s, *times.values()])
            path_s += times.get(hop, usual_s) + (brokers - 1) * usual_s
        return path_s

    # -- events -----------------------------------------------------------------------------------

    def record_load(self, for_s: float, events: int, busy_s: float, waited_s: float) -> None:
        """Record the driver's measurements since its last report (rule 1)."""
        if not for_s > 0:
            return
        before = self._own
        match_s = busy_s / events if events else 0.0
        fresh = BrokerBusyness(events / for_s, min(waited_s, TIME_S_MAX), min(match_s, TIME_S_MAX))
        self._own = fresh if before is None else _smoothed(before, fresh)
        if _is_news(self._announced, self._own):
            self._announced = self._own
            self._shared.send_all(self._frame())

    def link_up(self, peer: str) -> None:
        if self._own is not None:
            self._shared.send(peer, self._frame())

    def link_down(self, peer: str) -> None:
        self._others.pop(peer, None)

    def receive(self, peer: str, frame: LoadIs) -> None:
        self._others[peer] = BrokerBusyness(0.0, frame.queue_ns / 1e9, frame.match_ns / 1e9)

    def _frame(self) -> LoadIs:
        queue_s, match_s = self._announced.queue_s, self._announced.match_s
        return LoadIs(round(queue_s * 1e9), round(match_s * 1e9))


def _smoothed(before: BrokerBusyness, fresh: BrokerBusyness) -> BrokerBusyness:
    def step(one: float, other: float) -> float:
        return one + _SMOOTHING * (other - one)

    match_s = step(before.match_s, fresh.match_s) if before.match_s else fresh.match_s
    return BrokerBusyness(
        step(before.rate_per_s, fresh.rate_per_s),
        step(before.queue_s, fresh.queue_s),
        # A period without events is not a measurement of the processing time.
        match_s if fresh.match_s else before.match_s,
    )


def _is_news(announced: BrokerBusyness, now: BrokerBusyness) -> bool:
    times = (announced.queue_s, now.queue_s), (announced.match_s, now.match_s)
    for before, after in times:
        change = abs(after - before)
        if change > NEWS_S and change > _NEWS_FRACTION * before:
            return True
    return False


_Read = tuple[bytes, tuple[StreamStatistics, ...]]


class MeshPlacementFacts:
    """The `PlacementFacts` of a mesh router."""

    def __init__(
        self,
        shared: MeshState,
        advertisements: Advertisements,
        neighbours: NeighbourDelays,
        interest: OriginInterest,
    ) -> None:
        self._shared = shared
        self._advertisements = advertisements
        self._neighbours = neighbours
        self._interest = interest
        #: Origin → its statistics, encoded and decoded.
        self._read: dict[str, _Read] = {}

    @property
    def load(self) -> BrokerBusyness:
        return self._neighbours.load

    def come_s(self, edge: str) -> float | None:
        """Seconds from an edge to this broker; None without a path."""
        return self._neighbours.come_s(edge)

    def go_s(self, edge: str) -> float | None:
        """Seconds from this broker to an edge, including processing there; None without a path."""
        return self._neighbours.go_s(edge)

    def sources(self, filter: Filter) -> Sources:
        """The origins that may publish matching events, with their statistics."""
        budget = ComparisonBudget(self._shared.options.comparisons_max)
        conjunctions = filter.conjunctions
        asks_for_matches = any(_is_about_matches(each) for each in conjunctions)
        found = {}
        for origin, table in self._advertisements.tables.items():
            entries = [
                entry
                for entry in table.entries.values()
                if asks_for_matches or not all(map(_is_about_matches, entry.conjunctions))
            ]
            is_met = any(
                not budget.spend(len(conjunctions)) or any(map(entry.meets, conjunctions))
                for entry in entries
            )
            if is_met and origin in self._shared.edges:
                found[origin] = self._statistics(origin, table.statistics)
        return found

    def _statistics(self, origin: str, encoded: bytes) -> tuple[StreamStatistics, ...]:
        known = self._read.get(origin)
        if known is None or known[0] != encoded:
            try:
                read = read_excerpt(encoded)
            except RemoteError as error:
                read = ()
                self._shared.emit(Note("warning", f"from {origin!r}: {error}"))
            self._read[origin] = known = (encoded, read)
        return known[1]

    def wanting(self, attributes: Mapping[str, Value]) -> Sequence[str]:
        """The other edges known to want such an event of this broker's stream."""
        return self._interest.wanting(attributes)


def _is_about_matches(conjunction: Conjunction) -> bool:
    return any(name == PATTERN for name, _ in conjunction.constraints)
