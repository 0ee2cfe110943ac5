"""Frames of mesh routing: trees, advertisements, branches, interest, ticks with targets, loads.

How they are used is in `core.routing.mesh`. The rules of `frame_parts` hold.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from anabranch.model.event import Count
from anabranch.model.frame_parts import (
    ITEMS_MAX,
    Data,
    Frame,
    Holes,
    Name,
    Nanoseconds,
    Part,
    Position,
    Text,
)
from anabranch.model.statistics import EXCERPT_BYTES_MAX
from anabranch.model.version import Vector, Version

#: Of the advertisements of an origin: its life, and how often they changed in it.
Edition = Version
Distance = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Places = Annotated[list[Count], msgspec.Meta(max_length=ITEMS_MAX)]
#: Ten seconds at most: nobody who says more for one message is believed.
Moment = Annotated[int, msgspec.Meta(ge=0, le=10_000_000_000)]


class TreeId(Part, frozen=True):
    """The name of a tree that advertisements built."""

    origin: Name
    life: Count
    number: Count


class Route(Part, frozen=True):
    """How far the sender is from the root of a tree, as of a wave that the root sent out."""

    tree: TreeId
    wave: Count
    distance: Distance


class Advertised(Part, frozen=True):
    """One advertisement: a filter, and the number of its tree."""

    number: Count
    text: Text
    tree: Count


class Routes(Frame, frozen=True, tag=10):
    """The sender's own routes."""

    routes: Annotated[list[Route], msgspec.Meta(max_length=ITEMS_MAX)]


class Seek(Frame, frozen=True, tag=11):
    """Somebody lost the way to these roots and wants routes of this wave or a later one."""

    source: Name
    wanted: Annotated[list[tuple[TreeId, Count]], msgspec.Meta(max_length=ITEMS_MAX)]


class Advertise(Frame, frozen=True, tag=12):
    """The advertisements of an origin changed, against the edition before."""

    origin: Name
    edition: Edition
    plus: Annotated[list[Advertised], msgspec.Meta(max_length=ITEMS_MAX)]
    minus: Places
    #: These are all there are, whatever was known.
    is_whole: bool = False
    #: Of those that are whole: what is known of the origin's stream (`statistics_excerpt`).
    statistics: Annotated[bytes, msgspec.Meta(max_length=EXCERPT_BYTES_MAX)] = b""


class Editions(Frame, frozen=True, tag=13):
    """The advertisements that the sender knows; whoever knows later ones tells them."""

    known: Vector
    #: It asks about these only.
    is_question: bool = False


class Branches(Frame, frozen=True, tag=14):
    """Edges that are behind the sender on a tree, and how far from it; −1: not any more."""

    tree: TreeId
    edges: Annotated[
        dict[Name, Annotated[int, msgspec.Meta(ge=-1, le=65_535)]],
        msgspec.Meta(max_length=ITEMS_MAX),
    ]
    is_whole: bool = False


class Binding(Part, frozen=True):
    """What an edge knows of one origin, and what it counts on that the origin knows of it."""

    origin: Name
    #: The advertisements that were considered.
    edition: Edition
    #: What the changes are against; with `is_whole`, against nothing.
    base: Version
    base_edition: Edition
    is_whole: bool


class Bound(Part, frozen=True):
    """Some conjunctions of one filter, and the places of the bindings they are meant for."""

    text: Text
    places: Places
    bindings: Places


Bounds = Annotated[list[Bound], msgspec.Meta(max_length=ITEMS_MAX)]


class Bind(Frame, frozen=True, tag=15):
    """The interest of an edge, for the origins whose advertisements it meets."""

    edge: Name
    version: Version
    bindings: Annotated[list[Binding], msgspec.Meta(max_length=ITEMS_MAX)]
    plus: Bounds
    minus: Bounds
    hops: Distance


class Target(Part, frozen=True):
    """An edge that a copy is for."""

    edge: Name
    #: The version of its interest that the copy is good for.
    version: Version
    #: From the receiver of the frame to the edge.
    distance: Distance
    #: The copy tells of all ticks from here to its last; 0: of none.
    first: Position
    #: Which of the data the edge gets, unless it gets all. The other ticks are silent.
    places: Places
    gets_all: bool = False

    def gets(self, count: int) -> Sequence[int]:
        """The places of what it gets, of so many."""
        return range(count) if self.gets_all else self.places


class LoadIs(Frame, frozen=True, tag=17):
    """How long a message waits at the sender, and how long it takes there, in nanoseconds."""

    queue_ns: Moment
    match_ns: Moment


class Copies(Frame, frozen=True, tag=16):
    """Ticks of a stream, on their way to some edges."""

    stream: Name
    tree: TreeId
    hops: Distance
    targets: Annotated[list[Target], msgspec.Meta(max_length=ITEMS_MAX)]
    last: Position
    data: Data
    withheld: Holes = []
    head: Position = 0
    time_ns: Nanoseconds = 0
