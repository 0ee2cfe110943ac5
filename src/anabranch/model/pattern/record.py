"""What a join point consists of when it is not active: on disk, and on its way to another broker.

Little: which pattern, from where on it counts, and up to when all matches are reported. The events
and the matches themselves are in logs; a join point that starts reads them again.

These are values; they keep no state.
"""

from typing import Annotated, Literal

import msgspec

from anabranch.model.frame_parts import (
    ITEMS_MAX,
    Name,
    OptionalName,
    Part,
    Position,
    Text,
    Ticks,
)
from anabranch.model.header import Count, Timestamp
from anabranch.model.values import INT_MIN
from anabranch.model.version import NOTHING, Version

#: Where a pattern is detected: at the broker where it was defined; where the ways to its publishers
#: part; or where the model of costs says that it is cheapest.
Placement = Literal["simple", "topology", "cost"]


class Start(Part, frozen=True):
    """From where on the events of one stream count."""

    tick: Position
    #: Only events after this time: matches up to then were reported when the stream came.
    since_ns: Timestamp


class PointRecord(Part, frozen=True):
    """One join point. See the top of this module."""

    id: Name
    #: The pattern.
    text: Text
    placement: Placement = "simple"
    #: It is dropped if nobody asks for it for this long; 0: it stays.
    lasts_s: Count = 0
    #: Nothing is reported before the own origin knows this edge's interest in this version: whoever
    #: subscribed there before it was defined gets everything.
    edge: OptionalName = ""
    version: Version = NOTHING
    #: Grows with every start, here or elsewhere: the publisher's incarnation.
    incarnation: Count = 0
    #: How often it was moved.
    moves: Count = 0
    #: All matches that were final before this time are reported, and in logs.
    reported_ns: Timestamp = INT_MIN
    starts: Annotated[dict[Name, Start], msgspec.Meta(max_length=ITEMS_MAX)] = msgspec.field(
        default_factory=dict
    )
    #: Stream → it goes on after this tick. Empty as long as it was never elsewhere.
    ticks: Ticks = msgspec.field(default_factory=dict)
    #: Stream → there may be notifications up to this tick.
    reports: Ticks = msgspec.field(default_factory=dict)
    #: The broker that it came from, until that has forgotten it.
    came_from: OptionalName = ""
    #: The broker that it goes to: it is not active here any more.
    goes_to: OptionalName = ""
    #: Nobody wants it any more.
    is_over: bool = False
    #: It has its place by topology, for good.
    is_placed: bool = False
    #: How often it found a better place lately; looks that find none count down.
    restless: Count = 0
    #: The client that defined it; all its patterns share a rate.
    client: OptionalName = ""
