"""Looking into streams before they are read: what attributes there are, and when a time was.

1. Attributes are those of some of the newest events that match: of the last thousand ticks of each
   stream, or of more of them where these have too few.
2. Or they are those of exported statistics, which know rare ones too, and streams that are empty.
   They do not tell integers from floats: numbers are floats then.
3. A time is looked for by halving: the first tick that was logged then or later. A log's times do
   not go back, but by a clock that was set; then any tick that may be meant is as good as another.

This module keeps no state.
"""

from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from anabranch.client.stream_reader import Fetcher
from anabranch.config.errors import ConfigError
from anabranch.config.statistics_file import load_statistics
from anabranch.core.origin.log_tail import STORED_LIMITS
from anabranch.model.encoding import decode_event, rows_in
from anabranch.model.event import Value
from anabranch.spark.options import OptionError, Options
from anabranch.spark.survey import Extent, Seen, Survey

#: Events that are looked at, of all streams together; and those that are enough of one stream.
_EVENTS_MAX: Final = 4_000
_EVENTS_MIN: Final = 50
_TICKS: Final = (1_000, 30_000, 1_000_000)
_SAMPLE_BYTES: Final = 256 * 1024

Attributes = Mapping[str, Value]


def sample(survey: Survey, seen: Seen, subscription: str) -> Iterator[Attributes]:
    """The attributes of some of the newest events of every stream."""
    count = max(_EVENTS_MAX // max(len(seen.extents), 1), _EVENTS_MIN)
    for stream, extent in seen.extents.items():
        yield from _newest(survey.stream(stream), extent, subscription, count)


def described(options: Options) -> Iterator[Attributes]:
    """Values of the kinds that attributes have by statistics, of the streams that are wanted."""
    try:
        known = load_statistics(Path(options.statistics))
    except ConfigError as error:
        raise OptionError("statistics", str(error)) from error
    for stream in known.streams:
        if options.streams and stream.stream not in options.streams:
            continue
        for name, each in stream.attributes.items():
            if each.numbers is not None or each.nan:
                yield {name: 0.0}
            if each.texts is not None:
                yield {name: ""}
            if each.true or each.false:
                yield {name: True}


def _newest(connection: Fetcher, extent: Extent, subscription: str, count: int) -> list[Attributes]:
    found: list[Attributes] = []
    for ticks in _TICKS:
        first = max(extent.end - ticks, extent.oldest)
        events = _events(connection, first, extent.end - 1, subscription)
        found = list(islice(events, count))
        events.close()
        if len(found) >= _EVENTS_MIN or first == extent.oldest:
            break
    return found


def _events(
    connection: Fetcher, first: int, last: int, subscription: str
) -> Generator[Attributes, None, None]:
    for fetched in connection.fetch(first, last, filter=subscription, bytes_max=_SAMPLE_BYTES):
        for _, _, body in rows_in(fetched.data):
            yield decode_event(body, STORED_LIMITS).attributes


def first_since(connection: Fetcher, extent: Extent, time_ns: int) -> int:
    """The first tick that was logged at that time or later; the end if there is none."""
    first, end = extent.oldest, extent.end
    while first < end:
        middle = (first + end) // 2
        found = _time_from(connection, middle, extent.end - 1)
        if found is None or found[1] >= time_ns:
            # What is before the event that was found, from the middle on, is silence.
            end = middle
        else:
            first = found[0] + 1
    return first


def _time_from(connection: Fetcher, first: int, last: int) -> tuple[int, int] | None:
    """Tick and time of the first event from a tick on; None if only silence follows."""
    pieces = connection.fetch(first, last, bytes_max=1)
    for fetched in pieces:
        for tick, time_ns, _ in rows_in(fetched.data):
            return tick, time_ns
    return None
