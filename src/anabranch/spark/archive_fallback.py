"""What the log no longer has, from an archive: one sequence without a gap, in the same read.

With the option `archive=DIRECTORY`, ticks that a log has forgotten are read from the archive there
(docs/how-to/archive.md), and those that it has from the log. Rules:

1. A stream begins with its first archived tick, if the archive reaches up to the log, or begins
   before it. Where it does not, what is between is missing, and said (`fetches.tell_missing`).
2. What both have is read from the log: that needs no file, and its broker evaluates the filter.
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
from anabranch.spark.survey import Extent, Seen, first_since
from anabranch.spark.tick_ranges import Range

#: Says that ticks of a stream are missing, or fails.
TellMissing = Callable[[Options, str, int, int], None]


def extended(seen: Seen, options: Options) -> Seen:
    """What can be read of a network, with its archive."""
    reader = _reader(options, seen.network)
    extents = {
        stream: _extended(extent, reader.span(stream)) for stream, extent in seen.extents.items()
    }
    return Seen(seen.network, seen.origins, extents)


def _extended(extent: Extent, archived: Span | None) -> Extent:
    if archived is None or archived.first >= extent.oldest:
        return extent
    return Extent(archived.first, extent.end, extent.newest_ns)


def since(connection: Fetcher, stream: str, extent: Extent, options: Options, time_ns: int) -> int:
    """The first tick of a stream that was logged at that time or later."""
    reader = _reader(options, "")
    archived = reader.span(stream)
    if archived is not None:
        found = reader.first_since(stream, time_ns)
        if found <= archived.last:
            return found
    oldest = connection.describe().oldest
    return first_since(connection, Extent(oldest, extent.end, extent.newest_ns), time_ns)


def pieces(
    options: Options, there: Range, last: int, subscription: str, tell_missing: TellMissing
) -> Iterator[Fetched]:
    """The events of a range up to a tick, as far as the archive has them."""
    reader, stream, first = _reader(options, there.network), there.stream, there.first
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
            f"{options.archive} is an archive of the network {reader.network!r}, and the brokers"
            f" are of {network!r}",
        )
    return reader
