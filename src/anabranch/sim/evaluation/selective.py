"""Selective load: does traffic follow what is wanted, or what is published?

Four origins and one edge; all five brokers are also the members of one middle site. The edge has
2,000 subscriptions, each of which selects one publisher; there are 2,000 to 12,000 publishers with
two events per second each, spread over the origins. So the edge wants 4,000 events per second,
however many are published; with the fewest publishers, it wants them all.

Prior art: Zhao 2006, §6.3.3.
"""

from collections.abc import Callable

import msgspec

from anabranch.model.network import Network
from anabranch.sim.evaluation.stage import FLOOD, NO_COVERING, PLAIN, TREE, Stage, Variant

SUBSCRIPTIONS = 2_000
PUBLISHERS = (2_000, 4_000, 6_000, 8_000, 10_000, 12_000)
RATE = 2.0
VARIANTS = (TREE, NO_COVERING, PLAIN, FLOOD)
_ORIGINS = ("p1", "p2", "p3", "p4")
_EDGE = "s"


class SelectivePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One number of publishers with one variant. Everything is per event published, but for what
    says otherwise."""

    variant: str
    #: As in the source, and as simulated.
    publishers: int
    simulated_publishers: int
    published: int
    #: Per second, over the links into the edge.
    edge_events_per_s: float
    edge_bytes_per_s: float
    #: Per second, over one link from an origin to the edge; the busiest of them.
    link_events_per_s: float
    #: Events looked up in an index, by routers and by the edge.
    matches: float
    control_bytes: float
    #: Sent while the subscriptions were made; all links.
    setup_control_bytes: int
    deliveries: int


def network() -> Network:
    """Four origins, one edge, and the site in the middle that all five are in."""
    brokers = (*_ORIGINS, _EDGE)
    sites = {name: (name,) for name in brokers} | {"middle": brokers}
    return Network(sites, [(name, "middle") for name in brokers])


def measure(
    variant: Variant, publishers: int, scale: float, seconds: float, seed: int = 1
) -> SelectivePoint:
    """One point."""
    many, wanted = round(publishers * scale), round(SUBSCRIPTIONS * scale)
    stage = Stage(network(), variant, seed)
    for place, origin in enumerate(_ORIGINS):
        mine = range(place, many, len(_ORIGINS))
        stage.feed(origin, RATE * len(mine), _taking_turns(mine))
    before = stage.meter.counts()
    reader = stage.reader("reader", _EDGE)
    for number in range(wanted):
        reader.subscribe("all", f"publisher = {number}", f"subscription {number}")
    stage.wait(2.0)
    setup = stage.meter.counts().since(before)
    counts = stage.publish_for(seconds)
    edge = counts.into(_EDGE)
    published = stage.published
    lookups = sum(tally.matches for tally in counts.routers.values()) + edge.events
    return SelectivePoint(
        variant=variant.name,
        publishers=publishers,
        simulated_publishers=many,
        published=published,
        edge_events_per_s=edge.events / seconds,
        edge_bytes_per_s=edge.all_bytes / seconds,
        link_events_per_s=max(counts.links[o, _EDGE].events for o in _ORIGINS) / seconds,
        matches=lookups / published,
        control_bytes=counts.everywhere().control_bytes / published,
        setup_control_bytes=setup.everywhere().control_bytes,
        deliveries=stage.deliveries,
    )


def _taking_turns(publishers: range) -> Callable[[int], dict[str, int]]:
    return lambda number: {"publisher": publishers[number % len(publishers)], "number": number}
