"""Frames: everything that brokers and clients say to each other.

A frame is a value. `wire` turns it into bytes and back; the core sees values only. Bodies of events
travel as the bytes they were published in (`encoding`). Three families:

- *link frames*, between two brokers that share a link: greeting, heartbeat, knowledge about ticks,
  interest.
- *carried* contents, between any two brokers: a `Carry` frame takes them hop by hop.
- *client frames*, between a client and the edge or origin it is connected to.

Rules:

1. Every number is bounded by its type and every list by `ITEMS_MAX`, so that a decoder refuses
   before it allocates. What is valid beyond that (known names, ordered ranges) the core checks.
2. A range of ticks is (first, last), both inclusive, first ≤ last.
3. Fields are positional; a new field goes to the end and has a default.
"""

from typing import Annotated, Literal

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
#: A refusal whose reason begins so holds for ever; any other may be gone the next time.
FINAL = "final: "
Range = tuple[Tick, Tick]
Ranges = Annotated[list[Range], msgspec.Meta(max_length=ITEMS_MAX)]
#: Stream → tick; a stream is named like the broker it originates at.
Ticks = Annotated[dict[Name, Position], msgspec.Meta(max_length=ITEMS_MAX)]
Quality = Literal["best-effort", "reliable", "durable"]


class _Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A piece of a frame."""


class Datum(_Part, frozen=True):
    """One tick with its event."""

    tick: Tick
    #: The origin's clock when the tick was made.
    time_ns: Nanoseconds
    #: The encoded event.
    body: bytes


class Hole(_Part, frozen=True):
    """Ticks that are withheld, and why."""

    first: Tick
    last: Tick
    #: `retention`, `transient`, … One word.
    reason: Reason


class Conjuncts(_Part, frozen=True):
    """Some conjunctions of one filter, by their place in its normal form."""

    text: Text
    places: Annotated[tuple[Count, ...], msgspec.Meta(max_length=ITEMS_MAX)]


Data = Annotated[list[Datum], msgspec.Meta(max_length=ITEMS_MAX)]
Holes = Annotated[list[Hole], msgspec.Meta(max_length=ITEMS_MAX)]
Conjunctions = Annotated[list[Conjuncts], msgspec.Meta(max_length=ITEMS_MAX)]


class Frame(_Part, frozen=True):
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


class Carried(_Part, frozen=True):
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


# -- client frames ------------------------------------------------------------------------------


class ClientFrame(_Part, frozen=True):
    """What a client and its broker say to each other."""


class Connect(ClientFrame, frozen=True, tag=1):
    """The first frame of a session."""

    protocol_version: Count
    client: Name


class Publish(ClientFrame, frozen=True, tag=2):
    """Encoded events, in the order of their sequence."""

    bodies: Annotated[list[bytes], msgspec.Meta(max_length=ITEMS_MAX)]


class Confirmed(ClientFrame, frozen=True, tag=3):
    """All events of this publisher and incarnation up to this sequence are safe."""

    publisher: Name
    incarnation: Count
    sequence: Count


class PublishRefused(ClientFrame, frozen=True, tag=4):
    """This event and what followed it in this incarnation was not taken; it may be sent again."""

    publisher: Name
    incarnation: Count
    sequence: Count
    reason: Reason


class Subscribe(ClientFrame, frozen=True, tag=5):
    """A new subscription, or a known one that its client comes back to."""

    request: Count
    subscription: Name
    filter: Text
    quality: Quality
    #: `now`, `beginning`, `tick` (after `ticks`), `time` (at `time_ns`); or `resume`: a durable
    #: subscription goes on after `ticks`, or where its owner knows it to stand if `number` is 0.
    start: Literal["now", "beginning", "tick", "time", "resume"] = "now"
    time_ns: Nanoseconds = 0
    ticks: Ticks = {}
    #: Ownership number: grows whenever the client attaches a durable subscription.
    number: Count = 0
    #: Events that may be on the way to the client without being acknowledged.
    window: Annotated[int, msgspec.Meta(ge=1, le=ITEMS_MAX)] = 256


class Subscribed(ClientFrame, frozen=True, tag=6):
    """The subscription stands; with which number, and where it resumes."""

    request: Count
    subscription: Name
    number: Count
    ticks: Ticks


class StartsAt(ClientFrame, frozen=True, tag=7):
    """From this tick of the stream on, every match is delivered."""

    subscription: Name
    stream: Name
    tick: Tick


class Deliver(ClientFrame, frozen=True, tag=8):
    """Matching events of one stream, in order, and how far that goes."""

    subscription: Name
    stream: Name
    data: Data
    #: There is no other match up to here.
    through: Tick


class Withheld(ClientFrame, frozen=True, tag=9):
    """Ticks in which there may have been matches that are not delivered."""

    subscription: Name
    stream: Name
    holes: Holes


class Ack(ClientFrame, frozen=True, tag=10):
    """The client has dealt with everything up to these ticks."""

    subscription: Name
    ticks: Ticks


class Unsubscribe(ClientFrame, frozen=True, tag=11):
    """The client wants no more."""

    request: Count
    subscription: Name


class Unsubscribed(ClientFrame, frozen=True, tag=12):
    """All matches up to these ticks were delivered, and none after them will be."""

    request: Count
    subscription: Name
    ticks: Ticks


class Refused(ClientFrame, frozen=True, tag=13):
    """A request cannot be granted."""

    request: Count
    reason: Reason


class Cut(ClientFrame, frozen=True, tag=14):
    """A subscription ends although the client did not ask for it; "" for the whole session."""

    subscription: OptionalName
    reason: Reason


AnyClientFrame = (
    Connect
    | Publish
    | Confirmed
    | PublishRefused
    | Subscribe
    | Subscribed
    | StartsAt
    | Deliver
    | Withheld
    | Ack
    | Unsubscribe
    | Unsubscribed
    | Refused
    | Cut
)
