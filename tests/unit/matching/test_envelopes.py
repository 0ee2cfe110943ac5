"""Events as they arrive: matched as bytes, exactly like the attributes they stand for."""

import math
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.matching.engine import EngineName
from anabranch.matching.index import MatchIndex
from anabranch.model.encoding import Envelope, decode_envelope, encode_event
from anabranch.model.errors import RemoteError
from anabranch.model.event import Event, EventId, Value
from anabranch.model.limits import DEFAULT_LIMITS, Limits

ID = EventId("publisher", 1, 1)
FILTERS = (
    "a = 1",
    "a <> 1",
    "a > 9007199254740992",
    "a IS NULL",
    "b = 'x'",
    "b <> 'x'",
    "b LIKE '%é%'",
    "b >= 'm'",
    "c",
    "NOT c",
    "a + 1 = 2",
    "long_name_of_an_attribute = 'a text of more than eight bytes'",
    "é = 1",
)
PLAIN: dict[str, Value] = {
    "a": 1,
    "b": "x",
    "c": True,
    "noise": 1.5,
    "long_name_of_an_attribute": "a text of more than eight bytes",
}


def envelope_of(raw: bytes, limits: Limits = DEFAULT_LIMITS) -> Envelope:
    """An envelope with these bytes where the attributes should be, not looked into."""
    return Envelope(b"", ID, Event(id=ID).header, msgspec.Raw(raw), memoryview(b""), limits)


def sent(attributes: dict[str, Value]) -> Envelope:
    return decode_envelope(encode_event(Event(attributes, id=ID)))


@pytest.fixture(name="asked")
def index_with_filters(engine: EngineName) -> MatchIndex:
    index = MatchIndex(engine=engine)
    for number, text in enumerate(FILTERS):
        index.add(number, text, destination=number % 3)
    return index


LASTING = MatchIndex(engine="numba")
LASTING.add_many(enumerate(FILTERS))

values = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from((0, 1, 2**53, 2**53 + 1, 2**62 + 1, -(2**63))),
    st.floats(),
    st.booleans(),
    st.text(max_size=12),
    st.sampled_from(("x", "", "é", "a text of more than eight bytes", "n" * 300)),
)
names = st.one_of(
    st.sampled_from(("a", "b", "c", "é", "long_name_of_an_attribute")),
    st.text("abcxyz", min_size=1, max_size=9),
)


@given(st.dictionaries(names, values, max_size=20))
def test_envelopes_match_like_their_attributes(attributes: dict[str, Value]) -> None:
    wanted = LASTING.match(attributes)
    arrived = sent(attributes)
    assert LASTING.match(arrived) == wanted
    assert LASTING.match_batch([arrived, arrived])[1] == wanted
    assert LASTING.match(Event(attributes)) == wanted


def test_envelopes_are_matched_by_either_engine(asked: MatchIndex) -> None:
    odd: list[dict[str, Value]] = [{}, {"a": math.nan}, {"a": -0.0}, {"b": "né"}, {"é": 1}]
    for attributes in (PLAIN, *odd):
        assert asked.match(sent(attributes)) == asked.match(attributes)
        assert asked.destinations(sent(attributes)) == asked.destinations(attributes)


def entry(name: bytes, value: bytes) -> bytes:
    return bytes([0xA0 + len(name)]) + name + value


HOSTILE = {
    "nothing": b"",
    "not a map": b"\x91\x01",
    "a name twice": b"\x82" + entry(b"a", b"\x01") + entry(b"a", b"\x01"),
    "an unknown name twice": b"\x82" + entry(b"zz", b"\x01") + entry(b"zz", b"\x02"),
    "an empty name": b"\x81" + entry(b"", b"\x01"),
    "a control character in a name": b"\x81" + entry(b"a\n", b"\x01"),
    "a name that is a number": b"\x81\x01\x01",
    "a name that is no text": b"\x81" + entry(b"\xff", b"\x01"),
    "nil": b"\x81" + entry(b"a", b"\xc0"),
    "binary": b"\x81" + entry(b"a", b"\xc4\x01x"),
    "an array": b"\x81" + entry(b"a", b"\x91\x01"),
    "a map": b"\x81" + entry(b"a", b"\x81\xa1a\x01"),
    "deep nesting": b"\x81" + entry(b"a", b"\x91" * 5_000 + b"\x01"),
    "an extension": b"\x81" + entry(b"a", b"\xd4\x01\x01"),
    "an unused mark": b"\x81" + entry(b"a", b"\xc1"),
    "an integer of more than 64 bits": b"\x81" + entry(b"a", b"\xcf" + b"\xff" * 8),
    "a text that is none": b"\x81" + entry(b"b", b"\xa2\xff\xfe"),
    "an unknown text that is none": b"\x81" + entry(b"zz", b"\xa2\xff\xfe"),
    "a giant text": b"\x81" + entry(b"b", b"\xdb\xff\xff\xff\xff"),
    "a giant name": b"\x81\xdb\x7f\xff\xff\xff",
    "a giant map": b"\xdf\xff\xff\xff\xff" + entry(b"a", b"\x01"),
    "a map with too many entries": b"\xde\x01\x01"
    + b"".join(entry(b"%x" % number, b"\x01") for number in range(257)),
    "something behind it": b"\x81" + entry(b"a", b"\x01") + b"\x01",
}


@pytest.mark.parametrize("what", sorted(HOSTILE))
def test_hostile_attributes_are_refused(asked: MatchIndex, what: str) -> None:
    for ask in (asked.match, asked.destinations):
        with pytest.raises(RemoteError):
            ask(envelope_of(HOSTILE[what]))
    assert asked.match(sent(PLAIN)) == asked.match(PLAIN)


def test_attributes_cut_at_any_byte_are_refused(asked: MatchIndex) -> None:
    whole = msgspec.msgpack.encode(PLAIN | {"d": 2**40, "e": -5, "f": -(2**40), "g": 0.5})
    wanted = asked.match(sent(PLAIN))
    for size in range(len(whole)):
        with pytest.raises(RemoteError):
            asked.match(envelope_of(whole[:size]))
        assert asked.match(sent(PLAIN)) == wanted


def test_longer_forms_mean_the_same(asked: MatchIndex) -> None:
    head = b"\x81"
    one = asked.match({"a": 1})
    for value in (b"\xcc\x01", b"\xcd\0\x01", b"\xd2\0\0\0\x01", b"\xd3" + struct.pack(">q", 1)):
        assert asked.match(envelope_of(head + entry(b"a", value))) == one
    assert asked.match(envelope_of(head + entry(b"a", b"\xca" + struct.pack(">f", 1)))) == one
    assert asked.match(envelope_of(b"\xdf\0\0\0\x01\xdb\0\0\0\x01a\x01")) == one
    assert asked.match(envelope_of(head + b"\xda\0\x01b\xd9\x01x")) == asked.match({"b": "x"})


def test_limits_of_the_envelope_are_kept(asked: MatchIndex) -> None:
    raw = msgspec.msgpack.encode(PLAIN)
    assert asked.match(envelope_of(raw)) == asked.match(PLAIN)
    for limits in (
        Limits(attributes_max=4),
        Limits(name_bytes_max=10),
        Limits(value_bytes_max=10),
    ):
        with pytest.raises(RemoteError):
            asked.match(envelope_of(raw, limits))


@given(st.binary(max_size=60), st.integers(0, 200))
def test_any_bytes_match_or_are_refused(noise: bytes, place: int) -> None:
    whole = msgspec.msgpack.encode(PLAIN)
    for raw in (noise, whole[: place % len(whole)] + noise + whole[place % len(whole) :]):
        envelope = envelope_of(raw)
        try:
            wanted = LASTING.match(envelope.attributes()) if raw else None
        except RemoteError:
            wanted = None
        if wanted is None:
            with pytest.raises(RemoteError):
                LASTING.match(envelope)
        else:
            assert LASTING.match(envelope) == wanted
