"""Bulk matching of events against subscriptions: matches, match counts and selectivity.

    match(events, "subscriptions.jsonl")            # one row per match: event, subscription
    match_lists(events, subscriptions)              # one row per event: its subscriptions
    match_counts(events, subscriptions)             # one row per subscription: number of matches
    match_sizes(events, subscriptions)              # one row per event: number of matches

`events` is a data frame with attributes as columns or, with `encoded`, with a column of events in
their published encoding. `subscriptions` is any input of `subscriptions.prepared`. The index is the
brokers' matching index, in a snapshot that the tasks of a machine share. Rules:

1. An event matches exactly as it would at a broker that received the same attributes. A column has
   one type; an attribute with values of several types needs one column per type (`attributes`), or
   encoded events.
2. Only the key columns and the columns that filters name are read.
3. An attribute that filters name but that has no column is absent from every event; see
   `missing_attributes`.
4. Counting happens inside the tasks and is the efficient way for many subscriptions: a match only
   increments a counter. Returning matches as rows costs as much as Spark needs for that many rows.

State: none, except the snapshot that `prepared` may write.
"""

import atexit
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql import functions as sf

from anabranch.model.errors import LocalError
from anabranch.spark.attribute_columns import (
    AttributeColumn,
    Attributes,
    attribute_columns,
    column_of,
)
from anabranch.spark.subscriptions import Source, Subscriptions, prepared
from anabranch.spark.task_matcher import Matcher, Reader, column_reader, encoded_reader, matcher_of

#: Columns that identify an event, in order of preference.
_KEYS: Final = (("stream", "tick"), ("publisher", "incarnation", "seq"))
#: Pseudo subscription numbers: number of events, of events without a match, CPU nanoseconds of
#: matching, decisions that were left to Python, and CPU nanoseconds of the Python processes as a
#: whole while tasks ran.
EVENTS: Final = -1
UNMATCHED: Final = -2
CPU_NS: Final = -3
DECIDED: Final = -4
TASKS_NS: Final = -5

#: Enough tasks per core that no core is idle for long when tasks end at different times.
_TASKS_PER_CORE: Final = 3
#: A Spark Connect server does not report its number of cores.
_CORES_REMOTE: Final = 64

#: Approximate number of matches held at once; and events per step, initial and maximum.
_MATCHES_AT_ONCE: Final = 1 << 20
_ROWS_FIRST: Final = 64
_ROWS_MAX: Final = 16_384

_Answer = Literal["pairs", "lists", "sizes", "counts"]


def match(
    events: DataFrame,
    subscriptions: Source | Subscriptions,
    *,
    keys: Sequence[str] = (),
    attributes: Attributes = (),
    encoded: str = "",
) -> DataFrame:
    """One row per match: the key columns of the event, and `subscription`.

    keys         columns that identify the event (default: stream and tick, else the event id)
    attributes   mapping of some columns to attributes, or the list of all attribute columns
    encoded      column with encoded events, instead of attributes as columns
    """
    return _Query(events, prepared(subscriptions), keys, attributes, encoded).answer("pairs")


def match_lists(
    events: DataFrame,
    subscriptions: Source | Subscriptions,
    *,
    keys: Sequence[str] = (),
    attributes: Attributes = (),
    encoded: str = "",
) -> DataFrame:
    """One row per event: its key columns, and `subscriptions`, an array."""
    return _Query(events, prepared(subscriptions), keys, attributes, encoded).answer("lists")


def match_sizes(
    events: DataFrame,
    subscriptions: Source | Subscriptions,
    *,
    keys: Sequence[str] = (),
    attributes: Attributes = (),
    encoded: str = "",
) -> DataFrame:
    """One row per event: its key columns, and `matches`, the number of matches."""
    return _Query(events, prepared(subscriptions), keys, attributes, encoded).answer("sizes")


def match_counts(
    events: DataFrame,
    subscriptions: Source | Subscriptions,
    *,
    attributes: Attributes = (),
    encoded: str = "",
) -> DataFrame:
    """One row per subscription: `subscription`, `matches`, and `share` of all events."""
    ready = prepared(subscriptions)
    tallies = tallied(events, ready, attributes=attributes, encoded=encoded)
    total = tallies.where(sf.col("number") == EVENTS).select(sf.col("matches").alias("events"))
    numbers = events.sparkSession.range(len(ready)).withColumnRenamed("id", "number")
    counts = numbers.join(tallies, "number", "left").crossJoin(sf.broadcast(total))
    matches = sf.coalesce(sf.col("matches"), sf.lit(0))
    share = matches / sf.greatest(sf.col("events"), sf.lit(1))
    whole = counts.select("number", matches.alias("matches"), share.alias("share"))
    naming = _NamingTask(_distributed(events.sparkSession, ready.path))
    schema = f"subscription {_id_type(ready)}, matches bigint, share double"
    return whole.mapInArrow(naming, schema)


def tallied(
    events: DataFrame,
    subscriptions: Subscriptions,
    *,
    attributes: Attributes = (),
    encoded: str = "",
) -> DataFrame:
    """Match counts by subscription number: `number`, `matches`; only subscriptions with a match.

    A number is an index into `Subscriptions.ids`; negative numbers are EVENTS and the other
    constants at the top of this module."""
    parts = _Query(_in_few_tasks(events), subscriptions, (), attributes, encoded).answer("counts")
    return parts.groupBy("number").agg(sf.sum("matches").alias("matches"))


def _in_few_tasks(events: DataFrame) -> DataFrame:
    """Coalesce to the number of tasks that keeps all cores busy: each task returns its counts,
    which may be one row per subscription."""
    spark = events.sparkSession
    cores = _CORES_REMOTE if is_remote() else spark.sparkContext.defaultParallelism
    return events.coalesce(_TASKS_PER_CORE * max(cores, 1))


def counts_table(subscriptions: Subscriptions, matches: NDArray[np.int64], events: int) -> pa.Table:
    """Result of `match_counts` as a table, from counts by number that are already local."""
    ids = subscriptions.ids
    listed = ids.names if ids.are_integers else [str(ids.of_number(n)) for n in range(len(matches))]
    share = matches / max(events, 1)
    return pa.table({"subscription": pa.array(listed), "matches": matches, "share": share})


def missing_attributes(
    events: DataFrame, subscriptions: Subscriptions, attributes: Attributes = ()
) -> list[str]:
    """Attributes that filters name but no column of the events holds."""
    available = {each.attribute for each in attribute_columns(events.schema, attributes)}
    return sorted(subscriptions.attributes - available)


# -- task parameters -------------------------------------------------------------------------------


class _SnapshotLocation(msgspec.Struct, frozen=True):
    """Location of the snapshot for tasks: a path, or the name of a file that Spark distributes."""

    path: str
    is_distributed: bool

    def local_path(self) -> Path:
        return Path(SparkFiles.get(self.path) if self.is_distributed else self.path)


def _distributed(spark: SparkSession, path: Path) -> _SnapshotLocation:
    """Make a snapshot available to tasks; in local mode they read it directly."""
    if not is_remote() and (spark.sparkContext.master or "").startswith("local["):
        return _SnapshotLocation(str(path.resolve()), False)
    named = _uniquely_named(path, path.stat().st_mtime_ns)
    if is_remote():
        spark.addArtifacts(str(named), file=True)
    else:
        spark.sparkContext.addFile(str(named))
    return _SnapshotLocation(named.name, True)


@lru_cache(maxsize=64)
def _uniquely_named(path: Path, mtime_ns: int) -> Path:
    """A copy with a unique name: Spark identifies files by name, and serves them from their path
    until it ends."""
    directory = tempfile.mkdtemp(prefix="anabranch-match-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    named = Path(directory) / f"{path.name}-{mtime_ns:x}-{Path(directory).name}"
    shutil.copyfile(path, named)
    return named


class _Query:
    """Events and subscriptions, and the columns that matching needs."""

    def __init__(
        self,
        events: DataFrame,
        subscriptions: Subscriptions,
        keys: Sequence[str],
        attributes: Attributes,
        encoded: str,
    ) -> None:
        self._events = events
        self._subscriptions = subscriptions
        self._keys = keys
        self._encoded = encoded
        self._columns: list[AttributeColumn] = []
        if encoded:
            self._check_encoded()
        else:
            all_columns = attribute_columns(events.schema, attributes)
            self._columns = [c for c in all_columns if c.attribute in subscriptions.attributes]

    def _check_encoded(self) -> None:
        fields = {field.name: field.dataType.simpleString() for field in self._events.schema.fields}
        if fields.get(self._encoded) != "binary":
            what = fields.get(self._encoded, "missing")
            raise LocalError(f"column {self._encoded!r} is {what}; encoded events must be binary")

    def answer(self, answer: _Answer) -> DataFrame:
        keys = () if answer == "counts" else self._key_columns()
        times = [each for each in self._columns if each.is_time]
        plain = [each.column for each in self._columns if not each.is_time]
        wanted = [self._encoded] if self._encoded else plain
        # Tasks see columns under aliases: Spark cannot send a column name with a dot in it.
        sent = {name: f"_{place}" for place, name in enumerate(dict.fromkeys([*keys, *wanted]))}
        # Spark cannot send zero columns either, and events without attributes count, too.
        columns = [sf.col(f"`{name}`").alias(alias) for name, alias in sent.items()]
        # A key may be the same column, and stays a timestamp.
        sent_times = {each.column: f"_time{place}" for place, each in enumerate(times)}
        columns += [column_of(each).alias(sent_times[each.column]) for each in times]
        task = _Task(
            answer=answer,
            place=_distributed(self._events.sparkSession, self._subscriptions.path),
            keys=tuple(sent[key] for key in keys),
            columns=tuple(
                AttributeColumn(
                    (sent_times if each.is_time else sent)[each.column], each.attribute, each.kind
                )
                for each in self._columns
            ),
            encoded=sent.get(self._encoded, ""),
        )
        chosen = self._events.select(*columns or [sf.lit(True).alias("_0")])
        return chosen.mapInArrow(task, self._schema(answer, keys))

    def _key_columns(self) -> Sequence[str]:
        available = self._events.columns
        if self._keys:
            for key in self._keys:
                if key not in available:
                    raise LocalError(f"no column {key!r}; the columns are {', '.join(available)}")
            return self._keys
        found = next((keys for keys in _KEYS if set(keys) <= set(available)), None)
        if found is None:
            raise LocalError("the events have no stream and tick; name the key columns in keys")
        return found

    def _schema(self, answer: _Answer, keys: Sequence[str]) -> str:
        own = {
            "pairs": f"subscription {_id_type(self._subscriptions)}",
            "lists": f"subscriptions array<{_id_type(self._subscriptions)}>",
            "sizes": "matches bigint",
            "counts": "number bigint, matches bigint",
        }
        types = {field.name: field.dataType.simpleString() for field in self._events.schema.fields}
        return ", ".join([*(f"`{key}` {types[key]}" for key in keys), own[answer]])


def _id_type(subscriptions: Subscriptions) -> str:
    return "bigint" if subscriptions.ids.are_integers else "string"


class _Task(msgspec.Struct, frozen=True, kw_only=True):
    """Task function: matches the batches of one partition."""

    answer: _Answer
    place: _SnapshotLocation
    keys: tuple[str, ...]
    columns: tuple[AttributeColumn, ...]
    encoded: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        matcher = matcher_of(self.place.local_path())
        read: Reader = (
            encoded_reader(self.encoded)
            if self.encoded
            else column_reader(self.columns, matcher.attributes)
        )
        if self.answer == "counts":
            yield _counted(matcher, read, batches)
            return
        rows = _ROWS_FIRST
        for batch in batches:
            first = 0
            while first < batch.num_rows:
                piece = batch.slice(first, rows)
                answered, matches = self._answered(matcher, read, piece)
                yield answered
                first += piece.num_rows
                # Aim at the same number of matches for the next step, without a sudden jump.
                rows = min(max(rows * _MATCHES_AT_ONCE // (matches + 1), 1), 2 * rows, _ROWS_MAX)

    def _answered(
        self, matcher: Matcher, read: Reader, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, int]:
        """The result rows of a batch, and the number of matches that were held for them."""
        keys = [batch.column(key) for key in self.keys]
        if self.answer == "sizes":
            sizes = pa.array(matcher.count(read(batch)))
            return pa.RecordBatch.from_arrays([*keys, sizes], [*self.keys, "matches"]), 0
        owners, ends = matcher.match(read(batch))
        ids = matcher.named(owners)
        if self.answer == "lists":
            lists = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), ids)
            answered = pa.RecordBatch.from_arrays([*keys, lists], [*self.keys, "subscriptions"])
            return answered, len(ids)
        rows = pa.array(np.repeat(np.arange(batch.num_rows), np.diff(ends)))
        repeated = [key.take(rows) for key in keys]
        answered = pa.RecordBatch.from_arrays([*repeated, ids], [*self.keys, "subscription"])
        return answered, len(ids)


def _counted(matcher: Matcher, read: Reader, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    """Match counts over all batches of a task."""
    events = unmatched = cpu_ns = 0
    before = time.process_time_ns()
    for batch in batches:
        begin = time.thread_time_ns()
        sizes = matcher.count(read(batch))
        cpu_ns += time.thread_time_ns() - begin
        events += batch.num_rows
        unmatched += int(np.count_nonzero(sizes == 0))
    counts = matcher.counted()
    numbers = np.nonzero(counts)[0]
    special = [EVENTS, UNMATCHED, CPU_NS, DECIDED, TASKS_NS]
    tasks_ns = time.process_time_ns() - before
    figures = [events, unmatched, cpu_ns, matcher.doubts_decided, tasks_ns]
    columns = [np.concatenate((special, numbers)), np.concatenate((figures, counts[numbers]))]
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns)), ["number", "matches"])


class _NamingTask(msgspec.Struct, frozen=True):
    """Replaces subscription numbers by ids."""

    place: _SnapshotLocation

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        matcher = matcher_of(self.place.local_path())
        ids = matcher.ids
        table = pa.array(ids.names) if ids.are_integers else matcher.texts
        for batch in batches:
            named = table.take(batch.column("number"))
            columns = [named, batch.column("matches"), batch.column("share")]
            yield pa.RecordBatch.from_arrays(columns, ["subscription", "matches", "share"])
