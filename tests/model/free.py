"""The generic algorithm on its own, in a network that delays, reorders, repeats and loses changes.

Nothing but the conditions of a change decides whether a broker applies it. A change is posted to a
site, and any broker of the site may take it, now or later, once, often or never; so peers tell each
other, and the brokers of a site know different things. Each broker that took a change posts what it
has to tell to all other sites around. A history is a list of lines:

    subscribe EDGE NAME FILTER     end EDGE NAME          propagate EDGE
    take BROKER ROUTE              ask BROKER OTHER       crash BROKER

A route names a change: `p.2` is the second one of edge p, as p told it, `p.2/m1` the same as m1
told it. `ask` replaces what a broker knows by a neighbour's state. After each line the broker that
took part is judged:

1. S-Λ, by trying every event of the domain;
2. if asked for (Theorem 3.3), that every conjunction belongs to an active subscription.

Theorem 3.3 assumes that no broker hears of the end of a subscription before its beginning. So
`ordered` networks take the changes of an edge one after the other; this is no condition of the
algorithm, and S-Λ does not need it.
"""

import random
from collections.abc import Callable, Iterable

from anabranch.check.coverage import Domain
from anabranch.model.filter import Filter
from anabranch.model.network import Network
from tests.model.aggregation import having
from tests.model.conditions import Subscription
from tests.model.generic import Broker, Change, Leaf, State


class FreeNetwork:
    """Brokers of the model, each in one site, and the changes that were posted."""

    def __init__(
        self, network: Network, domain: Domain, ordered: bool, exact: bool, without: str = ""
    ) -> None:
        self.network = network
        self.domain = domain
        self.ordered = ordered
        #: Whether Theorem 3.3 is asked for.
        self.exact = exact
        #: A kind of condition that nobody asks for.
        self.without = without
        self.leaves = {edge: Leaf(edge) for edge in network.edges}
        self.brokers = {name: self.fresh(name) for name in network.brokers}
        #: (site, route) → what was posted there, and by which site.
        self.posted: dict[tuple[str, str], tuple[str, Change]] = {}
        #: Edge → changes told; broker → edge → changes known.
        self.told = dict.fromkeys(network.edges, 0)
        self.numbers: dict[str, dict[str, int]] = {name: {} for name in network.brokers}
        self.taken = self.refused = 0

    def site_of(self, name: str) -> str:
        (site,) = self.network.sites_of(name)
        return site

    def fresh(self, name: str) -> Broker:
        site = self.site_of(name)
        around = self.network.neighbours(site)
        return Broker({each: self.network.edges_behind(site, each) for each in around})

    def run(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.do(line)

    def do(self, line: str) -> None:
        verb, rest = line.split(maxsplit=1)
        steps: dict[str, Callable[..., None]] = {
            "subscribe": self.subscribe,
            "end": self.end,
            "propagate": self.propagate,
            "take": self.take,
            "ask": self.ask,
            "crash": self.crash,
        }
        steps[verb](*rest.split(maxsplit=2))

    # -- steps ------------------------------------------------------------------------------------

    def subscribe(self, edge: str, name: str, text: str) -> None:
        subscription = Subscription(name, edge, Filter.parse(text).conjunctions)
        self.leaves[edge].subscribe(subscription)

    def end(self, edge: str, name: str) -> None:
        self.leaves[edge].end(name)

    def propagate(self, edge: str) -> None:
        self.told[edge] += 1
        change = self.leaves[edge].propagate()
        for site in self.network.neighbours(edge):
            self.posted[site, f"{edge}.{self.told[edge]}"] = edge, change

    def take(self, name: str, route: str) -> None:
        site, broker = self.site_of(name), self.brokers[name]
        source, change = self.posted[site, route]
        failing = [each for each in broker.failing(source, change) if each.kind != self.without]
        if failing or (self.ordered and not self.is_next(name, route)):
            self.refused += 1
            return
        self.taken += 1
        edge, number = _numbered(route)
        self.numbers[name][edge] = number
        for direction, onward in broker.apply(source, change).items():
            self.posted[direction, f"{route}/{name}"] = site, onward
        self.check(name)

    def is_next(self, name: str, route: str) -> bool:
        """Whether a broker knows everything of that edge up to this change."""
        edge, number = _numbered(route)
        return number == self.numbers[name].get(edge, 0) + 1

    def ask(self, name: str, other: str) -> None:
        site, direction = self.site_of(name), self.site_of(other)
        state = self.state_of(other, site)
        if self.brokers[name].takes(direction, state):
            self.brokers[name].install(direction, state)
            known = self.told if other in self.leaves else self.numbers[other]
            for edge in self.network.edges_behind(site, direction):
                self.numbers[name][edge] = known.get(edge, 0)
            self.check(name)

    def state_of(self, name: str, direction: str) -> State:
        if name in self.leaves:
            return self.leaves[name].told
        return self.brokers[name].presumed(direction)

    def crash(self, name: str) -> None:
        self.brokers[name] = self.fresh(name)
        self.numbers[name] = {}

    # -- what must hold ---------------------------------------------------------------------------

    def check(self, name: str) -> None:
        for direction, side in self.brokers[name].sides.items():
            active, let_through = side.known.active(), 0
            for conjunction in side.conjunctions:
                let_through |= self.domain.matching_conjunction(conjunction)
                if self.exact:
                    assert having(conjunction, active), f"stale at {name} towards {direction}"
            for each in active.values():
                for conjunction in each.conjunctions:
                    missing = self.domain.matching_conjunction(conjunction) & ~let_through
                    assert not missing, f"S-Λ at {name} towards {direction}: {each.name}"


def _numbered(route: str) -> tuple[str, int]:
    edge, number = route.split("/", maxsplit=1)[0].rsplit(".", 1)
    return edge, int(number)


def random_line(network: FreeNetwork, source: random.Random, texts: Iterable[str]) -> str:
    """Some step that is possible now."""
    edge = source.choice(network.network.edges)
    broker = source.choice(network.network.brokers)
    site = network.site_of(broker)
    match source.choices(
        ["take", "subscribe", "end", "propagate", "ask", "crash"], [60, 8, 7, 14, 3, 0.5]
    )[0]:
        case "subscribe":
            number = sum(len(each.known.subscribed) for each in network.leaves.values())
            return f"subscribe {edge} n{number} {source.choice(list(texts))}"
        case "end":
            names = list(network.leaves[edge].known.active())
            return f"end {edge} {source.choice(names)}" if names else f"propagate {edge}"
        case "ask":
            direction = source.choice(network.network.neighbours(site))
            return f"ask {broker} {source.choice(network.network.members(direction))}"
        case "crash" if broker not in network.leaves:
            return f"crash {broker}"
        case "take":
            routes = [route for to, route in network.posted if to == site]
            fresh = [route for route in routes if network.is_next(broker, route)]
            if fresh and source.random() < 0.8:
                routes = fresh
            if routes:
                return f"take {broker} {source.choice(routes)}"
    return f"propagate {edge}"
