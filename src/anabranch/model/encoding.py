"""Events as bytes, and bytes as events.

An encoded event is one MessagePack array of four items:

    0x94  version  header  attributes  payload

    version      1
    header       [id, stream, timestamp, control, content type], see `header`
    attributes   a map from names to values
    payload      one binary string

Arrays stand where the order of fields is fixed, so no field name travels. Theory of operation: the
version is checked first, on the bytes. One pass in C then checks the frame, decodes the header and
walks over attributes and payload without looking into them: that is an `Envelope`, all that a
relay reads. Attributes are decoded when somebody asks.

Rules:

1. Relayed bytes are the bytes that arrived. A broker forwards `envelope.encoded` and never encodes
   an event again, so that nothing a peer wrote is lost, reordered or rounded on the way.
2. Any bytes decode or raise `RemoteError`, nothing else.
3. Lengths are checked before anything is allocated for them: the whole event against
   `event_bytes_max` before a byte is read; the counts of attributes and destinations, which are
   only declared, before there is a container. A text is never longer than the event it is in; as
   a `str` it takes up to four times its bytes until it is checked. Nesting deeper than an event's
   is refused where it begins, or by the decoder's own bound.
4. An attribute name that comes twice is an error. The decoder would keep the last value, another
   reader perhaps the first; so the number of names must be the number of entries declared.
5. Items beyond the last are an error, and so are missing ones, but for the end of control
   information, where the default stands in.
6. The one writer uses the shortest forms; the reader accepts longer ones and 32-bit floats.

What is left unchecked in an envelope is the inside of the attributes; `attributes()` checks it.
The origin decodes every event as a whole, so a bad one does not get further than its first broker.

This module keeps no state.
"""

from typing import Annotated

import msgspec

from anabranch.model.attributes import check_attributes, names_are_plain
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.event import ENCODING_VERSION, Event, encoded_parts
from anabranch.model.header import Control, EventId, Header, check_decoded_header
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.values import INT_MAX, INT_MIN, Value

_PREFIX = bytes([0x94, ENCODING_VERSION])
#: Everything that reading foreign bytes can raise, our own checks included.
_REFUSALS = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    OverflowError,
    MemoryError,
    EventError,
)
#: Bytes of a decoder's complaint that are repeated; it may quote what it was fed.
_COMPLAINT_CHARACTERS_MAX = 200

_FIXED_MAP, _FIXED_MAP_END, _MAP_16, _MAP_32 = 0x80, 0x90, 0xDE, 0xDF


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    """The four items, as they come. Their number and the version are known from the prefix."""

    version: int
    header: Header
    attributes: msgspec.Raw
    payload: memoryview


_Integer = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
_frame_decoder = msgspec.msgpack.Decoder(_Frame)
_attributes_decoder = msgspec.msgpack.Decoder(dict[str, str | _Integer | float | bool])


class Envelope(msgspec.Struct, frozen=True):
    """An event as a relay sees it: the header is read, the content is still bytes."""

    #: The event, byte by byte as it arrived: what is relayed.
    encoded: bytes
    id: EventId
    header: Header
    #: The map of attributes as bytes, not looked into.
    raw_attributes: msgspec.Raw
    #: A view into `encoded`.
    payload: memoryview
    #: What the event was and will be checked against.
    limits: Limits

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
        """How the network shall treat the event."""
        return self.header.control

    def attributes(self) -> dict[str, Value]:
        """The attributes, decoded and checked anew at every call."""
        return _decode_attributes(self.raw_attributes, self.limits)

    def event(self) -> Event:
        """The whole event."""
        return Event.of_checked_parts(self.header, self.attributes(), bytes(self.payload))


def encode_event(event: Event) -> bytes:
    """The bytes that stand for `event` on links and in logs. It must have an id."""
    if event.id is None:
        raise EventError("the event has no id; give it one with event.stamped(id, timestamp_ns)")
    return encoded_parts(event.header, event.attributes.copy(), event.payload)


def decode_event(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Event:
    """The event that `data` stands for, everything checked."""
    return decode_envelope(data, limits).event()


def decode_envelope(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Envelope:
    """The header of the event that `data` stands for; its attributes remain bytes."""
    if len(data) > limits.event_bytes_max:
        raise RemoteError(
            f"an event of {len(data)} bytes arrived; at most {limits.event_bytes_max} are allowed"
        )
    if data[:2] != _PREFIX:
        raise RemoteError(
            f"an event starts with {data[:2].hex() or 'nothing'} instead of {_PREFIX.hex()};"
            f" only version {ENCODING_VERSION} of the encoding is known here"
        )
    try:
        frame = _frame_decoder.decode(data)
        check_decoded_header(frame.header, limits)
    except _REFUSALS as error:
        raise _refusal(error) from error
    if frame.header.id is None:
        raise RemoteError("an event arrived without an id; its publisher must give it one")
    if len(frame.payload) > limits.payload_bytes_max:
        raise RemoteError(
            f"an event with a payload of {len(frame.payload)} bytes arrived;"
            f" at most {limits.payload_bytes_max} are allowed"
        )
    return Envelope(data, frame.header.id, frame.header, frame.attributes, frame.payload, limits)


def _decode_attributes(raw: msgspec.Raw, limits: Limits) -> dict[str, Value]:
    view = memoryview(raw)
    count = _declared_entries(view)
    if count > limits.attributes_max:
        raise RemoteError(
            f"an event with {count} attributes arrived; at most {limits.attributes_max} are allowed"
        )
    try:
        attributes: dict[str, Value] = _attributes_decoder.decode(raw)
        # The decoder has checked types and integers, and no value is longer than all of them.
        if len(view) > limits.value_bytes_max or not names_are_plain(attributes, limits):
            check_attributes(attributes, limits)
    except _REFUSALS as error:
        raise _refusal(error) from error
    if len(attributes) != count:
        raise RemoteError("an event with two attributes of one name arrived")
    return attributes


def _declared_entries(raw: memoryview) -> int:
    """How many entries the map that starts here says it has."""
    first = raw[0] if len(raw) else 0
    if _FIXED_MAP <= first < _FIXED_MAP_END:
        return first - _FIXED_MAP
    if first == _MAP_16:
        return int.from_bytes(raw[1:3])
    if first == _MAP_32:
        return int.from_bytes(raw[1:5])
    raise RemoteError("an event arrived whose attributes are not a map")


def _refusal(error: Exception) -> RemoteError:
    return RemoteError(f"an invalid event arrived: {str(error)[:_COMPLAINT_CHARACTERS_MAX]}")
