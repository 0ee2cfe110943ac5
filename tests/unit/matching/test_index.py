"""The index as its users see it: adding, removing, matching, and what it says to bad input."""

import math
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from anabranch.matching.engine import EngineName
from anabranch.matching.index import MatchIndex
from anabranch.model.errors import (
    DuplicateIdError,
    EventError,
    FilterError,
    LocalError,
    UnknownIdError,
)
from anabranch.model.event import Event, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from tests.crowd_parts import Crowd
from tests.matching_parts import Attributes, Watched

IBM: dict[str, Value] = {"symbol": "IBM", "price": 49.5}

# -- adding, removing, matching


def test_event_finds_the_ids_of_the_filters_it_satisfies(index: MatchIndex) -> None:
    index.add("cheap-ibm", "symbol = 'IBM' AND price < 50")
    index.add("dear-ibm", "symbol = 'IBM' AND price >= 50")
    index.add("any-ibm", Filter.parse("symbol = 'IBM'"))
    assert sorted(map(str, index.match(IBM))) == ["any-ibm", "cheap-ibm"]


def test_events_and_mappings_are_matched_alike(index: MatchIndex) -> None:
    index.add(1, "symbol = 'IBM' AND price < 50")
    for event in (Event(IBM), IBM, MappingProxyType(IBM)):
        assert index.match(event) == [1]
        assert list(index.match_batch([event, event])) == [[1], [1]]


def test_empty_index_matches_nothing(index: MatchIndex) -> None:
    assert index.match(IBM) == []
    assert index.match({}) == []
    assert list(index.match_batch([IBM, {}])) == [[], []]
    assert index.destinations(IBM) == set()


def test_removed_filter_is_found_no_more_and_may_come_back(index: MatchIndex) -> None:
    index.add(1, "price < 50")
    index.remove(1)
    assert index.match(IBM) == []
    index.add(1, "price < 40")
    assert index.match(IBM) == []
    assert index.match({"price": 39}) == [1]


def test_length_and_membership_follow_the_calls(index: MatchIndex) -> None:
    assert len(index) == 0
    index.add_many([("a", "x = 1"), ("b", Filter.parse("x = 2 OR y = 3"))])
    assert len(index) == 2
    assert "a" in index
    assert "c" not in index
    index.remove("a")
    assert len(index) == 1
    assert "a" not in index


def test_true_matches_every_event_also_the_empty_one(index: MatchIndex) -> None:
    index.add("all", "TRUE")
    index.add("also", Filter.everything())
    for event in ({}, IBM, {"other": math.nan}):
        assert sorted(map(str, index.match(event))) == ["all", "also"]
    index.remove("all")
    assert index.match({}) == ["also"]


def test_filter_that_never_matches_is_held_and_never_found(index: MatchIndex) -> None:
    index.add("never", "x > 5 AND x < 5", destination="link")
    index.add("false", Filter.nothing())
    assert len(index) == 2
    assert index.match({"x": 5}) == []
    assert index.destinations({"x": 5}) == set()
    with pytest.raises(DuplicateIdError):
        index.add("never", "x = 1")
    index.remove("never")
    index.remove("false")
    assert len(index) == 0


def test_empty_event_satisfies_absence_only(index: MatchIndex) -> None:
    index.add("absent", "x IS NULL")
    index.add("present", "x IS NOT NULL")
    index.add("different", "x <> 1")
    assert index.match({}) == ["absent"]
    assert index.match({"x": math.nan}) == ["present"]


def test_filter_with_overlapping_alternatives_is_found_once(index: MatchIndex) -> None:
    index.add("both", "x > 1 AND y = 'a' OR x > 2 AND z = 'b'")
    assert index.match({"x": 3, "y": "a", "z": "b"}) == ["both"]
    assert list(index.match_batch([{"x": 3, "y": "a", "z": "b"}])) == [["both"]]


def test_residues_are_evaluated(index: MatchIndex) -> None:
    index.add("sum", "a + b > 5")
    index.add("order", "a < b")
    index.add("pattern", "name LIKE 'a%b_c%'")
    assert index.match({"a": 2, "b": 4}) == ["sum", "order"]
    assert index.match({"a": 2, "b": 2}) == []
    assert index.match({"name": "axxbyczz"}) == ["pattern"]


def test_destinations_are_each_answered_once(index: MatchIndex) -> None:
    index.add(1, "x > 1", destination="east")
    index.add(2, "x > 2", destination="east")
    index.add(3, "x > 3", destination=("west", 1))
    index.add(4, "x > 0")
    assert index.destinations({"x": 5}) == {"east", ("west", 1)}
    assert index.destinations({"x": 3}) == {"east"}
    assert index.destinations({"x": 1}) == set()
    index.remove(1)
    assert index.destinations({"x": 2}) == set()
    assert index.destinations({"x": 3}) == {"east"}


def test_more_destinations_than_a_word_has_bits_are_told_apart(index: MatchIndex) -> None:
    for number in range(200):
        index.add(number, f"x >= {number}", destination=f"link {number}")
    assert index.destinations({"x": 130}) == {f"link {number}" for number in range(131)}
    for number in range(0, 200, 2):
        index.remove(number)
    assert index.destinations({"x": 5}) == {"link 1", "link 3", "link 5"}


def test_index_names_its_engine(engine: EngineName) -> None:
    assert MatchIndex(engine=engine).engine == engine
    assert MatchIndex().engine == "numba"


def test_index_tells_its_size(index: MatchIndex) -> None:
    before = index.nbytes
    index.add_many((number, f"x = {number} AND y > {number}") for number in range(3_000))
    assert index.nbytes > before > 0


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(LocalError, match="use 'auto', 'numba' or 'numpy'"):
        MatchIndex(engine="cuda")  # type: ignore[arg-type]


def test_equal_histories_give_equal_answers_in_equal_order(engine: EngineName) -> None:
    answers = []
    for _ in range(2):
        crowd = Crowd("alternatives", seed=9, watched=Watched([engine]))
        crowd.grow(800)
        crowd.shrink(300)
        crowd.grow(200)
        event: Attributes = {"symbol": "S1", "price": 20, "volume": 20, "x": 50, "y": 50.5, "z": 3}
        only = crowd.watched.indexes[0]
        answers.append((only.match(event), list(only.match_batch([event, {"x": 1}]))))
    assert answers[0] == answers[1]
    assert len(answers[0][0]) > 100


# -- bad input: an error says what is wrong, and nothing has changed


def assert_unchanged_by(index: MatchIndex, call: Callable[[], object]) -> str:
    """What the call says; the index answers afterwards as it did before."""
    index.add("kept", "x > 1 AND s LIKE 'a%'", destination="link")
    event: dict[str, Value] = {"x": 2, "s": "abc", "new": "text"}
    before = (len(index), index.match(event), index.destinations(event))
    with pytest.raises(LocalError) as caught:
        call()
    assert (len(index), index.match(event), index.destinations(event)) == before
    return str(caught.value)


def test_same_id_twice_is_refused(index: MatchIndex) -> None:
    said = assert_unchanged_by(index, lambda: index.add("kept", "TRUE", destination="other"))
    assert said == "subscription 'kept' is in the index already"


def test_unknown_id_is_refused(index: MatchIndex) -> None:
    said = assert_unchanged_by(index, lambda: index.remove("gone"))
    assert said == "subscription 'gone' is not in the index"


def test_second_removal_is_refused(index: MatchIndex) -> None:
    index.add(1, "x = 1")
    index.remove(1)
    with pytest.raises(UnknownIdError):
        index.remove(1)


@pytest.mark.parametrize("wrong", [None, 1, b"x = 1", ["x = 1"], {"x": 1}])
def test_filter_of_the_wrong_type_is_refused(index: MatchIndex, wrong: object) -> None:
    said = assert_unchanged_by(index, lambda: index.add("new", wrong))  # type: ignore[arg-type]
    assert "expected a Filter or its text" in said


@pytest.mark.parametrize("text", ["", "  ", "x =", "x = 'open", "x > 9223372036854775808", "((x)"])
def test_text_that_is_no_filter_is_refused(index: MatchIndex, text: str) -> None:
    assert_unchanged_by(index, lambda: index.add("new", text))
    assert "new" not in index


def test_filter_whose_normal_form_explodes_is_refused(index: MatchIndex) -> None:
    text = " AND ".join(f"(a{n} = 1 OR b{n} = 1)" for n in range(20))
    assert "conjunctions" in assert_unchanged_by(index, lambda: index.add("new", text))


def test_limits_of_the_index_bind_the_texts_it_parses(engine: EngineName) -> None:
    index = MatchIndex(engine=engine, limits=Limits(filter_bytes_max=20))
    index.add(1, "x = 1")
    with pytest.raises(FilterError):
        index.add(2, "x = 1 AND y = 1 AND z = 1")
    assert len(index) == 1


def test_one_bad_filter_among_many_leaves_those_before_it(index: MatchIndex) -> None:
    with pytest.raises(FilterError):
        index.add_many([(1, "x = 1"), (2, "x ="), (3, "x = 1")])
    assert index.match({"x": 1}) == [1]


@pytest.mark.parametrize("wrong", [None, 5, "x", [("x", 1)], {"x"}])
def test_what_is_no_event_is_refused(index: MatchIndex, wrong: Any) -> None:
    for ask in (index.match, index.destinations):
        assert "expected an Event" in assert_unchanged_by(index, partial(ask, wrong))
        index.remove("kept")
    for ask_many in (index.match_batch, index.encode):
        assert_unchanged_by(index, partial(ask_many, [IBM, wrong]))
        index.remove("kept")


def test_single_mapping_is_no_batch(index: MatchIndex) -> None:
    with pytest.raises(EventError, match="expected an Event"):
        index.match_batch(IBM)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, b"x", [1], 1j, {"y": 1}])
def test_value_of_no_kind_is_refused(index: MatchIndex, wrong: object) -> None:
    event: dict[str, Any] = {"s": "abc", "x": wrong}
    for ask in (index.match, index.destinations):
        said = assert_unchanged_by(index, partial(ask, event))
        assert "attribute 'x' holds a" in said
        index.remove("kept")
    assert_unchanged_by(index, lambda: index.match_batch([IBM, event]))


@pytest.mark.parametrize("wrong", [2**63, -(2**63) - 1, 10**30])
def test_integer_beyond_64_bits_is_refused(index: MatchIndex, wrong: int) -> None:
    event: dict[str, Value] = {"s": "abc", "x": wrong}
    assert "64 bits" in assert_unchanged_by(index, lambda: index.match(event))
    index.remove("kept")
    assert "64 bits" in assert_unchanged_by(index, lambda: index.match_batch([IBM, event]))


def test_lone_surrogate_is_refused_where_a_text_is_looked_into(index: MatchIndex) -> None:
    event: dict[str, Value] = {"s": "a\ud800", "x": 2}
    assert "lone surrogate" in assert_unchanged_by(index, lambda: index.match(event))
    index.remove("kept")
    assert "lone surrogate" in assert_unchanged_by(index, lambda: index.match_batch([event]))


@pytest.mark.parametrize("wrong", [[], {}, {"a"}])
def test_id_or_destination_that_is_not_hashable_is_refused(index: MatchIndex, wrong: Any) -> None:
    with pytest.raises(TypeError):
        index.add(wrong, "x = 1")
    with pytest.raises(TypeError):
        index.add(1, "x = 1", destination=wrong)
    assert len(index) == 0
    assert index.match({"x": 1}) == []
    index.add(1, "x = 1", destination="link")
    assert index.destinations({"x": 1}) == {"link"}
