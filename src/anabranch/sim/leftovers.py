"""Finds leftover state: interest and trees that brokers of a calm network should have dropped.

The check runs once, after everything is healed and has settled. While an update is still in
progress (a version not yet sent, an edition not yet received), excess state cannot be identified
and nothing is reported.

Rules

1. Tree: if a broker has the last version of all interest in a direction, every conjunction there
   belongs to a live subscription. Coarse conjunctions belong to none, so networks that coarsen are
   skipped.
2. Mesh: the interest of an edge at an origin, at its last version and edition, consists of
   conjunctions of live subscriptions there, each of which intersects an advertisement at the
   origin.
3. Mesh: every tree at a broker is the first tree of an edge, or one that the newest advertisements
   of its root name.
4. Mesh: an edge is on a further tree only if its interest intersects an advertisement of that tree.
5. Mesh: no state remains of brokers that are not in the network.

Prior art: Zhao 2006, Theorem 3.3 (rule 1).
"""

from collections.abc import Iterable, Iterator

from anabranch.check.checker import Anomaly
from anabranch.check.coverage import Domain
from anabranch.core.broker import Broker
from anabranch.core.routing.mesh.mesh import MeshRouter
from anabranch.core.routing.tree.tree import PresenceView, TreeRouter
from anabranch.model.mesh_frames import TreeId
from anabranch.model.normal.conjunction import Conjunction, any_intersects
from anabranch.model.version import NOTHING
from anabranch.sim.world import World


class Leftovers:
    """Looks for what is left over. See the rules at the top of this module."""

    def __init__(self, world: World, domain: Domain) -> None:
        self._world = world
        self._domain = domain
        self._meshes = {
            name: host.broker.router
            for name, host in world.hosts.items()
            if host.broker is not None and isinstance(host.broker.router, MeshRouter)
        }

    def found(self) -> Iterator[Anomaly]:
        """All that is left over."""
        yield from self._of_trees()
        moving = {
            tree
            for router in self._meshes.values()
            for tree in router.branches.trees_with_former_parent()
        }
        for name, router in self._meshes.items():
            yield from self._strangers(name, router)
            yield from self._origin_interest(name, router)
            yield from self._mesh_trees(name, router)
            yield from self._branches(name, router, moving)

    # -- tree routing -----------------------------------------------------------------------------

    def _of_trees(self) -> Iterator[Anomaly]:
        for name, host in self._world.hosts.items():
            if host.broker is None or not isinstance(host.broker.router, TreeRouter):
                continue
            if host.config.options.coarsen:
                continue
            for view in host.broker.router.presences():
                for direction, conjunctions in view.wanted.items():
                    alive = self._alive(name, view, direction)
                    dead = [] if alive is None else self._not_in(alive, conjunctions)
                    for conjunction in dead[:1]:
                        text = f"{name} in {view.site} wants {conjunction} from {direction}"
                        yield Anomaly("leftover", "", direction, 0, text)

    def _alive(self, name: str, view: PresenceView, direction: str) -> set[int] | None:
        """What living subscriptions behind a direction match; None if not all is known there."""
        network = self._world.hosts[name].config.network
        alive: set[int] = set()
        for edge in network.edges_behind(view.site, direction):
            broker = self._world.hosts[edge].broker
            if broker is None or not isinstance(broker.router, TreeRouter):
                return None
            clock = broker.router.clock
            assert clock is not None
            if not clock.is_settled or view.versions.get(edge, NOTHING) != clock.propagated:
                return None
            alive |= {self._domain.matching_conjunction(each) for each in _wanted_at(broker)}
        return alive

    def _not_in(self, alive: set[int], conjunctions: Iterable[Conjunction]) -> list[Conjunction]:
        return [c for c in conjunctions if self._domain.matching_conjunction(c) not in alive]

    # -- mesh routing -----------------------------------------------------------------------------

    def _origin_interest(self, name: str, router: MeshRouter) -> Iterator[Anomaly]:
        """Rule 2."""
        advertised = router.advertised() if router.clock is not None else []
        for view in router.interest_views():
            wanted = self._settled_interest(view.edge)
            clock = self._meshes[view.edge].clock if wanted is not None else None
            if wanted is None or clock is None or view.version != clock.propagated:
                continue
            alive = {self._domain.matching_conjunction(each) for each in wanted}
            dead = self._not_in(alive, view.conjunctions)
            idle = [c for c in view.conjunctions if not any_intersects([c], advertised)]
            for conjunction, why in [(c, "dead") for c in dead] + [(c, "not met") for c in idle]:
                text = f"{name} knows {conjunction} of {view.edge}, which is {why}"
                yield Anomaly("leftover", "", view.edge, 0, text)

    def _mesh_trees(self, name: str, router: MeshRouter) -> Iterator[Anomaly]:
        """Rule 3."""
        for tree in router.trees.positions():
            if tree.number and self._is_news_known(router, tree.origin):
                root = self._meshes[tree.origin]
                table = root.advertisements.tables[tree.origin]
                if tree.life != table.edition.life or tree.number not in table.trees:
                    text = f"{name} knows tree {tree.number} of {tree.origin}, which is over"
                    yield Anomaly("leftover", "", tree.origin, 0, text)

    def _branches(self, name: str, router: MeshRouter, moving: set[TreeId]) -> Iterator[Anomaly]:
        """Rule 4."""
        for tree, edges in router.branches.view().items():
            if not tree.number or tree in moving or not self._is_news_known(router, tree.origin):
                continue
            entries = router.advertisements.tables[tree.origin].entries.values()
            promised = [
                c for e in entries if e.advertised.tree == tree.number for c in e.conjunctions
            ]
            for edge in edges:
                wanted = self._settled_interest(edge)
                if wanted is not None and not any_intersects(wanted, promised):
                    text = f"{name} has {edge} on tree {tree.number} of {tree.origin} for nothing"
                    yield Anomaly("leftover", "", tree.origin, 0, text)

    def _strangers(self, name: str, router: MeshRouter) -> Iterator[Anomaly]:
        """Rule 5."""
        known = {
            *router.advertisements.tables,
            *router.origin_interest.versions(),
            *router.trees.lives,
        }
        known |= {tree.origin for tree in router.trees.positions()}
        known |= {edge for edges in router.branches.view().values() for edge in edges}
        for stranger in sorted(known - set(self._world.hosts[name].config.network.edges)):
            text = f"{name} knows of {stranger}, which is not in the network"
            yield Anomaly("leftover", "", stranger, 0, text)

    def _is_news_known(self, router: MeshRouter, origin: str) -> bool:
        """Whether a broker has the newest advertisements of an origin, which is there."""
        root, table = self._meshes.get(origin), router.advertisements.tables.get(origin)
        if root is None or table is None:
            return False
        newest = root.advertisements.tables.get(origin)
        return newest is not None and newest.edition == table.edition

    def _settled_interest(self, edge: str) -> list[Conjunction] | None:
        """What is wanted at an edge; None if it has not told all of it, or is not there."""
        router, broker = self._meshes.get(edge), self._world.hosts[edge].broker
        if router is None or broker is None or router.clock is None or router.bindings is None:
            return None
        if not router.clock.is_settled or not router.bindings.is_settled():
            return None
        return _wanted_at(broker)


def _wanted_at(broker: Broker) -> list[Conjunction]:
    assert broker.edge is not None
    return [each for wanted in broker.edge.filters().values() for each in wanted.conjunctions]
