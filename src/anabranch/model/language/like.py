"""LIKE patterns, and a matcher with bounded cost.

A pattern is split at its `%` into *segments*. A segment has a fixed length; its `_` are holes for
any one character. A text matches if the first segment is at its start, the last at its end, and the
others in between, in order and without overlap. Placing each middle segment at the leftmost free
position is always correct: if a later position works, that one does too. So there is no
backtracking, and all searches together pass over the text once:

    without holes   str.find                              linear
    with holes      a regular expression of literals      text × segment, and rule 4 keeps
                    and dots, without any repetition      the segment short

Rules:

1. `%` is any text, also none; `_` is any one character (a code point, a line feed included).
2. The escape character makes the following `%`, `_` or escape character literal. Before any other
   character, or at the end, it is an error: the standards give such a pattern no meaning.
3. Characters are compared exactly: no case folding, no normalisation.
4. A segment with holes has at most 256 characters. Without this limit, one filter could make every
   event cost seconds.

The *weight* of a pattern measures how expensive its searches are. A unit of weight takes at most
about 0.2 ms on a text of 64 KiB, and a quarter of that on an ordinary text of that size.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from anabranch.model.errors import FilterError, FilterLimitError

TextTest = Callable[[str], bool]
#: Finds the leftmost position of a segment at or after a position; -1 if there is none.
Search = Callable[[str, int], int]

#: The longest segment with holes (rule 4).
HOLED_LENGTH_MAX: Final = 256
#: Characters of a holed segment that add a unit of weight to its search.
_CHARACTERS_PER_WEIGHT: Final = 4


class Segment(msgspec.Struct, frozen=True):
    """The characters between two `%`."""

    #: The characters, with an arbitrary one in each hole.
    text: str
    #: Indices of the holes in `text`, ascending.
    holes: tuple[int, ...] = ()


class Pattern(msgspec.Struct, frozen=True):
    """A pattern split at its `%`. Never empty; a single segment means that there was no `%`."""

    segments: tuple[Segment, ...]

    def literal(self) -> str | None:
        """Return the only matching string, if there is exactly one."""
        first = self.segments[0]
        return first.text if len(self.segments) == 1 and not first.holes else None

    def prefix(self) -> str | None:
        """Return the prefix that all matching strings have, if every string with it matches."""
        if len(self.segments) != 2 or self.segments[0].holes or self.segments[1].text:
            return None
        return self.segments[0].text


def pattern_of(pattern: str, escape: str = "") -> Pattern:
    """Parse a pattern; raise `FilterError` for a misplaced escape character."""
    if not escape or escape not in pattern:
        first, *others = pattern.split("%")
        if not others:
            return Pattern((_plain_segment(first),))
        last = others.pop()
        middle = [_plain_segment(part) for part in others if part]
        return Pattern((_plain_segment(first), *middle, _plain_segment(last)))
    return _escaped_pattern_of(pattern, escape)


def _plain_segment(text: str) -> Segment:
    """Return the segment of characters without escapes."""
    if "_" not in text:
        return Segment(text)
    return _segment_of(text, [index for index, character in enumerate(text) if character == "_"])


def _escaped_pattern_of(pattern: str, escape: str) -> Pattern:
    segments: list[Segment] = []
    characters: list[str] = []
    holes: list[int] = []
    index = 0
    while index < len(pattern):
        character = pattern[index]
        if character == escape:
            index += 1
            characters.append(_escaped(pattern, index, escape))
        elif character == "%":
            if characters or not segments:
                segments.append(_segment_of(characters, holes))
            characters, holes = [], []
        else:
            if character == "_":
                holes.append(len(characters))
            characters.append(character)
        index += 1
    segments.append(_segment_of(characters, holes))
    return Pattern(tuple(segments))


def _segment_of(characters: Sequence[str], holes: list[int]) -> Segment:
    if holes and len(characters) > HOLED_LENGTH_MAX:
        raise FilterLimitError(
            f"a stretch of {len(characters)} characters with _ in a LIKE pattern",
            expected=f"at most {HOLED_LENGTH_MAX} characters between two %, or no _ among them",
        )
    return Segment("".join(characters), tuple(holes))


def _escaped(pattern: str, index: int, escape: str) -> str:
    if index < len(pattern) and pattern[index] in ("%", "_", escape):
        return pattern[index]
    raise FilterError(
        f"the escape character {escape!r} stands alone in the pattern",
        text=pattern,
        position=index - 1,
        expected=f"%, _ or {escape} after it",
    )


def search_weight(pattern: Pattern) -> int:
    """Return the weight of the searches; 0 if the pattern only compares the ends of a text."""
    middle = pattern.segments[1:-1]
    if not middle:
        return 0
    holed = sum(len(segment.text) for segment in middle if segment.holes)
    return 1 + holed // _CHARACTERS_PER_WEIGHT


def escape_literal(text: str) -> tuple[str, str]:
    """Return a pattern that matches only `text`, and the escape character it uses, or ""."""
    if "%" not in text and "_" not in text:
        return text, ""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_"), "\\"


def matcher_of(pattern: Pattern) -> TextTest:
    """Return a function that tests whether a text matches."""
    segments = pattern.segments
    literal = pattern.literal()
    if literal is not None:
        return lambda text: text == literal
    if any(segment.holes for segment in segments):
        return _general_matcher(segments)
    first, last = segments[0].text, segments[-1].text
    if len(segments) == 2:
        length = len(first) + len(last)
        return lambda text: len(text) >= length and text.startswith(first) and text.endswith(last)
    if len(segments) == 3 and not first and not last:
        middle = segments[1].text
        return lambda text: middle in text
    return _general_matcher(segments)


def _general_matcher(segments: tuple[Segment, ...]) -> TextTest:
    first, last = segments[0], segments[-1]
    first_length, last_length = len(first.text), len(last.text)
    at_start, at_end = _test_at(first), _test_at(last)
    if len(segments) == 1:
        return lambda text: len(text) == first_length and at_start(text, 0)
    middle = [(len(segment.text), _search_of(segment)) for segment in segments[1:-1]]

    def matches(text: str) -> bool:
        limit = len(text) - last_length
        if limit < first_length or not (at_start(text, 0) and at_end(text, limit)):
            return False
        position = first_length
        for length, search in middle:
            position = search(text, position)
            if position < 0:
                return False
            position += length
            if position > limit:
                return False
        return True

    return matches


def _test_at(segment: Segment) -> Callable[[str, int], bool]:
    """Return a test for the segment at a position; the text must be long enough for it."""
    if not segment.holes:
        return lambda text, position: text.startswith(segment.text, position)
    expression = _expression_of(segment)
    return lambda text, position: expression.match(text, position) is not None


def _search_of(segment: Segment) -> Search:
    if not segment.holes:
        return lambda text, position: text.find(segment.text, position)
    expression = _expression_of(segment)

    def search(text: str, position: int) -> int:
        match = expression.search(text, position)
        return match.start() if match else -1

    return search


def _expression_of(segment: Segment) -> re.Pattern[str]:
    holes = frozenset(segment.holes)
    cells = (
        "." if index in holes else re.escape(character)
        for index, character in enumerate(segment.text)
    )
    return re.compile("".join(cells), re.DOTALL)
