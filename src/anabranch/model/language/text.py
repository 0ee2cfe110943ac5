"""A tree back to text: the one canonical spelling of each tree.

Rules:

1. What is printed parses back to an equal tree, whatever the names and strings are.
2. Parentheses stand only where the tree would come out differently without them, and round the
   operand of a sign unless it is an attribute: `-(5)` is not `-5`, and `--a` looks like a comment.
3. Reserved words are in capitals, with one space between any two words or operators.
4. BETWEEN has become two comparisons and is printed as such; `!=` is printed `<>`.
5. A name that is not a plain identifier, or is a reserved word, stands in square brackets.
6. Floats are printed so that they read back exactly (Python's shortest form).
"""

import re
from typing import Final

from anabranch.model.language.expression import (
    And,
    Arithmetic,
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
    Positive,
    Real,
    Text,
    Truth,
)
from anabranch.model.language.scanner import RESERVED

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*(?:\.[A-Za-z_$][A-Za-z0-9_$]*)*")

#: How tightly the text of a node holds together, from loose to tight.
_OR, _AND, _NOT, _TEST, _SUM, _PRODUCT, _SIGN, _ATOM = range(8)


def expression_text(expression: Expression) -> str:
    """The canonical text of `expression`."""
    return _print(expression)[0]


def name_text(name: str) -> str:
    """An attribute name as it is written in a filter."""
    if _PLAIN_NAME.fullmatch(name) and name not in RESERVED:
        return name
    return "[" + name.replace("[", "[[").replace("]", "]]") + "]"


def string_text(value: str) -> str:
    """A string as it is written in a filter."""
    return "'" + value.replace("'", "''") + "'"


def _print(expression: Expression) -> tuple[str, int]:
    """The text, and how tightly it holds together."""
    match expression:
        case Attribute(name):
            return name_text(name), _ATOM
        case Integer(number) | Real(number):
            return repr(number), _ATOM
        case Text(value):
            return string_text(value), _ATOM
        case Truth(truth):
            return "TRUE" if truth else "FALSE", _ATOM
        case Binary(data):
            return "0x" + data.hex().upper(), _ATOM
        case Comparison(order, left, right):
            return f"{_within(left, _SUM)} {order} {_within(right, _SUM)}", _TEST
        case In() | Like() | IsNull():
            return _print_test(expression, ""), _TEST
        case And(items):
            return " AND ".join([_within(item, _NOT) for item in items]), _AND
        case Or(items):
            return " OR ".join([_within(item, _AND) for item in items]), _OR
        case Not(item):
            return _print_not(item)
        case Arithmetic(operator, left, right):
            level = _SUM if operator in ("+", "-") else _PRODUCT
            return f"{_within(left, level)} {operator} {_within(right, level + 1)}", level
        case Negative(operand):
            return "-" + _print_signed(operand), _SIGN
        case Positive(operand):
            return "+" + _print_signed(operand), _SIGN


def _within(expression: Expression, level: int) -> str:
    """The text as part of something that holds together at `level`."""
    text, own_level = _print(expression)
    return text if own_level >= level else f"({text})"


def _print_not(item: Expression) -> tuple[str, int]:
    if isinstance(item, In | Like | IsNull):
        return _print_test(item, "NOT "), _TEST
    return "NOT " + _within(item, _TEST), _NOT


def _print_test(test: In | Like | IsNull, negation: str) -> str:
    operand = _within(test.operand, _SUM)
    match test:
        case In(_, items):
            listed = ", ".join([_within(item, _SUM) for item in items])
            return f"{operand} {negation}IN ({listed})"
        case Like(_, pattern, escape):
            suffix = f" ESCAPE {string_text(escape)}" if escape else ""
            return f"{operand} {negation}LIKE {string_text(pattern)}{suffix}"
        case IsNull():
            return f"{operand} IS {negation}NULL"


def _print_signed(operand: Expression) -> str:
    return name_text(operand.name) if isinstance(operand, Attribute) else f"({_print(operand)[0]})"
