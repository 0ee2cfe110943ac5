"""The generic algorithm on its own, in a network that delays, reorders, repeats and loses changes.

Nothing but the conditions of a change decides whether a broker applies it. The network is that of
the routers: sites of interchangeable brokers, of which one takes a change and tells its peers. Now
and then a broker asks a neighbour for its state; that is all the repair there is. After each step
the broker that took part is judged:

1. S-Λ, by trying every event of the domain;
2. (Theorem 3.3) every conjunction belongs to a subscription that is active in that direction.
"""

import random
from typing import NamedTuple

from anabranch.check.coverage import Domain
from anabranch.model.filter import Filter
from anabranch.model.network import Network
from tests.model.generic import Broker, Change, Leaf, State, Subscription, having


class Sent(NamedTuple):
    """A change on its way to one broker."""

    target: str
    source_site: str
    change: Change
    from_peer: bool
    #: The edge it began at, and the how-manyth of that edge it is.
    edge: str
    number: int


class FreeNetwork:
    """Brokers of the model, and changes on their way in no order."""

    def __init__(self, network: Network, seed: int, domain: Domain, without: str = "", ordered: bool = True, exact: bool = True) -> None:
        self.network = network
        self.random = random.Random(seed)
        self.domain = domain
        #: A kind of condition that is not asked for.
        self.without = without
        self.ordered, self.exact = ordered, exact
        #: Edge → changes it told. Broker → edge → the last one it knows.
        self.told = dict.fromkeys(network.edges, 0)
        self.seen: dict[str, dict[str, int]] = {name: {} for name in network.brokers}
        self.leaves = {edge: Leaf(edge) for edge in network.edges}
        self.brokers = {name: self.fresh(name) for name in network.brokers}
        self.sent: list[Sent] = []
        self.count = 0
        self.applied = self.refused = 0

    def site_of(self, name: str) -> str:
        (site,) = self.network.sites_of(name)
        return site

    def fresh(self, name: str) -> Broker:
        site = self.site_of(name)
        around = self.network.neighbours(site)
        return Broker({n: self.network.edges_behind(site, n) for n in around})

    # -- sending

    def tell(self, site: str, source: str, change: Change, edge: str, number: int) -> None:
        """One broker of a site is told, any one."""
        target = self.random.choice(self.network.members(site))
        self.sent.append(Sent(target, source, change, False, edge, number))

    def propagate(self, edge: str) -> None:
        change = self.leaves[edge].propagate()
        self.told[edge] += 1
        for site in self.network.neighbours(edge):
            self.tell(site, edge, change, edge, self.told[edge])

    # -- steps

    def subscribe(self, text: str) -> None:
        edge = self.random.choice(self.network.edges)
        self.count += 1
        conjunctions = Filter.parse(text).conjunctions
        self.leaves[edge].subscribe(Subscription(f"s{self.count}", edge, conjunctions))
        if self.random.random() < 0.7:
            self.propagate(edge)

    def unsubscribe(self) -> None:
        edge = self.random.choice(self.network.edges)
        names = list(self.leaves[edge].known.active())
        if names:
            self.leaves[edge].end(self.random.choice(names))
            if self.random.random() < 0.7:
                self.propagate(edge)

    def deliver(self) -> None:
        if not self.sent:
            return
        sent = self.sent[self.random.randrange(len(self.sent))]
        fate = self.random.random()
        if fate > 0.05:
            self.sent.remove(sent)
        if fate < 0.9:
            self.receive(sent)

    def receive(self, sent: Sent) -> None:
        broker, site = self.brokers[sent.target], self.site_of(sent.target)
        failing = [c for c in broker.failing(sent.source_site, sent.change) if c.kind != self.without]
        seen = self.seen[sent.target]
        if failing or (self.ordered and sent.number != seen.get(sent.edge, 0) + 1):
            self.refused += 1
            return
        self.applied += 1
        seen[sent.edge] = sent.number
        told = broker.apply(sent.source_site, sent.change)
        self.check(sent.target)
        if not sent.from_peer:
            for peer in self.network.members(site):
                if peer != sent.target:
                    self.sent.append(sent._replace(target=peer, from_peer=True))
            for direction, change in told.items():
                self.tell(direction, site, change, sent.edge, sent.number)

    def repair(self) -> None:
        """Some broker asks a neighbour for all it knows."""
        name = self.random.choice(self.network.brokers)
        site = self.site_of(name)
        direction = self.random.choice(self.network.neighbours(site))
        other = self.random.choice(self.network.members(direction))
        state = self.state_of(other, site)
        broker = self.brokers[name]
        if broker.takes(direction, state):
            broker.install(direction, state)
            for edge in self.network.edges_behind(site, direction):
                self.seen[name][edge] = self.told[edge] if other == edge else self.seen[other].get(edge,0)
            self.check(name)

    def state_of(self, name: str, direction: str) -> State:
        return self.leaves[name].told if name in self.leaves else self.brokers[name].presumed(direction)

    def crash(self) -> None:
        relays = [name for name in self.network.brokers if name not in self.leaves]
        name = self.random.choice(relays)
        self.brokers[name] = self.fresh(name)
        self.seen[name] = {}

    # -- what must hold

    def check(self, name: str) -> None:
        for direction, side in self.brokers[name].sides.items():
            active, let_through = side.known.active(), 0
            for conjunction in side.conjunctions:
                let_through |= self.domain.matching_conjunction(conjunction)
                if self.exact:
                    assert having(conjunction, active), f"stale at {name}: {conjunction}"
            for each in active.values():
                for conjunction in each.conjunctions:
                    missing = self.domain.matching_conjunction(conjunction) & ~let_through
                    assert not missing, f"S-Λ at {name} towards {direction}: {each}"
