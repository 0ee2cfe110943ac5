"""Growing: what does one more edge cost the others, while interest changes all the time?

One origin, one relay, and one to seven edges. Half of the events are of kind `steady`, half of kind
`unsteady`; every edge has 50 subscriptions to each. Those to the unsteady kind end together and
come back together, again and again: every edge's interest changes once per second, while 2,000
events are published. In the simulation both rates are scaled, so *r*, the number of events per
change of one edge, stays the same.

Work is counted per event: at the origin and at the relay how often it was asked whether ticks may
be filtered, and how many elements of vectors were compared to answer that; on links the bytes of
vectors. Every edge is an origin too, though nobody publishes there: its stream has marks as well,
and they are counted apart.

Prior art: Zhao 2006, §6.3.7.
"""

from collections.abc import Mapping

import msgspec

from anabranch.model.event import Value
from anabranch.model.network import Network
from anabranch.sim.evaluation.stage import (
    FLOOD,
    NO_CACHE,
    NO_COVERING,
    NO_DIGESTS,
    TREE,
    Reader,
    Stage,
    Variant,
)

EDGES = (1, 2, 3, 4, 5, 6, 7)
RATE = 2_000.0
SUBSCRIPTIONS = 50
#: Events per change of one edge's interest.
EVENTS_PER_CHANGE = 2_000
VARIANTS = (TREE, NO_COVERING, NO_CACHE, NO_DIGESTS, FLOOD)
_ORIGIN, _RELAY = "p", "m"


class GrowingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One number of edges with one variant. Everything is per event published, but for what says
    otherwise."""

    variant: str
    edges: int
    published: int
    #: Changes of interest that the origin was told of, over all edges.
    changes: int
    #: Events per change, over all edges.
    events_per_change: float
    #: Times that it was asked whether ticks may be filtered, and elements compared for that.
    origin_asked: float
    origin_elements: float
    relay_asked: float
    relay_elements: float
    #: Bytes of the origin's vectors, to the relay and from there to one edge; and of the digests
    #: that go with ticks in their place.
    origin_vector_bytes: float
    origin_digest_bytes: float
    edge_vector_bytes: float
    edge_digest_bytes: float
    #: Bytes of vectors to one edge, of streams in which nobody publishes.
    idle_bytes: float
    #: Bytes of interest, from the edges to the relay and on to the origin.
    interest_bytes: float
    #: Bytes of all kinds, and events, from the relay to one edge.
    edge_bytes: float
    edge_events: float
    matches: float
    deliveries: int


def network(edges: int) -> Network:
    """An origin, a relay, and so many edges."""
    names = _names(edges)
    sites = {_ORIGIN: (_ORIGIN,), "middle": (_RELAY,)} | {name: (name,) for name in names}
    return Network(sites, [(_ORIGIN, "middle"), *(("middle", name) for name in names)])


def measure(  # noqa: PLR0917 - the size of a point
    variant: Variant,
    edges: int,
    scale: float,
    changes: int,
    events_per_change: float,
    seed: int = 1,
) -> GrowingPoint:
    """One point: so many changes of every edge."""
    rate = RATE * scale
    stage = Stage(network(edges), variant, seed)
    stage.feed(_ORIGIN, rate, _by_turns)
    period_s = events_per_change / rate
    many = max(1, round(SUBSCRIPTIONS * scale))
    for place, name in enumerate(_names(edges)):
        reader = stage.reader(f"reader at {name}", name)
        for number in range(many):
            reader.subscribe("steady", "kind = 'steady'", f"{name} steady {number}")
        unrest = Unrest(stage, reader, many, period_s)
        # Edges change one after the other, as they do when nobody arranges it.
        stage.world.after(1.0 + period_s * (place + 0.5) / edges, unrest.change)
        unrest.subscribe()
    stage.wait(1.0)
    counts = stage.publish_for(period_s * changes)
    published = stage.published
    names = _names(edges)
    to_relay, to_edges = counts.links[_ORIGIN, _RELAY], counts.into(*names)
    origin, relay = counts.routers[_ORIGIN], counts.routers[_RELAY]
    interest = counts.into(_ORIGIN).interest_bytes + counts.out_of(*names).interest_bytes
    matches = origin.matches + relay.matches + to_edges.events
    return GrowingPoint(
        variant=variant.name,
        edges=edges,
        published=published,
        changes=changes * edges,
        events_per_change=published / (changes * edges),
        origin_asked=origin.sufficiency_asked / published,
        origin_elements=origin.sufficiency_elements / published,
        relay_asked=relay.sufficiency_asked / published,
        relay_elements=relay.sufficiency_elements / published,
        origin_vector_bytes=to_relay.vector_bytes / published,
        origin_digest_bytes=to_relay.digest_bytes / published,
        edge_vector_bytes=to_edges.vector_bytes / published / edges,
        edge_digest_bytes=to_edges.digest_bytes / published / edges,
        idle_bytes=to_edges.idle_bytes / published / edges,
        interest_bytes=interest / published,
        edge_bytes=to_edges.all_bytes / published / edges,
        edge_events=to_edges.events / published / edges,
        matches=matches / published,
        deliveries=stage.deliveries,
    )


class Unrest:
    """Subscriptions of one edge that end and come back."""

    def __init__(self, stage: Stage, reader: Reader, many: int, period_s: float) -> None:
        self._stage = stage
        self._reader = reader
        self._names = [f"{reader.home} unsteady {number}" for number in range(many)]
        self._period_s = period_s
        self._is_there = False
        self._turn = 0

    def change(self) -> None:
        """End them all, or bring them all back; and again after a while."""
        if self._is_there:
            for name in self._names:
                self._reader.unsubscribe(self._turned(name))
            self._is_there = False
        else:
            self.subscribe()
        self._stage.world.after(self._period_s, self.change)

    def subscribe(self) -> None:
        """Subscribe to the unsteady kind."""
        self._turn += 1
        self._is_there = True
        for name in self._names:
            self._reader.subscribe("unsteady", "kind = 'unsteady'", self._turned(name))

    def _turned(self, name: str) -> str:
        return f"{name} {self._turn}"


def _names(edges: int) -> list[str]:
    return [f"s{number}" for number in range(1, edges + 1)]


def _by_turns(number: int) -> Mapping[str, Value]:
    return {"kind": "unsteady" if number % 2 else "steady", "number": number}
