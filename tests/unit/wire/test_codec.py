"""Frames as bytes: every type comes back, the two families stay apart, bounds hold."""

from typing import get_args

import msgspec
import pytest
from msgspec import inspect

from anabranch.model import client_frames as c
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import Answer, Carry, Knowledge, LinkFrame, MarkIs, Nack, Ping
from anabranch.model.limits import Limits
from anabranch.model.version import Version
from anabranch.wire.codec import (
    decode_client,
    decode_from_client,
    decode_link,
    encode_client,
    encode_link,
)
from tests.frame_parts import CARRIED, CARRIED_TYPES, CLIENT, CLIENT_TYPES, LINK, LINK_TYPES


def test_every_type_of_frame_has_a_sample() -> None:
    assert {*map(type, LINK)} == {*LINK_TYPES}
    assert {*map(type, CARRIED)} == {*CARRIED_TYPES}
    assert {*map(type, CLIENT)} == {*CLIENT_TYPES}


@pytest.mark.parametrize("frame", LINK, ids=lambda frame: type(frame).__name__)
def test_a_link_frame_comes_back_as_it_was(frame: LinkFrame) -> None:
    again = decode_link(encode_link(frame))
    assert type(again) is type(frame)
    assert again == frame


@pytest.mark.parametrize("frame", CLIENT, ids=lambda frame: type(frame).__name__)
def test_a_client_frame_comes_back_as_it_was(frame: c.AnyClientFrame) -> None:
    again = decode_client(encode_client(frame))
    assert type(again) is type(frame)
    assert again == frame


def test_a_frame_is_its_tag_and_its_fields_in_order() -> None:
    vector = {"edge-1": Version(7, 2)}
    carry = Carry("a", "b", 3, Nack([(1, 9)]))
    assert msgspec.msgpack.decode(encode_link(Ping())) == [2]
    assert msgspec.msgpack.decode(encode_link(MarkIs("s", 6, vector))) == [
        4,
        "s",
        6,
        {"edge-1": [7, 2]},
    ]
    assert msgspec.msgpack.decode(encode_link(carry)) == [9, "a", "b", 3, [1, [[1, 9]]]]
    assert encode_client(c.Publish([b"ab"])) == b"\x92\x02\x91\xc4\x02ab"


def test_fields_at_the_end_that_have_a_default_may_be_missing() -> None:
    short = msgspec.msgpack.encode([3, "origin-1", "site", "", 6, []])
    assert decode_link(short) == Knowledge("origin-1", "site", "", 6, [])


def test_the_same_bytes_may_be_a_frame_of_either_family() -> None:
    data = encode_client(c.Connect(1, "x" * 5))
    assert isinstance(decode_client(data), c.Connect)
    with pytest.raises(RemoteError, match="invalid link frame"):
        decode_link(data)


def test_a_frame_beyond_the_limit_is_refused_on_both_sides() -> None:
    frame = c.Publish([bytes(100)])
    size = len(encode_client(frame))
    exact, short = Limits(frame_bytes_max=size), Limits(frame_bytes_max=size - 1)
    assert decode_client(encode_client(frame, exact), exact) == frame
    with pytest.raises(LocalError, match=f"a Publish frame takes {size} bytes; at most"):
        encode_client(frame, short)
    with pytest.raises(RemoteError, match=f"a frame of {size} bytes; at most"):
        decode_client(encode_client(frame), short)
    with pytest.raises(LocalError, match="a Ping frame takes"):
        encode_link(Ping(), Limits(frame_bytes_max=1))
    with pytest.raises(RemoteError, match="at most 1 are"):
        decode_link(encode_link(Ping()), Limits(frame_bytes_max=1))


def test_the_largest_event_fits_into_every_frame_that_carries_one() -> None:
    limits = Limits()
    datum = Datum(2**62, 2**63 - 1, bytes(limits.event_bytes_max))
    name = "é" * 255
    encode_client(c.Publish([datum.body]), limits)
    encode_client(c.Deliver(name, [c.Matches(name, 2**62, [datum])]), limits)
    encode_link(Knowledge(name, name, name, 2**62, [datum], [], [], 2**62, 1), limits)
    encode_link(Carry(name, name, 255, Answer(2**63 - 1, 1, 1, 1, [datum])), limits)


# -- what clients send ----------------------------------------------------------------------------

FROM_CLIENTS = get_args(c.FromClient)
LARGE = {f"{n}": 1 for n in range(c.ACK_TICKS_MAX)}


@pytest.mark.parametrize("frame", CLIENT, ids=lambda frame: type(frame).__name__)
def test_a_broker_reads_what_clients_send_and_refuses_the_rest_by_its_tag(
    frame: c.AnyClientFrame,
) -> None:
    data = encode_client(frame)
    if isinstance(frame, FROM_CLIENTS):
        assert decode_from_client(data) == frame
    else:
        # Nothing behind the tag is looked at.
        for given in (data, data[:2] + b"\xc1" * 9):
            with pytest.raises(RemoteError, match=f"must not send {type(frame).__name__}$"):
                decode_from_client(given)


def test_an_ack_is_bounded_over_all_streams() -> None:
    ticks = dict(list(LARGE.items())[:-2])
    one_each = {name: {"s": 1} for name in LARGE}
    for most in ({"a": LARGE}, {"a": ticks, "b": {"s": 1, "t": 2}}, one_each):
        assert decode_from_client(encode_client(c.Ack(most))) == c.Ack(most)
    for more in ({"a": LARGE, "b": {"s": 1}}, {"a": ticks, "b": dict(list(LARGE.items())[:3])}):
        with pytest.raises(RemoteError, match=r"at most 65535 .* \(ACK_TICKS_MAX\)"):
            decode_from_client(encode_client(c.Ack(more)))


@pytest.mark.parametrize("tag", [b"\xcc\x0a", b"\xcd\x00\x0a", b"\xd0\x0a"])
@pytest.mark.parametrize("head", [b"\x92", b"\xdc\x00\x02", b"\xdd\x00\x00\x00\x02"])
def test_an_ack_is_bounded_however_it_is_written(head: bytes, tag: bytes) -> None:
    ticks = msgspec.msgpack.encode({"a": LARGE, "b": LARGE})
    with pytest.raises(RemoteError, match="ACK_TICKS_MAX"):
        decode_from_client(head + tag + ticks)


def test_an_ack_that_hides_ticks_behind_the_same_name_is_refused() -> None:
    stream = b"\xa1a" + msgspec.msgpack.encode(LARGE)
    with pytest.raises(RemoteError, match="names a stream twice"):
        decode_from_client(b"\x92\x0a\x82" + stream + stream)


def test_an_ack_of_more_streams_than_ticks_is_refused() -> None:
    many: dict[str, dict[str, int]] = {f"{n}": {} for n in range(c.ACK_TICKS_MAX + 1)}
    with pytest.raises(RemoteError, match="ACK_TICKS_MAX"):
        decode_from_client(msgspec.msgpack.encode([10, many]))


@pytest.mark.parametrize("kind", FROM_CLIENTS, ids=lambda kind: kind.__name__)
def test_no_other_frame_of_clients_has_lists_in_lists(kind: type[msgspec.Struct]) -> None:
    """Types bound one list each: with a list in a list somebody has to count, as of `Ack`."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    depth = max((_depth(field.type) for field in found.fields), default=0)
    assert depth <= (2 if kind is c.Ack else 1)


def _depth(kind: inspect.Type) -> int:
    match kind:
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return 1 + _depth(item)
        case inspect.DictType(value_type=item):
            return 1 + _depth(item)
        case inspect.StructType(fields=fields):
            return max((_depth(field.type) for field in fields), default=0)
    return 0
