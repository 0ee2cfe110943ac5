"""What a change costs: frames and bytes on all links until a network is at rest again.

Ten brokers, six of which have clients:

    e1, e2 – m1 – m2 – m3 – m4 – e5, e6        with e3 at m2 and e4 at m3

The same network for every routing, and for `mesh` one with six more links as well. Two publishers
advertise, at either end, and every edge has some subscriptions; then one thing after the other
changes. Rules:

1. Whatever brokers say to each other without a reason (heartbeats, heads, how far they have read)
   is said so rarely here that none of it happens: *nothing*, the first row, counts it.
2. Counted are all frames, whatever they are for, from the change until long after the last one.
3. *Start* is the time from a subscription until the client is told where it begins in the stream of
   the publisher that is farthest away; links take two to five milliseconds here, disks about four.
4. *Memory* is all that a router refers to, after a thousand subscriptions less before them.

Counted in virtual time: figures are the same on every machine, but for memory, which depends on the
version of Python.

Deaths
------
A broker dies on the way of a stream: for how long nothing comes, and what finding a way costs.

Ten brokers: a publisher's, a subscriber's, and four pairs in between, with all links between one
pair and the next:

    p – a1, a2 – b1, b2 – c1, c2 – d1, d2 – s

`tree` and `flood` have the pairs as sites, whose brokers stand in for each other; `mesh` has the
same brokers and the same links. A steady stream of events goes from end to end; then the broker of
the second pair that carries it dies, in one of two ways: its process ends, and connections break
within fifty milliseconds; or it falls silent, and neighbours notice by missing heartbeats.

The *pause* is the longest time without a delivery, from the death on. *Late* are events that took
more than a tenth of a second. Frames are all those without events in the time after it, but for
heartbeats: what finding another way took, and asking for what was lost. Before it there are none.
All of it in virtual time.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import msgspec

from anabranch.core.options import Options
from anabranch.core.routing.registry import RoutingName
from anabranch.core.session.session import ClientSession
from anabranch.model.frames import Hello, Knowledge, LinkFrame, Ping
from anabranch.model.mesh_frames import Copies
from anabranch.model.network import Network, graph_of_brokers
from anabranch.sim.applications import Application
from anabranch.sim.world import World
from evaluation.routing.mesh_claims import deep_bytes
from evaluation.routing.tree_workloads import Reader, Stage, Variant

# -- changes --------------------------------------------------------------------------------------


_RELAYS = ("m1", "m2", "m3", "m4")
_LINKS = (
    *(("e1", "m1"), ("e2", "m1"), ("e3", "m2"), ("e4", "m3"), ("e5", "m4"), ("e6", "m4")),
    *(("m1", "m2"), ("m2", "m3"), ("m3", "m4")),
)
_MORE_LINKS = (
    *(("e1", "m2"), ("e2", "e3"), ("e4", "e5"), ("e6", "m3")),
    *(("m1", "m3"), ("m2", "m4")),
)
#: Routing, how it is called, and whether it has more links.
NETWORKS: tuple[tuple[RoutingName, str, bool], ...] = (
    ("tree", "tree", False),
    ("mesh", "mesh", False),
    ("mesh", "mesh, 15 links", True),
    ("flood", "flood", False),
)
#: Rule 1.
_NEVER_S = 10_000.0
_QUIET = Options(
    heartbeat_s=_NEVER_S,
    dead_after_s=2 * _NEVER_S,
    head_every_s=_NEVER_S,
    done_every_s=_NEVER_S,
)
_REST_S = 20.0
_SUBSCRIPTIONS = 20
#: For memory, at scale 1.
MANY = 1_000
_FAR, _NEAR = "e1", "e5"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What one change cost."""

    network: str
    what: str
    frames: int
    bytes: int
    #: Links in either direction over which anything went.
    links: int
    #: Of a subscription, until it had started; 0 for what does not start.
    start_ms: float = 0.0


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What subscriptions of one edge take in the router of a broker."""

    network: str
    subscriptions: int
    #: At a relay in between, at the edge that has them, at the origin they are for, and at an edge
    #: that has nothing to do with it.
    relay_bytes: int
    edge_bytes: int
    origin_bytes: int
    other_bytes: int


class Advertiser(Application):
    """Advertises what it would publish."""

    def __init__(self, world: World, home: str, *filters: str) -> None:
        super().__init__(world, f"advertiser at {home}", home, [])
        self.session = ClientSession(self.name, incarnation=1, options=self.options)
        self.advertise(*filters)
        self.connect_in(0.0)

    def advertise(self, *filters: str) -> None:
        """This, and nothing else from now on."""
        self.perform(self.session.advertise(filters))


class Town:
    """A network at rest, in which things change."""

    def __init__(self, routing: RoutingName, name: str, has_more: bool, seed: int) -> None:
        self.name = name
        self.stage = Stage(_network(has_more), Variant(name, routing, _QUIET), seed)
        self.world = self.stage.world
        self.world.meter = self._count
        self._counted: list[tuple[str, str, int]] = []
        self.far = Advertiser(self.world, _FAR, "topic = 'a'")
        self.near = Advertiser(self.world, "e6", "topic = 'b'")
        self.readers: dict[str, Reader] = {}
        for edge in ("e1", "e2", "e3", "e4", "e5", "e6"):
            self.readers[edge] = reader = self.stage.reader(f"reader at {edge}", edge)
            for number in range(_SUBSCRIPTIONS):
                key = f"{edge} {number}"
                reader.subscribe("old", f"topic = 'a' AND key = '{key}'", f"old {key}")
        self.reader = self.readers[_NEAR]
        self.reader.subscribe("old", "topic = 'd'", "waits for d")
        self.stage.wait(_REST_S)

    def _count(self, source: str, target: str, frame: LinkFrame, data: bytes) -> None:
        del frame
        self._counted.append((source, target, len(data)))

    def changes(self) -> list[Change]:
        """All of them, one after the other."""
        reader, far = self.reader, self.far
        return [
            self._after("nothing", lambda: None),
            self._started("a new subscription", "topic = 'a' AND key >= 'k'"),
            self._started("one that another one covers", "topic = 'a' AND key >= 'kk'"),
            self._after("that one is taken back", lambda: reader.unsubscribe(_named("kk"))),
            self._after("the new one is taken back", lambda: reader.unsubscribe(_named("k"))),
            self._after(
                "an advertisement that nobody wants",
                lambda: far.advertise("topic = 'a'", "topic = 'c'"),
            ),
            self._after(
                "one that a subscription meets",
                lambda: far.advertise("topic = 'a'", "topic = 'c'", "topic = 'd'"),
            ),
            self._after("both are withdrawn", lambda: far.advertise("topic = 'a'")),
        ]

    def _started(self, what: str, text: str) -> Change:
        name = _named(text.split("'")[-2])
        began = self.world.now
        change = self._after(what, lambda: self.reader.subscribe("new", text, name))
        at = self.reader.started[name][_FAR]
        return msgspec.structs.replace(change, start_ms=1_000 * (at - began))

    def _after(self, what: str, act: Callable[[], None]) -> Change:
        self._counted.clear()
        act()
        self.stage.wait(_REST_S)
        return Change(
            network=self.name,
            what=what,
            frames=len(self._counted),
            bytes=sum(size for _, _, size in self._counted),
            links=len({(source, target) for source, target, _ in self._counted}),
        )

    def memory(self, subscriptions: int) -> Memory:
        """Let one edge have many subscriptions."""
        before = self._sizes()
        for number in range(subscriptions):
            text = f"topic = 'a' AND key = 'many {number}' AND price > {number % 10}"
            self.reader.subscribe("many", text, f"many {number}")
        self.stage.wait(_REST_S)
        grown = {name: size - before[name] for name, size in self._sizes().items()}
        return Memory(
            network=self.name,
            subscriptions=subscriptions,
            relay_bytes=grown["m2"],
            edge_bytes=grown[_NEAR],
            origin_bytes=grown[_FAR],
            other_bytes=grown["e3"],
        )

    def _sizes(self) -> dict[str, int]:
        found = {}
        for name, host in self.world.hosts.items():
            assert host.broker is not None
            found[name] = deep_bytes([host.broker.router])
        return found


def _named(key: str) -> str:
    return f"new {key}"


def _network(has_more: bool) -> Network:
    if has_more:
        return graph_of_brokers((*_LINKS, *_MORE_LINKS), _RELAYS)
    names = dict.fromkeys(name for link in _LINKS for name in link)
    site_of = {name: f"{name}*" if name in _RELAYS else name for name in names}
    sites = {site: [name] for name, site in site_of.items()}
    return Network(sites, [(site_of[one], site_of[other]) for one, other in _LINKS])


# -- deaths ---------------------------------------------------------------------------------------


Death = Literal["ends", "falls silent"]
DEATHS: tuple[Death, ...] = ("ends", "falls silent")
ROUTINGS: tuple[RoutingName, ...] = ("tree", "mesh", "flood")
_PAIRS = ("a", "b", "c", "d")
_RATE = 200.0
#: Before and after the death; with default options silence is noticed after two seconds.
_BEFORE_S, _AFTER_S = 2.0, 6.0
_LATE_S = 0.1
#: What brokers say without a reason is not said, but for heartbeats.
_OPTIONS = Options(head_every_s=10_000.0, done_every_s=10_000.0)


class Dying(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one death."""

    routing: RoutingName
    death: Death
    seed: int
    #: Events published, delivered, and delivered late.
    published: int
    delivered: int
    late: int
    pause_ms: float
    #: Without events and heartbeats, from the death on.
    frames: int
    bytes: int


class _Frames:
    """Counts frames."""

    def __init__(self, world: World) -> None:
        #: Frames and bytes without events; broker → events that came to it.
        self.frames = 0
        self.bytes = 0
        self.events: dict[str, int] = {}
        world.meter = self._count

    def _count(self, source: str, target: str, frame: LinkFrame, data: bytes) -> None:
        del source
        if isinstance(frame, Copies | Knowledge) and frame.data:
            self.events[target] = self.events.get(target, 0) + len(frame.data)
        elif not isinstance(frame, Ping | Hello):
            self.frames += 1
            self.bytes += len(data)


def run_dying(routing: RoutingName, death: Death, seed: int) -> Dying:
    """Let a broker die."""
    stage = Stage(_dying_network(routing), Variant(routing, routing, _OPTIONS), seed)
    frames = _Frames(stage.world)
    feeder = stage.feed("p", _RATE, lambda number: {"number": number})
    reader = stage.reader("reader", "s")
    reader.seen = []
    reader.subscribe("all", "number >= 0", "all")
    stage.wait(2.0)
    stage.begin()
    stage.wait(_BEFORE_S)
    frames.frames = frames.bytes = 0
    carrier = max(("b1", "b2"), key=lambda name: frames.events.get(name, 0))
    died_at = stage.world.now
    if death == "ends":
        stage.world.kill(carrier)
    else:
        _silence(stage.world, carrier)
    stage.wait(_AFTER_S)
    after = frames.frames, frames.bytes
    stage.end()
    stage.wait(_AFTER_S)
    came = reader.delivered["all"]
    times = [died_at, *(at for at in came if at > died_at)]
    # One subscription, one stream, in order: the n-th delivery is of the n-th event.
    late = [at - sent for at, sent in zip(came, feeder.times, strict=False) if at - sent > _LATE_S]
    return Dying(
        routing=routing,
        death=death,
        seed=seed,
        published=feeder.published,
        delivered=len(came),
        late=len(late),
        pause_ms=1_000 * max(b - a for a, b in pairwise(times)),
        frames=after[0],
        bytes=after[1],
    )


def _silence(world: World, name: str) -> None:
    """Drop everything that it sends and everything sent to it."""
    for ends, wire in world.wires.items():
        if name in ends:
            for direction in (0, 1):
                world.stop(wire, direction)


def _dying_network(routing: RoutingName) -> Network:
    sites = {"p": ["p"], "s": ["s"]} | {f"{pair}*": [f"{pair}1", f"{pair}2"] for pair in _PAIRS}
    row = ["p", *(f"{pair}*" for pair in _PAIRS), "s"]
    if routing != "mesh":
        return Network(sites, list(pairwise(row)))
    links = [
        (one, other)
        for here, there in pairwise(row)
        for one in sites[here]
        for other in sites[there]
    ]
    return graph_of_brokers(links, [name for pair in _PAIRS for name in (f"{pair}1", f"{pair}2")])
