"""What a task does: read one range of ticks of one stream, as batches of columns.

Rules:

1. A broker that is away is waited for (`patienceSeconds`); then the task fails, and Spark tries it
   again, or the query fails and goes on from its checkpoint.
2. Ticks that the log no longer has are read from the archive, if there is one (`archived`). Those
   that nobody has are an error that names them, or with `failOnDataLoss=false` a warning.
3. A log that ends before the range does has lost its end; that is an error in any case, since the
   query has offsets that no longer mean what they meant.
4. With `silenceRows`, the last row of a range has no event. It says up to which tick the stream was
   read, and when the newest event near that tick was logged, wanted or not.

State: one connection, for as long as the task runs.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from anabranch.client.errors import TicksNotKeptError
from anabranch.client.stream_reader import Fetcher
from anabranch.model.client_frames import Fetched
from anabranch.model.encoding import rows_in
from anabranch.model.errors import LocalError
from anabranch.spark.broker_access import fetcher
from anabranch.spark.column_types import Wanted
from anabranch.spark.columns import Columns
from anabranch.spark.options import Options
from anabranch.spark.tick_ranges import Range

#: Bytes of rows that are asked for at once: large enough that a batch is worth its overhead.
PIECE_BYTES: Final = 2 * 1024 * 1024
#: How far back an event is looked for that tells the time at the end of a range.
_NEAR_TICKS: Final = 64

log = logging.getLogger("anabranch.spark")


def read_range(
    options: Options, there: Range, wanted: Sequence[Wanted], schema: pa.Schema, subscription: str
) -> Iterator[pa.RecordBatch]:
    """The events of a range that match, in the order of their ticks."""
    columns = Columns(wanted, schema)
    with fetcher(
        options, there.stream, network=there.network, addresses=there.addresses
    ) as connection:
        for fetched in pieces(connection, options, there, subscription):
            if fetched.count:
                yield columns.batch(fetched.data, fetched.count, there.stream)
        if options.silence_rows:
            yield from _silence(connection, there, wanted, schema)


def pieces(
    connection: Fetcher, options: Options, there: Range, subscription: str
) -> Iterator[Fetched]:
    """Answers that together are the range."""
    first, last = there.first, there.end - 1
    while first <= last:
        try:
            for fetched in connection.fetch(
                first, last, filter=subscription, bytes_max=PIECE_BYTES
            ):
                yield fetched
                first = fetched.through + 1
        except TicksNotKeptError as error:
            yield from _older(options, there, first, min(error.oldest - 1, last), subscription)
            first = error.oldest
            continue
        if first <= last:
            raise LocalError(
                f"stream {there.stream!r} ends before tick {first}, and had tick {last} when the"
                " query asked: its log has lost its end; begin anew with another checkpoint"
            )


def _older(
    options: Options, there: Range, first: int, last: int, subscription: str
) -> Iterator[Fetched]:
    """What the log no longer has (rule 2)."""
    if not options.archive:
        tell_missing(options, there.stream, first, last)
        return
    from anabranch.spark import archive_fallback  # noqa: PLC0415 - most have none

    rest = Range(there.stream, first, there.end, there.network)
    yield from archive_fallback.pieces(options, rest, last, subscription, tell_missing)


def tell_missing(options: Options, stream: str, first: int, last: int) -> None:
    """Ticks cannot be read any more: say so, or fail (rule 2)."""
    where = (
        "neither in the log nor in the archive" if options.archive else "not in the log any more"
    )
    what = f"ticks {first} to {last} of stream {stream!r} are {where}"
    if options.fail_on_data_loss:
        raise LocalError(
            f"{what}: keep logs longer (keep_s in the network file), hold them with"
            " durableSubscription, archive them, or pass over them with failOnDataLoss=false"
        )
    log.warning("%s, and are passed over", what)


def _silence(
    connection: Fetcher, there: Range, wanted: Sequence[Wanted], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rule 4."""
    last = there.end - 1
    time_ns = 0
    # What is forgotten by now was told before; then there is no time to tell either.
    with contextlib.suppress(TicksNotKeptError):
        for fetched in connection.fetch(max(there.first, there.end - _NEAR_TICKS), last):
            for _, found_ns, _ in rows_in(fetched.data):
                time_ns = found_ns
    if time_ns == 0:
        return
    said = {"stream": there.stream, "tick": last}
    said |= dict.fromkeys(("timestamp", "loggedAt"), time_ns // 1_000)
    arrays = [pa.array([said.get(each.name)], each.arrow_type) for each in wanted]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
