"""Frames: everything that brokers say to each other.

A frame is a value. `wire` turns it into bytes and back; the core sees values only. Bodies of events
travel as the bytes they were published in (`encoding`). Two families:

- *link frames*, between two brokers that share a link: greeting, heartbeat, knowledge about ticks,
  interest.
- *carried* contents, between any two brokers: a `Carry` frame takes them hop by hop.

What clients and their brokers say to each other is in `client_frames`.

Rules:

1. Every number is bounded by its type and every list by `ITEMS_MAX`, so that a decoder refuses
   before it allocates. What is valid beyond that (known names, ordered ranges) the core checks.
2. A range of ticks is (first, last), both inclusive, first ≤ last.
3. Fields are positional; a new field goes to the end and has a default.
"""

from typing import Annotated

import msgspec

from anabranch.model.header import Count
from anabranch.model.version import Vector

PROTOCOL_VERSION = 1
ITEMS_MAX = 65_535

Tick = Annotated[int, msgspec.Meta(ge=1, le=(1 << 62))]
#: 0 stands before the first tick.
Position = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Name = Annotated[str, msgspec.Meta(max_length=255)]
OptionalName = Name
Text = Annotated[str, msgspec.Meta(max_length=262_144)]
Reason = Annotated[str, msgspec.Meta(max_length=1_024)]
Range = tuple[Tick, Tick]
Ranges = Annotated[list[Range], msgspec.Meta(max_length=ITEMS_MAX)]
#: Stream → tick; a stream is named like the broker it originates at.
Ticks = Annotated[dict[Name, Position], msgspec.Meta(max_length=ITEMS_MAX)]


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A piece of a frame."""


class Datum(Part, frozen=True):
    """One tick with its event."""

    tick: Tick
    #: The origin's clock when the tick was made.
    time_ns: Nanoseconds
    #: The encoded event.
    body: bytes


class Hole(Part, frozen=True):
    """Ticks that are withheld, and why."""

    first: Tick
    last: Tick
    #: `retention`, `transient`, … One word.
    reason: Reason


class Conjuncts(Part, frozen=True):
    """Some conjunctions of one filter, by their place in its normal form."""

    text: Text
    places: Annotated[tuple[Count, ...], msgspec.Meta(max_length=ITEMS_MAX)]


Data = Annotated[list[Datum], msgspec.Meta(max_length=ITEMS_MAX)]
Holes = Annotated[list[Hole], msgspec.Meta(max_length=ITEMS_MAX)]
Conjunctions = Annotated[list[Conjuncts], msgspec.Meta(max_length=ITEMS_MAX)]


class Frame(Part, frozen=True):
    """What a link carries."""


# -- link frames ------------------------------------------------------------------------------


class Hello(Frame, frozen=True, tag=1):
    """The first frame on a link, in both directions."""

    protocol_version: Count
    broker: Name
    life: Count


class Ping(Frame, frozen=True, tag=2):
    """Says that the sender is alive."""


class Knowledge(Frame, frozen=True, tag=3):
    """What the sender knows of ticks of a stream: data, silence, holes, and how far it goes."""

    stream: Name
    #: The site that is to take this.
    site: Name
    #: The only edge this is meant for; "" for everybody.
    target: OptionalName
    #: The tick whose vector goes with these ticks: the newest mark at or before each of them.
    mark: Position
    data: Data
    #: Nothing here matches the interest of that vector.
    silent: Ranges = []
    withheld: Holes = []
    #: The newest tick of the stream that the sender knows to exist, 0 if it does not say,
    head: Position = 0
    #: and the origin's clock then.
    time_ns: Nanoseconds = 0


class MarkIs(Frame, frozen=True, tag=4):
    """The vector of a mark. Said on a link before the first knowledge that refers to it."""

    stream: Name
    mark: Position
    vector: Vector


class AskMark(Frame, frozen=True, tag=5):
    """Asks for the vector of a mark that the receiver referred to."""

    stream: Name
    mark: Position


class InterestChange(Frame, frozen=True, tag=6):
    """The interest behind a site changed, against a state that the receiver must have."""

    #: The site that is to take this, and the one behind which the change happened.
    site: Name
    source: Name
    #: The versions that the change leads to.
    advance: Vector
    plus: Conjunctions
    minus: Conjunctions
    #: Applies only where exactly these versions are known.
    constraint: Vector
    #: Told by a peer of the receiver, which told the others and all adjacent sites as well.
    from_peer: bool = False


class InterestState(Frame, frozen=True, tag=7):
    """All interest behind a site, in place of what the receiver knew of it."""

    site: Name
    source: Name
    vector: Vector
    conjunctions: Conjunctions
    from_peer: bool = False
    #: The receiver shall tell its own state onward, even if this was no news.
    onward: bool = False


class AskInterest(Frame, frozen=True, tag=8):
    """Asks a site for an `InterestState` in the direction of the asker's site, if it has news."""

    site: Name
    source: Name
    #: The versions that the asker knows of what is there,
    known: Vector = {}
    #: and later ones that it has seen somewhere. Whoever knows less asks onward.
    seen: Vector = {}


# -- carried between any two brokers ------------------------------------------------------------


class Carried(Part, frozen=True):
    """What a `Carry` holds."""


class Nack(Carried, frozen=True, tag=1):
    """An edge lacks these ticks of the target's stream."""

    ranges: Ranges


class Done(Carried, frozen=True, tag=2):
    """The sending edge needs nothing of the target's stream up to this tick any more."""

    tick: Position
    #: The sender's newest request number when it said so, 0 if it does not say. What was said
    #: before a `Hold` and comes after it is void. Request numbers grow, over lives too.
    request: Count = 0


class Replay(Carried, frozen=True, tag=3):
    """An edge wants what matches, from a tick or a time on."""

    request: Count
    #: First tick wanted; 0: as old as the log has, or by `time_ns`.
    first: Position
    #: Where `first` is 0: the first tick made at this time or later; 0: from the beginning.
    time_ns: Nanoseconds
    #: Any of these filters suffices.
    filters: Annotated[list[Text], msgspec.Meta(max_length=ITEMS_MAX)]
    events_max: Count
    bytes_max: Count


class Answer(Carried, frozen=True, tag=4):
    """The beginning of what a `Replay` asked for."""

    request: Count
    first: Tick
    #: Everything wanted from `first` up to this tick is here; 0 if there is nothing yet.
    through: Position
    #: The newest tick of the stream.
    head: Position
    data: Data
    withheld: Holes = []


class NotKept(Carried, frozen=True, tag=5):
    """A `Replay` or `Hold` asked for ticks that the log does not have any more."""

    request: Count
    #: The oldest tick the log still has.
    oldest: Tick


class Hold(Carried, frozen=True, tag=6):
    """An edge needs everything after this tick from now on: do not release it."""

    request: Count
    tick: Position


class Held(Carried, frozen=True, tag=7):
    """The answer to a `Hold` that is granted."""

    request: Count
    head: Position


class Claim(Carried, frozen=True, tag=8):
    """The sender owns this durable subscription now, with this ownership number."""

    subscription: Name
    number: Count


class Yield(Carried, frozen=True, tag=9):
    """The sender has given up the subscription, or never had it with a lower number."""

    subscription: Name
    number: Count


class Find(Carried, frozen=True, tag=10):
    """Who owns this durable subscription?"""

    request: Count
    subscription: Name


class Found(Carried, frozen=True, tag=11):
    """The sender does, with this number; it stands at these ticks. With number 0 it does not."""

    request: Count
    subscription: Name
    number: Count
    filter: Text
    ticks: Ticks


AnyCarried = Nack | Done | Replay | Answer | NotKept | Hold | Held | Claim | Yield | Find | Found


class Carry(Frame, frozen=True, tag=9):
    """Takes something to another broker, hop by hop; it may be lost on the way."""

    source: Name
    target: Name
    #: Links it may still take.
    hops: Annotated[int, msgspec.Meta(ge=0, le=255)]
    content: AnyCarried


LinkFrame = (
    Hello
    | Ping
    | Knowledge
    | MarkIs
    | AskMark
    | InterestChange
    | InterestState
    | AskInterest
    | Carry
)
