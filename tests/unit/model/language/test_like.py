"""LIKE patterns: segments, escapes, and work that stays in proportion."""

import pytest

from anabranch.model.errors import FilterError, FilterLimitError
from anabranch.model.language.like import (
    HOLED_LENGTH_MAX,
    Pattern,
    Segment,
    escape_literal,
    matcher_of,
    pattern_of,
    search_weight,
)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("abc", "abc", True),
        ("abc", "abcd", False),
        ("", "", True),
        ("", "a", False),
        ("%", "", True),
        ("%", "a\nb", True),
        ("_", "\n", True),
        ("_", "\U0001f600", True),
        ("_", "", False),
        ("__", "a", False),
        ("a%", "a", True),
        ("%a", "ba", True),
        ("%a%", "bab", True),
        ("a%a", "a", False),
        ("a%a", "aa", True),
        ("a%b%c", "aXbYc", True),
        ("a%b%c", "acb", False),
        ("%ab%ab%", "ab", False),
        ("%ab%ba%", "abba", True),
        ("%ab%ba%", "aba", False),
        ("_%_", "a", False),
        ("_%_", "ab", True),
        ("%_b%c_", "xabccd", True),
        ("a.c", "abc", False),
        ("A%", "abc", False),
    ],
)
def test_like(pattern: str, text: str, expected: bool) -> None:
    assert matcher_of(pattern_of(pattern))(text) is expected


@pytest.mark.parametrize(
    ("pattern", "escape", "text", "expected"),
    [
        ("50!%", "!", "50%", True),
        ("50!%", "!", "500", False),
        ("a!_b", "!", "a_b", True),
        ("a!!b", "!", "a!b", True),
        ("a%%b", "%", "a%b", True),
        ("a%%b", "%", "aXb", False),
        ("\\%%", "\\", "%x", True),
    ],
)
def test_escape_makes_the_next_character_stand_for_itself(
    pattern: str, escape: str, text: str, expected: bool
) -> None:
    assert matcher_of(pattern_of(pattern, escape))(text) is expected


@pytest.mark.parametrize(("pattern", "position"), [("!", 0), ("ab!", 2), ("a!b", 1), ("!!!", 2)])
def test_lone_escape_is_an_error_with_its_place(pattern: str, position: int) -> None:
    with pytest.raises(FilterError, match="stands alone") as caught:
        pattern_of(pattern, "!")
    assert caught.value.position == position


def test_pattern_is_cut_at_its_percent_signs() -> None:
    assert pattern_of("a_%%b") == Pattern((Segment("a_", (1,)), Segment("b")))
    assert pattern_of("%") == Pattern((Segment(""), Segment("")))


def test_literal_and_prefix_are_recognised() -> None:
    assert pattern_of("a!%", "!").literal() == "a%"
    assert pattern_of("a_").literal() is None
    assert pattern_of("a%").literal() is None
    assert pattern_of("a%").prefix() == "a"
    assert pattern_of("%").prefix() == ""
    assert pattern_of("a_%").prefix() is None
    assert pattern_of("a%b").prefix() is None


def test_escape_literal_escapes_only_what_needs_it() -> None:
    assert escape_literal("a\\b") == ("a\\b", "")
    assert escape_literal("5%_\\") == ("5\\%\\_\\\\", "\\")


def test_pattern_of_many_wildcards_is_decided_without_backtracking() -> None:
    # A backtracking matcher would still be at it when the sun burns out.
    assert matcher_of(pattern_of("%a_" * 60 + "%b"))("a" * 50_000) is False
    assert matcher_of(pattern_of("%a" * 5_000 + "%"))("a" * 5_000) is True


def test_long_stretch_with_holes_is_refused() -> None:
    pattern_of("_" * HOLED_LENGTH_MAX + "%")
    pattern_of("a" * 10 * HOLED_LENGTH_MAX)
    with pytest.raises(FilterLimitError, match="at most 256 characters"):
        pattern_of("_" * (HOLED_LENGTH_MAX + 1))


@pytest.mark.parametrize(
    ("pattern", "weight"),
    [
        ("abc", 0),
        ("abc%", 0),
        ("%abc", 0),
        ("a%b", 0),
        ("a_c", 0),
        ("_" * 200 + "%", 0),
        ("%abc%", 1),
        ("%a%b%c%", 1),
        ("%a_c%", 1),
        ("%abc_%", 2),
        ("%" + "a_" * 100 + "%", 51),
        ("%" + "a" * 200 + "%", 1),
    ],
)
def test_patterns_weigh_what_their_searches_cost(pattern: str, weight: int) -> None:
    assert search_weight(pattern_of(pattern)) == weight
