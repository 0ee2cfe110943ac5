"""Turmoil for a network of routers: random networks, subscriptions and faults, from one seed.

Everything happens at once: subscriptions come and go, events are published and resent, links break
with frames on them, brokers crash and come back empty. After each step the world is checked; at the
end it is made whole, and has to converge.
"""

import random
from collections.abc import Callable

from anabranch.core.options import Options
from anabranch.model.network import Network, tree_of_brokers
from tests.routing_parts import DOMAIN, QUICK, World

FILTERS = (
    "a = {x}",
    "a >= {x}",
    "a <= {x}",
    "b = {y}",
    "a = {x} AND b = {y}",
    "a = {x} OR b = {y}",
    "a >= {x} AND b <= {y}",
    "TRUE",
    "a = {x} AND b >= {y} OR a = {y}",
    "a <> {x}",
    "a < b",
    "a < b AND a = {x}",
    "a + b > {x} OR a = {y}",
)


def chain() -> Network:
    """Every broker hosts clients and routes."""
    return tree_of_brokers({"a": ["b", "c"], "b": ["d"]})


def two_levels() -> Network:
    """Two relay sites of two brokers each."""
    sites = {"p": ["p"], "n1": ["m1", "m2"], "n2": ["k1", "k2"]}
    sites |= {"s1": ["s1"], "s2": ["s2"], "s3": ["s3"]}
    return Network(sites, [("p", "n1"), ("n1", "n2"), ("n2", "s1"), ("n2", "s2"), ("n1", "s3")])


def star() -> Network:
    """One relay site of three brokers."""
    sites = {"p": ["p"], "n1": ["m1", "m2", "m3"], "s1": ["s1"], "s2": ["s2"]}
    return Network(sites, [("p", "n1"), ("n1", "s1"), ("n1", "s2")])


def mixed() -> Network:
    """Some brokers are in a client site and in a relay site with others."""
    sites = {"p": ["p"], "q": ["q"], "n1": ["p", "m2"], "n2": ["q", "k2", "k3"]}
    sites |= {"s1": ["s1"], "s2": ["s2"]}
    return Network(sites, [("p", "n1"), ("q", "n2"), ("n1", "n2"), ("n2", "s1"), ("n1", "s2")])


def wide() -> Network:
    """Three relay sites, five edges."""
    sites = {"p": ["p"], "n0": ["x1", "x2"], "n1": ["m1", "m2"], "n2": ["k1", "k2", "k3"]}
    sites |= {f"s{i}": [f"s{i}"] for i in range(1, 5)}
    joins = [("p", "n0"), ("n0", "n1"), ("n0", "n2")]
    return Network(sites, [*joins, ("n1", "s1"), ("n1", "s2"), ("n2", "s3"), ("n2", "s4")])


SHAPES: tuple[Callable[[], Network], ...] = (chain, two_levels, star, mixed, wide)


class Turmoil:
    """One random history."""

    def __init__(self, seed: int, options: Options = QUICK, events: int = 1) -> None:
        self.random = random.Random(seed)
        self.world = World(self.random.choice(SHAPES)(), seed, options)
        self.events = events
        brokers, links_of = self.world.network.brokers, self.world.network.links_of
        self.pairs = [(a, b) for a in brokers for b in links_of(a) if a < b]
        self.count = 0
        #: Share of each kind of step.
        self.steps: list[tuple[float, Callable[[], None]]] = [
            (0.45, self.deliver),
            (0.15, self.wait),
            (0.10, self.subscribe),
            (0.07, self.unsubscribe),
            (0.08, self.publish),
            (0.05, self.mark),
            (0.02, self.resend),
            (0.03, self.disconnect),
            (0.025, self.connect),
            (0.01, self.crash),
            (0.015, self.restart),
        ]

    def run(self, steps: int, check_every: int = 1, exactly: bool = True) -> World:
        """Turmoil, then peace."""
        weights = [weight for weight, _ in self.steps]
        for number in range(steps):
            _, step = self.random.choices(self.steps, weights)[0]
            step()
            if number % check_every == 0:
                self.world.check_interest(exactly)
        self.world.connect_all()
        self.world.settle()
        self.world.check_interest(exactly)
        self.world.check_converged()
        return self.world

    def text(self) -> str:
        """Some filter."""
        x, y = self.random.randrange(4), self.random.randrange(4)
        return self.random.choice(FILTERS).format(x=x, y=y)

    # -- steps ------------------------------------------------------------------------------------

    def deliver(self) -> None:
        self.world.deliver_one()

    def wait(self) -> None:
        self.world.pass_time(self.random.choice([0.005, 0.01, 0.02, 0.1, 0.3]))

    def subscribe(self) -> None:
        edge = self.random.choice(self.world.network.edges)
        if self.world.hosts[edge].is_up:
            self.count += 1
            self.world.subscribe(edge, f"s{self.count}", self.text())

    def unsubscribe(self) -> None:
        lasting = [each for each in self.world.subscriptions if each.end is None]
        if lasting:
            self.world.unsubscribe(self.random.choice(lasting))

    def publish(self) -> None:
        for _ in range(self.events):
            host = self.random.choice(self.world.origins() or [None])
            if host is not None:
                host.publish(self.random.choice(DOMAIN))

    def mark(self) -> None:
        for host in self.world.origins():
            if self.random.random() < 0.5:
                host.make_mark()
                host.tell_head()

    def resend(self) -> None:
        hosts = [host for host in self.world.origins() if host.log]
        if hosts:
            host = self.random.choice(hosts)
            others = [edge for edge in self.world.network.edges if edge != host.name]
            host.resend(self.random.randrange(len(host.log)) + 1, self.random.choice(others))

    def disconnect(self) -> None:
        self.world.disconnect(*self.random.choice(self.pairs))

    def connect(self) -> None:
        self.world.connect(*self.random.choice(self.pairs))

    def crash(self) -> None:
        name = self.random.choice(self.world.network.brokers)
        if self.world.hosts[name].is_up:
            self.world.crash(name)

    def restart(self) -> None:
        for host in self.world.hosts.values():
            if not host.is_up:
                host.start()
        if self.random.random() < 0.5:
            self.world.connect_all()
