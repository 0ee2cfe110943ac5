"""The expression tree of a filter.

An expression is a frozen value. Two filters are the same if their trees are equal, so the
constructors below keep one shape per meaning where that is cheap:

1. `And` and `Or` are flat (no `And` directly inside an `And`) and have at least two items.
2. `Not` never contains a `Not`.
3. `!=` is `<>`; BETWEEN is two comparisons; NOT IN, NOT LIKE, IS NOT NULL are `Not` of the plain
   form.
4. A sign in front of a number literal is part of the literal.
5. Every kind of literal has its own class, so 1, 1.0 and TRUE are three different trees.

Use `conjunction_of`, `disjunction_of` and `negation_of` instead of the constructors; they keep
rules 1 and 2. `evaluate` defines the meaning (three-valued logic).

The parser builds only valid trees. `check_expression` checks trees from other sources (the builder,
filters combined by a program, nodes built by hand), so that the rest of the package can rely on
these rules:

6. Every node is one of the classes below, with fields of the stated types: integers within 64 bits,
   finite floats, strings and names without lone surrogates, non-empty names and bytes, valid
   patterns.
7. AND and OR have at least two items and none of their own kind; NOT contains no NOT; IN has an
   item.
8. Operands of comparisons, tests and arithmetic are values, not conditions.
9. Height and nodes are within `Limits`. A node that occurs in two places counts twice.

The check uses its own stack and stops at the first limit, so it is safe for any tree.
"""

import math
from collections.abc import Iterable
from typing import Final
from typing import Literal as OneOf

import msgspec

from anabranch.model.errors import FilterError, FilterLimitError
from anabranch.model.event import INT_MAX, INT_MIN
from anabranch.model.language.like import pattern_of
from anabranch.model.limits import DEFAULT_LIMITS, Limits

Order = OneOf["=", "<>", "<", "<=", ">", ">="]
Operator = OneOf["+", "-", "*", "/", "%"]


class Integer(msgspec.Struct, frozen=True, tag=True):
    """An exact number, within 64 bits."""

    value: int


class Real(msgspec.Struct, frozen=True, tag=True):
    """An approximate number, finite."""

    value: float


class Text(msgspec.Struct, frozen=True, tag=True):
    """A string."""

    value: str


class Truth(msgspec.Struct, frozen=True, tag=True):
    """TRUE or FALSE."""

    value: bool


class Binary(msgspec.Struct, frozen=True, tag=True):
    """Bytes, written 0x…; they compare only with bytes, which no attribute holds."""

    value: bytes


class Attribute(msgspec.Struct, frozen=True, tag=True):
    """The value of the attribute of this name; UNKNOWN if the event does not have it."""

    name: str


class Negative(msgspec.Struct, frozen=True, tag=True):
    """Arithmetic minus: `-operand`."""

    operand: "Expression"


class Positive(msgspec.Struct, frozen=True, tag=True):
    """Arithmetic plus: the operand if it is a number, else UNKNOWN."""

    operand: "Expression"


class Arithmetic(msgspec.Struct, frozen=True, tag=True):
    """`left operator right` on numbers."""

    operator: Operator
    left: "Expression"
    right: "Expression"


class Comparison(msgspec.Struct, frozen=True, tag=True):
    """`left order right`."""

    order: Order
    left: "Expression"
    right: "Expression"


class In(msgspec.Struct, frozen=True, tag=True):
    """`operand IN (items)`: the disjunction of `operand = item`. Never empty."""

    operand: "Expression"
    items: tuple["Expression", ...]


class Like(msgspec.Struct, frozen=True, tag=True):
    """`operand LIKE pattern [ESCAPE escape]`: % is any text, _ any one character."""

    operand: "Expression"
    pattern: str
    #: A character that makes the next one literal, or "".
    escape: str = ""


class IsNull(msgspec.Struct, frozen=True, tag=True):
    """`operand IS NULL`: the one test that is never UNKNOWN."""

    operand: "Expression"


class And(msgspec.Struct, frozen=True, tag=True):
    """All items are true."""

    items: tuple["Expression", ...]


class Or(msgspec.Struct, frozen=True, tag=True):
    """Some item is true."""

    items: tuple["Expression", ...]


class Not(msgspec.Struct, frozen=True, tag=True):
    """The item is false (not: unknown)."""

    item: "Expression"


Literal = Integer | Real | Text | Truth | Binary
Expression = (
    Integer
    | Real
    | Text
    | Truth
    | Binary
    | Attribute
    | Negative
    | Positive
    | Arithmetic
    | Comparison
    | In
    | Like
    | IsNull
    | And
    | Or
    | Not
)

TRUE = Truth(True)
FALSE = Truth(False)


def conjunction_of(items: Iterable[Expression]) -> Expression:
    """Return the flat AND of `items`. No items: TRUE."""
    flat: list[Expression] = []
    for item in items:
        if isinstance(item, And):
            flat.extend(item.items)
        else:
            flat.append(item)
    if not flat:
        return TRUE
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def disjunction_of(items: Iterable[Expression]) -> Expression:
    """Return the flat OR of `items`. No items: FALSE."""
    flat: list[Expression] = []
    for item in items:
        if isinstance(item, Or):
            flat.extend(item.items)
        else:
            flat.append(item)
    if not flat:
        return FALSE
    return flat[0] if len(flat) == 1 else Or(tuple(flat))


def negation_of(item: Expression) -> Expression:
    return item.item if isinstance(item, Not) else Not(item)


CONDITIONS: Final = (Comparison, In, Like, IsNull, And, Or, Not)


def check_expression(expression: Expression, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise `FilterError` unless `expression` is valid and within `limits`."""
    pending = [(expression, 1)]
    node_count = 0
    while pending:
        node, height = pending.pop()
        node_count += 1
        if height > limits.filter_depth_max:
            raise FilterLimitError(
                "a filter nested too deeply",
                expected=f"at most {limits.filter_depth_max} levels (filter_depth_max)",
            )
        if node_count > limits.filter_nodes_max:
            raise FilterLimitError(
                "a filter of too many parts",
                expected=f"at most {limits.filter_nodes_max} nodes (filter_nodes_max)",
            )
        pending.extend([(child, height + 1) for child in _checked_children(node)])


def _checked_children(node: Expression) -> tuple[Expression, ...]:
    """Check one node and return its children."""
    match node:
        case And(items) | Or(items):
            _require(len(items) >= 2, "AND and OR have at least two items")
            _require(not any(type(item) is type(node) for item in items), "AND and OR are flat")
            return items
        case Not(item):
            _require(not isinstance(item, Not), "NOT holds no NOT")
            return (item,)
        case Comparison(_, left, right) | Arithmetic(_, left, right):
            return _values(left, right)
        case In(operand, items):
            _require(bool(items), "IN has at least one item")
            return _values(operand, *items)
        case Like(operand, pattern, escape):
            _require(len(escape) <= 1, "an escape is one character")
            check_string(pattern + escape)
            pattern_of(pattern, escape)
            return _values(operand)
        case Negative(operand) | Positive(operand) | IsNull(operand):
            return _values(operand)
        case _:
            _check_leaf(node)
            return ()


def _values(*operands: Expression) -> tuple[Expression, ...]:
    has_condition = any(isinstance(operand, CONDITIONS) for operand in operands)
    _require(not has_condition, "a condition is not a value")
    return operands


def _check_leaf(leaf: Expression) -> None:
    match leaf:
        case Attribute(name):
            _require(bool(name), "an attribute name is not empty")
            check_string(name)
        case Text(text):
            check_string(text)
        case Integer(integer):
            _require(type(integer) is int, "an exact number is an int")
            _require(INT_MIN <= integer <= INT_MAX, "an integer has 64 bits")
        case Real(real):
            _require(isinstance(real, float), "an approximate number is a float")
            _require(math.isfinite(real), "an approximate number is finite")
        case Truth(truth):
            _require(isinstance(truth, bool), "a truth is a bool")
        case Binary(data):
            _require(bool(data), "a binary literal is not empty")
        case _:
            raise FilterError(
                f"a value of type {type(leaf).__name__} is not part of a filter; give a text such"
                ' as "price > 10", or an expression of attr'
            )


def check_string(text: str) -> None:
    """Raise `FilterError` unless `text` is a string without lone surrogates."""
    _require(isinstance(text, str), "names, strings and patterns are str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterError("a lone surrogate is not text", text=text, position=error.start) from None


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise FilterError(f"an invalid filter tree: {rule}")
