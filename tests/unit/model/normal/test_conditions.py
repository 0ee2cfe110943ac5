"""Which values make one condition TRUE, and which make it FALSE."""

import pytest

from anabranch.model.event import INFINITY, number_after, number_before
from anabranch.model.language.expression import Attribute, Comparison, Integer, Order
from anabranch.model.language.parser import parse_expression
from anabranch.model.normal.conditions import INVERSE, MIRRORED, values_where
from anabranch.model.normal.value_set import (
    ABSENT,
    COMPARABLE,
    NOTHING,
    NUMBERS,
    ONLY_FALSE,
    ONLY_TRUE,
    ORDERED,
    PRESENT,
    TEXTS,
    ValueSet,
    point,
    prefixed,
)


def sets_of(text: str) -> tuple[ValueSet, ValueSet]:
    """Where the atom `text` on x is TRUE, and where it is FALSE."""
    where_true = values_where(parse_expression(text), True)
    where_false = values_where(parse_expression(text), False)
    assert where_true is not None
    assert where_false is not None
    assert where_true[0] == where_false[0] == "x"
    return where_true[1], where_false[1]


def others(kind: ValueSet, values: ValueSet) -> ValueSet:
    return kind.intersection(values.complement())


def test_comparison_speaks_of_one_kind_only() -> None:
    below = ValueSet(((-INFINITY, number_before(5)),))
    assert sets_of("x < 5") == (below, others(NUMBERS, below))


def test_literal_may_stand_on_the_left() -> None:
    assert sets_of("5 < x") == sets_of("x > 5")
    assert sets_of("'a' >= x") == sets_of("x <= 'a'")
    assert sets_of("x > 5")[0].numbers == ((number_after(5), INFINITY),)


def test_order_of_truths_is_unknown() -> None:
    assert sets_of("x < TRUE") == (NOTHING, NOTHING)
    assert sets_of("x <> TRUE") == (ONLY_FALSE, ONLY_TRUE)


def test_bytes_compare_with_no_attribute() -> None:
    assert sets_of("x = 0x61") == (NOTHING, NOTHING)
    assert sets_of("x IN (0x61, 1)") == (point(1), NOTHING)


def test_membership_of_one_kind_has_a_false_side() -> None:
    members = point(1).union(point(2))
    assert sets_of("x IN (1, 2)") == (members, others(NUMBERS, members))
    assert sets_of("x IN (TRUE)") == (ONLY_TRUE, ONLY_FALSE)


def test_membership_of_mixed_kinds_is_never_false() -> None:
    assert sets_of("x IN (1, 'a')") == (point(1).union(point("a")), NOTHING)


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("abc", point("abc")),
        ("", point("")),
        ("%", TEXTS),
        ("%%", TEXTS),
        ("ab%", prefixed("ab")),
        ("ab_%", others(prefixed("ab"), point("ab"))),
        ("ab%_", others(prefixed("ab"), point("ab"))),
        ("_%", others(TEXTS, point(""))),
    ],
)
def test_pattern_is_a_set_of_texts(pattern: str, matching: ValueSet) -> None:
    assert sets_of(f"x LIKE '{pattern}'") == (matching, others(TEXTS, matching))


def test_escaped_wildcards_are_plain_characters() -> None:
    assert sets_of("x LIKE 'a!%b!_%' ESCAPE '!'")[0] == prefixed("a%b_")


@pytest.mark.parametrize("pattern", ["%a", "%a%", "a%b", "_", "a_b", "__%", "_a%", "%_%_"])
def test_other_patterns_are_no_atoms(pattern: str) -> None:
    assert values_where(parse_expression(f"x LIKE '{pattern}'"), True) is None


def test_null_test_is_never_unknown() -> None:
    assert sets_of("x IS NULL") == (ABSENT, PRESENT)


def test_bare_attribute_asks_for_a_truth() -> None:
    assert sets_of("x") == (ONLY_TRUE, ONLY_FALSE)


def test_attribute_compared_with_itself_asks_for_a_kind() -> None:
    assert sets_of("x = x") == (COMPARABLE, NOTHING)
    assert sets_of("x <= x") == (ORDERED, NOTHING)
    assert sets_of("x < x") == (NOTHING, ORDERED)


@pytest.mark.parametrize("text", ["x < y", "x + 1 > 2", "x IN (1, y)", "1 < 2", "x + 1 IS NULL"])
def test_conditions_on_more_than_a_value_are_no_atoms(text: str) -> None:
    assert values_where(parse_expression(text), True) is None


@pytest.mark.parametrize("order", INVERSE)
def test_inverse_and_mirrored_orders_undo_themselves(order: Order) -> None:
    assert INVERSE[INVERSE[order]] == order
    assert MIRRORED[MIRRORED[order]] == order
    comparison = Comparison(order, Attribute("x"), Integer(1))
    inverse = Comparison(INVERSE[order], Attribute("x"), Integer(1))
    assert values_where(comparison, False) == values_where(inverse, True)
