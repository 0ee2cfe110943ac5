"""Which conditions on a text have a literal to look for, and whether that says everything."""

import pytest

from anabranch.matching.kernels import layout as at
from anabranch.matching.text_conditions import TextPattern, pattern_of_condition, pattern_of_values
from tests.covering_parts import conjunction


def pattern_of_residue(text: str) -> TextPattern | None:
    (condition,) = conjunction(text).residue
    return pattern_of_condition(condition)


def pattern_of_constraint(text: str) -> TextPattern | None:
    ((name, values),) = conjunction(text).constraints
    return pattern_of_values(name, values)


@pytest.mark.parametrize(
    ("text", "kind", "literal", "is_exact"),
    [
        ("x LIKE '%abc'", at.ENDS, "abc", True),
        ("x LIKE '%abc%'", at.CONTAINS, "abc", True),
        ("x LIKE '%é'", at.ENDS, "é", True),
        ("x LIKE 'a%b_c%d'", at.ENDS, "d", False),
        ("x LIKE '%a%bcd%'", at.CONTAINS, "bcd", False),
        ("x LIKE 'a%bc%'", at.CONTAINS, "bc", False),
        ("x LIKE '%a%b'", at.ENDS, "b", False),
        ("x LIKE '%ab%_'", at.CONTAINS, "ab", False),
    ],
)
def test_pattern_has_a_literal(text: str, kind: int, literal: str, is_exact: bool) -> None:
    assert pattern_of_residue(text) == TextPattern("x", kind, literal.encode(), is_exact)


@pytest.mark.parametrize("text", ["x LIKE '%_a'", "x LIKE 'a_b'", "x NOT LIKE '%a'", "x < y"])
def test_other_conditions_have_none(text: str) -> None:
    assert pattern_of_residue(text) is None


def test_literal_that_is_too_long_is_not_looked_for() -> None:
    longest = "a" * at.LITERAL_BYTES_MAX
    assert pattern_of_residue(f"x LIKE '%{longest}'") is not None
    assert pattern_of_residue(f"x LIKE '%{longest}a'") is None
    assert pattern_of_constraint(f"x LIKE '{longest}%'") is not None
    assert pattern_of_constraint(f"x LIKE '{longest}a%'") is None


@pytest.mark.parametrize("prefix", ["a", "abcdefghij", "é", "a\U0010ffff"])
def test_prefix_is_recognised_in_the_normal_form(prefix: str) -> None:
    wanted = TextPattern("x", at.BEGINS, prefix.encode(), True)
    assert pattern_of_constraint(f"x LIKE '{prefix}%'") == wanted


@pytest.mark.parametrize(
    "text", ["x = 'a'", "x > 'a'", "x >= 'a' AND x < 'c'", "x LIKE 'a%' OR x LIKE 'c%'", "x < 'a'"]
)
def test_other_sets_of_texts_are_no_prefix(text: str) -> None:
    assert pattern_of_constraint(text) is None
