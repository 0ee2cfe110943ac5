"""What a router can tell about a frame before it believes any of it.

A decoder has bounded every number and list. What is left to check is whether the frame can be: do
the names exist, is the sender where such a frame comes from, are ranges in order. Whatever cannot
be is a `RemoteError`, and nothing has changed yet.
"""

from anabranch.core.routing.overlay import Overlay
from anabranch.model.errors import RemoteError
from anabranch.model.frames import Knowledge
from anabranch.model.network import Network


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


def _check_target(network: Network, peer: str, frame: Knowledge) -> None:
    site, target = frame.site, frame.target
    back = network.next_site(site, frame.stream)
    if target != site and network.next_site(site, target) == back:
        raise RemoteError(f"{peer!r} sends ticks for {target!r} the wrong way, to site {site!r}")


def _check_ticks(peer: str, frame: Knowledge) -> None:
    """Ranges are ranges, and no tick is older than the mark whose vector it has."""
    mark = frame.mark
    for datum in frame.data:
        if datum.tick < mark:
            raise RemoteError(f"{peer!r} puts tick {datum.tick} after mark {mark}")
    for first, last in frame.silent:
        if last < first or first < mark:
            raise RemoteError(f"{peer!r} says {first} to {last} are silent, with mark {mark}")
    for hole in frame.withheld:
        if hole.last < hole.first:
            raise RemoteError(f"{peer!r} withholds {hole.first} to {hole.last}")
