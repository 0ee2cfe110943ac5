"""Bytes that are no frame: damaged, of wrong types, or meant to do harm."""

import tracemalloc
from collections.abc import Iterator

import msgspec
import pytest

from anabranch.model import client_frames as c
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import Conjuncts
from anabranch.model.frames import AskMark, Carry, Done, Find, InterestState, LinkFrame, Nack
from anabranch.model.mesh_frames import LoadIs
from anabranch.wire import codec
from anabranch.wire.codec import decode_client, decode_link, encode_client, encode_link
from tests.frame_parts import CLIENT, LINK, Codec

LINKS: Codec = encode_link, decode_link
CLIENTS: Codec = encode_client, decode_client
FRAMES = [
    pytest.param(codec, codec[0](frame), id=type(getattr(frame, "content", frame)).__name__)
    for codec, samples in ((LINKS, LINK), (CLIENTS, CLIENT))
    for frame in samples
]
pack = msgspec.msgpack.encode
WRONG: list[object] = [
    None,
    True,
    1.5,
    -1,
    2**64 - 1,
    "text",
    b"bytes",
    [],
    [1],
    {},
    {"a": 1},
    {1: 1},
]
WRONG += [msgspec.msgpack.Ext(1, b"x"), msgspec.msgpack.Ext(-1, bytes(12))]


def refusal(family: Codec, data: bytes) -> str:
    """What decoding says; it must raise the remote error and say it briefly."""
    with pytest.raises(RemoteError) as caught:
        family[1](data)
    assert len(str(caught.value)) < 400
    return str(caught.value)


def decodes_or_is_refused(family: Codec, data: bytes) -> bool:
    """Whether it decodes; if so, then to something that has bytes of its own."""
    encode, decode = family
    try:
        frame = decode(data)
    except RemoteError:
        return False
    assert decode(encode(frame)) == frame
    return True


@pytest.mark.parametrize(("family", "data"), FRAMES)
def test_truncation_at_every_byte_is_refused(family: Codec, data: bytes) -> None:
    for length in range(len(data)):
        refusal(family, data[:length])


@pytest.mark.parametrize(("family", "data"), FRAMES)
def test_trailing_bytes_are_refused(family: Codec, data: bytes) -> None:
    for more in (b"\0", b"\xc0", data):
        assert "trailing" in refusal(family, data + more)


@pytest.mark.parametrize(("family", "data"), FRAMES)
def test_every_single_byte_mutation_decodes_or_is_refused(family: Codec, data: bytes) -> None:
    changed = bytearray(data)
    decoded = 0
    for place, original in enumerate(data):
        for byte in range(256):
            changed[place] = byte
            decoded += decodes_or_is_refused(family, bytes(changed))
        changed[place] = original
    assert decoded >= len(data)


def replaced(item: object, other: object) -> Iterator[object]:
    """All ways to put `other` in place of one of the items, at any depth."""
    yield other
    if isinstance(item, list):
        for place, inner in enumerate(item):
            for one in replaced(inner, other):
                yield [*item[:place], one, *item[place + 1 :]]
    elif isinstance(item, dict):
        for key, inner in item.items():
            for one in replaced(inner, other):
                yield {**item, key: one}


@pytest.mark.parametrize(("family", "data"), FRAMES)
def test_an_item_of_the_wrong_type_is_refused_in_every_place(family: Codec, data: bytes) -> None:
    whole = msgspec.msgpack.decode(data)
    for wrong in WRONG:
        for items in replaced(whole, wrong):
            decodes_or_is_refused(family, pack(items))
    # None, a fraction and an extension are right nowhere; the others are, in some places.
    for wrong in (None, 1.5, WRONG[-1]):
        for items in replaced(whole, wrong):
            refusal(family, pack(items))


@pytest.mark.parametrize(("family", "data"), FRAMES)
def test_additional_items_are_refused(family: Codec, data: bytes) -> None:
    refusal(family, pack([*msgspec.msgpack.decode(data), 1]))


@pytest.mark.parametrize("family", [LINKS, CLIENTS])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x90",
        b"\x91\x00",
        b"\x91\x7f",
        b"\x91\xa1a",
        b"\x80",
        b"\x81\x01\x01",
        b"\xc1",
        b"\xff",
        b"\x91" * 1_000_000,
        b"\x81\x01" * 1_000_000,
        b"\x92\x02" + b"\x91" * 1_000_000,
        b"\x95\x09\xa1a\xa1b\x01" + b"\x92\x01" * 1_000_000,
        b"\x93\x01\x01\xa2\xc3\x28",
        b"\x93\x01\x01\xa3\xed\xa0\x80",
    ],
    ids=lambda data: data[:8].hex() or "nothing",
)
def test_what_is_no_frame_is_refused(family: Codec, data: bytes) -> None:
    refusal(family, data)


@pytest.mark.parametrize(
    ("family", "frame"),
    [
        (LINKS, AskMark("x" * 256, 0)),
        (LINKS, AskMark("x", 2**62 + 1)),
        (LINKS, AskMark("x", -1)),
        (LINKS, Carry("a", "b", 256, Done(1))),
        (LINKS, LoadIs(-1, 0)),
        (LINKS, LoadIs(0, -1)),
        (LINKS, LoadIs(10_000_000_001, 0)),
        (LINKS, LoadIs(0, 10_000_000_001)),
        (LINKS, Carry("a", "b", 1, Nack([(0, 1)]))),
        (LINKS, Carry("a", "b", 1, Nack([(1, 1)] * 65_536))),
        (LINKS, Carry("a", "b", 1, Find(2**63, "x"))),
        (CLIENTS, c.Subscribe(1, "s", "x" * 262_145, "durable")),
        (CLIENTS, c.Subscribe(1, "s", "TRUE", "durable", window=0)),
        (CLIENTS, c.Subscribe(1, "s", "TRUE", "sturdy")),  # type: ignore[arg-type]
        (CLIENTS, c.Refused(1, "x" * 1_025)),
        (CLIENTS, c.Ack({str(number): {} for number in range(65_536)})),
        (CLIENTS, c.Ack({"o": {str(number): 1 for number in range(65_536)}})),
        (CLIENTS, c.Deliver("o", [c.Matches("s", 1, [])] * 65_536)),
    ],
    ids=lambda item: type(item).__name__,
)
def test_values_beyond_their_bounds_are_refused(family: Codec, frame: LinkFrame) -> None:
    refusal(family, family[0](frame))


DECLARED = [
    (LINKS, b"\x96\x03\xa1s\xa1t\xa0\x01\xdd\xff\xff\xff\xff"),
    (LINKS, b"\x96\x03\xa1s\xa1t\xa0\x01\xdd\x7f\xff\xff\xff\x93\x01\x01\xc4\x00"),
    (LINKS, b"\x94\x04\xa1s\x01\xdf\xff\xff\xff\xff"),
    (LINKS, b"\xdd\xff\xff\xff\xff\x03\xa1s"),
    (CLIENTS, b"\x92\x02\xdd\xff\xff\xff\xff\xc4\x00"),
    (CLIENTS, b"\x92\x02\x91\xc6\xff\xff\xff\xff"),
    (CLIENTS, b"\x93\x01\x01\xdb\xff\xff\xff\xff"),
    (CLIENTS, b"\xdf\xff\xff\xff\xff"),
    (CLIENTS, b"\xc9\xff\xff\xff\xff\x01"),
]


@pytest.mark.parametrize(("family", "data"), DECLARED)
def test_a_giant_length_that_is_only_declared_costs_no_memory(family: Codec, data: bytes) -> None:
    refusal(family, data)
    tracemalloc.start()
    try:
        refusal(family, data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_frame_takes_a_small_multiple_of_its_bytes_in_memory() -> None:
    # Small integers above 256 are the densest thing there is: three bytes become an object.
    conjuncts = Conjuncts("", (300,) * 65_535)
    data = encode_link(InterestState("s", "e", {}, [conjuncts] * 10))
    tracemalloc.start()
    try:
        decode_link(data)
        assert tracemalloc.get_traced_memory()[1] < 16 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("error", [RecursionError, OverflowError, MemoryError])
def test_whatever_a_decoder_raises_becomes_the_remote_error(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Decoder:
        def decode(self, data: bytes) -> object:
            raise error("x" * 1_000)

    monkeypatch.setattr(codec, "_link_decoder", Decoder())
    monkeypatch.setattr(codec, "_client_decoder", Decoder())
    refusal(LINKS, b"\x91\x02")
    refusal(CLIENTS, b"\x91\x02")
