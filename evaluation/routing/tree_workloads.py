"""The four workloads of the evaluation of tree routing, in simulated networks.

The stage
---------
A stage for evaluations: a whole network of one kind, feeders that publish, readers that read.

Feeders publish at an even pace, what a given function says; readers have subscriptions in groups
and count what comes. Both are real client sessions. Nothing fails here unless a scene says so.

Selective load
--------------
Selective load: does traffic follow what is wanted, or what is published?

Four origins and one edge; all five brokers are also the members of one middle site. The edge has
2,000 subscriptions, each of which selects one publisher; there are 2,000 to 12,000 publishers with
two events per second each, spread over the origins. So the edge wants 4,000 events per second,
however many are published; with the fewest publishers, it wants them all.

Prior art: Zhao 2006, §6.3.3.

Growing
-------
Growing: what does one more edge cost the others, while interest changes all the time?

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

Crashing
--------
Crashing: a site of three brokers loses two of them, one after the other, and gets them back.

Origins, one site of three relays, and two edges. Three groups of subscribers want half of all
events; when only one relay is left, a new group subscribes to the other half. One origin would send
through one relay at a time, so there are six, for the relays to share. The source's times, in
seconds, are here with a tenth of their distances:

    475 first crash · 505 second crash · 565 new group · 691 and 731 the two return

Counted per group: events delivered in each second, how many of those wanted came in the end, and
the longest pause between two; per relay: the events it sent on.

Prior art: Zhao 2006, §6.3.8.

Nested interest
---------------
Nested interest: what covering saves, where subscriptions cover each other.

The source's own workloads cannot show it: their subscriptions cover only what is equal. Here one
edge has subscriptions `price < x`, one after the other in random order; every one is covered by
those with a higher x. Two origins publish prices of which the widest subscription wants half.

Counted: conjunctions and bytes of interest that the edge's subscriptions cost, over all links, and
the conjunctions that origins have to look at in the end.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random

import msgspec

from anabranch.core.broker import BrokerConfig
from anabranch.core.options import Options
from anabranch.core.routing.registry import RoutingName
from anabranch.core.routing.tree.tree import TreeRouter
from anabranch.core.session.effects import (
    EventDelivered,
    SubscriptionCut,
    SubscriptionRefused,
    SubscriptionStarted,
)
from anabranch.core.session.session import ClientSession
from anabranch.model.encoding import decode_envelope
from anabranch.model.event import Event, Value
from anabranch.model.network import Network
from anabranch.sim.applications import Application
from anabranch.sim.world import Weather, World
from evaluation.routing.meter import Counts, Meter

# -- stage ----------------------------------------------------------------------------------------


#: Events that are due within this time are published together.
_STEP_S = 0.01
_WARM_UP_S = 1.0
#: After the last event everything has arrived within this time.
DRAIN_S = 1.0

Draw = Callable[[int], Mapping[str, Value]]


class Variant(msgspec.Struct, frozen=True):
    """One way to route that is compared with others."""

    name: str
    routing: RoutingName = "tree"
    options: Options = Options()


TREE = Variant("tree")
NO_COVERING = Variant("tree, no covering", options=Options(covering=False))
NO_CACHE = Variant("tree, no cache", options=Options(sufficiency_cache=False))
NO_DIGESTS = Variant("tree, no digests", options=Options(digests=False))
PLAIN = Variant(
    "tree, no digests, no cache", options=Options(digests=False, sufficiency_cache=False)
)
FLOOD = Variant("flood", "flood")


class Feeder(Application):
    """Publishes at an even pace while it is on."""

    def __init__(self, world: World, home: str, rate: float, draw: Draw) -> None:
        super().__init__(world, f"feeder at {home}", home, [])
        self.session = ClientSession(self.name, incarnation=1, options=self.options)
        self.rate = rate
        #: When each event was published.
        self.times: list[float] = []
        self._draw = draw
        self._since: float | None = None
        self._before = 0
        self.connect_in(0.0)

    @property
    def published(self) -> int:
        """How many events."""
        return len(self.times)

    def begin(self) -> None:
        """Publish from now on."""
        self._since, self._before = self.world.now, self.published
        self.world.after(_STEP_S, self._publish, self._since)

    def end(self) -> None:
        """Publish no more."""
        self._since = None

    def _publish(self, since: float) -> None:
        if since != self._since:
            return
        due = self._before + int((self.world.now - since) * self.rate + 1e-6) - self.published
        events = [Event(self._draw(self.published + number)) for number in range(due)]
        if events:
            self.times += [self.world.now] * due
            self.perform(self.session.publish(self.world.now, *events)[1])
        self.world.after(_STEP_S, self._publish, since)


class Reader(Application):
    """Has subscriptions, by groups, and counts what comes."""

    def __init__(self, world: World, name: str, home: str) -> None:
        super().__init__(world, name, home, [])
        self._groups: dict[str, str] = {}
        #: Group → when something was delivered to one of its subscriptions.
        self.delivered: dict[str, list[float]] = {}
        #: Subscription → stream → when it started there.
        self.started: dict[str, dict[str, float]] = {}
        #: (subscription, stream, sequence of the event) of every delivery, if that is of interest.
        self.seen: list[tuple[str, str, int]] | None = None
        self.connect_in(0.0)

    def subscribe(self, group: str, filter_text: str, name: str) -> None:
        """One more subscription."""
        self._groups[name] = group
        self.delivered.setdefault(group, [])
        effects = self.session.subscribe(self.world.now, name, filter_text, window=4_096)
        self.perform(effects)

    def unsubscribe(self, name: str) -> None:
        """One less."""
        self.perform(self.session.unsubscribe(self.world.now, name))

    def handle_effect(self, effect: object) -> None:
        """Something about a subscription."""
        if isinstance(effect, EventDelivered):
            self.delivered[self._groups[effect.subscription]].append(self.world.now)
            if self.seen is not None:
                sequence = decode_envelope(effect.body).id.sequence
                self.seen.append((effect.subscription, effect.stream, sequence))
        elif isinstance(effect, SubscriptionStarted):
            self.started.setdefault(effect.subscription, {})[effect.stream] = self.world.now
        else:
            assert not isinstance(effect, SubscriptionCut | SubscriptionRefused), effect

    @property
    def deliveries(self) -> int:
        """All that was delivered."""
        return sum(map(len, self.delivered.values()))


class Stage:
    """A network that has started, with nobody in it yet."""

    def __init__(self, network: Network, variant: Variant, seed: int) -> None:
        configs = [
            BrokerConfig(name, network, variant.routing, variant.options)
            for name in network.brokers
        ]
        self.world = World(configs, Random(seed), Weather())
        self.meter = Meter(self.world)
        self.feeders: list[Feeder] = []
        self.readers: list[Reader] = []
        for name in network.brokers:
            self.world.start(name)
        self.wait(_WARM_UP_S)

    def feed(self, home: str, rate: float, draw: Draw) -> Feeder:
        """A new feeder, not yet on."""
        feeder = Feeder(self.world, home, rate, draw)
        self.feeders.append(feeder)
        self.meter.busy[home] = None
        return feeder

    def reader(self, name: str, home: str) -> Reader:
        """A new reader, without subscriptions."""
        reader = Reader(self.world, name, home)
        self.readers.append(reader)
        return reader

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run_until(self.world.now + seconds)

    def publish_for(self, seconds: float) -> Counts:
        """Feed all the while, and let everything arrive; what was counted in that time."""
        before = self.meter.counts()
        self.begin()
        self.wait(seconds)
        self.end()
        return self.meter.counts().since(before)

    def begin(self) -> None:
        """All feeders on."""
        for feeder in self.feeders:
            feeder.begin()

    def end(self) -> None:
        """All feeders off, and what is on its way arrives."""
        for feeder in self.feeders:
            feeder.end()
        self.wait(DRAIN_S)

    @property
    def published(self) -> int:
        """By all feeders."""
        return sum(feeder.published for feeder in self.feeders)

    @property
    def deliveries(self) -> int:
        """To all readers."""
        return sum(reader.deliveries for reader in self.readers)


# -- selective ------------------------------------------------------------------------------------


SELECTIVE_SUBSCRIPTIONS = 2_000
PUBLISHERS = (2_000, 4_000, 6_000, 8_000, 10_000, 12_000)
SELECTIVE_RATE = 2.0
SELECTIVE_VARIANTS = (TREE, NO_COVERING, PLAIN, FLOOD)
_SELECTIVE_ORIGINS = ("p1", "p2", "p3", "p4")
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


def selective_network() -> Network:
    """Four origins, one edge, and the site in the middle that all five are in."""
    brokers = (*_SELECTIVE_ORIGINS, _EDGE)
    sites = {name: (name,) for name in brokers} | {"middle": brokers}
    return Network(sites, [(name, "middle") for name in brokers])


def measure_selective(
    variant: Variant, publishers: int, scale: float, seconds: float, seed: int = 1
) -> SelectivePoint:
    """One point."""
    many, wanted = round(publishers * scale), round(SELECTIVE_SUBSCRIPTIONS * scale)
    stage = Stage(selective_network(), variant, seed)
    for place, origin in enumerate(_SELECTIVE_ORIGINS):
        mine = range(place, many, len(_SELECTIVE_ORIGINS))
        stage.feed(origin, SELECTIVE_RATE * len(mine), _taking_turns(mine))
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
        link_events_per_s=max(counts.links[o, _EDGE].events for o in _SELECTIVE_ORIGINS) / seconds,
        matches=lookups / published,
        control_bytes=counts.everywhere().control_bytes / published,
        setup_control_bytes=setup.everywhere().control_bytes,
        deliveries=stage.deliveries,
    )


def _taking_turns(publishers: range) -> Callable[[int], dict[str, int]]:
    return lambda number: {"publisher": publishers[number % len(publishers)], "number": number}


# -- growing --------------------------------------------------------------------------------------


EDGES = (1, 2, 3, 4, 5, 6, 7)
GROWING_RATE = 2_000.0
GROWING_SUBSCRIPTIONS = 50
#: Events per change of one edge's interest.
EVENTS_PER_CHANGE = 2_000
GROWING_VARIANTS = (TREE, NO_COVERING, NO_CACHE, NO_DIGESTS, FLOOD)
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


def growing_network(edges: int) -> Network:
    """An origin, a relay, and this many edges."""
    names = _names(edges)
    sites = {_ORIGIN: (_ORIGIN,), "middle": (_RELAY,)} | {name: (name,) for name in names}
    return Network(sites, [(_ORIGIN, "middle"), *(("middle", name) for name in names)])


def measure_growing(  # noqa: PLR0917 - the size of a point
    variant: Variant,
    edges: int,
    scale: float,
    changes: int,
    events_per_change: float,
    seed: int = 1,
) -> GrowingPoint:
    """One point: this many changes of every edge."""
    rate = GROWING_RATE * scale
    stage = Stage(growing_network(edges), variant, seed)
    stage.feed(_ORIGIN, rate, _by_turns)
    period_s = events_per_change / rate
    many = max(1, round(GROWING_SUBSCRIPTIONS * scale))
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


# -- crashing -------------------------------------------------------------------------------------


CRASHING_RATE = 2_000.0
#: Subscribers of each of the first groups, and of the new one.
SUBSCRIBERS = 250
NEW_SUBSCRIBERS = 100
CRASHING_VARIANTS = (TREE, FLOOD)
#: Seconds after the beginning.
FIRST_CRASH_S = 6.0
SECOND_CRASH_S = 9.0
NEW_GROUP_S = 15.0
FIRST_RETURN_S = 27.6
SECOND_RETURN_S = 31.6
END_S = 40.0
#: From, to, and what is there: for rates.
PHASES = (
    (0.0, FIRST_CRASH_S, "all three"),
    (FIRST_CRASH_S, SECOND_CRASH_S, "two left"),
    (SECOND_CRASH_S, NEW_GROUP_S, "one left"),
    (NEW_GROUP_S, FIRST_RETURN_S, "one left, new group"),
    (FIRST_RETURN_S, SECOND_RETURN_S, "two again"),
    (SECOND_RETURN_S, END_S, "all again"),
)
#: Named so that each relay is the first choice of two of them.
_CRASHING_ORIGINS = ("p1", "p2", "p3", "p5", "p9", "p19")
_RELAYS = ("m1", "m2", "m3")
_FIRST_GROUPS = (("first group", "s1"), ("second group", "s1"), ("third group", "s2"))
_NEW = "new group"
#: Half of the topics are wanted from the beginning, the others by the new group.
_TOPICS = 100


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What came to one group of subscribers."""

    name: str
    edge: str
    subscribers: int
    #: Deliveries in each second from the beginning.
    per_s: list[int]
    #: Deliveries in each phase since it is there, over those that an even pace would bring.
    rates: dict[str, float]
    #: Matches published after the subscriptions had started; those that never came, and what came
    #: twice.
    wanted: int
    missing: int
    repeated: int
    longest_pause_s: float


class CrashingRun(msgspec.Struct, frozen=True, kw_only=True):
    """One variant."""

    variant: str
    published: int
    groups: list[Group]
    #: Relay → its share of the events that the site sent on, in each phase.
    shares: dict[str, list[float]]
    #: From the request of the new group to the start of its last subscription on the last stream.
    new_group_started_after_s: float
    crashes: int


class _Club:
    """A group of subscribers at one edge; everyone wants one topic."""

    def __init__(self, stage: Stage, name: str, edge: str, size: int) -> None:
        self.name = name
        self.edge = edge
        self.reader = stage.reader(name, edge)
        self.reader.seen = []
        is_new = name == _NEW
        self.since = NEW_GROUP_S if is_new else 0.0
        half = _TOPICS // 2
        self.topics = {f"{name} {number}": number % half + half * is_new for number in range(size)}

    def subscribe(self) -> None:
        """All of them."""
        for subscription, topic in self.topics.items():
            self.reader.subscribe(self.name, f"topic = {topic}", subscription)


def crashing_network() -> Network:
    """Six origins, three relays in one site, two edges."""
    leaves = (*_CRASHING_ORIGINS, "s1", "s2")
    sites = {name: (name,) for name in leaves} | {"middle": _RELAYS}
    return Network(sites, [(name, "middle") for name in leaves])


def measure_crashing(variant: Variant, scale: float, seed: int = 1) -> CrashingRun:
    """The whole of it."""
    stage = Stage(crashing_network(), variant, seed)
    world = stage.world
    for place, origin in enumerate(_CRASHING_ORIGINS):
        stage.feed(origin, CRASHING_RATE * scale / len(_CRASHING_ORIGINS), _topics_from(place))
    many, few = max(10, round(SUBSCRIBERS * scale)), max(4, round(NEW_SUBSCRIBERS * scale))
    clubs = [_Club(stage, name, edge, many) for name, edge in _FIRST_GROUPS]
    for club in clubs:
        club.subscribe()
    late = _Club(stage, _NEW, "s2", few)
    stage.wait(2.0)
    begin = world.now
    for delay, relay in ((FIRST_CRASH_S, "m1"), (SECOND_CRASH_S, "m2")):
        world.after(delay, world.kill, relay)
    for delay, relay in ((FIRST_RETURN_S, "m1"), (SECOND_RETURN_S, "m2")):
        world.after(delay, world.start, relay)
    world.after(NEW_GROUP_S, late.subscribe)
    stage.begin()
    shares = _shares(stage, begin)
    stage.end()
    started = max(max(times.values()) for times in late.reader.started.values())
    return CrashingRun(
        variant=variant.name,
        published=stage.published,
        groups=[_result(stage, club, begin) for club in (*clubs, late)],
        shares=shares,
        new_group_started_after_s=started - begin - NEW_GROUP_S,
        crashes=world.count.kills,
    )


def _topics_from(place: int) -> Draw:
    """Origins begin at different topics and go through all of them."""
    return lambda number: {"topic": _topic(place, number), "number": number}


def _topic(place: int, number: int) -> int:
    return (number + place * _TOPICS // len(_CRASHING_ORIGINS)) % _TOPICS


def _shares(stage: Stage, begin: float) -> dict[str, list[float]]:
    """Let the phases pass, and see which relay sends how much."""
    shares: dict[str, list[float]] = {relay: [] for relay in _RELAYS}
    before = stage.meter.counts()
    for _, end, _ in PHASES:
        stage.wait(begin + end - stage.world.now)
        now = stage.meter.counts()
        sent = {relay: now.since(before).out_of(relay).events for relay in _RELAYS}
        for relay, events in sent.items():
            shares[relay].append(events / max(1, sum(sent.values())))
        before = now
    return shares


def _result(stage: Stage, club: _Club, begin: float) -> Group:
    times = [time - begin for time in club.reader.delivered[club.name]]
    per_s = [0] * int(END_S + DRAIN_S)
    for time in times:
        per_s[min(int(time), len(per_s) - 1)] += 1
    pace = sum(feeder.rate for feeder in stage.feeders) * len(club.topics) / _TOPICS
    rates = {
        name: sum(start <= time < end for time in times) / (pace * (end - start))
        for start, end, name in PHASES
        if start >= club.since
    }
    seen = club.reader.seen or []
    wanted = _wanted(stage, club)
    return Group(
        name=club.name,
        edge=club.edge,
        subscribers=len(club.topics),
        per_s=per_s,
        rates=rates,
        wanted=len(wanted),
        missing=len(wanted - set(seen)),
        repeated=len(seen) - len(set(seen)),
        longest_pause_s=max((b - a for a, b in pairwise(times)), default=0.0),
    )


def _wanted(stage: Stage, club: _Club) -> set[tuple[str, str, int]]:
    """What has to come: matches that were published when a subscription had started."""
    by_topic: dict[int, list[str]] = {}
    for subscription, topic in club.topics.items():
        by_topic.setdefault(topic, []).append(subscription)
    started = club.reader.started
    return {
        (subscription, feeder.home, number + 1)
        for place, feeder in enumerate(stage.feeders)
        for number, time in enumerate(feeder.times)
        for subscription in by_topic.get(_topic(place, number), [])
        if time > started[subscription][feeder.home]
    }


# -- nested ---------------------------------------------------------------------------------------


NESTED_SUBSCRIPTIONS = 2_000
NESTED_VARIANTS = (TREE, NO_COVERING, FLOOD)
_NESTED_ORIGINS = ("p1", "p2")
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


def nested_network() -> Network:
    """Two origins, a relay, an edge."""
    leaves = (*_NESTED_ORIGINS, "s")
    sites = {name: (name,) for name in leaves} | {"middle": ("m",)}
    return Network(sites, [(name, "middle") for name in leaves])


def measure_nested(variant: Variant, scale: float, seconds: float, seed: int = 1) -> NestedPoint:
    """One point."""
    rng = Random(seed)
    stage = Stage(nested_network(), variant, seed)
    for origin in _NESTED_ORIGINS:
        stage.feed(origin, _RATE, lambda _: {"price": rng.randrange(_PRICES)})
    reader = stage.reader("reader", "s")
    before = stage.meter.counts()
    many = round(NESTED_SUBSCRIPTIONS * scale)
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
    broker = stage.world.hosts[_NESTED_ORIGINS[0]].broker
    if broker is None or not isinstance(broker.router, TreeRouter):
        return 0
    return sum(len(wanted) for view in broker.router.presences() for wanted in view.wanted.values())
