"""Bytes that are no event: damaged, of wrong types, or meant to do harm."""

import math
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from anabranch.model import encoding
from anabranch.model.encoding import decode_event, encode_event
from anabranch.model.errors import RemoteError
from anabranch.model.event import Event
from tests.event_parts import (
    ATTRIBUTES,
    CONTROL,
    EVENT,
    EVERYTHING,
    HEADER,
    ID,
    Bytes,
    frame,
    pack,
    packed,
    undecodable,
    with_control,
    with_header,
    with_id,
    with_value,
)

# -- damaged bytes


@pytest.mark.parametrize("event", [EVENT, EVERYTHING])
def test_truncation_at_every_byte_is_refused(event: Event) -> None:
    data = encode_event(event)
    for length in range(len(data)):
        undecodable(data[:length])


@pytest.mark.parametrize("event", [EVENT, EVERYTHING])
def test_every_single_byte_mutation_decodes_or_is_refused(event: Event) -> None:
    data = bytearray(encode_event(event))
    decoded = 0
    for place, original in enumerate(data):
        for byte in range(256):
            data[place] = byte
            try:
                other = decode_event(bytes(data))
            except RemoteError:
                continue
            decoded += 1
            assert decode_event(encode_event(other)) == other
        data[place] = original
    # The original itself is met once per place; changes of text and numbers decode too.
    assert decoded > len(data)


@pytest.mark.parametrize("more", [b"\0", b"\xc0", frame()])
def test_trailing_bytes_are_refused(more: bytes) -> None:
    assert "trailing" in undecodable(frame() + more)


@pytest.mark.parametrize(
    "data", [b"", b"\x94", b"\x94\x02" + frame()[2:], b"\xc0", b"{}", b"\x93\1"]
)
def test_another_beginning_or_version_is_refused(data: bytes) -> None:
    assert "only version 1 of the encoding is known" in undecodable(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x93\x01" + pack(HEADER) + pack(ATTRIBUTES),
        b"\x95\x01" + frame()[2:] + b"\xc0",
        frame(header=HEADER[:4]),
        frame(header=[*HEADER, 1]),
        with_header(0, ID[:2]),
        with_header(0, [*ID, 1]),
        with_header(3, [*CONTROL, 1]),
    ],
)
def test_missing_and_additional_items_are_refused(data: bytes) -> None:
    undecodable(data)


# -- wrong types and values

WRONG = [None, True, 1, 1.5, "text", b"bytes", [], [1], {}, {"a": 1}, msgspec.msgpack.Ext(1, b"x")]


def wrong(*allowed: object) -> list[object]:
    """Items of every type but those of `allowed`."""
    kinds = {type(item) for item in allowed}
    return [item for item in WRONG if type(item) not in kinds]


@pytest.mark.parametrize(
    ("build", "items"),
    [
        (lambda item: frame(header=item), WRONG),
        (lambda item: frame(attributes=item), wrong({})),
        (lambda item: frame(payload=item), wrong(b"")),
        (lambda item: with_header(0, item), WRONG),
        (lambda item: with_header(1, item), wrong("")),
        (lambda item: with_header(2, item), wrong(1)),
        (lambda item: with_header(3, item), wrong([])),
        (lambda item: with_header(4, item), wrong("")),
        (lambda item: with_id(0, item), wrong("")),
        (lambda item: with_id(1, item), wrong(1)),
        (lambda item: with_id(2, item), wrong(1)),
        (lambda item: with_control(0, item), WRONG),
        (lambda item: with_control(1, item), wrong(1, None)),
        (lambda item: with_control(2, item), wrong(1, None)),
        (lambda item: with_control(3, item), wrong(1, None)),
        (lambda item: with_control(4, item), wrong(1)),
        (lambda item: with_control(5, item), wrong("")),
        (lambda item: with_control(6, item), wrong([])),
        (with_value, wrong(True, 1, 1.5, "")),
    ],
)
def test_an_item_of_the_wrong_type_is_refused_in_every_place(
    build: Callable[[object], bytes], items: list[object]
) -> None:
    for item in items:
        undecodable(build(item))


@pytest.mark.parametrize(
    "data",
    [
        with_id(0, ""),
        with_id(0, "a\n"),
        with_id(0, "a" * 256),
        with_id(1, -1),
        with_id(2, 2**63),
        with_header(1, "a\0"),
        with_header(1, "é" * 128),
        with_header(2, 2**63),
        with_header(4, "\x85"),
        with_control(0, "durable"),
        with_control(0, "x" * 1_000_000),
        with_control(1, -1),
        with_control(2, 2**64 - 1),
        with_control(4, 10),
        with_control(4, -1),
        with_control(5, "\t"),
        with_control(6, ["a", "a"]),
        with_control(6, [""]),
        with_control(6, ["a", 1]),
        with_control(6, [str(number) for number in range(257)]),
        with_value(2**63),
        with_value(2**64 - 1),
        with_value("v" * 65_537),
        with_value("é" * 32_769),
        frame(payload=b"x" * (4 * 1024 * 1024 + 1)),
        frame(attributes={"": 1}),
        frame(attributes={"a\n": 1}),
        frame(attributes={"a" * 256: 1}),
        frame(attributes={"é" * 128: 1}),
        frame(attributes={f"a{number}": 1 for number in range(257)}),
    ],
    ids=range(30),
)
def test_what_an_event_cannot_hold_is_refused(data: bytes) -> None:
    undecodable(data)


@pytest.mark.parametrize(
    "data",
    [
        with_id(0, "a" * 255),
        with_header(1, ""),
        with_control(6, [str(number) for number in range(256)]),
        with_value(2**63 - 1),
        with_value(-(2**63)),
        with_value("v" * 65_536),
        with_value("é" * 32_768),
        frame(payload=b"x" * (4 * 1024 * 1024)),
        frame(attributes={"é" * 127: 1, "b" * 255: 2}),
        frame(attributes={f"a{number}": 1 for number in range(256)}),
    ],
    ids=range(10),
)
def test_what_an_event_can_just_hold_is_accepted(data: bytes) -> None:
    event = decode_event(data)
    assert encode_event(event) == data


@pytest.mark.parametrize(
    "text",
    [
        b"\xff",
        b"\xc3",
        b"\xc0\x80",  # overlong
        b"\xed\xa0\x80",  # a lone surrogate
        b"\xf4\x90\x80\x80",  # beyond the last code point
    ],
)
def test_text_that_is_no_utf_8_is_refused_in_every_place(text: bytes) -> None:
    item = Bytes(bytes([0xA0 + len(text)]) + text)
    for data in (
        with_id(0, item),
        with_header(1, item),
        with_header(4, item),
        with_control(5, item),
        with_control(6, Bytes(b"\x91" + item.value)),
        with_value(item),
        frame(attributes=Bytes(b"\x81" + item.value + b"\1")),
    ):
        undecodable(data)


@pytest.mark.parametrize(
    "attributes",
    [
        b"\x82\xa1a\1\xa1a\1",
        b"\x82\xa1a\1\xa1a\2",
        b"\x83\xa1a\1\xa1b\1\xa1a\2",
        b"\x82\xa1a\1\xd9\1a\2",
        b"\xde\0\2\xa1a\1\xa1a\2",
        b"\xdf\0\0\0\2\xa1a\1\xa1a\2",
        b"\x82\xa2\xc3\xa9\1\xa2\xc3\xa9\2",
    ],
)
def test_an_attribute_name_that_comes_twice_is_refused(attributes: bytes) -> None:
    assert "duplicate attribute names" in undecodable(frame(attributes=Bytes(attributes)))


def test_two_spellings_of_one_letter_are_two_names() -> None:
    assert len(decode_event(frame(attributes={"é": 1, "e\u0301": 2})).attributes) == 2


# -- bytes that mean harm

GIANT = [
    header + length
    for header, length in [
        (b"\xdb", b"\xff\xff\xff\xff"),  # text
        (b"\xc6", b"\xff\xff\xff\xff"),  # bytes
        (b"\xc9", b"\xff\xff\xff\xff\1"),  # extension
        (b"\xdd", b"\xff\xff\xff\xff"),  # array
        (b"\xdf", b"\xff\xff\xff\xff"),  # map
        (b"\xdd", b"\x03\xff\xff\xff"),  # an array small enough to be reserved
        (b"\xdf", b"\x03\xff\xff\xff"),
        (b"\xda", b"\xff\xff"),
        (b"\xc5", b"\xff\xff"),
        (b"\xdc", b"\xff\xff"),
        (b"\xde", b"\xff\xff"),
    ]
]
BOMBS = [
    b"\x91" * 100_000 + b"\xc0",
    b"\x81\xa1a" * 100_000 + b"\xc0",
    b"\x81" * 100_000 + b"\xc0",
    b"\xdc\xff\xff" * 50_000,
]
PLACES: list[Callable[[object], bytes]] = [
    lambda item: frame(header=item),
    lambda item: frame(attributes=item),
    lambda item: frame(payload=item),
    *(lambda item, place=place: with_header(place, item) for place in range(5)),
    *(lambda item, place=place: with_id(place, item) for place in range(3)),
    *(lambda item, place=place: with_control(place, item) for place in range(7)),
    lambda item: with_control(6, Bytes(b"\x91" + packed(item))),
    with_value,
    lambda item: frame(attributes=Bytes(b"\x81" + packed(item) + b"\1")),
]


def allocated_bytes_at_peak(data: bytes) -> int:
    tracemalloc.start()
    try:
        undecodable(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("giant", GIANT, ids=bytes.hex)
def test_a_giant_declared_length_is_refused_and_reserves_nothing(giant: bytes) -> None:
    for build in PLACES:
        assert allocated_bytes_at_peak(build(Bytes(giant))) < 1_000_000


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb[:3].hex())
def test_a_nested_bomb_is_refused(bomb: bytes) -> None:
    for build in PLACES:
        data = build(Bytes(bomb))
        assert allocated_bytes_at_peak(data) < len(data) + 1_000_000


def test_a_map_beyond_the_limit_is_refused_before_it_is_built() -> None:
    entries = b"".join(b"\xa6%06d\xc0" % number for number in range(500_000))
    data = frame(attributes=Bytes(b"\xdf" + (500_000).to_bytes(4) + entries))
    assert allocated_bytes_at_peak(data) < 1_000_000
    assert "500000 attributes arrived; at most 256" in undecodable(data)


def test_destinations_beyond_the_ceiling_are_refused_before_they_are_built() -> None:
    names = b"\xa1a" * 2_000_000
    data = with_control(6, Bytes(b"\xdd" + (2_000_000).to_bytes(4) + names))
    assert allocated_bytes_at_peak(data) < 1_000_000


def test_an_event_beyond_the_limit_is_refused_unread() -> None:
    data = b"\x94\x01" + b"\x91" * (8 * 1024 * 1024)
    assert "8388610 bytes arrived; at most 8388608" in undecodable(data)
    assert allocated_bytes_at_peak(data) < 100_000


def test_a_complaint_does_not_repeat_what_it_was_fed() -> None:
    assert len(undecodable(with_control(0, "x" * 1_000_000))) < 400


class Failing:
    """A decoder for which every input is too much."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def decode(self, data: object) -> object:
        raise self.error


@pytest.mark.parametrize("decoder", ["_frame_decoder", "_attributes_decoder"])
@pytest.mark.parametrize("error", [MemoryError(), OverflowError("too long"), RecursionError()])
def test_running_out_of_room_while_decoding_is_the_remote_error(
    monkeypatch: pytest.MonkeyPatch, decoder: str, error: Exception
) -> None:
    monkeypatch.setattr(encoding, decoder, Failing(error))
    undecodable(frame())


def test_nan_and_infinity_are_no_numbers_of_the_header() -> None:
    for number in (math.nan, math.inf):
        for data in (with_header(2, number), with_id(2, number), with_control(4, number)):
            undecodable(data)
