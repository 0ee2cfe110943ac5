"""Archive reader: reads ranges of ticks from an archive like from a log, without Spark.

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

State: the manifest, in memory.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from anabranch.model.client_frames import Fetched
from anabranch.model.errors import LocalError
from anabranch.model.filter import Filter
from anabranch.spark.archive.columns import columns_in
from anabranch.spark.archive.files import read_batches
from anabranch.spark.archive.layout import identity_of, located
from anabranch.spark.archive.manifest import File, Span, read_state
from anabranch.spark.archive.restored_rows import Restoring

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
