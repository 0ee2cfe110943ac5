"""Frames for tests: one full sample of every type, and random ones drawn from the types alone."""

from collections.abc import Callable
from typing import get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from anabranch.model import client_frames as c
from anabranch.model.frame_parts import Conjuncts, Datum, Hole
from anabranch.model.frames import (
    PROTOCOL_VERSION,
    Answer,
    AnyCarried,
    AskInterest,
    AskMark,
    AskPlace,
    Carry,
    Claim,
    Done,
    DropPoint,
    Find,
    FindPoint,
    Found,
    Held,
    Hello,
    Hold,
    InterestChange,
    InterestState,
    KeepPoints,
    Knowledge,
    Known,
    LinkFrame,
    MarkIs,
    Nack,
    NackCopy,
    NotInCopy,
    NotKept,
    Ping,
    PointDropped,
    PointFound,
    PointSettled,
    PointTaken,
    Replay,
    ReplayCopy,
    Resent,
    TakePoint,
    WouldTake,
    Yield,
)
from anabranch.model.mesh_frames import (
    Advertise,
    Advertised,
    Bind,
    Binding,
    Bound,
    Branches,
    Copies,
    Editions,
    LoadIs,
    Route,
    Routes,
    Seek,
    Target,
    TreeId,
)
from anabranch.model.pattern.match import PointRecord, Start
from anabranch.model.replication import (
    AskLife,
    CopyId,
    CopySet,
    FetchedRows,
    FetchedTicks,
    FetchRows,
    FetchTicks,
    ForgetCopy,
    KeepRows,
    KeepTicks,
    Life,
    LifeAnswer,
    LifeStart,
    RowsKept,
    TicksKept,
)
from anabranch.model.version import Version

Codec = tuple[Callable[..., bytes], Callable[..., object]]

LINK_TYPES: tuple[type[msgspec.Struct], ...] = get_args(LinkFrame)
CARRIED_TYPES: tuple[type[msgspec.Struct], ...] = get_args(AnyCarried)
CLIENT_TYPES: tuple[type[msgspec.Struct], ...] = get_args(c.AnyClientFrame)

DATA = [Datum(7, 1_700_000_000_000_000_000, b"\x94\x01 body"), Datum(9, 0, b"")]
HOLES = [Hole(3, 4, "retention"), Hole(5, 2**62, "transient")]
VECTOR = {"edge-1": Version(7, 2), "édge": Version(2**63 - 1, 0)}
CONJUNCTIONS = [Conjuncts("price > 12.5 OR symbol = 'IBM'", (0, 300)), Conjuncts("TRUE", ())]
TREE = TreeId("origin-1", 7, 3)
TICKS = {"origin-1": 0, "origin-2": 2**62}
POINT = PointRecord(
    "rise",
    "low:{price < 20} WITHIN 2 s",
    "topology",
    60,
    "edge-1",
    Version(7, 2),
    incarnation=3,
    moves=2,
    reported_ns=-(2**63),
    starts={"origin-1": Start(7, 2**63 - 1)},
    ticks=TICKS,
    reports=TICKS,
    came_from="edge-1",
    goes_to="édge",
    is_over=True,
    is_placed=True,
    restless=6,
)

LIFE = Life(2**62, "origin-1", 2**63 - 1)
COPY = CopyId("keeper-1", 2**63 - 1)
STARTS = (LifeStart(1, LIFE, CopySet((COPY, CopyId("origin-1", 1)), 2)),)
CARRIED: list[AnyCarried] = [
    Nack([(1, 1), (3, 2**62)]),
    Done(12),
    Replay(1, 0, 10**18, ["TRUE", "price > 1"], 256, 2**20),
    Answer(1, 3, 9, 12, DATA, HOLES),
    NotKept(1, 4),
    NotInCopy(2**40),
    Hold(2, 0),
    Held(2, 77),
    Claim("orders", 4),
    Yield("orders", 3),
    Find(5, "orders"),
    Found(5, "orders", 3, "price > 1", TICKS),
    Known(Version(7, 2), Version(3, 1), True),
    TakePoint(POINT),
    PointTaken("rise", 3, True),
    PointSettled("rise", 3),
    DropPoint(5, "rise"),
    PointDropped(5, "rise", True),
    KeepPoints(["rise", "fäll"]),
    AskPlace(5, "rise", {"origin-1": 0, "é": 2**53}, 2**53, ["edge-1", "édge"]),
    WouldTake(5, "rise", 2**62, True),
    FindPoint(6, "rise", True),
    PointFound(6, "rise", "here", "low:{price < 20} WITHIN 2 s"),
    NackCopy("origin-1", [(1, 2), (5, 2**62)], True),
    ReplayCopy("origin-1", Replay(3, 9, 0, ["price < 20"], 64, 4_096), True),
    Resent("origin-1", DATA, [(8, 8)], HOLES, 2**62),
    AskLife("origin-1", LIFE, 7),
    LifeAnswer("origin-1", LIFE, LIFE, COPY, False, 1, 2**62, STARTS, 9, True, 7, Life()),
    KeepTicks("origin-1", LIFE, COPY, STARTS, 5, [b"", b"record"], 4, 3, b"row", True),
    KeepRows("origin-1", LIFE, COPY, [("sinks", "s", b"row"), ("done", "e", b"")], 2, False),
    ForgetCopy("origin-1", LIFE, COPY),
    FetchTicks("origin-1", COPY, LIFE, 2**62),
    FetchRows("origin-1", COPY, LIFE, "after"),
    TicksKept("origin-1", LIFE, COPY, 2**62, True, 4),
    RowsKept("origin-1", LIFE, COPY, 2),
    FetchedTicks("origin-1", LIFE, 1, [b"record"]),
    FetchedRows("origin-1", LIFE, "", [("done", "e", b"row")], "after", b"row"),
]
LINK: list[LinkFrame] = [
    Hello(PROTOCOL_VERSION, "broker-1", 2**63 - 1),
    Ping(),
    Knowledge("origin-1", "site", "", 6, DATA, [(8, 8)], HOLES, 2**62, 10**18),
    MarkIs("origin-1", 6, VECTOR),
    AskMark("origin-1", 0),
    InterestChange("site", "edge-1", VECTOR, CONJUNCTIONS, [], {}, True),
    InterestState("site", "edge-1", VECTOR, CONJUNCTIONS, False, True),
    AskInterest("site", "edge-1"),
    Routes([Route(TREE, 3, 65_535)]),
    Seek("broker-1", [(TREE, 4)]),
    Advertise("origin-1", Version(7, 2), [Advertised(1, "price > 1", 8)], [0], True, b"\x90"),
    Editions(VECTOR),
    Branches(TREE, {"edge-1": 0, "édge": -1}, True),
    Bind(
        "edge-1",
        Version(7, 2),
        [Binding("origin-1", Version(1, 1), Version(7, 1), Version(1, 0), False)],
        [Bound("price > 1 OR TRUE", [0, 1], [0])],
        [Bound("TRUE", [0], [0])],
        40,
    ),
    Copies(
        "origin-1", TREE, 40, [Target("edge-1", Version(7, 2), 3, 2, [0])], 9, DATA, HOLES, 9, 10
    ),
    LoadIs(0, 10_000_000_000),
    *(Carry("edge-1", "origin-1", 255, content) for content in CARRIED),
]
CLIENT: list[c.AnyClientFrame] = [
    c.Connect(PROTOCOL_VERSION, "client-1"),
    c.Publish([b"\x94\x01", b""]),
    c.Confirmed("feed-1", 3, 17),
    c.Confirmed("feed-1", 3, 18, 2**62),
    c.OrderNotKept("orders", "origin-1", 9, "feed-1", 3, "origin-2", 2**62),
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
    c.Advertises(["price > 1", "TRUE"]),
    c.Define(2**50, "rise", "low:{price < 20} WITHIN 2 s", "cost", 60, True, True),
    c.Defined(2**50),
    c.Drop(2**50 + 1, "rise"),
    c.Dropped(2**50 + 1),
    c.Keep(["rise", "fäll"]),
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
        case inspect.NoneType():
            return st.none()
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
        case inspect.VarTupleType(item_type=item, min_length=least):
            return st.lists(_values(item), min_size=least or 0, max_size=4).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(_values, items))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_values(key), _values(value), max_size=4)
        case inspect.UnionType(types=kinds):
            return st.one_of([_values(one) for one in kinds])
        case inspect.StructType():
            return _struct(kind)
    raise AssertionError(f"frames have no fields of this kind: {kind}")
