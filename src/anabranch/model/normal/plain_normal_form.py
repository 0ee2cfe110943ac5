"""The normal form of a plain filter, directly from its text.

Most filters in an index are number ranges and text equalities joined by AND, each a constraint on
one attribute:

    symbol = 'IBM' AND price BETWEEN 40 AND 50 AND volume >= 1000

Their normal form is one conjunction with one range or one text per attribute. A loop over the
predicates that `language.plain` finds in the text keeps the ends; it needs no tree and no sets.
This makes tens of thousands of additions per second possible. Several such conjunctions joined by
OR are plain too, if none has all the attributes of another: then there is nothing to merge or to
absorb.

1. The rules of `language.plain` apply. Filters that nothing satisfies, or that are too large, give
   None too, and `normal_form` handles them.
2. A plain text has the normal form that `normal_form` finds for its tree; `conjunction_of` builds
   it.
3. The ends of ranges are floats strictly within ±`FLOAT_EXACT_MAX`, so that an integer is exact.
"""

from collections.abc import Sequence
from math import nextafter
from typing import Final

from anabranch.model.event import FLOAT_EXACT_MAX, INFINITY
from anabranch.model.language.parser import check_text
from anabranch.model.language.plain import Predicate, plain_predicates
from anabranch.model.language.tokens import RESERVED
from anabranch.model.limits import Limits
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.normal.value_set import ValueSet, point

#: Attribute → its text, or its (least, greatest) number. At least one entry, none empty.
Demands = dict[str, str | tuple[float, float]]

#: The number of conjunctions that are compared pairwise.
_PARTS_MAX: Final = 16
_LEAST: Final = float(-FLOAT_EXACT_MAX)
_GREATEST: Final = float(FLOAT_EXACT_MAX)


def read_plain(text: str, limits: Limits) -> tuple[Demands, ...] | None:
    """Return the constraints of each conjunction of a plain filter; None if it is not plain."""
    check_text(text, limits)
    conjunctions = plain_predicates(text, limits)
    if conjunctions is None:
        return None
    if len(conjunctions) == 1:
        demands = _demands_of(conjunctions[0])
        return None if demands is None or len(demands) > limits.predicates_max else (demands,)
    return _alternatives_of(conjunctions, limits)


def _alternatives_of(
    conjunctions: Sequence[Sequence[Predicate]], limits: Limits
) -> tuple[Demands, ...] | None:
    """Return the constraints of each conjunction; None if one may cover or extend another."""
    if len(conjunctions) > min(_PARTS_MAX, limits.conjunctions_max):
        return None
    found: list[Demands] = []
    for predicates in conjunctions:
        demands = _demands_of(predicates)
        if demands is None:
            return None
        for others in found:
            if demands.keys() <= others.keys() or others.keys() <= demands.keys():
                return None
        found.append(demands)
    return tuple(found) if sum(map(len, found)) <= limits.predicates_max else None


def _demands_of(predicates: Sequence[Predicate]) -> Demands | None:
    """Return the constraints of a conjunction; None if it has others than texts and ranges."""
    demands: Demands = {}
    for _, name, order, literal, low, high, _, _, _, _, _, _, _ in predicates:
        if name in RESERVED:
            return None
        if literal[:1] == "'":
            if order != "=" or name in demands:
                return None
            demands[name] = literal[1:-1]
            continue
        try:
            ends = _ends_of(order, float(literal)) if literal else _ends_between(low, high)
        except ValueError:  # a text, a truth or another condition
            return None
        if ends is None:
            return None
        if name in demands:
            ends = _shared(ends, demands[name])
            if ends is None:
                return None
        demands[name] = ends
    return demands


def conjunction_of(demands: Demands) -> Conjunction:
    constraints = [
        (name, point(demand) if isinstance(demand, str) else ValueSet((_whole(demand),)))
        for name, demand in sorted(demands.items())
    ]
    return Conjunction(tuple(constraints))


def _whole(ends: tuple[float, float]) -> tuple[float, float]:
    """Return the ends without −0.0."""
    return ends[0] + 0.0, ends[1] + 0.0


def _ends_of(order: str, number: float) -> tuple[float, float] | None:
    """Return the numbers x with `x order number`; None if they are not an exact range."""
    if not _LEAST < number < _GREATEST:
        return None
    if order == ">=":
        return number, INFINITY
    if order == "<=":
        return -INFINITY, number
    if order == "=":
        return number, number
    if order == ">":
        return nextafter(number, INFINITY), INFINITY
    return (-INFINITY, nextafter(number, -INFINITY)) if order == "<" else None


def _ends_between(low: str, high: str) -> tuple[float, float] | None:
    """Return the bounds of a BETWEEN; None if they are not an exact range."""
    ends = float(low), float(high)
    return ends if _LEAST < ends[0] <= ends[1] < _GREATEST else None


def _shared(
    ends: tuple[float, float], known: str | tuple[float, float]
) -> tuple[float, float] | None:
    """Return the numbers in both ranges; None if there are none."""
    if isinstance(known, str):
        return None
    low, high = max(ends[0], known[0]), min(ends[1], known[1])
    return (low, high) if low <= high else None
