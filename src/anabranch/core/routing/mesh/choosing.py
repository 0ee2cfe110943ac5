"""Choosing: which neighbour each target of a copy goes to.

Always one that is nearer to the target than this broker was said to be, and not the one that the
copy came from (see `copying`). Rules:

1. With `fixed` paths, the one behind which the target is on the copy's own tree.
2. With `dynamic` ones there are more *ways*: every neighbour behind which the target is on any tree
   that it joined, and every neighbour that is nearer to it by the target's own tree. None of these
   has its way over this broker. A target goes to the nearest; of these, to the one on the tree.
3. If that link does not keep up, all targets that would go over it go to another neighbour that
   costs less and is a way for all of them, if there is one. They do not part for that: every copy
   more is work for all brokers behind it, and makes a busy network busier.
4. Ticks for one edge (an answer to a nack) take its ways in turn, with `dynamic` paths: the one on
   which they were lost may lead to a link that lets nothing through, of which nobody here knows.

This module keeps no state.

Prior art: publication routing by link status, spec PADRES section 3, whose paths part by load.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from anabranch.core.routing.mesh.branches import BranchTable, Hops
from anabranch.core.routing.mesh.loads import Loads
from anabranch.core.routing.mesh.surroundings import DISTANCE_MAX, Surroundings
from anabranch.core.routing.mesh.trees import Trees
from anabranch.model.mesh_frames import Copies, Target

_NOBODY: Hops = {}
#: A target, the neighbour that it goes to, and its distance from there.
_Choice = tuple[Target, str, int]


class Choosing:
    """Sorts the targets of copies by next hop. See the rules at the top of this module."""

    def __init__(
        self, around: Surroundings, trees: Trees, branches: BranchTable, loads: Loads
    ) -> None:
        self._around = around
        self._trees = trees
        self._branches = branches
        self._loads = loads
        self._is_dynamic = around.options.paths == "dynamic"

    def choose(self, frame: Copies, came_from: str, turn: int) -> Iterator[_Choice]:
        """Every target with the neighbour that it goes to, and its distance from there; "" if there
        is none."""
        groups: dict[str, list[tuple[Target, int]]] = {}
        on_tree = self._branches.of_tree(frame.tree)
        is_known = not came_from or frame.tree in self._trees
        for target in frame.targets:
            if turn:
                hop, distance = self._in_turn(on_tree.get(target.edge, _NOBODY), target, turn)
            else:
                hop, distance = self._nearest(on_tree.get(target.edge, _NOBODY), target, came_from)
            if not hop and not is_known:
                hop, distance = self._around.by_chart(target.edge, target.distance, came_from)
            groups.setdefault(hop, []).append((target, distance))
        for hop, members in groups.items():
            other = ""
            if hop and self._is_dynamic and not turn and self._loads.is_busy(hop):
                other = self._cheaper(hop, [target for target, _ in members], came_from)
            for target, distance in members:
                if hop and is_known and self._is_dynamic:
                    is_off = (other or hop) not in on_tree.get(target.edge, _NOBODY)
                    self._around.counters.targets_moved += is_off
                if other:
                    yield target, other, self._ways(target.edge)[other]
                else:
                    yield target, hop, distance

    def _nearest(self, on_tree: Hops, target: Target, came_from: str) -> tuple[str, int]:
        """The neighbour that is nearest to a target, and its distance from there."""
        links, edge, limit = self._around.links, target.edge, target.distance
        ways: Iterable[tuple[str, int]] = on_tree.items()
        if self._is_dynamic:
            # A neighbour that is in both is taken as the nearer one that it is.
            ways = chain(self._branches.ways(edge).items(), self._trees.near(edge).items())
        best, best_hop = (DISTANCE_MAX, True, ""), ""
        for hop, distance in ways:
            if distance >= limit or hop == came_from or links.get(hop, True):
                continue
            rank = (distance, hop not in on_tree, hop)
            if not best_hop or rank < best:
                best, best_hop = rank, hop
        return best_hop, best[0] if best_hop else 0

    def _cheaper(self, usual: str, targets: Sequence[Target], came_from: str) -> str:
        """A neighbour that all these can go to and that costs less (rule 3); "" if none does."""
        links, best, best_hop = self._around.links, self._loads.cost(usual), ""
        for hop in sorted(self._ways(targets[0].edge)):
            if hop == came_from or links.get(hop, True) or self._loads.cost(hop) >= best:
                continue
            if all(self._ways(t.edge).get(hop, t.distance) < t.distance for t in targets):
                best, best_hop = self._loads.cost(hop), hop
        return best_hop

    def _in_turn(self, on_tree: Hops, target: Target, turn: int) -> tuple[str, int]:
        """The neighbour that an answer goes to (rule 4), and the distance from there; the nearest
        ones first."""
        links = self._around.links
        ways = [
            (distance, hop not in on_tree, hop)
            for hop, distance in self._ways(target.edge).items()
            if not links.get(hop, True)
        ]
        if not ways:
            return "", 0
        distance, _, hop = sorted(ways)[turn % len(ways)]
        return hop, distance

    def _ways(self, edge: str) -> Mapping[str, int]:
        """All neighbours that lead to an edge, and how far it is from them (rule 2)."""
        ways, near = self._branches.ways(edge), self._trees.near(edge)
        if not near:
            return ways
        return {**ways, **{h: min(d, ways.get(h, d)) for h, d in near.items()}}
