"""What a task of the archiving job does: fetch a range of ticks of one stream, and write files.

A task writes files that nobody names yet, and answers what it has written; what becomes of it is
the driver's decision. A task that is tried again writes other files, and those of the first attempt
are swept away some day. Rules:

1. A file holds events of one stream and one day, about `FILE_BYTES` of rows at most.
2. Columns are named as far as the archive knows them; for what is new, each file makes a proposal
   (`naming`). Where two files propose different things, the driver has one written anew.
3. What goes wrong is an answer, too: the driver says it in one line. Only what nobody expects is an
   error of the task.

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

#: Rows that are gathered in memory for one file.
FILE_BYTES: Final = 64 * 2**20
PIECE_BYTES: Final = 2 * 2**20


class Proposed(msgspec.Struct, frozen=True):
    """A file, and what it proposes to call the columns that nobody knows yet."""

    file: File
    columns: list[ColumnName]
    #: Values in each of these columns.
    counts: list[int]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a task has done."""

    #: Which of the ranges it was.
    number: int
    files: list[Proposed] = []
    #: What went wrong; then there are no files.
    problem: str = ""
    #: The oldest tick of the log, if it has forgotten the beginning of the range.
    oldest: int = 0
    #: Whether the broker is not there; it may come back.
    is_away: bool = False


class Part(msgspec.Struct, frozen=True):
    """One task: ticks of a stream, and where they are."""

    span: Span
    addresses: tuple[str, ...] = ()


class ArchiveTask(msgspec.Struct, frozen=True, kw_only=True):
    """All that tasks of one round have to know; Spark sends it to them."""

    options: Options
    network: str
    directory: str
    columns: Sequence[ColumnName]
    parts: Sequence[Part]
    file_bytes: int = FILE_BYTES

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Numbers of parts in, answers out."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                answer = msgspec.json.encode(self.answer(number)).decode()
                yield pa.RecordBatch.from_pydict({"answer": pa.array([answer], pa.string())})

    def answer(self, number: int) -> Answer:
        """Do one part."""
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
                f"stream {span.stream!r} ends before tick {first}, and had tick {span.last} a"
                " moment ago: its log has lost its end"
            )


def pair_counts(table: pa.Table) -> dict[Pair, int]:
    """How many values there are in each kind of each attribute."""
    return {
        pair_of(name): len(table) - table.column(name).null_count
        for name in table.schema.names
        if name not in OWN
    }


def by_day(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts that are of one day each."""
    days = day_number(batch.column("loggedAt").cast(pa.int64()).to_numpy() * 1_000)
    cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), batch.num_rows]
    for begin, end in pairwise(cuts):
        yield batch if end - begin == batch.num_rows else batch.slice(begin, end - begin)


def by_file(
    batches: Iterable[tuple[pa.RecordBatch, int]], file_bytes: int
) -> Iterator[list[pa.RecordBatch]]:
    """Batches that go into one file together; beside each is how large its rows were."""
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
