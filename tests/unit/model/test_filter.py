"""Filters as values: made, compared, combined, matched."""

import math
import pickle
from collections import ChainMap

import pytest

from anabranch.model.errors import EventError, FilterError, FilterLimitError
from anabranch.model.event import Event
from anabranch.model.filter import Filter
from anabranch.model.language.builder import attr
from anabranch.model.language.expression import And, Attribute, Comparison, Expression, Integer
from anabranch.model.limits import Limits
from anabranch.model.normal.conjunction import EVERY_EVENT


def test_three_front_ends_make_one_filter() -> None:
    parsed = Filter.parse("symbol = 'IBM' AND price > 50")
    built = Filter.of((attr("symbol") == "IBM") & (attr("price") > 50))
    assert parsed == built == Filter.from_tuples("[symbol,eq,'IBM'],[price,>,50]")
    assert len({parsed, built}) == 1
    assert str(built) == "symbol = 'IBM' AND price > 50"


def test_filters_with_other_trees_are_other_filters() -> None:
    assert Filter.parse("a > 1") != Filter.parse("1 < a")
    assert Filter.parse("a = 1") != Filter.parse("a = 1.0")
    assert Filter.parse("a = 1") != "a = 1"


def test_text_of_a_filter_parses_back_to_it() -> None:
    one = Filter.parse("not (a between 1 and 2) and b like 'x%' or [c d] is not null")
    assert Filter.parse(str(one)) == one
    assert eval(repr(one)) == one


def test_filter_matches_events_and_mappings() -> None:
    one = Filter.parse("price > 50")
    assert one.matches(Event({"price": 51}))
    assert one.matches({"price": 51})
    assert one.matches(ChainMap({"price": 51}, {"price": 1}))
    assert not one.matches({"price": 50})


@pytest.mark.parametrize("attributes", [{}, {"price": "51"}, {"price": math.nan}, {"price": True}])
def test_unknown_matches_neither_a_filter_nor_its_negation(attributes: dict[str, object]) -> None:
    one = Filter.parse("price > 50")
    assert not one.matches(attributes)  # type: ignore[arg-type]
    assert not (~one).matches(attributes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", [None, b"x", [1], 2**63, -(2**63) - 1, 1j, "\ud800", {1: 2}], ids=repr
)
def test_mapping_with_a_value_no_event_holds_is_refused(value: object) -> None:
    with pytest.raises(EventError, match="'other'"):
        Filter.parse("price > 50").matches({"price": 51, "other": value})  # type: ignore[dict-item]


@pytest.mark.parametrize("event", [None, 5, "price = 51", [("price", 51)]])
def test_matching_something_else_than_an_event_is_refused(event: object) -> None:
    with pytest.raises(EventError, match="neither an event nor a mapping"):
        Filter.parse("price > 50").matches(event)  # type: ignore[arg-type]


def test_everything_and_nothing() -> None:
    assert Filter.everything().matches({})
    assert not Filter.nothing().matches({})
    assert Filter.everything().conjunctions == (EVERY_EVENT,)
    assert Filter.nothing().conjunctions == ()
    assert Filter.everything().covers(Filter.parse("a = 1"))
    assert not Filter.nothing().intersects(Filter.everything())


def test_combined_filters_are_what_their_text_says() -> None:
    one, two = Filter.parse("a = 1"), Filter.parse("b = 2")
    assert one & two == Filter.parse("a = 1 AND b = 2")
    assert one | two == Filter.parse("a = 1 OR b = 2")
    assert ~one == Filter.parse("NOT a = 1")
    assert ~~one == one
    assert one & two & Filter.parse("c = 3") == Filter.parse("a = 1 AND b = 2 AND c = 3")


def test_filters_combine_with_conditions_of_the_builder() -> None:
    one = Filter.parse("a = 1")
    assert one & (attr("b") > 2) == Filter.parse("a = 1 AND b > 2")
    assert one.covers((attr("a") == 1) & (attr("b") > 2))
    assert one.intersects(attr("b") > 2)


def test_filter_of_a_filter_is_itself() -> None:
    one = Filter.parse("a = 1")
    assert Filter.of(one) is one


def test_text_is_not_taken_for_a_tree() -> None:
    with pytest.raises(FilterError, match=r"Filter\.parse"):
        Filter.of("a = 1")  # type: ignore[arg-type]


def test_invalid_tree_is_refused() -> None:
    too_big = Comparison("=", Attribute("a"), Integer(2**63))
    with pytest.raises(FilterError):
        Filter.of(too_big)
    with pytest.raises(FilterError):
        Filter.of(And((too_big,)))


def test_filter_that_grows_too_high_is_refused() -> None:
    one = Filter.parse("a = 1")
    for _ in range(49):
        one = (one | Filter.parse("b = 1")) & Filter.parse("c = 1")
    with pytest.raises(FilterLimitError, match="filter_depth_max"):
        _ = one | Filter.parse("b = 1")


def test_limits_stay_with_the_filter() -> None:
    limits = Limits(conjunctions_max=2)
    one = Filter.parse("a = 1 OR b = 1 OR c = 1", limits)
    assert one.matches({"b": 1})
    with pytest.raises(FilterLimitError):
        _ = one.conjunctions
    with pytest.raises(FilterLimitError):
        _ = pickle.loads(pickle.dumps(one)).conjunctions


def test_filter_survives_pickling() -> None:
    one = Filter.parse("a + b > 5 AND name LIKE '%x'")
    assert one.matches({"a": 3, "b": 3, "name": "x"})
    copy = pickle.loads(pickle.dumps(one))
    assert copy == one
    assert copy.conjunctions == one.conjunctions
    assert copy.matches({"a": 3, "b": 3, "name": "x"})


@pytest.mark.parametrize("name", ["expression", "_expression", "_limits", "other"])
def test_filter_never_changes(name: str) -> None:
    one = Filter.parse("a = 1")
    with pytest.raises(AttributeError):
        setattr(one, name, Attribute("b"))
    with pytest.raises(AttributeError):
        delattr(one, name)
    assert one == Filter.parse("a = 1")


def test_normal_form_is_found_once() -> None:
    one = Filter.parse("a = 1 OR b = 2")
    assert one.conjunctions is one.conjunctions


def test_filter_has_no_truth_of_its_own() -> None:
    with pytest.raises(FilterError, match="no truth"):
        bool(Filter.parse("a = 1"))


def test_expression_is_the_tree() -> None:
    tree: Expression = Comparison("=", Attribute("a"), Integer(1))
    assert Filter.parse("a = 1").expression == tree
