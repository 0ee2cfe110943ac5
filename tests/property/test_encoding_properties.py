"""Random events survive encoding; random bytes decode or raise the remote error."""

import struct

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anabranch.model.encoding import (
    check_draft,
    decode_envelope,
    decode_event,
    encode_draft,
    encode_event,
    identified,
)
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.event import Control, Event, EventId, reserved_in
from anabranch.model.limits import DEFAULT_LIMITS, Limits

INT64 = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
VALUES = TEXTS | INT64 | st.floats() | st.booleans()
IDS = st.builds(EventId, NAMES, COUNTS, COUNTS)
CONTROLS = st.builds(
    Control,
    persistence=st.sampled_from(["transient", "persistent"]),
    time_limit_ns=st.none() | COUNTS,
    hop_limit=st.none() | COUNTS,
    level_limit=st.none() | COUNTS,
    priority=st.integers(0, 9),
    correlation_id=st.just("") | NAMES,
    destinations=st.lists(NAMES, max_size=3, unique=True).map(tuple),
)
EVENTS = st.builds(
    Event,
    st.dictionaries(NAMES, VALUES, max_size=8),
    payload=st.binary(max_size=40),
    content_type=st.just("") | NAMES,
    id=IDS,
    stream=st.just("") | NAMES,
    timestamp_ns=INT64,
    control=CONTROLS,
)
#: Anything MessagePack can say, well beyond what an event may hold.
ITEMS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | TEXTS
    | st.binary(max_size=10)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=4)),
    lambda items: st.lists(items, max_size=5) | st.dictionaries(TEXTS | INT64, items, max_size=4),
    max_leaves=12,
)


def exactly(event: Event) -> object:
    """All of an event in a form in which equal means equal to the last bit, in order."""
    return event.header, event.payload, [(name, *bits(event[name])) for name in event]


def bits(value: object) -> tuple[type, object]:
    return type(value), struct.pack(">d", value) if isinstance(value, float) else value


@given(EVENTS)
def test_a_draft_that_is_given_an_id_is_the_event(event: Event) -> None:
    assert event.id is not None
    header = msgspec.structs.replace(event.header, id=None)
    draft = Event.of_checked_parts(header, dict(event.attributes), event.payload)
    data = encode_draft(draft)
    # Names are drawn from the constants of the sources, too, and some of those are reserved.
    assume(not reserved_in(data, draft.attributes))
    check_draft(data, DEFAULT_LIMITS)
    assert identified(data, event.id) == encode_event(event)


def rebuilt(event: Event, limits: Limits) -> Event:
    return Event(
        event.attributes,
        payload=event.payload,
        content_type=event.content_type,
        id=event.id,
        stream=event.stream,
        timestamp_ns=event.timestamp_ns,
        control=event.control,
        limits=limits,
    )


def decodes_or_is_refused(data: bytes) -> None:
    try:
        event = decode_event(data)
    except RemoteError:
        return
    assert exactly(decode_event(encode_event(event))) == exactly(event)
    assert decode_envelope(data).encoded is data


@given(EVENTS)
def test_an_event_comes_back_to_the_last_bit(event: Event) -> None:
    again = decode_event(encode_event(event))
    assert exactly(again) == exactly(event)
    assert again == event
    assert hash(again) == hash(event)


@given(EVENTS)
def test_an_envelope_agrees_with_the_event(event: Event) -> None:
    envelope = decode_envelope(encode_event(event))
    assert (envelope.id, envelope.header) == (event.id, event.header)
    assert bytes(envelope.payload) == event.payload
    assert exactly(envelope.event()) == exactly(event)


@given(EVENTS)
def test_an_event_is_refused_exactly_when_its_encoding_is_too_large(event: Event) -> None:
    encoded = encode_event(event)
    enough, short = Limits(event_bytes_max=len(encoded)), Limits(event_bytes_max=len(encoded) - 1)
    assert decode_event(encoded, enough) == rebuilt(event, enough) == event
    with pytest.raises(EventError):
        rebuilt(event, short)
    with pytest.raises(RemoteError):
        decode_event(encoded, short)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    decodes_or_is_refused(data)
    decodes_or_is_refused(b"\x94\x01" + data)


@given(ITEMS, ITEMS, ITEMS, EVENTS)
def test_any_items_decode_or_are_refused(
    header: object, attributes: object, payload: object, event: Event
) -> None:
    for items in (
        (header, attributes, payload),
        (event.header, attributes, event.payload),
        (event.header, dict(event), payload),
        (header, dict(event), event.payload),
    ):
        decodes_or_is_refused(msgspec.msgpack.encode((1, *items)))


@given(EVENTS, st.data())
def test_events_with_any_part_replaced_decode_or_are_refused(
    event: Event, data: st.DataObject
) -> None:
    encoded = encode_event(event)
    start = data.draw(st.integers(2, len(encoded)))
    end = data.draw(st.integers(start, min(len(encoded), start + 20)))
    middle = data.draw(st.binary(max_size=20))
    decodes_or_is_refused(encoded[:start] + middle + encoded[end:])


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=8), st.data())
def test_a_repeated_name_is_always_refused(
    attributes: dict[str, object], data: st.DataObject
) -> None:
    repeated = data.draw(st.sampled_from(sorted(attributes)))
    pairs = [*attributes.items(), (repeated, data.draw(VALUES))]
    pack = msgspec.msgpack.encode
    body = b"".join(pack(name) + pack(value) for name, value in data.draw(st.permutations(pairs)))
    header = pack(Event(id=EventId("p", 0, 0)).header)
    encoded = b"\x94\x01" + header + bytes([0x80 + len(pairs)]) + body + pack(b"")
    with pytest.raises(RemoteError, match="duplicate attribute names"):
        decode_event(encoded)
