"""Mergeable sketches of attribute values.

    parts = sketched(events, columns)            # one row per day, stream, attribute and kind
    whole = merged(parts, [STREAM])              # merged over all days

Spark computes them with its own aggregates, from the Apache DataSketches libraries:

    quantiles   KLL, K = 800: rank error at most 0.45 %, with a probability of 99 %
    distinct    HyperLogLog, 4,096 registers: mean error 1.6 %
    top         frequent items, 1,000 tracked: see `TOP_ERROR`

Rules:

1. A part has a *kind*: number, text or truth. Numbers are 64-bit floats; an integer beyond 2**53
   counts as the nearest float. NaN is counted separately and not sketched. A text is ranked by its
   first six bytes (`model.statistics.text_key`).
2. Two columns of one attribute (`attribute_columns`) yield two parts of different kinds, or are
   combined by the merge.
3. A merged sketch is as accurate as one built in a single pass, in any merge order.
4. Events without a time belong to the day None.

This module keeps no state.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from anabranch.model.statistics import KEY_BYTES
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.statistics.counts import DATE, STREAM

KLL_K: Final = 800
#: For two ranks at once, with a probability of 99 %: the library's bound.
RANK_ERROR: Final = 2.446 / KLL_K**0.9433
HLL_LOG_K: Final = 12
TRACKED: Final = 1_000
#: The table of tracked items has a power of two of slots, three quarters of which are used.
_PLACES: Final = 2_048
#: Up to this number of distinct values every count is exact.
EXACT_DISTINCT: Final = _PLACES * 3 // 4
#: Beyond it, a count is too large by at most this share of all values.
TOP_ERROR: Final = 3.5 / _PLACES

PartKind = Literal["number", "text", "truth"]
#: Attributes per pass: more would exceed the memory of a task.
_AT_ONCE: Final = 32
_NO_VALUE: Final = "_nothing"


def sketched(events: DataFrame, columns: Sequence[AttributeColumn]) -> DataFrame:
    """The parts of events that have the columns DATE and STREAM."""
    if not columns:
        # The streams are empty, or have only payloads: no part has a value.
        nothing = events.withColumn(_NO_VALUE, sf.lit(None).cast("string"))
        return _pass(nothing, [AttributeColumn(_NO_VALUE, _NO_VALUE, "text")])
    passes = [columns[first : first + _AT_ONCE] for first in range(0, len(columns), _AT_ONCE)]
    return reduce(DataFrame.unionByName, [_pass(events, each) for each in passes])


def _pass(events: DataFrame, columns: Sequence[AttributeColumn]) -> DataFrame:
    """Sketch several attributes in one pass: one column of parts each, then turned into rows."""
    parts = [_part(each).alias(f"part{place}") for place, each in enumerate(columns)]
    wide = events.groupBy(DATE, STREAM).agg(*parts)
    found = sf.explode(sf.array(*(f"part{place}" for place in range(len(columns)))))
    long = wide.select(DATE, STREAM, found.alias("part")).select(DATE, STREAM, "part.*")
    return long.where(sf.col("values") > 0).select(*COLUMNS)


def _part(column: AttributeColumn) -> Column:
    """The sketches of one column."""
    name = f"`{column.column}`"
    kind: PartKind = "number"
    if column.kind in ("truth", "text"):
        kind = "truth" if column.kind == "truth" else "text"
    aggregates = _EMPTY | dict(_of_kind(kind, name))
    fields = [sf.lit(column.attribute).alias("attribute"), sf.lit(kind).alias("kind")]
    fields.append(sf.expr(f"count({name})").alias("values"))
    fields += [sf.expr(sql).alias(field) for field, sql in aggregates.items()]
    return sf.struct(*fields)


def _of_kind(kind: PartKind, name: str) -> Iterator[tuple[str, str]]:
    """The aggregates for a kind of values, in SQL."""
    if kind == "truth":
        yield "true", f"count_if({name})"
        return
    if kind == "text":
        rank = f"CAST({_text_key(name)} AS DOUBLE)"
        yield "topTexts", _top(name)
        yield "distinct", _distinct(f"xxhash64({name})", name)
    else:
        number = f"CAST({name} AS DOUBLE)"
        # Normalize -0.0 to 0.0.
        rank = f"CASE WHEN NOT isnan({number}) THEN {number} + 0.0D END"
        yield "nan", f"count_if(isnan({number}))"
        yield "topNumbers", _top(rank)
        yield "distinct", _distinct(f"xxhash64({rank})", rank)
    yield "minimum", f"min({rank})"
    yield "maximum", f"max({rank})"
    yield "quantiles", f"kll_sketch_agg_double({rank}, {KLL_K})"


def _distinct(hashed: str, value: str) -> str:
    return f"hll_sketch_agg(CASE WHEN ({value}) IS NOT NULL THEN {hashed} END, {HLL_LOG_K})"


def _top(value: str) -> str:
    """Exclude nulls, which the aggregate would count as an item."""
    return f"approx_top_k_accumulate({value}, {TRACKED}) FILTER (WHERE ({value}) IS NOT NULL)"


def _text_key(name: str) -> str:
    first = f"hex(substring(encode({name}, 'utf-8'), 1, {KEY_BYTES}))"
    return f"conv(rpad({first}, {2 * KEY_BYTES}, '0'), 16, 10)"


#: Empty aggregates for kinds that do not have them: mergeable sketches of no values.
_EMPTY: Final = {
    "true": "CAST(0 AS BIGINT)",
    "nan": "CAST(0 AS BIGINT)",
    "minimum": "CAST(NULL AS DOUBLE)",
    "maximum": "CAST(NULL AS DOUBLE)",
    "quantiles": f"kll_sketch_agg_double(CAST(NULL AS DOUBLE), {KLL_K})",
    "distinct": f"hll_sketch_agg(CAST(NULL AS BIGINT), {HLL_LOG_K})",
    "topNumbers": _top("CAST(NULL AS DOUBLE)"),
    "topTexts": _top("CAST(NULL AS STRING)"),
}
COLUMNS: Final = (DATE, STREAM, "attribute", "kind", "values", *_EMPTY)


def merged(parts: DataFrame, by: Sequence[str]) -> DataFrame:
    """Merge parts of the same attribute and kind, grouped by `by`."""
    tops = ("topNumbers", "topTexts")
    return parts.groupBy(*by, "attribute", "kind").agg(
        *(sf.sum(name).alias(name) for name in ("values", "true", "nan")),
        sf.min("minimum").alias("minimum"),
        sf.max("maximum").alias("maximum"),
        sf.kll_merge_agg_double("quantiles", KLL_K).alias("quantiles"),
        sf.hll_union_agg("distinct").alias("distinct"),
        *(sf.expr(f"approx_top_k_combine({top}, {TRACKED})").alias(top) for top in tops),
    )
