"""What an event costs a broker on its way: passed on by its targets, or matched once more.

Mesh routing matches an event at its origin, and copies name the edges they are for; tree routing
names nobody and matches again at every broker; flooding does neither. All three are measured on the
same shape, with the real routers of one relay:

    origin  o – relay m – n – many edges, each with subscriptions of its own

Rules:

1. What is timed is all that the relay does with a frame: decoding, its router's step, encoding of
   what goes on. Frames are those that the origin's real router has made.
2. Time is processor time of this thread, the least of several passes over the same frames.
3. Every event is wanted by exactly as many edges as is said, once each. Subscriptions do not cover
   each other, so that covering, which would help the tree, has nothing to save.
4. Whatever is wanted is all behind one link: one frame comes, one goes on. What differs is what a
   frame says, and what the broker does to say it.
5. Before anything is timed, what goes on is looked at: all events, for all targets, and nothing
   else.

*One look-up* is that of the mesh's own index of the same subscriptions: what a broker in a mesh
would do in addition if it matched again.

Unlike most of the evaluation, these figures depend on the machine; bytes do not.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Literal, get_args

import msgspec

from anabranch.core.contract import Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import (
    Emission,
    Outcome,
    Router,
    VectorAdvance,
    interest_at_once,
)
from anabranch.core.routing.interest_clock import conjuncts_of
from anabranch.core.routing.mesh.origin_interest import OriginInterest
from anabranch.core.routing.mesh.shared import MeshState
from anabranch.core.routing.registry import ROUTINGS, RoutingName
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import Knowledge, LinkFrame
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.mesh_frames import Binding, Copies
from anabranch.model.network import Network
from anabranch.model.version import NOTHING, Version
from anabranch.wire.codec import decode_link, encode_link

#: Filters that name a symbol, which an index finds at once, or only a range of prices.
Kind = Literal["symbol", "range"]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: Relays, and the index alone.
Way = Literal["mesh", "tree", "flood", "look-up"]
#: How many edges want an event, and how many subscriptions there are.
TARGETS = (1, 8, 32, 128)
SUBSCRIPTIONS = (1_000, 10_000, 100_000)
#: Events in a frame: one by one, and as they come when a broker has much to do.
TOGETHER = (1, 16)
ORIGIN, RELAY, FORK = "o", "m", "n"
_OPTIONS = Options(interest_after_s=0.0, silence_after_s=1_000.0)
#: Below this scale there are few targets, and few subscriptions.
_FEW_BELOW = 0.2
_EVENTS = 64
_PORTION = 1_000
_WIDTH = 1_000


class RelayJob(msgspec.Struct, frozen=True, kw_only=True):
    """One way, on one set of subscriptions."""

    way: Way
    subscriptions: int
    kind: Kind = "symbol"
    targets: tuple[int, ...] = TARGETS
    #: Passes, of which the quickest counts.
    times: int = 40


class Relayed(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker takes for an event."""

    way: Way
    kind: Kind
    subscriptions: int
    #: Edges that want each event, and events in a frame.
    targets: int
    together: int
    event_us: float
    #: What goes on, per event; a look-up sends nothing.
    event_bytes: float


class Groups:
    """Subscriptions in groups: those of one group want the same events."""

    def __init__(
        self, subscriptions: int, targets: Sequence[int] = TARGETS, kind: Kind = "symbol"
    ) -> None:
        self._kind = kind
        #: Number of targets → symbols that this many edges want.
        self.symbols: dict[int, list[int]] = {each: [] for each in targets}
        #: Edge → filters.
        self.wanted: dict[str, list[str]] = {}
        left = subscriptions
        numbers = count()
        while left:
            for size in targets:
                if size <= left or size == min(targets):
                    self._add(next(numbers), min(size, left), size)
                    left -= min(size, left)

    def _add(self, symbol: int, edges: int, size: int) -> None:
        """A group: windows of prices that overlap, none of which contains another one."""
        self.symbols[size].append(symbol)
        # The next edges in turn for small groups, so that all edges have about as many.
        first = len(self.symbols[size]) * size
        for number in range(edges):
            edge = f"e{(first + number) % max(self.symbols) + 1}"
            low, high = -number, _WIDTH - number
            if self._kind == "range":
                low, high = low + symbol * 2 * _WIDTH, high + symbol * 2 * _WIDTH
            text = f"price >= {low} AND price <= {high}"
            if self._kind == "symbol":
                text = f"symbol = 'S{symbol}' AND {text}"
            self.wanted.setdefault(edge, []).append(text)

    def events(self, targets: int) -> list[bytes]:
        """Events that this many edges want."""
        symbols = self.symbols[targets]
        every = [symbols[number * 7 % len(symbols)] for number in range(_EVENTS)]
        bodies = []
        for number, symbol in enumerate(every):
            price = 500 + number + (symbol * 2 * _WIDTH if self._kind == "range" else 0)
            id = EventId("quoter", 1, number + 1)
            bodies.append(encode_event(Event({"symbol": f"S{symbol}", "price": price}, id=id)))
        return bodies


class Row:
    """Routers without brokers. See the top of this module."""

    def __init__(self, routing: RoutingName, edges: int, deaf: Iterable[str] = ()) -> None:
        network = _network(edges)
        #: Who is told nothing: what they would learn is not measured.
        self.deaf = frozenset(deaf)
        self.routers: dict[str, Router] = {
            name: ROUTINGS[routing].make(name, network, _OPTIONS, DEFAULT_LIMITS, 1)
            for name in network.brokers
        }
        self.now = 1.0
        self._waiting: deque[tuple[str, str, LinkFrame]] = deque()
        #: Frames with events from the origin to the relay.
        self.sent: list[LinkFrame] = []
        self._tick = self._mark = 0
        for name, router in self.routers.items():
            for peer in network.links_of(name):
                self.do(name, router.link_up(self.now, peer))
        for name in network.edges:
            self.do(name, self.routers[name].advertise(self.now, (), (), 0))
        self.do(ORIGIN, self.routers[ORIGIN].advertise(self.now, ("TRUE",), (), 0))
        self.settle()

    def do(self, name: str, outcomes: Iterable[Outcome]) -> None:
        """Perform what a router wants; only one origin publishes."""
        for outcome in outcomes:
            if isinstance(outcome, Send):
                if outcome.peer == RELAY and name == ORIGIN and _has_events(outcome.frame):
                    self.sent.append(outcome.frame)
                elif outcome.peer not in self.deaf:
                    self._waiting.append((name, outcome.peer, outcome.frame))
            elif isinstance(outcome, VectorAdvance) and name == ORIGIN:
                self.mark(outcome.vector)

    def mark(self, vector: Mapping[str, Version]) -> None:
        """The origin's stream has these versions from now on."""
        self._tick = self._mark = tick = self._tick + 1
        router = self.routers[ORIGIN]
        self.do(ORIGIN, router.marked(self.now, tick, vector))
        self.do(ORIGIN, router.publish(self.now, Emission(tick, [], [(tick, tick)], head=tick)))

    def settle(self) -> None:
        """Let everything arrive that is on its way."""
        while self._waiting:
            source, target, frame = self._waiting.popleft()
            self.do(target, self.routers[target].frame(self.now, source, frame))

    def subscribe(self, wanted: dict[str, list[str]]) -> None:
        """Interest of edges, in portions that frames have room for."""
        numbers = count()
        latest: dict[str, Version] = {}
        for edge, texts in wanted.items():
            for first in range(0, len(texts), _PORTION):
                portion = texts[first : first + _PORTION]
                added = {f"s{next(numbers)}": Filter.parse(text) for text in portion}
                versions, outcomes = interest_at_once(self.routers[edge], self.now, added, ())
                latest[edge] = max(versions.values())
                self.do(edge, outcomes)
                self.settle()
        if ORIGIN in self.deaf:
            # It knows what there is to know, but not what it is: it sends all events on.
            self.mark(latest)
            self.settle()

    def publish(self, bodies: Sequence[bytes], together: int) -> list[bytes]:
        """Events of the origin, this many at once; the frames that come to the relay."""
        self.sent.clear()
        for first in range(0, len(bodies), together):
            data = []
            for body in bodies[first : first + together]:
                self._tick += 1
                data.append(Datum(self._tick, 1, body))
            emission = Emission(self._mark, data, head=self._tick)
            self.do(ORIGIN, self.routers[ORIGIN].publish(self.now, emission))
        return [encode_link(frame) for frame in self.sent]

    def relay(self, frames: Sequence[bytes]) -> list[bytes]:
        """What the relay makes of frames: this is what is timed."""
        router, now, out = self.routers[RELAY], self.now, []
        for data in frames:
            outcomes = router.frame(now, ORIGIN, decode_link(data))
            out += [encode_link(each.frame) for each in outcomes if isinstance(each, Send)]
        return out


def relay_jobs(scale: float) -> list[RelayJob]:
    """All of them; the longest first, since they run side by side."""
    targets = TARGETS if scale >= _FEW_BELOW else TARGETS[:2]
    sizes = [max(2 * sum(targets), round(each * min(1.0, scale))) for each in SUBSCRIPTIONS]
    sizes = sorted(set(sizes), reverse=True)
    ways: tuple[Way, ...] = ("tree", "look-up")
    jobs = [
        RelayJob(way=way, subscriptions=size, kind=kind, targets=targets)
        for size in sizes
        for way in ways
        for kind in KINDS
    ]
    # Neither of these knows of subscriptions.
    ways = ("mesh", "flood")
    return jobs + [RelayJob(way=way, subscriptions=sizes[-1], targets=targets) for way in ways]


def relay(job: RelayJob) -> list[Relayed]:
    """Measure, for every number of targets and of events in a frame."""
    groups = Groups(job.subscriptions, job.targets, job.kind)
    passing = _looking_up(groups) if job.way == "look-up" else _relaying(job.way, groups)
    found = []
    for targets in job.targets:
        bodies = groups.events(targets)
        for together in TOGETHER:
            work, onward = passing(bodies, together, targets)
            found.append(
                Relayed(
                    way=job.way,
                    kind=job.kind,
                    subscriptions=job.subscriptions,
                    targets=targets,
                    together=together,
                    event_us=1e6 * _least_s(work, job.times) / len(bodies),
                    event_bytes=sum(map(len, onward)) / len(bodies),
                )
            )
    return found


#: Events, how many go together, for how many edges → what is timed, and what goes on.
_Passing = Callable[[Sequence[bytes], int, int], tuple[Callable[[], object], Sequence[bytes]]]


def _relaying(routing: RoutingName, groups: Groups) -> _Passing:
    """A relay of a real network."""
    edges, deaf, wanted = max(groups.symbols), frozenset[str](), groups.wanted
    if routing != "mesh":
        # A relay of a tree, or of a flood, does not know how many edges are behind a link: here it
        # is one, with everybody's subscriptions. It is enough that those on the way learn of them.
        edges, deaf = 1, frozenset((ORIGIN, "e1"))
        wanted = {"e1": [text for texts in groups.wanted.values() for text in texts]}
    row = Row(routing, edges, deaf)
    row.subscribe(wanted)

    def passing(
        bodies: Sequence[bytes], together: int, targets: int
    ) -> tuple[Callable[[], object], Sequence[bytes]]:
        frames = row.publish(bodies, together)
        onward = row.relay(frames)
        _check(onward, bodies, targets)
        return partial(row.relay, frames), onward

    return passing


def _looking_up(groups: Groups) -> _Passing:
    """The index of an origin of a mesh."""
    network = _network(max(groups.symbols))
    wishes = OriginInterest(MeshState(ORIGIN, network, _OPTIONS, DEFAULT_LIMITS))
    for edge, texts in groups.wanted.items():
        plus = [c for text in texts for c in conjuncts_of(Filter.parse(text), DEFAULT_LIMITS)]
        binding = Binding(ORIGIN, Version(1, 1), NOTHING, NOTHING, is_whole=True)
        wishes.bind(edge, Version(1, 1), binding, plus, (), now=0.0)

    def passing(
        bodies: Sequence[bytes], together: int, targets: int
    ) -> tuple[Callable[[], object], Sequence[bytes]]:
        data = [Datum(number, 1, body) for number, body in enumerate(bodies, 1)]
        portions = [data[first : first + together] for first in range(0, len(data), together)]
        for portion in portions:
            assert {len(edges) for edges in wishes.match(portion)} == {targets}, "wrong edges"
        return partial(_match_all, wishes, portions), ()

    return passing


def _match_all(wishes: OriginInterest, portions: Sequence[Sequence[Datum]]) -> None:
    for portion in portions:
        wishes.match(portion)


def _network(edges: int) -> Network:
    names = [f"e{number}" for number in range(1, edges + 1)]
    relay, fork = f"{RELAY}*", f"{FORK}*"
    sites = {ORIGIN: [ORIGIN], relay: [RELAY], fork: [FORK]} | {name: [name] for name in names}
    links = [(ORIGIN, relay), (relay, fork), *((fork, name) for name in names)]
    return Network(sites, links)


def _has_events(frame: LinkFrame) -> bool:
    return isinstance(frame, Copies | Knowledge) and bool(frame.data)


def _check(onward: Sequence[bytes], bodies: Sequence[bytes], targets: int) -> None:
    """Rule 5."""
    frames = [decode_link(data) for data in onward]
    passed = [d.body for f in frames if isinstance(f, Copies | Knowledge) for d in f.data]
    assert passed == list(bodies), f"{len(passed)} of {len(bodies)} events went on"
    for frame in frames:
        if isinstance(frame, Copies):
            count = len(frame.data)
            named = [place for target in frame.targets for place in target.gets(count)]
            assert sorted(named) == sorted([*range(count)] * targets), "wrong edges"


def _least_s(work: Callable[[], object], times: int) -> float:
    """Rule 2."""
    least = float("inf")
    for _ in range(times):
        begin = time.thread_time()
        work()
        least = min(least, time.thread_time() - begin)
    return least
