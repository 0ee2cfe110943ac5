"""Scouting: what mesh routing knows that helps to place a pattern.

Sources are the origins whose advertisements could match, each with the statistics that came with
its table. Join points advertise their matches, which have no attributes but their own: they are
sources for patterns that ask for matches, and for no others. What is no statistics is noted once,
and counts as none: it is the fault of its origin, not of the neighbour it came from.

State: excerpts that were read; worked out again when they are needed.
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
    """Answers questions about places; a `PlacementFacts`."""

    def __init__(
        self,
        around: MeshState,
        advertisements: Advertisements,
        neighbours: NeighbourDelays,
        wishes: OriginInterest,
    ) -> None:
        self._around = around
        self._advertisements = advertisements
        self._neighbours = neighbours
        self._wishes = wishes
        #: Origin → its excerpt, and what that says.
        self._read: dict[str, _Read] = {}

    @property
    def load(self) -> BrokerBusyness:
        """How busy this broker is."""
        return self._neighbours.load

    def come_s(self, edge: str) -> float | None:
        """Seconds of the way from an edge to this broker."""
        return self._neighbours.come_s(edge)

    def go_s(self, edge: str) -> float | None:
        """The same to an edge, until what comes there is dealt with."""
        return self._neighbours.go_s(edge)

    def sources(self, filter: Filter) -> Sources:
        """The origins where something may be published that matches."""
        budget = ComparisonBudget(self._around.options.comparisons_max)
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
            if is_met and origin in self._around.edges:
                found[origin] = self._statistics(origin, table.statistics)
        return found

    def _statistics(self, origin: str, told: bytes) -> tuple[StreamStatistics, ...]:
        known = self._read.get(origin)
        if known is None or known[0] != told:
            try:
                read = read_excerpt(told)
            except RemoteError as error:
                read = ()
                self._around.out.append(Note("warning", f"from {origin!r}: {error}"))
            self._read[origin] = known = (told, read)
        return known[1]

    def wanting(self, attributes: Mapping[str, Value]) -> Sequence[str]:
        """The other edges that are known to want an event like this of the own stream."""
        return self._wishes.wanting(attributes)


def _is_about_matches(conjunction: Conjunction) -> bool:
    return any(name == PATTERN for name, _ in conjunction.constraints)
