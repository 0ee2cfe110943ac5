"""The tree of a filter: what every front end builds and every consumer reads.

An expression is a frozen value. Two filters are the same when their trees are equal, so the
constructors below keep one shape per meaning where that is cheap:

1. `And` and `Or` are flat (no `And` directly inside an `And`) and have at least two items.
2. `Not` never holds a `Not`.
3. `!=` is `<>`; BETWEEN is two comparisons; NOT IN, NOT LIKE, IS NOT NULL are `Not` of the
   plain form.
4. A sign in front of a number literal is part of the literal.
5. Every kind of literal has a class of its own, so 1, 1.0 and TRUE are three different trees.

Use `conjunction_of`, `disjunction_of` and `negation_of` rather than the bare constructors; they
keep rules 1 and 2. Meaning (three-valued logic) is defined in `evaluate`.
"""

from collections.abc import Iterable
from typing import Literal as OneOf

import msgspec

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
    """The value of the attribute of this name; UNKNOWN if the event has none."""

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
    #: One character that makes the next one stand for itself, or "".
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
    """The AND of `items`, flat. No items: TRUE."""
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
    """The OR of `items`, flat. No items: FALSE."""
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
    """NOT `item`, without doubling."""
    return item.item if isinstance(item, Not) else Not(item)
