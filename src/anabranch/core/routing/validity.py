"""What a router can tell about a frame before it believes any of it.

A decoder has bounded every number and list. What is left to check is whether the frame can be: do
the names exist, is the sender where such a frame comes from, are ranges in order. Whatever cannot
be is a `RemoteError`, and nothing has changed yet.
"""

from anabranch.core.routing.overlay import Overlay
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import ITEMS_MAX
from anabranch.model.frames import Knowledge
from anabranch.model.network import Network

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
