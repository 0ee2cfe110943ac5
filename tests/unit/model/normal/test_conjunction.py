"""Covering and intersection, with examples of where they are exact and where that ends."""

import pytest

from anabranch.model.filter import Filter


def covers(ours: str, other: str) -> bool:
    return Filter.parse(ours).covers(Filter.parse(other))


def intersects(ours: str, other: str) -> bool:
    forwards = Filter.parse(ours).intersects(Filter.parse(other))
    assert forwards is Filter.parse(other).intersects(Filter.parse(ours))
    return forwards


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ("x > 1", "x > 1.5"),
        ("x > 1", "x > 1 AND y = 2"),
        ("x > 1", "x = 2 AND y = 1 OR x = 3"),
        ("x >= 9007199254740993", "x > 9007199254740992"),
        ("x > 9007199254740992.0", "x = 9007199254740993"),
        ("x LIKE 'ab%'", "x LIKE 'abc%'"),
        ("x >= 'ab' AND x < 'ac'", "x LIKE 'ab%'"),
        ("x LIKE 'ab%'", "x >= 'ab' AND x < 'ac'"),
        ("x IS NOT NULL", "x = 1"),
        ("x IS NOT NULL", "x <> 'a'"),
        ("x IS NULL OR x > 1", "x IS NULL"),
        ("x <> 5", "x IN (1, 2, 3)"),
        ("x IN (1, 2, 3)", "x = 1 OR x = 3"),
        ("TRUE", "x > 1"),
        ("x > 1", "FALSE"),
        ("x = x", "x LIKE '%a%'"),
        ("a < b", "b > a AND c = 1"),
        ("x LIKE '%s'", "x LIKE '%s' AND y = 1"),
        ("x LIKE '%s'", "x IN ('cats', 'dogs')"),
        ("x LIKE 'ab%'", "x LIKE 'abc_e%'"),
        ("x = y", "x = 'a' AND y = 'a'"),
        ("x + 1 IS NULL", "x IS NULL"),
    ],
)
def test_covers(ours: str, other: str) -> None:
    assert covers(ours, other)


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ("x > 1", "x >= 1"),
        ("x > 1 AND y = 2", "x > 1"),
        ("x > 1", "x > 1 OR y > 1"),
        ("x > 9007199254740993", "x > 9007199254740992"),
        ("x <> 5", "x IS NOT NULL"),
        ("x > 1 OR x <= 1", "x = 'a'"),
        ("x > 1", "TRUE"),
        ("FALSE", "x > 1"),
        ("a < b", "a <= b"),
        ("x LIKE '%s'", "x IN ('cats', 'dog')"),
        ("x LIKE '%s'", "x IN ('cats', 1)"),
        ("x + 1 > 0", "x = 1"),
    ],
)
def test_does_not_cover(ours: str, other: str) -> None:
    assert not covers(ours, other)


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ("x > 1", "y > 1"),
        ("x > 1", "x < 1.0000000000000005"),
        ("x >= 1", "x <= 1"),
        ("x LIKE 'ab%'", "x > 'abc'"),
        ("x IS NULL", "y = 1"),
        ("x = 1 OR x = 'a'", "x LIKE 'a%'"),
        ("a < b", "a <= b"),
        ("x LIKE '%s'", "x LIKE 'c%'"),
        ("x LIKE '%s'", "x IN ('cat', 'dogs')"),
        ("TRUE", "TRUE"),
    ],
)
def test_intersects(ours: str, other: str) -> None:
    assert intersects(ours, other)


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ("x > 1", "x <= 1"),
        ("x > 1", "x < 1.0000000000000002"),
        ("x > 9007199254740992", "x < 9007199254740993"),
        ("x = 1", "x = 'a'"),
        ("x IS NULL", "x <> 1"),
        ("x LIKE 'ab%'", "x >= 'ac'"),
        ("x > 'a'", "x < 'a' OR x > 5"),
        ("a < b", "a >= b"),
        ("a < b", "a IS NULL"),
        ("x LIKE '%s'", "x > 5"),
        ("x LIKE '%s'", "x IN ('cat', 'dog')"),
        ("x LIKE '%s'", "x NOT LIKE '%s'"),
        ("x = y", "x = 'a' AND y = 'b'"),
        ("FALSE", "TRUE"),
    ],
)
def test_does_not_intersect(ours: str, other: str) -> None:
    assert not intersects(ours, other)


def test_cover_by_several_conjunctions_together_is_not_seen() -> None:
    together = "x <= 5 AND y = 1 OR x > 5 AND y >= 1"
    assert not covers(together, "x >= 0 AND y = 1")
    assert covers(together, "x <= 3 AND y = 1")


def test_cover_between_different_residues_is_not_seen() -> None:
    assert not covers("a + b > 5", "a + b > 6")
    assert not covers("x LIKE '%s'", "x LIKE '%ts'")


def test_residues_that_exclude_each_other_seem_to_intersect() -> None:
    assert intersects("a + b > 5", "a + b < 5")
    assert intersects("a < b", "a = b")


def test_numbers_are_not_tried_because_kinds_of_numbers_calculate_differently() -> None:
    # 2**62 * 4 has no value as an integer, and one as a float; both are the point 2**62.
    filters = Filter.parse("x * 4 > 0"), Filter.parse("x = 4611686018427387904")
    assert not filters[0].covers(filters[1])
    assert not filters[0].matches({"x": 2**62})
    assert filters[0].matches({"x": 2.0**62})
