"""Histories: records of what applications and logs experienced, as input of the checker.

A history is a sequence of the records below, in the order in which they happened. The simulator
writes it, or processes that trace. It is independent of how brokers work.

1. Times are in seconds of one global clock.
2. An event is identified by (publisher, incarnation, sequence). An event that an application
   publishes once has one id.
3. There is a `Logged` record for every tick with an event that was ever durable at its origin, even
   if the log kept only the id of the event. Its position in the history does not matter.
4. A subscription here is an *episode*: one continuous guarantee. A reliable subscription that was
   cut and created again is a new episode with a new name. So is a durable one whose client lost its
   state: it may receive events again. A durable subscription that reconnects or roams continues.
5. A filter is a tuple of conjunctions, any of which suffices; a conjunction is a tuple of
   (attribute, operator, value), all of which must hold. `((),)` matches every event. Or a filter is
   text of the filter language, which can express more than conjunctions.
6. Events of a batch are published by their sink (the publisher is `sink/` and its name), with one
   incarnation per batch. Their ids are unknown until they are logged: `Drafted` has their
   attributes, and `Logged` identifies the draft at each tick.
7. When a log decides to drop its beginning, a `Forgotten` record precedes any report of it.
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
    """The base of all records."""


class Published(Record, frozen=True):
    """An application published an event."""

    time: float
    publisher: str
    incarnation: int
    sequence: int
    attributes: Mapping[str, Value]
    #: Its origin.
    broker: str
    #: Need not be delivered, for a reason that the history does not record.
    optional: bool = False
    #: May be withheld as `transient`, since its log does not keep it.
    transient: bool = False
    #: Maximum age at delivery, counted from its tick; None: unlimited.
    time_limit_s: float | None = None
    #: The only edges at which it may be delivered; None: all.
    reach: tuple[str, ...] | None = None
    #: The only clients to which it may be delivered; empty: all.
    destinations: tuple[str, ...] = ()
    #: The publisher asked for the order of its events over all origins: this one follows those of
    #: this incarnation and of later ones that were confirmed before. 0: it did not ask.
    ordered_from: int = 0


class Confirmed(Record, frozen=True):
    """A publisher received the confirmation of its events up to this sequence."""

    time: float
    publisher: str
    incarnation: int
    sequence: int


class Abandoned(Record, frozen=True):
    """A publisher has gone or given up this incarnation: unconfirmed events may remain so."""

    time: float
    publisher: str
    incarnation: int


class Withdrawn(Record, frozen=True):
    """A publisher learned that its events from this sequence on are in no log, and publishes them
    under other ids."""

    time: float
    publisher: str
    incarnation: int
    sequence: int


class Logged(Record, frozen=True):
    """A tick of a log, and the event in it."""

    stream: str
    tick: int
    publisher: str
    incarnation: int
    sequence: int
    #: The time of the tick; None if clocks cannot be trusted.
    time: float | None = None
    #: For an event of a batch: its token, and its index within the token.
    draft: tuple[str, int] | None = None


class Forgotten(Record, frozen=True):
    """From now on, a log may lack everything up to this tick."""

    stream: str
    tick: int
    #: `lossy`: ticks that clients still need may be missing. `released`: no client needs them.
    #: `deleted`: after one of the other two; from now on no crash restores the ticks, unless a
    #: `Restored` follows.
    why: Literal["lossy", "released", "deleted"] = "lossy"
    time: float = 0.0


class Restored(Record, frozen=True):
    """A log was lost or set back: a copy may bring back ticks that were deleted."""

    stream: str


class Lost(Record, frozen=True):
    """A log has lost these ticks; they are withheld from clients that have not received them."""

    stream: str
    first: int
    last: int


class Subscribed(Record, frozen=True):
    """An application requested a subscription."""

    time: float
    subscription: str
    filter: AnyFilter
    quality: Quality
    #: `now`, `beginning`, `tick`, `time` or `resume`.
    start: str = "now"
    #: The edge it was requested at.
    edge: str = ""
    #: Stream → the latest permitted start, by the requested start or by the resumed episode.
    latest_start: Mapping[str, int] = {}
    #: For a start at a time.
    start_time: float = 0.0
    #: The client, if events may have destinations.
    client: str = ""


class Refused(Record, frozen=True):
    """A subscription was refused."""

    time: float
    subscription: str


class Moved(Record, frozen=True):
    """A durable subscription moved to another edge."""

    time: float
    subscription: str
    edge: str


class Started(Record, frozen=True):
    """The start of a subscription was reported: it receives every match from this tick on."""

    time: float
    subscription: str
    stream: str
    tick: int


class Delivered(Record, frozen=True):
    """An application received an event."""

    time: float
    subscription: str
    stream: str
    tick: int
    publisher: str
    incarnation: int
    sequence: int
    #: When its edge sent it; 0.0 if unknown.
    sent: float = 0.0


class WithheldTold(Record, frozen=True):
    """Matches in these ticks were reported as withheld."""

    time: float
    subscription: str
    stream: str
    first: int
    last: int
    reason: str


class OrderNotKept(Record, frozen=True):
    """An application was told that from this tick on, a publisher's events of this incarnation may
    come before earlier ones of other incarnations."""

    time: float
    subscription: str
    stream: str
    tick: int
    publisher: str
    incarnation: int


class Ended(Record, frozen=True):
    """The end of a subscription was reported: it has received every match up to this tick."""

    time: float
    subscription: str
    stream: str
    tick: int


class Cut(Record, frozen=True):
    """No guarantee holds for this subscription from here on: it was cut, refused or ended on
    streams that are not named, or its client is gone permanently."""

    time: float
    subscription: str


class Drafted(Record, frozen=True):
    """An application starts to stage events. A token is used once."""

    time: float
    token: str
    drafts: tuple[Mapping[str, Value], ...]


class BatchAsked(Record, frozen=True):
    """An application commits a batch: the events staged with these tokens, in this order."""

    time: float
    sink: str
    batch: int
    tokens: tuple[str, ...]
    #: The origin of the sink.
    broker: str


class BatchTold(Record, frozen=True):
    """An application received the answer that a batch, committed with these tokens, is written."""

    time: float
    sink: str
    batch: int
    tokens: tuple[str, ...]
    #: The ticks of its first and last event; 0 if not reported.
    first: int
    last: int
    #: Whether it had been committed before.
    was_known: bool


class SinkLeft(Record, frozen=True):
    """No application waits for this sink any longer."""

    time: float
    sink: str


class Joined(Record, frozen=True):
    """A stream joined the network; earlier subscriptions may start there at any tick."""

    time: float
    stream: str


class Healed(Record, frozen=True):
    """There are no faults after this."""

    time: float


class Finished(Record, frozen=True):
    """The history is complete."""

    time: float
    #: The streams of the network, on which every living subscription must have started.
    streams: tuple[str, ...] = ()
    #: The time by which all clients were informed that nothing more follows.
    settled: float | None = None


#: For decoding a history.
AnyRecord = (
    Published
    | Confirmed
    | Abandoned
    | Logged
    | Forgotten
    | Restored
    | Lost
    | Subscribed
    | Refused
    | Moved
    | Started
    | Delivered
    | WithheldTold
    | OrderNotKept
    | Ended
    | Cut
    | Drafted
    | BatchAsked
    | BatchTold
    | SinkLeft
    | Joined
    | Healed
    | Finished
    | Withdrawn
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
