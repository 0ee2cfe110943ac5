"""What the parts of one mesh router share: the links, what goes out, and what was done so far.

State: which links are up, and which take no more for the time being; told by the driver, safe to
lose.
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
    """The chart: how far brokers are from each other by the network's own file.

    What a broker learned from its neighbours is better: it knows which links are up. The chart is
    for a broker that has learned nothing yet, or has lost its way. Its distances are true, so they
    may stand where learned ones do: whoever goes to a neighbour that is nearer gets nearer.

    Immutable; the distances to an edge are computed when they are asked for first.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._distances: dict[str, dict[str, int]] = {}

    def to(self, edge: str) -> Mapping[str, int]:
        """Broker → how many links it is from an edge."""
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


# What a mesh router did: frames sent by kind, copies and events on their way, and what was lost.
#
# Numbers only grow; whoever wants a rate reads twice.


class MeshCounters(msgspec.Struct):
    """Counts since the broker started."""

    routes_sent: int = 0
    seeks_sent: int = 0
    advertisements_sent: int = 0
    branches_sent: int = 0
    binds_sent: int = 0
    copies_sent: int = 0
    data_sent: int = 0
    #: Targets of the own stream to which no way was open.
    targets_unsent: int = 0
    #: Targets of copies on their way for which no neighbour was nearer.
    targets_dropped: int = 0
    #: Targets that left the tree of their copy.
    targets_moved: int = 0
    #: Copies that had taken more links than there are brokers; never, if all is right.
    hop_bound_fired: int = 0
    #: Events looked up in an index.
    matches: int = 0
    #: Those of them that were sent to more edges than must be, because too many filters would have
    #: had to be checked in one step.
    matches_assumed: int = 0
    #: Events sent to an edge whose interest was not known well enough.
    data_unfiltered: int = 0
    #: Carried messages and bindings for which there was no way.
    carries_dropped: int = 0
    #: Conjunctions that could not be compared with an origin's advertisements at once.
    comparisons_put_off: int = 0
    #: How often the own advertisements began to be too many, or too long, to be told one by one,
    advertisements_coarse: int = 0
    #: interest for an origin too much for a frame,
    bindings_coarse: int = 0
    #: and interest of an edge too much to know.
    wishes_coarse: int = 0

    def count(self, frame: LinkFrame) -> None:
        """One more frame goes out."""
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
        """All of them by name."""
        return msgspec.structs.asdict(self)


#: Nobody is farther away than this.
DISTANCE_MAX = 65_535


class MeshState:
    """Shared by all parts of a mesh router."""

    def __init__(self, name: str, network: Network, options: Options, limits: Limits) -> None:
        self.name = name
        self.edges = frozenset(network.edges)
        self.brokers = frozenset(network.brokers)
        self.chart = NetworkDistances(network)
        self.options = options
        self.limits = limits
        self.counters = MeshCounters()
        #: Broker → whether its link takes no more for the time being; only links that are up.
        self.links: dict[str, bool] = {}
        #: What goes out, in order.
        self.out: list[Outcome] = []

    def send(self, peer: str, frame: LinkFrame) -> None:
        """Send to a neighbour."""
        self.counters.count(frame)
        self.out.append(Send(peer, frame))

    def tell_all(self, frame: LinkFrame, but: str = "") -> None:
        """Send to every neighbour but one."""
        for peer in self.links:
            if peer != but:
                self.send(peer, frame)

    def take_out(self) -> list[Outcome]:
        """What goes out; nothing is left."""
        out, self.out = self.out, []
        return out

    def by_chart(self, edge: str, limit: int, came_from: str) -> tuple[str, int]:
        """The neighbour that is nearest to an edge, and its distance, if that is below a limit; ""
        if there is none that can be sent to."""
        distances = self.chart.to(edge)
        near = [
            (distances[peer], peer)
            for peer, is_full in self.links.items()
            if not is_full and peer != came_from and distances.get(peer, limit) < limit
        ]
        distance, peer = min(near, default=(0, ""))
        return peer, distance

    def check_edge(self, peer: str, name: str) -> None:
        """A name that a neighbour tells of must be an edge's."""
        if name not in self.edges:
            raise RemoteError(f"{peer!r} tells of {name!r}, which is no edge of this network")


# What a mesh router can tell about a frame before it believes any of it.
#
# A decoder has bounded every number and list. What is left to check is whether the frame can be: do
# the names exist, do places point at something, are ticks in order. Whatever cannot be is a
# `RemoteError`, and nothing has changed yet.


def check_copies(around: MeshState, peer: str, frame: Copies) -> None:
    """Whether these copies can be on their way here."""
    around.check_edge(peer, frame.stream)
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
        raise RemoteError(f"{peer!r} withholds ticks that end before they begin")
    for target in frame.targets:
        around.check_edge(peer, target.edge)
        _check_target(peer, frame, target)


def _check_target(peer: str, frame: Copies, target: Target) -> None:
    if target.first > frame.last:
        raise RemoteError(f"{peer!r} tells of ticks {target.first} to {frame.last}")
    places = target.gets(len(frame.data))
    if any(place >= len(frame.data) for place in places):
        raise RemoteError(f"{peer!r} gives {target.edge!r} data that is not there")
    if places:
        first = frame.data[min(places)].tick
        if not 0 < target.first <= first:
            raise RemoteError(f"{peer!r} gives {target.edge!r} tick {first}, before {target.first}")


def check_bind(around: MeshState, peer: str, frame: Bind) -> None:
    """Whether this interest can be on its way here."""
    around.check_edge(peer, frame.edge)
    for binding in frame.bindings:
        around.check_edge(peer, binding.origin)
    bounds: list[Bound] = [*frame.plus, *frame.minus]
    if any(place >= len(frame.bindings) for bound in bounds for place in bound.bindings):
        raise RemoteError(f"{peer!r} binds to an origin that is not named")
