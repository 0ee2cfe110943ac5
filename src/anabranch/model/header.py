"""The header of an event: what brokers read on the way, and what they may do with it.

The header is everything about an event but its content (attributes and payload): who published it,
into which stream, when, and with which wishes. A relay reads only this.

The id says which event this is, in space and time. Each part answers a question:

- *publisher*: who? Names are unique in the network, so ids of different publishers never meet, and
  the order of one publisher's events does not depend on anybody else.
- *incarnation*: in which of its lives? It grows with every start, roam or reconnect. A publisher
  that lost its memory need not know the last sequence it used; and late events of an old
  incarnation are not mistaken for repetitions of the new one's, though their sequences are smaller
  or equal. (The Grid Event Service uses a start timestamp and an incarnation for these two
  purposes; a number that grows on both occasions serves both.)
- *sequence*: which one in that life? It grows with every event, so within one publisher and
  incarnation "already seen" is one comparison with the last id. 63 bits do not wrap.

Ids are ordered by these parts, in this order: within one publisher that is the order of publishing.

Rules:

1. A header never changes on the way. What a hop adds belongs to the frame around the event.
2. An event that is not published yet has no id; publishing gives it one, once.
3. `None` is "no limit", which differs from 0: hop limit 0 stays at the origin broker.
4. A missing timestamp is 0; an empty stream leaves the choice to the origin.
5. The types below bound every number and the count of destinations, so that a decoder refuses
   them before it allocates; `check_decoded_header` tells the rest: texts, and duplicates.

Prior art: Pallickara, A Grid Event Service (2001), §3.1, §4.6; priorities from Jakarta Messaging.
"""

from typing import Annotated, Literal, get_args

import msgspec

from anabranch.model.errors import EventError
from anabranch.model.limits import Limits
from anabranch.model.names import check_name, check_optional_name, clipped, is_plain
from anabranch.model.values import INT_MAX, INT_MIN

Persistence = Literal["transient", "persistent"]
Count = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=9)]
Timestamp = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]

#: No limits allow more destinations than this; it keeps a decoder from reserving room for more.
DESTINATIONS_CEILING = 65_535
Destinations = Annotated[tuple[str, ...], msgspec.Meta(max_length=DESTINATIONS_CEILING)]

#: What a header takes at most beside its texts and destinations, outer framing included.
_FRAMING_BYTES_MAX = 128
_TEXT_FRAMING_BYTES_MAX = 5
#: Stands in for the publisher of an event that has none yet, where texts are checked.
_UNPUBLISHED = "-"


class EventId(
    msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """Names one event among all there ever were."""

    publisher: str
    #: Grows with every start, roam or reconnect of the publisher.
    incarnation: Count
    #: Grows with every event of one incarnation.
    sequence: Count

    def __str__(self) -> str:
        return f"{self.publisher}:{self.incarnation}:{self.sequence}"


class Control(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """How the network shall treat an event. The defaults are what most events want."""

    #: `persistent` survives crashes and reaches durable subscriptions; `transient` is sent once.
    persistence: Persistence = "persistent"
    #: Nanoseconds for which the event is worth keeping, from when it is stored; None: for ever.
    time_limit_ns: Count | None = None
    #: Broker-to-broker hops the event may take; None: any number.
    hop_limit: Count | None = None
    #: Level of the unit that the event may not leave (0 the broker, 1 its cluster …); None: none.
    level_limit: Count | None = None
    #: 0 (lowest) to 9.
    priority: Priority = 4
    #: What this event answers or belongs to, as chosen by the application; "": nothing.
    correlation_id: str = ""
    #: Who shall get the event; empty: everybody whose filter matches. No name twice.
    destinations: Destinations = ()

    @property
    def is_kept(self) -> bool:
        """Whether everybody who wants it gets it, now or later, wherever he is."""
        limits = (self.time_limit_ns, self.hop_limit, self.level_limit)
        is_limited = any(limit is not None for limit in limits)
        return self.persistence == "persistent" and not is_limited and not self.destinations


DEFAULT_CONTROL = Control()


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Everything about an event but attributes and payload."""

    id: EventId | None
    stream: str
    #: When the publisher says it happened: nanoseconds since 1970 in UTC, 0 if it does not say.
    timestamp_ns: Timestamp
    control: Control
    content_type: str


def check_header(header: Header, limits: Limits) -> int:
    """The bytes this header takes at most when encoded, or an error that names the bad field."""
    if header.id is not None:
        _check_id(header.id)
    _check_integer("timestamp_ns", header.timestamp_ns, INT_MIN, INT_MAX)
    if header.control is not DEFAULT_CONTROL:
        _check_control(header.control)
    _check_string("stream", header.stream)
    _check_string("content_type", header.content_type)
    return check_decoded_header(header, limits)


def check_decoded_header(header: Header, limits: Limits) -> int:
    """Like `check_header`, for a header whose types and numbers a decoder has checked."""
    control = header.control
    publisher = _UNPUBLISHED if header.id is None else header.id.publisher
    texts = publisher + header.stream + header.content_type + control.correlation_id
    # Together within the bound of one: then each is, and nearly always this is all there is to do.
    if publisher and is_plain(texts, limits.name_bytes_max):
        size = len(texts)
    else:
        size = _check_each_text(header, publisher, limits)
    if control.destinations:
        size += _check_destinations(control.destinations, limits)
    return size + _FRAMING_BYTES_MAX


def _check_each_text(header: Header, publisher: str, limits: Limits) -> int:
    bytes_max = limits.name_bytes_max
    return (
        check_name(publisher, "publisher", bytes_max)
        + check_optional_name(header.stream, "stream", bytes_max)
        + check_optional_name(header.content_type, "content type", bytes_max)
        + check_optional_name(header.control.correlation_id, "correlation id", bytes_max)
    )


def _check_destinations(destinations: tuple[str, ...], limits: Limits) -> int:
    count_max = min(limits.destinations_max, DESTINATIONS_CEILING)
    if len(destinations) > count_max:
        raise EventError(
            f"the event has {len(destinations)} destinations; at most {count_max} are allowed"
        )
    size = _TEXT_FRAMING_BYTES_MAX * len(destinations)
    seen: set[str] = set()
    for name in destinations:
        size += check_name(name, "destination", limits.name_bytes_max)
        if name in seen:
            raise EventError(f"destination {clipped(name)} is there twice; name it once")
        seen.add(name)
    return size


def _check_id(event_id: object) -> None:
    if type(event_id) is not EventId:
        raise EventError(f"id is of type {type(event_id).__name__}; it must be an EventId")
    _check_string("publisher", event_id.publisher)
    _check_integer("incarnation", event_id.incarnation, 0, INT_MAX)
    _check_integer("sequence", event_id.sequence, 0, INT_MAX)


def _check_control(control: object) -> None:
    if type(control) is not Control:
        raise EventError(f"control is of type {type(control).__name__}; it must be a Control")
    if control.persistence not in get_args(Persistence):
        raise EventError("persistence is unknown; it must be 'transient' or 'persistent'")
    _check_limit("time_limit_ns", control.time_limit_ns)
    _check_limit("hop_limit", control.hop_limit)
    _check_limit("level_limit", control.level_limit)
    _check_integer("priority", control.priority, 0, 9)
    _check_string("correlation_id", control.correlation_id)
    if type(control.destinations) is not tuple:
        raise EventError(
            f"destinations is of type {type(control.destinations).__name__};"
            " it must be a tuple of names"
        )


def _check_string(what: str, value: object) -> None:
    if type(value) is not str:
        raise EventError(f"{what} is of type {type(value).__name__}; it must be a str")


def _check_limit(what: str, value: object) -> None:
    if value is not None:
        _check_integer(what, value, 0, INT_MAX)


def _check_integer(what: str, value: object, low: int, high: int) -> None:
    if type(value) is not int:
        raise EventError(f"{what} is of type {type(value).__name__}; it must be an int")
    if not low <= value <= high:
        # The number is not shown: it may have more digits than Python agrees to print.
        raise EventError(f"{what} is outside {low} … {high}; choose a value within")
