"""How fast a stream becomes a data frame, and an archive, beside reading the same rows as Parquet.

    broker (a process) ── tasks of Spark on this machine

Rules:

1. The log is written by the store itself before the broker starts; that is not measured.
2. A frame is used by Spark's own sink that drops every row, so that all columns of all rows are
   made. Then it is counted once, unmeasured: as many rows must come as match.
3. Times are wall time of the quickest of several passes, planning included. One pass before, in
   which Java and Python warm up, does not count.
4. The Parquet that is compared was written by Spark from the same frame.

This module keeps no state.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.cli.bench.spark_report import ArchiveFigures, ReadFigures, SparkSize
from anabranch.cli.bench.verify import WrongAnswerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: One of a hundred symbols.
FILTER = "symbol = 'S7'"
_FEW = "tick, symbol, price, volume"
_FEW_TYPES = "tick BIGINT, symbol STRING, price DOUBLE, volume BIGINT"


class Reading:
    """Reads one stream in several ways. See the rules at the top of this module."""

    def __init__(self, spark: "SparkSession", broker: str, size: SparkSize, folder: Path) -> None:
        self._spark = spark
        self._broker = broker
        self._size = size
        self._folder = folder

    def reads(self, advance: Callable[[], None]) -> list[ReadFigures]:
        """Every way; `advance` is called after each."""
        found = []
        for measure in (
            self._whole,
            self._projected,
            self._filtered,
            self._parquet,
            self._parquet_projected,
            self._parquet_filtered,
        ):
            found.append(measure())
            advance()
        return found

    def _load(self, types: str = "", **options: str) -> "DataFrame":
        reader = self._spark.read.format("anabranch").option("brokers", self._broker)
        reader = reader.options(**options)
        return (reader.schema(types) if types else reader).load()

    def _whole(self) -> ReadFigures:
        return self._measured("network", self._load(), self._size.events)

    def _projected(self) -> ReadFigures:
        return self._measured("network", self._load(_FEW_TYPES), self._size.events, columns=_FEW)

    def _filtered(self) -> ReadFigures:
        frame = self._load(_FEW_TYPES, subscription=FILTER)
        rows = self._size.events // 100
        return self._measured("network", frame, rows, columns=_FEW, filter=FILTER)

    def _parquet(self) -> ReadFigures:
        self._load().write.parquet(self._place)
        return self._measured("Parquet", self._as_parquet(), self._size.events)

    def _parquet_projected(self) -> ReadFigures:
        frame = self._as_parquet().select(_FEW.split(", "))
        return self._measured("Parquet", frame, self._size.events, columns=_FEW)

    def _parquet_filtered(self) -> ReadFigures:
        frame = self._as_parquet().where(FILTER).select(_FEW.split(", "))
        rows = self._size.events // 100
        return self._measured("Parquet", frame, rows, columns=_FEW, filter=FILTER)

    @property
    def _place(self) -> str:
        return str(self._folder / "parquet")

    def _as_parquet(self) -> "DataFrame":
        return self._spark.read.parquet(self._place)

    def _measured(
        self, what: str, frame: "DataFrame", rows: int, *, columns: str = "all", filter: str = ""
    ) -> ReadFigures:
        found = frame.count()
        if found != rows:
            raise WrongAnswerError(f"{what}, {filter or 'no filter'}: {found:,} rows of {rows:,}")
        _used(frame)
        seconds = min(_used(frame) for _ in range(self._size.passes))
        return ReadFigures(
            what=what,
            filter=filter,
            columns=columns,
            rows=rows,
            seconds=seconds,
            ticks_per_s=self._size.events / seconds,
        )

    def archive(self) -> ArchiveFigures:
        """The stream into an archive, each pass into a new one."""
        from anabranch.spark.archive.writing import archive  # noqa: PLC0415 - needs Spark
        from anabranch.spark.options import read_options  # noqa: PLC0415

        options = read_options({"brokers": self._broker})
        reports = []
        for number in range(self._size.passes + 1):
            report = archive(self._spark, self._folder / f"archive-{number}", options)
            if report.rows != self._size.events:
                rows = f"{report.rows:,} rows of {self._size.events:,}"
                raise WrongAnswerError(f"archive: {rows}")
            reports.append(report)
        seconds = min(report.seconds for report in reports[1:])
        frame = self._spark.read.option("recursiveFileLookup", "true").option(
            "pathGlobFilter", "*.parquet"
        )
        again = self._measured(
            "archive", frame.parquet(str(self._folder / "archive-0")), self._size.events
        )
        return ArchiveFigures(
            rows=self._size.events,
            seconds=seconds,
            rows_per_s=self._size.events / seconds,
            read_seconds=again.seconds,
            read_rows_per_s=again.ticks_per_s,
        )


def _used(frame: "DataFrame") -> float:
    """Make every row; the seconds that took."""
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin
