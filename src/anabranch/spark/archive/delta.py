"""An archive that is a Delta table as well, through delta-rs (`pip install 'anabranch[delta]'`).

The manifest stays what decides (`manifest`). After each commit the table's log is told the same:
which files are new, which are gone, and, as the version of the application `anabranch`, the number
of the commit. Files are shared. Rules:

1. What the table lacks is found by comparing, not by remembering: a process that was killed between
   the two logs leaves a table that is one commit behind, and the next one brings it up to date, in
   one transaction. So the table has each event once, as the archive has.
2. Columns that are new are added before the files that have them.
3. Delta does not take some characters in names of columns; then that is an error that names one.
4. A compaction takes files out of the table. A delta-rs that cannot do that together with adding
   others, in one transaction, is an error before anything is compacted.

State: the table's log.
"""

import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa

from anabranch.model.errors import LocalError
from anabranch.spark.archive.columns import ARROW, OWN, PARTITIONS
from anabranch.spark.archive.layout import day_of
from anabranch.spark.archive.manifest import File, State

APPLICATION: Final = "anabranch"
_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
#: What a path has as it is; everything else is written as %XX in Delta's log.
_PLAIN: Final = "/=-_."


def check_removing() -> None:
    """`LocalError` if files cannot be taken out of a table (rule 4)."""
    _library()
    if not hasattr(import_module("deltalake.transaction"), "RemoveAction"):
        raise LocalError(
            "this delta-rs cannot replace files of a table in one transaction, which a compaction"
            " needs: `pip install --upgrade deltalake`, or do not compact (--compact-at 0)"
        )


def mirror(directory: Path, state: State) -> None:
    """Let the Delta table of an archive say what the archive holds."""
    deltalake = _library()
    schema = _schema(state)
    if not (directory / "_delta_log").exists():
        deltalake.DeltaTable.create(
            str(directory), schema=schema, partition_by=list(PARTITIONS), name=APPLICATION
        )
    table = deltalake.DeltaTable(str(directory))
    if (table.transaction_version(APPLICATION) or 0) == state.number:
        return
    # Rule 2.
    known = {field.name for field in table.schema().fields}
    wanted = deltalake.Schema.from_arrow(schema).fields
    if new := [field for field in wanted if field.name not in known]:
        table.alter.add_columns(new)
    listed = pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist()
    there = set(map(unquote, listed))
    _tell(table, schema, state, there)


def _tell(table: object, schema: pa.Schema, state: State, there: set[str]) -> None:
    """One transaction that makes the table's files those of the archive."""
    words = import_module("deltalake.transaction")
    now_ms = time.time_ns() // 1_000_000
    gone = sorted(path for path in there if path not in state.files)
    if gone:
        check_removing()
    removed = [words.RemoveAction(quote(path, _PLAIN), True, now_ms) for path in gone]
    added = [
        words.AddAction(
            path=quote(file.path, _PLAIN),
            size=file.bytes,
            partition_values=_partition(file),
            modification_time=now_ms,
            data_change=True,
            stats=_statistics(file),
        )
        for path, file in state.files.items()
        if path not in there
    ]
    properties = words.CommitProperties(
        app_transactions=[words.Transaction(APPLICATION, state.number)]
    )
    write = getattr(table, "create_write_transaction")  # noqa: B009 - it has no types
    write(
        [*added, *removed],
        "append",
        schema,
        partition_by=list(PARTITIONS),
        commit_properties=properties,
    )


def _library() -> ModuleType:
    try:
        return import_module("deltalake")
    except ImportError as error:
        raise LocalError(
            "--format delta needs delta-rs: `pip install 'anabranch[delta]'`"
        ) from error


def _schema(state: State) -> pa.Schema:
    for column in state.columns:
        if bad := _FORBIDDEN & set(column.name):
            raise LocalError(
                f"column {column.name!r} cannot be in a Delta table, because of {min(bad)!r} in its"
                " name; archive as Parquet, or publish the attribute under another name"
            )
    fields = [pa.field(name, form) for name, form in OWN.items()]
    fields += [pa.field(each.name, ARROW[each.kind]) for each in state.columns]
    fields += [pa.field("date", pa.date32()), pa.field("stream", pa.string())]
    return pa.schema(fields)


def _partition(file: File) -> dict[str, str | None]:
    return {"date": day_of(file.first_ns).isoformat(), "stream": file.stream}


def _statistics(file: File) -> str:
    """What Delta prunes by."""
    found = {
        "numRecords": file.rows,
        "minValues": {"tick": file.first},
        "maxValues": {"tick": file.last},
        "nullCount": {"tick": 0},
    }
    return msgspec.json.encode(found).decode()
