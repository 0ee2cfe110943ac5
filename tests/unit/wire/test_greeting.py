"""Greetings: what two sides need to have in common, and what is said if they do not."""

import msgspec
import pytest

from anabranch.model.errors import RemoteError
from anabranch.wire.greeting import (
    GREETING_BYTES_MAX,
    Greeting,
    Refusal,
    decode_greeting,
    encode_greeting,
    objection,
)

BROKER = Greeting(kind="link", network="n", revision=3, name="a", frame_bytes_max=9_000, life=7)
CLIENT = Greeting(kind="client", network="n", name="c", frame_bytes_max=9_000)


@pytest.mark.parametrize("greeting", [BROKER, CLIENT])
def test_a_greeting_comes_back_as_it_was(greeting: Greeting) -> None:
    assert decode_greeting(encode_greeting(greeting)) == greeting


def test_a_greeting_begins_with_the_name_of_the_protocol_and_its_version() -> None:
    assert msgspec.msgpack.decode(encode_greeting(BROKER)) == [
        "anabranch", 1, "link", "n", 3, "a", 9_000, 7,
    ]  # fmt: skip


def test_a_refusal_is_an_error_with_its_reason() -> None:
    with pytest.raises(RemoteError, match="refused: no room"):
        decode_greeting(encode_greeting(Refusal("no room")))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91\xa9anabranch",
        msgspec.msgpack.encode(["anabranch", 1, "spy", "n", 3, "a", 9_000, 7]),
        msgspec.msgpack.encode(["anabranch", 1, "link", "n", 3, "a", 100, 7]),
        msgspec.msgpack.encode(["anabranch", 1, "link", "n", 3, "a" * 300, 9_000, 7]),
        msgspec.msgpack.encode(["anabranch", -1, "link", "n", 3, "a", 9_000, 7]),
        bytes(GREETING_BYTES_MAX + 1),
    ],
)
def test_anything_else_is_no_greeting(data: bytes) -> None:
    with pytest.raises(RemoteError, match=r"no greeting|no broker of ours"):
        decode_greeting(data)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("protocol_version", 2, "protocol version 2 meets 1"),
        ("kind", "client", "for a link, not for a client"),
        ("network", "m", "network 'm' meets 'n'"),
        ("network", "", "network '' meets 'n'"),
        ("revision", 4, "revision 4 of the network file meets 3"),
    ],
)
def test_what_brokers_must_have_in_common(field: str, value: object, reason: str) -> None:
    theirs = msgspec.structs.replace(BROKER, **{field: value})
    assert reason in objection(BROKER, theirs)
    assert objection(BROKER, BROKER) == ""


def test_a_client_need_not_know_network_and_revision() -> None:
    broker = msgspec.structs.replace(CLIENT, name="a", revision=3)
    assert objection(broker, CLIENT) == ""
    assert objection(broker, msgspec.structs.replace(CLIENT, network="")) == ""
    assert "meets" in objection(broker, msgspec.structs.replace(CLIENT, network="m"))
