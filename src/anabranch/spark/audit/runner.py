"""Audit runs: compares published events, subscriptions and deliveries, and returns findings.

    found = audit(spark, published, subscriptions, deliveries)
    found.findings.show()
    found.report().counts          # {"lost": 0, "duplicate": 0, …}

`inputs` describes the input tables: data frames, or paths of Parquet files. Expected deliveries
follow from the brokers' filters: each published event is matched once against all distinct filters.
Events and deliveries are joined in blocks of ticks (`blocks`, `verdicts`); this is the only full
shuffle. Findings across blocks are derived from the summaries of blocks (`verdicts`). Memory is
bounded by the size of a block.

An audit can also start from client traces and broker logs. Traces record what clients were told;
the published events come from the states of brokers, an archive, or the network itself (`inputs`).
The network may be running meanwhile. A client writes to its trace before it acts on a notification,
and before it sends an event. The audit therefore reads notifications from the traces before it
reads the logs, and published events after: events in between cause no false findings.

Matching. A process builds the index of all filters once and searches whole batches: attribute
columns are searched in place (`task_matcher`), JSON events are decoded in bulk first. Filter
numbers are those of `promises`.

State: Spark caches the summaries of blocks until `close`; the index of the last audit in this
process, which is safe to lose.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, date_trunc, lit, substring_index, timestamp_micros
from pyspark.sql.functions import max as greatest

from anabranch.matching.index import MatchIndex
from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.audit import blocks, inputs, verdicts
from anabranch.spark.audit.blocks import Match, Matched
from anabranch.spark.audit.findings import Report, read_report
from anabranch.spark.audit.inputs import Logs, Traces, has_id, with_optional
from anabranch.spark.audit.promises import Place, Promises, read_episodes, read_promises
from anabranch.spark.task_matcher import ColumnEvents, Matcher

_decoder = msgspec.json.Decoder(list[dict[str, Value]])


def json_matcher(filters: tuple[str, ...]) -> Match:
    """Matcher for batches with events in a column `json`."""
    index = _index_of(filters)
    return lambda batch: _match_json(index, batch["json"])


def column_matcher(filters: tuple[str, ...], columns: Sequence[AttributeColumn]) -> Match:
    """Matcher for batches with one column per attribute."""
    matcher = _mapped(filters)

    def match(batch: pa.RecordBatch) -> Matched:
        owners, ends = matcher.match(ColumnEvents(batch, columns, matcher.attributes))
        return ends, matcher.named(owners).to_numpy().astype(np.int32)

    return match


@lru_cache(maxsize=1)
def _index_of(filters: tuple[str, ...]) -> MatchIndex:
    index = MatchIndex()
    index.add_many(enumerate(filters))
    return index


@lru_cache(maxsize=1)
def _mapped(filters: tuple[str, ...]) -> Matcher:
    """The index in its memory-mapped form, which supports columns."""
    with tempfile.TemporaryDirectory(prefix="anabranch-audit-") as directory:
        path = Path(directory) / "filters"
        _index_of(filters).save(path)
        # The mapping stays valid after the files are deleted.
        return Matcher(path)


def _match_json(index: MatchIndex, texts: pa.Array) -> Matched:
    is_valid = texts.is_valid().to_numpy(zero_copy_only=False)
    found = index.match_batch(_decoded(texts.drop_null().to_pylist()))
    counts = np.zeros(len(texts), np.int64)
    counts[is_valid] = np.diff(found.offsets)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    numbers: NDArray[np.int32] = np.asarray(found.ids, np.int64).astype(np.int32)
    return offsets, numbers


def _decoded(texts: list[str]) -> list[dict[str, Value]]:
    try:
        return _decoder.decode(f"[{','.join(texts)}]")
    except msgspec.DecodeError:
        for text in texts:
            _check(text)
        raise


def _check(text: str) -> None:
    try:
        msgspec.json.decode(text, type=dict[str, Value])
    except msgspec.DecodeError as error:
        raise LocalError(f"{text[:80]!r} is not a JSON object of attributes: {error}") from error


Batches = Iterator[pa.RecordBatch]
#: A data frame, or the path of Parquet files.
Table = DataFrame | str | Path


class Audit:
    """The result of `audit`. Close it, or use it in a `with` statement."""

    def __init__(self, judged: DataFrame, extra: list[DataFrame], promises: Promises) -> None:
        self._judged_blocks = judged
        self._promises = promises
        #: Cached frames, released by `close`.
        self.kept = [judged, *extra]
        self._rows = _findings(judged, extra)

    @property
    def findings(self) -> DataFrame:
        """One row per anomaly: kind, subscriber, subscription, stream, tick, order, time, hour,
        reason."""
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
        """Number of anomalies by kind, subscriber, stream and hour."""
        return self.findings.groupBy("kind", "subscriber", "stream", "hour").count()

    def report(self, examples_max: int = 5) -> Report:
        """Summary for people, as one value."""
        return read_report(self._judged_blocks, self.findings, self._promises, examples_max)

    def close(self) -> None:
        """Release cached frames."""
        for frame in self.kept:
            frame.unpersist()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
    """Check deliveries against what was promised.

    withheld     ticks that were reported to subscribers as withheld
    sent         events that publishers sent, and their confirmations (`inputs`)
    beginnings   stream → the first tick that `published` is sure to contain; earlier deliveries are
                 checked only for their order
    attributes   column of `published` → its attribute, if the names differ
    """
    holes = None if withheld is None else inputs.withheld_of(_read(spark, withheld)).toArrow()
    wanted = inputs.subscriptions_of(_read(spark, subscriptions)).toArrow()
    promises = read_promises(wanted, holes, beginnings or {})
    published, deliveries = _read(spark, published), _read(spark, deliveries)
    if not promises.names:
        raise LocalError("the table 'subscriptions' is empty: nothing to audit")
    has_names = inputs.has_id(published) and inputs.has_id(deliveries)
    if sent is not None and not has_names:
        needed = ", ".join(inputs.ID)
        raise LocalError(f"a table 'sent' requires {needed} in 'published' and 'deliveries'")
    events = inputs.published_of(published, has_names=has_names, attributes=attributes)
    delivered = inputs.delivered_of(deliveries, has_names=has_names)
    judged = _judged_blocks(events, delivered, promises, has_names=has_names)
    judged = judged.persist(StorageLevel.MEMORY_AND_DISK)
    extra = _between_blocks(judged, events.frame, delivered, has_names=has_names)
    if sent is not None:
        known = inputs.sent_of(_read(spark, sent))
        extra.append(inputs.never_logged(known, events.frame, promises.beginnings))
        extra.append(inputs.never_sent(known, events.frame))
    return Audit(judged, _with_rows(extra), promises)


def _read(spark: SparkSession, table: Table) -> DataFrame:
    return spark.read.parquet(str(table)) if isinstance(table, str | Path) else table


def _judged_blocks(
    events: inputs.Published, delivered: DataFrame, promises: Promises, *, has_names: bool
) -> DataFrame:
    """Findings and summaries of all blocks."""
    packed = events.frame.mapInArrow(_event_packer(promises, events.columns), blocks.SCHEMA)
    delivery_chunks = delivered.mapInArrow(_delivery_packer(promises), blocks.SCHEMA)
    together = packed.unionAll(delivery_chunks).repartition("stream", "block")
    ordered = together.sortWithinPartitions("stream", "block", "kind")
    return ordered.mapInArrow(_judge_function(promises, has_names), verdicts.SCHEMA)


def _event_packer(
    promises: Promises, columns: tuple[AttributeColumn, ...] | None
) -> Callable[[Batches], Batches]:
    filters = promises.filters

    def pack(batches: Batches) -> Batches:
        match = json_matcher(filters) if columns is None else column_matcher(filters, columns)
        return blocks.event_chunks(batches, match)

    return pack


def _delivery_packer(promises: Promises) -> Callable[[Batches], Batches]:
    names = promises.names
    return lambda batches: blocks.delivery_chunks(batches, names)


def _judge_function(promises: Promises, has_names: bool) -> Callable[[Batches], Batches]:
    return lambda batches: verdicts.judged(batches, promises, has_names=has_names)


def _between_blocks(
    judged: DataFrame, events: DataFrame, delivered: DataFrame, *, has_names: bool
) -> list[DataFrame]:
    """Findings across blocks; only those that are possible are computed."""
    spans = verdicts.troubled_spans(judged)
    if not has_names:
        return [verdicts.reordered_between_blocks(delivered, spans)] if _any(spans)[0] else []
    lines, names = verdicts.troubled_lines(judged), verdicts.suspect_names(judged)
    is_span, is_line, is_name = _any(spans, lines, names)
    extra = [verdicts.reordered_between_blocks(delivered, spans)] if is_span else []
    if is_line:
        twice = verdicts.logged_twice(events, lines)
        extra += [twice, verdicts.logged_out_of_order(events, lines)]
        names = names.unionAll(twice.select("name")).distinct()
    if is_line or is_name:
        whose = judged.where(col("kind") == verdicts.SPAN).select("subscription").distinct()
        extra.append(verdicts.delivered_twice(delivered, names, whose))
    return extra


def _any(*frames: DataFrame) -> list[bool]:
    """Whether each frame has a row, in a single Spark job."""
    first = [frame.limit(1).select(lit(number)) for number, frame in enumerate(frames)]
    found = {row[0] for row in reduce(DataFrame.unionAll, first).collect()}
    return [number in found for number in range(len(frames))]


def _with_rows(frames: list[DataFrame]) -> list[DataFrame]:
    """The frames that have a row, computed once and cached."""
    if not frames:
        return []
    kept = [frame.persist(StorageLevel.MEMORY_AND_DISK) for frame in frames]
    found = _any(*kept)
    for frame in (frame for frame, has_rows in zip(kept, found, strict=True) if not has_rows):
        frame.unpersist()
    return [frame for frame, has_rows in zip(kept, found, strict=True) if has_rows]


def _findings(judged: DataFrame, extra: list[DataFrame]) -> DataFrame:
    """All findings, each once; a duplicate delivery is not also reported as reordered."""
    own = judged.where(col("kind").isin(*verdicts.KINDS))
    if not extra:
        return own
    merged = reduce(DataFrame.unionByName, extra, own).dropDuplicates([*verdicts.SAME])
    keys = ["subscription", "stream", "tick", "order"]
    again = merged.where(col("kind") == verdicts.DUPLICATE).select(*keys)
    moved = merged.where(col("kind") == verdicts.REORDERED).join(again, keys, "left_anti")
    return merged.where(col("kind") != verdicts.REORDERED).unionByName(moved)


# -- traces and logs -------------------------------------------------------------------------------
#: Tables that a directory of Parquet files must have, and those that it may have.
_REQUIRED = ("published", "subscriptions", "deliveries")
_OPTIONAL = ("withheld", "sent")


def is_prepared(directory: Path) -> bool:
    """Whether a directory has the tables of an audit."""
    return all((directory / name).is_dir() for name in _REQUIRED)


def audit_prepared(
    spark: SparkSession, directory: Path, published: Logs | None = None
) -> tuple[Audit, list[str]]:
    """Audit the tables in a directory. Returns the audit, and notes on its verdict."""
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
    """Audit client traces. With `complete`, deliveries that are still missing count as lost."""
    traces = Traces(spark, paths)
    episodes = read_episodes(traces.told())
    if not episodes.every:
        raise LocalError("the traces contain no subscription: nothing to audit")
    logs = read_logs()
    # All frames are used several times, and the logs must be read before the second look at traces.
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
        notes.append("published events have no ids, so publishers were not checked")
    if not complete:
        notes.append("deliveries after the end of the traces were not checked; use --complete")
    return found, notes


def _due(sent: DataFrame, logs: Logs) -> DataFrame:
    """The sent events; `confirmed` is limited to those that these logs must contain."""
    if logs.has_optional:
        return sent
    return sent.withColumn("confirmed", col("confirmed") & ~col("optional"))


def _latest(deliveries: DataFrame) -> dict[Place, int]:
    rows = deliveries.groupBy("subscription", "stream").agg(greatest("tick").alias("tick"))
    return {(row["subscription"], row["stream"]): row["tick"] for row in rows.collect()}


def _notes_on_beginnings(beginnings: Mapping[str, int]) -> list[str]:
    return [
        f"the log of {stream} starts at tick {first}; earlier deliveries are checked only for"
        " their order"
        for stream, first in sorted(beginnings.items())
        if first > 1
    ]
