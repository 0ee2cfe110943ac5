"""Which batch of which sink a write is, and what to tell people when a broker refuses it.

A sink is a name under which one query writes numbered batches into one stream; its broker remembers
the newest of them, for ever, so a batch that is committed again is known (`core.origin.batches`).
Rules:

1. A streaming query writes into the sink `sinkId`. Its batches have Spark's numbers, and the query
   has the id that Spark keeps in its checkpoint: the same after every restart, another one for
   every other query. So a second query with this sink is refused, and so is a query that lost its
   checkpoint and would count from 0 again.
2. A batch write with a `transactionId` alone is the only batch of a sink that is called like it.
   With a `sinkId` too, the transaction is a number, and one batch of that sink; that is for
   `foreachBatch`, and for jobs that count. Numbers ascend.
3. A batch without rows is not committed, except as the only one of its sink: so the newest batch of
   a sink has events, and of one that is known but has no ticks it is certain that it is older. Its
   rows are not what was written then, perhaps, so that is an error and not passed over.

This module keeps no state."""

from typing import Final

import msgspec

from anabranch.client.batches import Batch
from anabranch.client.errors import BatchRefusedError
from anabranch.model.client_frames import DEPARTING, OTHER_QUERY, UNKNOWN_TOKEN
from anabranch.model.errors import LocalError
from anabranch.model.event import INT_MAX
from anabranch.spark.options import OptionError, Options

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
