"""Relevance: for every origin, which of an edge's conjunctions meet its advertisements.

An edge sends an origin only the conjunctions that meet its advertisements (`bindings`), and joins
only the trees of advertisements that its interest meets. Both follow from one number per
conjunction and origin: the set of trees it meets (`advertisements.AdvertisementComparison`). Rules:

1. Every conjunction is compared with every advertisement once, and not again while both exist: a
   new conjunction is compared alone, a new advertisement with all conjunctions, and a withdrawn
   advertisement causes another comparison only of the conjunctions that met its tree.
2. One step makes `comparisons_max` comparisons, plus those that its last conjunction needs beyond
   that. The other conjunctions wait and *count as wanted*: that costs traffic but loses no event.
   They are compared in separate steps, `REVIEW_MAX` at a time with pauses of `REVIEW_AFTER_S`,
   until none waits; then the unnecessary ones are withdrawn from the origin (`refuted`).
3. A tree is joined once a conjunction is found to meet it, and left as soon as none does: the
   number of conjunctions that meet it is counted. A waiting conjunction keeps the trees that it was
   known to meet.

So the work of a change does not grow with the existing interest, except when advertisements change:
then every conjunction is visited, and those that may be affected are compared.

State: volatile; recomputed from the interest and the tables.
"""

from collections.abc import Iterable, Mapping, Sequence

from anabranch.core.contract import Note
from anabranch.core.patterns.join_points.placement_cost import BrokerBusyness
from anabranch.core.patterns.join_points.records import Sources
from anabranch.core.routing.interest_clock import Conjunct, Propagation
from anabranch.core.routing.mesh.advertisements import (
    Advertisements,
    AdvertisementTable,
    ComparisonBudget,
)
from anabranch.core.routing.mesh.link_costs import NeighbourDelays
from anabranch.core.routing.mesh.origin_interest import Key, OriginInterest
from anabranch.core.routing.mesh.shared import MeshState
from anabranch.model.errors import RemoteError
from anabranch.model.event import Value
from anabranch.model.filter import Filter
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.pattern.match import PATTERN
from anabranch.model.statistics import StreamStatistics, read_excerpt

#: Comparisons per review step, a few µs each.
REVIEW_MAX = 4_096
#: Pause between review steps.
REVIEW_AFTER_S = 0.05


class _OriginRelevance:
    """The edge's conjunctions compared with the advertisements of one origin."""

    __slots__ = ("counts", "met", "refuted", "table", "uncompared")

    def __init__(self, table: AdvertisementTable) -> None:
        self.table = table
        #: Conjunction → bit set of the trees that it meets.
        self.met: dict[Key, int] = {}
        #: Conjunctions to compare → the lowest number of the advertisements to compare with; 0
        #: means all of them, discarding earlier results.
        self.uncompared: dict[Key, int] = {}
        #: Conjunctions that waited and were then found to meet nothing.
        self.refuted: dict[Key, Conjunct] = {}
        #: Tree → number of conjunctions that meet it, always positive.
        self.counts: dict[int, int] = {}

    def set(self, key: Key, met: int) -> bool:
        """Set the trees that a conjunction meets; returns True if the set of met trees changed."""
        before = self.met.get(key, 0)
        self.met[key] = met
        return before != met and self._count(before, met)

    def drop(self, key: Key) -> bool:
        """Remove a conjunction; returns True if the set of met trees changed."""
        self.uncompared.pop(key, None)
        before = self.met.pop(key, 0)
        return before != 0 and self._count(before, 0)

    def _count(self, before: int, after: int) -> bool:
        has_changed = False
        changed = before ^ after
        while changed:
            tree = changed.bit_length() - 1
            changed ^= 1 << tree
            count = self.counts.get(tree, 0) + (1 if after >> tree & 1 else -1)
            if count:
                has_changed |= tree not in self.counts
                self.counts[tree] = count
            else:
                has_changed = True
                del self.counts[tree]
        return has_changed

    def take(self, table: AdvertisementTable) -> None:
        """Adopt a new edition of the table: record what has to be compared (rule 1)."""
        before, self.table = self.table.entries, table
        fresh = [n for n, entry in table.entries.items() if before.get(n) is not entry]
        gone = sum(
            {1 << e.advertised.tree for n, e in before.items() if table.entries.get(n) is not e}
        )
        # Origins need not number advertisements in ascending order; if not, compare everything.
        if fresh and before and min(fresh) <= max(before):
            gone = -1
        since = min(fresh, default=0)
        trees = table.comparison.trees
        for key, met in self.met.items():
            if met & gone or (not met and gone < 0):
                self.uncompared[key] = 0
            elif fresh and met & trees != trees:
                self.uncompared[key] = min(since, self.uncompared.get(key, since))


class RelevantInterest:
    """The relevant interest of one edge, per origin. See the rules above."""

    def __init__(self, shared: MeshState) -> None:
        self._shared = shared
        self._by_origin: dict[str, _OriginRelevance] = {}
        #: The interest as of the last propagation.
        self.roots: dict[Key, Conjunct] = {}
        #: Origins whose set of met trees changed.
        self._changed: dict[str, None] = {}
        #: When to continue comparing; None if nothing waits.
        self.due: float | None = None

    # -- queries ----------------------------------------------------------------------------------

    def wants(self, origin: str, key: Key) -> bool:
        """Whether an origin has to get a conjunction: it meets something, or may do so."""
        meeting = self._by_origin.get(origin)
        return meeting is not None and (key in meeting.uncompared or meeting.met.get(key, 0) != 0)

    def wanted(self, origin: str) -> dict[Key, Conjunct]:
        """All conjunctions that an origin has to get."""
        meeting = self._by_origin.get(origin)
        if meeting is None:
            return {}
        met, waiting = meeting.met, meeting.uncompared
        return {key: c for key, c in self.roots.items() if met.get(key) or key in waiting}

    def trees(self, origin: str) -> set[int]:
        """The trees of an origin that are met and in use."""
        meeting = self._by_origin.get(origin)
        return set() if meeting is None else set(meeting.table.trees & meeting.counts.keys())

    @property
    def uncompared(self) -> int:
        """Number of conjunctions still to compare, over all origins."""
        return sum(len(meeting.uncompared) for meeting in self._by_origin.values())

    def refuted(self, origin: str) -> Mapping[Key, Conjunct]:
        """Conjunctions that waited and meet nothing of an origin."""
        meeting = self._by_origin.get(origin)
        return {} if meeting is None else meeting.refuted

    def take_changed(self) -> dict[str, None]:
        """Origins whose set of met trees changed since the last call."""
        changed, self._changed = self._changed, {}
        return changed

    # -- changes ----------------------------------------------------------------------------------

    def refuted_withdrawn(self, origin: str) -> None:
        """The refuted conjunctions have been withdrawn from an origin."""
        self._by_origin[origin].refuted.clear()

    def interest(self, now: float, step: Propagation) -> None:
        """Apply a change of the interest."""
        budget = ComparisonBudget(self._shared.options.comparisons_max)
        gone = [(c.text, c.place) for c in (*step.minus, *step.covered)]
        fresh = {(c.text, c.place): c for c in step.plus}
        for key in gone:
            self.roots.pop(key, None)
        self.roots |= fresh
        keys = list(fresh)
        for origin, meeting in self._by_origin.items():
            for key in gone:
                if meeting.drop(key):
                    self._changed[origin] = None
            meeting.uncompared |= dict.fromkeys(keys, 0)
            self._defer(now, self._compare(origin, meeting, keys, budget))

    def tables(
        self, now: float, tables: Mapping[str, AdvertisementTable], origins: Iterable[str]
    ) -> None:
        """Apply changed advertisements of some origins."""
        budget = ComparisonBudget(self._shared.options.comparisons_max)
        for origin in origins:
            table = tables[origin]
            meeting = self._by_origin.get(origin)
            if meeting is None or meeting.table.edition.life != table.edition.life:
                # Trees of another life are different trees.
                self._by_origin[origin] = meeting = _OriginRelevance(table)
                meeting.uncompared = dict.fromkeys(self.roots, 0)
            else:
                meeting.take(table)
            self._changed[origin] = None
            self._defer(now, self._compare(origin, meeting, list(meeting.uncompared), budget))

    def review(self, now: float) -> bool:
        """Continue comparing if due; returns True when no conjunction waits any longer."""
        if self.due is None or self.due > now:
            return False
        budget = ComparisonBudget(REVIEW_MAX)
        for origin, meeting in self._by_origin.items():
            if budget.is_gone:
                break
            keys = list(meeting.uncompared)
            left = self._compare(origin, meeting, keys, budget)
            for key in keys[: len(keys) - left]:
                if not meeting.met[key]:
                    meeting.refuted[key] = self.roots[key]
        self.due = now + REVIEW_AFTER_S if self.uncompared else None
        return self.due is None

    def _compare(
        self, origin: str, meeting: _OriginRelevance, keys: Sequence[Key], budget: ComparisonBudget
    ) -> int:
        """Compare waiting conjunctions in order; returns how many are left over."""
        comparison = meeting.table.comparison
        for place, key in enumerate(keys):
            if budget.is_gone:
                return len(keys) - place
            since = meeting.uncompared.pop(key)
            known = meeting.met.get(key, 0) & comparison.trees if since else 0
            met = comparison.met(self.roots[key].conjunction, budget, since, known)
            if meeting.set(key, met):
                self._changed[origin] = None
        return 0

    def _defer(self, now: float, count: int) -> None:
        """Schedule the comparison of conjunctions beyond the budget (rule 2)."""
        if count:
            self._shared.counters.comparisons_put_off += count
            if self.due is None:
                self.due = now + REVIEW_AFTER_S


# Facts that mesh routing has for placing a pattern.
#
# Sources are the origins whose advertisements could match, each with the statistics that came with
# its table. Join points advertise their matches, which have only attributes of their own: they are
# sources for patterns over matches, and for no others. Invalid statistics are noted once and then
# ignored: their origin is at fault, not the neighbour that forwarded them.
#
# State: decoded statistics; recomputed on demand.


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
