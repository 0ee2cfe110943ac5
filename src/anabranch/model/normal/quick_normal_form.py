"""The normal form of a plain filter, directly from its text.

Most filters in an index are number ranges and text equalities joined by AND, each a constraint on
one attribute:

    symbol = 'IBM' AND price BETWEEN 40 AND 50 AND volume >= 1000

Their normal form is one conjunction with one range or one text per attribute. Reading it from the
text needs no tree and no sets: one regular expression finds the parts, and a loop over them keeps
the ends. This makes tens of thousands of additions per second possible. Several such conjunctions
joined by OR are plain too, if none has all the attributes of another: then there is nothing to
merge or to absorb.

Rules:

1. No errors and no guesses: a text that is not plain to the last character gives None, and the
   parser and `normal_form` handle it. The same applies to filters that nothing satisfies, or that
   are too large.
2. A plain text has the normal form that `normal_form` finds for its tree; `conjunction_of` builds
   it.
3. If every part between two OR is plain, each of them has paired quotes; so no OR at which the text
   was split was inside a string.
4. The ends of ranges are exact floats: integers of at most 15 digits, and numbers with a point or
   an exponent, which are floats anyway, up to `FLOAT_EXACT_MAX`.

This module keeps no state.
"""

import re
from math import nextafter
from typing import Final

from anabranch.model.event import FLOAT_EXACT_MAX, INFINITY
from anabranch.model.language.parser import check_text
from anabranch.model.language.tokens import RESERVED
from anabranch.model.limits import Limits
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.normal.value_set import ValueSet, point

#: Attribute → its text, or its (least, greatest) number. At least one entry, none empty.
Demands = dict[str, str | tuple[float, float]]

_NUMBER: Final = r"[+-]?(?:[0-9]{1,15}+(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
_DEMAND: Final = re.compile(
    rf"""
    ([A-Za-z_][A-Za-z0-9_]*+) [ ]*+
    (?: ([=<>]++) [ ]*+ (?: '([^']*+)' | ({_NUMBER}) )
      | (?:BETWEEN|between) [ ]++ ({_NUMBER}) [ ]++ (?:AND|and) [ ]++ ({_NUMBER})
    )
    (?: [ ]++ (?:AND|and) [ ]++ (?!\Z) | \Z )
    | ([\s\S]+)
    """,
    re.VERBOSE,
)
_OR: Final = re.compile(r"[ ]++(?:OR|or)[ ]++")
#: The height of a plain tree: OR, a parenthesis, AND, a comparison, a literal. There are fewer
#: nodes than characters.
_HEIGHT: Final = 5
#: The number of conjunctions that are compared pairwise.
_PARTS_MAX: Final = 16
_LEAST: Final = float(-FLOAT_EXACT_MAX)
_GREATEST: Final = float(FLOAT_EXACT_MAX)


def read_plain(text: str, limits: Limits) -> tuple[Demands, ...] | None:
    """Return the constraints of each conjunction of a plain filter; None if it is not plain."""
    check_text(text, limits)
    if len(text) > limits.filter_nodes_max or limits.filter_depth_max < _HEIGHT:
        return None
    demands = _demands_of(text)
    plain = (demands,) if demands is not None else _alternatives_of(text)
    if plain is None or len(plain) > limits.conjunctions_max:
        return None
    return plain if sum(map(len, plain)) <= limits.predicates_max else None


def _alternatives_of(text: str) -> tuple[Demands, ...] | None:
    """Return the constraints of the parts between OR, if all are plain and unlike each other."""
    parts = _OR.split(text)
    if not 1 < len(parts) <= _PARTS_MAX:
        return None
    found: list[Demands] = []
    for part in parts:
        enclosed = part.startswith("(") and part.endswith(")")
        demands = _demands_of(part[1:-1] if enclosed else part)
        if demands is None:
            return None
        found.append(demands)
    found_names = [demands.keys() for demands in found]
    for index, names in enumerate(found_names):
        for others in found_names[:index]:
            if names <= others or others <= names:
                return None
    return tuple(found)


def _demands_of(text: str) -> Demands | None:
    """Return the constraints of a plain conjunction; None if it is not plain."""
    found = _DEMAND.findall(text)
    if not found or found[-1][-1]:
        return None
    demands: Demands = {}
    for name, order, string, number, low, high, _ in found:
        if number:
            ends = _ends_of(order, float(number))
        elif low:
            ends = (float(low), float(high))
            if not _LEAST <= ends[0] <= ends[1] <= _GREATEST:
                return None
        elif order == "=" and name not in demands and name not in RESERVED:
            demands[name] = string
            continue
        else:
            return None
        if ends is None or name in RESERVED:
            return None
        if name in demands:
            ends = _shared(ends, demands[name])
            if ends is None:
                return None
        demands[name] = ends
    return demands


def conjunction_of(demands: Demands) -> Conjunction:
    """Build the conjunction of these constraints."""
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


def _shared(
    ends: tuple[float, float], known: str | tuple[float, float]
) -> tuple[float, float] | None:
    """Return the numbers in both ranges; None if there are none."""
    if isinstance(known, str):
        return None
    low, high = max(ends[0], known[0]), min(ends[1], known[1])
    return (low, high) if low <= high else None
