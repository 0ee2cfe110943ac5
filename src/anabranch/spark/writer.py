"""Writing data frames into a stream, exactly once: what Spark calls, in tasks and in the driver.

    task    rows → drafts → staged at the broker under a token of this attempt    (message: token)
    driver  commit: these tokens are batch n of the sink                (known if it was committed)
    driver  Spark writes down in its checkpoint that batch n is done

Whoever dies between two of these lines does the batch again, with other tokens; the broker takes
the first one that was committed. What was staged in vain is never seen by anybody. Rules:

1. A token is used by one attempt of one task. A task that fails discards it; a task that is killed
   leaves that to the broker.
2. The events of a batch stand in the order of partitions, and within one in the order of rows.
3. All tasks and the driver write to one broker. Tasks tell which one it was, so the driver does not
   choose again.
4. Options and columns are checked when the writer is made, so mistakes do not wait for rows.

State: none; it is in the broker, and in Spark's checkpoint.
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
from anabranch.spark.drafts import Drafting
from anabranch.spark.options import OptionError, Options
from anabranch.spark.write_columns import Part, parts_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch


# Which batch of which sink a write is, and what to tell people when a broker refuses it.
#
# A sink is a name under which one query writes numbered batches into one stream; its broker
# remembers the newest of them, for ever, so a batch that is committed again is known
# (`core.origin.batches`). Rules:
#
# 1. A streaming query writes into the sink `sinkId`. Its batches have Spark's numbers, and the
#    query has the id that Spark keeps in its checkpoint: the same after every restart, another one
#    for every other query. So a second query with this sink is refused, and so is a query that lost
#    its checkpoint and would count from 0 again.
# 2. A batch write with a `transactionId` alone is the only batch of a sink that is called like it.
#    With a `sinkId` too, the transaction is a number, and one batch of that sink; that is for
#    `foreachBatch`, and for jobs that count. Numbers ascend.
# 3. A batch without rows is not committed, except as the only one of its sink: so the newest batch
#    of a sink has events, and of one that is known but has no ticks it is certain that it is older.
#    Its rows are not what was written then, perhaps, so that is an error and not passed over.
#
# This module keeps no state.


#: Who commits what no streaming query does.
BATCH_QUERY: Final = "batch"
#: Tokens are made of it, and names are bounded.
_NAME_BYTES_MAX: Final = 128


class SinkError(LocalError):
    """A batch that is not written, and what to do about it."""


class Target(msgspec.Struct, frozen=True):
    """A batch of a sink."""

    sink: str
    batch: int
    query: str
    #: Whether it is the only batch of its sink.
    is_only: bool = False

    def __str__(self) -> str:
        return (
            f"transaction {self.sink!r}" if self.is_only else f"batch {self.batch} of {self.sink!r}"
        )


def check_streaming(options: Options, overwrite: bool) -> None:
    """`OptionError` if a streaming query cannot write with these."""
    if overwrite:
        raise SinkError(
            "a stream cannot be overwritten: outputMode('complete') is not possible with this sink,"
            " use append or update"
        )
    if not options.sink_id:
        raise OptionError(
            "sinkId", "say whose batches these are, with a name that no other query uses"
        )
    _check_common(options)


def check_transaction(options: Options, overwrite: bool) -> None:
    """`OptionError` if a batch write cannot be with these."""
    if overwrite:
        raise SinkError("a stream cannot be overwritten; write with mode('append')")
    if not options.transaction_id:
        raise OptionError(
            "transactionId", "say which write this is: the same one twice is written once"
        )
    _check_common(options)
    if options.sink_id:
        _number(options.transaction_id)


def _check_common(options: Options) -> None:
    if len(options.streams) > 1:
        raise OptionError("streams", "a sink writes to one broker; name one")
    for name, text in ("sinkId", options.sink_id), ("transactionId", options.transaction_id):
        if len(text.encode()) > _NAME_BYTES_MAX:
            raise OptionError(name, f"it has more than {_NAME_BYTES_MAX} bytes")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > INT_MAX:
        raise OptionError(
            "transactionId",
            f"{text!r} is no number from 0 on, which it has to be where there is a sinkId",
        )
    return int(text)


def streamed(options: Options, query: str, batch: int) -> Target:
    """Rule 1."""
    return Target(options.sink_id, batch, query)


def transacted(options: Options, query: str) -> Target:
    """Rule 2; `query` is the streaming query that this is done for, or ""."""
    if options.sink_id:
        return Target(options.sink_id, _number(options.transaction_id), query or BATCH_QUERY)
    return Target(options.transaction_id, 0, BATCH_QUERY, is_only=True)


def check_committed(target: Target, committed: Batch) -> None:
    """Rule 3."""
    if committed.was_known and not committed.last and not target.is_only:
        raise SinkError(
            f"{target} is older than the newest batch of that sink, so its rows were not written:"
            " this is a checkpoint of long ago, or a number that does not ascend; write under"
            " another sinkId what is missing"
        )


def explained(error: BatchRefusedError, target: Target, origin: str) -> SinkError:
    """A refusal of the broker, with what to do."""
    advice = {
        OTHER_QUERY: "give every query a sinkId of its own; a query without its checkpoint is"
        " another one",
        UNKNOWN_TOKEN: "the broker keeps what tasks have staged for stage_keep_s and has dropped"
        " it; nothing was written: start the query again, and Spark executes the batch anew",
        DEPARTING: "the broker leaves the network, and its sinks end with it: write to another one"
        " (option streams) with another sinkId",
    }.get(error.code, "nothing was written")
    return SinkError(f"{target} was refused by {origin!r}: {error.reason} ({advice})")


#: Where Spark tells a task which streaming query it works for; the same after every restart.
_QUERY_PROPERTY = "sql.streaming.queryId"

Messages = Sequence[WriterCommitMessage | None]


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What a task has staged."""

    partition: int
    #: "" if there were no rows.
    token: str
    count: int
    #: The broker where it is; "" if nothing is.
    origin: str
    #: The streaming query that this is for; "" if there is none.
    query: str


class StreamWriter(DataSourceStreamArrowWriter):
    """For `frame.writeStream`. See the rules at the top of this module."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        check_streaming(options, overwrite)
        self._options = options
        self._parts = parts_of(schema, ignore_envelope=options.ignore_envelope)

    def write(self, iterator: "Iterator[RecordBatch]") -> Staged:
        """Stage the rows of one task."""
        return _stage(self._options, self._parts, self._options.sink_id, iterator)

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make what was staged a batch."""
        found = _complete(messages)
        if any(each.count for each in found):
            query = _same({each.query for each in found}, "query")
            if not query:
                raise SinkError(
                    f"Spark does not tell tasks the id of their query: {_QUERY_PROPERTY}"
                )
            _commit(self._options, streamed(self._options, query, batchId), found)

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: ARG002, N803 - Spark's names
        """Nobody will commit this."""
        _discard(self._options, _found(messages))


class BatchWriter(DataSourceArrowWriter):
    """For `frame.write`. See the rules at the top of this module."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        check_transaction(options, overwrite)
        self._options = options
        self._parts = parts_of(schema, ignore_envelope=options.ignore_envelope)

    def write(self, iterator: "Iterator[RecordBatch]") -> Staged:
        """Stage the rows of one task."""
        options = self._options
        return _stage(options, self._parts, options.sink_id or options.transaction_id, iterator)

    def commit(self, messages: Messages) -> None:
        """Make what was staged a batch."""
        found = _complete(messages)
        target = transacted(self._options, _same({each.query for each in found}, "query"))
        if target.is_only or any(each.count for each in found):
            _commit(self._options, target, found)

    def abort(self, messages: Messages) -> None:
        """Nobody will commit this."""
        _discard(self._options, _found(messages))


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
    # The number of an attempt is unique in one application only.
    token = f"{sink}.{partition}.{context.taskAttemptId()}.{secrets.token_hex(6)}"
    with _stager(options) as stager:
        try:
            count = stager.stage(token, chain([first], chunks))
        except BaseException:
            with contextlib.suppress(AnabranchError):
                stager.discard([token])
            raise
        return Staged(partition, token, count, stager.stream, query)


# -- the driver ------------------------------------------------------------------------------------


def _found(messages: Messages) -> list[Staged]:
    """What tasks have told, in the order of partitions; those that failed told nothing."""
    found = [each for each in messages if isinstance(each, Staged)]
    return sorted(found, key=lambda each: each.partition)


def _complete(messages: Messages) -> list[Staged]:
    """The same, where nobody may have failed."""
    found = _found(messages)
    if len(found) < len(messages):
        missing = len(messages) - len(found)
        raise SinkError(f"{missing} of {len(messages)} tasks did not tell what they have staged")
    return found


def _same(told: set[str], what: str) -> str:
    """What all tasks say; "" if they say nothing."""
    if len(told) > 1:
        named = ", ".join(map(repr, sorted(told)))
        raise SinkError(f"tasks of one batch do not agree about their {what}: {named}")
    return next(iter(told), "")


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
            raise SinkError(f"{error}: start the query again, which commits it again") from error
    check_committed(target, committed)


def _discard(options: Options, found: list[Staged]) -> None:
    """Tell the broker, if it is there; otherwise it drops these by itself."""
    for origin in {each.origin for each in found if each.count}:
        tokens = [each.token for each in found if each.origin == origin]
        with contextlib.suppress(AnabranchError), _stager(options, origin) as stager:
            stager.discard(tokens)
