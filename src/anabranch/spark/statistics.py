"""Event statistics: rates, value distributions, co-occurrence, and selectivity of filters.

    from anabranch.spark.statistics import stats
    found = stats(events)                              # one StreamStatistics per stream
    stats(events, state=Path("statistics"))            # incremental: reads only new events

`events` is a data frame with attributes as columns (`attribute_columns`). The result does not need
Spark: `model.statistics` defines it, `model.selectivity` estimates filters from it, and
`write_statistics` exports it. Rules:

1. Three statistics are collected, each in one pass over the events: sketches of values, pairs of
   attributes, and events per hour.
2. With a state directory, events that were counted before are not read again, and the result covers
   all events ever counted.
3. An event belongs to the stream in its `stream` column, or to an unnamed stream without one.

Counts per day, stream and hour, and co-occurrence of attributes:

    dated = with_days(events)                    # adds DATE, STREAM and TIME
    rates = counted(dated)                       # one row per day, stream and hour

The time of an event is its timestamp, else its log time, or the column that the caller names; days
are in UTC. Events of a frame without streams belong to one unnamed stream.

Co-occurrence: each event becomes a bit mask of its attributes. Spark counts equal masks, which are
few if events have a handful of shapes, and a matrix product turns them into pair counts. The cost
is low for any number of attributes, and the counts are exact. Only the first `PAIRED_MAX`
attributes, in the given order, are paired.

Sketches of attribute values:

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

Evaluation. The result consists of plain values that can be read without Spark. Sketches of all days
are merged; a histogram has `BUCKETS` buckets, and the `TOP_KEPT` most frequent values are kept.

The state directory has counted parts, to which runs add:

    state.json                  list of generations, and the last counted tick of each stream
    00000001/sketches/          parts of one run, as Parquet; likewise rates and pairs

A run reads only ticks after the counted ones, writes the result as a new *generation*, and merges
all generations when it reports. Rules:

1. A generation exists once `state.json` names it; that file is replaced atomically. A killed run
   leaves an unnamed directory, which the next run removes.
2. An event is counted once: the generations and their last ticks change together.
3. Ticks of a stream arrive in order. An event that enters an archive after later ones of its stream
   would not be counted; the archives of this project never do that.
4. When there are `GENERATIONS_MAX` generations, they are compacted into one.
5. One run at a time: a lock on the directory, which the operating system releases.
6. The streams belong to one network. Those of another one are refused: its ticks denote other
   events.

State: all of it is in the directory; losing it costs a full recount.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from math import ceil
from operator import attrgetter, or_
from pathlib import Path
from sys import float_info
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from anabranch.model.errors import LocalError
from anabranch.model.statistics import (
    KEY_BYTES,
    AttributeStatistics,
    NumberStatistics,
    Pair,
    Period,
    StreamStatistics,
    TextStatistics,
)
from anabranch.spark.attribute_columns import (
    AttributeColumn,
    Attributes,
    attribute_columns,
    column_of,
)

_TIMES: Final = ("timestamp", "loggedAt")
#: Added columns; attributes may have any other name.
DATE: Final = "_date"
STREAM: Final = "_stream"
TIME: Final = "_time"
_HOUR_S: Final = 3_600


def with_days(events: DataFrame, time: str = "") -> DataFrame:
    if time and time not in events.columns:
        raise LocalError(f"no column {time!r}; the columns are {', '.join(events.columns)}")
    found = time or next((name for name in _TIMES if name in events.columns), "")
    moment = sf.col(f"`{found}`").cast("timestamp") if found else sf.lit(None).cast("timestamp")
    dated = events.withColumn(TIME, moment).withColumn(DATE, sf.to_date(TIME))
    stream = sf.col("stream") if "stream" in events.columns else sf.lit(None)
    return dated.withColumn(STREAM, sf.coalesce(stream.cast("string"), sf.lit("")))


def counted(dated: DataFrame) -> DataFrame:
    """DATE, STREAM, `hour` (seconds since 1970), `events`, `first` and `last` (microseconds), and
    `through`, the greatest tick."""
    seconds = sf.unix_seconds(TIME)
    hour = seconds - sf.pmod(seconds, sf.lit(_HOUR_S))
    tick = sf.col("tick") if "tick" in dated.columns else sf.lit(None)
    return dated.groupBy(DATE, STREAM, hour.alias("hour")).agg(
        sf.count(sf.lit(1)).alias("events"),
        sf.unix_micros(sf.min(TIME)).alias("first"),
        sf.unix_micros(sf.max(TIME)).alias("last"),
        sf.max(tick.cast("bigint")).alias("through"),
    )


# -- co-occurrence ---------------------------------------------------------------------------------
PAIRED_MAX: Final = 64
#: Bits per integer mask; Spark's integers are signed.
_BITS: Final = 62
SCHEMA: Final = f"{DATE} date, {STREAM} string, one string, other string, events bigint"


def paired_attributes(columns: Sequence[AttributeColumn]) -> list[str]:
    return list(dict.fromkeys(each.attribute for each in columns))[:PAIRED_MAX]


def paired(
    events: DataFrame, columns: Sequence[AttributeColumn], attributes: Sequence[str]
) -> DataFrame:
    """DATE, STREAM, `one`, `other`, `events` for each pair of attributes that occur together."""
    words = [attributes[first : first + _BITS] for first in range(0, len(attributes), _BITS)]
    shapes = [_shape(columns, names).alias(f"shape{n}") for n, names in enumerate(words)]
    grouped = events.select(DATE, STREAM, *shapes).groupBy(
        DATE, STREAM, *(f"shape{n}" for n in range(len(shapes)))
    )
    counted = grouped.agg(sf.count(sf.lit(1)).alias("events"))
    parts = counted.mapInArrow(_Pairs(tuple(attributes)), SCHEMA)
    return parts.groupBy(DATE, STREAM, "one", "other").agg(sf.sum("events").alias("events"))


def _shape(columns: Sequence[AttributeColumn], names: Sequence[str]) -> Column:
    """Bit mask of the attributes that an event has."""
    word = sf.lit(0).cast("bigint")
    for bit, name in enumerate(names):
        own = [sf.col(f"`{each.column}`").isNotNull() for each in columns if each.attribute == name]
        word = word + sf.when(reduce(or_, own), 1 << bit).otherwise(0)
    return word


class _Pairs(msgspec.Struct, frozen=True):
    """Task function: turns counts of shapes into counts of pairs."""

    attributes: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            groups: dict[tuple[object, object], list[int]] = {}
            dates, streams = batch.column(DATE).to_pylist(), batch.column(STREAM).to_pylist()
            for row, key in enumerate(zip(dates, streams, strict=True)):
                groups.setdefault(key, []).append(row)
            for (date, stream), rows in groups.items():
                yield self._counted(batch.take(pa.array(rows)), date, stream)

    def _counted(self, batch: pa.RecordBatch, date: object, stream: object) -> pa.RecordBatch:
        bits = self._bits(batch)
        weights = batch.column("events").to_numpy().astype(np.float64)
        both = (bits * weights[:, None]).T @ bits
        ones, others = np.nonzero(np.triu(both, 1))
        columns = [
            pa.array([date] * len(ones), pa.date32()),
            pa.array([stream] * len(ones), pa.string()),
            pa.array([self.attributes[n] for n in ones], pa.string()),
            pa.array([self.attributes[n] for n in others], pa.string()),
            pa.array(both[ones, others].astype(np.int64)),
        ]
        return pa.RecordBatch.from_arrays(columns, [DATE, STREAM, "one", "other", "events"])

    def _bits(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """One row per shape, one column per attribute."""
        found = np.zeros((batch.num_rows, len(self.attributes)))
        for place in range(len(self.attributes)):
            word = batch.column(f"shape{place // _BITS}").to_numpy()
            found[:, place] = (word >> (place % _BITS)) & 1
        return found


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
        yield "topTexts", _top_values(name)
        yield "distinct", _distinct(f"xxhash64({name})", name)
    else:
        number = f"CAST({name} AS DOUBLE)"
        # Normalize -0.0 to 0.0.
        rank = f"CASE WHEN NOT isnan({number}) THEN {number} + 0.0D END"
        yield "nan", f"count_if(isnan({number}))"
        yield "topNumbers", _top_values(rank)
        yield "distinct", _distinct(f"xxhash64({rank})", rank)
    yield "minimum", f"min({rank})"
    yield "maximum", f"max({rank})"
    yield "quantiles", f"kll_sketch_agg_double({rank}, {KLL_K})"


def _distinct(hashed: str, value: str) -> str:
    return f"hll_sketch_agg(CASE WHEN ({value}) IS NOT NULL THEN {hashed} END, {HLL_LOG_K})"


def _top_values(value: str) -> str:
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
    "topNumbers": _top_values("CAST(NULL AS DOUBLE)"),
    "topTexts": _top_values("CAST(NULL AS STRING)"),
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
    found: dict[str, list[Row]] = {}
    for row in frame.collect():
        found.setdefault(row[STREAM], []).append(row)
    return found


def _query(sketches: DataFrame) -> DataFrame:
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


FORMAT: Final = 1
GENERATIONS_MAX: Final = 16
_FILE: Final = "state.json"
_LOCK: Final = "lock"
_FRAMES: Final = ("sketches", "rates", "pairs")


class StateError(LocalError):
    """A directory that cannot be used."""


class StateFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `state.json`."""

    format: int = FORMAT
    generations: tuple[str, ...] = ()
    #: The last counted tick of each stream.
    through: dict[str, int] = {}
    paired: tuple[str, ...] = ()
    #: Network of the streams, if it was known.
    network: str = ""
    #: Highest generation number ever used.
    newest: int = 0


class State:
    """State directory of statistics. See the rules at the top of this module."""

    def __init__(self, directory: Path) -> None:
        # Java has its own working directory.
        self.directory = directory.absolute()
        self.known = _read(directory)

    @contextlib.contextmanager
    def locked(self, network: str = "") -> Iterator[None]:
        """Hold the lock during the block. Removes leftovers of killed runs first."""
        self.directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StateError(f"another run is using {self.directory}") from None
            self.known = _read(self.directory)
            self._check_network(network)
            self._remove_leftovers()
            yield
        finally:
            os.close(handle)

    def _check_network(self, network: str) -> None:
        known = self.known.network
        if network and known and network != known:
            raise StateError(
                f"{self.directory} holds statistics of network {known!r}, but the events belong to"
                f" {network!r}; use a separate directory per network"
            )
        self.known = msgspec.structs.replace(self.known, network=network or known)

    def _remove_leftovers(self) -> None:
        for path in self.directory.iterdir():
            if path.is_dir() and path.name.isdecimal() and path.name not in self.known.generations:
                shutil.rmtree(path)

    # -- reading --------------------------------------------------------------------------------

    def fresh(self, events: DataFrame) -> DataFrame:
        missing = {"stream", "tick"} - set(events.columns)
        if missing:
            raise StateError(
                f"the events have no {' and no '.join(sorted(missing))} column, which is needed to"
                " tell which of them were counted before; run without a state"
            )
        through = self.known.through
        if not through:
            return events
        # One condition per stream, so that Spark can prune files and directories.
        streams = [
            (sf.col("stream") == stream) & (sf.col("tick") > tick)
            for stream, tick in through.items()
        ]
        unknown = ~sf.col("stream").isin(*through) | sf.col("stream").isNull()
        return events.where(reduce(lambda one, other: one | other, streams, unknown))

    def parts(self, spark: SparkSession) -> Parts | None:
        if not self.known.generations:
            return None
        frames = [
            spark.read.parquet(
                *(str(self.directory / each / name) for each in self.known.generations)
            )
            for name in _FRAMES
        ]
        sketches, rates, pairs = frames
        return Parts(sketches, rates, pairs, self.known.paired)

    # -- writing --------------------------------------------------------------------------------

    def add(self, parts: Parts) -> None:
        """Add the parts of a run; compacts if there are many generations."""
        name = self._write(parts)
        found = parts.rates.sparkSession.read.parquet(str(self.directory / name / "rates"))
        rows = found.groupBy(STREAM).agg(sf.max("through").alias("through")).collect()
        through = {row[STREAM]: row.through for row in rows if row.through is not None}
        if not through:
            shutil.rmtree(self.directory / name)
            return
        self._replace(
            generations=(*self.known.generations, name),
            through={**self.known.through, **through},
            paired=parts.paired,
        )
        if len(self.known.generations) >= GENERATIONS_MAX:
            self._compact(parts.rates.sparkSession)

    def _compact(self, spark: SparkSession) -> None:
        whole = self.parts(spark)
        assert whole is not None
        days = merged(whole.sketches, [DATE, STREAM])
        old = self.known.generations
        name = self._write(whole._replace(sketches=days))
        self._replace(generations=(name,), through=self.known.through, paired=self.known.paired)
        for each in old:
            shutil.rmtree(self.directory / each)

    def _write(self, parts: Parts) -> str:
        name = f"{self.known.newest + 1:08d}"
        for frame, of in zip(parts[:3], _FRAMES, strict=True):
            frame.coalesce(1).write.parquet(str(self.directory / name / of))
        return name

    def _replace(
        self, *, generations: Sequence[str], through: Mapping[str, int], paired: Sequence[str]
    ) -> None:
        self.known = StateFile(
            generations=tuple(generations),
            through=dict(through),
            paired=tuple(paired),
            network=self.known.network,
            newest=int(generations[-1]),
        )
        fresh = self.directory / f"{_FILE}.new"
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(self.known))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.directory / _FILE)


def _read(directory: Path) -> StateFile:
    path = directory / _FILE
    try:
        known = msgspec.json.decode(path.read_bytes(), type=StateFile)
    except FileNotFoundError:
        names = [each.name for each in directory.iterdir()] if directory.is_dir() else []
        if not all(name.isdecimal() or name == _LOCK for name in names):
            raise StateError(f"{directory} contains something other than statistics") from None
        return StateFile()
    except (OSError, msgspec.DecodeError) as error:
        raise StateError(f"{path} cannot be read: {error}") from error
    if known.format != FORMAT:
        raise StateError(f"{path} has format {known.format}; this version reads {FORMAT}")
    return known


__all__ = ["State", "parts_of", "stats", "summarised"]


def stats(
    events: DataFrame,
    *,
    state: Path | None = None,
    attributes: Attributes = (),
    time: str = "",
    network: str = "",
) -> list[StreamStatistics]:
    """The statistics of each stream, ordered by name.

    state        directory with earlier counts, to which the new ones are added
    attributes   mapping of some columns to attributes, or the list of all attribute columns
    time         column with the event time
    network      network of the events; a state of another network is refused
    """
    events, wanted = _with_integers(events, attributes)
    if state is None:
        return summarised(parts_of(events, wanted, time))
    kept = State(state)
    with kept.locked(network):
        before = kept.known.paired
        kept.add(parts_of(kept.fresh(events), wanted, time, before))
        known = kept.parts(events.sparkSession)
        return [] if known is None else summarised(known)


def _with_integers(
    events: DataFrame, attributes: Attributes
) -> tuple[DataFrame, list[AttributeColumn]]:
    """The attribute columns, with timestamps as columns of integers. A timestamp counts only if the
    caller names it: a frame often has times that are not attributes.
    """
    wanted: list[AttributeColumn] = []
    times: dict[str, Column] = {}
    for each in attribute_columns(events.schema, attributes):
        if not each.is_time:
            wanted.append(each)
        elif (not isinstance(attributes, Mapping) and attributes) or each.column in attributes:
            name = f"_time{len(times)}"
            times[name] = column_of(each)
            wanted.append(AttributeColumn(name, each.attribute, each.kind))
    return (events.withColumns(times) if times else events), wanted


def parts_of(
    events: DataFrame, columns: list[AttributeColumn], time: str = "", before: tuple[str, ...] = ()
) -> Parts:
    """Count events; pairs include attributes that were paired before."""
    if not columns and not {"stream", "tick"} <= {*events.columns}:
        raise LocalError("the events have no attribute column")
    dated = with_days(events, time)
    available = {each.attribute for each in columns}
    attributes = paired_attributes([*(AttributeColumn("", n, "text") for n in before), *columns])
    present = [name for name in attributes if name in available]
    return Parts(
        sketched(dated, columns), counted(dated), paired(dated, columns, present), tuple(attributes)
    )
