"""The overlay: next-hop selection among the brokers of a site, and messages to any broker.

Routing decides about sites; this module picks the broker. The brokers of a site are
interchangeable, so any of them is a valid next hop, regardless of its state. Rules:

1. A broker that is itself a member of the next site hands frames over to itself without a link.
2. Otherwise the choice is rendezvous hashing: the brokers of the site are ranked by a hash of a key
   and their name, and the best-ranked broker whose link is up and not full wins. All senders that
   see the same links make the same choice, different keys spread over the site, and when a broker
   disconnects, only its traffic moves.
3. If no broker is usable, nothing is sent. Brokers that lack something request it.
4. Messages to a broker follow the tree from the nearest of this broker's sites. If no broker of the
   next site is reachable, another broker of this site may have a link to it; a hop limit stops
   messages that loop.

Frames are validated here too, before a router uses any part of them. The decoder has already
bounded every number and list. The remaining checks ask whether the frame is possible: the names
exist, the sender is where such a frame comes from, ranges are in order. An impossible frame raises
`RemoteError` before any state changes.

State: which links are up or full; reported by the driver, safe to lose.

Prior art: the routing substrate that Zhao 2006, §2.2 and §3.1.1, assumes; rendezvous hashing.
"""

from collections.abc import Mapping

from anabranch.core.contract import Note, Send
from anabranch.core.rendezvous import ranked
from anabranch.core.routing.contract import CarriedMessage, Outcome
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import ITEMS_MAX
from anabranch.model.frames import AnyCarried, Carry, Knowledge
from anabranch.model.network import Network

#: Hops that a carried message may take beyond the shortest path.
_DETOUR_HOPS = 4
_HOPS_MAX = 255


class Overlay:
    """The links of one broker, and its choices among them."""

    def __init__(self, name: str, network: Network) -> None:
        self.name = name
        self.network = network
        self.edges = frozenset(network.edges)
        self.brokers = frozenset(network.brokers)
        self._own_sites = network.sites_of(name)
        #: Leaf → its broker.
        self._leaves: dict[str, str] = {}
        #: Broker → whether its link is full; contains only links that are up.
        self._links: dict[str, bool] = {}
        #: (site, key) → its brokers, best first.
        self._ranks: dict[tuple[str, str], tuple[str, ...]] = {}

    def add_leaves(self, leaves: Mapping[str, str]) -> None:
        self._leaves.update(leaves)

    # -- links ------------------------------------------------------------------------------------

    def link_up(self, peer: str) -> None:
        self._links[peer] = False

    def link_down(self, peer: str) -> None:
        self._links.pop(peer, None)

    def link_full(self, peer: str, full: bool) -> bool:
        """Record whether a link is full; returns False if there is no such link."""
        if peer not in self._links:
            return False
        self._links[peer] = full
        return True

    def is_usable(self, peer: str) -> bool:
        """Whether the link to a broker is up and not full."""
        return not self._links.get(peer, True)

    # -- choices ----------------------------------------------------------------------------------

    def members(self, site: str) -> tuple[str, ...]:
        return (self._leaves[site],) if site in self._leaves else self.network.members(site)

    def is_own(self, site: str) -> bool:
        return site in self._own_sites

    def next_broker(self, site: str, key: str) -> str | None:
        """The broker of a site to send to; this broker itself if it is a member."""
        if site in self._own_sites:
            return self.name
        return self._best(site, key)

    def designated(self, site: str, turn: int = 0) -> str | None:
        """The broker of a site that all senders choose, even if this broker is a member itself.
        Each further turn yields the next broker in the ranking."""
        members = self._ranked(site, site)
        usable = [b for b in members if b == self.name or not self._links.get(b, True)]
        return usable[turn % len(usable)] if usable else None

    def reachable_members(self, site: str) -> list[str]:
        """The other, reachable brokers of one of this broker's sites."""
        return [b for b in self.network.members(site) if not self._links.get(b, True)]

    def _best(self, site: str, key: str) -> str | None:
        for broker in self._ranked(site, key):
            if not self._links.get(broker, True):
                return broker
        return None

    def _ranked(self, site: str, key: str) -> tuple[str, ...]:
        ranking = self._ranks.get((site, key))
        if ranking is None:
            members = self.members(site)
            ranking = ranked(key, members) if len(members) > 1 else members
            self._ranks[site, key] = ranking
        return ranking

    # -- carried messages --------------------------------------------------------------------------

    def carry(self, target: str, content: AnyCarried) -> list[Outcome]:
        if target == self.name:
            return [CarriedMessage(self.name, content)]
        path = self._path(target)
        if path is None:
            return [Note("warning", f"cannot carry a message to unknown broker {target!r}")]
        hops = min(path[2] + _DETOUR_HOPS, _HOPS_MAX)
        return self._pass_on(Carry(self.name, target, hops, content), "")

    def carried(self, peer: str, frame: Carry) -> list[Outcome]:
        """A carried message arrived: deliver it or pass it on."""
        for name in (frame.source, frame.target):
            if name not in self.brokers:
                raise RemoteError(f"{peer!r} carries a message for or from unknown broker {name!r}")
        if frame.target == self.name:
            return [CarriedMessage(frame.source, frame.content)]
        if frame.hops == 0:
            return [_dropped(frame, "hop limit reached")]
        frame = Carry(frame.source, frame.target, frame.hops - 1, frame.content)
        return self._pass_on(frame, peer)

    def _pass_on(self, frame: Carry, came_from: str) -> list[Outcome]:
        hop = self._next_hop(frame.target, came_from)
        if hop is None:
            return [_dropped(frame, "no usable link leads there")]
        return [Send(hop, frame)]

    def _next_hop(self, target: str, came_from: str) -> str | None:
        if self.is_usable(target):
            return target
        path = self._path(target)
        if path is None:
            return None
        own_site, next_site, _ = path
        return self._best(next_site, target) or next(
            (b for b in self._ranked(own_site, target) if b != came_from and self.is_usable(b)),
            None,
        )

    def _path(self, target: str) -> tuple[str, str, int] | None:
        """(own site, next site, hops) of the shortest path; None for an unknown broker."""
        network = self.network
        if target not in self.brokers:
            return None
        ends = [(mine, theirs) for mine in self._own_sites for theirs in network.sites_of(target)]
        mine, theirs = min(ends, key=lambda pair: network.distance(*pair))
        hops = network.distance(mine, theirs)
        return mine, network.next_site(mine, theirs) if hops else mine, max(hops, 1)


def _dropped(frame: Carry, why: str) -> Note:
    kind = type(frame.content).__name__
    return Note("info", f"dropped a {kind} from {frame.source!r} to {frame.target!r}: {why}")


#: Greater than any tick a stream reaches. Values derived from a tick (the next tick, the end of a
#: request) must fit into a frame too, or a neighbour would disconnect an innocent link.
TICK_MAX = 1 << 61
#: Ticks and ranges per frame. Dropped ticks become silence and are merged with pending silence.
_PARTS_MAX = ITEMS_MAX // 2


def check_knowledge(overlay: Overlay, peer: str, frame: Knowledge) -> None:
    """Raise `RemoteError` unless this knowledge can come from that broker."""
    stream, site, target = frame.stream, frame.site, frame.target
    network = overlay.network
    if stream not in overlay.edges:
        raise RemoteError(f"{peer!r} sends ticks of {stream!r}, which is not a stream")
    if site == stream or not overlay.is_own(site):
        raise RemoteError(f"{peer!r} sends ticks of {stream!r} to the wrong site, {site!r}")
    if peer not in network.members(network.next_site(site, stream)):
        raise RemoteError(f"{peer!r} is not upstream of site {site!r} for stream {stream!r}")
    if target:
        if target not in overlay.edges:
            raise RemoteError(f"{peer!r} sends ticks for {target!r}, which is not an edge")
        _check_target(network, peer, frame)
    _check_ticks(peer, frame)


def check_upstream(overlay: Overlay, peer: str, stream: str) -> None:
    """Raise `RemoteError` unless that broker is upstream of this one for the stream."""
    network = overlay.network
    sites = [site for site in network.sites_of(overlay.name) if site != stream]
    if not any(peer in network.members(network.next_site(site, stream)) for site in sites):
        raise RemoteError(f"{peer!r} is not upstream for stream {stream!r}")


def check_tick(peer: str, tick: int) -> None:
    """Raise `RemoteError` if a tick is out of range."""
    if tick > TICK_MAX:
        raise RemoteError(f"{peer!r} sends tick {tick}, which is out of range")


def _check_target(network: Network, peer: str, frame: Knowledge) -> None:
    site, target = frame.site, frame.target
    back = network.next_site(site, frame.stream)
    if target != site and network.next_site(site, target) == back:
        raise RemoteError(f"{peer!r} sends ticks for {target!r} the wrong way, to site {site!r}")


def _check_ticks(peer: str, frame: Knowledge) -> None:
    """Check that ranges are in order and that no tick is older than its mark."""
    mark = frame.mark
    if len(frame.data) + len(frame.silent) > _PARTS_MAX:
        raise RemoteError(f"{peer!r} sends more than {_PARTS_MAX} ticks and ranges in one frame")
    ends = [datum.tick for datum in frame.data] + [last for _, last in frame.silent]
    for tick in (mark, frame.head, *ends, *(hole.last for hole in frame.withheld)):
        check_tick(peer, tick)
    for datum in frame.data:
        if datum.tick < mark:
            raise RemoteError(f"{peer!r} sends tick {datum.tick} with the later mark {mark}")
    for first, last in frame.silent:
        if last < first or first < mark:
            raise RemoteError(f"{peer!r} sends silence {first} to {last} with mark {mark}")
    for hole in frame.withheld:
        if hole.last < hole.first:
            raise RemoteError(f"{peer!r} sends withheld range {hole.first} to {hole.last}")
