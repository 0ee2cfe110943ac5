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

from collections.abc import Iterator, KeysView, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self, TypeVar, final

import msgspec

from anabranch.model.attributes import check_attributes
from anabranch.model.errors import EventError
from anabranch.model.header import DEFAULT_CONTROL, Control, EventId, Header, check_header
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import clipped
from anabranch.model.values import Value

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
