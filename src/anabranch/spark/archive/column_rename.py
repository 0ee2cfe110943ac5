"""Rewriting of files whose column names differ from those of the archive.

Concurrent tasks cannot agree on the names of new columns (`columns`). Each task proposes names, and
where the driver decides otherwise, the file is read and written again with the same rows. That
happens only when an attribute is new and has several kinds from the start. This module keeps no
state.
"""

import contextlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.spark.archive.columns import Naming, attribute_field
from anabranch.spark.archive.files import write_file
from anabranch.spark.archive.layout import part_of
from anabranch.spark.archive.manifest import File
from anabranch.spark.archive.task import Proposed


def agreed(directory: Path, proposed: Proposed, naming: Naming) -> File:
    """The file with the column names of the archive, rewritten if necessary."""
    renamed = {
        column.name: column.pair
        for column in proposed.columns
        if naming[column.pair] != column.name
    }
    if not renamed:
        return proposed.file
    path = part_of(directory, proposed.file.path)
    table = pq.read_table(path)
    fields = [
        attribute_field(naming[renamed[field.name]], renamed[field.name])
        if field.name in renamed
        else field
        for field in table.schema
    ]
    renewed = pa.Table.from_arrays(table.columns, schema=pa.schema(fields))
    file = write_file(directory, proposed.file.stream, renewed)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return file
