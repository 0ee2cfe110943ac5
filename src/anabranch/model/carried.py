"""What a `Carry` takes from one broker to another: questions, answers, and who owns what.

Each of them may be lost on the way, or come late; whoever needs an answer asks again.
"""

from typing import Annotated, Literal

import msgspec

from anabranch.model.frame_parts import (
    ITEMS_MAX,
    Data,
    Holes,
    Name,
    Nanoseconds,
    Part,
    Position,
    Ranges,
    Text,
    Tick,
    Ticks,
)
from anabranch.model.header import Count
from anabranch.model.mesh_frames import Edition
from anabranch.model.pattern.record import PointRecord
from anabranch.model.version import Version

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
