"""Archive fallback: reads ticks that the log no longer has from an archive, within the same read.

With the option `archive=DIRECTORY`, ticks that a log has trimmed are read from that archive
(docs/how-to/archive.md), and retained ticks from the log. Rules:

1. A stream starts at its first archived tick if the archive reaches the log or starts before it.
   Ticks in a gap between archive and log are missing and reported (`fetch_task.tell_missing`).
2. Ticks that both have are read from the log: no file access, and the broker evaluates the filter.
3. An archive of another network is an error.

This module keeps no state.
"""

from collections.abc import Callable, Iterator

from anabranch.client.stream_reader import Fetcher
from anabranch.model.client_frames import Fetched
from anabranch.model.errors import LocalError
from anabranch.spark.archive.manifest import Span
from anabranch.spark.archive.reader import ArchiveReader
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


def pieces(
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
