"""The short cut for plain filters.

Nearly every filter that a network ever sees is a few simple predicates joined by AND, perhaps
several such conjunctions joined by OR. One regular expression knows the shape of such a predicate
together with what joins it to the next; `findall` runs over the text in C, and building the tree
is a loop over what it found. That is some seven times as fast as the parser, and an index that
takes tens of thousands of filters a second needs it.

Rules:

1. This module never reports an error and never guesses. What the expression does not recognise to
   the last character is not plain: `parse_plain` returns None and the parser reads the text.
2. A plain text gives the very tree that the parser gives.
3. The expression may be narrower than the language (one kind of white space, reserved words in
   all capitals or all small, no quotes inside of strings, integers of at most 18 digits), never
   wider. Every repetition in it is followed by something that cannot continue it, so matching is
   linear in the text.

Nothing is remembered from one text to the next.
"""

import re
from typing import Final

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
from anabranch.model.language.scanner import ORDERS, RESERVED
from anabranch.model.values import INFINITY

#: Levels of the highest tree made here: OR, AND, NOT, a test, a literal.
PLAIN_HEIGHT_MAX: Final = 5

_INTEGER: Final = r"[+-]?[0-9]{1,18}(?![.eE0-9])"
_EXPONENT: Final = r"[eE][+-]?[0-9]+"
_REAL: Final = (
    rf"[+-]?(?:[0-9]+\.[0-9]*(?:{_EXPONENT})?|\.[0-9]+(?:{_EXPONENT})?|[0-9]+{_EXPONENT})"
)
_TRUTH: Final = r"TRUE|true|FALSE|false"
_LITERAL: Final = rf"'[^']*'|{_INTEGER}|{_REAL}|{_TRUTH}"

_PREDICATE: Final = re.compile(
    rf"""
    (\(?) ([A-Za-z_][A-Za-z0-9_]*+) [ ]*
    (?: ([=<>!]+) [ ]* (?: '([^']*)' | ({_INTEGER}) | ({_REAL}|{_TRUTH}) )
      | (?:BETWEEN|between) [ ]+ ({_LITERAL}) [ ]+ (?:AND|and) [ ]+ ({_LITERAL})
      | (?:(NOT|not) [ ]+)? (?: (?:LIKE|like) [ ]* ('[^']*') | (?:IN|in) [ ]* \(([^()]*)\) )
      | (?:IS|is) [ ]+ (NULL|null|NOT[ ]+NULL|not[ ]+null)
    )
    (\)?) (?: [ ]+ (AND|and|OR|or) [ ]+ | \Z )
    | ([\s\S]+)
    """,
    re.VERBOSE,
)
_ITEM: Final = re.compile(rf"[ ]*({_LITERAL})[ ]*(,|\Z)|([\s\S]+)")

_TRUTHS: Final = {"TRUE": True, "true": True, "FALSE": False, "false": False}


def parse_plain(text: str) -> Expression | None:
    """The tree of `text` if it is plain, else None."""
    conjunctions: list[list[Expression]] = []
    items: list[Expression] = []
    opened = False
    joint = "AND"
    for (
        opening, name, order, string, integer, other, low, high,
        negated, pattern, listed, presence, closing, joint, rest,
    ) in _PREDICATE.findall(text):  # fmt: skip
        if rest or name in RESERVED:
            return None
        attribute = Attribute(name)
        if order:
            known_order = ORDERS.get(order)
            if integer:
                literal: Literal | None = Integer(int(integer))
            else:
                literal = _literal_of(other) if other else Text(string)
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
        if opening or closing:
            # Round a conjunction a parenthesis changes nothing; round anything else it might.
            if bool(opening) is opened:
                return None
            opened = not closing
        if joint in ("OR", "or"):
            if opened:
                return None
            conjunctions.append(items)
            items = []
    if joint or opened:
        return None
    conjunctions.append(items)
    disjuncts = [part[0] if len(part) == 1 else And(tuple(part)) for part in conjunctions]
    return disjuncts[0] if len(disjuncts) == 1 else Or(tuple(disjuncts))


def _literal_of(spelling: str) -> Literal | None:
    """What `spelling`, which is that of a literal, stands for; None if it is out of range."""
    if spelling.isdigit():
        return Integer(int(spelling))
    if spelling[0] == "'":
        return Text(spelling[1:-1])
    if spelling in _TRUTHS:
        return Truth(_TRUTHS[spelling])
    if spelling[0] in "+-" and spelling[1:].isdigit():
        return Integer(int(spelling))
    number = float(spelling)
    return None if number in (INFINITY, -INFINITY) else Real(number)


def _test_of(attribute: Attribute, pattern: str, listed: str, presence: str) -> Expression | None:
    if presence:
        return IsNull(attribute)
    if pattern:
        # A long pattern may break a rule of `like`.
        return None if len(pattern) > HOLED_LENGTH_MAX else Like(attribute, pattern[1:-1])
    items: list[Expression] = []
    joint = ","
    for spelling, joint, rest in _ITEM.findall(listed):  # noqa: B007  # the last one is asked for
        item = None if rest else _literal_of(spelling)
        if item is None:
            return None
        items.append(item)
    return None if joint else In(attribute, tuple(items))
