"""Task of the archiving job: fetches a range of ticks of one stream, and writes files.

A task writes files that no commit names yet, and reports them; the driver decides about them. A
task that is retried writes other files, and those of the first attempt are removed later. Rules:

1. A file holds events of one stream and one day, from at most about `FILE_BYTES` of rows.
2. Known columns have the names of the archive; for new ones, each file makes a proposal
   (`columns`). If two files propose different names, the driver has one rewritten.
3. Expected failures are reported as answers, so that the driver can print them in one line. Only
   unexpected failures fail the task.

State: the files.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from anabranch.client.errors import ConnectError, TicksNotKeptError
from anabranch.model.client_frames import Fetched
from anabranch.model.errors import AnabranchError, LocalError
from anabranch.spark.archive.columns import OWN, ColumnName, Naming, Pair
from anabranch.spark.archive.files import named_table, write_file
from anabranch.spark.archive.layout import day_number
from anabranch.spark.archive.manifest import File, Span
from anabranch.spark.archive.tables import Tabling, pair_of
from anabranch.spark.broker_access import fetcher
from anabranch.spark.options import Options

#: Bytes of rows collected in memory for one file.
FILE_BYTES: Final = 64 * 2**20
PIECE_BYTES: Final = 2 * 2**20


class Proposed(msgspec.Struct, frozen=True):
    """A file, and its proposed names for new columns."""

    file: File
    columns: list[ColumnName]
    #: Number of values in each of these columns.
    counts: list[int]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a task."""

    #: Number of the range.
    number: int
    files: list[Proposed] = []
    #: Error message; in that case there are no files.
    problem: str = ""
    #: The oldest tick of the log, if it has trimmed the start of the range.
    oldest: int = 0
    #: Whether the broker is unreachable; a retry may succeed.
    is_away: bool = False


class Part(msgspec.Struct, frozen=True):
    """Input of a task: ticks of a stream, and the addresses of its origin."""

    span: Span
    addresses: tuple[str, ...] = ()


class ArchiveTask(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the tasks of one round; Spark sends it to them."""

    options: Options
    network: str
    directory: str
    columns: Sequence[ColumnName]
    parts: Sequence[Part]
    file_bytes: int = FILE_BYTES

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Takes part numbers, returns answers."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                answer = msgspec.json.encode(self.answer(number)).decode()
                yield pa.RecordBatch.from_pydict({"answer": pa.array([answer], pa.string())})

    def answer(self, number: int) -> Answer:
        """Archive one part."""
        try:
            return Answer(number=number, files=list(self._files(self.parts[number])))
        except TicksNotKeptError as error:
            return Answer(number=number, problem=str(error), oldest=error.oldest)
        except (AnabranchError, OSError) as error:
            problem = f"{self.parts[number].span}: {error}"
            return Answer(number=number, problem=problem, is_away=isinstance(error, ConnectError))

    def _files(self, part: Part) -> Iterator[Proposed]:
        for batches in by_file(self._batches(part), self.file_bytes):
            table = pa.concat_tables(
                [pa.Table.from_batches([each]) for each in batches], promote_options="default"
            )
            yield self._written(part.span.stream, table)

    def _written(self, stream: str, table: pa.Table) -> Proposed:
        naming = Naming(self.columns)
        counts = pair_counts(table)
        new = naming.add(counts)
        names = {pair: naming[pair] for pair in counts}
        file = write_file(Path(self.directory), stream, named_table(table, names))
        return Proposed(file, new, [counts[each.pair] for each in new])

    def _batches(self, part: Part) -> Iterator[tuple[pa.RecordBatch, int]]:
        tabling = Tabling()
        for fetched in self._pieces(part):
            if fetched.count:
                batch = tabling.batch(fetched.data, fetched.count)
                yield from ((day, len(fetched.data)) for day in by_day(batch))

    def _pieces(self, part: Part) -> Iterator[Fetched]:
        span, first = part.span, part.span.first
        with fetcher(
            self.options, span.stream, network=self.network, addresses=part.addresses
        ) as connection:
            for fetched in connection.fetch(first, span.last, bytes_max=PIECE_BYTES):
                yield fetched
                first = fetched.through + 1
        if first <= span.last:
            raise LocalError(
                f"stream {span.stream!r} ends before tick {first}, but had tick {span.last} when"
                " the run was planned: its log has lost its end"
            )


def pair_counts(table: pa.Table) -> dict[Pair, int]:
    """Number of values per attribute and kind."""
    return {
        pair_of(name): len(table) - table.column(name).null_count
        for name in table.schema.names
        if name not in OWN
    }


def by_day(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch by day."""
    days = day_number(batch.column("loggedAt").cast(pa.int64()).to_numpy() * 1_000)
    cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), batch.num_rows]
    for begin, end in pairwise(cuts):
        yield batch if end - begin == batch.num_rows else batch.slice(begin, end - begin)


def by_file(
    batches: Iterable[tuple[pa.RecordBatch, int]], file_bytes: int
) -> Iterator[list[pa.RecordBatch]]:
    """Group batches by file; each comes with the size of its rows."""
    gathered: list[pa.RecordBatch] = []
    size, day = 0, -1
    for batch, batch_bytes in batches:
        today = day_number(batch.column("loggedAt")[0].value * 1_000)
        if gathered and (today != day or size + batch_bytes > file_bytes):
            yield gathered
            gathered, size = [], 0
        gathered.append(batch)
        size, day = size + batch_bytes, today
    if gathered:
        yield gathered
