"""Canonical text: one spelling per tree, no parentheses without need."""

import pytest

from anabranch.model.language.expression import (
    Attribute,
    Binary,
    Comparison,
    Expression,
    Integer,
    Negative,
    Positive,
    Real,
    Text,
)
from anabranch.model.language.parser import parse_expression
from anabranch.model.language.tokens import expression_text

A = Attribute("a")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("a=1", "a = 1"),
        ("((a = 1) and ((b = 2)))", "a = 1 AND b = 2"),
        ("(a = 1 AND b = 2) OR c = 3", "a = 1 AND b = 2 OR c = 3"),
        ("a = 1 AND (b = 2 OR c = 3)", "a = 1 AND (b = 2 OR c = 3)"),
        ("not (a = 1)", "NOT a = 1"),
        ("NOT (a AND b)", "NOT (a AND b)"),
        ("NOT a IN (1)", "a NOT IN (1)"),
        ("NOT a LIKE 'x'", "a NOT LIKE 'x'"),
        ("NOT (a IS NULL)", "a IS NOT NULL"),
        ("a != 1", "a <> 1"),
        ("a BETWEEN 1 AND 2", "a >= 1 AND a <= 2"),
        ("(a + b) + c = 1", "a + b + c = 1"),
        ("a + (b + c) = 1", "a + (b + c) = 1"),
        ("a - (b - c) = 1", "a - (b - c) = 1"),
        ("(a * b) + c = 1", "a * b + c = 1"),
        ("a * (b + c) = 1", "a * (b + c) = 1"),
        ("a - -1 = 1", "a - -1 = 1"),
        ("- - a = 1", "-(-a) = 1"),
        ("-(a + b) = 1", "-(a + b) = 1"),
        ("-a + b = 1", "-a + b = 1"),
        ('a = "it\'s"', "a = 'it''s'"),
        ("[and] = 1 AND [b] = 2", "[and] = 1 AND b = 2"),
        ("[a]] [[b] = 1", "[a]] [[b] = 1"),
        ("größe = 1", "[größe] = 1"),
        (r"a LIKE '!%' ESCAPE '!'", "a LIKE '!%' ESCAPE '!'"),
        ("a = 0xfe01", "a = 0xFE01"),
        ("a = true", "a = TRUE"),
        ("a = 1e2", "a = 100.0"),
        ("a = 1e22", "a = 1e+22"),
        ("a = 0.1", "a = 0.1"),
        ("a = -0.0", "a = -0.0"),
        ("a in ( 1,b+1 )", "a IN (1, b + 1)"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    tree = parse_expression(text)
    assert expression_text(tree) == canonical
    assert parse_expression(canonical) == tree


@pytest.mark.parametrize(
    ("tree", "canonical"),
    [
        (Negative(Integer(5)), "-(5)"),
        (Negative(Integer(-5)), "-(-5)"),
        (Positive(Real(0.5)), "+(0.5)"),
        (Negative(Text("x")), "-('x')"),
        (Comparison("=", A, Binary(b"\0")), "a = 0x00"),
        (Comparison("=", A, Integer(-(2**63))), "a = -9223372036854775808"),
    ],
)
def test_sign_of_a_tree_and_sign_of_a_number_stay_apart(tree: Expression, canonical: str) -> None:
    assert expression_text(tree) == canonical
    assert parse_expression(canonical) == tree
