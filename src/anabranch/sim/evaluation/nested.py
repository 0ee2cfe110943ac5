"""Nested interest: what covering saves, where subscriptions cover each other.

The source's own workloads cannot show it: their subscriptions cover only what is equal. Here one
edge has subscriptions `price < x`, one after the other in random order; every one is covered by
those with a higher x. Two origins publish prices of which the widest subscription wants half.

Counted: conjunctions and bytes of interest that the edge's subscriptions cost, over all links, and
the conjunctions that origins have to look at in the end.
"""

from random import Random

import msgspec

from anabranch.core.routing.tree.tree import TreeRouter
from anabranch.model.network import Network
from anabranch.sim.evaluation.stage import FLOOD, NO_COVERING, TREE, Stage, Variant

SUBSCRIPTIONS = 2_000
VARIANTS = (TREE, NO_COVERING, FLOOD)
_ORIGINS = ("p1", "p2")
_PRICES = 1_000
_RATE = 50.0


class NestedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One variant."""

    variant: str
    subscriptions: int
    conjunctions_sent: int
    interest_bytes: int
    #: At one origin, when all is said.
    conjunctions_held: int
    published: int
    #: Over the links into the edge, per event published.
    edge_events: float


def network() -> Network:
    """Two origins, a relay, an edge."""
    leaves = (*_ORIGINS, "s")
    sites = {name: (name,) for name in leaves} | {"middle": ("m",)}
    return Network(sites, [(name, "middle") for name in leaves])


def measure(variant: Variant, scale: float, seconds: float, seed: int = 1) -> NestedPoint:
    """One point."""
    rng = Random(seed)
    stage = Stage(network(), variant, seed)
    for origin in _ORIGINS:
        stage.feed(origin, _RATE, lambda _: {"price": rng.randrange(_PRICES)})
    reader = stage.reader("reader", "s")
    before = stage.meter.counts()
    many = round(SUBSCRIPTIONS * scale)
    for number in range(many):
        highest = rng.randrange(1, _PRICES // 2 + 1) if number else _PRICES // 2
        reader.subscribe("all", f"price < {highest}", f"subscription {number}")
        stage.wait(0.03)
    stage.wait(1.0)
    setup = stage.meter.counts().since(before)
    counts = stage.publish_for(seconds)
    return NestedPoint(
        variant=variant.name,
        subscriptions=many,
        conjunctions_sent=sum(tally.conjunctions_sent for tally in setup.routers.values()),
        interest_bytes=setup.everywhere().interest_bytes,
        conjunctions_held=_held(stage),
        published=stage.published,
        edge_events=counts.into("s").events / stage.published,
    )


def _held(stage: Stage) -> int:
    broker = stage.world.hosts[_ORIGINS[0]].broker
    if broker is None or not isinstance(broker.router, TreeRouter):
        return 0
    return sum(len(wanted) for view in broker.router.presences() for wanted in view.wanted.values())
