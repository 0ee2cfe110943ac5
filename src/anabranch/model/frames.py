"""Frames: everything that brokers say to each other.

A frame is a value. `wire` turns it into bytes and back; the core sees values only. Bodies of events
travel as the bytes they were published in (`encoding`). Two families:

- *link frames*, between two brokers that share a link: greeting, heartbeat, knowledge about ticks,
  interest.
- *carried* contents, between any two brokers: a `Carry` frame takes them hop by hop.

What clients and their brokers say to each other is in `client_frames`.

The parts they are made of, and the rules for these, are in `frame_parts`; the frames of mesh
routing in `mesh_frames`; what is carried in `carried`.
"""

from typing import Annotated, Literal

import msgspec

from anabranch.model.event import Count
from anabranch.model.frame_parts import (
    ITEMS_MAX,
    Conjunctions,
    Data,
    Frame,
    Holes,
    Name,
    Nanoseconds,
    OptionalName,
    Part,
    Position,
    Ranges,
    Text,
    Tick,
    Ticks,
)
from anabranch.model.mesh_frames import (
    Advertise,
    Bind,
    Branches,
    Copies,
    Edition,
    Editions,
    LoadIs,
    Routes,
    Seek,
)
from anabranch.model.pattern.match import PointRecord
from anabranch.model.version import Vector, Version

# What a `Carry` takes from one broker to another: questions, answers, and who owns what.
#
# Each of them may be lost on the way, or come late; whoever needs an answer asks again.


#: Of events, per 1,000 seconds.
Rate = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53))]


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


class Known(Carried, frozen=True, tag=12):
    """The sender knows the receiver's interest in this version, for these advertisements."""

    version: Version
    edition: Edition
    #: A change came that did not apply: tell it all.
    is_lacking: bool = False


class TakePoint(Carried, frozen=True, tag=13):
    """The receiver is to go on with this join point; the sender has stopped."""

    record: PointRecord


class PointTaken(Carried, frozen=True, tag=14):
    """The sender has it, on disk; or it never will take it with this count of moves."""

    pattern: Name
    moves: Count
    is_refused: bool = False


class PointSettled(Carried, frozen=True, tag=15):
    """The sender has forgotten a join point that the receiver has taken."""

    pattern: Name
    moves: Count


class DropPoint(Carried, frozen=True, tag=16):
    """A pattern is wanted no more, if the receiver has it."""

    request: Count
    pattern: Name


class PointDropped(Carried, frozen=True, tag=17):
    """The sender does not have it; whether it had, until it was asked."""

    request: Count
    pattern: Name
    was_there: bool
    #: It had it before, and gave it away, or it ended there.
    is_gone: bool = False


class KeepPoints(Carried, frozen=True, tag=18):
    """Patterns that are wanted still."""

    patterns: Annotated[list[Name], msgspec.Meta(max_length=ITEMS_MAX)]


class AskPlace(Carried, frozen=True, tag=19):
    """What would it cost to detect a pattern at the receiver? Rates are in events per 1,000 s."""

    request: Count
    pattern: Name
    #: Origin → what is needed of it,
    incoming: Annotated[dict[Name, Rate], msgspec.Meta(max_length=ITEMS_MAX)]
    #: matches, and the edges that want them.
    matches: Rate
    destinations: Annotated[list[Name], msgspec.Meta(max_length=ITEMS_MAX)]


class WouldTake(Carried, frozen=True, tag=20):
    """The sender would take the pattern, at this cost, in billionths of an event under way; or
    not at all."""

    request: Count
    pattern: Name
    cost: Position
    is_refused: bool = False


class FindPoint(Carried, frozen=True, tag=21):
    """Has the receiver a pattern of this id, or had it? Somebody defines one there, perhaps."""

    request: Count
    pattern: Name
    #: Whether the sender will make it if nobody has it.
    is_claim: bool


class PointFound(Carried, frozen=True, tag=22):
    """What the sender knows of a pattern."""

    request: Count
    pattern: Name
    #: It is `here`; it is `coming`, ask again; it was here, and is `gone`; `no`, nothing.
    answer: Literal["here", "coming", "gone", "no"]
    #: The pattern, if it is here.
    text: Text = ""


Moves = TakePoint | PointTaken | PointSettled | AskPlace | WouldTake
ForPoints = Moves | DropPoint | PointDropped | KeepPoints | FindPoint | PointFound
Questions = Nack | Replay | Hold | Find
AnyCarried = Questions | Done | Answer | NotKept | Held | Claim | Yield | Found | Known | ForPoints


PROTOCOL_VERSION = 1

# -- link frames ------------------------------------------------------------------------------


class Hello(Frame, frozen=True, tag=1):
    """The first frame on a link, in both directions."""

    protocol_version: Count
    broker: Name
    life: Count
    #: The newest tick of the receiver's stream that the sender knows of; 0: it knows none.
    newest: Position = 0
    #: The newest tick of it whose event the sender has seen, and when that tick was made.
    seen: Position = 0
    seen_ns: Nanoseconds = 0


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
    | Routes
    | Seek
    | Advertise
    | Editions
    | Branches
    | Bind
    | Copies
    | LoadIs
    | Carry
)
