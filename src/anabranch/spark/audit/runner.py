"""An audit: three tables in, findings out.

    found = audit(spark, published, subscriptions, deliveries)
    found.findings.show()
    found.report().counts          # {"lost": 0, "duplicate": 0, …}

The tables are described in `tables`: data frames, or paths of Parquet files. What is expected is
what the broker's own filters say: every published event is matched once, with all distinct filters
at once. Events and deliveries meet in blocks of ticks (`chunks`, `blocks`, `judging`), which is the
only time that all of them are moved; what no block shows alone is found from what the blocks tell
(`ordering`). Memory is bounded by a block.

State: what the blocks told is kept in Spark until `close`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, date_trunc, lit, substring_index, timestamp_micros
from pyspark.sql.functions import max as greatest

from anabranch.model.errors import LocalError
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.audit import chunks, finding_rows, publications, tables, verdicts
from anabranch.spark.audit.filter_matches import column_matcher, json_matcher
from anabranch.spark.audit.findings import Report, read_report
from anabranch.spark.audit.promises import Place, Promises, read_episodes, read_promises
from anabranch.spark.audit.publications import Logs
from anabranch.spark.audit.tables import has_id
from anabranch.spark.audit.traces import Traces, with_optional

Batches = Iterator[pa.RecordBatch]
#: Rows, or the place of Parquet files with them.
Table = DataFrame | str | Path


class Audit:
    """What an audit found. Made by `audit`; to be closed, or used in a `with`."""

    def __init__(self, told: DataFrame, extra: list[DataFrame], promises: Promises) -> None:
        self._told = told
        self._promises = promises
        #: What is given back with it.
        self.kept = [told, *extra]
        self._rows = _findings(told, extra)

    @property
    def findings(self) -> DataFrame:
        """One row for each anomaly: kind, subscriber, subscription, stream, tick, order, time,
        hour, reason."""
        time = timestamp_micros(col("time"))
        return self._rows.select(
            "kind",
            substring_index("subscription", "#", 1).alias("subscriber"),
            "subscription",
            "stream",
            "tick",
            "order",
            time.alias("time"),
            date_trunc("hour", time).alias("hour"),
            "reason",
        )

    @property
    def counts(self) -> DataFrame:
        """How many there are, by kind, subscriber, stream and hour."""
        return self.findings.groupBy("kind", "subscriber", "stream", "hour").count()

    def report(self, examples_max: int = 5) -> Report:
        """Everything that people want to know, in one value."""
        return read_report(self._told, self.findings, self._promises, examples_max)

    def close(self) -> None:
        """Give back what is kept."""
        for frame in self.kept:
            frame.unpersist()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def audit(
    spark: SparkSession,
    published: Table,
    subscriptions: Table,
    deliveries: Table,
    *,
    withheld: Table | None = None,
    sent: Table | None = None,
    beginnings: Mapping[str, int] | None = None,
    attributes: Mapping[str, str] | None = None,
) -> Audit:
    """Hold deliveries against what was promised.

    withheld     ticks that subscribers were told not to get
    sent         what publishers sent and were told (`publications`)
    beginnings   stream → the first tick that `published` is sure to have; what was delivered from
                 before is judged by its order alone
    attributes   column of `published` → the attribute it holds, if that is not its name
    """
    holes = None if withheld is None else tables.withheld_of(_read(spark, withheld)).toArrow()
    wanted = tables.subscriptions_of(_read(spark, subscriptions)).toArrow()
    promises = read_promises(wanted, holes, beginnings or {})
    published, deliveries = _read(spark, published), _read(spark, deliveries)
    if not promises.names:
        raise LocalError("the table 'subscriptions' is empty: there is nothing to audit")
    has_names = tables.has_id(published) and tables.has_id(deliveries)
    if sent is not None and not has_names:
        needed = ", ".join(tables.ID)
        raise LocalError(f"with a table 'sent' both 'published' and 'deliveries' need {needed}")
    events = tables.published_of(published, has_names=has_names, attributes=attributes)
    delivered = tables.delivered_of(deliveries, has_names=has_names)
    told = _told(events, delivered, promises, has_names=has_names)
    told = told.persist(StorageLevel.MEMORY_AND_DISK)
    extra = _between_blocks(told, events.frame, delivered, has_names=has_names)
    if sent is not None:
        known = publications.sent_of(_read(spark, sent))
        extra.append(publications.never_logged(known, events.frame, promises.beginnings))
        extra.append(publications.never_sent(known, events.frame))
    return Audit(told, _with_rows(extra), promises)


def _read(spark: SparkSession, table: Table) -> DataFrame:
    return spark.read.parquet(str(table)) if isinstance(table, str | Path) else table


def _told(
    events: tables.Published, delivered: DataFrame, promises: Promises, *, has_names: bool
) -> DataFrame:
    """What the blocks tell."""
    packed = events.frame.mapInArrow(_packing_events(promises, events.columns), chunks.SCHEMA)
    brought = delivered.mapInArrow(_packing_deliveries(promises), chunks.SCHEMA)
    together = packed.unionAll(brought).repartition("stream", "block")
    ordered = together.sortWithinPartitions("stream", "block", "kind")
    return ordered.mapInArrow(_judging(promises, has_names), finding_rows.SCHEMA)


def _packing_events(
    promises: Promises, columns: tuple[AttributeColumn, ...] | None
) -> Callable[[Batches], Batches]:
    filters = promises.filters

    def pack(batches: Batches) -> Batches:
        match = json_matcher(filters) if columns is None else column_matcher(filters, columns)
        return chunks.event_chunks(batches, match)

    return pack


def _packing_deliveries(promises: Promises) -> Callable[[Batches], Batches]:
    names = promises.names
    return lambda batches: chunks.delivery_chunks(batches, names)


def _judging(promises: Promises, has_names: bool) -> Callable[[Batches], Batches]:
    return lambda batches: verdicts.judged(batches, promises, has_names=has_names)


def _between_blocks(
    told: DataFrame, events: DataFrame, delivered: DataFrame, *, has_names: bool
) -> list[DataFrame]:
    """Findings that no block shows alone; those that there may be."""
    spans = verdicts.troubled_spans(told)
    if not has_names:
        return [verdicts.reordered_between_blocks(delivered, spans)] if _any(spans)[0] else []
    lines, names = verdicts.troubled_lines(told), verdicts.suspect_names(told)
    is_span, is_line, is_name = _any(spans, lines, names)
    extra = [verdicts.reordered_between_blocks(delivered, spans)] if is_span else []
    if is_line:
        twice = verdicts.logged_twice(events, lines)
        extra += [twice, verdicts.logged_out_of_order(events, lines)]
        names = names.unionAll(twice.select("name")).distinct()
    if is_line or is_name:
        whose = told.where(col("kind") == finding_rows.SPAN).select("subscription").distinct()
        extra.append(verdicts.delivered_twice(delivered, names, whose))
    return extra


def _any(*frames: DataFrame) -> list[bool]:
    """Of each frame, whether it has a row; with one question to Spark."""
    first = [frame.limit(1).select(lit(number)) for number, frame in enumerate(frames)]
    found = {row[0] for row in reduce(DataFrame.unionAll, first).collect()}
    return [number in found for number in range(len(frames))]


def _with_rows(frames: list[DataFrame]) -> list[DataFrame]:
    """Those that have a row, computed once and kept."""
    if not frames:
        return []
    kept = [frame.persist(StorageLevel.MEMORY_AND_DISK) for frame in frames]
    found = _any(*kept)
    for frame in (frame for frame, has_rows in zip(kept, found, strict=True) if not has_rows):
        frame.unpersist()
    return [frame for frame, has_rows in zip(kept, found, strict=True) if has_rows]


def _findings(told: DataFrame, extra: list[DataFrame]) -> DataFrame:
    """All findings, each once; what came twice is not out of order as well."""
    own = told.where(col("kind").isin(*finding_rows.KINDS))
    if not extra:
        return own
    every = reduce(DataFrame.unionByName, extra, own).dropDuplicates([*verdicts.SAME])
    keys = ["subscription", "stream", "tick", "order"]
    again = every.where(col("kind") == finding_rows.DUPLICATE).select(*keys)
    moved = every.where(col("kind") == finding_rows.REORDERED).join(again, keys, "left_anti")
    return every.where(col("kind") != finding_rows.REORDERED).unionByName(moved)


# From traces and logs to an audit, with what one should know about its verdict.
#
#
# Traces say what clients were told, `published` says what is logged: from the states of brokers
# (`logged`), from an archive, or from the network itself (`archived`).
#
# The network may run meanwhile. What a client was told is on disk before that, and what it
# publishes is in its trace before that is sent. So what was told is taken from the traces before
# the logs are read, and what was published after: nobody is blamed for what happened in between.
#
# This module keeps no state.


#: Tables that a directory of Parquet files may have, beside those that it must have.
_REQUIRED = ("published", "subscriptions", "deliveries")
_OPTIONAL = ("withheld", "sent")


def is_prepared(directory: Path) -> bool:
    """Whether a directory has the tables of an audit."""
    return all((directory / name).is_dir() for name in _REQUIRED)


def audit_prepared(
    spark: SparkSession, directory: Path, published: Logs | None = None
) -> tuple[Audit, list[str]]:
    """Audit the tables in a directory."""
    more = {name: directory / name for name in _OPTIONAL if (directory / name).is_dir()}
    logs = published or Logs(spark.read.parquet(str(directory / "published")), {})
    tables = (logs.published, directory / "subscriptions", directory / "deliveries")
    found = audit(
        spark,
        *tables,
        withheld=more.get("withheld"),
        sent=more.get("sent"),
        beginnings=logs.beginnings,
        attributes=logs.attributes,
    )
    return found, _notes_on_beginnings(logs.beginnings)


def audit_traces(
    spark: SparkSession,
    paths: Sequence[Path],
    read_logs: Callable[[], Logs],
    *,
    complete: bool = False,
) -> tuple[Audit, list[str]]:
    """Audit what clients wrote down. `complete`: what has not come never comes."""
    traces = Traces(spark, paths)
    episodes = read_episodes(traces.told())
    if not episodes.every:
        raise LocalError("no trace tells of a subscription: there is nothing to audit")
    logs = read_logs()
    # All of it is asked for several times; and the logs have to be read before the second look.
    logged = logs.published.persist(StorageLevel.MEMORY_AND_DISK)
    logged.count()
    sent = Traces(spark, paths).sent(traces).persist(StorageLevel.MEMORY_AND_DISK)
    deliveries = traces.deliveries().persist(StorageLevel.MEMORY_AND_DISK)
    published, has_names = logged, has_id(logged)
    if has_names and not sent.where("optional").isEmpty():
        published = with_optional(logged, sent, deliveries)
        published = published.persist(StorageLevel.MEMORY_AND_DISK)
    wanted = episodes.subscriptions(_latest(deliveries), complete=complete)
    found = audit(
        spark,
        published,
        spark.createDataFrame(wanted),
        deliveries,
        withheld=spark.createDataFrame(episodes.holes()) if episodes.withheld else None,
        sent=_due(sent, logs) if has_names else None,
        beginnings=logs.beginnings,
        attributes=logs.attributes,
    )
    found.kept += [logged, published, sent, deliveries]
    notes = _notes_on_beginnings(logs.beginnings)
    if not has_names:
        notes.append("what was published has no ids, so publishers were not judged")
    if not complete:
        notes.append("what had not come when the traces ended was not judged; --complete does that")
    return found, notes


def _due(sent: DataFrame, logs: Logs) -> DataFrame:
    """What was sent; confirmed is what has to be in these logs."""
    if logs.has_optional:
        return sent
    return sent.withColumn("confirmed", col("confirmed") & ~col("optional"))


def _latest(deliveries: DataFrame) -> dict[Place, int]:
    rows = deliveries.groupBy("subscription", "stream").agg(greatest("tick").alias("tick"))
    return {(row["subscription"], row["stream"]): row["tick"] for row in rows.collect()}


def _notes_on_beginnings(beginnings: Mapping[str, int]) -> list[str]:
    return [
        f"the log of {stream} begins with tick {first}; what came before is judged by its order"
        " alone"
        for stream, first in sorted(beginnings.items())
        if first > 1
    ]
