"""The workloads made of equalities and intervals: stock, mixed, ranges, nested, dnf, wide.

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
"""

import numpy as np
import numpy.typing as npt

from anabranch.cli.bench.columns import (
    ABSENT,
    DOMAIN,
    Attribute,
    Columns,
    Integers,
    Schema,
    offsets_of,
)

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
