"""The `text` workload: string attributes and every way of asking about them.

Events look like the access log of a shop: eight string attributes, six of them compound.

    attribute   value                       asked with                        share that matches
    path        /section/word/number        prefix: /section/ or /section/wo     5 %, about 0.1 %
    host        word-00.zone.example        suffix: .zone.example               10 %
    user        word000@house.example       suffix: @house.example               2 %
    title       four words                  contains: a word                     1 %
    country     40 codes                    IN 2–8 of them                    5–20 %
    level       8 names                     <> one of them                    87.5 %
    kind        50 names                    =                                    2 %
    session     20,000 numbers              prefix: its first three digits     0.5 %

A filter has 2–5 predicates on distinct attributes. The first is one of the selective ones (path,
user, title, kind, session), as nobody subscribes to all of `level <> 'debug'`; the others are
drawn evenly. So an event matches about as large a share of the filters as in `mixed`.

Words are pronounceable and come from a fixed seed, so they are the same for every workload seed.
No value contains a wildcard of LIKE or a quote. `satisfies` is written with Python's own string
methods and shares nothing with the product.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.cli.bench.columns import EventMapping

ATTRIBUTES = ("path", "user", "title", "kind", "session", "host", "country", "level")
#: The first attributes of the list above are selective enough to stand first in a filter.
SELECTIVE = 5
SESSIONS = 20_000
LEVELS = ("trace", "debug", "info", "notice", "warning", "error", "alert", "fatal")


@dataclass(frozen=True, slots=True)
class Predicate:
    """One test of one string attribute."""

    attribute: str
    operator: str
    #: One operand, or those of IN.
    operands: tuple[str, ...]

    def wording(self) -> str:
        """The text of the predicate."""
        return WORDINGS[self.operator].format(
            attribute=self.attribute,
            operand=self.operands[0],
            operands=", ".join(f"'{operand}'" for operand in self.operands),
        )


WORDINGS = {
    "prefix": "{attribute} LIKE '{operand}%'",
    "suffix": "{attribute} LIKE '%{operand}'",
    "contains": "{attribute} LIKE '%{operand}%'",
    "in": "{attribute} IN ({operands})",
    "differs": "{attribute} <> '{operand}'",
    "equals": "{attribute} = '{operand}'",
}
TESTS: dict[str, Callable[[str, tuple[str, ...]], bool]] = {
    "prefix": lambda value, operands: value.startswith(operands[0]),
    "suffix": lambda value, operands: value.endswith(operands[0]),
    "contains": lambda value, operands: operands[0] in value,
    "in": lambda value, operands: value in operands,
    "differs": lambda value, operands: value != operands[0],
    "equals": lambda value, operands: value == operands[0],
}


def _words(rng: np.random.Generator, count: int) -> tuple[str, ...]:
    """Distinct pronounceable words of two to four syllables."""
    words: dict[str, None] = {}
    while len(words) < count:
        syllables = rng.integers(0, (15, 5), (int(rng.integers(2, 5)), 2)).tolist()
        words["".join("bdfgklmnprstvwz"[a] + "aeiou"[b] for a, b in syllables)] = None
    return tuple(words)


_VOCABULARY = _words(np.random.default_rng(7), 520)
SECTIONS, HOUSES, KINDS, WORDS = (
    _VOCABULARY[:20],
    _VOCABULARY[20:70],
    _VOCABULARY[70:120],
    _VOCABULARY[120:],
)
ZONES = tuple(f"zone{rank}" for rank in range(10))
COUNTRIES = tuple(f"{first}{second}" for first in "ABCDE" for second in "KLMNPRST")


def satisfies(predicates: Sequence[Predicate], event: Mapping[str, str | int]) -> bool:
    """Whether the event passes every test."""
    return all(
        TESTS[predicate.operator](str(event[predicate.attribute]), predicate.operands)
        for predicate in predicates
    )


def wording(predicates: Sequence[Predicate]) -> str:
    """The text of one filter."""
    return " AND ".join(predicate.wording() for predicate in predicates)


def draw_text(rng: np.random.Generator, count: int) -> Iterator[list[Predicate]]:
    """`count` filters of `text`."""
    sizes = rng.integers(2, 6, count).tolist()
    first = rng.integers(0, SELECTIVE, count)
    keys = rng.random((count, len(ATTRIBUTES)))
    keys[np.arange(count), first] = -1
    orders = np.argsort(keys, axis=1).tolist()
    # More random integers than any predicate needs; each takes what it needs modulo its choices.
    draws = rng.integers(0, 2**31, (count, 5, 3)).tolist()
    for size, order, numbers in zip(sizes, orders, draws, strict=True):
        yield [
            _predicate(ATTRIBUTES[column], *triple)
            for column, triple in zip(order[:size], numbers, strict=False)
        ]


def events_of_text(rng: np.random.Generator, count: int) -> list[EventMapping]:
    """Events of `text`."""
    return [_event(rng) for _ in range(count)]


def _event(rng: np.random.Generator) -> EventMapping:
    words = [WORDS[index] for index in rng.integers(0, len(WORDS), 7).tolist()]
    section, house, kind, zone, country, level = (
        choices[int(rng.integers(0, len(choices)))]
        for choices in (SECTIONS, HOUSES, KINDS, ZONES, COUNTRIES, LEVELS)
    )
    return {
        "path": f"/{section}/{words[0]}/{int(rng.integers(0, 10_000))}",
        "user": f"{words[1]}{int(rng.integers(0, 1_000)):03d}@{house}.example",
        "title": " ".join(words[2:6]),
        "kind": kind,
        "session": f"{int(rng.integers(0, SESSIONS)):05d}",
        "host": f"{words[6]}-{int(rng.integers(0, 100)):02d}.{zone}.example",
        "country": country,
        "level": level,
    }


def _predicate(attribute: str, first: int, second: int, third: int) -> Predicate:
    match attribute:
        case "path":
            section = SECTIONS[first % len(SECTIONS)]
            inner = WORDS[second % len(WORDS)][: 2 * (third % 2)]
            return Predicate(attribute, "prefix", (f"/{section}/{inner}",))
        case "user":
            return Predicate(attribute, "suffix", (f"@{HOUSES[first % len(HOUSES)]}.example",))
        case "title":
            return Predicate(attribute, "contains", (WORDS[first % len(WORDS)],))
        case "kind":
            return Predicate(attribute, "equals", (KINDS[first % len(KINDS)],))
        case "session":
            return Predicate(attribute, "prefix", (f"{first % SESSIONS:05d}"[:3],))
        case "host":
            return Predicate(attribute, "suffix", (f".{ZONES[first % len(ZONES)]}.example",))
        case "country":
            # An odd step walks the 40 codes without repeating within eight of them.
            step = (1, 3, 7, 9, 11, 13, 17, 19)[third % 8]
            chosen = [(second + step * place) % len(COUNTRIES) for place in range(2 + first % 7)]
            return Predicate(attribute, "in", tuple(COUNTRIES[index] for index in chosen))
        case _:
            return Predicate(attribute, "differs", (LEVELS[first % len(LEVELS)],))
