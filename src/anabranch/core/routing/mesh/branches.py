"""Branches: on every tree, the neighbours that lead to each edge.

An edge *joins* a tree by announcing itself to its parent; every broker announces it to its own
parent in turn, with the edge's distance. So each tree has a path from the root to every edge that
joined it. An edge that joined several trees may be reached over several of them: these are the
alternate paths of events. Rules:

1. A neighbour's announcements are kept separately per neighbour. Only that neighbour changes them,
   and they are dropped when its link breaks.
2. A broker announces to its parent the edges behind all *other* neighbours: announcements of the
   parent are not sent back to it.
3. When the parent changes, the broker announces everything to the new parent at once, and withdraws
   everything from the former one after a delay. In between both paths lead to the edge; the
   distance in every copy prevents loops (see `copies`). An edge that is farther by then than
   announced to the former parent is withdrawn from it at once: otherwise that path would look
   nearest, and copies sent on it would be dropped.
4. Edges farther away than the number of brokers are not announced.
5. When a tree is dropped, its branches are dropped too. A neighbour may have dropped a tree that
   this broker has not, or restarted it earlier. So on all trees except the first ones, a broker
   that accepts a later wave announces everything to its parent, even to an unchanged one; and a
   broker that drops a tree withdraws everything from its parent after a delay.

State: volatile; announced again by the neighbours.

Prior art: the PRT with its (TID, last hop) pairs, spec PADRES section 2.
"""

from collections.abc import Mapping

from anabranch.core.routing.mesh.shared import MeshState
from anabranch.core.routing.mesh.trees import Trees
from anabranch.model.mesh_frames import Branches, TreeId

#: Delay before a former parent gets its withdrawal, as a factor of `lag_after_s`.
_FORMER_AFTER = 1.0

Hops = Mapping[str, int]
_NOBODY: Hops = {}
_NO_EDGES: Mapping[str, Hops] = {}


class BranchTable:
    """The branches that one broker has learned. See the rules at the top of this module."""

    def __init__(self, shared: MeshState, trees: Trees) -> None:
        self._shared = shared
        self._trees = trees
        #: Tree → edge → neighbour that leads to it (or this broker) → its distance from there.
        self._known: dict[TreeId, dict[str, dict[str, int]]] = {}
        #: Edge → neighbour → the least distance from there over all trees; cached.
        self._next_hops: dict[str, dict[str, int]] = {}
        #: Tree → its parent and the wave, and the edges announced to that parent.
        self._announced: dict[TreeId, tuple[str, int, dict[str, int]]] = {}
        self._touched: dict[TreeId, None] = {}
        #: Tree → former parent → the edges announced to it.
        self._former: dict[TreeId, dict[str, dict[str, int]]] = {}
        #: (tree, former parent) → when to withdraw everything from it.
        self._due: dict[tuple[TreeId, str], float] = {}

    # -- queries ----------------------------------------------------------------------------------

    def hops_on_tree(self, tree: TreeId, edge: str) -> Hops:
        """The neighbours that lead to an edge on a tree, with the distance from there."""
        edges = self._known.get(tree)
        return _NOBODY if edges is None else edges.get(edge, _NOBODY)

    def of_tree(self, tree: TreeId) -> Mapping[str, Hops]:
        """`hops_on_tree` for all edges of a tree."""
        return self._known.get(tree, _NO_EDGES)

    def next_hops(self, edge: str) -> Hops:
        """The neighbours that lead to an edge on any tree, with the distance from there."""
        known = self._next_hops.get(edge)
        if known is None:
            known = self._next_hops[edge] = {}
            for edges in self._known.values():
                for hop, distance in edges.get(edge, _NOBODY).items():
                    known[hop] = min(distance, known.get(hop, distance))
        return known

    def edges(self, tree: TreeId) -> list[str]:
        """The known edges of a tree."""
        return list(self._known.get(tree, ()))

    def __len__(self) -> int:
        """Number of known edges, summed over all trees."""
        return sum(map(len, self._known.values()))

    def view(self) -> dict[TreeId, list[str]]:
        """Tree → its known edges; for checks."""
        return {tree: list(edges) for tree, edges in self._known.items()}

    def trees_with_former_parent(self) -> set[TreeId]:
        """Trees with a former parent that still needs a withdrawal."""
        return set(self._former)

    def joined(self) -> set[TreeId]:
        """The trees that this broker's edge has joined."""
        name = self._shared.name
        return {tree for tree, edges in self._known.items() if name in edges.get(name, _NOBODY)}

    # -- changes ----------------------------------------------------------------------------------

    def join(self, tree: TreeId) -> None:
        """Join a tree with this broker's edge."""
        self._set(tree, self._shared.name, self._shared.name, 0)

    def leave(self, tree: TreeId) -> None:
        """Leave a tree with this broker's edge."""
        self._set(tree, self._shared.name, self._shared.name, -1)

    def receive(self, peer: str, frame: Branches) -> None:
        """Handle an announcement of the edges behind a neighbour."""
        for name in (frame.tree.origin, *frame.edges):
            self._shared.check_edge(peer, name)
        if frame.tree not in self._trees:
            return
        if frame.is_whole:
            before = self._known.get(frame.tree, {})
            for edge in [e for e, hops in before.items() if peer in hops and e not in frame.edges]:
                self._set(frame.tree, edge, peer, -1)
        for edge, distance in frame.edges.items():
            self._set(frame.tree, edge, peer, distance)

    def link_down(self, peer: str) -> None:
        """Drop everything that a disconnected neighbour announced."""
        for tree, edges in list(self._known.items()):
            for edge in [edge for edge, hops in edges.items() if peer in hops]:
                self._set(tree, edge, peer, -1)
        for tree, (parent, _, _) in list(self._announced.items()):
            if parent == peer:
                del self._announced[tree]
                self._touched[tree] = None
        for tree in [tree for tree, former in self._due if former == peer]:
            self._drop_former(tree, peer)

    def _set(self, tree: TreeId, edge: str, hop: str, distance: int) -> None:
        """Set the distance of an edge from a hop; −1 removes it."""
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
        self._next_hops.pop(edge, None)
        self._touched[tree] = None

    # -- announcing -------------------------------------------------------------------------------

    def announce(self, now: float) -> None:
        """Announce changes to parents."""
        self._touched |= self._trees.take_changed()
        for tree in self._touched:
            if self._trees.has_ended(tree):
                self._forget(now, tree)
            else:
                # This edge may join before the first wave arrives; there is no parent then.
                self._announce_tree(now, tree)
                self._withdraw_farther(tree)
        self._touched.clear()

    def _announce_tree(self, now: float, tree: TreeId) -> None:
        parent = self._trees.parent(tree)
        before = self._announced.get(tree)
        if parent is None:
            # The path may be lost although the link is up.
            self._announced.pop(tree, None)
            if before is not None and before[2]:
                self._leave_parent(now, tree, before[0], before[2])
            return
        edges = self._seen_from(tree, parent)
        wave = self._trees.wave(tree) if tree.number else 0
        if before is not None and before[:2] == (parent, wave):
            changed = {e: d for e, d in edges.items() if before[2].get(e) != d}
            changed |= {edge: -1 for edge in before[2] if edge not in edges}
            if changed:
                self._shared.send(parent, Branches(tree, changed))
        elif before is not None and before[0] == parent:
            if edges or before[2]:
                self._shared.send(parent, Branches(tree, edges, is_whole=True))
        else:
            if before is not None and before[2]:
                self._leave_parent(now, tree, before[0], before[2])
            was_former = self._drop_former(tree, parent)
            if edges or was_former:
                self._shared.send(parent, Branches(tree, edges, is_whole=True))
        self._announced[tree] = (parent, wave, edges)

    def _seen_from(self, tree: TreeId, parent: str) -> dict[str, int]:
        """Edges of a tree and their distances, as announced to a parent (rules 2 and 4)."""
        found: dict[str, int] = {}
        name, farthest = self._shared.name, len(self._shared.brokers)
        for edge, hops in self._known.get(tree, {}).items():
            distances = [d + (hop != name) for hop, d in hops.items() if hop != parent]
            if distances and min(distances) < farthest:
                found[edge] = min(distances)
        return found

    def _leave_parent(
        self, now: float, tree: TreeId, parent: str, announced: dict[str, int]
    ) -> None:
        """Schedule the withdrawal from a former parent."""
        self._drop_former(tree, parent)
        after_s = _FORMER_AFTER * self._shared.options.lag_after_s
        self._former.setdefault(tree, {})[parent] = announced
        self._due[tree, parent] = now + after_s

    def _drop_former(self, tree: TreeId, former: str) -> bool:
        """Remove a former parent; returns whether it was one."""
        if self._due.pop((tree, former), None) is None:
            return False
        del self._former[tree][former]
        if not self._former[tree]:
            del self._former[tree]
        return True

    def _withdraw_farther(self, tree: TreeId) -> None:
        """Withdraw edges that are farther now than announced to former parents (rule 3)."""
        for former, announced in self._former.get(tree, {}).items():
            near = self._seen_from(tree, former)
            farther = [edge for edge, far in announced.items() if near.get(edge, far + 1) > far]
            for edge in farther:
                del announced[edge]
            if farther:
                self._shared.send(former, Branches(tree, dict.fromkeys(farther, -1)))

    def _forget(self, now: float, tree: TreeId) -> None:
        """Drop a tree."""
        for edge in self._known.pop(tree, {}):
            self._next_hops.pop(edge, None)
        announced = self._announced.pop(tree, None)
        if tree.life >= self._trees.lives.get(tree.origin, 0):
            # The parent may have restarted the tree before it received the last announcement.
            if announced is not None and announced[2]:
                self._leave_parent(now, tree, announced[0], announced[2])
            return
        for former in list(self._former.get(tree, ())):
            self._drop_former(tree, former)

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> None:
        """Send withdrawals to former parents when due."""
        while self._due:
            (tree, peer), due = next(iter(self._due.items()))
            if due > now:
                return
            self._drop_former(tree, peer)
            self._shared.send(peer, Branches(tree, {}, is_whole=True))

    def next_deadline(self) -> float | None:
        return next(iter(self._due.values())) if self._due else None
