"""Durations are exact, and their text reads back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.pattern.tokens import duration_of, duration_text


@pytest.mark.parametrize(
    ("number", "unit", "duration_ns"),
    [
        ("5", "s", 5_000_000_000),
        ("0.1", "s", 100_000_000),
        ("250", "ms", 250_000_000),
        ("1.5", "min", 90_000_000_000),
        ("2", "h", 7_200_000_000_000),
        ("0.000001", "ms", 1),
        ("0.0000001", "ms", None),
    ],
)
def test_duration_is_exact_or_none(number: str, unit: str, duration_ns: int | None) -> None:
    assert duration_of(number, unit) == duration_ns


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 ms"),
        (1, "0.000001 ms"),
        (1_500_000, "1.5 ms"),
        (90 * 10**9, "90 s"),
        (3_600 * 10**9, "1 h"),
    ],
)
def test_text_is_in_the_largest_unit_that_is_whole(duration_ns: int, text: str) -> None:
    assert duration_text(duration_ns) == text


@given(st.integers(0, 10**15))
def test_text_reads_back(duration_ns: int) -> None:
    number, unit = duration_text(duration_ns).split()
    assert duration_of(number, unit) == duration_ns
