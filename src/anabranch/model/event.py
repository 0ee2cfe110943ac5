"""Events, their attribute values and their headers.

An event consists of typed attributes, by which it is matched; an opaque payload, which only the
application reads; and a header, which identifies the event and controls its treatment.

    Event({"symbol": "IBM", "price": 12.5}, payload=b"…", stream="quotes")

Events:

1. An event is immutable, including everything it contains.
2. Attributes are passed as one mapping, never as keywords: keywords name the other parts, and an
   attribute called `stream` or `id` must not become one of them by accident.
3. Building an invalid event raises `EventError`. An existing event can be encoded, and decoded
   under the same limits.
4. Two events are equal if all their parts are. Attributes are equal if names, kinds and values are:
   1, 1.0 and TRUE are three values, −0.0 and 0.0 are one, NaN equals NaN. The order of attributes
   is kept but does not count. The hash is consistent with that.
5. `event["price"]`, `event.get("price")`, `"price" in event` and `dict(event)` read attributes. An
   event has no length, so that an event without attributes is not false.
6. Building an event reads no clock and assigns no id. `stamped` adds both, once, when the event is
   published.

Values. An attribute value is a string, a 64-bit integer, a 64-bit float or a boolean:

7. Values of different kinds do not compare: the result is UNKNOWN, never an error, never False. The
   kinds are *text*, *number* and *truth*; a boolean is not a number.
8. An integer and a float compare exactly by value, also beyond 2**53: 9007199254740993 is greater
   than 9007199254740992.0. Nothing is rounded.
9. −0.0 equals 0. The infinities are the ends of the number line and equal themselves.
10. NaN is not on the number line: every comparison with it is UNKNOWN. It is present, so IS NULL is
    false for it.
11. Strings compare by code point, which is also the order of their UTF-8 bytes, without
    normalisation: two spellings of one letter are two strings.
12. Truth values compare by equality only; their order is UNKNOWN.

The number line `int64 ∪ float64` is finite, so each number has a neighbour on either side;
`number_after` and `number_before` return them. With their help every interval can be written with
both ends included, which makes emptiness, covering and intersection of intervals exact: nothing
lies strictly between 1.0 and 1.0000000000000002.

Attributes:

13. The type of a value is exactly `str`, `int`, `float` or `bool`. A `datetime` with a time zone is
    converted to its timestamp, an integer (`timestamps`). Everything else is refused with a hint
    (`foreign_values`) and never converted, including subclasses and numpy scalars: a conversion
    that loses bits or turns a truth into a number should be visible in the program that performs
    it. `convert_datetimes` is the only place that converts, and only after the check of exact types
    has failed: other events pay nothing.
14. A float is any float: NaN, the infinities and −0.0 are transmitted bit by bit. A string is any
    Unicode text, control characters included, but no lone surrogates.
15. None is refused; leave the attribute out.
16. Names follow `names`; counts and sizes follow `Limits`.
17. Names that begin with `anabranch.pattern` are reserved for the network. An event may have them,
    but no client may publish it (`reserved_in`).

The header contains everything except attributes and payload; it is all that a relay reads. The id
identifies an event in three parts:

- *publisher*: Names are unique in the network, so ids of different publishers never collide, and
  the order of one publisher's events does not depend on others.
- *incarnation*: Increases with every start, move or reconnect of the publisher. A publisher that
  lost its state need not know its last sequence, and late events of an old incarnation are not
  mistaken for duplicates of the new one's. (The Grid Event Service uses a start timestamp and an
  incarnation for these two purposes; a number that increases on both occasions serves both.)
- *sequence*: Increases with every event of an incarnation, so duplicate detection is one comparison
  with the last id. 63 bits do not wrap.

Ids are ordered by these parts, which is the publishing order within one publisher. Headers:

18. A header is immutable in transit. Information added by a hop belongs to the frame around the
    event.
19. An unpublished event has no id; publishing assigns one, once.
20. `None` means "no limit", which differs from 0: hop limit 0 stays at the origin broker.
21. A missing timestamp is 0; an empty stream leaves the choice to the origin.
22. The types below bound every number and the count of destinations, so that a decoder refuses them
    before it allocates; `check_decoded_header` checks the rest: texts and duplicates.
23. `after` is set when the event is published (`core.session.publisher_order`), whatever the
    application gave. Without it, control information is encoded without a place for it.

Prior art: Pallickara, A Grid Event Service (2001), §3.1, §4.6; priorities from Jakarta Messaging.
"""

import math
from collections.abc import Iterator, KeysView, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Self, TypeVar, cast, final, get_args

import msgspec

from anabranch.model.errors import EventError
from anabranch.model.foreign_values import remedy_for
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_name, check_optional_name, clipped, is_plain, utf8_bytes
from anabranch.model.timestamps import TimestampError, timestamp_of

Number = int | float
Value = str | int | float | bool
Attributes = Mapping[str, Value]
#: Attributes as a program gives them.
GivenAttributes = Mapping[str, Value | datetime]

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1
#: Every integer up to this magnitude is a float.
FLOAT_EXACT_MAX = 2**53
INFINITY = math.inf


def number_after(number: Number) -> Number:
    """Return the smallest 64-bit integer or float greater than `number`; infinity has none."""
    assert number != INFINITY
    if FLOAT_EXACT_MAX <= number < INT_MAX or INT_MIN <= number < -FLOAT_EXACT_MAX:
        return int(number) + 1
    if number == INT_MAX:
        return 2.0**63
    # Adding zero turns the −0.0 after the greatest negative float into 0.0.
    return math.nextafter(number, INFINITY) + 0.0


def number_before(number: Number) -> Number:
    """Return the greatest 64-bit integer or float smaller than `number`; minus infinity has
    none.
    """
    assert number != -INFINITY
    if FLOAT_EXACT_MAX < number <= INT_MAX or INT_MIN < number <= -FLOAT_EXACT_MAX:
        return int(number) - 1
    if number == 2.0**63:
        return INT_MAX
    return math.nextafter(number, -INFINITY)


def text_after(text: str) -> str:
    """Return the smallest string greater than `text`."""
    return text + "\0"


def prefix_end(prefix: str) -> str | None:
    """Return the smallest string greater than every string with this prefix, or None."""
    for index in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[index])
        if point < 0x10FFFF:
            after = 0xE000 if point == 0xD7FF else point + 1
            return prefix[:index] + chr(after)
    return None


#: The maximum overhead of a name and its value: two string headers, or one and 8 bytes.
_FRAMING_BYTES_MAX = 14
#: Names with this prefix are reserved for the network.
RESERVED = "anabranch.pattern"
_RESERVED_BYTES = RESERVED.encode()


def check_attributes(attributes: Mapping[str, Value], limits: Limits) -> int:
    """Return the maximum encoded size of the attributes; raise `EventError` for an invalid one."""
    if len(attributes) > limits.attributes_max:
        raise EventError(
            f"the event has {len(attributes)} attributes;"
            f" at most {limits.attributes_max} are allowed"
        )
    size = _FRAMING_BYTES_MAX * len(attributes) + _check_names(attributes, limits)
    for name, value in attributes.items():
        # Not isinstance, for which True is an int and numpy's float64 a float.
        if type(value) is str:
            size += _check_text(name, value, limits)
        elif type(value) is int:
            if not INT_MIN <= value <= INT_MAX:
                raise EventError(_too_large(name))
        elif type(value) is not float and type(value) is not bool:
            raise EventError(_wrong_type(name, value))
    return size


def convert_datetimes(attributes: dict[str, Value]) -> bool:
    """Replace datetimes by their timestamps (rule 13); return whether there were any."""
    given = cast("dict[str, Value | datetime]", attributes)
    moments = {name: value for name, value in given.items() if isinstance(value, datetime)}
    for name, moment in moments.items():
        try:
            attributes[name] = timestamp_of(moment)
        except TimestampError as error:
            problem = f"attribute {clipped(name)} is {error.message}; give {error.expected}"
            raise EventError(problem) from None
    return bool(moments)


def reserved_in(encoded: bytes, attributes: Mapping[str, Value]) -> str:
    """Return why a client must not publish an event with these attributes, or "".

    `encoded` is the complete event: searching its bytes is nearly always sufficient.
    """
    if _RESERVED_BYTES in encoded:
        for name in attributes:
            if name.startswith(RESERVED):
                own = f"names that begin with {RESERVED!r} are the network's own"
                return f"attribute {clipped(name)}: {own}"
    return ""


def names_are_plain(attributes: Mapping[str, Value], limits: Limits) -> bool:
    """Return whether all names are valid according to a check of their concatenation.

    The names must be strings. Together they are nearly always short plain ASCII.
    """
    return "" not in attributes and is_plain("".join(attributes), limits.name_bytes_max)


def _check_names(attributes: Mapping[str, Value], limits: Limits) -> int:
    """Return the size of all names, or an upper bound of it."""
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
    # The number is not shown: it may have more digits than Python prints.
    return (
        f"attribute {clipped(name)} is an integer outside {INT_MIN} … {INT_MAX};"
        " use a float or a string"
    )


def _wrong_type(name: str, value: object) -> str:
    kind = type(value)
    place = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    what = "None" if value is None else f"a {place}{kind.__qualname__}"
    return f"attribute {clipped(name)} is {what}; {remedy_for(value)}"


Persistence = Literal["transient", "persistent"]
Count = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=9)]
Timestamp = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]

#: An absolute limit on destinations, so that a decoder does not allocate more.
DESTINATIONS_CEILING = 65_535
Destinations = Annotated[tuple[str, ...], msgspec.Meta(max_length=DESTINATIONS_CEILING)]

#: The number of origins that `after` may name.
AFTER_MAX = 16
#: Origin and tick: the event follows everything in that stream up to this tick. No origin twice.
After = Annotated[tuple[tuple[str, Count], ...], msgspec.Meta(max_length=AFTER_MAX)]

#: The maximum overhead of a header beside its texts and destinations, outer framing included.
_HEADER_FRAMING_BYTES_MAX = 128
_TEXT_FRAMING_BYTES_MAX = 5
_TICK_BYTES_MAX = 10
#: A placeholder for the publisher of an unpublished event, for checking texts.
_UNPUBLISHED = "-"


def utc_text(time_ns: int) -> str:
    """Return nanoseconds since 1970 in UTC as a readable date."""
    assert 0 <= time_ns <= INT_MAX, time_ns
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class EventId(
    msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """The id of an event, unique over all time. See the top of this module."""

    publisher: str
    #: Increases with every start, move or reconnect of the publisher.
    incarnation: Count
    #: Increases with every event of an incarnation.
    sequence: Count

    def __str__(self) -> str:
        return f"{self.publisher}:{self.incarnation}:{self.sequence}"


class Control(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """How the network treats an event. The defaults suit most events."""

    #: `persistent` events survive crashes and reach durable subscriptions; `transient` ones are
    #: sent once.
    persistence: Persistence = "persistent"
    #: Time to live in nanoseconds from when the event is stored; None: unlimited.
    time_limit_ns: Count | None = None
    #: Maximum number of hops between brokers; None: unlimited.
    hop_limit: Count | None = None
    #: Level of the unit that the event must not leave (0 the broker, 1 its cluster …); None: none.
    level_limit: Count | None = None
    #: 0 (lowest) to 9.
    priority: Priority = 4
    #: Correlation id chosen by the application; "": none.
    correlation_id: str = ""
    #: Clients that receive the event; empty: every client whose filter matches. No duplicates.
    destinations: Destinations = ()

    #: What the event follows in other streams; see `OrderedControl`.
    after: ClassVar[After] = ()

    @property
    def is_kept(self) -> bool:
        """Whether every matching subscription receives the event, now or later, anywhere."""
        limits = (self.time_limit_ns, self.hop_limit, self.level_limit)
        is_limited = any(limit is not None for limit in limits)
        return self.persistence == "persistent" and not is_limited and not self.destinations


DEFAULT_CONTROL = Control()


class OrderedControl(
    Control, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """Control information of an event that follows others: with an eighth item."""

    after: After = ()  # type: ignore[misc]  # a field here, a constant in the class above


def ordered(control: Control, after: After) -> Control:
    """Return this control information with this `after` instead of its own."""
    if not after and type(control) is Control:
        return control
    fields = {name: getattr(control, name) for name in Control.__struct_fields__}
    return OrderedControl(**fields, after=after) if after else Control(**fields)


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """All parts of an event except attributes and payload."""

    id: EventId | None
    stream: str
    #: Event time according to the publisher: nanoseconds since 1970 in UTC; 0 if not given.
    timestamp_ns: Timestamp
    control: Control
    content_type: str


def check_header(header: Header, limits: Limits) -> int:
    """Return the maximum encoded size of a header; raise `EventError` for an invalid field."""
    if header.id is not None:
        _check_id(header.id)
    _check_integer("timestamp_ns", header.timestamp_ns, INT_MIN, INT_MAX)
    if header.control is not DEFAULT_CONTROL:
        _check_control(header.control)
    _check_string("stream", header.stream)
    _check_string("content_type", header.content_type)
    return check_decoded_header(header, limits)


def check_decoded_header(header: Header, limits: Limits) -> int:
    """Like `check_header`, for a header whose types and numbers the decoder has checked."""
    control = header.control
    publisher = _UNPUBLISHED if header.id is None else header.id.publisher
    texts = publisher + header.stream + header.content_type + control.correlation_id
    # If all texts together are within the limit of one, each of them is: the usual case.
    if publisher and is_plain(texts, limits.name_bytes_max):
        size = len(texts)
    else:
        size = _check_each_text(header, publisher, limits)
    if control.destinations:
        size += _check_destinations(control.destinations, limits)
    if control.after:
        size += _check_after(control.after, limits)
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
            raise EventError(f"duplicate destination {clipped(name)}; name it once")
        seen.add(name)
    return size


def _check_after(after: After, limits: Limits) -> int:
    size = (_TEXT_FRAMING_BYTES_MAX + _TICK_BYTES_MAX) * len(after)
    seen: set[str] = set()
    for origin, _ in after:
        size += check_name(origin, "origin in `after`", limits.name_bytes_max)
        if origin in seen:
            raise EventError(f"`after` names origin {clipped(origin)} twice; name it once")
        seen.add(origin)
    return size


def _check_id(event_id: object) -> None:
    if type(event_id) is not EventId:
        raise EventError(f"id is of type {type(event_id).__name__}; it must be an EventId")
    _check_string("publisher", event_id.publisher)
    _check_integer("incarnation", event_id.incarnation, 0, INT_MAX)
    _check_integer("sequence", event_id.sequence, 0, INT_MAX)


def _check_control(control: object) -> None:
    if type(control) is not Control and type(control) is not OrderedControl:
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
    if control.after:
        _check_after_types(control.after)


def _check_after_types(after: object) -> None:
    if type(after) is not tuple or len(after) > AFTER_MAX:
        raise EventError(f"`after` must be a tuple of at most {AFTER_MAX} pairs")
    for pair in after:
        if type(pair) is not tuple or len(pair) != 2:
            raise EventError("`after` must consist of pairs of origin and tick")
        _check_string("the origin in `after`", pair[0])
        _check_integer("the tick in `after`", pair[1], 0, INT_MAX)


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
        # The number is not shown: it may have more digits than Python prints.
        raise EventError(f"{what} is outside {low} … {high}; choose a value within")


__all__ = [
    "AFTER_MAX",
    "ENCODING_VERSION",
    "After",
    "Control",
    "Event",
    "EventId",
    "Header",
    "OrderedControl",
    "encoded_parts",
    "ordered",
]

#: The first item of every encoded event. A different layout gets a different number.
ENCODING_VERSION = 1

Default = TypeVar("Default")
_encoder = msgspec.msgpack.Encoder()
_set = object.__setattr__
_NO_ATTRIBUTES: Mapping[str, Value] = MappingProxyType({})
_REPR_ATTRIBUTES = 4


def encoded_parts(header: Header, attributes: dict[str, Value], payload: bytes) -> bytes:
    """Encode an event of these parts; `encoding` describes the format."""
    return _encoder.encode((ENCODING_VERSION, header, attributes, payload))


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Event:
    """An immutable event. See the rules at the top of this module."""

    header: Header
    #: Read-only, in the given order.
    attributes: MappingProxyType[str, Value]
    payload: bytes
    #: The limits that everything but the header was checked against, and the maximum encoded size;
    #: None if unknown.
    _checked: tuple[Limits, int] | None

    def __init__(
        self,
        attributes: GivenAttributes = _NO_ATTRIBUTES,
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
        attributes_copy = _copied_attributes(attributes)
        payload_copy = _copied_payload(payload, limits)
        try:
            size = check_attributes(attributes_copy, limits)
        except EventError:
            if not convert_datetimes(attributes_copy):
                raise
            size = check_attributes(attributes_copy, limits)
        size += len(payload_copy)
        if size + check_header(header, limits) > limits.event_bytes_max:
            _check_encoded_size(encoded_parts(header, attributes_copy, payload_copy), limits)
        _set_parts(self, header, MappingProxyType(attributes_copy), payload_copy, (limits, size))

    @classmethod
    def of_checked_parts(cls, header: Header, attributes: dict[str, Value], payload: bytes) -> Self:
        """Create an event of checked parts without checking them again. It takes ownership of the
        dict.
        """
        event = object.__new__(cls)
        _set_parts(event, header, MappingProxyType(attributes), payload, None)
        return event

    def stamped(
        self,
        event_id: EventId,
        timestamp_ns: int,
        *,
        limits: Limits = DEFAULT_LIMITS,
        after: After = (),
    ) -> "Event":
        """Return this event with an id, with this `after`, and with this timestamp if it has
        none.
        """
        if self.id is not None:
            raise EventError(f"the event already has the id {self.id}; publish a new event instead")
        own, checked = self.header, self._checked
        header = Header(
            event_id,
            own.stream,
            own.timestamp_ns or timestamp_ns,
            ordered(own.control, after),
            own.content_type,
        )
        size = None if checked is None or checked[0] is not limits else checked[1]
        if size is None:
            size = check_attributes(self.attributes, limits) + len(self.payload)
            _copied_payload(self.payload, limits)
        if size + check_header(header, limits) > limits.event_bytes_max:
            encoded = encoded_parts(header, self.attributes.copy(), self.payload)
            _check_encoded_size(encoded, limits)
        event = object.__new__(Event)
        _set_parts(event, header, self.attributes, self.payload, (limits, size))
        return event

    @property
    def id(self) -> EventId | None:
        """The id of the event; None until it is published."""
        return self.header.id

    @property
    def stream(self) -> str:
        """The stream of the event; "" leaves the choice to the origin."""
        return self.header.stream

    @property
    def timestamp_ns(self) -> int:
        """Event time in nanoseconds since 1970 in UTC; 0 if not stamped."""
        return self.header.timestamp_ns

    @property
    def control(self) -> Control:
        """How the network treats the event."""
        return self.header.control

    @property
    def content_type(self) -> str:
        """The content type of the payload, as chosen by the application; "" if not given."""
        return self.header.content_type

    def __getitem__(self, name: str) -> Value:
        return self.attributes[name]

    def get(self, name: str, default: Default | None = None) -> Value | Default | None:
        """Return the value of an attribute, or `default` if the event does not have it."""
        return self.attributes.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self.attributes

    def __iter__(self) -> Iterator[str]:
        return iter(self.attributes)

    def keys(self) -> KeysView[str]:
        """Return the names of the attributes, in order."""
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
        # A read-only mapping cannot be pickled; the underlying dict can.
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
    # The class is frozen; this is the only place that sets its fields.
    _set(event, "header", header)
    _set(event, "attributes", attributes)
    _set(event, "payload", payload)
    _set(event, "_checked", checked)


def _copied_attributes(attributes: GivenAttributes) -> dict[str, Value]:
    """Return a copy, to be checked; its values may still be datetimes."""
    if not isinstance(attributes, Mapping):
        raise EventError(
            f"attributes is of type {type(attributes).__name__};"
            ' it must be a mapping such as {"symbol": "IBM"}'
        )
    return cast("dict[str, Value]", dict(attributes))


def _copied_payload(payload: object, limits: Limits) -> bytes:
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
    # NaN differs from itself and may hash by identity; None is not a value and can represent it.
    return frozenset(
        (name, type(value), value if value == value else None) for name, value in attributes.items()
    )


def _brief(value: Value) -> str:
    return clipped(value) if isinstance(value, str) else repr(value)
