"""Reads from an archive without Spark: ranges of ticks, and the past of a subscription.

Ranges of ticks, as from a log:

    reader = ArchiveReader(Path("archive"))
    for fetched in reader.pieces("edge-1", 1, 1_000, filter="price > 10"):
        for tick, time_ns, body in rows_in(fetched.data):
            ...

The results are those of `Fetcher.fetch`, with the same rules: between the first and the last tick
there is no other match, expired events are left out, and `through` includes silence. Rules:

1. A reader reads the archive at one commit, the newest when it was created or `renew`ed.
2. Only files, and parts of files, that hold wanted ticks are read.
3. Ticks outside of the archive are an error; `missing` returns the ticks of a range that the log
   trimmed before they could be archived.
4. A damaged or missing file is an error that names it.

What is in the archive, what is in the log, and what is missing:

    past = look_back(reader, survey, since="beginning")
    past.parts        # stream → range in the archive, and range in the log
    past.missing      # ranges that are no longer available
    past.positions    # where a live subscription continues

Rules:

1. Archived ticks are read from the archive, and later ones from the log; together they form one
   sequence without gaps and duplicates.
2. `since` is the argument of `subscribe`: the beginning (of the archive, or of the log if that
   starts earlier), a time by the origins' clocks, or ticks after which to start; streams that are
   not named are then not wanted. `until` is an exclusive time, or inclusive ticks.
3. Ticks that neither has are missing. A request for the beginning asks for all available ticks,
   so only gaps count as missing. If a time is requested, and the first available tick was logged at
   or after it, all earlier ticks are missing, because their times are unknown.

The backlog of a subscriber that starts in the past:

    backlog = Backlog(Path("archive"), "price > 10", options)
    past = backlog.look("beginning")
    for time_ns, stream, tick, body in backlog.rows(past):
        ...
    # a live subscription continues with since=past.handover

Events are ordered by time, and within a stream by tick. For a selective query on a large archive,
Spark is the better choice (`history`): this module reads every event of the range in one thread.

State: the manifest, in memory.
"""

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from heapq import merge
from pathlib import Path
from typing import Literal

import msgspec

from anabranch.client.subscribe_request import Since, read_since
from anabranch.model.client_frames import Fetched
from anabranch.model.encoding import rows_in
from anabranch.model.errors import LocalError
from anabranch.model.filter import Filter
from anabranch.model.timestamps import nanoseconds_of
from anabranch.spark.archive.columns import Restoring, columns_in
from anabranch.spark.archive.files import read_batches
from anabranch.spark.archive.manifest import File, Span, identity_of, located, read_state
from anabranch.spark.options import Options
from anabranch.spark.survey import Extent, Survey, SurveyResult, first_since

_TICK_MAX = 2**62
_NO_REQUEST = 0


class ArchiveReader:
    """Reads an archive. See the rules at the top of this module."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        self.network = identity_of(self.directory).network
        self.state = read_state(self.directory)

    def renew(self) -> None:
        """Switch to the newest commit."""
        self.state = read_state(self.directory)

    def span(self, stream: str) -> Span | None:
        """The archived range of a stream."""
        found = self.state.ranges.get(stream)
        return None if found is None else Span(stream, *found)

    def missing(self, span: Span) -> list[Span]:
        """The parts of a range that were trimmed before they could be archived."""
        return [
            Span(span.stream, max(each.first, span.first), min(each.last, span.last))
            for each in self.state.missing
            if each.stream == span.stream and each.first <= span.last and span.first <= each.last
        ]

    def files(self, span: Span) -> list[File]:
        """The files with events in a range, in tick order."""
        return [
            file
            for file in self.state.files.values()
            if file.stream == span.stream and file.first <= span.last and span.first <= file.last
        ]

    def first_since(self, stream: str, time_ns: int) -> int:
        """The first archived tick with an event logged at or after a time; the one after the last
        if there is none."""
        archived = self.span(stream)
        assert archived is not None
        for file in self.files(archived):
            if file.last_ns >= time_ns:
                return self._tick_in(file, time_ns)
        return archived.last + 1

    def _tick_in(self, file: File, time_ns: int) -> int:
        if file.first_ns >= time_ns:
            return file.first
        path = located(self.directory, file.path)
        columns = ("loggedAt", "loggedNanos")
        for batch in read_batches(path, file.first, file.last, columns):
            moments = batch.column("loggedAt").cast("int64").to_numpy() * 1_000
            moments += batch.column("loggedNanos").to_numpy()
            place = int(moments.searchsorted(time_ns))
            if place < len(moments):
                return int(batch.column("tick")[place].as_py())
        return file.last + 1

    def pieces(self, stream: str, first: int, last: int, filter: str = "") -> Iterator[Fetched]:
        """The matching events of a range; together the pieces cover all of it."""
        archived = self.span(stream)
        if archived is None or first < archived.first or last > archived.last:
            has = "nothing" if archived is None else f"ticks {archived.first} to {archived.last}"
            raise LocalError(
                f"the archive {self.directory} has {has} of stream {stream!r}, not all of"
                f" {first} to {last}"
            )
        chosen = Filter.parse(filter) if filter else None
        for file in self.files(Span(stream, first, last)):
            for through, count, data in self._rows(file, first, last, chosen):
                yield Fetched(_NO_REQUEST, first, through, count, data)
                first = through + 1
        if first <= last:
            yield Fetched(_NO_REQUEST, first, last, 0, b"")

    def _rows(
        self, file: File, first: int, last: int, filter: Filter | None
    ) -> Iterator[tuple[int, int, bytes]]:
        restoring: Restoring | None = None
        for batch in read_batches(located(self.directory, file.path), first, last):
            if restoring is None:
                restoring = Restoring(columns_in(batch.schema), filter, time.time_ns())
            data, count = restoring.rows(batch)
            yield batch.column("tick")[-1].as_py(), count, data


Until = Mapping[str, int] | datetime | int | None
#: What to do if requested ticks are not available.
OnMissing = Literal["fail", "report"]


class MissingTicksError(LocalError):
    """Requested ticks are neither in the archive nor in the log."""

    def __init__(self, missing: list[Span]) -> None:
        listed = "; ".join(map(str, missing[:4])) + ("; …" if len(missing) > 4 else "")
        super().__init__(
            f"{listed}: no longer in the archive or the log; request later ticks, or read what is"
            " available with --missing report"
        )
        self.missing = missing


class Part(msgspec.Struct, frozen=True):
    """The wanted ranges of one stream."""

    archived: Span | None
    logged: Span | None


class HistoricalRead(msgspec.Struct, frozen=True):
    """The wanted ranges of all streams."""

    network: str
    parts: dict[str, Part]
    missing: list[Span]
    #: Stream → tick up to which everything is in `parts` or not wanted. Streams that have left the
    #: network, and can have no new events, are not included.
    positions: dict[str, int]
    #: Stream → address of its origin, if known.
    addresses: dict[str, tuple[str, ...]]

    @property
    def handover(self) -> dict[str, int]:
        """Where a live subscription continues if only the archive is read."""
        logged = {span.stream: span.first - 1 for span in self.logged}
        return {stream: logged.get(stream, tick) for stream, tick in self.positions.items()}

    @property
    def archived(self) -> list[Span]:
        """The ranges to read from the archive."""
        return [part.archived for part in self.parts.values() if part.archived is not None]

    @property
    def logged(self) -> list[Span]:
        """The ranges to read from logs."""
        return [part.logged for part in self.parts.values() if part.logged is not None]


def look_back(
    reader: ArchiveReader | None,
    survey: Survey | None,
    *,
    since: Since = "beginning",
    until: Until = None,
    on_missing: OnMissing = "fail",
) -> HistoricalRead:
    """Plan a historical read. See the rules at the top of this module."""
    planner = _Planner(reader, survey, since, until)
    past = planner.past()
    if past.missing and on_missing == "fail":
        raise MissingTicksError(past.missing)
    return past


class _Planner:
    def __init__(
        self, reader: ArchiveReader | None, survey: Survey | None, since: Since, until: Until
    ) -> None:
        self._reader = reader
        self._survey = survey
        self._seen = None if survey is None else survey.look()
        self._network = _network(reader, self._seen)
        self._start, self._start_ns, self._start_ticks = read_since(since)
        self._until_ticks = until if isinstance(until, Mapping) else None
        self._until_ns = _nanoseconds(until)
        self._extents = {} if self._seen is None else self._seen.extents
        self._spans = _spans(reader, survey)
        for stream in (*self._start_ticks, *(self._until_ticks or {})):
            if stream not in self._extents and stream not in self._spans:
                known = ", ".join(sorted({*self._extents, *self._spans})) or "none"
                raise LocalError(f"no stream {stream!r}; the streams are {known}")
        for stream, span in self._spans.items():
            check_end(span, self._extents.get(stream))
        for stream, tick in self._start_ticks.items():
            if tick > self._end(stream):
                raise LocalError(
                    f"tick {tick} of {stream!r} does not exist; the newest is {self._end(stream)}"
                )

    def past(self) -> HistoricalRead:
        parts: dict[str, Part] = {}
        missing: list[Span] = []
        positions: dict[str, int] = {}
        for stream in sorted({*self._extents, *self._spans}):
            first, last = self._range(stream)
            parts[stream], lost = self._split(stream, first, last)
            missing += lost
            if self._seen is None or stream in self._seen.origins:
                positions[stream] = self._end(stream) if first > last else last
        addresses = {} if self._seen is None else {s: self._seen.addresses(s) for s in parts}
        return HistoricalRead(self._network, parts, missing, positions, addresses)

    # -- per stream -----------------------------------------------------------------------------

    def _begin(self, stream: str) -> int:
        """The oldest available tick; an archive starts at the oldest tick that the log had then."""
        span = self._spans.get(stream)
        return self._extents[stream].oldest if span is None else span.first

    def _end(self, stream: str) -> int:
        """The newest available tick."""
        span, extent = self._spans.get(stream), self._extents.get(stream)
        return max(0 if span is None else span.last, 0 if extent is None else extent.end - 1)

    def _range(self, stream: str) -> tuple[int, int]:
        """The first and the last wanted tick; the last is lower if none is wanted."""
        begin, end = self._begin(stream), self._end(stream)
        if self._start == "now":
            first = end + 1
        elif self._start == "tick":
            first = self._start_ticks.get(stream, end) + 1
        elif self._start == "time":
            first = self._since(stream, self._start_ns)
            if first == begin > 1:
                # Rule 3.
                first = 1
        else:
            first = begin
        last = end
        if self._until_ticks is not None:
            last = min(end, self._until_ticks.get(stream, end))
        elif self._until_ns is not None:
            last = min(end, self._since(stream, self._until_ns) - 1)
        return first, last

    def _since(self, stream: str, time_ns: int) -> int:
        """The first tick at or after a time; the one after the newest if there is none."""
        span, extent = self._spans.get(stream), self._extents.get(stream)
        if span is not None and self._reader is not None:
            found = self._reader.first_since(stream, time_ns)
            if found <= span.last:
                return found
        if extent is None or self._survey is None:
            return self._end(stream) + 1
        oldest = extent.oldest if span is None else max(extent.oldest, span.last + 1)
        if oldest >= extent.end:
            return self._end(stream) + 1
        rest = Extent(oldest, extent.end, extent.newest_ns)
        return first_since(self._survey.stream(stream), rest, time_ns)

    def _split(self, stream: str, first: int, last: int) -> tuple[Part, list[Span]]:
        """The parts of a range in the archive and in the log, and the missing ranges."""
        if first > last:
            return Part(None, None), []
        missing = []
        begin = self._begin(stream)
        if first < begin:
            missing.append(Span(stream, first, min(begin - 1, last)))
            first = begin
        archived = self._archived(stream, first, last)
        if archived is not None:
            assert self._reader is not None
            missing += self._reader.missing(archived)
            first = archived.last + 1
        extent = self._extents.get(stream)
        if first > last or extent is None:
            return Part(archived, None), missing
        if first < extent.oldest:
            missing.append(Span(stream, first, min(extent.oldest - 1, last)))
            first = extent.oldest
        return Part(archived, Span(stream, first, last) if first <= last else None), missing

    def _archived(self, stream: str, first: int, last: int) -> Span | None:
        span = self._spans.get(stream)
        if span is None or last < span.first or span.last < first:
            return None
        return Span(stream, max(first, span.first), min(last, span.last))


def _spans(reader: ArchiveReader | None, survey: Survey | None) -> dict[str, Span]:
    """The archived ranges of the wanted streams."""
    wanted = () if survey is None else survey.streams
    ranges = {} if reader is None else reader.state.ranges
    return {s: Span(s, *ends) for s, ends in ranges.items() if not wanted or s in wanted}


def _network(reader: ArchiveReader | None, seen: SurveyResult | None) -> str:
    if reader is None:
        if seen is None:
            raise LocalError("an archive, brokers, or both are required")
        return seen.network
    if seen is not None and seen.network != reader.network:
        raise LocalError(
            f"{reader.directory} is an archive of network {reader.network!r}, but the brokers"
            f" belong to {seen.network!r}"
        )
    return reader.network


def _nanoseconds(until: Until) -> int | None:
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise LocalError(f"until={until.isoformat()} has no time zone; add one, such as UTC")
        return nanoseconds_of(until)
    return until if isinstance(until, int) else None


def check_end(archived: Span, extent: Extent | None) -> None:
    """Raise `LocalError` if a log ends before its archived range."""
    if extent is not None and archived.last >= extent.end:
        raise LocalError(
            f"the archive has tick {archived.last} of stream {archived.stream!r}, but the stream"
            f" ends before tick {extent.end}: it has lost the end of its log, or belongs to another"
            " network with the same name"
        )


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
