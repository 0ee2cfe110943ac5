"""Trees put together by hand are checked before anything is built on them."""

import math

import pytest

from anabranch.model.errors import FilterError, FilterLimitError
from anabranch.model.language.expression import (
    And,
    Attribute,
    Binary,
    Comparison,
    Expression,
    In,
    Integer,
    IsNull,
    Like,
    Negative,
    Not,
    Or,
    Real,
    Text,
    Truth,
    check_expression,
)
from anabranch.model.limits import Limits

A = Attribute("a")
TEST = Comparison("=", A, Integer(1))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (And((TEST,)), "at least two items"),
        (And((And((TEST, TEST)), TEST)), "flat"),
        (Or((Or((TEST, TEST)), TEST)), "flat"),
        (Not(Not(TEST)), "NOT holds no NOT"),
        (Comparison("=", TEST, A), "a condition is not a value"),
        (Negative(TEST), "a condition is not a value"),
        (IsNull(Not(A)), "a condition is not a value"),
        (In(A, ()), "at least one item"),
        (Like(A, "x", "ab"), "one character"),
        (Like(A, "x!", "!"), "stands alone"),
        (Like(A, "\ud800"), "lone surrogate"),
        (Attribute(""), "not empty"),
        (Text("\ud800"), "lone surrogate"),
        (Integer(2**63), "64 bits"),
        (Integer(True), "is an int"),
        (Real(math.inf), "finite"),
        (Real(math.nan), "finite"),
        (Real(1), "is a float"),
        (Truth(1), "is a bool"),  # type: ignore[arg-type]
        (Binary(b""), "not empty"),
        ("a = 1", "a value of type str is not part of a filter"),
        (And((TEST, None)), "of type NoneType is not part of a filter"),  # type: ignore[arg-type]
    ],
)
def test_invalid_tree_is_an_error(tree: Expression, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        check_expression(tree)


def test_valid_tree_passes() -> None:
    check_expression(Or((And((TEST, Not(IsNull(A)))), A)))


def test_limits_are_inclusive() -> None:
    check_expression(TEST, Limits(filter_depth_max=2, filter_nodes_max=3))
    with pytest.raises(FilterLimitError, match="at most 1 levels"):
        check_expression(TEST, Limits(filter_depth_max=1))
    with pytest.raises(FilterLimitError, match="at most 2 nodes"):
        check_expression(TEST, Limits(filter_nodes_max=2))


def test_tree_that_shares_its_parts_is_counted_whole_and_in_no_time() -> None:
    tree: Expression = TEST
    for level in range(90):
        tree = And((tree, tree)) if level % 2 else Or((tree, tree))
    with pytest.raises(FilterLimitError, match="nodes"):
        check_expression(tree)
