"""How fast a pattern is detected in a history on disk.

The history is Parquet: a thousand symbols, ten thousand events a second, prices evenly spread. The
pattern wants a low price and then a high one of the same symbol; how low and how high says which
share of events some part wants, and that is what a backtest takes. Rules:

1. The history is written before, which is not measured.
2. Windows are such that about as many matches are found as there are low prices.
3. Every finding is made, and dropped by Spark. Before that, matches are counted, and as many must
   be found as a join of the low with the high prices has.
4. Times are wall time of the quickest of several passes, planning included. One pass before, in
   which Java and Python warm up, does not count.

This module keeps no state.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.cli.bench.spark_report import DetectFigures, SparkSize
from anabranch.cli.bench.verify import WrongAnswerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The share of events, in percent, that some part wants; half of it low, half high.
SHARES = (4, 20, 50)
_SYMBOLS = 1_000
#: Between two events.
_STEP_US = 100
_BEGIN_US = 1_767_225_600_000_000


def measure_detection(spark: "SparkSession", size: SparkSize, folder: Path) -> list[DetectFigures]:
    """The figures for every share."""
    place = str(folder / "history")
    _history(spark, size.events).write.parquet(place)
    frame = spark.read.parquet(place)
    return [_measured(frame, size, share) for share in SHARES]


def _history(spark: "SparkSession", events: int) -> "DataFrame":
    return spark.range(events).selectExpr(
        "concat('edge-', id % 2) AS stream",
        "id AS tick",
        f"timestamp_micros({_BEGIN_US} + id * {_STEP_US}) AS timestamp",
        f"concat('S', pmod(xxhash64(id, 1), {_SYMBOLS})) AS symbol",
        "pmod(xxhash64(id, 2), 10000) / 100.0D AS price",
        "pmod(xxhash64(id, 3), 1000) AS volume",
    )


def _measured(frame: "DataFrame", size: SparkSize, share: int) -> DetectFigures:
    from anabranch.spark.detect import detect  # noqa: PLC0415 - needs Spark

    low, high = share / 2, 100 - share / 2
    # So many high prices of a symbol come in a second.
    rate = 1e6 / _STEP_US / _SYMBOLS * share / 200
    window_ms = round(1_000 / rate)
    pattern = (
        f"low:{{price < {low}}} THEN high:{{price >= {high}}}"
        f" WHERE low.symbol = high.symbol WITHIN {window_ms} ms"
    )
    found = detect(frame, pattern, pattern_id="bench")
    matches, right = found.count(), _joined(frame, low, high, window_ms)
    if matches != right:
        raise WrongAnswerError(f"{pattern}: {matches:,} matches of {right:,}")
    _used(found)
    seconds = min(_used(found) for _ in range(size.passes))
    return DetectFigures(
        pattern=pattern,
        wanted_percent=share,
        matches=matches,
        seconds=seconds,
        events_per_s=size.events / seconds,
    )


def _joined(frame: "DataFrame", low: float, high: float, window_ms: int) -> int:
    """How many pairs a join has; no two events are at the same time."""
    one = frame.where(f"price < {low}").selectExpr("symbol", "timestamp AS first")
    other = frame.where(f"price >= {high}").selectExpr("symbol", "timestamp AS last")
    within = f"last > first AND last <= first + INTERVAL {window_ms / 1_000} SECOND"
    return one.join(other, "symbol").where(within).count()


def _used(frame: "DataFrame") -> float:
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin
