"""Events as bytes: the layout, and what a relay reads."""

import struct
from collections.abc import Mapping

import msgspec
import pytest

from anabranch.model.encoding import decode_envelope, decode_event, encode_event
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.event import Control, Event, EventId, Value
from anabranch.model.limits import Limits
from tests.event_parts import (
    ATTRIBUTES,
    EVENT,
    EVERYTHING,
    HEADER,
    Bytes,
    frame,
    undecodable,
    with_header,
    with_value,
)

# -- layout and round trips


def test_the_layout_is_one_array_of_version_header_attributes_and_payload() -> None:
    assert encode_event(EVENT) == frame()
    assert msgspec.msgpack.decode(frame()) == [1, HEADER, ATTRIBUTES, b"\0\1\2"]


def test_the_bytes_of_version_1_stay_what_they_are() -> None:
    # Logs and archives hold them. A change of this test is a new version.
    assert encode_event(EVENT).hex() == (
        "9401"
        "95"
        "93a6666565642d310311"
        "a671756f746573"
        "cf17979cfe362a0000"
        "97aa70657273697374656e74c0c0c004a090"
        "aa746578742f706c61696e"
        "84"
        "a673796d626f6ca349424d"
        "a57072696365cb4029000000000000"
        "a6766f6c756d6564"
        "a668616c746564c2"
        "c403000102"
    )


def test_control_information_travels_as_an_array() -> None:
    header = msgspec.msgpack.decode(encode_event(EVERYTHING))[1]
    assert header[3] == ["transient", 10**9, 0, 2, 9, "order 12", ["desk-1", "desk-2"]]


@pytest.mark.parametrize("event", [EVENT, EVERYTHING, Event(id=EventId("p", 0, 0))])
def test_an_event_comes_back_as_it_was(event: Event) -> None:
    again = decode_event(encode_event(event))
    assert again == event
    assert list(again) == list(event)
    assert [*map(type, again.attributes.values())] == [*map(type, event.attributes.values())]
    assert encode_event(again) == encode_event(event)


@pytest.mark.parametrize(
    "bits",
    [
        0x0000_0000_0000_0000,  # 0.0
        0x8000_0000_0000_0000,  # -0.0
        0x0000_0000_0000_0001,  # the smallest float
        0x7FEF_FFFF_FFFF_FFFF,  # the largest
        0x7FF0_0000_0000_0000,  # infinity
        0xFFF0_0000_0000_0000,  # minus infinity
        0x7FF8_0000_0000_0000,  # NaN
        0xFFF8_0000_0000_0001,  # NaN with a sign and something to say
    ],
)
def test_floats_come_back_bit_by_bit(bits: int) -> None:
    (value,) = struct.unpack(">d", bits.to_bytes(8))
    event = Event({"a": value}, id=EventId("p", 0, 0))
    assert struct.pack(">d", decode_event(encode_event(event))["a"]) == bits.to_bytes(8)


def test_an_event_without_id_is_not_encoded() -> None:
    with pytest.raises(EventError, match="no id"):
        encode_event(Event({"a": 1}))


def test_longer_forms_of_lengths_and_numbers_are_read() -> None:
    longer = b"\xdf\0\0\0\1" + b"\xdb\0\0\0\1a" + b"\xd3" + (5).to_bytes(8)
    event = decode_event(frame(attributes=Bytes(longer)))
    assert event.attributes == {"a": 5}
    assert decode_event(with_value(Bytes(b"\xca\x3f\x80\0\0")))["a"] == 1.0


def test_the_end_of_control_information_may_be_left_out() -> None:
    assert decode_event(with_header(3, [])).control == Control()
    assert decode_event(with_header(3, ["transient", None, 2])).control == Control(
        persistence="transient", hop_limit=2
    )


@pytest.mark.parametrize(
    ("attributes", "destinations"),
    [
        (EVERYTHING.attributes, 2),
        ({}, 256),
        ({f"{number:020}": 0.5 for number in range(200)}, 0),
        ({f"{number:020}": 2**40 for number in range(200)}, 0),
        ({f"{number:020}": "é" * 300 for number in range(200)}, 0),
    ],
    ids=["few", "destinations", "floats", "integers", "texts"],
)
def test_the_size_limit_is_exact_on_both_sides(
    attributes: Mapping[str, Value], destinations: int
) -> None:
    control = Control(destinations=tuple(map(str, range(destinations))))
    plain = Event(attributes, payload=bytes(300), control=control)
    event_id = EventId("p", 2**62, 2**62)
    event = plain.stamped(event_id, 2**62)
    encoded = encode_event(event)
    enough, short = Limits(event_bytes_max=len(encoded)), Limits(event_bytes_max=len(encoded) - 1)
    assert plain.stamped(event_id, 2**62, limits=enough) == decode_event(encoded, enough) == event
    with pytest.raises(EventError, match=f"takes {len(encoded)} bytes; at most"):
        plain.stamped(event_id, 2**62, limits=short)
    assert "at most" in undecodable(encoded, short)


# -- what a relay reads


def test_an_envelope_shows_what_is_routed_by() -> None:
    envelope = decode_envelope(encode_event(EVERYTHING))
    assert envelope.id == EVERYTHING.id
    assert envelope.stream == "quotes"
    assert envelope.timestamp_ns == EVERYTHING.timestamp_ns
    assert envelope.control == EVERYTHING.control
    assert envelope.header == EVERYTHING.header


def test_an_envelope_gives_the_rest_when_asked() -> None:
    envelope = decode_envelope(encode_event(EVERYTHING))
    assert envelope.attributes() == EVERYTHING.attributes
    assert envelope.event() == EVERYTHING


def test_relayed_bytes_are_the_bytes_that_arrived() -> None:
    unusual = frame(attributes=Bytes(b"\xde\0\1\xd9\1a\xcd\0\5"))
    envelope = decode_envelope(unusual)
    assert envelope.encoded is unusual
    assert encode_event(envelope.event()) != unusual


def test_the_payload_of_an_envelope_is_a_view_and_no_copy() -> None:
    data = encode_event(EVENT)
    assert decode_envelope(data).payload.obj is data


@pytest.mark.parametrize(
    "attributes",
    [{"a": None}, {"a": [1]}, {1: 1}, 7, Bytes(b"\x82\xa1a\1\xa1a\2"), Bytes(b"\x81\xa1\xff\1")],
)
def test_an_envelope_does_not_look_into_attributes(attributes: object) -> None:
    data = frame(attributes=attributes)
    envelope = decode_envelope(data)
    assert envelope.id == EventId("feed-1", 3, 17)
    with pytest.raises(RemoteError):
        envelope.attributes()
    with pytest.raises(RemoteError):
        decode_event(data)


def test_two_calls_give_two_dicts() -> None:
    envelope = decode_envelope(encode_event(EVENT))
    envelope.attributes()["symbol"] = "changed"
    assert envelope.attributes()["symbol"] == "IBM"
