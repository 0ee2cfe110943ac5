"""A router that takes every liberty the contract leaves: lossy, late, repeating, over two paths.

It is as unlike `tree` as the contract allows. The origin filters for every edge by itself, by what
it has heard of that edge's interest, and sends to each of them over two paths where there are two.
Interest spreads by gossip: now and then every broker tells its neighbours all it knows. There are
no marks but a first one. Everything that leaves (ticks, interest, carried messages, even what goes
to the own edge) is delayed by chance, so it overtakes; some of it is lost, some comes twice.

It never lies: silence for an edge is made of the newest interest known, and says its version. The
version travels in a `MarkIs` right before the ticks it belongs to, on the same link.

Rule 2 is broken deliberately. Ticks that are sent again carry the version of that moment, and an
origin that restarts knows nothing at first: versions go up and down along the stream.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from anabranch.core.contract import Send
from anabranch.core.options import Options
from anabranch.core.ranges import RangeSet
from anabranch.core.routing.contract import (
    Arrival,
    Emission,
    InterestVersions,
    Outcome,
    Router,
    VectorAdvance,
)
from anabranch.core.routing.overlay import Overlay
from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Conjuncts, Datum
from anabranch.model.frames import AnyCarried, Carry, InterestState, Knowledge, LinkFrame, MarkIs
from anabranch.model.limits import Limits
from anabranch.model.network import Network
from anabranch.model.version import NOTHING, Version

LOSS = 0.04
REPETITION = 0.1
#: Most things are a little late, some very.
LATE_S = (0.0, 0.0, 0.002, 0.01, 0.03, 0.25)
GOSSIP_S = 0.15
#: Share of unwanted events that are sent all the same.
WASTE = 0.1


class UnrulyRouter(Router):
    """Takes every liberty. See the top of this module."""

    def __init__(
        self, name: str, network: Network, options: Options, limits: Limits, life: int
    ) -> None:
        del options, limits
        self.name = name
        self.network = network
        self.random = Random(f"{name} {life}")
        self._life = life
        self._overlay = Overlay(name, network)
        self._neighbours: dict[str, None] = {}
        self._subscriptions: dict[str, Filter] = {}
        #: Edge → its interest as last heard of.
        self.known: dict[str, tuple[Version, list[Filter]]] = {}
        if name in network.edges:
            self.known[name] = (Version(life, 1), [])
        #: (neighbour, stream) → the vector that goes with the next ticks.
        self._vectors: dict[tuple[str, str], dict[str, Version]] = {}
        self._late: list[tuple[float, int, list[Outcome]]] = []
        self._order = 0
        self._gossip_at: float | None = None

    # -- being unruly -----------------------------------------------------------------------------

    def _later(self, now: float, outcomes: list[Outcome]) -> None:
        """Let something out after a while; perhaps not at all, perhaps twice."""
        if self.random.random() < LOSS:
            return
        for _ in range(1 + (self.random.random() < REPETITION)):
            self._order += 1
            due = now + self.random.choice(LATE_S) * self.random.random()
            heapq.heappush(self._late, (due, self._order, outcomes))

    def time_passed(self, now: float) -> list[Outcome]:
        out: list[Outcome] = []
        while self._late and self._late[0][0] <= now:
            out += heapq.heappop(self._late)[2]
        if self._gossip_at is not None and self._gossip_at <= now:
            self._gossip(now)
        return out

    def next_deadline(self) -> float | None:
        first = [self._late[0][0]] if self._late else []
        return min([*first, *([] if self._gossip_at is None else [self._gossip_at])], default=None)

    # -- links ------------------------------------------------------------------------------------

    def link_up(self, now: float, peer: str) -> list[Outcome]:
        self._overlay.link_up(peer)
        self._neighbours[peer] = None
        self._gossip_at = now
        return []

    def link_down(self, now: float, peer: str) -> list[Outcome]:
        del now
        self._overlay.link_down(peer)
        self._neighbours.pop(peer, None)
        return []

    def link_full(self, now: float, peer: str, full: bool) -> list[Outcome]:
        del now
        self._overlay.link_full(peer, full)
        return []

    def link_load(self, now: float, peer: str, given: int, gone: int, waiting: int) -> None:
        del now, peer, given, gone, waiting

    def advertise(
        self, now: float, added: Sequence[str], removed: Sequence[str], newest: int
    ) -> list[Outcome]:
        del now, added, removed, newest
        return []

    def frame(self, now: float, peer: str, frame: LinkFrame) -> list[Outcome]:
        if isinstance(frame, Carry):
            self._later(now, self._overlay.carried(peer, frame))
        elif isinstance(frame, InterestState):
            self._learn(frame)
        elif isinstance(frame, MarkIs):
            self._vectors[peer, frame.stream] = frame.vector
        elif isinstance(frame, Knowledge):
            self._forward(now, frame, self._vectors[peer, frame.stream], paths=1)
        else:
            raise RemoteError(f"{peer!r} sends {type(frame).__name__}, which has no place here")
        return []

    # -- interest ---------------------------------------------------------------------------------

    def interest_changes(
        self, now: float, added: Mapping[str, Filter], removed: Sequence[str]
    ) -> Iterator[Outcome]:
        for name in removed:
            self._subscriptions.pop(name, None)
        self._subscriptions.update(added)
        version = Version(self._life, self.known[self.name][0].counter + 1)
        self.known[self.name] = (version, list(self._subscriptions.values()))
        self._gossip_at = now
        yield InterestVersions(dict.fromkeys(added, version))

    def _gossip(self, now: float) -> None:
        self._gossip_at = now + GOSSIP_S
        for peer in self._neighbours:
            site = self.network.sites_of(peer)[0]
            for edge, (version, filters) in self.known.items():
                packed = [Conjuncts(str(filter), ()) for filter in filters]
                told = InterestState(site, edge, {edge: version}, packed)
                self._later(now, [Send(peer, told)])

    def _learn(self, frame: InterestState) -> None:
        edge = frame.source
        version = frame.vector[edge]
        if edge != self.name and version > self.known.get(edge, (NOTHING, []))[0]:
            filters = [Filter.parse(item.text) for item in frame.conjunctions]
            self.known[edge] = (version, filters)

    # -- ticks ------------------------------------------------------------------------------------

    def publish(self, now: float, emission: Emission) -> list[Outcome]:
        for edge in [emission.target] if emission.target else self.network.edges:
            version, passed, quiet = self.filtered(edge, emission.data, emission.silent)
            parts = passed, quiet, emission.withheld, emission.head, emission.time_ns
            frame = Knowledge(self.name, self.name, edge, 0, *parts)
            self._forward(now, frame, {edge: version}, paths=2)
        return []

    def filtered(
        self, edge: str, data: Sequence[Datum], silent: Sequence[tuple[int, int]]
    ) -> tuple[Version, list[Datum], list[tuple[int, int]]]:
        """For one edge: the version of its interest known here, events, and silence."""
        if edge not in self.known:
            return NOTHING, list(data), list(silent)
        version, filters = self.known[edge]
        quiet, passed = RangeSet(silent), []
        for datum in data:
            attributes = decode_envelope(datum.body).attributes()
            is_wanted = any(filter.matches(attributes) for filter in filters)
            if is_wanted or self.random.random() < WASTE:
                passed.append(datum)
            else:
                quiet.add(datum.tick, datum.tick)
        return version, passed, list(quiet)

    def _forward(
        self, now: float, frame: Knowledge, vector: dict[str, Version], paths: int
    ) -> None:
        target = frame.target
        if target == self.name:
            parts = frame.data, frame.silent, frame.withheld, frame.head, frame.time_ns
            arrival = Arrival(frame.stream, vector.get(target, NOTHING), *parts)
            self._later(now, [arrival])
            return
        for broker in self._ways(target, paths):
            header = MarkIs(frame.stream, 0, vector)
            self._later(now, [Send(broker, header), Send(broker, frame)])

    def _ways(self, target: str, paths: int) -> list[str]:
        """Brokers of the next site on the way, any of them."""
        network = self.network
        mine = min(network.sites_of(self.name), key=lambda site: network.distance(site, target))
        there = network.members(network.next_site(mine, target))
        usable = [broker for broker in there if self._overlay.is_usable(broker)]
        return self.random.sample(usable, min(paths, len(usable)))

    def marked(self, now: float, mark: int, vector: Mapping[str, Version]) -> list[Outcome]:
        del now, mark
        # A stream without a tick could not tell that it exists.
        return [] if vector else [VectorAdvance({self.name: Version(1, 1)})]

    # -- everybody --------------------------------------------------------------------------------

    def carry(self, now: float, target: str, content: AnyCarried) -> list[Outcome]:
        self._later(now, self._overlay.carry(target, content))
        return []
