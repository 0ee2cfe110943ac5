"""Events: what publishers publish and subscribers get.

An event is a set of typed attributes, by which it is matched; an opaque payload, which nobody but
the application reads; and a header, which says which event it is and how to treat it.

    Event({"symbol": "IBM", "price": 12.5}, payload=b"…", stream="quotes")

Rules:

1. An event never changes; other content is another event. Everything it holds is immutable too.
2. Attributes are given as one mapping, never as keywords: keywords name the other parts, and an
   attribute called `stream` or `id` must not become one of them by accident.
3. Whatever is wrong with an event is an `EventError` when it is built; an event that exists can
   be encoded, and decoded under the same limits.
4. Two events are equal when all their parts are. Attributes are equal when names, kinds and values
   are: 1, 1.0 and TRUE are three values, −0.0 and 0.0 are one, NaN equals NaN. The order of
   attributes is kept but does not count. The hash agrees with that.
5. `event["price"]`, `event.get("price")`, `"price" in event` and `dict(event)` read attributes.
   An event has no length, so that an event without attributes is not false.
6. Building an event reads no clock and invents no id. `stamped` adds both, once, when it is
   published.
"""

import math
from collections.abc import Iterator, KeysView, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal, Self, TypeVar, final, get_args

import msgspec

from anabranch.model.errors import EventError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_name, check_optional_name, clipped, is_plain, utf8_bytes

# Attribute values, and when two of them compare.
#
# An attribute value is a string, a 64-bit integer, a 64-bit float or a boolean. Rules:
#
# 1. Values of different kinds do not compare: the answer is UNKNOWN, never an error, never False.
#    The kinds are *text*, *number* and *truth*; a boolean is not a number.
# 2. An integer and a float compare by value, exactly, also beyond 2**53: 9007199254740993 is
#    greater than 9007199254740992.0. Python compares them so; nothing here rounds.
# 3. −0.0 equals 0. The infinities are the ends of the number line and equal themselves.
# 4. NaN has no place on the line: every comparison with it is UNKNOWN. It is present, though, so IS
#    NULL is false for it.
# 5. Strings compare by code point, which is also the order of their UTF-8 bytes. Nothing is
#    normalised: two spellings of one letter are two strings. Lone surrogates are no text.
# 6. Truth values compare by equality only; their order is UNKNOWN.
#
# The number line `int64 ∪ float64` is finite, so each of its numbers has a neighbour on either
# side; `number_after` and `number_before` name them. With their help every interval can be written
# with both ends included, which is what makes emptiness, covering and intersection of intervals
# exact: nothing lies strictly between 1.0 and 1.0000000000000002, and these two functions know it.
#


Number = int | float
Value = str | int | float | bool
Attributes = Mapping[str, Value]

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1
#: Up to here, in either direction, every integer is a float.
FLOAT_EXACT_MAX = 2**53
INFINITY = math.inf


def number_after(number: Number) -> Number:
    """The smallest 64-bit integer or float greater than `number`; infinity has none."""
    assert number != INFINITY
    if FLOAT_EXACT_MAX <= number < INT_MAX or INT_MIN <= number < -FLOAT_EXACT_MAX:
        return int(number) + 1
    if number == INT_MAX:
        return 2.0**63
    # Plus zero turns the −0.0 that follows the greatest negative float into 0.0.
    return math.nextafter(number, INFINITY) + 0.0


def number_before(number: Number) -> Number:
    """The greatest 64-bit integer or float smaller than `number`; minus infinity has none."""
    assert number != -INFINITY
    if FLOAT_EXACT_MAX < number <= INT_MAX or INT_MIN < number <= -FLOAT_EXACT_MAX:
        return int(number) - 1
    if number == 2.0**63:
        return INT_MAX
    return math.nextafter(number, -INFINITY)


def text_after(text: str) -> str:
    """The smallest string greater than `text`."""
    return text + "\0"


def prefix_end(prefix: str) -> str | None:
    """The smallest string greater than every string that starts with `prefix`; None if none is."""
    for index in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[index])
        if point < 0x10FFFF:
            after = 0xE000 if point == 0xD7FF else point + 1
            return prefix[:index] + chr(after)
    return None


# Attributes: the typed values by which an event is matched.
#
# An event's attributes map names to values: a string, a 64-bit integer, a 64-bit float or a
# boolean. How values compare is the business of `values`; this module says which ones an event may
# hold.
#
# 1. The type is exactly `str`, `int`, `float` or `bool`. A boolean is not an integer. Anything else
#    is refused and never converted, subclasses and numpy scalars included: a conversion that loses
#    bits or turns a truth into a number should be seen in the program that makes it.
# 2. An integer has 64 bits. A float is any float: NaN, the infinities and −0.0 travel bit by bit.
# 3. A string is any Unicode text, control characters included; a lone surrogate is no text.
# 4. No value means no attribute: None is refused, leave the attribute out.
# 5. Names follow `names`; count and sizes follow `Limits`.
# 6. Names that begin with `anabranch.pattern` are the network's own. An event may have them, but no
#    client may publish it (`reserved_in`).


#: What a name and its value take at most beside their text: two string headers, or one and 8 bytes.
_FRAMING_BYTES_MAX = 14
#: Names that begin like this are the network's own.
RESERVED = "anabranch.pattern"
_RESERVED_BYTES = RESERVED.encode()


def check_attributes(attributes: Mapping[str, Value], limits: Limits) -> int:
    """The bytes these attributes take at most when encoded, or an error that names the bad one."""
    if len(attributes) > limits.attributes_max:
        raise EventError(
            f"the event has {len(attributes)} attributes;"
            f" at most {limits.attributes_max} are allowed"
        )
    size = _FRAMING_BYTES_MAX * len(attributes) + _check_names(attributes, limits)
    for name, value in attributes.items():
        # Not isinstance: True is an int to it, and numpy's float64 a float.
        if type(value) is str:
            size += _check_text(name, value, limits)
        elif type(value) is int:
            if not INT_MIN <= value <= INT_MAX:
                raise EventError(_too_large(name))
        elif type(value) is not float and type(value) is not bool:
            raise EventError(_wrong_type(name, value))
    return size


def reserved_in(encoded: bytes, attributes: Mapping[str, Value]) -> str:
    """Why an event with these attributes is not to be published by a client; "" if it may be.

    `encoded` is the whole event: nearly always a look at its bytes is enough."""
    if _RESERVED_BYTES in encoded:
        for name in attributes:
            if name.startswith(RESERVED):
                own = f"names that begin with {RESERVED!r} are the network's own"
                return f"attribute {clipped(name)}: {own}"
    return ""


def names_are_plain(attributes: Mapping[str, Value], limits: Limits) -> bool:
    """Whether all names are seen to be right without looking at each; they must be strings.

    Together names are nearly always shorter than one may be, and plain ASCII.
    """
    return "" not in attributes and is_plain("".join(attributes), limits.name_bytes_max)


def _check_names(attributes: Mapping[str, Value], limits: Limits) -> int:
    """The bytes of all names, or their bound; or an error."""
    if set(map(type, attributes)) == {str} and names_are_plain(attributes, limits):
        return limits.name_bytes_max
    return sum(check_name(name, "attribute name", limits.name_bytes_max) for name in attributes)


def _check_text(name: str, value: str, limits: Limits) -> int:
    if value.isascii() and len(value) <= limits.value_bytes_max:
        return len(value)
    size = utf8_bytes(value, f"the value of attribute {clipped(name)},")
    if size > limits.value_bytes_max:
        raise EventError(
            f"attribute {clipped(name)} has {size} bytes; at most {limits.value_bytes_max} are"
            " allowed, put large content into the payload"
        )
    return size


def _too_large(name: str) -> str:
    # The number is not shown: it may have more digits than Python agrees to print.
    return (
        f"attribute {clipped(name)} is an integer outside {INT_MIN} … {INT_MAX};"
        " use a float or a string"
    )


def _wrong_type(name: str, value: object) -> str:
    kind = type(value)
    problem = f"attribute {clipped(name)} is a {kind.__module__}.{kind.__qualname__}; "
    if value is None:
        return f"attribute {clipped(name)} is None; leave out an attribute that has no value"
    if hasattr(value, "dtype"):
        return problem + "turn a numpy scalar into a Python value with .item()"
    if isinstance(value, str | int | float):
        return problem + "a subclass is refused, convert it with str(), int() or float()"
    if isinstance(value, bytes | bytearray | memoryview):
        return problem + "put bytes into the payload"
    return problem + "a value must be a str, int, float or bool"


# The header of an event: what brokers read on the way, and what they may do with it.
#
# The header is everything about an event but its content (attributes and payload): who published
# it, into which stream, when, and with which wishes. A relay reads only this.
#
# The id says which event this is, in space and time. Each part answers a question:
#
# - *publisher*: who? Names are unique in the network, so ids of different publishers never meet,
#   and the order of one publisher's events does not depend on anybody else.
# - *incarnation*: in which of its lives? It grows with every start, roam or reconnect. A publisher
#   that lost its memory need not know the last sequence it used; and late events of an old
#   incarnation are not mistaken for repetitions of the new one's, though their sequences are
#   smaller or equal. (The Grid Event Service uses a start timestamp and an incarnation for these
#   two purposes; a number that grows on both occasions serves both.)
# - *sequence*: which one in that life? It grows with every event, so within one publisher and
#   incarnation "already seen" is one comparison with the last id. 63 bits do not wrap.
#
# Ids are ordered by these parts, in this order: within one publisher that is the order of
# publishing.
#
# Rules:
#
# 1. A header never changes on the way. What a hop adds belongs to the frame around the event.
# 2. An event that is not published yet has no id; publishing gives it one, once.
# 3. `None` is "no limit", which differs from 0: hop limit 0 stays at the origin broker.
# 4. A missing timestamp is 0; an empty stream leaves the choice to the origin.
# 5. The types below bound every number and the count of destinations, so that a decoder refuses
#    them before it allocates; `check_decoded_header` tells the rest: texts, and duplicates.
#
# Prior art: Pallickara, A Grid Event Service (2001), §3.1, §4.6; priorities from Jakarta Messaging.


Persistence = Literal["transient", "persistent"]
Count = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=9)]
Timestamp = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]

#: No limits allow more destinations than this; it keeps a decoder from reserving room for more.
DESTINATIONS_CEILING = 65_535
Destinations = Annotated[tuple[str, ...], msgspec.Meta(max_length=DESTINATIONS_CEILING)]

#: What a header takes at most beside its texts and destinations, outer framing included.
_HEADER_FRAMING_BYTES_MAX = 128
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
    return size + _HEADER_FRAMING_BYTES_MAX


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


__all__ = ["ENCODING_VERSION", "Control", "Event", "EventId", "Header", "encoded_parts"]

#: The first item of every encoded event. Another layout gets another number.
ENCODING_VERSION = 1

Default = TypeVar("Default")
_encoder = msgspec.msgpack.Encoder()
_set = object.__setattr__
_NO_ATTRIBUTES: Mapping[str, Value] = MappingProxyType({})
_REPR_ATTRIBUTES = 4


def encoded_parts(header: Header, attributes: dict[str, Value], payload: bytes) -> bytes:
    """The bytes of an event of these parts; `encoding` describes them."""
    return _encoder.encode((ENCODING_VERSION, header, attributes, payload))


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Event:
    """One immutable event. See the rules at the top of this module."""

    header: Header
    #: Read-only, in the order they were given.
    attributes: MappingProxyType[str, Value]
    payload: bytes
    #: The limits that all but the header was checked against, and the bytes it takes at most; None
    #: if that is not known.
    _checked: tuple[Limits, int] | None

    def __init__(
        self,
        attributes: Mapping[str, Value] = _NO_ATTRIBUTES,
        *,
        payload: bytes | bytearray | memoryview = b"",
        content_type: str = "",
        id: EventId | None = None,
        stream: str = "",
        timestamp_ns: int = 0,
        control: Control = DEFAULT_CONTROL,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        header = Header(id, stream, timestamp_ns, control, content_type)
        own_attributes = _own_attributes(attributes)
        own_payload = _own_payload(payload, limits)
        size = check_attributes(own_attributes, limits) + len(own_payload)
        if size + check_header(header, limits) > limits.event_bytes_max:
            _check_encoded_size(encoded_parts(header, own_attributes, own_payload), limits)
        _set_parts(self, header, MappingProxyType(own_attributes), own_payload, (limits, size))

    @classmethod
    def of_checked_parts(cls, header: Header, attributes: dict[str, Value], payload: bytes) -> Self:
        """An event of parts that were checked, without checking again. It keeps the dict."""
        event = object.__new__(cls)
        _set_parts(event, header, MappingProxyType(attributes), payload, None)
        return event

    def stamped(
        self, event_id: EventId, timestamp_ns: int, *, limits: Limits = DEFAULT_LIMITS
    ) -> "Event":
        """This event with its id, and with this timestamp if it has none of its own."""
        if self.id is not None:
            raise EventError(f"the event has the id {self.id} already; publish a new event instead")
        own, checked = self.header, self._checked
        header = Header(
            event_id, own.stream, own.timestamp_ns or timestamp_ns, own.control, own.content_type
        )
        size = None if checked is None or checked[0] is not limits else checked[1]
        if size is None:
            size = check_attributes(self.attributes, limits) + len(self.payload)
            _own_payload(self.payload, limits)
        if size + check_header(header, limits) > limits.event_bytes_max:
            encoded = encoded_parts(header, self.attributes.copy(), self.payload)
            _check_encoded_size(encoded, limits)
        event = object.__new__(Event)
        _set_parts(event, header, self.attributes, self.payload, (limits, size))
        return event

    @property
    def id(self) -> EventId | None:
        """Which event this is; None until it is published."""
        return self.header.id

    @property
    def stream(self) -> str:
        """The stream it belongs to; "" leaves the choice to the origin."""
        return self.header.stream

    @property
    def timestamp_ns(self) -> int:
        """Nanoseconds since 1970 in UTC; 0 if not stamped."""
        return self.header.timestamp_ns

    @property
    def control(self) -> Control:
        """How the network shall treat it."""
        return self.header.control

    @property
    def content_type(self) -> str:
        """What the payload is, in the application's words; "" if it does not say."""
        return self.header.content_type

    def __getitem__(self, name: str) -> Value:
        return self.attributes[name]

    def get(self, name: str, default: Default | None = None) -> Value | Default | None:
        """The value of the attribute, or `default` if the event has none of that name."""
        return self.attributes.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self.attributes

    def __iter__(self) -> Iterator[str]:
        return iter(self.attributes)

    def keys(self) -> KeysView[str]:
        """The names of the attributes, in order."""
        return self.attributes.keys()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return (
            self.header == other.header
            and self.payload == other.payload
            and _comparable(self.attributes) == _comparable(other.attributes)
        )

    def __hash__(self) -> int:
        return hash((self.header, self.payload, _comparable(self.attributes)))

    def __reduce__(self) -> tuple[object, ...]:
        # A read-only mapping does not pickle; the dict below it does.
        return Event.of_checked_parts, (self.header, self.attributes.copy(), self.payload)

    def __repr__(self) -> str:
        shown = [f"{clipped(name)}: {_brief(self[name])}" for name in [*self][:_REPR_ATTRIBUTES]]
        if len(self.attributes) > _REPR_ATTRIBUTES:
            shown.append(f"… {len(self.attributes) - _REPR_ATTRIBUTES} more")
        parts = ["{" + ", ".join(shown) + "}"]
        if self.payload:
            parts.append(f"payload of {len(self.payload)} bytes")
        if self.stream:
            parts.append(f"stream={clipped(self.stream)}")
        if self.id is not None:
            parts.append(f"id={clipped(str(self.id))}")
        return f"Event({', '.join(parts)})"


def _set_parts(
    event: Event,
    header: Header,
    attributes: MappingProxyType[str, Value],
    payload: bytes,
    checked: tuple[Limits, int] | None,
) -> None:
    # Frozen for everybody else; nobody else gets hold of the dict below the attributes.
    _set(event, "header", header)
    _set(event, "attributes", attributes)
    _set(event, "payload", payload)
    _set(event, "_checked", checked)


def _own_attributes(attributes: object) -> dict[str, Value]:
    if not isinstance(attributes, Mapping):
        raise EventError(
            f"attributes is of type {type(attributes).__name__};"
            ' it must be a mapping such as {"symbol": "IBM"}'
        )
    return dict(attributes)


def _own_payload(payload: object, limits: Limits) -> bytes:
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise EventError(
            f"payload is of type {type(payload).__name__}; it must be bytes, encode text first"
        )
    size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    if size > limits.payload_bytes_max:
        raise EventError(
            f"the payload has {size} bytes; at most {limits.payload_bytes_max} are allowed"
        )
    return bytes(payload)


def _check_encoded_size(encoded: bytes, limits: Limits) -> None:
    if len(encoded) > limits.event_bytes_max:
        raise EventError(
            f"the event takes {len(encoded)} bytes; at most {limits.event_bytes_max} are allowed"
        )


def _comparable(attributes: Mapping[str, Value]) -> frozenset[tuple[str, type, object]]:
    # NaN differs from itself and may hash by identity; None is no value, so it can stand for it.
    return frozenset(
        (name, type(value), value if value == value else None) for name, value in attributes.items()
    )


def _brief(value: Value) -> str:
    return clipped(value) if isinstance(value, str) else repr(value)
