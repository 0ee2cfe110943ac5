"""The conjunction DAG: the direct covering relations.

Every distinct conjunction is a node; an edge leads from a conjunction to each one that it covers
directly. Virtual time vectors take start times from it (Zhao's dissertation, 4.1.3). Every update
preserves these properties, which are tested against brute force:

1. *Complete*: one node covers another exactly if there is a path from it, as far as `covers`
   can tell.
2. *Minimal*: no edge where there is a longer path.
3. Equal conjunctions share a node, and so do unequal ones that cover each other, so that there are
   no cycles. A node exists as long as an id refers to it.

For a new node, all its coverers and all conjunctions that it covers are queried; the direct ones
are those with none of the others between. On removal, every coverer of the node is connected with
every node it covered, unless another path remains.

While the kernels are deferred (`kernel_state`), a DAG starts with boxes that do not use them. Its
first change after they are loaded moves all nodes to boxes with kernels.

State: rebuilt from the subscriptions; safe to lose.
"""

from collections.abc import Hashable, Iterator

import msgspec

from anabranch.matching import kernel_state
from anabranch.matching.boxes import Boxes, Held, PlainBoxes, make_boxes
from anabranch.matching.engine import numba_is_here
from anabranch.model.errors import DuplicateIdError, FilterLimitError, UnknownIdError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.conjunction import Conjunction


class DagNode(Held, eq=False):
    """One distinct conjunction. `payload` belongs to the user of the DAG."""

    #: The ids that have this conjunction, in the order of their coming.
    ids: dict[Hashable, None] = msgspec.field(default_factory=dict)
    #: Its direct coverers.
    above: "dict[DagNode, None]" = msgspec.field(default_factory=dict)
    #: What it covers directly.
    below: "dict[DagNode, None]" = msgspec.field(default_factory=dict)
    payload: object = None

    @property
    def is_root(self) -> bool:
        return not self.above


class ConjunctionDag:
    """Conjunctions by id, with their direct coverers. See the top of this module."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS, *, may_defer: bool = True) -> None:
        """`may_defer`: start without the kernels while these are deferred."""
        self._limits = limits
        #: Whether the nodes are to move to boxes with kernels.
        self._is_early = may_defer and numba_is_here() and kernel_state.are_deferred()
        self._boxes: Boxes[DagNode] = (
            PlainBoxes(DagNode) if self._is_early else make_boxes(DagNode, limits)
        )
        #: In the order of their coming.
        self._nodes: dict[DagNode, None] = {}
        self._by_id: dict[Hashable, DagNode] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: object) -> bool:
        return id in self._by_id

    def nodes(self) -> Iterator[DagNode]:
        return iter(self._nodes)

    def roots(self) -> Iterator[DagNode]:
        return (node for node in self._nodes if node.is_root)

    def node(self, id: Hashable) -> DagNode:
        node = self._by_id.get(id)
        if node is None:
            raise UnknownIdError(f"conjunction {id!r} is not in the DAG")
        return node

    def coverers(self, id: Hashable) -> list[DagNode]:
        return list(self.node(id).above)

    def covered(self, id: Hashable) -> list[DagNode]:
        return list(self.node(id).below)

    def add(self, id: Hashable, conjunction: Conjunction) -> DagNode:
        """Add a conjunction; returns its node, shared by all that mean the same."""
        if id in self._by_id:
            raise DuplicateIdError(f"conjunction {id!r} is in the DAG already")
        if self._is_early:
            self._move()
        node = self._boxes.hold(conjunction)
        if not node.ids:
            node = self._insert(node)
        node.ids[id] = None
        self._by_id[id] = node
        return node

    def remove(self, id: Hashable) -> DagNode:
        """Remove an id; returns its node, which is gone if that was its last id."""
        node = self.node(id)
        if self._is_early:
            self._move()
        del self._by_id[id]
        del node.ids[id]
        if not node.ids:
            self._delete(node)
        return node

    def _move(self) -> None:
        """Move all nodes to boxes with kernels, unless these are still deferred. Every node is kept
        and seated. Where there are more attributes than the kernels have room for, all stays."""
        if kernel_state.are_deferred():
            return
        self._is_early = False
        from anabranch.matching.compiled_boxes import CompiledBoxes  # noqa: PLC0415 - needs numba

        boxes = CompiledBoxes(DagNode, self._limits)
        before = [(node.key, node.is_plain, node.number) for node in self._nodes]
        try:
            for node in self._nodes:
                boxes.adopt(node)
        except FilterLimitError:
            for node, (key, is_plain, number) in zip(self._nodes, before, strict=True):
                node.key, node.is_plain, node.number = key, is_plain, number
        else:
            self._boxes = boxes

    def _insert(self, node: DagNode) -> DagNode:
        """Put a new node in its place; returns it, or the one that means the same otherwise."""
        over = dict.fromkeys(self._boxes.coverers(node))
        under = dict.fromkeys(self._boxes.covered(node))
        for other in over:
            if other in under:
                return other
        self._boxes.keep(node)
        above = [other for other in over if not any(child in over for child in other.below)]
        below = [other for other in under if not any(parent in under for parent in other.above)]
        for upper in above:
            for lower in [child for child in upper.below if child in under]:
                del upper.below[lower]
                del lower.above[upper]
        for upper in above:
            _connect(upper, node)
        for lower in below:
            _connect(node, lower)
        self._boxes.seat(node)
        self._nodes[node] = None
        return node

    def _delete(self, node: DagNode) -> None:
        self._boxes.unseat(node)
        self._boxes.release(node)
        del self._nodes[node]
        for upper in node.above:
            del upper.below[node]
        for lower in node.below:
            del lower.above[node]
        for lower in node.below:
            reached = _all_above(lower)
            for upper in node.above:
                if upper not in reached:
                    _connect(upper, lower)


def _connect(upper: DagNode, lower: DagNode) -> None:
    upper.below[lower] = None
    lower.above[upper] = None


def _all_above(node: DagNode) -> set[DagNode]:
    """Every node with a path down to this one."""
    seen: set[DagNode] = set()
    pending = list(node.above)
    while pending:
        upper = pending.pop()
        if upper not in seen:
            seen.add(upper)
            pending.extend(upper.above)
    return seen
