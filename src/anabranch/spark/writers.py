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
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from anabranch.client.errors import BatchRefusedError, BatchUnknownError
from anabranch.client.staging import Stager
from anabranch.model.errors import AnabranchError
from anabranch.spark.drafts import Drafting
from anabranch.spark.options import Options
from anabranch.spark.reaching import client_name, tls_of
from anabranch.spark.writing_batches import (
    SinkError,
    Target,
    check_committed,
    check_streaming,
    check_transaction,
    explained,
    streamed,
    transacted,
)
from anabranch.spark.writing_columns import parts_of
from anabranch.spark.writing_parts import Part

if TYPE_CHECKING:
    from pyarrow import RecordBatch

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
