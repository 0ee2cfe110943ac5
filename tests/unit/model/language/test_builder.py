"""Filters written in Python give the trees of the language proper."""

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from anabranch.model.errors import FilterError, FilterLimitError
from anabranch.model.language.builder import Condition, Scalar, all_of, any_of, attr
from anabranch.model.language.parser import parse_expression

A, B, C = attr("a"), attr("b"), attr("c")
NAIVE = datetime(2026, 1, 31, tzinfo=UTC).replace(tzinfo=None)


@pytest.mark.parametrize(
    ("built", "text"),
    [
        (attr("price") > 50, "price > 50"),
        ((A == 1) & ~B.like("x%") | C.is_in([1, 2]), "a = 1 AND b NOT LIKE 'x%' OR c IN (1, 2)"),
        ((A != 1) & (A <= 2.5) & (A < 3) & (A >= "x"), "a<>1 AND a<=2.5 AND a<3 AND a>='x'"),
        (~(A == True), "NOT a = TRUE"),  # noqa: E712
        (A.between(1, B), "a BETWEEN 1 AND b"),
        (A.startswith("50%"), r"a LIKE '50\%%' ESCAPE '\'"),
        (A.endswith("x"), "a LIKE '%x'"),
        (A.contains("x"), "a LIKE '%x%'"),
        (A.like("x!%", "!"), "a LIKE 'x!%' ESCAPE '!'"),
        (A.is_null() | B.is_not_null(), "a IS NULL OR b IS NOT NULL"),
        (A - B > 0.5 * C, "a - b > 0.5 * c"),
        ((1 + A) * (2 - B) / (3 % C) == 1 / A, "(1 + a) * (2 - b) / (3 % c) = 1 / a"),
        (A % 2 == -B, "a % 2 = -b"),
        (+A == 1, "+a = 1"),
        (A == B, "a = b"),
        (5 < A, "a > 5"),  # noqa: SIM300
        (A & B | ~C, "a AND b OR NOT c"),
        (A & True, "a AND TRUE"),
        (False | A, "FALSE OR a"),
        (True & A, "TRUE AND a"),
        (attr("and") == b"\0", "[and] = 0x00"),
        (all_of(attr(name) > 0 for name in "abc"), "a > 0 AND b > 0 AND c > 0"),
        (any_of([A == 1, B == 2]), "a = 1 OR b = 2"),
        (all_of([]), "TRUE"),
        (any_of([]), "FALSE"),
        (~~A, "a"),
    ],
)  # fmt: skip
def test_builder_and_text_give_one_tree(built: Condition, text: str) -> None:
    assert built.expression == parse_expression(text)


def test_condition_prints_as_its_text() -> None:
    assert str(attr("a") > 1) == "a > 1"
    assert repr(attr("a")) == "<Term a>"


def test_python_connectives_raise_instead_of_dropping_half_of_the_filter() -> None:
    with pytest.raises(FilterError, match="& for and"):
        (A > 1) and (B > 2)  # noqa: B018
    with pytest.raises(FilterError, match="& for and"):
        (A > 1) or (B > 2)  # noqa: B018
    with pytest.raises(FilterError, match="~ for not"):
        not A  # noqa: B018
    with pytest.raises(FilterError, match="between"):
        1 < A < 5  # noqa: B015
    with pytest.raises(FilterError, match="is_in"):
        A in [1, 2]  # noqa: B015


def test_forgotten_parentheses_raise() -> None:
    with pytest.raises(FilterError):
        A > 1 & B > 2  # type: ignore[operator]  # noqa: B015


def test_conditions_are_not_values() -> None:
    with pytest.raises(FilterError, match="not a value"):
        (A > 1) == (B > 1)  # noqa: B015
    with pytest.raises(FilterError, match="not a value"):
        A == (B > 1)  # noqa: B015, SIM300
    with pytest.raises(TypeError):
        hash(A)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "finite"),
        (math.inf, "finite"),
        (2**63, "64 bits"),
        ("\ud800", "lone surrogate"),
        (b"", "not empty"),
        (None, "is_null"),
        ([1], "is not a value; attributes hold no lists"),
        (Decimal("1.10"), "a float may round a decimal"),
        (date(2026, 1, 31), "is not a value; give a datetime with a time zone"),
        (NAIVE, "is a datetime without a time zone; expected one with"),
        (datetime(2300, 1, 1, tzinfo=UTC), "64-bit nanoseconds; expected a time from 1677"),
    ],
)
def test_value_that_no_filter_can_hold_raises_at_once(value: Scalar, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        A == value  # noqa: B015, SIM300


@pytest.mark.parametrize("name", ["", "\ud800", 5])
def test_name_that_no_attribute_has_raises_at_once(name: str) -> None:
    with pytest.raises(FilterError):
        attr(name)


def test_list_needs_an_item_and_is_not_a_string() -> None:
    with pytest.raises(FilterError, match="empty list"):
        A.is_in([])
    with pytest.raises(FilterError, match="list of values"):
        A.is_in("abc")


def test_lone_escape_shows_in_the_expression() -> None:
    with pytest.raises(FilterError, match="stands alone"):
        _ = A.like("x!", "!").expression


def test_connective_needs_a_condition() -> None:
    with pytest.raises(FilterError, match="not a condition"):
        (A > 1) & 5  # type: ignore[operator]


def test_tower_of_arithmetic_meets_the_limit() -> None:
    tower = A
    for _ in range(1_000):
        tower = tower + 1
    with pytest.raises(FilterLimitError, match="100 levels"):
        _ = (tower > 0).expression


def test_a_datetime_is_its_timestamp() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    later = noon + timedelta(hours=1)
    assert str(noon < A) == "a > 1769860800000000000"
    assert (noon <= A).expression == parse_expression("a >= TIMESTAMP '2026-01-31T12:00:00Z'")
    assert str(A.between(noon, later) | A.is_in([noon])) == (
        "a >= 1769860800000000000 AND a <= 1769864400000000000 OR a IN (1769860800000000000)"
    )
    assert str(A - noon > 5) == "a - 1769860800000000000 > 5"
    assert str(noon - A > 5) == "1769860800000000000 - a > 5"
