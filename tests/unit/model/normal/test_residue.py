"""Residues: one spelling each, and what they imply."""

import pytest

from anabranch.model.language.parser import parse_expression
from anabranch.model.language.tokens import expression_text
from anabranch.model.normal.conditions import implied_by, opposite_of, residue_of
from anabranch.model.normal.value_set import COMPARABLE, NUMBERS, ORDERED, TEXTS, ValueSet, prefixed

NUMBERS_AND_NAN = ValueSet(NUMBERS.numbers, nan=True)


def spelling_of(text: str, truth: bool = True) -> str:
    return expression_text(residue_of(parse_expression(text), truth))


def implied(text: str, truth: bool = True) -> dict[str, ValueSet] | None:
    return implied_by(parse_expression(text), truth)


def test_operands_of_a_comparison_have_one_order() -> None:
    assert spelling_of("b > a") == spelling_of("a < b") == "a < b"
    assert spelling_of("5 < a + b") == "a + b > 5"


def test_negated_comparison_is_the_inverse_one() -> None:
    assert spelling_of("a < b", False) == "a >= b"
    assert spelling_of("a = b", False) == "a <> b"


def test_other_residues_are_negated_by_not() -> None:
    assert spelling_of("x LIKE '%s'", False) == "x NOT LIKE '%s'"


@pytest.mark.parametrize("text", ["a < b", "x LIKE '%s'", "a + 1 IS NULL", "a + b IN (1, 2)"])
def test_opposite_undoes_itself(text: str) -> None:
    residue = residue_of(parse_expression(text), True)
    assert opposite_of(residue) != residue
    assert opposite_of(opposite_of(residue)) == residue


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("a + b > 5", {"a": NUMBERS, "b": NUMBERS}),
        ("-(a * 2) = b", {"a": NUMBERS, "b": NUMBERS}),
        ("a = b", {"a": COMPARABLE, "b": COMPARABLE}),
        ("a < b", {"a": ORDERED, "b": ORDERED}),
        ("a + 1 IN (1, 'x', c)", {"a": NUMBERS}),
        ("a + 1 IN (1, 'x')", {"a": NUMBERS}),
        ("x LIKE '%s'", {"x": TEXTS}),
        ("x LIKE 'ab_d%'", {"x": prefixed("ab")}),
        ("a + 1 IS NULL", {}),
    ],
)
def test_residue_that_is_true_implies(text: str, needs: dict[str, ValueSet]) -> None:
    assert implied(text) == needs


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("a + b > 5", {"a": NUMBERS, "b": NUMBERS}),
        ("a + 1 IN (1, c)", {"a": NUMBERS, "c": NUMBERS}),
        ("x LIKE 'ab_d%'", {"x": TEXTS}),
        ("a + 1 IS NULL", {"a": NUMBERS_AND_NAN}),
    ],
)
def test_residue_that_is_false_implies(text: str, needs: dict[str, ValueSet]) -> None:
    assert implied(text, False) == needs


@pytest.mark.parametrize(
    "text",
    ["a + 1 = 'x'", "a + 'x' > 1", "-a LIKE '%'", "a + b", "a + 1 = TRUE", "a + 1 IN ('x', 0x61)"],
)
@pytest.mark.parametrize("truth", [True, False])
def test_kinds_that_never_meet_are_never_known(text: str, truth: bool) -> None:
    assert implied(text, truth) is None
