"""Filters written in Python: `(attr("price") > 50) & attr("symbol").startswith("A")`.

`attr` names an attribute; comparing it or calculating with it builds the same trees as the text.
Conditions are joined by `&`, `|` and `~`:

    (attr("a") == 1) & ~attr("b").like("x%") | attr("c").is_in([1, 2, 3])
    attr("high") - attr("low") > 0.5 * attr("open")
    all_of(attr(name) > 0 for name in names)

Rules:

1. `&` and `|` bind tighter than comparisons in Python, so comparisons need parentheses.
2. `and`, `or`, `not` and chained comparisons need the truth value of a condition, which it does not
   have without an event. They raise `FilterError` instead of dropping half of the filter.
3. A value is a str, an int of 64 bits, a finite float, a bool, bytes, or a datetime with a time
   zone, which becomes its timestamp as in an event. Everything else raises at once: NaN equals
   nothing, and None is tested with `is_null()`.
4. `expression` is the tree, checked against the default limits; `Filter` takes the condition.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import NoReturn

from anabranch.model.errors import FilterError
from anabranch.model.foreign_values import remedy_for
from anabranch.model.language.expression import (
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
    Operator,
    Order,
    Positive,
    Real,
    Text,
    Truth,
    check_expression,
    conjunction_of,
    disjunction_of,
    negation_of,
)
from anabranch.model.language.like import escape_literal
from anabranch.model.language.tokens import expression_text
from anabranch.model.timestamps import TimestampError, timestamp_of

Scalar = str | int | float | bool | bytes | datetime


class Condition:
    """A condition that is true, false or unknown for an event."""

    __slots__ = ("_tree",)

    def __init__(self, tree: Expression) -> None:
        self._tree = tree

    @property
    def expression(self) -> Expression:
        """The checked tree."""
        check_expression(self._tree)
        return self._tree

    def __and__(self, other: "Condition | bool") -> "Condition":
        return Condition(conjunction_of((self._tree, _condition_tree(other))))

    def __rand__(self, other: bool) -> "Condition":
        return Condition(conjunction_of((_condition_tree(other), self._tree)))

    def __or__(self, other: "Condition | bool") -> "Condition":
        return Condition(disjunction_of((self._tree, _condition_tree(other))))

    def __ror__(self, other: bool) -> "Condition":
        return Condition(disjunction_of((_condition_tree(other), self._tree)))

    def __invert__(self) -> "Condition":
        return Condition(negation_of(self._tree))

    def __bool__(self) -> NoReturn:
        raise FilterError(
            f"the condition {self} has no truth value without an event",
            expected="& for and, | for or, ~ for not, .between() for a chain, .is_in() for in",
        )

    def __eq__(self, other: object) -> NoReturn:
        raise FilterError(f"the condition {self} is not a value", expected="& or |")

    # Without a boolean ==, sets and dictionaries cannot work.
    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return expression_text(self._tree)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class Term(Condition):
    """An attribute, or arithmetic over attributes: an operand with a value."""

    __slots__ = ()

    def __eq__(self, other: "Term | Scalar") -> Condition:  # type: ignore[override]
        return self._compare("=", other)

    __hash__ = None

    def __ne__(self, other: "Term | Scalar") -> Condition:  # type: ignore[override]
        return self._compare("<>", other)

    def __lt__(self, other: "Term | Scalar") -> Condition:
        return self._compare("<", other)

    def __le__(self, other: "Term | Scalar") -> Condition:
        return self._compare("<=", other)

    def __gt__(self, other: "Term | Scalar") -> Condition:
        return self._compare(">", other)

    def __ge__(self, other: "Term | Scalar") -> Condition:
        return self._compare(">=", other)

    def __add__(self, other: "Term | Scalar") -> "Term":
        return self._calculate("+", other)

    def __radd__(self, other: Scalar) -> "Term":
        return self._calculate_reversed("+", other)

    def __sub__(self, other: "Term | Scalar") -> "Term":
        return self._calculate("-", other)

    def __rsub__(self, other: Scalar) -> "Term":
        return self._calculate_reversed("-", other)

    def __mul__(self, other: "Term | Scalar") -> "Term":
        return self._calculate("*", other)

    def __rmul__(self, other: Scalar) -> "Term":
        return self._calculate_reversed("*", other)

    def __truediv__(self, other: "Term | Scalar") -> "Term":
        return self._calculate("/", other)

    def __rtruediv__(self, other: Scalar) -> "Term":
        return self._calculate_reversed("/", other)

    def __mod__(self, other: "Term | Scalar") -> "Term":
        return self._calculate("%", other)

    def __rmod__(self, other: Scalar) -> "Term":
        return self._calculate_reversed("%", other)

    def __neg__(self) -> "Term":
        return Term(Negative(self._tree))

    def __pos__(self) -> "Term":
        return Term(Positive(self._tree))

    def between(self, low: "Term | Scalar", high: "Term | Scalar") -> Condition:
        """Between `low` and `high`, both included; nothing lies between 5 and 1."""
        return (self >= low) & (self <= high)

    def is_in(self, items: "Iterable[Term | Scalar]") -> Condition:
        """Equal to one of `items`, which must not be empty."""
        if isinstance(items, str | bytes):
            raise FilterError("is_in takes a list of values", expected=f"is_in([{items!r}])")
        trees = tuple(_value_tree(item) for item in items)
        if not trees:
            raise FilterError("is_in of an empty list matches nothing", expected="a value")
        return Condition(In(self._tree, trees))

    def like(self, pattern: str, escape: str = "") -> Condition:
        """LIKE: `%` in the pattern is any text, `_` any one character."""
        return Condition(Like(self._tree, pattern, escape))

    def startswith(self, prefix: str) -> Condition:
        """Text that starts with `prefix`, taken literally."""
        return self._literal_like("", prefix, "%")

    def endswith(self, suffix: str) -> Condition:
        """Text that ends with `suffix`, taken literally."""
        return self._literal_like("%", suffix, "")

    def contains(self, part: str) -> Condition:
        """Text that contains `part`, taken literally."""
        return self._literal_like("%", part, "%")

    def is_null(self) -> Condition:
        """The event does not have this value."""
        return Condition(IsNull(self._tree))

    def is_not_null(self) -> Condition:
        """The event has this value."""
        return ~self.is_null()

    def _compare(self, order: Order, other: "Term | Scalar") -> Condition:
        return Condition(Comparison(order, self._tree, _value_tree(other)))

    def _calculate(self, operator: Operator, other: "Term | Scalar") -> "Term":
        return Term(Arithmetic(operator, self._tree, _value_tree(other)))

    def _calculate_reversed(self, operator: Operator, other: Scalar) -> "Term":
        return Term(Arithmetic(operator, _value_tree(other), self._tree))

    def _literal_like(self, before: str, literal: str, after: str) -> Condition:
        pattern, escape = escape_literal(literal)
        return Condition(Like(self._tree, before + pattern + after, escape))


def attr(name: str) -> Term:
    """Return the attribute of this name."""
    tree = Attribute(name)
    check_expression(tree)
    return Term(tree)


def all_of(conditions: Iterable[Condition | bool]) -> Condition:
    """Return the AND of `conditions`, TRUE if there are none; for many, faster than `&`."""
    return Condition(conjunction_of(_condition_tree(condition) for condition in conditions))


def any_of(conditions: Iterable[Condition | bool]) -> Condition:
    """Return the OR of `conditions`, FALSE if there are none; for many, faster than `|`."""
    return Condition(disjunction_of(_condition_tree(condition) for condition in conditions))


def _condition_tree(condition: Condition | bool) -> Expression:
    if isinstance(condition, Condition):
        return condition._tree
    if isinstance(condition, bool):
        return Truth(condition)
    raise FilterError(
        f"{condition!r} is not a condition",
        expected="a comparison in parentheses: (attr('a') > 1) & (attr('b') > 2)",
    )


def _value_tree(value: Term | Scalar) -> Expression:
    if isinstance(value, Term):
        return value._tree
    tree = _literal_tree(value)
    check_expression(tree)
    return tree


def _literal_tree(value: Scalar | Condition | None) -> Expression:
    match value:
        case bool():
            return Truth(value)
        case int():
            return Integer(int(value))
        case float():
            return Real(float(value))
        case str():
            return Text(value)
        case bytes():
            return Binary(value)
        case datetime():
            return Integer(_timestamp_of(value))
        case None:
            raise FilterError("None is not a value", expected="is_null() or is_not_null()")
        case Condition():
            raise FilterError(f"the condition {value} is not a value", expected="& or |")
        case _:
            raise FilterError(f"{value!r} is not a value; {remedy_for(value)}")


def _timestamp_of(moment: datetime) -> int:
    try:
        return timestamp_of(moment)
    except TimestampError as error:
        raise FilterError(f"{moment!r} is {error.message}", expected=error.expected) from None
