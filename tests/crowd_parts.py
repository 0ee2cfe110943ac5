"""Crowds of subscriptions: thousands of filters on few attributes and few values.

The numba engine keeps small clusters as runs and large ones as blocks, which are split, redrawn and
emptied as subscriptions come and go. None of that happens with a handful of filters, so a crowd is
a style of filter drawn thousands of times, with events that meet it. Everything is drawn from a
seeded generator: a failure names its seed and comes back.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.matching_parts import Attributes, Watched

Writer = Callable[[Random], str]
Publisher = Callable[[Random], Attributes]
WIDTH = 150


@dataclass(frozen=True, slots=True)
class Style:
    """How the filters of a crowd are written, and the events it gets."""

    write: Writer
    publish: Publisher


def _span(draw: Random, name: str, top: int) -> str:
    """One range: short, long or open at one end."""
    low = draw.randrange(top)
    form = draw.randrange(5)
    if form == 0:
        return f"{name} >= {low}"
    if form == 1:
        return f"{name} < {low}.5"
    width = draw.choice([0, 1, 3, 10, top // 2])
    return f"{name} BETWEEN {low} AND {low + width}"


def _number(draw: Random, top: int) -> int | float:
    number = draw.randrange(-1, top + 2)
    return draw.choice([number, number, float(number), number + 0.5])


# -- one function per style of filter, one per style of event


def write_equality(draw: Random) -> str:
    parts = [f"symbol = 'S{draw.randrange(8)}'"]
    parts += [_span(draw, name, 40) for name in draw.sample(("price", "volume"), draw.randrange(3))]
    return " AND ".join(parts)


def publish_equality(draw: Random) -> Attributes:
    return {
        "symbol": f"S{draw.randrange(9)}",
        "price": _number(draw, 40),
        "volume": _number(draw, 40),
    }


def write_ranges(draw: Random) -> str:
    chosen = draw.sample(("x", "y", "z"), draw.randint(1, 3))
    return " AND ".join(_span(draw, name, 100) for name in chosen)


def publish_ranges(draw: Random) -> Attributes:
    chosen = [name for name in ("x", "y", "z") if draw.random() < 0.9]
    return {name: _number(draw, 100) for name in chosen}


def write_membership(draw: Random) -> str:
    colour = [f"'{draw.choice('abcdefghij')}'" for _ in range(draw.randint(1, 6))]
    size = [str(draw.randrange(12)) for _ in range(draw.randint(1, 5))]
    parts = [
        f"colour {draw.choice(['IN', 'IN', 'NOT IN'])} ({', '.join(colour)})",
        f"size {draw.choice(['IN', 'NOT IN'])} ({', '.join(size)})",
        f"colour <> '{draw.choice('abcdefghij')}'",
        f"size <> {draw.randrange(12)}",
        draw.choice(["ready", "NOT ready", "ready IS NULL", "ready IS NOT NULL"]),
        f"size = {draw.randrange(12)}",
    ]
    return " AND ".join(draw.sample(parts, draw.randint(1, 3)))


def publish_membership(draw: Random) -> Attributes:
    event: Attributes = {"colour": draw.choice("abcdefghijk"), "size": _number(draw, 12)}
    if draw.random() < 0.7:
        event["ready"] = draw.choice([True, False, 1, math.nan])
    return event


def _word(draw: Random, longest: int) -> str:
    return "".join(draw.choice("abé") for _ in range(draw.randint(1, longest)))


def write_pattern(draw: Random) -> str:
    forms = [
        f"path LIKE '{_word(draw, 9)}%'",
        f"path LIKE '{_word(draw, 3)}%'",
        f"path LIKE '%{_word(draw, 3)}'",
        f"path LIKE '%{_word(draw, 4)}%'",
        f"path LIKE '{_word(draw, 2)}%{_word(draw, 2)}'",
        f"path NOT LIKE '%{_word(draw, 2)}%'",
        f"path >= '{_word(draw, 9)}'",
        f"path < '{_word(draw, 9)}'",
        f"host = '{_word(draw, 2)}'",
        f"host LIKE '{_word(draw, 2)}%'",
    ]
    return " AND ".join(draw.sample(forms, draw.randint(1, 2)))


def publish_pattern(draw: Random) -> Attributes:
    return {"path": _word(draw, 14), "host": _word(draw, 3)}


def write_alternatives(draw: Random) -> str:
    parts = (f"({write_conjunction(draw)})" for _ in range(draw.randint(2, 6)))
    return " OR ".join(parts)


def write_conjunction(draw: Random) -> str:
    return draw.choice([write_equality, write_ranges])(draw)


def publish_both(draw: Random) -> Attributes:
    return publish_equality(draw) | publish_ranges(draw)


def write_same(draw: Random) -> str:
    return draw.choices(["k = 'x' AND n BETWEEN 3 AND 7", "n > 5", "k = 'y'"], (20, 1, 1))[0]


def publish_same(draw: Random) -> Attributes:
    return {"k": draw.choice("xyz"), "n": _number(draw, 9)}


#: Where integers and floats part, and where both end.
_EDGES = [2**53, -(2**53), 2**62, 2**63 - 40, -(2**63) + 40, 0]


def _large(draw: Random) -> int:
    return draw.choice(_EDGES) + draw.randint(-12, 12)


def write_large(draw: Random) -> str:
    parts = []
    for name in draw.sample(("m", "n"), draw.randint(1, 2)):
        low, high = sorted((_large(draw), _large(draw)))
        end = draw.choice([str(high), repr(float(high)), str(high)])
        forms = [f"{name} BETWEEN {low} AND {end}", f"{name} = {low}", f"{name} > {end}",
                 f"{name} <> {high}", f"{name} IN ({low}, {end})"]  # fmt: skip
        parts.append(draw.choice(forms))
    return " AND ".join(parts)


def publish_large(draw: Random) -> Attributes:
    m, n = _large(draw), _large(draw)
    return {"m": draw.choice([m, float(m)]), "n": draw.choice([n, n, math.inf, float(n)])}


def write_wide(draw: Random) -> str:
    chosen = draw.sample(range(WIDTH), draw.randint(1, 4))
    return " AND ".join(
        f"w{number} = '{draw.choice('abc')}'" if number % 3 == 0 else _span(draw, f"w{number}", 20)
        for number in chosen
    )


def publish_wide(draw: Random) -> Attributes:
    return {
        f"w{number}": draw.choice("abcd") if number % 3 == 0 else _number(draw, 20)
        for number in range(WIDTH)
        if draw.random() < 0.9
    }


def write_residue(draw: Random) -> str:
    parts = [
        _span(draw, "x", 100),
        _span(draw, "y", 100),
        draw.choice(["x < y", "x + y > 90", "x * 2 < z", "z IS NULL OR x <> z", "y - x > 10"]),
        f"z <= {draw.randrange(100)}",
    ]
    return " AND ".join(f"({part})" for part in draw.sample(parts, draw.randint(2, 3)))


STYLES: dict[str, Style] = {
    "equality": Style(write_equality, publish_equality),
    "ranges": Style(write_ranges, publish_ranges),
    "membership": Style(write_membership, publish_membership),
    "patterns": Style(write_pattern, publish_pattern),
    "alternatives": Style(write_alternatives, publish_both),
    "same": Style(write_same, publish_same),
    "large": Style(write_large, publish_large),
    "wide": Style(write_wide, publish_wide),
    "residues": Style(write_residue, publish_ranges),
}


class Crowd:
    """Subscriptions of one style that come and go, watched."""

    def __init__(self, style: str, seed: int, watched: Watched) -> None:
        self.watched = watched
        self._style = STYLES[style]
        self._draw = Random(seed)
        self._next = 0

    def grow(self, count: int) -> None:
        """So many subscriptions more; one in five is behind one of 70 destinations."""
        for _ in range(count):
            link = self._next % 70 if self._next % 5 == 0 else None
            text = self._style.write(self._draw)
            self.watched.add(self._next, text, destination=link)
            self._next += 1

    def shrink(self, count: int) -> None:
        """So many subscriptions fewer, in random order."""
        for identity in self._draw.sample(self.watched.ids, count):
            self.watched.remove(identity)

    def check(self, count: int = 16) -> int:
        """Publish so many events; returns the number of matches."""
        return self.watched.check([self._style.publish(self._draw) for _ in range(count)])
