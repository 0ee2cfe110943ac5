"""The overlay: which broker of a site to send to, and how to get to any broker.

Routing decides about sites; this module picks the broker. A site's brokers are interchangeable, so
every one of them will do, whatever it knows. Rules:

1. A broker that is itself in the next site hands over to itself, and no link is used.
2. Otherwise the choice is a rendezvous: every broker of the site is ranked by a checksum over a key
   and its name, and the best ranked whose link is up and not full is taken. All senders that see
   the same links choose alike; different keys spread over the site; when a broker goes, only what
   went to it moves.
3. With no broker to send to, nothing is sent. Whoever lacks something asks for it.
4. Messages to a broker take the tree from the nearest of our own sites. Where the next site cannot
   be reached, a broker of our own site may do better; the bound on hops ends what goes in circles.

State: which links are up or full; told by the driver, safe to lose.

Prior art: the routing substrate that Zhao 2006, §2.2 and §3.1.1, assumes; rendezvous hashing.
"""

from zlib import crc32

from anabranch.core.contract import Note, Send
from anabranch.core.routing.contract import CarriedMessage, Outcome
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import ITEMS_MAX
from anabranch.model.frames import AnyCarried, Carry, Knowledge
from anabranch.model.network import Network

#: Links a carried message may take beyond the shortest way.
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
        #: Leaves beyond the network's own, with the one broker that each has.
        self.leaves: dict[str, str] = {}
        #: Broker → whether its link takes no more for the time being; only links that are up.
        self._links: dict[str, bool] = {}
        #: (site, key) → its brokers, best first.
        self._ranks: dict[tuple[str, str], tuple[str, ...]] = {}

    # -- links ------------------------------------------------------------------------------------

    def link_up(self, peer: str) -> None:
        """There is a link."""
        self._links[peer] = False

    def link_down(self, peer: str) -> None:
        """There is none any more."""
        self._links.pop(peer, None)

    def link_full(self, peer: str, full: bool) -> bool:
        """A link is full, or not any more; False if there is no such link."""
        if peer not in self._links:
            return False
        self._links[peer] = full
        return True

    def is_usable(self, peer: str) -> bool:
        """Whether something can be sent there now."""
        return not self._links.get(peer, True)

    # -- choices ----------------------------------------------------------------------------------

    def members(self, site: str) -> tuple[str, ...]:
        """The brokers of a site, or of a leaf."""
        return (self.leaves[site],) if site in self.leaves else self.network.members(site)

    def is_own(self, site: str) -> bool:
        """Whether this broker is in that site."""
        return site in self._own_sites

    def choose(self, site: str, key: str) -> str | None:
        """The broker of a site to send to; this broker itself if it is there."""
        if site in self._own_sites:
            return self.name
        return self._best(site, key)

    def agreed(self, site: str, turn: int = 0) -> str | None:
        """The broker of a site that all senders choose, even if this one is there itself; the
        next one at every further turn."""
        members = self._ranked(site, site)
        usable = [b for b in members if b == self.name or not self._links.get(b, True)]
        return usable[turn % len(usable)] if usable else None

    def peers(self, site: str) -> list[str]:
        """The other brokers of an own site that can be reached."""
        return [b for b in self.network.members(site) if not self._links.get(b, True)]

    def _best(self, site: str, key: str) -> str | None:
        for broker in self._ranked(site, key):
            if not self._links.get(broker, True):
                return broker
        return None

    def _ranked(self, site: str, key: str) -> tuple[str, ...]:
        ranked = self._ranks.get((site, key))
        if ranked is None:
            members = self.members(site)
            if len(members) > 1:
                members = tuple(sorted(members, key=lambda broker: (_weight(key, broker), broker)))
            self._ranks[site, key] = ranked = members
        return ranked

    # -- carrying ---------------------------------------------------------------------------------

    def carry(self, target: str, content: AnyCarried) -> list[Outcome]:
        """Begin to take something to a broker."""
        if target == self.name:
            return [CarriedMessage(self.name, content)]
        way = self._way(target)
        if way is None:
            return [Note("warning", f"there is no broker {target!r} to carry anything to")]
        hops = min(way[2] + _DETOUR_HOPS, _HOPS_MAX)
        return self._pass_on(Carry(self.name, target, hops, content), "")

    def carried(self, peer: str, frame: Carry) -> list[Outcome]:
        """Something came that is carried: deliver it, or pass it on."""
        for name in (frame.source, frame.target):
            if name not in self.brokers:
                raise RemoteError(f"{peer!r} carries something for or from {name!r}, an unknown")
        if frame.target == self.name:
            return [CarriedMessage(frame.source, frame.content)]
        if frame.hops == 0:
            return [_dropped(frame, "it has taken too many hops")]
        frame = Carry(frame.source, frame.target, frame.hops - 1, frame.content)
        return self._pass_on(frame, peer)

    def _pass_on(self, frame: Carry, came_from: str) -> list[Outcome]:
        hop = self._next_hop(frame.target, came_from)
        if hop is None:
            return [_dropped(frame, "no link leads there")]
        return [Send(hop, frame)]

    def _next_hop(self, target: str, came_from: str) -> str | None:
        if self.is_usable(target):
            return target
        way = self._way(target)
        if way is None:
            return None
        own_site, next_site, _ = way
        return self._best(next_site, target) or next(
            (b for b in self._ranked(own_site, target) if b != came_from and self.is_usable(b)),
            None,
        )

    def _way(self, target: str) -> tuple[str, str, int] | None:
        """(own site, next site, hops) of the shortest way to a broker; None if it is unknown."""
        network = self.network
        if target not in self.brokers:
            return None
        ends = [(mine, theirs) for mine in self._own_sites for theirs in network.sites_of(target)]
        mine, theirs = min(ends, key=lambda pair: network.distance(*pair))
        hops = network.distance(mine, theirs)
        return mine, network.next_site(mine, theirs) if hops else mine, max(hops, 1)


def _dropped(frame: Carry, why: str) -> Note:
    kind = type(frame.content).__name__
    return Note("info", f"a {kind} from {frame.source!r} to {frame.target!r} is dropped: {why}")


def _weight(key: str, broker: str) -> int:
    """A number that depends on both in no simple way: a CRC alone would favour some brokers."""
    mixed = crc32(f"{key}/{broker}".encode())
    mixed = ((mixed ^ (mixed >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return mixed ^ (mixed >> 16)


# What a router can tell about a frame before it believes any of it.
#
# A decoder has bounded every number and list. What is left to check is whether the frame can be: do
# the names exist, is the sender where such a frame comes from, are ranges in order. Whatever cannot
# be is a `RemoteError`, and nothing has changed yet.


#: Beyond any tick a stream will have. What follows from a tick (the next one, the one that is asked
#: for) must fit into a frame too, or the neighbour that gets it would cut an innocent link.
TICK_MAX = 1 << 61
#: Ticks and ranges of one frame. What is dropped becomes silence, which joins silence that waits.
_PARTS_MAX = ITEMS_MAX // 2


def check_knowledge(overlay: Overlay, peer: str, frame: Knowledge) -> None:
    """Whether this knowledge can come from that broker to this one."""
    stream, site, target = frame.stream, frame.site, frame.target
    network = overlay.network
    if stream not in overlay.edges:
        raise RemoteError(f"{peer!r} knows ticks of {stream!r}, which is no stream")
    if site == stream or not overlay.is_own(site):
        raise RemoteError(f"{peer!r} sends ticks of {stream!r} to site {site!r}, the wrong one")
    if peer not in network.members(network.next_site(site, stream)):
        raise RemoteError(f"{peer!r} is not where ticks of {stream!r} come from to site {site!r}")
    if target:
        if target not in overlay.edges:
            raise RemoteError(f"{peer!r} sends ticks for {target!r}, which is no edge")
        _check_target(network, peer, frame)
    _check_ticks(peer, frame)


def check_upstream(overlay: Overlay, peer: str, stream: str) -> None:
    """Whether anything about ticks of this stream can come from that broker."""
    network = overlay.network
    sites = [site for site in network.sites_of(overlay.name) if site != stream]
    if not any(peer in network.members(network.next_site(site, stream)) for site in sites):
        raise RemoteError(f"{peer!r} is not where ticks of {stream!r} come from")


def check_tick(peer: str, tick: int) -> None:
    """Whether there can be such a tick."""
    if tick > TICK_MAX:
        raise RemoteError(f"{peer!r} tells of tick {tick}, which no stream will have")


def _check_target(network: Network, peer: str, frame: Knowledge) -> None:
    site, target = frame.site, frame.target
    back = network.next_site(site, frame.stream)
    if target != site and network.next_site(site, target) == back:
        raise RemoteError(f"{peer!r} sends ticks for {target!r} the wrong way, to site {site!r}")


def _check_ticks(peer: str, frame: Knowledge) -> None:
    """Ranges are ranges, and no tick is older than the mark whose vector it has."""
    mark = frame.mark
    if len(frame.data) + len(frame.silent) > _PARTS_MAX:
        raise RemoteError(f"{peer!r} sends more than {_PARTS_MAX} ticks and ranges in one frame")
    ends = [datum.tick for datum in frame.data] + [last for _, last in frame.silent]
    for tick in (mark, frame.head, *ends, *(hole.last for hole in frame.withheld)):
        check_tick(peer, tick)
    for datum in frame.data:
        if datum.tick < mark:
            raise RemoteError(f"{peer!r} puts tick {datum.tick} after mark {mark}")
    for first, last in frame.silent:
        if last < first or first < mark:
            raise RemoteError(f"{peer!r} says {first} to {last} are silent, with mark {mark}")
    for hole in frame.withheld:
        if hole.last < hole.first:
            raise RemoteError(f"{peer!r} withholds {hole.first} to {hole.last}")
