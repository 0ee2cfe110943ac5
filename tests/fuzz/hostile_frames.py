"""Frames of clients and brokers who mean harm, for Hypothesis.

Made of the types alone (`msgspec.inspect`): a frame or a field that is added is drawn from the next
run on. Most of what is drawn nearly makes sense, for nonsense does not get far. Three manners:

- *sensible*: every field holds what a field of its name may hold: names that somebody uses, texts
  that parse, numbers that the other side has used lately (`symbols`).
- *odd*: the same, with one field out of place: a bound of its type, an unknown name, garbage.
- *wild*: anything that the types allow.

A `Vocabulary` has the names. What is left out on purpose stands in `known_open`.

This module keeps no state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from anabranch.model import client_frames as c
from anabranch.model.encoding import encode_draft
from anabranch.model.event import DEFAULT_CONTROL, Control, Event
from anabranch.model.filter import Filter
from anabranch.model.frames import Carry
from anabranch.model.pattern.match import PointRecord
from tests.filter_parts import meeting_conditions
from tests.frame_parts import CARRIED_TYPES, CLIENT_TYPES, LINK_TYPES, TEXTS
from tests.frame_parts import any_of as wild_of
from tests.fuzz.symbols import Body, Heard, kind_of
from tests.pattern_parts import patterns as any_pattern

Struct = type[msgspec.Struct]
#: Numbers at which something may overflow, or take too long.
BOUNDARIES = (0, 1, 2, 255, 65_535, 1 << 31, 1 << 32, 1 << 53, 1 << 62, (1 << 63) - 1)
#: Frames that only brokers say; a client that says them is cut.
FROM_BROKERS = (
    c.Confirmed, c.PublishRefused, c.Subscribed, c.StartsAt, c.Deliver, c.Withheld, c.Unsubscribed,
    c.Refused, c.Cut, c.Staged, c.Committed, c.Described, c.Fetched, c.Defined, c.Dropped,
)  # fmt: skip
FROM_CLIENTS = tuple(each for each in CLIENT_TYPES if each not in FROM_BROKERS)
FILTERS = (
    "TRUE", "FALSE", "a = 1", "b > 0", "a = 1 OR b < 2", "c LIKE 'x%'", "a IS NULL", "who = 'h'",
    "a IN (1, 2, 3) AND NOT b = 5", "a BETWEEN 0 AND 9", "anabranch.pattern = 'p1'",
)  # fmt: skip
PATTERNS = (
    "low:{a = 1} WITHIN 2 s",
    "x:{a = 1} THEN y:{b > 0} WITHIN 1 s",
    "{a = 1} AND {b > 0} WITHIN 500 ms",
    "2 TIMES z:{a >= 0} WITHIN 1 s LAST",
    "o:{a = 1} THEN NOT q:{b > 0} WHERE o.c = q.c WITHIN 1 s LATENESS 1 s",
    "{anabranch.pattern = 'p1'} WITHIN 1 s",
)
GARBAGE = (
    "", " ", "garbage", "a =", "'", "((", "{a = 1}", "{} WITHIN 1 s", "x:{a = 1} WITHIN 0 s", "\0",
    "a = 1 OR " * 60 + "a", "(" * 200 + "a" + ")" * 200, "é" * 300, "a" * 5_000, "[", "NOT",
    " AND ".join(f"(a{n} = 1 OR b{n} = 1)" for n in range(12)), "{a = 1} WITHIN 99999999999 h",
)  # fmt: skip
ODD_NAMES = ("", "nobody", "a", "pattern/p1", "x" * 255, "é" * 200, "a\0b", "honest", "/", "*")


@dataclass(frozen=True)
class Vocabulary:
    """Names that are in use in a network, or may come to be."""

    brokers: tuple[str, ...]
    sites: tuple[str, ...]
    clients: tuple[str, ...] = ("evil-1", "evil-2", "evil-3")
    subscriptions: tuple[str, ...] = ("s1", "s2", "s3", "s4")
    patterns: tuple[str, ...] = ("p1", "p2", "p3")
    tokens: tuple[str, ...] = ("t1", "t2", "t3")
    #: Others whose events somebody may forge.
    publishers: tuple[str, ...] = ("honest-feed", "honest-publisher")
    sinks: tuple[str, ...] = ("k1", "k2", "evil-1")

    def names(self, place: str) -> tuple[str, ...] | None:
        """What a field of this name may hold; None if it is not known."""
        return {
            **dict.fromkeys(["subscription"], self.subscriptions),
            **dict.fromkeys(["pattern", "patterns", "id"], self.patterns),
            **dict.fromkeys(["token", "tokens"], self.tokens),
            **dict.fromkeys(["client", "publisher"], self.clients),
            **dict.fromkeys(["site"], self.sites),
            **dict.fromkeys(["source"], self.sites + self.brokers),
            "sink": self.sinks,
            "query": ("", "q1", "q2"),
            **dict.fromkeys(
                ["broker", "stream", "origin", "edge", "target", "came_from", "goes_to", "network"],
                self.brokers,
            ),
        }.get(place)


# -- whole frames ---------------------------------------------------------------------------------


def client_frames(vocabulary: Vocabulary) -> st.SearchStrategy[msgspec.Struct]:
    """What a hostile client says after it has connected; now and then what only brokers say."""
    return _mixed(FROM_CLIENTS, FROM_BROKERS, vocabulary)


@lru_cache(maxsize=16)
def client_stories(
    vocabulary: Vocabulary, most: int = 4
) -> st.SearchStrategy[list[msgspec.Struct]]:
    """What a hostile client says in one go: some frames, or a story in which all but some frames
    make sense. Only stories get far: a pattern is detected, a batch committed, a stream acked."""
    some = st.lists(client_frames(vocabulary), min_size=1, max_size=most)

    @st.composite
    def stories(draw: st.DrawFn) -> list[msgspec.Struct]:
        story = list(draw(st.one_of([told(vocabulary) for told in STORIES])))
        if draw(st.booleans()):
            place = draw(st.integers(0, len(story)))
            story[place:place] = draw(some)
        return story

    return some | some | stories()


def _published(vocabulary: Vocabulary) -> st.SearchStrategy[c.Publish]:
    return st.builds(c.Publish, st.lists(bodies(vocabulary), min_size=1, max_size=4))


def _detection(vocabulary: Vocabulary) -> st.SearchStrategy[tuple[msgspec.Struct, ...]]:
    define = st.builds(
        c.Define,
        st.integers(1, 9),
        st.sampled_from(vocabulary.patterns),
        pattern_texts,
        st.sampled_from(["simple", "topology", "cost"]),
        st.sampled_from([0, 0, 2]),
        st.booleans(),
        st.sampled_from([False, False, True]),
    )
    ended = st.builds(c.Drop, st.integers(1, 9), st.sampled_from(vocabulary.patterns))
    published = _published(vocabulary)
    return st.tuples(define, published, published, published | ended)


def _batch(vocabulary: Vocabulary) -> st.SearchStrategy[tuple[msgspec.Struct, ...]]:
    @st.composite
    def batch(draw: st.DrawFn) -> tuple[msgspec.Struct, ...]:
        token = draw(st.sampled_from(vocabulary.tokens))
        chunks = draw(st.integers(1, 3))
        drafts: Any = st.lists(bodies(vocabulary, is_draft=True), max_size=3)
        staged = [
            c.Stage(10 + index, token, index, draw(drafts), index == chunks - 1)
            for index in range(chunks)
        ]
        sink, number = draw(st.sampled_from(vocabulary.sinks)), draw(st.integers(0, 5))
        commit = c.Commit(20, sink, draw(st.sampled_from(["", "q1"])), number, (token,))
        return (*staged, commit, *([commit] * draw(st.integers(0, 1))))

    return batch()


def _stream(vocabulary: Vocabulary) -> st.SearchStrategy[tuple[msgspec.Struct, ...]]:
    @st.composite
    def stream(draw: st.DrawFn) -> tuple[msgspec.Struct, ...]:
        name = draw(st.sampled_from(vocabulary.subscriptions))
        quality: Any = draw(st.sampled_from(["durable", "durable", "reliable", "best-effort"]))
        start: Any = draw(st.sampled_from(["now", "beginning", "resume"]))
        number = draw(st.integers(0, 4))
        window = draw(st.sampled_from([1, 2, 256]))
        wanted = draw(st.sampled_from(FILTERS))
        begun = c.Subscribe(1, name, wanted, quality, start, number=number, window=window)
        ticks: dict[str, Any] = {
            broker: {name: Heard("tick", draw(st.integers(0, 2)))}
            for broker in draw(st.lists(st.sampled_from(vocabulary.brokers), max_size=2))
        }
        rest: list[msgspec.Struct] = [draw(_published(vocabulary)), c.Ack(ticks)]
        if draw(st.booleans()):
            rest.append(c.Unsubscribe(2, name))
        return (begun, *rest)

    return stream()


def link_frames(vocabulary: Vocabulary) -> st.SearchStrategy[msgspec.Struct]:
    """What a hostile neighbour says; half of it is carried on."""
    others = tuple(each for each in LINK_TYPES if each is not Carry)
    carried = tuple(Carried(each) for each in CARRIED_TYPES)
    return _mixed((*others, *carried), (), vocabulary)


@dataclass(frozen=True)
class Carried:
    """A `Carry` with a content of this type."""

    content: Struct


@lru_cache(maxsize=16)
def _mixed(
    often: Sequence[Struct | Carried], seldom: Sequence[Struct | Carried], vocabulary: Vocabulary
) -> st.SearchStrategy[msgspec.Struct]:
    common = {kind: frames(kind, vocabulary) for kind in often}
    rare = {kind: frames(kind, vocabulary) for kind in seldom}

    @st.composite
    def mixed(draw: st.DrawFn) -> msgspec.Struct:
        if rare and draw(st.integers(0, 15)) == 15:
            return draw(rare[draw(st.sampled_from(list(rare)))])
        return draw(common[draw(st.sampled_from(list(common)))])

    return mixed()


@cache
def frames(kind: Struct | Carried, vocabulary: Vocabulary) -> st.SearchStrategy[msgspec.Struct]:
    """Frames of one type, in all manners."""
    if isinstance(kind, Carried):
        content = frames(kind.content, vocabulary)
        names = st.sampled_from(vocabulary.brokers)
        return st.builds(Carry, names, names, st.sampled_from([9, 9, 9, 0, 1, 255]), content)
    if kind is Carry:
        return st.one_of([frames(Carried(each), vocabulary) for each in CARRIED_TYPES])
    sensible = _struct(kind, vocabulary, _sensible)
    wild = wild_of(kind)
    places = [each.name for each in msgspec.structs.fields(kind)]
    described = _described(kind)
    odd_fields = {each.name: _odd(each.type, vocabulary, each.name) for each in described.fields}

    @st.composite
    def drawn(draw: st.DrawFn) -> msgspec.Struct:
        manner = draw(st.integers(0, 9))
        if manner == 9:
            return draw(wild)
        frame = draw(sensible)
        if manner > 5 and places:
            place = draw(st.sampled_from(places))
            frame = msgspec.structs.replace(frame, **{place: draw(odd_fields[place])})
        return frame

    return drawn()


def _described(kind: Struct) -> inspect.StructType:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return described


Drawing = Callable[[inspect.Type, Vocabulary, str, Struct], st.SearchStrategy[object]]


def _struct(
    kind: Struct, vocabulary: Vocabulary, drawing: Drawing
) -> st.SearchStrategy[msgspec.Struct]:
    fields = _described(kind).fields
    return st.builds(
        kind, **{each.name: drawing(each.type, vocabulary, each.name, kind) for each in fields}
    )


STORIES = (_detection, _batch, _stream)

# -- large frames ---------------------------------------------------------------------------------
#
# As large as limits allow, or a little beyond. Drawn by name and size: nobody can read them, and
# Hypothesis could not make them smaller.

FRAME_BYTES_MAX = 16 * 1024 * 1024
ITEMS_MAX = 65_535


def _disjunction(form: str, number: int, seed: int) -> str:
    return " OR ".join(form.format(i=i, seed=seed) for i in range(number))


#: As they are written: dense, with several attributes, and what no kernel compares.
DISJUNCTS = (
    "w{i}<{seed}",
    "(x{seed} = {i} AND y > {i} AND z{i} <> 'q')",
    "(t LIKE '%a{i}_%b{seed}%' AND u LIKE '%x{i}%')",
)


def _large_ack(part: float, seed: int) -> c.Ack:
    ticks = {f"{number:x}": seed for number in range(ITEMS_MAX)}
    return c.Ack({f"{number}": ticks for number in range(int(42 * part))})


def _large_advertises(part: float, seed: int) -> c.Advertises:
    """Together as long as one filter, or, of other seeds, as long as a frame."""
    most = FRAME_BYTES_MAX // 2 if seed % 2 else 262_144
    texts: list[str] = []
    form = DISJUNCTS[seed % len(DISJUNCTS)]
    while len(texts) < 1_024 and sum(map(len, texts)) < most * part:
        texts.append(_disjunction(form, 40 if seed & 4 else 400, len(texts) + seed))
    return c.Advertises(texts[:-1])


def _large_define(part: float, seed: int) -> c.Define:
    """As long as may be, and too large for a subscription, which shows in the end; or as large as
    may be."""
    form = DISJUNCTS[seed // 2 % len(DISJUNCTS)]
    each = 41 if seed % 2 else 250_000 // 24 // len(form + " OR ")
    texts = (_disjunction(form, int(each * part), n) for n in range(24))
    parts = [f"p{n}:{{{text}}}" for n, text in enumerate(texts)]
    return c.Define(1, f"p{1 + seed % 3}", " THEN ".join(parts) + " WITHIN 1 s", is_new=True)


def _large_stage(part: float, seed: int) -> c.Stage:
    """Tiny events, or events of many attributes."""
    attributes = {f"a{n}": n for n in range(200 if seed % 2 else 1)}
    draft = encode_draft(Event(attributes))
    count = min(ITEMS_MAX, FRAME_BYTES_MAX // (len(draft) + 5))
    return c.Stage(1, f"t{1 + seed % 3}", 0, [draft] * int(count * part))


def _large_subscribe(part: float, seed: int) -> c.Subscribe:
    text = _disjunction(DISJUNCTS[seed % len(DISJUNCTS)], int(1_020 * part), seed)
    return c.Subscribe(1, f"s{1 + seed % 4}", text, "reliable")


LARGE: dict[str, Callable[[float, int], c.AnyClientFrame]] = {
    "Ack": _large_ack,
    "Advertises": _large_advertises,
    "Define": _large_define,
    "Stage": _large_stage,
    "Subscribe": _large_subscribe,
}

# -- fields ---------------------------------------------------------------------------------------


def _sensible(
    kind: inspect.Type, vocabulary: Vocabulary, name: str, within: Struct
) -> st.SearchStrategy[object]:
    match kind:
        case inspect.IntType():
            return _numbers(name)
        case inspect.BoolType():
            return st.booleans()
        case inspect.BytesType():
            return bodies(vocabulary, is_draft=within is c.Stage)
        case inspect.NoneType():
            return st.none()
        case inspect.StrType():
            return _strings(name, vocabulary, within)
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.ListType(item_type=item):
            return _lists(_sensible(item, vocabulary, name, within))
        case inspect.VarTupleType(item_type=item, min_length=least):
            return _lists(_sensible(item, vocabulary, name, within), least or 0).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*(_sensible(each, vocabulary, name, within) for each in items))
        case inspect.DictType(value_type=inspect.DictType(value_type=item)):
            inner = _sensible(item, vocabulary, name, within)
            of_each = st.dictionaries(st.sampled_from(vocabulary.subscriptions), inner, max_size=3)
            return st.dictionaries(st.sampled_from(vocabulary.brokers), of_each, max_size=3)
        case inspect.DictType(value_type=item):
            each_one = _sensible(item, vocabulary, name, within)
            return st.dictionaries(st.sampled_from(vocabulary.brokers), each_one, max_size=3)
        case inspect.UnionType(types=kinds):
            return st.one_of([_sensible(each, vocabulary, name, within) for each in kinds])
        case inspect.StructType():
            made = _struct(kind.cls, vocabulary, _sensible)
            return made | st.builds(Heard, st.just(kind_of(name)), st.integers(0, 3))
    raise AssertionError(f"frames have no fields of this kind: {kind}")


def _odd(kind: inspect.Type, vocabulary: Vocabulary, name: str) -> st.SearchStrategy[object]:
    """What is out of place in a field."""
    match kind:
        case inspect.IntType():
            return st.sampled_from(BOUNDARIES) | st.integers(0, (1 << 63) - 1)
        case inspect.StrType():
            return st.sampled_from((*ODD_NAMES, *GARBAGE)) | st.text(TEXTS, max_size=12)
        case inspect.BytesType():
            return st.binary(max_size=40)
        case inspect.NoneType():
            return st.none()
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.BoolType():
            return st.booleans()
        case inspect.ListType(item_type=item):
            few = st.lists(_odd(item, vocabulary, name), max_size=4)
            return few | st.builds(_repeated, _odd(item, vocabulary, name), st.just(300))
        case inspect.VarTupleType(item_type=item, min_length=least):
            few = st.lists(_odd(item, vocabulary, name), min_size=least or 0, max_size=4)
            return few.map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*(_odd(each, vocabulary, name) for each in items))
        case inspect.DictType(value_type=item):
            keys = st.sampled_from((*vocabulary.brokers, *ODD_NAMES))
            return st.dictionaries(keys, _odd(item, vocabulary, name), max_size=4)
        case inspect.UnionType(types=kinds):
            return st.one_of([_odd(each, vocabulary, name) for each in kinds])
        case inspect.StructType():
            return frames(kind.cls, vocabulary)
    raise AssertionError(f"frames have no fields of this kind: {kind}")


def _repeated(item: object, count: int) -> list[object]:
    return [item] * count


def _lists(items: st.SearchStrategy[object], least: int = 0) -> st.SearchStrategy[list[object]]:
    return st.lists(items, min_size=least, max_size=3)


def _numbers(name: str) -> st.SearchStrategy[object]:
    if name == "protocol_version":
        return st.just(1)
    if name in {"window", "bytes_max", "events_max"}:
        return st.sampled_from([1, 2, 256, 65_535])
    heard = st.builds(Heard, st.just(kind_of(name)), st.integers(0, 3), st.integers(-1, 2))
    return heard | st.integers(0, 4)


def _strings(name: str, vocabulary: Vocabulary, within: Struct) -> st.SearchStrategy[object]:
    if name in {"filter", "filters"}:
        return filter_texts
    if name == "text":
        return pattern_texts if within in {c.Define, PointRecord} else filter_texts | pattern_texts
    if name in {"reason", "code"}:
        return st.sampled_from(["", "retention", "transient", "unknown", "busy"])
    known = vocabulary.names(name)
    if known is None:
        return st.sampled_from(vocabulary.brokers) | st.builds(Heard, st.just(kind_of(name)))
    heard = st.builds(Heard, st.just(name), st.integers(0, 3))
    return st.sampled_from(known) | st.sampled_from(known) | heard


filter_texts: st.SearchStrategy[object] = (
    st.sampled_from(FILTERS)
    | st.sampled_from(FILTERS)
    | meeting_conditions.map(lambda each: str(Filter.of(each)))
    | st.sampled_from(GARBAGE)
)
pattern_texts: st.SearchStrategy[object] = (
    st.sampled_from(PATTERNS)
    | st.sampled_from(PATTERNS)
    | any_pattern().map(str)
    | st.sampled_from(GARBAGE)
)


# -- events ---------------------------------------------------------------------------------------

CONTROLS = (
    DEFAULT_CONTROL,
    DEFAULT_CONTROL,
    DEFAULT_CONTROL,
    Control(persistence="transient"),
    Control(time_limit_ns=1),
    Control(time_limit_ns=(1 << 63) - 1),
    Control(hop_limit=0),
    Control(hop_limit=1),
    Control(level_limit=0),
    Control(destinations=("evil-1", "nobody")),
    Control(priority=9, correlation_id="x"),
)
_values = st.sampled_from(
    [0, 1, 2, 5, -1, 1.0, 0.5, float("nan"), True, "x", "", "h", (1 << 63) - 1]
)
_attributes = st.dictionaries(
    st.sampled_from(["a", "b", "c", "who", "anabranch.pattern"]), _values, max_size=3
).map(lambda each: tuple(sorted(each.items())))


@cache
def bodies(vocabulary: Vocabulary, *, is_draft: bool = False) -> st.SearchStrategy[object]:
    """Encoded events, most of them the next one of their publisher; some are corrupt."""
    made = st.builds(
        Body,
        st.sampled_from(["", "", "", "", *vocabulary.clients, *vocabulary.publishers]),
        st.sampled_from([1, 1, 1, 2, 3]),
        st.sampled_from([0, 0, 0, 0, 1, -1]),
        _attributes,
        st.sampled_from(CONTROLS),
        st.just(is_draft) if is_draft else st.sampled_from([False] * 9 + [True]),
    )
    return made | made | made | st.binary(max_size=20)
