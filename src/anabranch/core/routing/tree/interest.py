"""Λ at one site: which conjunctions each direction wants, and what each direction is to be told.

All conjunctions a presence knows are in one DAG, from coverers to covered, and each node has the
directions that want it. Events are matched against all of them at once and answered with
directions. What a direction t is told is the *roots of t*: nodes that some other direction wants
and that nothing wanted by another direction covers. Rules:

1. *Minimal per direction*: of two conjunctions that a direction wants, neither covers the other;
   the covered one is dropped when the coverer arrives. (Else a covered one that leaves unnoticed
   below would stay here for ever.)
2. Conjunctions that cover each other are one node, whatever they look like.
3. A change tells, per direction, the roots that came (`plus`) and the roots that nobody wants any
   more (`minus`). A root that is only covered now is not in `minus`: rule 1 drops it where it is
   known.
4. A change is *aggregated* for a direction if anything of it did not pass through: something was
   removed, or something added was covered or known already. Then the receiver may apply it only
   where it knows what is known here.

5. A change is made bit by bit. Nothing else changes meanwhile, and no event is matched.
6. A change that is beyond the limits of DAG or index raises `LocalError` and changes nothing.

With `covering` off, nothing covers anything, but equal conjunctions still are one node.

State: volatile; learned again from the neighbours.

Prior art: Zhao 2006, §3.4.1 (roots, minimisation), §4.1.2 and §4.1.6 (DAG with subscriber lists),
§6.1.2 (one aggregation per outgoing direction).
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from anabranch.core.routing.contract import WorkDone, finished
from anabranch.core.routing.interest_clock import Conjunct, dag_work
from anabranch.matching.dag import ConjunctionDag, DagNode
from anabranch.matching.index import MatchIndex
from anabranch.model.encoding import Envelope
from anabranch.model.errors import LocalError
from anabranch.model.event import Attributes
from anabranch.model.limits import Limits

#: What wants an event.
Directions = set[object] | frozenset[object]

_NOBODY: frozenset[object] = frozenset()
#: Up to so many wishes it is quicker to find them all than to stop early.
_FEW_WISHES = 256


#: What it costs to see whether a conjunction is a root.
_LOOK_WORK = 5


class DirectionChange(NamedTuple):
    """What one direction is to be told of a change."""

    plus: list[Conjunct]
    minus: list[Conjunct]
    aggregated: bool


#: A change that may be interrupted. What comes of it is what there is to tell, by direction.
Changing = Generator[WorkDone, None, dict[str, DirectionChange]]


class _Wish(NamedTuple):
    """A direction's wish for a node."""

    #: In the DAG and in the index.
    id: int
    conjunct: Conjunct


class Interest:
    """The conjunctions known at one site. See the rules at the top of this module."""

    def __init__(self, told: Iterable[str], limits: Limits, covering: bool) -> None:
        self._limits = limits
        self._covering = covering
        #: Made when there is something to put in.
        self._dag: ConjunctionDag | None = None
        self._index: MatchIndex | None = None
        self._next_id = 0
        #: Id of a wish → whose it is.
        self._sources: dict[object, str] = {}
        #: Node → direction → its wish.
        self._wishes: dict[DagNode, dict[str, _Wish]] = {}
        #: Direction that is told about interest → its roots, as they were told.
        self._roots: dict[str, dict[DagNode, Conjunct]] = {direction: {} for direction in told}
        #: Direction → nodes whose place among its roots may have changed.
        self._touched: dict[str, dict[DagNode, None]] = {direction: {} for direction in told}

    # -- questions --------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._wishes)

    def destinations(self, event: Attributes | Envelope) -> Directions:
        """The directions that want an event; `RemoteError` if it turns out to be none."""
        if self._index is None or not self._wishes:
            return _NOBODY
        if len(self._sources) > _FEW_WISHES:
            return set(self._index.destinations(event))
        return {self._sources[found] for found in self._index.match(event)}

    def destinations_within(
        self, event: Attributes | Envelope, checks_max: int
    ) -> tuple[Directions, int, bool]:
        """`destinations`, or more of them where that would take more than so many checks; also how
        many were made, and whether that was too few."""
        if self._index is None or not self._wishes:
            return _NOBODY, 0, False
        if not self._index.has_doubts:
            return self.destinations(event), 0, False
        return self._index.destinations_within(event, checks_max)

    def destinations_of(self, bodies: Sequence[bytes]) -> list[frozenset[object] | None]:
        """The same for encoded events; None for one that has to be decoded first."""
        if self._index is None or not self._wishes:
            return [_NOBODY] * len(bodies)
        return self._index.destinations_of(bodies, self._limits)

    def of(self, direction: str) -> list[Conjunct]:
        """What a direction wants."""
        return [each[direction].conjunct for each in self._wishes.values() if direction in each]

    def roots(self, direction: str) -> list[Conjunct]:
        """What a direction is to know of all others."""
        return list(self._roots[direction].values())

    # -- changes ----------------------------------------------------------------------------------

    def change(
        self, source: str, plus: Iterable[Conjunct], minus: Iterable[Conjunct]
    ) -> dict[str, DirectionChange]:
        """A direction wants some conjunctions more and some less."""
        return finished(self.changing(source, plus, minus))

    def replace(self, source: str, conjuncts: Iterable[Conjunct]) -> dict[str, DirectionChange]:
        """A direction wants these conjunctions and no others."""
        return finished(self.replacing(source, conjuncts))

    def changing(
        self, source: str, plus: Iterable[Conjunct], minus: Iterable[Conjunct]
    ) -> Changing:
        """`change`, bit by bit."""
        gone = list(minus)
        added = yield from self._join_all(source, plus)
        for conjunct in gone:
            node = self._node_of(conjunct)
            if node is not None:
                self._leave(source, node)
            yield self._spent()
        yield from self._minimise(source, added)
        return (yield from self._settle(source, added, is_pure=not gone))

    def replacing(self, source: str, conjuncts: Iterable[Conjunct]) -> Changing:
        """`replace`, bit by bit."""
        before = [node for node, wishes in self._wishes.items() if source in wishes]
        added = yield from self._join_all(source, conjuncts)
        kept = dict.fromkeys(added)
        removed = [node for node in before if node not in kept]
        for node in removed:
            self._leave(source, node)
            yield self._spent()
        yield from self._minimise(source, added)
        known = dict.fromkeys(before)
        fresh = [node for node in added if node not in known]
        return (yield from self._settle(source, fresh, is_pure=not removed))

    def _spent(self) -> WorkDone:
        """What a conjunction costs that comes or goes."""
        return WorkDone(dag_work(0 if self._dag is None else len(self._dag)))

    def _join_all(
        self, source: str, conjuncts: Iterable[Conjunct]
    ) -> Generator[WorkDone, None, list[DagNode]]:
        """All of them or, beyond the limits, none."""
        added: list[DagNode] = []
        fresh: list[DagNode] = []
        try:
            for conjunct in conjuncts:
                wishes = len(self._sources)
                added.append(self._join(source, conjunct))
                if len(self._sources) > wishes:
                    fresh.append(added[-1])
                yield self._spent()
        except LocalError:
            for node in fresh:
                self._leave(source, node)
            raise
        return added

    def _join(self, source: str, conjunct: Conjunct) -> DagNode:
        if self._dag is None or self._index is None:
            self._dag = ConjunctionDag(self._limits)
            self._index = MatchIndex(limits=self._limits)
        self._next_id += 1
        node = self._dag.add(self._next_id, conjunct.conjunction)
        if source in self._wishes.get(node, ()):
            self._dag.remove(self._next_id)
            return node
        try:
            filter, place = conjunct.filter, conjunct.place
            self._index.add(self._next_id, filter, place=place, destination=source)
        except LocalError:
            self._dag.remove(self._next_id)
            raise
        self._wishes.setdefault(node, {})[source] = _Wish(self._next_id, conjunct)
        self._sources[self._next_id] = source
        self._touch(source, node)
        return node

    def _leave(self, source: str, node: DagNode) -> None:
        wishes = self._wishes.get(node, {})
        if source not in wishes:
            return
        assert self._dag is not None
        assert self._index is not None
        self._touch(source, node)
        wish = wishes.pop(source)
        self._index.remove(wish.id)
        del self._sources[wish.id]
        if not wishes:
            del self._wishes[node]
        self._dag.remove(wish.id)

    def _node_of(self, conjunct: Conjunct) -> DagNode | None:
        """The node of a conjunction, which may be a passing one; None if it cannot be known."""
        if self._dag is None:
            self._dag = ConjunctionDag(self._limits)
            self._index = MatchIndex(limits=self._limits)
        self._next_id += 1
        try:
            self._dag.add(self._next_id, conjunct.conjunction)
        except LocalError:
            return None
        return self._dag.remove(self._next_id)

    def _minimise(self, source: str, added: Iterable[DagNode]) -> Iterator[WorkDone]:
        """Rule 1, where it may be broken."""
        if not self._covering:
            return
        for node in added:
            if node not in self._wishes:
                continue
            yield WorkDone(_LOOK_WORK)
            if any(source in self._wishes[upper] for upper in _all_above(node)):
                self._leave(source, node)
            else:
                for lower in list(self._nearest_below(node, source)):
                    self._leave(source, lower)
                    yield self._spent()

    def _nearest_below(self, node: DagNode, source: str) -> Iterator[DagNode]:
        """What a direction wants below a node, with nothing it wants in between."""
        seen = {node}
        pending = list(node.below)
        while pending:
            lower = pending.pop()
            if lower in seen:
                continue
            seen.add(lower)
            if source in self._wishes[lower]:
                yield lower
            else:
                pending.extend(lower.below)

    # -- roots ------------------------------------------------------------------------------------

    def _touch(self, source: str, node: DagNode) -> None:
        """A wish for a node comes or goes: the roots of other directions may change."""
        for direction, touched in self._touched.items():
            if direction == source:
                continue
            touched[node] = None
            if self._covering and node.below:
                self._touch_below(direction, node, touched)

    def _touch_below(self, direction: str, node: DagNode, touched: dict[DagNode, None]) -> None:
        """What the others want below a node, with nothing they want in between."""
        seen = {node}
        pending = list(node.below)
        while pending:
            lower = pending.pop()
            if lower in seen:
                continue
            seen.add(lower)
            if self._is_wanted(lower, direction):
                touched[lower] = None
            else:
                pending.extend(lower.below)

    def _is_wanted(self, node: DagNode, direction: str) -> bool:
        """Whether any other direction wants it."""
        wishes = self._wishes.get(node)
        return wishes is not None and len(wishes) > (direction in wishes)

    def _is_root(self, node: DagNode, direction: str) -> bool:
        if not self._is_wanted(node, direction):
            return False
        if not self._covering:
            return True
        return not any(self._is_wanted(upper, direction) for upper in _all_above(node))

    def _settle(self, source: str, added: Iterable[DagNode], is_pure: bool) -> Changing:
        """Bring all roots up to date; what there is to tell."""
        changes: dict[str, DirectionChange] = {}
        for direction, roots in self._roots.items():
            if direction == source:
                continue
            plus: dict[DagNode, Conjunct] = {}
            minus: list[Conjunct] = []
            for node in self._touched[direction]:
                yield WorkDone(_LOOK_WORK)
                was, is_now = node in roots, self._is_root(node, direction)
                if is_now and not was:
                    wishes = self._wishes[node]
                    first = next(d for d in wishes if d != direction)
                    plus[node] = roots[node] = wishes[first].conjunct
                elif was and not is_now:
                    told = roots.pop(node)
                    if not self._is_wanted(node, direction):
                        minus.append(told)
            self._touched[direction].clear()
            passed = is_pure and all(node in plus for node in added)
            changes[direction] = DirectionChange(list(plus.values()), minus, not passed)
        return changes


def _all_above(node: DagNode) -> Iterator[DagNode]:
    """Every node that covers this one."""
    seen: set[DagNode] = set()
    pending = list(node.above)
    while pending:
        upper = pending.pop()
        if upper not in seen:
            seen.add(upper)
            yield upper
            pending.extend(upper.above)
