"""Parquet files of an archive: writing, reading and checking.

1. zstd, checksums on every page, a page index, row groups of `GROUP_ROWS` rows: readers find a
   range of ticks, or of an attribute, without reading the rest.
2. Floats have no dictionary: readers that look up a value in a dictionary distinguish -0.0 from
   0.0, which filters do not. Ticks, times and sequences are delta-encoded.
3. A file is completely on disk before it is reported.
4. An unreadable file is an error that names it and the remedy.

This module keeps no state.
"""

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.model.durable_files import read_pieces, sync_directory
from anabranch.model.errors import LocalError
from anabranch.spark.archive.columns import OWN, Pair, attribute_field, pair_of
from anabranch.spark.archive.manifest import File, day_of, new_path, part_of

GROUP_ROWS: Final = 131_072
#: Approximate bytes per read.
BATCH_BYTES: Final = 16 * 2**20
_BATCH_ROWS_MAX: Final = 16_384
_PIECE_BYTES: Final = 2**20
#: Ascending columns, or nearly so.
_DIFFERENCES: Final = ("tick", "loggedAt", "seq", "timestamp")
_NO_STATISTICS: Final = frozenset({"payload", "destinations"})


class DamagedFileError(LocalError):
    """A file of an archive that is unreadable, or has unexpected content."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is damaged: {reason}; restore it from a copy or, while the log still has its"
            " ticks, archive again into another directory"
        )
        self.path = path


# -- writing -------------------------------------------------------------------------------------


def named_table(table: pa.Table, names: Mapping[Pair, str]) -> pa.Table:
    """Rename the columns of a table to their final names, and order them as in the archive."""
    drafts = [name for name in table.schema.names if name not in OWN]
    drafts.sort(key=lambda name: names[pair_of(name)])
    fields = [pa.field(name, form) for name, form in OWN.items()]
    fields += [attribute_field(names[pair_of(name)], pair_of(name)) for name in drafts]
    columns = [table.column(name) for name in (*OWN, *drafts)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def write_file(directory: Path, stream: str, table: pa.Table) -> File:
    """Write a non-empty table of one day as a file that is to be committed."""
    ticks, times = table.column("tick"), _times(table)
    path = new_path(day_of(times[0]), stream, ticks[0].as_py(), ticks[-1].as_py())
    sink = io.BytesIO()
    with parquet_writer(sink, table.schema) as writer:
        writer.write_table(table, row_group_size=GROUP_ROWS)
    data = sink.getbuffer()
    place = part_of(directory, path)
    make_folder(directory, place.parent)
    with place.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(place.parent)
    return File(
        path=path,
        stream=stream,
        first=ticks[0].as_py(),
        last=ticks[-1].as_py(),
        first_ns=times[0],
        last_ns=times[1],
        rows=len(table),
        bytes=len(data),
        crc=crc32(data),
    )


def make_folder(directory: Path, folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        sync_directory(folder.parent)
        sync_directory(directory)


def parquet_writer(sink: io.BytesIO | io.BufferedWriter, schema: pa.Schema) -> pq.ParquetWriter:
    names = [field.name for field in schema]
    plain = {field.name for field in schema if pa.types.is_floating(field.type)} | {*_DIFFERENCES}
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        # The values of lists are one level deeper, and a dictionary does not help them.
        use_dictionary=[name for name in names if name not in {*plain, "destinations"}],
        column_encoding=dict.fromkeys(_DIFFERENCES, "DELTA_BINARY_PACKED"),
        write_statistics=[name for name in names if name not in _NO_STATISTICS],
        write_page_index=True,
        write_page_checksum=True,
        sorting_columns=[pq.SortingColumn(names.index("tick"))],
    )


def _times(table: pa.Table) -> tuple[int, int]:
    whole, rest = table.column("loggedAt").cast(pa.int64()), table.column("loggedNanos")
    first, last = (whole[i].as_py() * 1_000 + rest[i].as_py() for i in (0, -1))
    return first, last


# -- reading -------------------------------------------------------------------------------------


def read_batches(
    path: Path, first: int, last: int, columns: Iterable[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file between two ticks, in order."""
    wanted = None if columns is None else ["tick", *columns]
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            groups = [
                group for group in range(file.num_row_groups) if _overlaps(file, group, first, last)
            ]
            for batch in file.iter_batches(_rows(file), row_groups=groups, columns=wanted):
                cut = _cut(batch, first, last)
                if cut.num_rows:
                    yield cut
    except (pa.ArrowException, OSError) as error:
        raise DamagedFileError(path, str(error)) from error


def _rows(file: pq.ParquetFile) -> int:
    """Rows per read: fewer, if they are large."""
    found = file.metadata
    size = sum(found.row_group(each).total_byte_size for each in range(found.num_row_groups))
    return int(min(max(BATCH_BYTES * found.num_rows // max(size, 1), 1), _BATCH_ROWS_MAX))


def _overlaps(file: pq.ParquetFile, group: int, first: int, last: int) -> bool:
    found = file.metadata.row_group(group).column(0).statistics
    return found is None or not found.has_min_max or (found.min <= last and found.max >= first)


def _cut(batch: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    ticks = batch.column("tick").to_numpy()
    begin, end = ticks.searchsorted([first, last + 1])
    return batch if begin == 0 and end == len(ticks) else batch.slice(begin, end - begin)


def schema_of(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise DamagedFileError(path, str(error)) from error


# -- checking ------------------------------------------------------------------------------------


def check_file(path: Path, expected: File) -> None:
    """Raise `DamagedFileError` unless a file matches its manifest entry exactly."""
    checksum = 0

    def update_checksum(piece: bytes) -> None:
        nonlocal checksum
        checksum = crc32(piece, checksum)

    size = read_pieces(path, _PIECE_BYTES, update_checksum)
    if size != expected.bytes:
        raise DamagedFileError(path, f"it has {size} bytes, not {expected.bytes}")
    if checksum != expected.crc:
        raise DamagedFileError(path, "its checksum does not match")
    rows, before = 0, 0
    for batch in read_batches(path, 0, 2**63 - 2, ()):
        ticks = batch.column("tick").to_numpy()
        if rows == 0 and ticks[0] != expected.first:
            raise DamagedFileError(path, f"it starts at tick {ticks[0]}, not {expected.first}")
        if ticks[0] <= before or (ticks[1:] <= ticks[:-1]).any():
            raise DamagedFileError(path, f"ticks do not ascend after {before}")
        rows, before = rows + len(ticks), int(ticks[-1])
    if (rows, before) != (expected.rows, expected.last):
        raise DamagedFileError(path, f"it has {rows} events and ends at tick {before}")
