"""Events × subscriptions in bulk: who would have received what, how often, and how selective it is.

    match(events, "subscriptions.jsonl")            # a row for each match: event, subscription
    match_lists(events, subscriptions)              # a row for each event: its subscriptions
    match_counts(events, subscriptions)             # a row for each subscription: how often
    match_sizes(events, subscriptions)              # a row for each event: how many

`events` is a data frame in which attributes are columns, or, with `encoded`, one in which a column
holds events as they were published. `subscriptions` is whatever `subscriptions.prepared` takes. The
index is that of a broker, in a snapshot that the tasks of a machine share. Rules:

1. An event matches exactly as it would at a broker that was told the same attributes. A column has
   one type; where an attribute has had several, each has a column (`attributes`), or events come
   encoded.
2. Of each event only the key columns and those that some filter names are read.
3. An attribute that filters name and no column has is absent everywhere; see `missing_attributes`.
4. Counting is done inside the tasks, which is the way for many subscriptions: a match is a number
   that goes up. Rows of matches cost as much as Spark takes for that many rows.

State: none, but for the snapshot that `prepared` may write.
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
from anabranch.spark.attribute_columns import AttributeColumn, Attributes, attribute_columns
from anabranch.spark.event_batches import Reader, column_reader, encoded_reader
from anabranch.spark.subscriptions import Source, Subscriptions, prepared
from anabranch.spark.task_matcher import Matcher, matcher_of

#: What tells events apart, in the order in which it is looked for.
_KEYS: Final = (("stream", "tick"), ("publisher", "incarnation", "seq"))
#: In place of the number of a subscription: how many events there were, how many of them matched
#: nothing, nanoseconds of CPU that matching took, how many decisions were left to Python, and
#: nanoseconds of CPU of the Python processes as a whole while tasks ran.
EVENTS: Final = -1
UNMATCHED: Final = -2
CPU_NS: Final = -3
DECIDED: Final = -4
TASKS_NS: Final = -5

#: So many tasks may end at different times without a core that has nothing to do for long.
_TASKS_PER_CORE: Final = 3
#: Nobody says how many cores a server of Spark Connect has.
_CORES_REMOTE: Final = 64

#: Matches that are held at once, about; and events, at first and at most.
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
    """A row for each match: the key columns of the event, and `subscription`.

    keys         the columns that tell which event it is; by default stream and tick, else its id
    attributes   which attribute some columns hold, or all columns that hold any
    encoded      the column with encoded events, in place of attributes as columns
    """
    return _Asked(events, prepared(subscriptions), keys, attributes, encoded).answer("pairs")


def match_lists(
    events: DataFrame,
    subscriptions: Source | Subscriptions,
    *,
    keys: Sequence[str] = (),
    attributes: Attributes = (),
    encoded: str = "",
) -> DataFrame:
    """A row for each event: its key columns, and `subscriptions`, an array."""
    return _Asked(events, prepared(subscriptions), keys, attributes, encoded).answer("lists")


def match_sizes(
    events: DataFrame,
    subscriptions: Source | Subscriptions,
    *,
    keys: Sequence[str] = (),
    attributes: Attributes = (),
    encoded: str = "",
) -> DataFrame:
    """A row for each event: its key columns, and `matches`, how many there are."""
    return _Asked(events, prepared(subscriptions), keys, attributes, encoded).answer("sizes")


def match_counts(
    events: DataFrame,
    subscriptions: Source | Subscriptions,
    *,
    attributes: Attributes = (),
    encoded: str = "",
) -> DataFrame:
    """A row for each subscription: `subscription`, `matches`, and `share` of all events."""
    ready = prepared(subscriptions)
    tallies = tallied(events, ready, attributes=attributes, encoded=encoded)
    total = tallies.where(sf.col("number") == EVENTS).select(sf.col("matches").alias("events"))
    numbers = events.sparkSession.range(len(ready)).withColumnRenamed("id", "number")
    counts = numbers.join(tallies, "number", "left").crossJoin(sf.broadcast(total))
    matches = sf.coalesce(sf.col("matches"), sf.lit(0))
    share = matches / sf.greatest(sf.col("events"), sf.lit(1))
    whole = counts.select("number", matches.alias("matches"), share.alias("share"))
    naming = _Naming(_placed(events.sparkSession, ready.path))
    schema = f"subscription {_id_type(ready)}, matches bigint, share double"
    return whole.mapInArrow(naming, schema)


def tallied(
    events: DataFrame,
    subscriptions: Subscriptions,
    *,
    attributes: Attributes = (),
    encoded: str = "",
) -> DataFrame:
    """How often each subscription is matched: `number`, `matches`; only those that are.

    A number is the place of a subscription in `Subscriptions.ids`; negative ones are EVENTS and the
    like at the top of this module."""
    parts = _Asked(_in_few_tasks(events), subscriptions, (), attributes, encoded).answer("counts")
    return parts.groupBy("number").agg(sf.sum("matches").alias("matches"))


def _in_few_tasks(events: DataFrame) -> DataFrame:
    """The same events in no more tasks than keep all cores busy: each of them tells what it has
    counted, which may be a row for every subscription."""
    spark = events.sparkSession
    cores = _CORES_REMOTE if is_remote() else spark.sparkContext.defaultParallelism
    return events.coalesce(_TASKS_PER_CORE * max(cores, 1))


def counts_table(subscriptions: Subscriptions, matches: NDArray[np.int64], events: int) -> pa.Table:
    """What `match_counts` gives, from counts by number that are here already."""
    ids = subscriptions.ids
    listed = ids.names if ids.are_integers else [str(ids.of_number(n)) for n in range(len(matches))]
    share = matches / max(events, 1)
    return pa.table({"subscription": pa.array(listed), "matches": matches, "share": share})


def missing_attributes(
    events: DataFrame, subscriptions: Subscriptions, attributes: Attributes = ()
) -> list[str]:
    """Attributes that filters name and no column of the events has."""
    there = {each.attribute for each in attribute_columns(events.schema, attributes)}
    return sorted(subscriptions.attributes - there)


# -- what tasks are sent ---------------------------------------------------------------------------


class _Place(msgspec.Struct, frozen=True):
    """Where tasks find the snapshot: a path, or the name of a file that Spark brings them."""

    path: str
    is_brought: bool

    def here(self) -> Path:
        """The path on this machine."""
        return Path(SparkFiles.get(self.path) if self.is_brought else self.path)


def _placed(spark: SparkSession, path: Path) -> _Place:
    """Let tasks have a snapshot; on this machine they have it already."""
    if not is_remote() and (spark.sparkContext.master or "").startswith("local["):
        return _Place(str(path.resolve()), False)
    named = _named_alone(path, path.stat().st_mtime_ns)
    if is_remote():
        spark.addArtifacts(str(named), file=True)
    else:
        spark.sparkContext.addFile(str(named))
    return _Place(named.name, True)


@lru_cache(maxsize=64)
def _named_alone(path: Path, mtime_ns: int) -> Path:
    """A copy with a name that no other has: Spark knows files by their names, and serves them from
    where they are until it ends."""
    directory = tempfile.mkdtemp(prefix="anabranch-match-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    named = Path(directory) / f"{path.name}-{mtime_ns:x}-{Path(directory).name}"
    shutil.copyfile(path, named)
    return named


class _Asked:
    """Events and subscriptions, and how the ones become columns for the others."""

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
            what = fields.get(self._encoded, "not there")
            raise LocalError(f"column {self._encoded!r} is {what}; encoded events are binary")

    def answer(self, answer: _Answer) -> DataFrame:
        keys = () if answer == "counts" else self._key_columns()
        wanted = [self._encoded] if self._encoded else [each.column for each in self._columns]
        # Tasks know columns by other names: Spark cannot send one that has a dot in it.
        sent = {name: f"_{place}" for place, name in enumerate(dict.fromkeys([*keys, *wanted]))}
        # Nor can it send no column at all, and events without any have to be counted too.
        columns = [sf.col(f"`{name}`").alias(alias) for name, alias in sent.items()]
        task = _Task(
            answer=answer,
            place=_placed(self._events.sparkSession, self._subscriptions.path),
            keys=tuple(sent[key] for key in keys),
            columns=tuple(
                msgspec.structs.replace(each, column=sent[each.column]) for each in self._columns
            ),
            encoded=sent.get(self._encoded, ""),
        )
        chosen = self._events.select(*columns or [sf.lit(True).alias("_0")])
        return chosen.mapInArrow(task, self._schema(answer, keys))

    def _key_columns(self) -> Sequence[str]:
        there = self._events.columns
        if self._keys:
            for key in self._keys:
                if key not in there:
                    raise LocalError(f"there is no column {key!r}; there is {', '.join(there)}")
            return self._keys
        found = next((keys for keys in _KEYS if set(keys) <= set(there)), None)
        if found is None:
            raise LocalError("these events have no stream and tick; say which columns are the keys")
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
    """What a task does with its batches."""

    answer: _Answer
    place: _Place
    keys: tuple[str, ...]
    columns: tuple[AttributeColumn, ...]
    encoded: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        matcher = matcher_of(self.place.here())
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
                # About as many matches the next time; and not all of a sudden a multiple of that.
                rows = min(max(rows * _MATCHES_AT_ONCE // (matches + 1), 1), 2 * rows, _ROWS_MAX)

    def _answered(
        self, matcher: Matcher, read: Reader, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, int]:
        """The rows that answer a batch, and how many matches had to be held for them."""
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
    """The tallies of all batches of a task."""
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


class _Naming(msgspec.Struct, frozen=True):
    """Puts ids in the place of numbers."""

    place: _Place

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        matcher = matcher_of(self.place.here())
        ids = matcher.ids
        table = pa.array(ids.names) if ids.are_integers else matcher.texts
        for batch in batches:
            named = table.take(batch.column("number"))
            columns = [named, batch.column("matches"), batch.column("share")]
            yield pa.RecordBatch.from_arrays(columns, ["subscription", "matches", "share"])
