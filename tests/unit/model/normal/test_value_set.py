"""Value sets at the places where a careless one goes wrong."""

import math
import pickle

import pytest

from anabranch.model.event import INFINITY, INT_MAX, INT_MIN, Number, Value, number_before
from anabranch.model.normal import number_ranges, text_ranges
from anabranch.model.normal.value_set import (
    ABSENT,
    EVERYTHING,
    NOTHING,
    NUMBERS,
    PRESENT,
    TEXTS,
    ValueSet,
    point,
    prefixed,
    union_of,
)


def test_everything_and_nothing_are_complements() -> None:
    assert EVERYTHING.complement() == NOTHING
    assert NOTHING.complement() == EVERYTHING
    assert NOTHING.is_empty()
    assert EVERYTHING.is_everything()


def test_absence_is_a_value_of_its_own() -> None:
    assert ABSENT.contains(None)
    assert not PRESENT.contains(None)
    assert ABSENT.union(PRESENT) == EVERYTHING
    assert not ABSENT.intersects(PRESENT)


@pytest.mark.parametrize("value", [math.nan, 0, -0.0, 1.5, "", "x", True, False])
def test_every_value_is_present(value: Value) -> None:
    assert PRESENT.contains(value)


def test_nan_is_no_number() -> None:
    assert not NUMBERS.contains(math.nan)
    assert point(math.nan) == ValueSet(nan=True)
    assert number_ranges.compared("=", math.nan) == ()
    assert number_ranges.compared("<>", math.nan) == ()


def test_truth_is_no_number() -> None:
    assert not point(1).contains(True)
    assert not point(True).contains(1)


def test_minus_zero_is_written_as_zero() -> None:
    assert repr(number_ranges.compared("<=", -0.0)) == "((-inf, 0.0),)"
    assert repr(number_ranges.below(5e-324)) == "((-inf, 0.0),)"
    assert repr(number_ranges.above(-5e-324)) == "((0.0, inf),)"
    assert repr(number_ranges.complement(((5e-324, INFINITY),))) == "((-inf, 0.0),)"


def test_adjacent_numbers_beyond_the_floats_are_merged() -> None:
    points = [(2**53 + 1, 2**53 + 1), (2**53, 2**53), (2**53 + 2, 2**53 + 2)]
    assert number_ranges.canonical(points) == ((2**53, 2**53 + 2),)


def test_integers_with_floats_between_them_are_not_merged() -> None:
    assert number_ranges.canonical([(1, 1), (2, 2)]) == ((1, 1), (2, 2))


def test_ends_of_the_integers_touch_the_floats_beyond() -> None:
    assert number_ranges.canonical([(0, INT_MAX), (2.0**63, INFINITY)]) == ((0, INFINITY),)
    below = (-INFINITY, number_before(INT_MIN))
    assert number_ranges.canonical([(INT_MIN, 0), below]) == ((-INFINITY, 0),)


@pytest.mark.parametrize("number", [INFINITY, -INFINITY])
def test_number_differs_from_an_infinity_on_one_side_only(number: Number) -> None:
    assert len(number_ranges.compared("<>", number)) == 1


def test_nothing_lies_beyond_the_infinities() -> None:
    assert number_ranges.compared(">", INFINITY) == ()
    assert number_ranges.compared("<", -INFINITY) == ()


def test_no_text_is_below_the_empty_text() -> None:
    assert text_ranges.compared("<", "") == ()
    assert text_ranges.compared("<>", "") == (("\0", None),)
    assert text_ranges.compared("<=", "") == (("", "\0"),)


def test_empty_prefix_is_all_texts() -> None:
    assert prefixed("") == TEXTS


def test_prefix_of_the_last_character_has_no_end() -> None:
    assert prefixed("\U0010ffff").texts == (("\U0010ffff", None),)


def test_prefix_skips_the_surrogates() -> None:
    values = prefixed("\ud7ff")
    assert values.contains("\ud7ff\U0010ffff")
    assert not values.contains("\ue000")


def test_touching_texts_are_merged() -> None:
    assert point("a").union(point("a\0")).texts == (("a", "a\0\0"),)
    assert prefixed("a").union(prefixed("b")).texts == (("a", "c"),)


def test_many_points_are_found_again() -> None:
    values = union_of(point(2 * number) for number in range(5_000))
    assert len(values.numbers) == 5_000
    assert values.contains(7_000)
    assert not values.contains(7_001)
    assert point(9_998).is_subset(values)
    assert not point(9_999).is_subset(values)


def test_single_texts_are_listed_and_ranges_are_not() -> None:
    assert text_ranges.points(point("a").union(point("c")).texts) == ("a", "c")
    assert text_ranges.points(prefixed("a").texts) is None


@pytest.mark.parametrize("values", [point(1), point(-0.0), point(""), point("a")], ids=str)
def test_one_number_or_text_is_single(values: ValueSet) -> None:
    assert values.is_single()
    assert not values.union(ABSENT).is_single()
    assert not values.union(point("z")).is_single()


@pytest.mark.parametrize("values", [NOTHING, NUMBERS, ABSENT, prefixed("a"), TEXTS], ids=str)
def test_other_sets_are_not_single(values: ValueSet) -> None:
    assert not values.is_single()


def test_value_set_survives_pickling() -> None:
    values = prefixed("a").union(point(1.5)).union(ABSENT)
    assert pickle.loads(pickle.dumps(values)) == values
