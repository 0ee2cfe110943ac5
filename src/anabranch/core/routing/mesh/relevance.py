"""Meetings: which of an edge's conjunctions meet something advertised, for every origin.

An edge tells an origin only of the conjunctions that its advertisements meet (`binding`), and joins
only the trees of those that its interest meets. Both follow from one number per conjunction and
origin: the trees it meets (`comparing`). Rules:

1. Every conjunction is compared with every advertisement once. What has been compared is not
   compared again while both are there: a new conjunction is compared alone, a new advertisement
   with all conjunctions, and one that is gone makes only those be compared again that met its tree.
2. One step compares `comparisons_max` and what one conjunction needs beyond that. What is left
   waits, and *counts as wanted*: that costs traffic, and no event. It is compared in steps of
   their own, `REVIEW_MAX` at a time with pauses of `REVIEW_AFTER_S`, until nothing waits; then the
   origin is told what it need not have been told (`refuted`).
3. A tree is joined once something is found to meet it, and left as soon as nothing does: how many
   conjunctions meet it is counted. What waits keeps the trees that it was known to meet.

So the work of a change does not grow with the interest that was there before, but for a change of
advertisements: that one looks at every conjunction, and compares those that it may concern.

State: volatile, worked out anew from the interest and the tables.
"""

from collections.abc import Iterable, Mapping, Sequence

from anabranch.core.routing.interest_clock import Conjunct, Propagation
from anabranch.core.routing.mesh.advertisements import AdvertisementTable, ComparisonBudget
from anabranch.core.routing.mesh.origin_interest import Key
from anabranch.core.routing.mesh.shared import MeshState

#: Comparisons in a step that does nothing else, of a few µs each,
REVIEW_MAX = 4_096
#: and the pause until the next one.
REVIEW_AFTER_S = 0.05


class _Meeting:
    """The edge's conjunctions and the advertisements of one origin."""

    __slots__ = ("counts", "met", "refuted", "table", "waiting")

    def __init__(self, table: AdvertisementTable) -> None:
        self.table = table
        #: Conjunction → the trees that it meets, a bit for each.
        self.met: dict[Key, int] = {}
        #: Conjunctions that are to be compared → with advertisements from which number on; 0: with
        #: all, and what they met before counts no more then.
        self.waiting: dict[Key, int] = {}
        #: Found to meet nothing, after they had waited.
        self.refuted: dict[Key, Conjunct] = {}
        #: Tree → how many conjunctions meet it; none that nothing meets.
        self.counts: dict[int, int] = {}

    def set(self, key: Key, met: int) -> bool:
        """A conjunction meets these trees; True if another set of trees is met now."""
        before = self.met.get(key, 0)
        self.met[key] = met
        return before != met and self._count(before, met)

    def drop(self, key: Key) -> bool:
        """A conjunction is gone; True likewise."""
        self.waiting.pop(key, None)
        before = self.met.pop(key, 0)
        return before != 0 and self._count(before, 0)

    def _count(self, before: int, after: int) -> bool:
        is_other = False
        changed = before ^ after
        while changed:
            tree = changed.bit_length() - 1
            changed ^= 1 << tree
            count = self.counts.get(tree, 0) + (1 if after >> tree & 1 else -1)
            if count:
                is_other |= tree not in self.counts
                self.counts[tree] = count
            else:
                is_other = True
                del self.counts[tree]
        return is_other

    def take(self, table: AdvertisementTable) -> None:
        """The origin has another edition: note what is to be compared (rule 1)."""
        before, self.table = self.table.entries, table
        fresh = [n for n, entry in table.entries.items() if before.get(n) is not entry]
        gone = sum({1 << e.said.tree for n, e in before.items() if table.entries.get(n) is not e})
        # Nobody has to number them so that they rise; who does not is compared with afresh.
        if fresh and before and min(fresh) <= max(before):
            gone = -1
        since = min(fresh, default=0)
        trees = table.comparison.trees
        for key, met in self.met.items():
            if met & gone or (not met and gone < 0):
                self.waiting[key] = 0
            elif fresh and met & trees != trees:
                self.waiting[key] = min(since, self.waiting.get(key, since))


class RelevantInterest:
    """What the interest of one edge meets. See the rules above."""

    def __init__(self, around: MeshState) -> None:
        self._around = around
        self._meetings: dict[str, _Meeting] = {}
        #: The interest, as of the last step.
        self.roots: dict[Key, Conjunct] = {}
        #: Origins of which other trees are met since somebody looked.
        self.changed: dict[str, None] = {}
        #: When to go on comparing; None if nothing waits.
        self.due: float | None = None

    # -- questions --------------------------------------------------------------------------------

    def wants(self, origin: str, key: Key) -> bool:
        """Whether an origin is to be told of a conjunction: it meets something, or may do."""
        meeting = self._meetings.get(origin)
        return meeting is not None and (key in meeting.waiting or meeting.met.get(key, 0) != 0)

    def wanted(self, origin: str) -> dict[Key, Conjunct]:
        """All that an origin is to be told of."""
        meeting = self._meetings.get(origin)
        if meeting is None:
            return {}
        met, waiting = meeting.met, meeting.waiting
        return {key: c for key, c in self.roots.items() if met.get(key) or key in waiting}

    def trees(self, origin: str) -> set[int]:
        """The trees of an origin that are met, of those that are in use."""
        meeting = self._meetings.get(origin)
        return set() if meeting is None else set(meeting.table.trees & meeting.counts.keys())

    @property
    def waiting(self) -> int:
        """How many conjunctions are still to be compared, over all origins."""
        return sum(len(meeting.waiting) for meeting in self._meetings.values())

    def refuted(self, origin: str) -> Mapping[Key, Conjunct]:
        """Conjunctions of an origin that had waited, and meet nothing."""
        meeting = self._meetings.get(origin)
        return {} if meeting is None else meeting.refuted

    # -- changes ----------------------------------------------------------------------------------

    def took_back(self, origin: str) -> None:
        """An origin is told what was refuted."""
        self._meetings[origin].refuted.clear()

    def interest(self, now: float, step: Propagation) -> None:
        """The interest changed."""
        budget = ComparisonBudget(self._around.options.comparisons_max)
        gone = [(c.text, c.place) for c in (*step.minus, *step.covered)]
        fresh = {(c.text, c.place): c for c in step.plus}
        for key in gone:
            self.roots.pop(key, None)
        self.roots |= fresh
        keys = list(fresh)
        for origin, meeting in self._meetings.items():
            for key in gone:
                if meeting.drop(key):
                    self.changed[origin] = None
            meeting.waiting |= dict.fromkeys(keys, 0)
            self._put_off(now, self._compare(origin, meeting, keys, budget))

    def tables(
        self, now: float, tables: Mapping[str, AdvertisementTable], origins: Iterable[str]
    ) -> None:
        """The advertisements of some origins changed."""
        budget = ComparisonBudget(self._around.options.comparisons_max)
        for origin in origins:
            table = tables[origin]
            meeting = self._meetings.get(origin)
            if meeting is None or meeting.table.edition.life != table.edition.life:
                # Trees of another life are other trees.
                self._meetings[origin] = meeting = _Meeting(table)
                meeting.waiting = dict.fromkeys(self.roots, 0)
            else:
                meeting.take(table)
            self.changed[origin] = None
            self._put_off(now, self._compare(origin, meeting, list(meeting.waiting), budget))

    def review(self, now: float) -> bool:
        """Go on comparing, if it is time; True when that came to its end."""
        if self.due is None or self.due > now:
            return False
        budget = ComparisonBudget(REVIEW_MAX)
        for origin, meeting in self._meetings.items():
            if budget.is_gone:
                break
            keys = list(meeting.waiting)
            left = self._compare(origin, meeting, keys, budget)
            for key in keys[: len(keys) - left]:
                if not meeting.met[key]:
                    meeting.refuted[key] = self.roots[key]
        self.due = now + REVIEW_AFTER_S if self.waiting else None
        return self.due is None

    def _compare(
        self, origin: str, meeting: _Meeting, keys: Sequence[Key], budget: ComparisonBudget
    ) -> int:
        """Compare some that wait, in order; how many are left for lack of time."""
        comparison = meeting.table.comparison
        for place, key in enumerate(keys):
            if budget.is_gone:
                return len(keys) - place
            since = meeting.waiting.pop(key)
            known = meeting.met.get(key, 0) & comparison.trees if since else 0
            met = comparison.met(self.roots[key].conjunction, budget, since, known)
            if meeting.set(key, met):
                self.changed[origin] = None
        return 0

    def _put_off(self, now: float, count: int) -> None:
        """So many could not be compared at once (rule 2)."""
        if count:
            self._around.counters.comparisons_put_off += count
            if self.due is None:
                self.due = now + REVIEW_AFTER_S
