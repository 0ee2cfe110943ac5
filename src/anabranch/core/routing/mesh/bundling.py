"""Bundling: bindings for several origins in one frame, and apart again where their ways part.

Conjunctions that are for several origins are in a frame once, with the places of their bindings.
This module keeps no state.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from anabranch.core.routing.conjuncts import Conjunct, fits, unpack
from anabranch.core.routing.mesh.surroundings import Surroundings
from anabranch.core.routing.mesh.trees import Trees
from anabranch.core.routing.mesh.wishes import Key
from anabranch.model.frame_parts import Conjuncts
from anabranch.model.limits import Limits
from anabranch.model.mesh_frames import Bind, Bound

#: Conjunctions, and the places of the bindings that they are for.
Parts = dict[Key, tuple[Conjunct, list[int]]]


def spread(
    around: Surroundings, trees: Trees, frame: Bind, meant: Iterable[int] | None = None
) -> None:
    """Send bindings on, all or some, in one frame to each next hop."""
    by_hop: dict[str, list[int]] = {}
    for place in range(len(frame.bindings)) if meant is None else meant:
        hop = trees.way_to(frame.bindings[place].origin)
        if hop is None or frame.hops == 0:
            around.counters.carries_dropped += 1
        else:
            by_hop.setdefault(hop, []).append(place)
    for hop, places in by_hop.items():
        around.send(hop, replace(some_of(frame, places), hops=frame.hops - 1))


def some_of(frame: Bind, places: Sequence[int]) -> Bind:
    """What of a frame is meant for some of its bindings."""
    if len(places) == len(frame.bindings):
        return frame
    renumbered = {old: new for new, old in enumerate(places)}
    return Bind(
        frame.edge,
        frame.version,
        [frame.bindings[place] for place in places],
        _for_some(frame.plus, renumbered),
        _for_some(frame.minus, renumbered),
        frame.hops,
    )


def _for_some(bounds: Iterable[Bound], renumbered: dict[int, int]) -> list[Bound]:
    found = []
    for bound in bounds:
        meant = [renumbered[place] for place in bound.bindings if place in renumbered]
        if meant:
            found.append(Bound(bound.text, bound.places, meant))
    return found


def meant_for(bounds: Iterable[Bound], place: int, limits: Limits) -> list[Conjunct]:
    """The conjunctions that are meant for one binding."""
    items = [Conjuncts(b.text, tuple(b.places)) for b in bounds if place in b.bindings]
    return unpack(items, limits)


def note_parts(parts: Parts, conjuncts: Iterable[Conjunct], place: int) -> None:
    """These are for the binding at this place, too."""
    for conjunct in conjuncts:
        key = (conjunct.text, conjunct.place)
        parts.setdefault(key, (conjunct, []))[1].append(place)


def packed(parts: Parts) -> list[Bound]:
    """Conjunctions of one filter for the same bindings travel together."""
    grouped: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for conjunct, bindings in parts.values():
        grouped.setdefault((conjunct.text, tuple(bindings)), []).append(conjunct.place)
    return [Bound(text, places, list(bindings)) for (text, bindings), places in grouped.items()]


def fits_in_frame(frame: Bind, limits: Limits) -> bool:
    """Whether a frame has room for all this: places of bindings count like those of filters."""
    bounds = (*frame.plus, *frame.minus)
    return fits([Conjuncts(b.text, (*b.places, *b.bindings)) for b in bounds], limits)
