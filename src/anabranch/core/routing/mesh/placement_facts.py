"""Facts that mesh routing has for placing a pattern.

Sources are the origins whose advertisements could match, each with the statistics that came with
its table. Join points advertise their matches, which have only attributes of their own: they are
sources for patterns over matches, and for no others. Invalid statistics are noted once and then
ignored: their origin is at fault, not the neighbour that forwarded them.

State: decoded statistics; recomputed on demand.
"""

from collections.abc import Mapping, Sequence

from anabranch.core.contract import Note
from anabranch.core.patterns.join_points.placement_cost import BrokerBusyness
from anabranch.core.patterns.join_points.records import Sources
from anabranch.core.routing.mesh.advertisements import Advertisements, ComparisonBudget
from anabranch.core.routing.mesh.link_costs import NeighbourDelays
from anabranch.core.routing.mesh.origin_interest import OriginInterest
from anabranch.core.routing.mesh.shared import MeshState
from anabranch.model.errors import RemoteError
from anabranch.model.event import Value
from anabranch.model.filter import Filter
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.pattern.match import PATTERN
from anabranch.model.statistics import StreamStatistics, read_excerpt

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
                self._shared.out.append(Note("warning", f"from {origin!r}: {error}"))
            self._read[origin] = known = (encoded, read)
        return known[1]

    def wanting(self, attributes: Mapping[str, Value]) -> Sequence[str]:
        """The other edges known to want such an event of this broker's stream."""
        return self._interest.wanting(attributes)


def _is_about_matches(conjunction: Conjunction) -> bool:
    return any(name == PATTERN for name, _ in conjunction.constraints)
