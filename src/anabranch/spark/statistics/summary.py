"""Evaluation of counted parts: queries the sketches and builds `model.statistics` values.

The result consists of plain values that can be read without Spark. Sketches of all days are merged;
a histogram has `BUCKETS` buckets, and the `TOP_KEPT` most frequent values are kept.

This module keeps no state.
"""

from itertools import groupby
from math import ceil
from operator import attrgetter
from sys import float_info
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

from anabranch.model.statistics import (
    AttributeStatistics,
    NumberStatistics,
    Pair,
    Period,
    StreamStatistics,
    TextStatistics,
)
from anabranch.spark.statistics.counts import STREAM
from anabranch.spark.statistics.sketches import (
    EXACT_DISTINCT,
    KLL_K,
    RANK_ERROR,
    TOP_ERROR,
    TRACKED,
    merged,
)

BUCKETS: Final = 200
TOP_KEPT: Final = 200
#: Three times the mean error of a distinct count.
_DISTINCT_SLACK: Final = 1.05
_RANKS: Final = tuple(bucket / BUCKETS for bucket in range(BUCKETS + 1))


def _rates() -> list[Column]:
    return [
        sf.sum("events").alias("events"),
        sf.min("first").alias("first"),
        sf.max("last").alias("last"),
    ]


class _Top(NamedTuple):
    """The most frequent values, and bounds for the others."""

    items: list[Row]
    #: Maximum overestimate of a count.
    error: int
    #: Maximum number of occurrences of any other value.
    rest_max: int


class Parts(NamedTuple):
    """Counted parts: the frames of `sketches` and `counts`."""

    sketches: DataFrame
    rates: DataFrame
    pairs: DataFrame
    #: Attributes whose pairs were counted.
    paired: tuple[str, ...]


def summarised(parts: Parts) -> list[StreamStatistics]:
    """The statistics of each stream, ordered by name."""
    attributes: dict[str, dict[str, AttributeStatistics]] = {}
    sketch_rows = _by_stream(_query(parts.sketches))
    for stream, rows in sketch_rows.items():
        rows.sort(key=attrgetter("attribute"))
        for name, kinds in groupby(rows, key=attrgetter("attribute")):
            attributes.setdefault(stream, {})[name] = _attribute(list(kinds))
    pairs = _pairs(parts.pairs)
    rates = _by_stream(parts.rates.groupBy(STREAM, "hour").agg(*_rates()))
    return [
        _stream(stream, hours, attributes.get(stream, {}), pairs.get(stream, []), parts.paired)
        for stream, hours in sorted(rates.items())
    ]


def _by_stream(frame: DataFrame) -> dict[str, list[Row]]:
    """The rows of a small frame, grouped by stream."""
    found: dict[str, list[Row]] = {}
    for row in frame.collect():
        found.setdefault(row[STREAM], []).append(row)
    return found


def _query(sketches: DataFrame) -> DataFrame:
    """Query the sketches."""
    ranks = sf.array(*map(sf.lit, _RANKS))
    has_values = sf.kll_sketch_get_n_double("quantiles") > 0
    return merged(sketches, [STREAM]).select(
        STREAM,
        "attribute",
        "kind",
        "values",
        "true",
        "nan",
        "minimum",
        "maximum",
        sf.when(has_values, sf.kll_sketch_get_quantile_double("quantiles", ranks)).alias("bounds"),
        sf.hll_sketch_estimate("distinct").alias("distinct"),
        sf.expr(f"approx_top_k_estimate(topNumbers, {TRACKED})").alias("topNumbers"),
        sf.expr(f"approx_top_k_estimate(topTexts, {TRACKED})").alias("topTexts"),
    )


# -- per stream ------------------------------------------------------------------------------------


def _stream(
    stream: str,
    hours: list[Row],
    attributes: dict[str, AttributeStatistics],
    pairs: list[Pair],
    paired: tuple[str, ...],
) -> StreamStatistics:
    timed = [row for row in hours if row.hour is not None]
    first = min((row["first"] for row in timed), default=None)
    last = max((row["last"] for row in timed), default=None)
    events = sum(row.events for row in hours)
    rate = None
    if first is not None and last is not None and last > first:
        rate = sum(row.events for row in timed) * 1e6 / (last - first)
    return StreamStatistics(
        stream=stream,
        events=events,
        first_ns=None if first is None else first * 1_000,
        last_ns=None if last is None else last * 1_000,
        rate_per_s=rate,
        periods=tuple(
            Period(row.hour, row.events) for row in sorted(timed, key=attrgetter("hour"))
        ),
        attributes=attributes,
        pairs=tuple(pairs),
        paired=tuple(name for name in paired if name in attributes),
    )


def _pairs(frame: DataFrame) -> dict[str, list[Pair]]:
    summed = frame.groupBy(STREAM, "one", "other").agg(sf.sum("events").alias("events"))
    found: dict[str, list[Pair]] = {}
    for stream, rows in _by_stream(summed).items():
        pairs = [Pair(row.one, row.other, row.events) for row in rows]
        pairs.sort(key=lambda pair: (-pair.events, pair.one, pair.other))
        found[stream] = pairs
    return found


def _attribute(rows: list[Row]) -> AttributeStatistics:
    """Merge the kinds of one attribute."""
    kinds = {row.kind: row for row in rows}
    truths = kinds.get("truth")
    numbers, texts = kinds.get("number"), kinds.get("text")
    return AttributeStatistics(
        numbers=None if numbers is None or numbers["values"] == numbers.nan else _numbers(numbers),
        texts=None if texts is None else _texts(texts),
        true=0 if truths is None else truths.true,
        false=0 if truths is None else truths["values"] - truths.true,
        nan=0 if numbers is None else numbers.nan,
    )


def _numbers(row: Row) -> NumberStatistics:
    top = _top(row, row.topNumbers)
    count = row["values"] - row.nan
    return NumberStatistics(
        count=count,
        distinct=min(row.distinct, count),
        rank_error=_rank_error(count),
        bounds=tuple(map(_finite, _bounds(row))),
        top=tuple((_finite(item["item"]), item["count"]) for item in top.items),
        top_error=top.error,
        rest_max=top.rest_max,
    )


def _texts(row: Row) -> TextStatistics:
    top = _top(row, row.topTexts)
    count = row["values"]
    return TextStatistics(
        count=count,
        distinct=min(row.distinct, count),
        rank_error=_rank_error(count),
        bounds=tuple(map(int, _bounds(row))),
        top=tuple((item["item"], item["count"]) for item in top.items),
        top_error=top.error,
        rest_max=top.rest_max,
    )


def _bounds(row: Row) -> list[float]:
    """The bounds of the buckets; the smallest and the largest value are exact."""
    return [row.minimum, *row.bounds[1:-1], row.maximum]


def _rank_error(count: int) -> float:
    """A sketch of few values holds all of them."""
    return 0.0 if count <= KLL_K else RANK_ERROR


def _top(row: Row, items: list[Row] | None) -> _Top:
    """The most frequent values.

    The sketch returns an item only if it surely occurs more often than the sketch's error; its
    count is an upper bound. The least count returned is therefore more than twice that error, and
    every other value occurs less often."""
    found = items or []
    kept, dropped = found[:TOP_KEPT], found[TOP_KEPT:]
    rest_max = dropped[0]["count"] if dropped else 0
    if row.distinct * _DISTINCT_SLACK <= EXACT_DISTINCT:
        return _Top(kept, 0, rest_max)
    error_max = ceil(TOP_ERROR * row["values"])
    least = found[-1]["count"] if found else 2 * error_max
    return _Top(kept, min(error_max, least // 2), rest_max or least)


def _finite(number: float) -> float:
    return min(max(number, -float_info.max), float_info.max)
