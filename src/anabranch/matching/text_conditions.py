"""Text conditions of filters that the kernels can evaluate by looking up a literal.

x LIKE '%abc'      ends with abc          exactly that
x LIKE '%abc%'     contains abc           exactly that
x LIKE 'a%b_c%d'   ends with d            necessary, the condition itself still decides
x LIKE 'abc%'      begins with abc        a range of texts in the normal form, recognised as such
"""

from itertools import pairwise
from typing import NamedTuple

from anabranch.matching.kernels import layout as at
from anabranch.model.event import prefix_end
from anabranch.model.language.expression import Attribute, Expression, Like
from anabranch.model.language.like import Segment, pattern_of
from anabranch.model.normal.value_set import ValueSet


class TextPattern(NamedTuple):
    """A text begins with, ends with or contains a literal."""

    name: str
    #: BEGINS, ENDS or CONTAINS.
    kind: int
    literal: bytes
    #: Whether it says all that the condition says.
    is_exact: bool


def pattern_of_condition(expression: Expression) -> TextPattern | None:
    """The pattern that a residue implies, if there is one."""
    if not isinstance(expression, Like) or not isinstance(expression.operand, Attribute):
        return None
    segments = pattern_of(expression.pattern, expression.escape).segments
    if len(segments) == 1:
        return None
    *middle, last = segments[1:]
    plain = not segments[0].text and not any(segment.text for segment in middle)
    name = expression.operand.name
    if _is_literal(last):
        return TextPattern(name, at.ENDS, last.text.encode(), is_exact=plain)
    literal = max(filter(_is_literal, middle), key=lambda s: len(s.text), default=None)
    if literal is None:
        return None
    exact = not segments[0].text and not last.text and len(middle) == 1
    return TextPattern(name, at.CONTAINS, literal.text.encode(), is_exact=exact)


def pattern_of_values(name: str, values: ValueSet) -> TextPattern | None:
    """The pattern that a set of texts is, if it is all texts with one beginning."""
    if len(values.texts) != 1:
        return None
    start, end = values.texts[0]
    if end is None or end != prefix_end(start):
        return None
    literal = start.encode()
    if not 0 < len(literal) <= at.LITERAL_BYTES_MAX:
        return None
    return TextPattern(name, at.BEGINS, literal, is_exact=True)


def _is_literal(segment: Segment) -> bool:
    size = len(segment.text.encode())
    return not segment.holes and 0 < size <= at.LITERAL_BYTES_MAX


def single_gaps(values: ValueSet) -> list[str] | None:
    """The texts left out, if all texts but some single ones are in the set."""
    ranges = values.texts
    if ranges[0][0] not in ("", "\0") or ranges[-1][1] is not None:
        return None
    gaps = [""] if ranges[0][0] == "\0" else []
    for (_, gap), (after, _) in pairwise(ranges):
        if gap is None or after != gap + "\0":
            return None
        gaps.append(gap)
    return gaps
