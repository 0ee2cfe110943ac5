"""Workloads by name: the same filters and events on every machine, for every size.

Rules:

1. Everything follows from the workload's name and the seed. Filters are drawn in chunks of fixed
   size, each from a generator of its own, so filter 5 is the same whether two hundred thousand
   or a million are asked for, and the first of them are a prefix of the second.
2. A subscription's id is its filter's number. A window of numbers, `start` up to `stop`, stands
   for "the first `start` have left and more have come", which is how updates are measured.
3. Texts stream: one chunk is in memory at a time.
4. Every workload can say by itself which filters of a window an event matches, without the
   product's help. A benchmark compares, and fails if it disagrees.

Columns
-------
Conjunctions of intervals as columns of integers: how the synthetic workloads are drawn.

A workload of a million filters is drawn as a handful of arrays, a chunk at a time, and only
becomes text when somebody asks for the text. Rules:

1. Every value is an integer from 0 on. A numeric attribute publishes the integer itself, a
   categorical one a label of fixed width (7 becomes 'V007').
2. A predicate is an interval with both ends included; on a categorical attribute both ends are
   the same and the text is an equality.
3. On a schema with open ends an interval that touches an end of the domain is written with one
   comparison (`<=` or `>=`), any other with BETWEEN. Events never leave the domain, so both
   spellings mean the same here.
4. An absent attribute is -1 in a row of values; no interval starts below 0, so none contains it.

`matching_filters` answers from the columns alone. It shares no code with the product and is what
a benchmark's results are held against.

Equalities and intervals
------------------------
The workloads made of equalities and intervals: stock, mixed, ranges, nested, dnf, wide.

Each function draws one chunk of filters as columns, or the rows of some events.

- `stock`: eight attributes. One equality on the symbol (2,000 symbols, Zipf with exponent 1) and
  1–4 intervals on distinct numeric attributes, each holding 2–40 % of the domain, a third of them
  `<=`, a third `>=`, a third BETWEEN. Events draw their symbol from the same distribution.
- `mixed`: ten categorical attributes of 50 values and ten numeric ones; 2–6 predicates on distinct
  attributes, equalities or intervals of 2–18 %.
- `ranges`: ten numeric attributes, 3–5 BETWEENs of 5–35 %. Nothing to hash by.
- `nested`: the symbol of stock with at most three intervals (the fewer of 1–4 and 0–3), whose
  widths are log-uniform between 0.3 % and 100 %: a few wide filters cover most of the others.
  A quarter has no interval at all, so one text in five is not the first of its kind.
- `dnf`: the OR of 2–6 conjunctions, each drawn like one of mixed.
- `wide`: 200 attributes, categorical (50 values) and numeric in turn, whose popularity falls like
  1/rank both among publishers and among subscribers: an event carries 20 of them, a filter asks
  for 2–6, both drawn without replacement by popularity. The predicates are those of mixed. With
  a uniform choice nine predicates of ten would miss for want of the attribute and hardly
  anything would ever match; so an event matches an eighth of the share it does in mixed.

Text
----
The `text` workload: string attributes and every way of asking about them.

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

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

# -- columns --------------------------------------------------------------------------------------


Integers = npt.NDArray[np.int64]
EventMapping = dict[str, str | int]

#: Numeric attributes take the integers from 0 up to but not including this.
DOMAIN = 1_000_000
ABSENT = -1


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of a schema."""

    name: str
    #: How many values it takes; 0: it is numeric over the whole domain.
    categories: int = 0
    #: What a category's label starts with; one letter.
    initial: str = "V"

    def label(self, value: int) -> str | int:
        """The value as an event carries it."""
        if not self.categories:
            return value
        return f"{self.initial}{value:0{len(str(self.categories - 1))}d}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The attributes of a workload, in the order of their column."""

    attributes: tuple[Attribute, ...]
    #: Rule 3: may an interval at the edge of the domain be written with one comparison?
    open_ends: bool = True

    def row_of(self, event: Mapping[str, str | int]) -> Integers:
        """The event as one integer per attribute, `ABSENT` where it has none."""
        row = np.full(len(self.attributes), ABSENT, np.int64)
        for column, attribute in enumerate(self.attributes):
            value = event.get(attribute.name, ABSENT)
            row[column] = value if isinstance(value, int) else int(value[1:])
        return row

    def mapping_of(self, row: Sequence[int]) -> EventMapping:
        """The event of one row."""
        return {
            attribute.name: attribute.label(value)
            for attribute, value in zip(self.attributes, row, strict=True)
            if value != ABSENT
        }

    def wording(self, column: int, low: int, high: int) -> str:
        """The text of one predicate."""
        attribute = self.attributes[column]
        if attribute.categories:
            return f"{attribute.name} = '{attribute.label(low)}'"
        if self.open_ends and low == 0:
            return f"{attribute.name} <= {high}"
        if self.open_ends and high == DOMAIN - 1:
            return f"{attribute.name} >= {low}"
        return f"{attribute.name} BETWEEN {low} AND {high}"


@dataclass(frozen=True, slots=True)
class Columns:
    """Filters in disjunctive normal form: filters own conjunctions, conjunctions own predicates."""

    #: Filter f owns conjunctions `filters[f]` up to `filters[f + 1]`. Never an empty one.
    filters: Integers
    #: Conjunction c owns predicates `conjunctions[c]` up to `conjunctions[c + 1]`. Never empty.
    conjunctions: Integers
    attribute: Integers
    low: Integers
    high: Integers


def offsets_of(sizes: Integers) -> Integers:
    """Where each of several consecutive runs starts, and the end of the last."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def wordings(schema: Schema, columns: Columns) -> list[str]:
    """The text of every filter."""
    parts = [
        schema.wording(attribute, low, high)
        for attribute, low, high in zip(
            columns.attribute.tolist(), columns.low.tolist(), columns.high.tolist(), strict=True
        )
    ]
    bounds = columns.conjunctions.tolist()
    conjunctions = [" AND ".join(parts[start:end]) for start, end in itertools.pairwise(bounds)]
    owners = columns.filters.tolist()
    return [_disjunction(conjunctions[start:end]) for start, end in itertools.pairwise(owners)]


def matching_filters(columns: Columns, row: Integers) -> Integers:
    """Which filters the row satisfies, ascending."""
    values = row[columns.attribute]
    holds = (values >= columns.low) & (values <= columns.high)
    conjunctions = np.logical_and.reduceat(holds, columns.conjunctions[:-1])
    return np.flatnonzero(np.logical_or.reduceat(conjunctions, columns.filters[:-1]))


def covering_conjunctions(columns: Columns, box: Mapping[int, tuple[int, int]]) -> Integers:
    """Which conjunctions contain the box given as attribute → interval, ascending."""
    lows = np.full(int(columns.attribute.max()) + 1, ABSENT, np.int64)
    highs = np.full(len(lows), ABSENT, np.int64)
    for attribute, (low, high) in box.items():
        if attribute < len(lows):
            lows[attribute], highs[attribute] = low, high
    inside = (lows[columns.attribute] >= columns.low) & (highs[columns.attribute] <= columns.high)
    return np.flatnonzero(np.logical_and.reduceat(inside, columns.conjunctions[:-1]))


def _disjunction(conjunctions: Sequence[str]) -> str:
    if len(conjunctions) == 1:
        return conjunctions[0]
    return " OR ".join(f"({conjunction})" for conjunction in conjunctions)


# -- equalities and intervals ---------------------------------------------------------------------


SYMBOLS = 2_000
CATEGORIES = 50
#: Attributes of one event of `wide`.
WIDE_PRESENT = 20

STOCK = Schema(
    (
        Attribute("symbol", SYMBOLS, "S"),
        *map(Attribute, ("price", "volume", "high", "low", "open", "change", "bid")),
    )
)
MIXED = Schema(
    (
        *(Attribute(f"category{rank}", CATEGORIES) for rank in range(10)),
        *(Attribute(f"amount{rank}") for rank in range(10)),
    )
)
RANGES = Schema(tuple(Attribute(f"amount{rank}") for rank in range(10)), open_ends=False)
NESTED = Schema(STOCK.attributes, open_ends=False)
WIDE = Schema(
    tuple(
        Attribute(f"amount{rank:03d}") if rank % 2 else Attribute(f"category{rank:03d}", CATEGORIES)
        for rank in range(200)
    )
)


def zipf_shares(count: int) -> npt.NDArray[np.float64]:
    """Probabilities proportional to 1/rank."""
    weights: npt.NDArray[np.float64] = 1 / np.arange(1, count + 1)
    return weights / np.sum(weights)


def draw_stock(rng: np.random.Generator, count: int) -> Columns:
    """`count` filters of `stock`."""
    symbol = rng.choice(SYMBOLS, count, p=zipf_shares(SYMBOLS))
    ranges = rng.integers(1, 5, count)
    columns = _shuffled_attributes(rng, ranges, len(STOCK.attributes) - 1)
    low, high = _open_intervals(rng, len(columns), 0.02, 0.4)
    return _with_symbol(symbol, ranges, columns + 1, low, high)


def draw_nested(rng: np.random.Generator, count: int) -> Columns:
    """`count` filters of `nested`."""
    symbol = rng.choice(SYMBOLS, count, p=zipf_shares(SYMBOLS))
    ranges = np.minimum(rng.integers(1, 5, count), rng.integers(0, 4, count))
    columns = _shuffled_attributes(rng, ranges, len(NESTED.attributes) - 1)
    width = (10 ** rng.uniform(-2.5, 0, len(columns)) * DOMAIN).astype(np.int64)
    low = (rng.random(len(columns)) * (DOMAIN - width)).astype(np.int64)
    return _with_symbol(symbol, ranges, columns + 1, low, np.minimum(low + width, DOMAIN - 1))


def draw_mixed(rng: np.random.Generator, count: int) -> Columns:
    """`count` filters of `mixed`."""
    predicates = rng.integers(2, 7, count)
    attribute = _shuffled_attributes(rng, predicates, len(MIXED.attributes))
    return _equalities_and_intervals(rng, predicates, attribute, attribute < 10)


def draw_ranges(rng: np.random.Generator, count: int) -> Columns:
    """`count` filters of `ranges`."""
    predicates = rng.integers(3, 6, count)
    attribute = _shuffled_attributes(rng, predicates, len(RANGES.attributes))
    low, high = _closed_intervals(rng, rng.uniform(0.05, 0.35, len(attribute)))
    return Columns(np.arange(count + 1), offsets_of(predicates), attribute, low, high)


def draw_dnf(rng: np.random.Generator, count: int) -> Columns:
    """`count` filters of `dnf`."""
    disjuncts = rng.integers(2, 7, count)
    flat = draw_mixed(rng, int(disjuncts.sum()))
    return Columns(offsets_of(disjuncts), flat.conjunctions, flat.attribute, flat.low, flat.high)


def draw_wide(rng: np.random.Generator, count: int) -> Columns:
    """`count` filters of `wide`."""
    predicates = rng.integers(2, 7, count)
    popular = _popular_attributes(rng, count, 6)
    attribute = popular[np.arange(6) < predicates[:, None]]
    return _equalities_and_intervals(rng, predicates, attribute, attribute % 2 == 0)


def rows_of_stock(rng: np.random.Generator, count: int) -> Integers:
    """Events of `stock` and `nested`."""
    rows = rng.integers(0, DOMAIN, (count, len(STOCK.attributes)))
    rows[:, 0] = rng.choice(SYMBOLS, count, p=zipf_shares(SYMBOLS))
    return rows


def rows_of_mixed(rng: np.random.Generator, count: int) -> Integers:
    """Events of `mixed` and `dnf`."""
    rows = rng.integers(0, DOMAIN, (count, len(MIXED.attributes)))
    rows[:, :10] = rng.integers(0, CATEGORIES, (count, 10))
    return rows


def rows_of_ranges(rng: np.random.Generator, count: int) -> Integers:
    """Events of `ranges`."""
    return rng.integers(0, DOMAIN, (count, len(RANGES.attributes)))


def rows_of_wide(rng: np.random.Generator, count: int) -> Integers:
    """Events of `wide`."""
    rows = rng.integers(0, DOMAIN, (count, len(WIDE.attributes)))
    rows[:, ::2] = rng.integers(0, CATEGORIES, (count, len(WIDE.attributes) // 2))
    present = np.zeros(rows.shape, bool)
    np.put_along_axis(present, _popular_attributes(rng, count, WIDE_PRESENT), True, axis=1)
    rows[~present] = ABSENT
    return rows


def _with_symbol(
    symbol: Integers, ranges: Integers, columns: Integers, low: Integers, high: Integers
) -> Columns:
    """An equality on column 0 in front of every filter's own intervals."""
    offsets = offsets_of(ranges + 1)
    leading = np.zeros(int(offsets[-1]), bool)
    leading[offsets[:-1]] = True
    attribute, lows, highs = (np.zeros(len(leading), np.int64) for _ in range(3))
    attribute[~leading], lows[~leading], highs[~leading] = columns, low, high
    lows[leading] = highs[leading] = symbol
    return Columns(np.arange(len(symbol) + 1), offsets, attribute, lows, highs)


def _equalities_and_intervals(
    rng: np.random.Generator,
    predicates: Integers,
    attribute: Integers,
    categorical: npt.NDArray[np.bool_],
) -> Columns:
    """The predicates of `mixed` on given attributes."""
    category = rng.integers(0, CATEGORIES, len(attribute))
    low, high = _open_intervals(rng, len(attribute), 0.02, 0.18)
    return Columns(
        np.arange(len(predicates) + 1),
        offsets_of(predicates),
        attribute,
        np.where(categorical, category, low),
        np.where(categorical, category, high),
    )


def _open_intervals(
    rng: np.random.Generator, count: int, narrowest: float, widest: float
) -> tuple[Integers, Integers]:
    """A third start at 0, a third end at the end of the domain, a third float in between."""
    share = rng.uniform(narrowest, widest, count)
    low, high = _closed_intervals(rng, share)
    width = high - low + 1
    shape = rng.integers(0, 3, count)
    low = np.choose(shape, (np.zeros(count, np.int64), DOMAIN - width, low))
    return low, low + width - 1


def _closed_intervals(
    rng: np.random.Generator, share: npt.NDArray[np.float64]
) -> tuple[Integers, Integers]:
    """Intervals that hold the given shares of the domain, anywhere in it."""
    width = (share * DOMAIN).astype(np.int64)
    low = (rng.random(len(share)) * (1 - share) * DOMAIN).astype(np.int64)
    return low, low + width - 1


def _shuffled_attributes(rng: np.random.Generator, sizes: Integers, count: int) -> Integers:
    """For every filter `size` distinct attributes out of `count`, one after the other."""
    order = np.argsort(rng.random((len(sizes), count)), axis=1)
    return order[np.arange(count) < sizes[:, None]]


def _popular_attributes(rng: np.random.Generator, rows: int, size: int) -> Integers:
    """In each row `size` distinct attributes of `wide`, drawn one by one by popularity.

    The arrival order of exponential clocks whose rates are the popularities is exactly such a
    draw without replacement.
    """
    count = len(WIDE.attributes)
    arrival = rng.exponential(size=(rows, count)) / zipf_shares(count)
    first = np.argpartition(arrival, size, axis=1)[:, :size]
    order = np.argsort(np.take_along_axis(arrival, first, axis=1), axis=1)
    return np.take_along_axis(first, order, axis=1)


# -- text -----------------------------------------------------------------------------------------


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


# -- workloads ------------------------------------------------------------------------------------


CHUNK_FILTERS = 8_192
#: Which stream of random numbers a workload's events come from; filters use the chunk's number.
_EVENTS_STREAM = 2**31


class Workload(Protocol):
    """Filters as text and events as mappings, with the answer known independently."""

    @property
    def name(self) -> str:
        """One of `WORKLOAD_NAMES`."""
        ...

    @property
    def seed(self) -> int:
        """What everything was drawn from."""
        ...

    def filter_texts(self, start: int, stop: int) -> Iterator[str]:
        """The texts of filters `start` up to `stop`."""
        ...

    def events(self, count: int) -> list[EventMapping]:
        """The first `count` events."""
        ...

    def matching(
        self, events: Sequence[Mapping[str, str | int]], start: int, stop: int
    ) -> list[list[int]]:
        """For each event the numbers of the matching filters of the window, ascending."""
        ...


@dataclass(frozen=True, slots=True)
class IntervalWorkload:
    """A workload drawn as columns of intervals."""

    name: str
    seed: int
    schema: Schema
    draw: Callable[[np.random.Generator, int], Columns]
    rows: Callable[[np.random.Generator, int], Integers]

    def filter_texts(self, start: int, stop: int) -> Iterator[str]:
        """See `Workload`."""
        for chunk in _chunks(start, stop):
            texts = wordings(self.schema, self.columns(chunk.number))
            yield from texts[chunk.first : chunk.last]

    def events(self, count: int) -> list[EventMapping]:
        """See `Workload`."""
        rows = self.rows(_generator(self.name, self.seed, _EVENTS_STREAM), count)
        return [self.schema.mapping_of(row) for row in rows.tolist()]

    def matching(
        self, events: Sequence[Mapping[str, str | int]], start: int, stop: int
    ) -> list[list[int]]:
        """See `Workload`."""
        rows = [self.schema.row_of(event) for event in events]
        answers: list[list[int]] = [[] for _ in rows]
        for chunk in _chunks(start, stop):
            columns = self.columns(chunk.number)
            for answer, row in zip(answers, rows, strict=True):
                found = matching_filters(columns, row)
                answer.extend(chunk.numbers(found))
        return answers

    def columns(self, chunk: int) -> Columns:
        """One whole chunk of filters as columns."""
        return self.draw(_generator(self.name, self.seed, chunk), CHUNK_FILTERS)


@dataclass(frozen=True, slots=True)
class TextWorkload:
    """The workload of string tests."""

    name: str
    seed: int

    def filter_texts(self, start: int, stop: int) -> Iterator[str]:
        """See `Workload`."""
        for chunk in _chunks(start, stop):
            for predicates in self._draw(chunk):
                yield wording(predicates)

    def events(self, count: int) -> list[EventMapping]:
        """See `Workload`."""
        return events_of_text(_generator(self.name, self.seed, _EVENTS_STREAM), count)

    def matching(
        self, events: Sequence[Mapping[str, str | int]], start: int, stop: int
    ) -> list[list[int]]:
        """See `Workload`."""
        answers: list[list[int]] = [[] for _ in events]
        for chunk in _chunks(start, stop):
            for number, predicates in enumerate(self._draw(chunk), chunk.start + chunk.first):
                for answer, event in zip(answers, events, strict=True):
                    if satisfies(predicates, event):
                        answer.append(number)
        return answers

    def _draw(self, chunk: "_Chunk") -> list[list[Predicate]]:
        rng = _generator(self.name, self.seed, chunk.number)
        return list(draw_text(rng, CHUNK_FILTERS))[chunk.first : chunk.last]


_INTERVAL_WORKLOADS = {
    "stock": (STOCK, draw_stock, rows_of_stock),
    "mixed": (MIXED, draw_mixed, rows_of_mixed),
    "ranges": (RANGES, draw_ranges, rows_of_ranges),
    "nested": (NESTED, draw_nested, rows_of_stock),
    "dnf": (MIXED, draw_dnf, rows_of_mixed),
    "wide": (WIDE, draw_wide, rows_of_wide),
}
WORKLOAD_NAMES = (*_INTERVAL_WORKLOADS, "text")


def interval_workload(name: str, seed: int) -> IntervalWorkload:
    """The interval workload of this name."""
    return IntervalWorkload(name, seed, *_INTERVAL_WORKLOADS[name])


def workload(name: str, seed: int) -> Workload:
    """The workload of this name, one of `WORKLOAD_NAMES`."""
    return TextWorkload(name, seed) if name == "text" else interval_workload(name, seed)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The part of one chunk that lies in a window: `first` up to `last` of it."""

    number: int
    first: int
    last: int

    @property
    def start(self) -> int:
        return self.number * CHUNK_FILTERS

    def numbers(self, places: Integers) -> list[int]:
        """The filter numbers of those places in the chunk that lie in the window."""
        inside = places[(places >= self.first) & (places < self.last)]
        numbers: list[int] = (inside + self.start).tolist()
        return numbers


def _chunks(start: int, stop: int) -> Iterator[_Chunk]:
    for number in range(start // CHUNK_FILTERS, -(-stop // CHUNK_FILTERS)):
        offset = number * CHUNK_FILTERS
        yield _Chunk(number, max(start - offset, 0), min(stop - offset, CHUNK_FILTERS))


def _generator(name: str, seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, int.from_bytes(name.encode()), stream])
