"""Compaction: merges small files of an archive into larger ones, transparently to readers.

Watching a stream creates a file with every commit. Compaction merges adjacent files of one stream
and one day until they are large enough. Rules:

1. The new files hold the rows of the old ones, in the same order. The commit that names the new
   files removes the old ones, so an event is in the archive exactly once at every moment.
2. Files of at least half the target size are left alone. A task merges files with only a few row
   groups in memory.
3. If a compaction is killed at any point, the archive has either the old or the new files; the next
   writer removes files that no commit names.
4. Old files remain for a while under another name (`manifest`), for readers that have opened them.

State: the archive. One writer at a time.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zlib import crc32

import msgspec
import pyarrow as pa

from anabranch.model.durable_files import read_pieces, sync_directory
from anabranch.model.errors import AnabranchError, LocalError
from anabranch.spark.archive import manifest
from anabranch.spark.archive.columns import OWN, attribute_field, columns_in
from anabranch.spark.archive.files import (
    GROUP_ROWS,
    check_file,
    parquet_writer,
    read_batches,
    schema_of,
)
from anabranch.spark.archive.manifest import Commit, File, State, append_commit, read_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Target size of files.
FILE_BYTES: Final = 64 * 2**20
_TICK_MAX: Final = 2**62
#: Bytes of rows held in memory.
_GROUP_BYTES_MAX: Final = 64 * 2**20
_PIECE_BYTES: Final = 2**20

Progress = Callable[[int, int], None]


class Compacted(msgspec.Struct, kw_only=True):
    """Result of a compaction."""

    before: int = 0
    after: int = 0
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


def compact(
    spark: "SparkSession",
    directory: str | Path,
    *,
    file_bytes: int = FILE_BYTES,
    is_delta: bool = False,
    progress: Progress | None = None,
) -> Compacted:
    """Merge small files of an archive. See the rules at the top of this module."""
    place = Path(directory).absolute()
    if is_delta:
        from anabranch.spark.archive.delta import check_removing  # noqa: PLC0415 - optional

        check_removing()
    with manifest.held(place):
        state = read_state(place)
        manifest.settle(place, state.files)
        done, _ = compact_held(spark, place, state, file_bytes, progress)
        if is_delta:
            from anabranch.spark.archive.delta import mirror  # noqa: PLC0415 - optional

            mirror(place, read_state(place))
        return done


def compact_held(
    spark: "SparkSession",
    directory: Path,
    state: State,
    file_bytes: int = FILE_BYTES,
    progress: Progress | None = None,
) -> tuple[Compacted, State]:
    """Like `compact`, for a caller that holds the lock. Returns the new state, too."""
    groups = list(small_groups(state.files.values(), file_bytes))
    report = Compacted(before=len(state.files), after=len(state.files))
    # One commit per step: a crash loses only the current step.
    step = 16
    for begin in range(0, len(groups), step):
        chunk = groups[begin : begin + step]
        state = _joined(spark, directory, state, chunk, report)
        if progress is not None:
            progress(begin + len(chunk), len(groups))
    return report, state


def small_groups(files: Iterable[File], file_bytes: int) -> Iterator[list[File]]:
    """Adjacent files to be merged; `files` are ordered by stream and tick."""
    group: list[File] = []
    for file in files:
        is_small = file.bytes < file_bytes // 2
        is_near = bool(group) and _folder(group[-1]) == _folder(file)
        fits = sum(each.bytes for each in group) + file.bytes <= file_bytes
        if not (is_small and is_near and fits):
            if len(group) > 1:
                yield group
            group = []
        if is_small:
            group.append(file)
    if len(group) > 1:
        yield group


def _folder(file: File) -> str:
    return file.path.rpartition("/")[0]


def _joined(
    spark: "SparkSession",
    directory: Path,
    state: State,
    groups: Sequence[list[File]],
    report: Compacted,
) -> State:
    task = CompactTask(str(directory), groups)
    frame = spark.range(0, len(groups), 1, len(groups)).mapInArrow(task, "answer string")
    answers = [msgspec.json.decode(row[0], type=_Answer) for row in frame.collect()]
    for answer in answers:
        if answer.file is None:
            raise LocalError(answer.problem)
    added = [answer.file for answer in answers if answer.file is not None]
    old = [file for group in groups for file in group]
    commit = Commit(
        number=state.number + 1,
        kind="compact",
        added=added,
        removed=[file.path for file in old],
    )
    after = append_commit(directory, state, commit)
    manifest.retire(directory, commit.removed)
    manifest.publish(directory, [file.path for file in added])
    report.after += len(added) - len(old)
    report.rows += sum(file.rows for file in added)
    report.bytes_before += sum(file.bytes for file in old)
    report.bytes_after += sum(file.bytes for file in added)
    return after


# -- tasks -----------------------------------------------------------------------------------------


class _Answer(msgspec.Struct, frozen=True):
    """A new file, or an error."""

    file: File | None
    problem: str = ""


class CompactTask(msgspec.Struct, frozen=True):
    """Parameters of tasks; Spark sends it to them."""

    directory: str
    groups: Sequence[list[File]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    answer = _Answer(join_files(Path(self.directory), self.groups[number]))
                except (AnabranchError, OSError) as error:
                    answer = _Answer(None, str(error))
                text = msgspec.json.encode(answer).decode()
                yield pa.RecordBatch.from_pydict({"answer": pa.array([text], pa.string())})


def join_files(directory: Path, files: Sequence[File]) -> File:
    """Write the rows of chunk files into a new file that is to be committed."""
    places = [manifest.located(directory, file.path) for file in files]
    schema = _united([schema_of(place) for place in places])
    first, last = files[0], files[-1]
    day = manifest.day_of(first.first_ns)
    path = manifest.new_path(day, first.stream, first.first, last.last)
    target = manifest.part_of(directory, path)
    with target.open("xb") as sink:
        with parquet_writer(sink, schema) as writer:
            for table in _groups(places, schema):
                writer.write_table(table, row_group_size=GROUP_ROWS)
        sink.flush()
        os.fsync(sink.fileno())
    sync_directory(target.parent)
    checksum = 0

    def update_checksum(piece: bytes) -> None:
        nonlocal checksum
        checksum = crc32(piece, checksum)

    size = read_pieces(target, _PIECE_BYTES, update_checksum)
    joined = File(
        path=path,
        stream=first.stream,
        first=first.first,
        last=last.last,
        first_ns=first.first_ns,
        last_ns=last.last_ns,
        rows=sum(file.rows for file in files),
        bytes=size,
        crc=checksum,
    )
    # Verify before the old files are deleted.
    check_file(target, joined)
    return joined


def _united(schemas: Sequence[pa.Schema]) -> pa.Schema:
    names = {column.name: column.pair for each in schemas for column in columns_in(each)}
    fields = [pa.field(name, form) for name, form in OWN.items()]
    fields += [attribute_field(name, names[name]) for name in sorted(names)]
    return pa.schema(fields)


def _groups(places: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for place in places:
        for batch in read_batches(place, 0, _TICK_MAX):
            gathered.append(_fitted(batch, schema))
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= GROUP_ROWS or size >= _GROUP_BYTES_MAX:
                yield pa.Table.from_batches(gathered, schema)
                gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered, schema)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    present = set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in present else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
