"""State that the parts of one mesh router share: links, outbox, counters and distances.

Frames are validated here too, before a part uses them. The decoder has already bounded every number
and list. The remaining checks ask whether the frame is possible: the names exist, positions refer
to existing items, ticks are in order. An impossible frame raises `RemoteError` before any state
changes.

State: which links are up or full; reported by the driver, safe to lose.
"""

from collections import deque
from collections.abc import Mapping

import msgspec

from anabranch.core.contract import Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import Outcome
from anabranch.core.routing.overlay import check_tick
from anabranch.model.errors import RemoteError
from anabranch.model.frames import LinkFrame
from anabranch.model.limits import Limits
from anabranch.model.mesh_frames import (
    Advertise,
    Bind,
    Bound,
    Branches,
    Copies,
    Routes,
    Seek,
    Target,
)
from anabranch.model.network import Network


class NetworkDistances:
    """Distances between brokers according to the network file.

    Routes learned from neighbours are better, because they reflect which links are up. These
    serve a broker that has learned nothing yet or has lost its path. They are real, so
    they can stand in for learned ones: every hop to a nearer neighbour gets nearer.

    Immutable; the distances to an edge are computed on first use.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._distances: dict[str, dict[str, int]] = {}

    def to(self, edge: str) -> Mapping[str, int]:
        """Broker → its number of hops to an edge."""
        known = self._distances.get(edge)
        if known is None:
            known = self._distances[edge] = {edge: 0}
            pending = deque([edge])
            while pending:
                broker = pending.popleft()
                for near in self._network.links_of(broker):
                    if near not in known:
                        known[near] = known[broker] + 1
                        pending.append(near)
        return known


class MeshCounters(msgspec.Struct):
    """Counters since the broker started; they only increase."""

    routes_sent: int = 0
    seeks_sent: int = 0
    advertisements_sent: int = 0
    branches_sent: int = 0
    binds_sent: int = 0
    copies_sent: int = 0
    data_sent: int = 0
    #: Targets of this broker's stream without an available path.
    targets_unsent: int = 0
    #: Targets of forwarded copies for which no neighbour was nearer.
    targets_dropped: int = 0
    #: Targets that left the tree of their copy.
    targets_moved: int = 0
    #: Copies that exceeded one hop per broker; stays 0 if routing is correct.
    hop_bound_fired: int = 0
    #: Events matched against the index.
    matches: int = 0
    #: Of these, events sent to more edges than necessary because checking all undecided filters
    #: would have exceeded the work of one step.
    matches_assumed: int = 0
    #: Events sent unfiltered because the edge's interest was not known well enough.
    data_unfiltered: int = 0
    #: Carried messages and bindings without an available path.
    carries_dropped: int = 0
    #: Conjunctions whose comparison with an origin's advertisements was deferred.
    comparisons_put_off: int = 0
    #: Times that this origin's advertisements became too many, or too long, to announce singly.
    advertisements_coarse: int = 0
    #: Times that the interest for an origin became too large for a frame.
    bindings_coarse: int = 0
    #: Times that the interest of an edge became too large to index.
    wishes_coarse: int = 0

    def count(self, frame: LinkFrame) -> None:
        if isinstance(frame, Copies):
            self.copies_sent += 1
            self.data_sent += len(frame.data)
        elif isinstance(frame, Branches):
            self.branches_sent += 1
        elif isinstance(frame, Bind):
            self.binds_sent += 1
        elif isinstance(frame, Routes):
            self.routes_sent += 1
        elif isinstance(frame, Advertise):
            self.advertisements_sent += 1
        elif isinstance(frame, Seek):
            self.seeks_sent += 1

    def as_dict(self) -> dict[str, int]:
        return msgspec.structs.asdict(self)


#: Upper bound of all distances.
DISTANCE_MAX = 65_535


class MeshState:
    """State shared by all parts of a mesh router."""

    def __init__(self, name: str, network: Network, options: Options, limits: Limits) -> None:
        self.name = name
        self.edges = frozenset(network.edges)
        self.brokers = frozenset(network.brokers)
        self.distances = NetworkDistances(network)
        self.options = options
        self.limits = limits
        self.counters = MeshCounters()
        #: Broker → whether its link is full; contains only links that are up.
        self.links: dict[str, bool] = {}
        #: Outcomes for the broker, in order.
        self._outcomes: list[Outcome] = []

    def link_up(self, peer: str) -> None:
        self.links[peer] = False

    def link_down(self, peer: str) -> None:
        self.links.pop(peer, None)

    def link_full(self, peer: str, full: bool) -> None:
        if peer in self.links:
            self.links[peer] = full

    def send(self, peer: str, frame: LinkFrame) -> None:
        self.counters.count(frame)
        self.emit(Send(peer, frame))

    def emit(self, *outcomes: Outcome) -> None:
        self._outcomes += outcomes

    def send_all(self, frame: LinkFrame, but: str = "") -> None:
        """Send to every neighbour but one."""
        for peer in self.links:
            if peer != but:
                self.send(peer, frame)

    def take_outcomes(self) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def nearest_neighbour(self, edge: str, limit: int, came_from: str) -> tuple[str, int]:
        """The usable neighbour nearest to an edge by the network file, and its distance, if that is
        below a limit; "" if there is none."""
        distances = self.distances.to(edge)
        near = [
            (distances[peer], peer)
            for peer, is_full in self.links.items()
            if not is_full and peer != came_from and distances.get(peer, limit) < limit
        ]
        distance, peer = min(near, default=(0, ""))
        return peer, distance

    def check_edge(self, peer: str, name: str) -> None:
        """Raise `RemoteError` unless a name in a neighbour's frame is an edge."""
        if name not in self.edges:
            raise RemoteError(f"{peer!r} names {name!r}, which is not an edge of this network")

    def check_broker(self, peer: str, name: str) -> None:
        """Raise `RemoteError` unless a name in a neighbour's frame is a broker."""
        if name not in self.brokers:
            raise RemoteError(f"{peer!r} names {name!r}, which is not a broker of this network")


def check_copies(shared: MeshState, peer: str, frame: Copies) -> None:
    """Raise `RemoteError` unless these copies are possible."""
    shared.check_edge(peer, frame.stream)
    for tick in (frame.last, frame.head, *(hole.last for hole in frame.withheld)):
        check_tick(peer, tick)
    before = 0
    for datum in frame.data:
        if not before < datum.tick <= frame.last:
            raise RemoteError(
                f"{peer!r} sends tick {datum.tick} after {before}, up to {frame.last}"
            )
        before = datum.tick
    if any(hole.last < hole.first for hole in frame.withheld):
        raise RemoteError(f"{peer!r} sends a withheld range that ends before it begins")
    for target in frame.targets:
        shared.check_edge(peer, target.edge)
        _check_target(peer, frame, target)


def _check_target(peer: str, frame: Copies, target: Target) -> None:
    if target.first > frame.last:
        raise RemoteError(f"{peer!r} sends the empty range {target.first} to {frame.last}")
    places = target.gets(len(frame.data))
    if any(place >= len(frame.data) for place in places):
        raise RemoteError(f"{peer!r} assigns {target.edge!r} data that the frame does not contain")
    if places:
        first = frame.data[min(places)].tick
        if not 0 < target.first <= first:
            raise RemoteError(
                f"{peer!r} assigns {target.edge!r} tick {first}, before {target.first}"
            )


def check_bind(shared: MeshState, peer: str, frame: Bind) -> None:
    """Raise `RemoteError` unless this binding is possible."""
    shared.check_edge(peer, frame.edge)
    for binding in frame.bindings:
        shared.check_edge(peer, binding.origin)
    bounds: list[Bound] = [*frame.plus, *frame.minus]
    if any(place >= len(frame.bindings) for bound in bounds for place in bound.bindings):
        raise RemoteError(f"{peer!r} binds interest to an origin that the frame does not name")
