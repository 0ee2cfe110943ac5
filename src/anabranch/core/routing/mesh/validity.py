"""What a mesh router can tell about a frame before it believes any of it.

A decoder has bounded every number and list. What is left to check is whether the frame can be: do
the names exist, do places point at something, are ticks in order. Whatever cannot be is a
`RemoteError`, and nothing has changed yet.
"""

from anabranch.core.routing.mesh.surroundings import Surroundings
from anabranch.core.routing.validity import check_tick
from anabranch.model.errors import RemoteError
from anabranch.model.mesh_frames import Bind, Bound, Copies, Target


def check_copies(around: Surroundings, peer: str, frame: Copies) -> None:
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


def check_bind(around: Surroundings, peer: str, frame: Bind) -> None:
    """Whether this interest can be on its way here."""
    around.check_edge(peer, frame.edge)
    for binding in frame.bindings:
        around.check_edge(peer, binding.origin)
    bounds: list[Bound] = [*frame.plus, *frame.minus]
    if any(place >= len(frame.bindings) for bound in bounds for place in bound.bindings):
        raise RemoteError(f"{peer!r} binds to an origin that is not named")
