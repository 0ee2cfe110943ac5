"""Frames of mesh routing: trees, advertisements, branches, interest, ticks with targets, loads.

`core.routing.mesh` describes their use. The rules of `frame_parts` apply.
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

#: The version of an origin's advertisements: its life, and the number of changes in it.
Edition = Version
Distance = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Places = Annotated[list[Count], msgspec.Meta(max_length=ITEMS_MAX)]
#: At most ten seconds: a longer time for one message is not credible.
Moment = Annotated[int, msgspec.Meta(ge=0, le=10_000_000_000)]


class TreeId(Part, frozen=True):
    """The id of a tree built by advertisements."""

    origin: Name
    life: Count
    number: Count


class Route(Part, frozen=True):
    """The sender's distance from the root of a tree, as of a wave sent by the root."""

    tree: TreeId
    wave: Count
    distance: Distance


class Advertised(Part, frozen=True):
    """An advertisement: a filter, and the number of its tree."""

    number: Count
    text: Text
    tree: Count


class Routes(Frame, frozen=True, tag=10):
    """The sender's own routes."""

    routes: Annotated[list[Route], msgspec.Meta(max_length=ITEMS_MAX)]


class Seek(Frame, frozen=True, tag=11):
    """A broker lost its route to these roots and requests routes of this wave or a later one."""

    source: Name
    wanted: Annotated[list[tuple[TreeId, Count]], msgspec.Meta(max_length=ITEMS_MAX)]


class Advertise(Frame, frozen=True, tag=12):
    """A change of an origin's advertisements, relative to the previous edition."""

    origin: Name
    edition: Edition
    plus: Annotated[list[Advertised], msgspec.Meta(max_length=ITEMS_MAX)]
    minus: Places
    #: The advertisements are complete and replace the receiver's state.
    is_whole: bool = False
    #: If complete: the statistics of the origin's stream (`statistics.excerpt_of`).
    statistics: Annotated[bytes, msgspec.Meta(max_length=EXCERPT_BYTES_MAX)] = b""


class Editions(Frame, frozen=True, tag=13):
    """The sender's editions of advertisements; receivers with later ones send them."""

    known: Vector
    #: The request is for these origins only.
    is_question: bool = False


class Branches(Frame, frozen=True, tag=14):
    """Edges behind the sender on a tree, with their distance from it; −1: no longer."""

    tree: TreeId
    edges: Annotated[
        dict[Name, Annotated[int, msgspec.Meta(ge=-1, le=65_535)]],
        msgspec.Meta(max_length=ITEMS_MAX),
    ]
    is_whole: bool = False


class Binding(Part, frozen=True):
    """An edge's state of one origin, and the state that it assumes the origin has of the edge."""

    origin: Name
    #: The edition of the advertisements that were considered.
    edition: Edition
    #: The version that the changes are relative to; none with `is_whole`.
    base: Version
    base_edition: Edition
    is_whole: bool


class Bound(Part, frozen=True):
    """Some conjunctions of one filter, and the indexes of the bindings they belong to."""

    text: Text
    places: Places
    bindings: Places


Bounds = Annotated[list[Bound], msgspec.Meta(max_length=ITEMS_MAX)]


class Bind(Frame, frozen=True, tag=15):
    """The interest of an edge, for the origins whose advertisements it intersects."""

    edge: Name
    version: Version
    bindings: Annotated[list[Binding], msgspec.Meta(max_length=ITEMS_MAX)]
    plus: Bounds
    minus: Bounds
    hops: Distance


class Target(Part, frozen=True):
    """An edge to which a copy is addressed."""

    edge: Name
    #: The version of its interest for which the copy is valid.
    version: Version
    #: The distance from the receiver of the frame to the edge.
    distance: Distance
    #: The copy covers all ticks from here to its last; 0: none.
    first: Position
    #: The indexes of the data for this edge, unless it gets all. The other ticks are silent.
    places: Places
    gets_all: bool = False

    def gets(self, count: int) -> Sequence[int]:
        """Return the indexes of the data for this edge, given their number."""
        return range(count) if self.gets_all else self.places


class LoadIs(Frame, frozen=True, tag=17):
    """The queueing and processing time of a message at the sender, in nanoseconds."""

    queue_ns: Moment
    match_ns: Moment


class Copies(Frame, frozen=True, tag=16):
    """Ticks of a stream, in transit to some edges."""

    stream: Name
    tree: TreeId
    hops: Distance
    targets: Annotated[list[Target], msgspec.Meta(max_length=ITEMS_MAX)]
    last: Position
    data: Data
    withheld: Holes = []
    head: Position = 0
    time_ns: Nanoseconds = 0
