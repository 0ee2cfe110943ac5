"""Write side of the data source: exactly-once writes of data frames into a stream.

    task    rows → drafts → staged at the broker under a token of this attempt    (message: token)
    driver  commit: these tokens are batch n of the sink          (no-op if it is committed already)
    driver  Spark records in its checkpoint that batch n is done

After a crash between two of these steps, Spark runs the batch again with other tokens; the broker
accepts the first commit of a batch. Drafts that are staged but never committed are never
delivered. Rules:

1. A token belongs to one attempt of one task. A task that fails discards its token; the token of a
   killed task expires at the broker.
2. The events of a batch are ordered by partition, and within a partition by row.
3. All tasks and the driver write to one broker. Tasks report which one, so the driver does not
   choose again.
4. Options and columns are validated when the writer is created, before any row is processed.

A sink is a name under which one query writes numbered batches into one stream. Its broker remembers
the newest batch forever, so it recognises a batch that is committed twice (`core.origin.batches`).
Rules:

5. A streaming query writes into the sink `sinkId`. Batch numbers are Spark's. The query is
   identified by the id that Spark keeps in its checkpoint: stable across restarts and unique per
   query. The broker therefore refuses a second query on the same sink, and a query that lost its
   checkpoint and would count from 0 again.
6. A batch write with only a `transactionId` is the single batch of a sink with that name. With a
   `sinkId` as well, the transaction id is a number and denotes one batch of that sink; this is for
   `foreachBatch` and for jobs that count. Numbers must ascend.
7. A batch without rows is not committed unless it is the only one of its sink. The newest batch of
   a sink therefore has events, and a batch that is known but has no ticks must be older. Its rows
   may differ from the ones written then, so this is an error and is not ignored.

State: none here; it is in the broker and in Spark's checkpoint.
"""

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from anabranch.client.batches import Batch
from anabranch.client.errors import BatchRefusedError, BatchUnknownError
from anabranch.client.staging import Stager
from anabranch.model.client_frames import DEPARTING, OTHER_QUERY, UNKNOWN_TOKEN
from anabranch.model.errors import AnabranchError, LocalError
from anabranch.model.event import INT_MAX
from anabranch.spark.broker_access import client_name, tls_of
from anabranch.spark.drafts import Drafting, Part, parts_of
from anabranch.spark.options import OptionError, Options

if TYPE_CHECKING:
    from pyarrow import RecordBatch


#: Query id of a batch write outside of a streaming query.
BATCH_QUERY: Final = "batch"
#: Tokens contain these names, and names are bounded.
_NAME_BYTES_MAX: Final = 128


class SinkError(LocalError):
    """A batch that was not written, and the remedy."""


class Target(msgspec.Struct, frozen=True):
    """A batch of a sink."""

    sink: str
    batch: int
    query: str
    #: Whether it is the only batch of its sink (rule 6).
    is_only: bool = False

    def __str__(self) -> str:
        return (
            f"transaction {self.sink!r}" if self.is_only else f"batch {self.batch} of {self.sink!r}"
        )


def check_streaming(options: Options, overwrite: bool) -> None:
    """Raise `OptionError` if a streaming query cannot write with these options."""
    if overwrite:
        raise SinkError(
            "a stream cannot be overwritten: this sink does not support outputMode('complete');"
            " use append or update"
        )
    if not options.sink_id:
        raise OptionError("sinkId", "missing; set a name for this sink that no other query uses")
    _check_common(options)


def check_transaction(options: Options, overwrite: bool) -> None:
    """Raise `OptionError` if a batch write cannot use these options."""
    if overwrite:
        raise SinkError("a stream cannot be overwritten; use mode('append')")
    if not options.transaction_id:
        raise OptionError(
            "transactionId",
            "missing; set an id for this write, so that a retry is written once (in SQL:"
            " INSERT INTO t WITH (transactionId = 'ID') …)",
        )
    _check_common(options)
    if options.sink_id:
        _number(options.transaction_id)


def _check_common(options: Options) -> None:
    if len(options.streams) > 1:
        raise OptionError("streams", "a sink writes to one broker; name only one")
    for name, text in ("sinkId", options.sink_id), ("transactionId", options.transaction_id):
        if len(text.encode()) > _NAME_BYTES_MAX:
            raise OptionError(name, f"longer than {_NAME_BYTES_MAX} bytes")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > INT_MAX:
        raise OptionError(
            "transactionId",
            f"{text!r} is not a number from 0 on; together with sinkId it has to be one",
        )
    return int(text)


def streamed(options: Options, query: str, batch: int) -> Target:
    """The batch of a streaming query (rule 5)."""
    return Target(options.sink_id, batch, query)


def transacted(options: Options, query: str) -> Target:
    """The batch of a batch write (rule 6); `query` is the enclosing streaming query, or ""."""
    if options.sink_id:
        return Target(options.sink_id, _number(options.transaction_id), query or BATCH_QUERY)
    return Target(options.transaction_id, 0, BATCH_QUERY, is_only=True)


def check_committed(target: Target, committed: Batch) -> None:
    """Raise `SinkError` for a batch older than the newest of its sink (rule 7)."""
    if committed.was_known and not committed.last and not target.is_only:
        raise SinkError(
            f"{target} is older than the newest batch of that sink, so its rows were not written."
            " The checkpoint is outdated, or the batch numbers do not ascend; write the missing"
            " rows under another sinkId"
        )


def explained(error: BatchRefusedError, target: Target, origin: str) -> SinkError:
    """A refusal by the broker, with the remedy."""
    advice = {
        OTHER_QUERY: "give each query its own sinkId; a query without its checkpoint counts as"
        " another one",
        UNKNOWN_TOKEN: "the broker keeps staged events for stage_keep_s and has dropped these;"
        " nothing was written: restart the query, and Spark runs the batch again",
        DEPARTING: "the broker is leaving the network, and its sinks end with it: write to another"
        " one (option streams) with another sinkId",
    }.get(error.code, "nothing was written")
    return SinkError(f"{target} was refused by {origin!r}: {error.reason} ({advice})")


#: Task property in which Spark passes the id of the streaming query; stable across restarts.
_QUERY_PROPERTY = "sql.streaming.queryId"

Messages = Sequence[WriterCommitMessage | None]


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """Commit message of a task: the events it staged."""

    partition: int
    #: "" if there were no rows.
    token: str
    count: int
    #: The broker that holds them; "" if there are none.
    origin: str
    #: Id of the streaming query; "" for a batch write.
    query: str


class StreamWriter(DataSourceStreamArrowWriter):
    """Streaming writer for `frame.writeStream`. See the rules at the top of this module."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        check_streaming(options, overwrite)
        self._options = options
        self._parts = parts_of(schema, ignore_envelope=options.ignore_envelope)

    def write(self, iterator: "Iterator[RecordBatch]") -> Staged:
        return _stage(self._options, self._parts, self._options.sink_id, iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        found = _all_reported(messages)
        if any(each.count for each in found):
            query = _same({each.query for each in found}, "query")
            if not query:
                raise SinkError(f"Spark did not pass the query id to tasks: {_QUERY_PROPERTY}")
            _commit(self._options, streamed(self._options, query, batchId), found)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: ARG002, N803 - Spark's names
        _discard(self._options, _reported(messages))


class BatchWriter(DataSourceArrowWriter):
    """Batch writer for `frame.write`. See the rules at the top of this module."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        check_transaction(options, overwrite)
        self._options = options
        self._parts = parts_of(schema, ignore_envelope=options.ignore_envelope)

    def write(self, iterator: "Iterator[RecordBatch]") -> Staged:
        options = self._options
        return _stage(options, self._parts, options.sink_id or options.transaction_id, iterator)

    def commit(self, messages: Messages) -> None:
        found = _all_reported(messages)
        target = transacted(self._options, _same({each.query for each in found}, "query"))
        if target.is_only or any(each.count for each in found):
            _commit(self._options, target, found)

    def abort(self, messages: Messages) -> None:
        _discard(self._options, _reported(messages))


def _stager(options: Options, origin: str = "") -> Stager:
    return Stager(
        *options.brokers,
        stream=origin or next(iter(options.streams), ""),
        name=client_name(options, "writer"),
        tls=tls_of(options),
        patience_s=options.patience_s,
    )


# -- tasks -----------------------------------------------------------------------------------------


def _stage(
    options: Options, parts: tuple[Part, ...], sink: str, batches: "Iterator[RecordBatch]"
) -> Staged:
    context = TaskContext.get()
    assert context is not None
    partition = context.partitionId()
    query = context.getLocalProperty(_QUERY_PROPERTY) or ""
    chunks = Drafting(parts).chunks(batches)
    first = next(chunks, None)
    if first is None:
        return Staged(partition, "", 0, "", query)
    # Attempt ids are unique only within one application.
    token = f"{sink}.{partition}.{context.taskAttemptId()}.{secrets.token_hex(6)}"
    with _stager(options) as stager:
        try:
            count = stager.stage(token, chain([first], chunks))
        except BaseException:
            with contextlib.suppress(AnabranchError):
                stager.discard([token])
            raise
        return Staged(partition, token, count, stager.stream, query)


# -- driver ----------------------------------------------------------------------------------------


def _reported(messages: Messages) -> list[Staged]:
    found = [each for each in messages if isinstance(each, Staged)]
    return sorted(found, key=lambda each: each.partition)


def _all_reported(messages: Messages) -> list[Staged]:
    """Messages of all tasks; raises `SinkError` if one is missing."""
    found = _reported(messages)
    if len(found) < len(messages):
        missing = len(messages) - len(found)
        raise SinkError(f"{missing} of {len(messages)} tasks did not report their staged events")
    return found


def _same(values: set[str], what: str) -> str:
    """The value that all tasks report; "" if there is none."""
    if len(values) > 1:
        named = ", ".join(map(repr, sorted(values)))
        raise SinkError(f"tasks of one batch disagree about their {what}: {named}")
    return next(iter(values), "")


def _commit(options: Options, target: Target, found: list[Staged]) -> None:
    tokens = [each.token for each in found if each.count]
    origin = _same({each.origin for each in found if each.count}, "broker")
    with _stager(options, origin) as stager:
        try:
            committed = stager.commit(
                sink=target.sink, query=target.query, batch=target.batch, tokens=tokens
            )
        except BatchRefusedError as error:
            raise explained(error, target, stager.stream) from error
        except BatchUnknownError as error:
            raise SinkError(f"{error}: restart the query to commit the batch again") from error
    check_committed(target, committed)


def _discard(options: Options, found: list[Staged]) -> None:
    """Best effort: a broker that cannot be reached drops staged events by itself."""
    for origin in {each.origin for each in found if each.count}:
        tokens = [each.token for each in found if each.origin == origin]
        with contextlib.suppress(AnabranchError), _stager(options, origin) as stager:
            stager.discard(tokens)
