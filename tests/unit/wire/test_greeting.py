"""Greetings: what two sides need to have in common, and what is said if they do not."""

import msgspec
import pytest

from anabranch.model.errors import RemoteError
from anabranch.wire.greeting import (
    GREETING_BYTES_MAX,
    NONCE_BYTES,
    EventLimits,
    Greeting,
    Proof,
    Refusal,
    decode_greeting,
    decode_proof,
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
        "anabranch", 2, "link", "n", 3, "a", 9_000, 7, b"", [], None,
    ]  # fmt: skip


def test_a_greeting_of_a_broker_that_does_not_tell_its_limits_is_read() -> None:
    parts = msgspec.msgpack.decode(encode_greeting(CLIENT))
    assert decode_greeting(msgspec.msgpack.encode(parts[:-1])) == CLIENT


def test_a_refusal_is_an_error_with_its_reason() -> None:
    with pytest.raises(RemoteError, match="refused: no room"):
        decode_greeting(encode_greeting(Refusal("no room")))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91\xa9anabranch",
        msgspec.msgpack.encode(["anabranch", 2, "spy", "n", 3, "a", 9_000, 7]),
        msgspec.msgpack.encode(["anabranch", 2, "link", "n", 3, "a", 100, 7]),
        msgspec.msgpack.encode(["anabranch", 2, "link", "n", 3, "a" * 300, 9_000, 7]),
        msgspec.msgpack.encode(["anabranch", -1, "link", "n", 3, "a", 9_000, 7]),
        bytes(GREETING_BYTES_MAX + 1),
    ],
)
def test_anything_else_is_no_greeting(data: bytes) -> None:
    with pytest.raises(RemoteError, match=r"invalid greeting|not a broker"):
        decode_greeting(data)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("protocol_version", 1, "protocol version 1 does not match 2"),
        ("kind", "client", "for a link, not for a client"),
        ("network", "m", "network 'm' does not match 'n'"),
        ("network", "", "network '' does not match 'n'"),
        ("revision", 4, "revision 4 of the network file does not match 3"),
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
    assert "does not match" in objection(broker, msgspec.structs.replace(CLIENT, network="m"))


def test_a_greeting_from_before_there_were_secrets_is_one_without_a_secret() -> None:
    data = msgspec.msgpack.encode(["anabranch", 1, "link", "n", 3, "a", 9_000, 7])
    assert decode_greeting(data) == msgspec.structs.replace(BROKER, protocol_version=1)


def test_of_two_brokers_the_one_without_a_secret_is_named() -> None:
    proves = msgspec.structs.replace(BROKER, name="b", nonce=bytes(NONCE_BYTES))
    for ours, theirs in ((BROKER, proves), (proves, BROKER)):
        assert "'b' requires proof of the network secret" in objection(ours, theirs)
        assert "give 'a' the secret_file" in objection(ours, theirs)
    assert objection(proves, proves) == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode_greeting(BROKER),
        msgspec.msgpack.encode(["proof"]),
        msgspec.msgpack.encode(["proof", bytes(31)]),
        msgspec.msgpack.encode(["proof", bytes(33)]),
        msgspec.msgpack.encode(["proof", "x" * 32]),
    ],
)
def test_anything_else_is_no_proof(data: bytes) -> None:
    with pytest.raises(RemoteError, match="invalid proof"):
        decode_proof(data)


def test_a_proof_comes_back_as_it_was_and_a_refusal_in_its_place_says_why() -> None:
    proof = bytes(range(32))
    assert decode_proof(encode_greeting(Proof(proof))) == proof
    with pytest.raises(RemoteError, match="refused: not you"):
        decode_proof(encode_greeting(Refusal("not you")))


def test_greetings_with_the_longest_names_and_proofs_are_within_the_bound() -> None:
    name = "\N{GRINNING FACE}" * 255
    longest = Greeting(
        kind="link",
        network=name,
        revision=2**63 - 1,
        name=name,
        frame_bytes_max=2**31,
        life=2**63 - 1,
        nonce=bytes(NONCE_BYTES),
        proofs=(bytes(32), bytes(32)),
        event_limits=EventLimits(*[2**63 - 1] * 6),
    )
    assert decode_greeting(encode_greeting(longest)) == longest
