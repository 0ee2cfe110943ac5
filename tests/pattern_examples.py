"""Small histories and what patterns mean for them, worked out by hand.

An event is written `A3p`: kind A, at 3 s, with the symbol p; the symbol may be missing. Its tick is
its place in the history. In patterns `A` stands for the part `a:{k = 'A'}`. A match is written as
parts with ticks: `a0 b2`.
"""

import re
from typing import NamedTuple

from anabranch.model.event import Value
from anabranch.model.pattern.match import Match, PlacedEvent
from anabranch.model.pattern.pattern import Pattern

SECOND_NS = 1_000_000_000


class Example(NamedTuple):
    """A pattern, a history, and all matches."""

    claim: str
    pattern: str
    history: str
    matches: list[str]


EXAMPLES = [
    Example("one part is matched by one event", "A WITHIN 1 s", "A0 B1 A1", ["a0", "a2"]),
    Example("AND takes any order", "A AND B WITHIN 5 s", "B0 A3", ["a1 b0"]),
    Example("THEN does not", "A THEN B WITHIN 5 s", "B0 A3", []),
    Example("a window includes its end", "A THEN B WITHIN 3 s", "A0 B3 B4", ["a0 b1"]),
    Example("OR is matched by one", "A OR B WITHIN 1 s", "A0 B1 C2", ["a0", "b1"]),
    Example(
        "ALL takes all combinations",
        "A THEN B WITHIN 9 s",
        "A0 A1 B2 B3",
        ["a0 b2", "a0 b3", "a1 b2", "a1 b3"],
    ),
    Example(
        "FIRST takes the earliest", "A THEN B WITHIN 9 s FIRST", "A0 A1 B2 B3", ["a0 b2", "a0 b3"]
    ),
    Example("LAST takes the latest", "A THEN B WITHIN 9 s LAST", "A0 A1 B2 B3", ["a1 b2", "a1 b3"]),
    Example(
        "FIRST looks at the first event before the second",
        "A THEN B THEN C WITHIN 9 s FIRST",
        "A0 A1 B2 B3 C4",
        ["a0 b2 c4"],
    ),
    Example(
        "LAST looks at the event before the last first",
        "(A THEN B) AND C WITHIN 9 s LAST",
        "A0 B1 C2 A3 B4",
        ["a0 b1 c2", "a3 b4 c2"],
    ),
    Example("one event does not serve two parts", "x:{k = 'A'} AND y:{TRUE} WITHIN 9 s", "A0", []),
    Example(
        "identical parts are exchangeable",
        "x:{k = 'A'} AND y:{k = 'A'} WITHIN 9 s",
        "A0 A1",
        ["x0 y1", "x1 y0"],
    ),
    Example(
        "a repetition is in order", "2 TIMES A WITHIN 9 s", "A0 A1 A2", ["a0 a1", "a0 a2", "a1 a2"]
    ),
    Example(
        "LAST of a repetition slides", "2 TIMES A WITHIN 9 s LAST", "A0 A1 A2", ["a0 a1", "a1 a2"]
    ),
    Example(
        "a repetition repeats all of its item",
        "2 TIMES (A AND B) WITHIN 9 s",
        "A0 B1 B2 A3 A4",
        ["a0 a3 b1 b2", "a0 a4 b1 b2"],
    ),
    Example(
        "a join takes the same symbol",
        "A THEN B WHERE a.s = b.s WITHIN 9 s",
        "A0p A1q A2 B3p B4",
        ["a0 b3"],
    ),
    Example(
        "a join of a part with itself ties its events together",
        "2 TIMES A WHERE a.s = a.s WITHIN 9 s",
        "A0p A1q A2 A3p",
        ["a0 a3"],
    ),
    Example(
        "a join says nothing where OR went the other way",
        "A AND (B OR C) WHERE a.s = b.s WITHIN 9 s",
        "A0p B1q C2",
        ["a0 c2"],
    ),
    Example(
        "nothing comes before the window is over",
        "A THEN NOT B WITHIN 3 s",
        "A0 B3 A4 B8 A9",
        ["a2", "a4"],
    ),
    Example(
        "an absence looks at its joins",
        "A THEN NOT B WHERE a.s = b.s WITHIN 3 s",
        "A0p A0q B1q B1",
        ["a0"],
    ),
    Example(
        "an absence between two",
        "A THEN NOT B THEN C WITHIN 9 s",
        "A0 C1 B2 A3 C4",
        ["a0 c1", "a3 c4"],
    ),
    Example(
        "an absence lasts from the last event to the end of a window that begins with the first",
        "A THEN C THEN NOT B WITHIN 5 s",
        "A0 C3 B6 A10 C13 B15",
        ["a0 c1"],
    ),
    Example(
        "a window inside is narrower",
        "(A THEN B WITHIN 1 s) THEN C WITHIN 9 s",
        "A0 B2 C3 A4 B5 C6",
        ["a3 b4 c5"],
    ),
    Example(
        "FIRST keeps the first that is a match",
        "A THEN C THEN NOT B WITHIN 5 s FIRST",
        "A0 A2 C3 B4 C5 B7",
        ["a0 c4"],
    ),
    Example(
        "FIRST passes over what is none",
        "A THEN C THEN NOT B WHERE a.s = b.s WITHIN 5 s FIRST",
        "A0p A2q C3 B4p",
        ["a1 c2"],
    ),
    Example("equal times are ordered by tick", "A THEN B WITHIN 1 s", "B0 A0 B0", ["a1 b2"]),
]


def pattern_of(text: str) -> Pattern:
    """The pattern of an example."""
    return Pattern.parse(re.sub(r"\b([ABC])\b(?!')", _part, text))


def _part(found: re.Match[str]) -> str:
    return f"{found[1].lower()}:{{k = '{found[1]}'}}"


def history_of(text: str) -> list[PlacedEvent]:
    """The history of an example."""
    history = []
    for tick, word in enumerate(text.split()):
        found = re.fullmatch(r"([A-Z])(\d+)([a-z]?)", word)
        assert found, word
        attributes: dict[str, Value] = {"k": found[1]}
        if found[3]:
            attributes["s"] = found[3]
        history.append(PlacedEvent("stream", tick, int(found[2]) * SECOND_NS, attributes))
    return history


def written(match: Match) -> str:
    """A match as examples write it."""
    return " ".join(f"{part}{tick}" for part, _, tick in match.identity)
