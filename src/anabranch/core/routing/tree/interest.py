"""Interest at one site (Λ): the conjunctions that each direction wants, and each direction's roots.

All conjunctions that a presence has learned are in one covering DAG, from coverers to covered, and
each node lists the directions that want it. One index matches events against all of them and
returns directions. The interest sent to a direction t is the *roots of t*: the nodes that some
other direction wants and that no node wanted by another direction covers. Rules:

1. *Minimal per direction*: of two conjunctions that a direction wants, neither covers the other;
   the covered one is dropped when the coverer arrives. (Otherwise a covered conjunction that
   leaves further down without notice would stay here forever.)
2. Conjunctions that cover each other share one node, regardless of their form.
3. A change contains, per direction, the new roots (`plus`) and the roots that no other direction
   wants any longer (`minus`). A root that is merely covered now is not in `minus`: the receiver
   drops it by rule 1.
4. A change is *aggregated* for a direction if any part of it did not pass through: something was
   removed, or an added conjunction was covered or already known. The receiver may then apply it
   only if it has the same versions as this presence.
5. A change is applied incrementally. Until it is complete, nothing else changes and no event is
   matched.
6. A change beyond the limits of the DAG or the index raises `LocalError` and has no effect.

With `covering` off, no conjunction covers another, but equal conjunctions still share one node.

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

#: The directions that want an event.
Directions = set[object] | frozenset[object]

_NOBODY: frozenset[object] = frozenset()
#: With at most this many conjunctions it is faster to find all matches than to stop early.
_MATCH_ALL_MAX = 256


#: Cost of testing whether a conjunction is a root.
_LOOK_WORK = 5


class DirectionChange(NamedTuple):
    """The change of interest that one direction gets."""

    plus: list[Conjunct]
    minus: list[Conjunct]
    aggregated: bool


#: An interruptible change; its result is the change for each direction.
Changing = Generator[WorkDone, None, dict[str, DirectionChange]]


class _Subscriber(NamedTuple):
    """A direction in the subscriber list of a node."""

    #: Id in the DAG and in the index.
    id: int
    conjunct: Conjunct


class Interest:
    """The interest at one site. See the rules at the top of this module."""

    def __init__(self, receivers: Iterable[str], limits: Limits, covering: bool) -> None:
        self._limits = limits
        self._covering = covering
        #: Created on first use.
        self._dag: ConjunctionDag | None = None
        self._index: MatchIndex | None = None
        self._next_id = 0
        #: Subscriber id → its direction.
        self._sources: dict[object, str] = {}
        #: Node → direction → subscriber.
        self._subscribers: dict[DagNode, dict[str, _Subscriber]] = {}
        #: Direction that receives interest → its roots, as last sent.
        self._roots: dict[str, dict[DagNode, Conjunct]] = {direction: {} for direction in receivers}
        #: Direction → nodes that may have become roots or ceased to be roots.
        self._touched: dict[str, dict[DagNode, None]] = {direction: {} for direction in receivers}

    # -- queries ----------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._subscribers)

    def destinations(self, event: Attributes | Envelope) -> Directions:
        """The directions that want an event; `RemoteError` if it is not a valid event."""
        if self._index is None or not self._subscribers:
            return _NOBODY
        if len(self._sources) > _MATCH_ALL_MAX:
            return set(self._index.destinations(event))
        return {self._sources[found] for found in self._index.match(event)}

    def destinations_within(
        self, event: Attributes | Envelope, size: int, work_max: int
    ) -> tuple[Directions, int, bool]:
        """`destinations`, or a superset if that needs checks above `work_max`; also the cost of
        the checks, and whether the limit was reached. `size` is that of the event in bytes."""
        if self._index is None or not self._subscribers:
            return _NOBODY, 0, False
        if not self._index.has_doubts:
            return self.destinations(event), 0, False
        return self._index.destinations_within(event, size, work_max)

    def destinations_of(self, bodies: Sequence[bytes]) -> list[frozenset[object] | None]:
        """`destinations` for encoded events; None for an event that must be decoded first."""
        if self._index is None or not self._subscribers:
            return [_NOBODY] * len(bodies)
        return self._index.destinations_of(bodies, self._limits)

    def conjuncts(self, direction: str) -> list[Conjunct]:
        subscribers = self._subscribers.values()
        return [each[direction].conjunct for each in subscribers if direction in each]

    def roots(self, direction: str) -> list[Conjunct]:
        """The interest of all other directions, as sent to this one."""
        return list(self._roots[direction].values())

    # -- changes ----------------------------------------------------------------------------------

    def change(
        self, source: str, plus: Iterable[Conjunct], minus: Iterable[Conjunct]
    ) -> dict[str, DirectionChange]:
        return finished(self.change_in_slices(source, plus, minus))

    def replace(self, source: str, conjuncts: Iterable[Conjunct]) -> dict[str, DirectionChange]:
        return finished(self.replace_in_slices(source, conjuncts))

    def change_in_slices(
        self, source: str, plus: Iterable[Conjunct], minus: Iterable[Conjunct]
    ) -> Changing:
        removed = list(minus)
        added = yield from self._join_all(source, plus)
        for conjunct in removed:
            node = self._node_of(conjunct)
            if node is not None:
                self._leave(source, node)
            yield self._spent()
        yield from self._minimise(source, added)
        return (yield from self._settle(source, added, is_pure=not removed))

    def replace_in_slices(self, source: str, conjuncts: Iterable[Conjunct]) -> Changing:
        before = [node for node, subscribers in self._subscribers.items() if source in subscribers]
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
        return WorkDone(dag_work(0 if self._dag is None else len(self._dag)))

    def _join_all(
        self, source: str, conjuncts: Iterable[Conjunct]
    ) -> Generator[WorkDone, None, list[DagNode]]:
        """Add all conjunctions or, beyond the limits, none."""
        added: list[DagNode] = []
        fresh: list[DagNode] = []
        try:
            for conjunct in conjuncts:
                count = len(self._sources)
                added.append(self._join(source, conjunct))
                if len(self._sources) > count:
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
        if source in self._subscribers.get(node, ()):
            self._dag.remove(self._next_id)
            return node
        try:
            filter, place = conjunct.filter, conjunct.place
            self._index.add(self._next_id, filter, place=place, destination=source)
        except LocalError:
            self._dag.remove(self._next_id)
            raise
        self._subscribers.setdefault(node, {})[source] = _Subscriber(self._next_id, conjunct)
        self._sources[self._next_id] = source
        self._touch(source, node)
        return node

    def _leave(self, source: str, node: DagNode) -> None:
        subscribers = self._subscribers.get(node, {})
        if source not in subscribers:
            return
        assert self._dag is not None
        assert self._index is not None
        self._touch(source, node)
        subscriber = subscribers.pop(source)
        self._index.remove(subscriber.id)
        del self._sources[subscriber.id]
        if not subscribers:
            del self._subscribers[node]
        self._dag.remove(subscriber.id)

    def _node_of(self, conjunct: Conjunct) -> DagNode | None:
        """The node of a conjunction, possibly a temporary one; None beyond the limits."""
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
        """Restore rule 1 after an addition."""
        if not self._covering:
            return
        for node in added:
            if node not in self._subscribers:
                continue
            yield WorkDone(_LOOK_WORK)
            if any(source in self._subscribers[upper] for upper in _all_above(node)):
                self._leave(source, node)
            else:
                for lower in list(self._nearest_below(node, source)):
                    self._leave(source, lower)
                    yield self._spent()

    def _nearest_below(self, node: DagNode, source: str) -> Iterator[DagNode]:
        """The nearest nodes below this one that a direction wants."""
        seen = {node}
        pending = list(node.below)
        while pending:
            lower = pending.pop()
            if lower in seen:
                continue
            seen.add(lower)
            if source in self._subscribers[lower]:
                yield lower
            else:
                pending.extend(lower.below)

    # -- roots ------------------------------------------------------------------------------------

    def _touch(self, source: str, node: DagNode) -> None:
        """Mark nodes whose root status may change when a subscriber joins or leaves a node."""
        for direction, touched in self._touched.items():
            if direction == source:
                continue
            touched[node] = None
            if self._covering and node.below:
                self._touch_below(direction, node, touched)

    def _touch_below(self, direction: str, node: DagNode, touched: dict[DagNode, None]) -> None:
        """Mark the nearest nodes below this one that other directions want."""
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
        """Whether any other direction wants a node."""
        subscribers = self._subscribers.get(node)
        return subscribers is not None and len(subscribers) > (direction in subscribers)

    def _is_root(self, node: DagNode, direction: str) -> bool:
        if not self._is_wanted(node, direction):
            return False
        if not self._covering:
            return True
        return not any(self._is_wanted(upper, direction) for upper in _all_above(node))

    def _settle(self, source: str, added: Iterable[DagNode], is_pure: bool) -> Changing:
        """Update all roots; returns the changes to send."""
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
                    subscribers = self._subscribers[node]
                    first = next(d for d in subscribers if d != direction)
                    plus[node] = roots[node] = subscribers[first].conjunct
                elif was and not is_now:
                    sent = roots.pop(node)
                    if not self._is_wanted(node, direction):
                        minus.append(sent)
            self._touched[direction].clear()
            passed = is_pure and all(node in plus for node in added)
            changes[direction] = DirectionChange(list(plus.values()), minus, not passed)
        return changes


def _all_above(node: DagNode) -> Iterator[DagNode]:
    """All nodes that cover this one."""
    seen: set[DagNode] = set()
    pending = list(node.above)
    while pending:
        upper = pending.pop()
        if upper not in seen:
            seen.add(upper)
            yield upper
            pending.extend(upper.above)
