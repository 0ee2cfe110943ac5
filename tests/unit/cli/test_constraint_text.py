"""Constraints read as a person would have written them."""

import pytest

from anabranch.cli.filters import constraint_text
from anabranch.model.event import INFINITY, number_after, number_before, prefix_end, text_after
from anabranch.model.normal.value_set import ValueSet


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (5, 5, "= 5"),
        (5, INFINITY, ">= 5"),
        (number_after(50), INFINITY, "> 50"),
        (-INFINITY, number_before(0.1), "< 0.1"),
        (-INFINITY, 0.1, "<= 0.1"),
        (2**53, 2**53, "= 9007199254740992"),
        (number_after(2**53), INFINITY, ">= 9007199254740993"),
        (2.0**63, INFINITY, "> 9223372036854775807"),
        (1, 2.5, ">= 1 and <= 2.5"),
        (-INFINITY, INFINITY, "any number"),
    ],
)
def test_range_of_numbers(low: float, high: float, text: str) -> None:
    assert constraint_text(ValueSet(numbers=((low, high),))) == text


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        ("IBM", text_after("IBM"), "= 'IBM'"),
        ("O'Neill", text_after("O'Neill"), "= 'O''Neill'"),
        ("IB", prefix_end("IB"), "'IB'…"),
        ("", "M", "< 'M'"),
        ("M", None, ">= 'M'"),
        ("A", "M", ">= 'A' and < 'M'"),
        ("", None, "any text"),
    ],
)
def test_range_of_texts(start: str, end: str | None, text: str) -> None:
    assert constraint_text(ValueSet(texts=((start, end),))) == text


def test_parts_of_all_kinds_are_joined() -> None:
    values = ValueSet(((1, 1), (3, 3)), (("a", text_after("a")),), 3, nan=True, absent=True)
    assert constraint_text(values) == "= 1 or = 3 or = 'a' or TRUE or FALSE or NaN or absent"
