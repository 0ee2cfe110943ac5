"""Task-side reading: one range of ticks of one stream, as batches of columns.

Rules:

1. If a broker is unreachable, the task waits for up to `patienceSeconds` and then fails. Spark
   retries the task, or the query fails and resumes from its checkpoint.
2. Ticks that the log no longer has are read from the archive, if one is set.
   Ticks that neither has are an error that names them or, with `failOnDataLoss=false`, a warning.
3. A log that ends before the range does has lost its end. This is always an error, because the
   offsets of the query are no longer valid.
4. With `silenceRows`, the last row of a range holds no event. It gives the tick up to which the
   stream was read, and the log time of the newest event near that tick, whether it matches or not.

State: one connection while the task runs.

Archive. With the option `archive=DIRECTORY`, ticks that a log has trimmed are read from that
archive (docs/how-to/archive.md), and retained ticks from the log. Rules:

1. A stream starts at its first archived tick if the archive reaches the log or starts before it.
   Ticks in a gap between archive and log are missing and reported (`tell_missing`).
2. Ticks that both have are read from the log: no file access, and the broker evaluates the filter.
3. An archive of another network is an error.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from anabranch.client.errors import TicksNotKeptError
from anabranch.client.stream_reader import Fetcher
from anabranch.model.client_frames import Fetched
from anabranch.model.encoding import rows_in
from anabranch.model.errors import LocalError
from anabranch.spark.archive.manifest import Span
from anabranch.spark.archive.reader import ArchiveReader
from anabranch.spark.broker_access import fetcher
from anabranch.spark.column_types import Wanted
from anabranch.spark.columns import Columns
from anabranch.spark.options import OptionError, Options
from anabranch.spark.survey import Extent, SurveyResult, first_since
from anabranch.spark.tick_ranges import Range

#: Reports missing ticks of a stream, or fails.
TellMissing = Callable[[Options, str, int, int], None]


def extended(seen: SurveyResult, options: Options) -> SurveyResult:
    """The survey, with extents that include the archive."""
    reader = _reader(options, seen.network)
    extents = {
        stream: _extended(extent, reader.span(stream)) for stream, extent in seen.extents.items()
    }
    return SurveyResult(seen.network, seen.origins, extents)


def _extended(extent: Extent, archived: Span | None) -> Extent:
    if archived is None or archived.first >= extent.oldest:
        return extent
    return Extent(archived.first, extent.end, extent.newest_ns)


def since(connection: Fetcher, stream: str, extent: Extent, options: Options, time_ns: int) -> int:
    """The first tick of a stream logged at or after a time."""
    reader = _reader(options, "")
    archived = reader.span(stream)
    if archived is not None:
        found = reader.first_since(stream, time_ns)
        if found <= archived.last:
            return found
    oldest = connection.describe().oldest
    return first_since(connection, Extent(oldest, extent.end, extent.newest_ns), time_ns)


def archived_pieces(
    options: Options, tick_range: Range, last: int, subscription: str, tell_missing: TellMissing
) -> Iterator[Fetched]:
    """Events of a range up to tick `last`, as far as the archive has them."""
    reader, stream, first = (
        _reader(options, tick_range.network),
        tick_range.stream,
        tick_range.first,
    )
    archived = reader.span(stream)
    if archived is None or archived.last < first or archived.first > last:
        tell_missing(options, stream, first, last)
        return
    if first < archived.first:
        tell_missing(options, stream, first, archived.first - 1)
    span = Span(stream, max(first, archived.first), min(last, archived.last))
    for missing in reader.missing(span):
        tell_missing(options, stream, missing.first, missing.last)
    yield from reader.pieces(stream, span.first, span.last, filter=subscription)
    if archived.last < last:
        tell_missing(options, stream, archived.last + 1, last)


def _reader(options: Options, network: str) -> ArchiveReader:
    try:
        reader = ArchiveReader(options.archive)
    except LocalError as error:
        raise OptionError("archive", str(error)) from error
    if network and reader.network != network:
        raise OptionError(
            "archive",
            f"{options.archive} is an archive of network {reader.network!r}, but the brokers belong"
            f" to {network!r}",
        )
    return reader


#: Bytes of rows per fetch request: large enough to amortize the overhead of a batch.
PIECE_BYTES: Final = 2 * 1024 * 1024
#: How many ticks back to look for an event that gives the time at the end of a range.
_NEAR_TICKS: Final = 64

log = logging.getLogger("anabranch.spark")


def read_range(
    options: Options,
    tick_range: Range,
    wanted: Sequence[Wanted],
    schema: pa.Schema,
    subscription: str,
) -> Iterator[pa.RecordBatch]:
    """Matching events of a range, in tick order."""
    columns = Columns(wanted, schema)
    with fetcher(
        options, tick_range.stream, network=tick_range.network, addresses=tick_range.addresses
    ) as connection:
        for fetched in pieces(connection, options, tick_range, subscription):
            if fetched.count:
                yield columns.batch(fetched.data, fetched.count, tick_range.stream)
        if options.silence_rows:
            yield from _silence(connection, tick_range, wanted, schema)


def pieces(
    connection: Fetcher, options: Options, tick_range: Range, subscription: str
) -> Iterator[Fetched]:
    first, last = tick_range.first, tick_range.end - 1
    while first <= last:
        try:
            for fetched in connection.fetch(
                first, last, filter=subscription, bytes_max=PIECE_BYTES
            ):
                yield fetched
                first = fetched.through + 1
        except TicksNotKeptError as error:
            yield from _older(options, tick_range, first, min(error.oldest - 1, last), subscription)
            first = error.oldest
            continue
        if first <= last:
            raise LocalError(
                f"stream {tick_range.stream!r} ends before tick {first}, but had tick {last} when"
                " the query was planned: its log has lost its end; restart with a new checkpoint"
            )


def _older(
    options: Options, tick_range: Range, first: int, last: int, subscription: str
) -> Iterator[Fetched]:
    """Ticks that the log no longer has (rule 2)."""
    if not options.archive:
        tell_missing(options, tick_range.stream, first, last)
        return

    rest = Range(tick_range.stream, first, tick_range.end, tick_range.network)
    yield from archived_pieces(options, rest, last, subscription, tell_missing)


def tell_missing(options: Options, stream: str, first: int, last: int) -> None:
    """Ticks are no longer available: warn or fail (rule 2)."""
    where = "neither in the log nor in the archive" if options.archive else "no longer in the log"
    what = f"ticks {first} to {last} of stream {stream!r} are {where}"
    if options.fail_on_data_loss:
        raise LocalError(
            f"{what}: extend retention (keep_s in the network file), hold the log with"
            " durableSubscription, set an archive, or skip them with failOnDataLoss=false"
        )
    log.warning("%s; skipping them", what)


def _silence(
    connection: Fetcher, tick_range: Range, wanted: Sequence[Wanted], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The silence row at the end of a range (rule 4)."""
    last = tick_range.end - 1
    time_ns = 0
    # Trimmed ticks were reported before; without an event, there is no time to report.
    with contextlib.suppress(TicksNotKeptError):
        for fetched in connection.fetch(max(tick_range.first, tick_range.end - _NEAR_TICKS), last):
            for _, found_ns, _ in rows_in(fetched.data):
                time_ns = found_ns
    if time_ns == 0:
        return
    row = {"stream": tick_range.stream, "tick": last}
    row |= dict.fromkeys(("timestamp", "loggedAt"), time_ns // 1_000)
    arrays = [pa.array([row.get(each.name)], each.arrow_type) for each in wanted]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
