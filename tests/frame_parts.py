"""Frames for tests: one full sample of every type, and random ones drawn from the types alone."""

from collections.abc import Callable
from typing import get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from anabranch.model import client_frames as c
from anabranch.model import frames as f
from anabranch.model.version import Version

Codec = tuple[Callable[..., bytes], Callable[..., object]]

LINK_TYPES: tuple[type[msgspec.Struct], ...] = get_args(f.LinkFrame)
CARRIED_TYPES: tuple[type[msgspec.Struct], ...] = get_args(f.AnyCarried)
CLIENT_TYPES: tuple[type[msgspec.Struct], ...] = get_args(c.AnyClientFrame)

DATA = [f.Datum(7, 1_700_000_000_000_000_000, b"\x94\x01 body"), f.Datum(9, 0, b"")]
HOLES = [f.Hole(3, 4, "retention"), f.Hole(5, 2**62, "transient")]
VECTOR = {"edge-1": Version(7, 2), "édge": Version(2**63 - 1, 0)}
CONJUNCTIONS = [f.Conjuncts("price > 12.5 OR symbol = 'IBM'", (0, 300)), f.Conjuncts("TRUE", ())]
TICKS = {"origin-1": 0, "origin-2": 2**62}

CARRIED: list[f.AnyCarried] = [
    f.Nack([(1, 1), (3, 2**62)]),
    f.Done(12),
    f.Replay(1, 0, 10**18, ["TRUE", "price > 1"], 256, 2**20),
    f.Answer(1, 3, 9, 12, DATA, HOLES),
    f.NotKept(1, 4),
    f.Hold(2, 0),
    f.Held(2, 77),
    f.Claim("orders", 4),
    f.Yield("orders", 3),
    f.Find(5, "orders"),
    f.Found(5, "orders", 3, "price > 1", TICKS),
]
LINK: list[f.LinkFrame] = [
    f.Hello(f.PROTOCOL_VERSION, "broker-1", 2**63 - 1),
    f.Ping(),
    f.Knowledge("origin-1", "site", "", 6, DATA, [(8, 8)], HOLES, 2**62, 10**18),
    f.MarkIs("origin-1", 6, VECTOR),
    f.AskMark("origin-1", 0),
    f.InterestChange("site", "edge-1", VECTOR, CONJUNCTIONS, [], {}, True),
    f.InterestState("site", "edge-1", VECTOR, CONJUNCTIONS, False, True),
    f.AskInterest("site", "edge-1"),
    *(f.Carry("edge-1", "origin-1", 255, content) for content in CARRIED),
]
CLIENT: list[c.AnyClientFrame] = [
    c.Connect(f.PROTOCOL_VERSION, "client-1"),
    c.Publish([b"\x94\x01", b""]),
    c.Confirmed("feed-1", 3, 17),
    c.PublishRefused("feed-1", 3, 18, "the log is full"),
    c.Subscribe(1, "orders", "price > 1", "durable", "resume", 10**18, TICKS, 3, 65_535),
    c.Subscribed(1, "orders", 3, TICKS),
    c.StartsAt("orders", "origin-1", 1),
    c.Deliver("origin-1", [c.Matches("orders", 9, DATA)]),
    c.Withheld("orders", "origin-1", HOLES),
    c.Ack({"origin-1": {"orders": 9, "quotes": 0}}),
    c.Unsubscribe(2, "orders"),
    c.Unsubscribed(2, "orders", TICKS),
    c.Refused(2, "there is no subscription of this name"),
    c.Cut("", "too slow"),
    c.Cut("", "the client has connected anew", c.REPLACED),
    c.Alive(),
    c.Stage(2**60, "token-1", 7, [b"\x94\x01\x95\xc0", b""], True),
    c.Staged(2**60),
    c.Commit(2**60 + 1, "sink-1", "query-1", 0, ("token-1", "tökén")),
    c.Committed(2**60 + 1, "sink-1", 2**63 - 1, 0, 2**62, True),
    c.Discard(("token-1",)),
    c.Refused(2, "tick 1 is not in the log any more", c.NOT_KEPT, 2**62),
    c.Describe(3),
    c.Described(3, "shop", "origin-1", 1, 0, 0, 10**18, {"origin-1": "127.0.0.1:4100", "é": ""}),
    c.Fetch(4, 1, 2**62, "price > 1", 2**20),
    c.Fetched(4, 1, 0, 0, b"\0\1"),
]

TEXTS = st.characters(exclude_categories=["Cs"])


def any_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    """Random values of a struct, every bound of its types reached now and then."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return _struct(described)


def _struct(kind: inspect.StructType) -> st.SearchStrategy[msgspec.Struct]:
    return st.builds(kind.cls, **{field.name: _values(field.type) for field in kind.fields})


def _values(kind: inspect.Type) -> st.SearchStrategy[object]:
    match kind:
        case inspect.IntType(ge=least, le=most) if least is not None and most is not None:
            return st.sampled_from([least, most]) | st.integers(least, most)
        case inspect.BoolType():
            return st.booleans()
        case inspect.BytesType():
            return st.binary(max_size=20)
        case inspect.StrType():
            return st.text(TEXTS, max_size=min(20, kind.max_length or 20))
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.ListType(item_type=item):
            return st.lists(_values(item), max_size=4)
        case inspect.VarTupleType(item_type=item):
            return st.lists(_values(item), max_size=4).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(_values, items))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_values(key), _values(value), max_size=4)
        case inspect.UnionType(types=kinds):
            return st.one_of([_values(one) for one in kinds])
        case inspect.StructType():
            return _struct(kind)
    raise AssertionError(f"frames have no fields of this kind: {kind}")
