"""Branches: behind which neighbours the edges are, on every tree.

An edge *joins* a tree by telling its parent there that it is behind it; every broker tells its own
parent in turn, with how far the edge is. So along each tree there is a way from the root to every
edge that joined. An edge that joined several trees may be reached over several of them: these are
the other ways that events can take. Rules:

1. What a neighbour said of a tree is kept as its own, beside what others said, and is changed by
   that neighbour alone; with its link it is gone.
2. A broker tells its parent of a tree the edges behind all *other* neighbours: what came from the
   parent is not told back to it.
3. When its parent changes, a broker tells the new one everything at once, and the former one, a
   while later, that nothing is behind it any more. In between both ways lead to the edge; the
   distance that every copy carries keeps it from going in circles (see `copying`). An edge that is
   farther away by then than the former one was told is taken back from it at once: of all ways the
   nearest seems the best, and copies would be sent on it only to be dropped.
4. Nobody is farther away than there are brokers; who seems to be is not told of.
5. With a tree that is forgotten, all that was said of it is. A neighbour may have forgotten one
   that this broker has not, or begun it again before; so on all trees but the first ones, whoever
   takes a later wave tells its parent everything, even if that is the one it had; and whoever
   forgets a tree tells its parent a while later that nothing is behind it.

State: volatile; told again by the neighbours.

Prior art: the PRT with its (TID, last hop) pairs, spec PADRES section 2.
"""

from collections.abc import Mapping

from anabranch.core.routing.mesh.shared import MeshState
from anabranch.core.routing.mesh.trees import Trees
from anabranch.model.mesh_frames import Branches, TreeId

#: Part of the first timeout after which a former parent is told.
_FORMER_AFTER = 1.0

Hops = Mapping[str, int]
_NOBODY: Hops = {}
_NO_EDGES: Mapping[str, Hops] = {}


class BranchTable:
    """The branches that one broker knows. See the rules at the top of this module."""

    def __init__(self, around: MeshState, trees: Trees) -> None:
        self._around = around
        self._trees = trees
        #: Tree → edge → neighbour behind which it is (or this broker) → its distance from there.
        self._known: dict[TreeId, dict[str, dict[str, int]]] = {}
        #: Edge → neighbour → the least distance from there over all trees.
        self._ways: dict[str, dict[str, int]] = {}
        #: Tree → its parent and the wave, and what that parent was told.
        self._told: dict[TreeId, tuple[str, int, dict[str, int]]] = {}
        self._touched: dict[TreeId, None] = {}
        #: Tree → former parent → what that one was told.
        self._former: dict[TreeId, dict[str, dict[str, int]]] = {}
        #: (tree, former parent) → when to tell it that nothing is behind it.
        self._due: dict[tuple[TreeId, str], float] = {}

    # -- questions --------------------------------------------------------------------------------

    def on_tree(self, tree: TreeId, edge: str) -> Hops:
        """The neighbours behind which an edge is on a tree, and how far from them."""
        edges = self._known.get(tree)
        return _NOBODY if edges is None else edges.get(edge, _NOBODY)

    def of_tree(self, tree: TreeId) -> Mapping[str, Hops]:
        """The same of all edges that are known on a tree."""
        return self._known.get(tree, _NO_EDGES)

    def ways(self, edge: str) -> Hops:
        """The neighbours behind which an edge is on any tree, and how far it is from them."""
        known = self._ways.get(edge)
        if known is None:
            known = self._ways[edge] = {}
            for edges in self._known.values():
                for hop, distance in edges.get(edge, _NOBODY).items():
                    known[hop] = min(distance, known.get(hop, distance))
        return known

    def edges(self, tree: TreeId) -> list[str]:
        """The edges that are known on a tree."""
        return list(self._known.get(tree, ()))

    def __len__(self) -> int:
        """How many edges are known, counted on every tree."""
        return sum(map(len, self._known.values()))

    def view(self) -> dict[TreeId, list[str]]:
        """Tree → the edges that are known on it; for whoever checks it."""
        return {tree: list(edges) for tree, edges in self._known.items()}

    def moving(self) -> set[TreeId]:
        """Trees of which a former parent has not been told yet."""
        return set(self._former)

    def joined(self) -> set[TreeId]:
        """The trees that the own edge has joined."""
        name = self._around.name
        return {tree for tree, edges in self._known.items() if name in edges.get(name, _NOBODY)}

    # -- changes ----------------------------------------------------------------------------------

    def join(self, tree: TreeId) -> None:
        """The own edge is on this tree from now on."""
        self._set(tree, self._around.name, self._around.name, 0)

    def leave(self, tree: TreeId) -> None:
        """The own edge is on this tree no more."""
        self._set(tree, self._around.name, self._around.name, -1)

    def receive(self, peer: str, frame: Branches) -> None:
        """A neighbour tells what is behind it."""
        for name in (frame.tree.origin, *frame.edges):
            self._around.check_edge(peer, name)
        if frame.tree not in self._trees:
            return
        if frame.is_whole:
            before = self._known.get(frame.tree, {})
            for edge in [e for e, hops in before.items() if peer in hops and e not in frame.edges]:
                self._set(frame.tree, edge, peer, -1)
        for edge, distance in frame.edges.items():
            self._set(frame.tree, edge, peer, distance)

    def link_down(self, peer: str) -> None:
        """A neighbour is gone, with all it said."""
        for tree, edges in list(self._known.items()):
            for edge in [edge for edge, hops in edges.items() if peer in hops]:
                self._set(tree, edge, peer, -1)
        for tree, (parent, _, _) in list(self._told.items()):
            if parent == peer:
                del self._told[tree]
                self._touched[tree] = None
        for tree in [tree for tree, former in self._due if former == peer]:
            self._is_told(tree, peer)

    def _set(self, tree: TreeId, edge: str, hop: str, distance: int) -> None:
        """An edge is this far from a hop, or (−1) not behind it."""
        edges = self._known.setdefault(tree, {})
        hops = edges.setdefault(edge, {})
        if distance >= 0:
            hops[hop] = distance
        else:
            hops.pop(hop, None)
        if not hops:
            del edges[edge]
        if not edges:
            del self._known[tree]
        self._ways.pop(edge, None)
        self._touched[tree] = None

    # -- telling ----------------------------------------------------------------------------------

    def tell(self, now: float) -> None:
        """Tell parents what changed."""
        if self._trees.changed:
            self._touched |= self._trees.changed
            self._trees.changed.clear()
        for tree in self._touched:
            if self._trees.is_over(tree):
                self._forget(now, tree)
            else:
                # The own edge may join before the first wave has come; there is no parent then.
                self._tell(now, tree)
                self._take_back(tree)
        self._touched.clear()

    def _tell(self, now: float, tree: TreeId) -> None:
        parent = self._trees.parent(tree)
        before = self._told.get(tree)
        if parent is None:
            # The way may be lost although the link is not.
            self._told.pop(tree, None)
            if before is not None and before[2]:
                self._leave_parent(now, tree, before[0], before[2])
            return
        edges = self._seen_from(tree, parent)
        wave = self._trees.wave(tree) if tree.number else 0
        if before is not None and before[:2] == (parent, wave):
            changed = {e: d for e, d in edges.items() if before[2].get(e) != d}
            changed |= {edge: -1 for edge in before[2] if edge not in edges}
            if changed:
                self._around.send(parent, Branches(tree, changed))
        elif before is not None and before[0] == parent:
            if edges or before[2]:
                self._around.send(parent, Branches(tree, edges, is_whole=True))
        else:
            if before is not None and before[2]:
                self._leave_parent(now, tree, before[0], before[2])
            was_former = self._is_told(tree, parent)
            if edges or was_former:
                self._around.send(parent, Branches(tree, edges, is_whole=True))
        self._told[tree] = (parent, wave, edges)

    def _seen_from(self, tree: TreeId, parent: str) -> dict[str, int]:
        """Edges on a tree and their distance from here, as a parent is told (rules 2 and 4)."""
        found: dict[str, int] = {}
        name, farthest = self._around.name, len(self._around.brokers)
        for edge, hops in self._known.get(tree, {}).items():
            distances = [d + (hop != name) for hop, d in hops.items() if hop != parent]
            if distances and min(distances) < farthest:
                found[edge] = min(distances)
        return found

    def _leave_parent(self, now: float, tree: TreeId, parent: str, told: dict[str, int]) -> None:
        """Tell a former parent, a while later."""
        self._is_told(tree, parent)
        after_s = _FORMER_AFTER * self._around.options.lag_after_s
        self._former.setdefault(tree, {})[parent] = told
        self._due[tree, parent] = now + after_s

    def _is_told(self, tree: TreeId, former: str) -> bool:
        """A former parent is one no more; whether it was."""
        if self._due.pop((tree, former), None) is None:
            return False
        del self._former[tree][former]
        if not self._former[tree]:
            del self._former[tree]
        return True

    def _take_back(self, tree: TreeId) -> None:
        """Edges that are farther away now than former parents were told (rule 3)."""
        for former, told in self._former.get(tree, {}).items():
            near = self._seen_from(tree, former)
            farther = [edge for edge, far in told.items() if near.get(edge, far + 1) > far]
            for edge in farther:
                del told[edge]
            if farther:
                self._around.send(former, Branches(tree, dict.fromkeys(farther, -1)))

    def _forget(self, now: float, tree: TreeId) -> None:
        """A tree is over."""
        for edge in self._known.pop(tree, {}):
            self._ways.pop(edge, None)
        told = self._told.pop(tree, None)
        if tree.life >= self._trees.lives.get(tree.origin, 0):
            # The parent may have begun it again before it heard what it was told last.
            if told is not None and told[2]:
                self._leave_parent(now, tree, told[0], told[2])
            return
        for former in list(self._former.get(tree, ())):
            self._is_told(tree, former)

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> None:
        """Tell former parents, when it is due."""
        while self._due:
            (tree, peer), due = next(iter(self._due.items()))
            if due > now:
                return
            self._is_told(tree, peer)
            self._around.send(peer, Branches(tree, {}, is_whole=True))

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return next(iter(self._due.values())) if self._due else None
