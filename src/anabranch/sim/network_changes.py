"""Network changes in a simulation: brokers and links are added and removed, edges depart.

Occasionally the simulated operator changes the network. Every change is a new revision. Brokers
adopt it one by one, at different times, each by a restart from its disk, and have no link to a
broker with another revision until then.

Rules

1. A relay is added to an inner site, or removed from one that has others. An edge joins below an
   inner site. In a mesh, relays and edges are added with links, and links are added and removed.
   These changes happen at any time, even before all brokers have adopted the previous one.
2. An edge is first signalled to depart. When it reports that it is drained, the others get a
   network without it, and it is removed permanently. If draining takes too long, the edge stays:
   the same network under the next revision.
3. A broker that is down adopts the newest network when it starts.

A separate random generator makes the choices.
"""

from collections.abc import Callable
from random import Random

import msgspec

from anabranch.core import contract
from anabranch.core.broker import BrokerConfig
from anabranch.core.replication.placement import all_keepers
from anabranch.model.network import Network
from anabranch.sim import mesh_shapes
from anabranch.sim.world import SimHost, SimLink, World

_LOOK_S = 0.2
#: How long an edge stays after it is drained, so that publishers hear the fate of their events.
_GRACES_S = (0.0, 0.0, 1.0)
_EDGES_MAX = 8
Joins = list[tuple[str, str]]


class Reconfiguration:
    """The operator of one simulation. See the rules at the top of this module."""

    def __init__(
        self, world: World, network: Network, rng: Random, joined: Callable[[str], None]
    ) -> None:
        self._world = world
        self._rng = rng
        #: Told of a stream when it is known to everybody.
        self._joined = joined
        self._joining: list[str] = []
        self.network = network
        self._revision = 1
        #: Every stream that there ever was.
        self.streams = list(network.edges)
        self._is_over = False
        #: Brokers that have not taken the newest network.
        self._untaken: set[str] = set()
        #: The edge that departs, until when it may, and since when it is drained.
        self._leaving = ""
        self._patience_s = 0.0
        self._grace_s = 0.0
        self._drained_at: float | None = None
        self._count = 0
        #: What happened, for the report.
        self.counts: dict[str, int] = {}

    def begin(self, rate: float) -> None:
        """Change the network at random times."""
        if rate > 0:
            self._world.after(self._rng.expovariate(rate), self._strike, rate)

    def end(self) -> None:
        """Begin no more changes."""
        self._is_over = True

    @property
    def is_busy(self) -> bool:
        """Whether a change is under way."""
        return bool(self._leaving or self._untaken)

    def open_edges(self) -> list[str]:
        """The edges that clients may go to."""
        return [edge for edge in self.network.edges if not self._world.hosts[edge].is_leaving]

    def _strike(self, rate: float) -> None:
        if self._is_over:
            return
        if not self._leaving and (not self._untaken or self._rng.random() < 0.3):
            kinds, weights = self._kinds()
            self._rng.choices(kinds, weights)[0]()
        self._world.after(self._rng.expovariate(rate), self._strike, rate)

    # -- the kinds ------------------------------------------------------------------------------

    def _kinds(self) -> tuple[tuple[Callable[[], None], ...], tuple[int, ...]]:
        """What may be done to this network, and how often."""
        if not self.network.is_mesh:
            return (self._add_relay, self._remove_relay, self._add_edge, self._depart), (1, 1, 1, 2)
        kinds = (self._add_link, self._remove_link, self._remove_mesh_relay)
        return (*kinds, self._add_mesh_relay, self._add_mesh_edge, self._depart), (2, 2, 1, 1, 1, 2)

    def _shape(self) -> tuple[dict[str, list[str]], Joins]:
        network = self.network
        sites = {site: list(network.members(site)) for site in network.sites}
        joins = [(a, b) for a in network.sites for b in network.neighbours(a) if a < b]
        return sites, joins

    def _inner_sites(self) -> list[str]:
        return [site for site in self.network.sites if site not in self.network.edges]

    def _add_relay(self) -> None:
        inner = self._inner_sites()
        if inner:
            sites, joins = self._shape()
            self._count += 1
            sites[self._rng.choice(inner)].append(f"r{self._count}")
            self._change("add-relay", Network(sites, joins))

    def _remove_relay(self) -> None:
        network = self.network
        found = [
            (site, broker)
            for site in self._inner_sites()
            for broker in network.members(site)
            if len(network.members(site)) > 1 and network.sites_of(broker) == (site,)
        ]
        if found:
            sites, joins = self._shape()
            site, broker = self._rng.choice(found)
            sites[site].remove(broker)
            self._change("remove-relay", Network(sites, joins))

    def _add_edge(self) -> None:
        inner = self._inner_sites()
        if inner and len(self.network.edges) < _EDGES_MAX:
            sites, joins = self._shape()
            self._count += 1
            edge = f"n{self._count}"
            sites[edge] = [edge]
            joins.append((edge, self._rng.choice(inner)))
            self.streams.append(edge)
            self._joining.append(edge)
            self._change("add-edge", Network(sites, joins))

    # -- the kinds of a mesh --------------------------------------------------------------------

    def _add_link(self) -> None:
        self._change_if("add-link", mesh_shapes.with_link(self.network, self._rng))

    def _remove_link(self) -> None:
        self._change_if("remove-link", mesh_shapes.without_link(self.network, self._rng))

    def _remove_mesh_relay(self) -> None:
        self._change_if("remove-relay", mesh_shapes.without_relay(self.network, self._rng))

    def _add_mesh_relay(self) -> None:
        self._count += 1
        name = f"r{self._count}"
        network = mesh_shapes.with_broker(self.network, self._rng, name, is_relay=True)
        self._change("add-relay", network)

    def _add_mesh_edge(self) -> None:
        if len(self.network.edges) < _EDGES_MAX:
            self._count += 1
            edge = f"n{self._count}"
            self.streams.append(edge)
            self._joining.append(edge)
            network = mesh_shapes.with_broker(self.network, self._rng, edge, is_relay=False)
            self._change("add-edge", network)

    def _change_if(self, kind: str, network: Network | None) -> None:
        if network is not None:
            self._change(kind, network)

    # -- taking it ------------------------------------------------------------------------------

    def _change(self, kind: str, network: Network) -> None:
        """From now on this is the network; everybody hears of it sooner or later."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        gone = set(self.network.brokers) - set(network.brokers)
        self.network = network
        self._revision += 1
        spread_s = self._rng.choice((0.05, 0.5, 2.0))
        for name in network.brokers:
            self._untaken.add(name)
            if name not in self._world.hosts:
                self._add_host(name)
            self._world.after(self._rng.random() * spread_s, self._take, name, self._revision)
        for name in sorted(gone):
            self._untaken.discard(name)
            self._world.after(self._rng.random() * spread_s, self._retire, name)

    def _add_host(self, name: str) -> None:
        world = self._world
        world.hosts[name] = SimHost(self._config(next(iter(world.hosts.values())).config, name))

    def _config(self, before: BrokerConfig, name: str) -> BrokerConfig:
        keepers = all_keepers(self.network, lambda _edge: before.options)
        network, revision = self.network, self._revision
        return msgspec.structs.replace(
            before, name=name, network=network, revision=revision, keepers=keepers
        )

    def _take(self, name: str, revision: int) -> None:
        host = self._world.hosts[name]
        if revision != self._revision:
            return
        self._untaken.discard(name)
        while self._joining and not self._untaken:
            self._joined(self._joining.pop())
        host.config = self._config(host.config, name)
        for peer in self.network.links_of(name):
            ends = (min(name, peer), max(name, peer))
            self._world.wires.setdefault(ends, SimLink(ends))
        if host.broker is not None:
            if self._rng.random() < 0.5:
                # It ended in order.
                host.disk.sync(host.disk.mark())
            self._world.kill(name)
        if host.life <= 1 or self._rng.random() < 0.8:
            self._world.after(self._rng.random() * 0.2, self._world.start, name)
        else:
            self._world.after(self._rng.random() * 2.0, self._world.start, name)

    def _retire(self, name: str) -> None:
        host = self._world.hosts[name]
        host.is_gone = True
        self._world.kill(name)

    # -- an edge departs ------------------------------------------------------------------------

    def _depart(self) -> None:
        found = self.open_edges()
        if len(found) < 3 or self._untaken:
            return
        self._leaving = self._rng.choice(found)
        self._world.hosts[self._leaving].is_leaving = True
        self._patience_s = self._world.now + self._rng.uniform(3.0, 9.0)
        self._grace_s = self._rng.choice(_GRACES_S)
        self._drained_at = None
        self._look()

    def _look(self) -> None:
        world, name = self._world, self._leaving
        broker = world.hosts[name].broker
        if broker is not None and broker.departure is None:
            world.stimulate(name, contract.Depart())
        if broker is not None and broker.is_drained:
            self._drained_at = world.now if self._drained_at is None else self._drained_at
        if self._drained_at is not None and world.now >= self._drained_at + self._grace_s:
            self._leaving = ""
            self._change("remove-edge", self._without(name))
        elif world.now >= self._patience_s and self._drained_at is None:
            self._leaving = ""
            world.hosts[name].is_leaving = False
            self._change("stay", self.network)
        else:
            world.after(_LOOK_S, self._look)

    def _without(self, edge: str) -> Network:
        if self.network.is_mesh:
            return mesh_shapes.without_broker(self.network, self._rng, edge)
        sites, joins = self._shape()
        del sites[edge]
        for members in sites.values():
            if edge in members and len(members) > 1:
                members.remove(edge)
        return Network(sites, [pair for pair in joins if edge not in pair])
