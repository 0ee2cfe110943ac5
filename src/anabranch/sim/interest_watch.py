"""Checks the S-Λ invariant in a simulation: brokers forward every event they claim to cover.

A presence with interest version v of an edge claims to cover every subscription of the edge with a
version of at most v. It must forward every event that matches such a subscription towards the edge.
This S-Λ invariant is checked with every event of the small domain.
"""

from collections.abc import Iterable
from itertools import islice

from anabranch.check.checker import Anomaly
from anabranch.check.coverage import Domain, uncovered
from anabranch.core.routing.mesh.mesh import MeshRouter
from anabranch.core.routing.tree.tree import PresenceView, TreeRouter
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.version import NOTHING
from anabranch.sim.leftovers import Leftovers
from anabranch.sim.workload import DOMAIN
from anabranch.sim.world import World


class InterestWatch:
    """Checks the invariant when it is asked to look."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._domain = Domain(DOMAIN)
        self.anomalies: list[Anomaly] = []

    def look(self) -> None:
        """Check every broker that is alive."""
        if self.anomalies:
            return
        for name, host in self._world.hosts.items():
            router = None if host.broker is None else host.broker.router
            if isinstance(router, TreeRouter):
                for view in router.presences():
                    self._check(name, view)
            elif isinstance(router, MeshRouter):
                self._check_origin_interest(name, router)

    def _check_origin_interest(self, name: str, router: MeshRouter) -> None:
        """An origin that would filter for an edge lets through all that the edge relies on."""
        views = router.interest_views()
        advertised = self._any(router.advertised()) if views else 0
        for wish in views:
            broker = self._world.hosts[wish.edge].broker
            if broker is None or broker.edge is None or not isinstance(broker.router, MeshRouter):
                continue
            clock = broker.router.clock
            assert clock is not None
            filters = broker.edge.filters()
            for subscription, version in clock.subscriptions.items():
                wanted = filters.get(subscription)
                if version > wish.version or wanted is None:
                    continue
                missing = self._domain.matching_filter(wanted) & advertised
                missing &= ~self._any(wish.conjunctions)
                if missing:
                    event = self._domain.events[(missing & -missing).bit_length() - 1]
                    text = (
                        f"{name} knows {wish.version} of {wish.edge} and would keep {event} from"
                        f" {subscription} ({wanted}, {version})"
                    )
                    self.anomalies.append(Anomaly("s-lambda", subscription, wish.edge, 0, text))
                    return

    def _any(self, conjunctions: Iterable[Conjunction]) -> int:
        """The events that match one of these, as bits."""
        bits = 0
        for conjunction in conjunctions:
            bits |= self._domain.matching_conjunction(conjunction)
        return bits

    def _check(self, name: str, view: PresenceView) -> None:
        network = self._world.hosts[name].config.network
        for direction, conjunctions in view.wanted.items():
            for edge in network.edges_behind(view.site, direction):
                broker = self._world.hosts[edge].broker
                if broker is None or not isinstance(broker.router, TreeRouter):
                    continue
                clock = broker.router.clock
                if clock is None or broker.edge is None:
                    # It has become a relay, and this one has not heard of that yet.
                    continue
                known = view.versions.get(edge, NOTHING)
                filters = broker.edge.filters()
                for subscription, version in clock.subscriptions.items():
                    wanted = filters.get(subscription)
                    if version > known or wanted is None:
                        continue
                    event = uncovered(wanted, conjunctions, self._domain)
                    if event is not None:
                        text = (
                            f"{name} in {view.site} knows {known} of {edge} and would keep"
                            f" {event} from {subscription} ({wanted}, {version})"
                        )
                        self.anomalies.append(Anomaly("s-lambda", subscription, edge, 0, text))
                        return

    def look_for_owners(self) -> None:
        """In a calm network a durable subscription is at one edge."""
        owners: dict[str, str] = {}
        for name, host in self._world.hosts.items():
            if host.broker is None or host.broker.edge is None:
                continue
            for subscription in host.broker.edge.durable():
                if subscription in owners:
                    text = f"{owners[subscription]} and {name} both own it"
                    self.anomalies.append(Anomaly("two-owners", subscription, "", 0, text))
                owners[subscription] = name

    def look_for_vectors(self) -> None:
        """In a calm network every broker knows the vectors of the ticks that it passes on."""
        for name, host in self._world.hosts.items():
            if host.broker is None or not isinstance(host.broker.router, TreeRouter):
                continue
            for stream, mark in host.broker.router.missing_vectors:
                text = f"{name} does not get to know the vector of mark {mark}"
                self.anomalies.append(Anomaly("unknown-vector", "", stream, mark, text))

    def look_for_leftovers(self) -> None:
        """In a calm network nothing is known, or wanted, that nobody needs."""
        self.anomalies += islice(Leftovers(self._world, self._domain).found(), 1)
