"""Histories: what happened to applications and logs, as far as promises are about it.

A history is a sequence of the records below, in the order in which they happened; whoever runs a
network writes it: the simulator, or processes that trace. It says nothing about how brokers work.

1. Times are in seconds of one clock that sees everything.
2. An event is named by (publisher, incarnation, sequence). What an application publishes once has
   one name.
3. `Logged` is there for every tick with an event that was ever durable at its origin, also if the
   log kept only the name of the event. Where it stands in the history does not matter.
4. A subscription here is an *episode*: one uninterrupted promise. A reliable subscription that was
   cut and made again is another episode and has another name. So is a durable one whose client lost
   its memory: it may see events again. A durable one that reconnects or roams goes on.
5. A filter is a tuple of conjunctions, any of which suffices; a conjunction is a tuple of
   (attribute, operator, value), all of which must hold. `((),)` matches everything. Or it is text
   of the filter language, from applications that say more than conjunctions can.
6. Events of a batch are published by their sink (the publisher is `sink/` and its name), with one
   incarnation for each batch. Nobody knows their names before they are logged: `Drafted` says what
   they are, and `Logged` which of them is where.
7. A tick that was ever forgotten was told so: whenever a log decides to lack its beginning, there
   is a `Forgotten` before anybody hears of it.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from anabranch.model.event import Value

#: Attribute, operator (= <> < <= > >=), value.
Predicate = tuple[str, str, Value]
PlainFilter = tuple[tuple[Predicate, ...], ...]
AnyFilter = PlainFilter | str
Quality = Literal["best-effort", "reliable", "durable"]


class Record(msgspec.Struct, frozen=True, tag=True, gc=False):
    """One thing that happened."""


class Published(Record, frozen=True):
    """An application published an event."""

    time: float
    publisher: str
    incarnation: int
    sequence: int
    attributes: Mapping[str, Value]
    #: The origin it was published at.
    broker: str
    #: Need not be delivered, for a reason that the history does not tell.
    optional: bool = False
    #: May be withheld as `transient`, since its log does not keep it.
    transient: bool = False
    #: May be delivered only for so long after its tick was made; None: for ever.
    time_limit_s: float | None = None
    #: The only edges at which it may be delivered; None: at all.
    reach: tuple[str, ...] | None = None
    #: The only clients to whom it may be delivered; empty: all.
    destinations: tuple[str, ...] = ()


class Confirmed(Record, frozen=True):
    """A publisher was told that its events up to this sequence are safe."""

    time: float
    publisher: str
    incarnation: int
    sequence: int


class Abandoned(Record, frozen=True):
    """A publisher is gone, or has given this incarnation up: what is unconfirmed may remain so."""

    time: float
    publisher: str
    incarnation: int


class Logged(Record, frozen=True):
    """A tick of a log, and the event in it."""

    stream: str
    tick: int
    publisher: str
    incarnation: int
    sequence: int
    #: When the tick was made; None if clocks cannot be trusted.
    time: float | None = None
    #: Of an event of a batch: the token it was staged with, and its place there from 0 on.
    draft: tuple[str, int] | None = None


class Forgotten(Record, frozen=True):
    """A log may lack everything up to this tick from now on."""

    stream: str
    tick: int
    #: `lossy`: it may lack what somebody needs. `released`: nobody needs it. `deleted`: one of the
    #: two was said before, and from now on no crash brings the ticks back.
    why: Literal["lossy", "released", "deleted"] = "lossy"
    time: float = 0.0


class Lost(Record, frozen=True):
    """A log has lost these ticks for good, and whoever has not got them is told so from now on."""

    stream: str
    first: int
    last: int


class Subscribed(Record, frozen=True):
    """An application asked for a subscription."""

    time: float
    subscription: str
    filter: AnyFilter
    quality: Quality
    #: `now`, `beginning`, `tick`, `time` or `resume`.
    start: str = "now"
    #: The edge it was asked at.
    edge: str = ""
    #: Stream → it must not start later than at this tick, where the start that was asked for or
    #: the earlier episode that is resumed says so.
    latest_start: Mapping[str, int] = {}
    #: For a start at a time.
    start_time: float = 0.0
    #: Whose it is, where events may have destinations.
    client: str = ""


class Refused(Record, frozen=True):
    """An application was told that it does not get the subscription."""

    time: float
    subscription: str


class Moved(Record, frozen=True):
    """A durable subscription was taken to another edge."""

    time: float
    subscription: str
    edge: str


class Started(Record, frozen=True):
    """An application was told that it gets every match from this tick on."""

    time: float
    subscription: str
    stream: str
    tick: int


class Delivered(Record, frozen=True):
    """An application was given an event."""

    time: float
    subscription: str
    stream: str
    tick: int
    publisher: str
    incarnation: int
    sequence: int
    #: When its edge sent it; 0.0 if nobody knows.
    sent: float = 0.0


class WithheldTold(Record, frozen=True):
    """An application was told that it does not get matches in these ticks."""

    time: float
    subscription: str
    stream: str
    first: int
    last: int
    reason: str


class Ended(Record, frozen=True):
    """An application that unsubscribed was told up to which tick it has every match."""

    time: float
    subscription: str
    stream: str
    tick: int


class Cut(Record, frozen=True):
    """From here on nothing is promised to this subscription: cut, refused, ended on streams that
    are not named, or its client is gone for ever."""

    time: float
    subscription: str


class Drafted(Record, frozen=True):
    """An application begins to stage events. A token is used once."""

    time: float
    token: str
    drafts: tuple[Mapping[str, Value], ...]


class BatchAsked(Record, frozen=True):
    """An application commits a batch: what is staged with these tokens, in this order."""

    time: float
    sink: str
    batch: int
    tokens: tuple[str, ...]
    #: The origin of the sink.
    broker: str


class BatchTold(Record, frozen=True):
    """An application was told that a batch, which it had asked for with these tokens, is there."""

    time: float
    sink: str
    batch: int
    tokens: tuple[str, ...]
    #: The ticks of its first and last event; 0 if that was not said.
    first: int
    last: int
    #: Whether somebody had asked for it before.
    was_known: bool


class SinkLeft(Record, frozen=True):
    """Nobody waits for this sink any more."""

    time: float
    sink: str


class Joined(Record, frozen=True):
    """A stream that was not there at first; whoever subscribed earlier starts there anywhere."""

    time: float
    stream: str


class Healed(Record, frozen=True):
    """No faults after this."""

    time: float


class Finished(Record, frozen=True):
    """The history ends here by itself, not because somebody stopped writing."""

    time: float
    #: The streams of the network, on which every living subscription must have started.
    streams: tuple[str, ...] = ()
    #: Everybody was told by then that there is nothing more to come.
    settled: float | None = None


#: For reading a history that was written down.
AnyRecord = (
    Published
    | Confirmed
    | Abandoned
    | Logged
    | Forgotten
    | Lost
    | Subscribed
    | Refused
    | Moved
    | Started
    | Delivered
    | WithheldTold
    | Ended
    | Cut
    | Drafted
    | BatchAsked
    | BatchTold
    | SinkLeft
    | Joined
    | Healed
    | Finished
)
History = Sequence[Record]


def filter_text(plain: PlainFilter) -> str:
    """The filter as a subscriber writes it."""
    return " OR ".join(" AND ".join(map(_predicate_text, part)) for part in plain)


def _predicate_text(predicate: Predicate) -> str:
    attribute, operator, value = predicate
    if value is True:
        return f"{attribute} {operator} TRUE"
    literal = f"'{value}'" if isinstance(value, str) else str(value)
    return f"{attribute} {operator} {literal}"
