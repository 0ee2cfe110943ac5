"""The covering table: finds conjunctions that others make redundant.

A broker sends its neighbours only the *roots*: conjunctions that no other in the table covers.
Every other conjunction has a witness, one root that covers it.

Rules

1. `add` and `remove` return the changes among the roots, as ids. A covered conjunction changes
   nothing.
2. Of equal conjunctions the first one added is the root; when it is removed, the next takes over.
3. Covering is defined by `model.normal.relations.covers`: it is never claimed wrongly.
4. When a root is removed, only the conjunctions with this witness are checked again. The cost of a
   removal is proportional to their number.

State: the conjunctions by id, rebuilt from the subscriptions; safe to lose.
"""

from collections.abc import Hashable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from anabranch.matching.boxes import Boxes, Held, make_boxes
from anabranch.matching.engine import Integers
from anabranch.model.errors import DuplicateIdError, UnknownIdError
from anabranch.model.language.expression import Expression
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.conditions import attribute_names
from anabranch.model.normal.conjunction import Conjunction, few_attributes


class RootChange(msgspec.Struct, frozen=True):
    """What an update did to the set of roots."""

    added_roots: tuple[Hashable, ...] = ()
    removed_roots: tuple[Hashable, ...] = ()


NO_CHANGE = RootChange()


class _Nobody:
    """Stands for the id of a node that has none."""


_NOBODY = _Nobody()


class _Node(Held, eq=False, gc=False):
    """One distinct conjunction and the ids that have it.

    Nodes name their witness by number and so form no cycles; the garbage collector, which would
    walk through all of them again and again while a table grows, need not know them.
    """

    #: The id that came first of those that are left: the one that is named.
    name: Hashable = _NOBODY
    #: Ids that came later, in order; None where there were never any.
    others: dict[Hashable, None] | None = None
    #: The number of a root that covers it; -1 if it is a root itself.
    witness: int = -1
    #: The nodes that have it as their witness, in order; None where there were never any.
    dependents: "dict[_Node, None] | None" = None

    def join(self, id: Hashable) -> None:
        """One more id has this conjunction."""
        if self.others is None:
            self.others = {}
        self.others[id] = None

    def part(self, id: Hashable) -> None:
        """An id leaves; `name` is nobody's if it was the last."""
        others = self.others
        if id != self.name:
            assert others is not None
            del others[id]
        elif others:
            self.name = next(iter(others))
            del others[self.name]
        else:
            self.name = _NOBODY


class CoveringTable:
    """Conjunctions by id, roots told from covered ones. See the rules at the top of this module."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._boxes: Boxes[_Node] = make_boxes(_Node, limits)
        self._by_id: dict[Hashable, _Node] = {}
        self._roots: dict[_Node, None] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: object) -> bool:
        return id in self._by_id

    def roots(self) -> Iterator[Hashable]:
        return (node.name for node in self._roots)

    def root_count(self) -> int:
        return len(self._roots)

    def is_root(self, id: Hashable) -> bool:
        node = self._node(id)
        return node.witness < 0 and node.name == id

    def is_covered(self, conjunction: Conjunction) -> bool:
        """Whether some conjunction in the table covers this one, or equals it."""
        return self._boxes.is_covered(conjunction)

    def add(self, id: Hashable, conjunction: Conjunction) -> RootChange:
        if id in self._by_id:
            raise DuplicateIdError(f"conjunction {id!r} is in the table already")
        node, coverer = self._boxes.take(conjunction)
        self._by_id[id] = node
        if node.name is not _NOBODY:
            node.join(id)
            return NO_CHANGE
        node.name = id
        if coverer is not None:
            _follow(node, coverer)
            return NO_CHANGE
        demoted = self._make_root(node)
        return RootChange((id,), tuple([other.name for other in demoted]))

    def remove(self, id: Hashable) -> RootChange:
        node = self._node(id)
        was_named = node.name == id
        del self._by_id[id]
        node.part(id)
        if node.name is not _NOBODY:
            if node.witness < 0 and was_named:
                return RootChange((node.name,), (id,))
            return NO_CHANGE
        if node.witness >= 0:
            self._leave(node)
            self._boxes.release(node)
            return NO_CHANGE
        return RootChange(self._remove_root(node), (id,))

    def _node(self, id: Hashable) -> _Node:
        node = self._by_id.get(id)
        if node is None:
            raise UnknownIdError(f"conjunction {id!r} is not in the table")
        return node

    def _make_root(self, node: _Node) -> list[_Node]:
        """Make a node a root; returns the former roots that it covers."""
        demoted = self._boxes.covered(node)
        self._boxes.seat(node)
        for other in demoted:
            self._unroot(other)
            _follow(other, node)
            for dependent in other.dependents or ():
                _follow(dependent, node)
            other.dependents = None
        node.witness = -1
        self._roots[node] = None
        return demoted

    def _unroot(self, node: _Node) -> None:
        self._boxes.unseat(node)
        del self._roots[node]

    def _remove_root(self, node: _Node) -> tuple[Hashable, ...]:
        """Take a root out; returns the ids of what became a root in its place."""
        self._unroot(node)
        self._boxes.release(node)
        promoted: dict[_Node, None] = {}
        for dependent in node.dependents or ():
            coverer = self._boxes.coverer(dependent)
            if coverer is not None:
                _follow(dependent, coverer)
                continue
            for demoted in self._make_root(dependent):
                promoted.pop(demoted)
            promoted[dependent] = None
        return tuple([other.name for other in promoted])

    def _leave(self, node: _Node) -> None:
        dependents = self._boxes.seated(node.witness).dependents
        assert dependents is not None
        del dependents[node]


def _follow(node: _Node, witness: _Node) -> None:
    node.witness = witness.number
    if witness.dependents is None:
        witness.dependents = {}
    witness.dependents[node] = None


_NONE: dict[int, None] = {}


class Residues:
    """Which conjunctions may cover which, as far as their residues tell.

    A residue is covered by the same residue, or where so few values are left to the attributes it
    reads that all of them can be tried (`model.normal.conjunction`). Of thousands of conjunctions
    with residues hardly any two have one in common. Those that do are found by their residues; the
    others are left out without being compared. Rules:

    1. What has a residue covers only conjunctions that have the same one, or that leave few values
       to each attribute the residue reads.
    2. What has none is for `covers` to judge.

    State: entries by residue; rebuilt from the conjunctions.
    """

    def __init__(self) -> None:
        #: Residue → the entries that have it.
        self._entries: dict[Expression, dict[int, None]] = {}
        #: Entry → the attributes that the first part of its residue reads.
        self._reads: dict[int, frozenset[str]] = {}
        #: By entry: whether it has a residue, and whether it leaves few values to an attribute.
        self._has: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._few: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def grow(self, entries: int) -> None:
        if entries > len(self._has):
            more = np.zeros(max(entries, 2 * len(self._has)) - len(self._has), np.bool_)
            self._has = np.concatenate((self._has, more))
            self._few = np.concatenate((self._few, more))

    def seat(self, entry: int, conjunction: Conjunction) -> None:
        self._few[entry] = bool(few_attributes(conjunction))
        if not conjunction.residue:
            return
        self._has[entry] = True
        self._reads[entry] = frozenset(attribute_names(conjunction.residue[0]))
        for part in conjunction.residue:
            self._entries.setdefault(part, {})[entry] = None

    def unseat(self, entry: int, conjunction: Conjunction) -> None:
        """Called when it has no dependents left."""
        self._few[entry] = False
        if not conjunction.residue:
            return
        self._has[entry] = False
        del self._reads[entry]
        for part in set(conjunction.residue):
            entries = self._entries[part]
            del entries[entry]
            if not entries:
                del self._entries[part]

    def may_cover(self, conjunction: Conjunction, entries: Integers) -> Integers:
        if not self._reads:
            return entries
        has = self._has[entries]
        found = ~has
        for part in conjunction.residue:
            found |= _are_in(entries, self._entries.get(part, _NONE))
        few = few_attributes(conjunction)
        if few:
            reads = self._reads
            others = entries[has].tolist()
            tried = [entry for entry in others if reads[entry] <= few]
            found |= _are_in(entries, dict.fromkeys(tried))
        return entries[found]

    def may_be_covered(self, conjunction: Conjunction, entries: Integers) -> Integers:
        if not conjunction.residue:
            return entries
        having = [self._entries.get(part, _NONE) for part in conjunction.residue]
        return entries[self._few[entries] | _are_in(entries, min(having, key=len))]


def _are_in(entries: Integers, some: dict[int, None]) -> NDArray[np.bool_]:
    if not some:
        return np.zeros(len(entries), np.bool_)
    return np.isin(entries, np.fromiter(some, np.int64, len(some)))
