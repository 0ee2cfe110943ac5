"""Backlog from an archive for a subscriber that starts in the past, without Spark.

    backlog = Backlog(Path("archive"), "price > 10", options)
    past = backlog.look("beginning")
    for time_ns, stream, tick, body in backlog.rows(past):
        ...
    # a live subscription continues with since=past.handover

Events are ordered by time, and within a stream by tick. For a selective query on a large archive,
Spark is the better choice (`history`): this module reads every event of the range in one thread.

State: the manifest that `look` has read.
"""

from collections.abc import Iterator, Mapping
from heapq import merge
from pathlib import Path

from anabranch.client.subscribe_request import Since
from anabranch.model.encoding import rows_in
from anabranch.spark.archive.past import HistoricalRead, OnMissing, look_back
from anabranch.spark.archive.reader import ArchiveReader
from anabranch.spark.options import Options
from anabranch.spark.survey import Survey

#: Time, stream, tick, encoded event.
Row = tuple[int, str, int, bytes]


class Backlog:
    """Past events of a subscription. See the top of this module."""

    def __init__(
        self, archive: Path, filter: str, options: Options, on_missing: OnMissing = "fail"
    ) -> None:
        self._filter = filter
        self._options = options
        self._on_missing: OnMissing = on_missing
        self._reader = ArchiveReader(archive)

    def look(self, since: Since) -> HistoricalRead:
        """Plan which ranges are wanted, and where they are available now."""
        self._reader.renew()
        with Survey(self._options) as survey:
            return look_back(self._reader, survey, since=since, on_missing=self._on_missing)

    def rows(self, past: HistoricalRead) -> Iterator[Row]:
        """The events in the archive."""
        return merge(*(self._rows(past, stream) for stream in past.parts))

    def _rows(self, past: HistoricalRead, stream: str) -> Iterator[Row]:
        span = past.parts[stream].archived
        if span is not None:
            for fetched in self._reader.pieces(stream, span.first, span.last, self._filter):
                for tick, time_ns, body in rows_in(fetched.data):
                    yield time_ns, stream, tick, body

    def has_moved(self, positions: Mapping[str, int]) -> bool:
        """Whether a log now starts after these ticks, so that the archive must be read again."""
        with Survey(self._options) as survey:
            extents = survey.look().extents
        return any(extents[s].oldest > tick + 1 for s, tick in positions.items() if s in extents)
