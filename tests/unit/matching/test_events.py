"""Events as messages: encoded batches stay right whatever happens to the index meanwhile."""

import datetime
import decimal
import enum
import math
import uuid
from collections import ChainMap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.matching.engine import EngineName
from anabranch.matching.index import MatchIndex
from anabranch.model.errors import EventError
from anabranch.model.event import Event, Value
from anabranch.model.limits import Limits
from tests.matching_parts import Attributes

MIXED: list[Attributes] = [
    {"x": 1, "s": "a"},
    {"s": "a", "x": 1},
    {"x": 1.0, "s": "b"},
    {"x": True},
    {"x": "a", "s": 1},
    {"x": math.nan, "s": "b", "other": "ignored"},
    {},
    {"other": 5},
]


def answers(index: MatchIndex, events: list[Attributes]) -> list[set[object]]:
    return [set(index.match(event)) for event in events]


def test_encoded_events_are_matched_like_the_events_themselves(index: MatchIndex) -> None:
    index.add_many([(1, "x = 1"), (2, "s = 'a'"), (3, "s LIKE 'b%'"), (4, "x"), (5, "x > s")])
    encoded = index.encode(MIXED)
    assert len(encoded) == len(MIXED)
    assert list(map(set, index.match_batch(encoded))) == answers(index, MIXED)
    assert index.match_batch(encoded) == index.match_batch(MIXED)


def test_encoded_events_know_filters_that_came_later(index: MatchIndex) -> None:
    encoded = index.encode(MIXED)
    assert list(index.match_batch(encoded)) == [[]] * len(MIXED)
    for number, text in enumerate(("x = 1", "s = 'a'", "s >= 'b'", "x IS NULL", "s LIKE '%a'")):
        index.add(number, text)
        assert list(map(set, index.match_batch(encoded))) == answers(index, MIXED)
    assert index.match_batch(encoded)[0]


def test_encoded_events_survive_codes_that_change_hands(index: MatchIndex) -> None:
    index.add("old", "s = 'a'")
    encoded = index.encode(MIXED)
    index.remove("old")
    index.add("new", "s = 'b'")
    assert list(map(set, index.match_batch(encoded))) == answers(index, MIXED)
    assert index.match_batch(encoded)[2] == ["new"]
    assert index.match_batch(encoded)[0] == []


def test_encoded_events_survive_attributes_that_change_hands(engine: EngineName) -> None:
    index = MatchIndex(engine=engine, limits=Limits(index_attributes_max=1))
    events: list[Attributes] = [{"a": 1, "b": 2}, {"a": 2, "b": 1}]
    index.add("old", "a = 1")
    encoded = index.encode(events)
    index.remove("old")
    index.add("new", "b = 1")
    assert list(index.match_batch(encoded)) == [[], ["new"]]


def test_events_encoded_by_another_index_are_understood(engine: EngineName) -> None:
    # Both schemas have changed equally often; only that they are two tells their words apart.
    ours, other = MatchIndex(engine=engine), MatchIndex(engine=engine)
    ours.add(1, "x = 1")
    other.add(1, "y = 1")
    encoded = ours.encode([{"x": 1}, {"y": 1}])
    assert list(ours.match_batch(encoded)) == [[1], []]
    assert list(other.match_batch(encoded)) == [[], [1]]


def test_events_of_many_shapes_are_matched(index: MatchIndex) -> None:
    index.add("last", "n1999 > 5")
    index.add("all", "k = 'x'")
    for number in range(2_000):
        event: dict[str, Value] = {f"n{number}": 6, "k": "x"}
        assert set(index.match(event)) == ({"last", "all"} if number == 1_999 else {"all"})


def test_order_and_company_of_attributes_do_not_matter(index: MatchIndex) -> None:
    index.add(1, "a = 1 AND b = 'x' AND c > 0.5")
    assert index.match({"a": 1, "b": "x", "c": 0.75}) == [1]
    assert index.match({"c": 0.75, "noise": "n", "b": "x", "more": True, "a": 1.0}) == [1]
    assert index.match({f"n{number}": number for number in range(250)} | {"a": 1}) == []


def test_events_with_a_header_are_matched_by_attributes_alone(index: MatchIndex) -> None:
    index.add(1, "stream = 'x'")
    assert index.match(Event({"a": 1}, stream="x")) == []
    assert index.match(Event({"stream": "x"}, stream="y")) == [1]


def test_long_texts_are_looked_into(index: MatchIndex) -> None:
    text = "a" * 60_000 + "needle" + "b" * 5_000
    index.add("inside", "s LIKE '%needle%'")
    index.add("end", "s LIKE '%bbb'")
    index.add("begin", "s LIKE 'aaa%'")
    index.add("other", "s LIKE '%needles%'")
    events: list[Attributes] = [{"s": text}, {"s": ""}, {"s": "needle"}]
    assert set(index.match({"s": text})) == {"inside", "end", "begin"}
    assert list(map(set, index.match_batch(events))) == [
        {"inside", "end", "begin"},
        set(),
        {"inside"},
    ]


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    "value",
    [decimal.Decimal(1), uuid.UUID(int=1), datetime.date(2020, 1, 1), Colour.RED, None, b"x", [1]],
)
def test_what_only_looks_like_a_value_is_refused(index: MatchIndex, value: object) -> None:
    index.add(1, "x = 1 OR x <> 'y'")
    event: Attributes = {"other": 1, "x": value}  # type: ignore[dict-item]
    for ask in (index.match, index.destinations, lambda bad: index.match_batch([{"x": 1}, bad])):
        with pytest.raises(EventError, match="attribute 'x' holds a"):
            ask(event)
    assert index.match({"x": 1}) == [1]


def test_names_that_are_no_texts_name_nothing(index: MatchIndex) -> None:
    index.add(1, "x = 1")
    event: Attributes = {1: 2, (1, 2): 3, "x": 1}  # type: ignore[dict-item]
    assert index.match(event) == [1]
    assert list(index.match_batch([{"x": 2}, event, {"x": 1}])) == [[], [1], [1]]


def test_any_mapping_is_an_event(index: MatchIndex) -> None:
    index.add(1, "x = 1", destination="here")
    layered: ChainMap[str, Value] = ChainMap({"x": 1}, {"x": 2})
    assert index.match(layered) == [1]
    assert list(index.match_batch([layered, Event({"x": 1}), {"x": 1}])) == [[1]] * 3
    assert index.destinations(layered) == {"here"}


def test_texts_of_every_length_are_told_apart(index: MatchIndex) -> None:
    texts = ["", "\0", "y" * 70_000, "y" * 70_001]
    texts += ["abcdefghijklmnopqrstuvwxyz"[:size] for size in range(1, 27)]
    for number, text in enumerate(dict.fromkeys(texts)):
        index.add(number, f"s = '{text}'")
    for number, text in enumerate(dict.fromkeys(texts)):
        assert index.match({"s": text}) == [number]
        assert index.match({"s": text + "?"}) == []


def test_texts_that_come_and_go_are_found_while_they_are_there(index: MatchIndex) -> None:
    for number in range(3_000):
        index.add(number, f"s = 'text-{number:06}' AND n{number % 7} = 1")
        if number >= 50:
            index.remove(number - 50)
        event: Attributes = {"s": f"text-{number:06}", f"n{number % 7}": 1}
        assert index.match(event) == [number]
    assert index.match({"s": "text-000001", "n1": 1}) == []


#: One index for all examples: its names, codes and buffers are used over and over.
LASTING = MatchIndex(engine="numba")
LASTING.add_many([("p", "s LIKE '%ab%'"), ("e", "s LIKE '%é'"), ("b", "s LIKE 'b%'")])


def satisfied(text: str) -> set[str]:
    holds = {"p": "ab" in text, "e": text.endswith("é"), "b": text.startswith("b")}
    return {name for name, is_so in holds.items() if is_so}


@given(st.lists(st.text(st.sampled_from("abé\0"), max_size=12), max_size=6))
def test_batches_of_any_texts_are_looked_into_one_by_one(texts: list[str]) -> None:
    wanted = [satisfied(text) for text in texts]
    assert list(map(set, LASTING.match_batch([{"s": text} for text in texts]))) == wanted
