"""The fast path for plain filters: one scan of the text, for the tree and for the normal form.

Nearly every filter is a few simple predicates joined by AND, perhaps several such conjunctions
joined by OR. One regular expression matches such a predicate with its connective; `findall` scans
the text in C. `parse_plain` builds the tree from the predicates, about seven times as fast as the
parser; `normal.plain_normal_form` builds the normal form from them without a tree. An index that
takes tens of thousands of filters per second needs both.

1. The fast path reports no errors and does not guess. If the regular expression does not match the
   whole text, or a limit might be exceeded, the result is None and the parser reads the text.
2. A plain text gives exactly the tree that the parser gives.
3. The regular expression may be narrower than the language (one kind of white space, reserved words
   in all capitals or all lower case, no quotes inside strings, no timestamps, integers of at most
   20 characters), never wider. Repetitions are possessive, so matching is linear in the text.
"""

import re
from typing import Final

from anabranch.model.event import INFINITY, INT_MAX, INT_MIN
from anabranch.model.language.expression import (
    And,
    Attribute,
    Comparison,
    Expression,
    In,
    Integer,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Real,
    Text,
    Truth,
)
from anabranch.model.language.like import HOLED_LENGTH_MAX
from anabranch.model.language.tokens import ORDERS, RESERVED
from anabranch.model.limits import DEFAULT_LIMITS, Limits

#: The groups of a match: opening parenthesis, name, order, literal, lower and upper bound, NOT,
#: pattern, list, presence, closing parenthesis, connective, unreadable rest.
Predicate = tuple[str, ...]
_OPENING, _CLOSING, _JOINT, _REST = 0, 10, 11, 12

#: The height of the highest plain tree: OR, AND, NOT, a test, a literal.
_HEIGHT_MAX: Final = 5
#: A sign and the digits of the largest 64-bit integer.
_INTEGER_CHARACTERS_MAX: Final = 20

_NUMBER: Final = r"[+-]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+"
_LITERAL: Final = rf"'[^']*+'|{_NUMBER}|TRUE|true|FALSE|false"
_PREDICATE: Final = re.compile(
    rf"""
    (\(?+) ([A-Za-z_][A-Za-z0-9_]*+) [ ]*+
    (?: ([=<>!]++) [ ]*+ ({_LITERAL})
      | (?:BETWEEN|between) [ ]++ ({_LITERAL}) [ ]++ (?:AND|and) [ ]++ ({_LITERAL})
      | (?:(NOT|not) [ ]++)?+
        (?: (?:LIKE|like) [ ]*+ ('[^']*+') | (?:IN|in) [ ]*+ \(([^()]*+)\) )
      | (?:IS|is) [ ]++ (NULL|null|NOT[ ]++NULL|not[ ]++null)
    )
    (\)?+) (?: [ ]++ (AND|and|OR|or) [ ]++ | \Z )
    | ([\s\S]+)
    """,
    re.VERBOSE,
)
_ITEM: Final = re.compile(rf"[ ]*+({_LITERAL})[ ]*+(,|\Z)|([\s\S]+)")

_TRUTHS: Final = {"TRUE": True, "true": True, "FALSE": False, "false": False}


def plain_predicates(text: str, limits: Limits) -> list[list[Predicate]] | None:
    """Return the predicates of each conjunction; None if the text is not plain.

    Names may be reserved words, and literals out of range.
    """
    # There are fewer nodes than characters, so a short text needs no counting.
    if len(text) > limits.filter_nodes_max or limits.filter_depth_max < _HEIGHT_MAX:
        return None
    predicates: list[Predicate] = _PREDICATE.findall(text)
    # Whatever cannot be read, and a connective without its right side, is in the last match.
    if not predicates or predicates[-1][_REST] or predicates[-1][_JOINT]:
        return None
    if "(" in text or ")" in text or " OR " in text or " or " in text:
        return _split(predicates)
    return [predicates]


def _split(predicates: list[Predicate]) -> list[list[Predicate]] | None:
    """Split at each OR; None if parentheses enclose anything but parts of conjunctions."""
    conjunctions: list[list[Predicate]] = [[]]
    opened = False
    for predicate in predicates:
        conjunctions[-1].append(predicate)
        opening, closing = predicate[_OPENING], predicate[_CLOSING]
        if opening or closing:
            # Parentheses around a conjunction change nothing; around anything else they might.
            if bool(opening) is opened:
                return None
            opened = not closing
        if predicate[_JOINT] in ("OR", "or"):
            if opened:
                return None
            conjunctions.append([])
    return None if opened else conjunctions


def parse_plain(text: str, limits: Limits = DEFAULT_LIMITS) -> Expression | None:
    conjunctions = plain_predicates(text, limits)
    if conjunctions is None:
        return None
    disjuncts: list[Expression] = []
    for predicates in conjunctions:
        items: list[Expression] = []
        for (
            _, name, order, spelling, low, high, negated, pattern, listed, presence, _, _, _,
        ) in predicates:  # fmt: skip
            if name in RESERVED:
                return None
            attribute = Attribute(name)
            if order:
                known_order = ORDERS.get(order)
                is_text = spelling[0] == "'"
                literal = Text(spelling[1:-1]) if is_text else _literal_of(spelling)
                if known_order is None or literal is None:
                    return None
                items.append(Comparison(known_order, attribute, literal))
            elif low:
                least, most = _literal_of(low), _literal_of(high)
                if least is None or most is None:
                    return None
                items.append(Comparison(">=", attribute, least))
                items.append(Comparison("<=", attribute, most))
            else:
                test = _test_of(attribute, pattern, listed, presence)
                if test is None:
                    return None
                items.append(Not(test) if negated or len(presence) > len("NULL") else test)
        disjuncts.append(items[0] if len(items) == 1 else And(tuple(items)))
    return disjuncts[0] if len(disjuncts) == 1 else Or(tuple(disjuncts))


def _literal_of(spelling: str) -> Literal | None:
    """Return the literal of `spelling`; None if it is out of range."""
    if spelling[0] == "'":
        return Text(spelling[1:-1])
    if spelling.isdigit() or (spelling[0] in "+-" and spelling[1:].isdigit()):
        if len(spelling) > _INTEGER_CHARACTERS_MAX:
            return None
        value = int(spelling)
        return Integer(value) if INT_MIN <= value <= INT_MAX else None
    if spelling in _TRUTHS:
        return Truth(_TRUTHS[spelling])
    number = float(spelling)
    return None if number in (INFINITY, -INFINITY) else Real(number)


def _test_of(attribute: Attribute, pattern: str, listed: str, presence: str) -> Expression | None:
    if presence:
        return IsNull(attribute)
    if pattern:
        # A long pattern may violate rule 4 of `like`.
        return None if len(pattern) > HOLED_LENGTH_MAX else Like(attribute, pattern[1:-1])
    items: list[Expression] = []
    joint = ","
    for spelling, joint, rest in _ITEM.findall(listed):  # noqa: B007  # the last one is asked for
        item = None if rest else _literal_of(spelling)
        if item is None:
            return None
        items.append(item)
    return None if joint else In(attribute, tuple(items))
