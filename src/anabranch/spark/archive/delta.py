"""Delta Lake mirror of an archive, through delta-rs (`pip install 'anabranch[delta]'`).

The manifest is authoritative (`manifest`). Each commit is repeated in the log of the Delta table:
new files, removed files, and the number of the commit as the version of the application
`anabranch`. Both share the files. Rules:

1. Missing changes are found by comparison: a process that was killed between the two logs leaves a
   table that is one commit behind, and the next one brings it up to date in one transaction. The
   table therefore has each event once, like the archive.
2. New columns are added before the files that have them.
3. Delta does not allow some characters in column names; such a name is an error.
4. A compaction removes files from the table. A delta-rs version that cannot remove and add files in
   one transaction is an error before anything is compacted.

State: the log of the table.
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
from anabranch.spark.archive.manifest import File, State, day_of

APPLICATION: Final = "anabranch"
_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
#: Characters that remain in a path; all others are written as %XX in Delta's log.
_PLAIN: Final = "/=-_."


def check_removing() -> None:
    """Raise `LocalError` if files cannot be removed from a table (rule 4)."""
    _library()
    if not hasattr(import_module("deltalake.transaction"), "RemoveAction"):
        raise LocalError(
            "this version of delta-rs cannot replace files in one transaction, which compaction"
            " needs: `pip install --upgrade deltalake`, or disable compaction (--compact-at 0)"
        )


def mirror(directory: Path, state: State) -> None:
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
    listed_paths = set(map(unquote, listed))
    _update_files(table, schema, state, listed_paths)


def _update_files(table: object, schema: pa.Schema, state: State, listed_paths: set[str]) -> None:
    transaction = import_module("deltalake.transaction")
    now_ms = time.time_ns() // 1_000_000
    removed_paths = sorted(path for path in listed_paths if path not in state.files)
    if removed_paths:
        check_removing()
    removed = [
        transaction.RemoveAction(quote(path, _PLAIN), True, now_ms) for path in removed_paths
    ]
    added = [
        transaction.AddAction(
            path=quote(file.path, _PLAIN),
            size=file.bytes,
            partition_values=_partition(file),
            modification_time=now_ms,
            data_change=True,
            stats=_statistics(file),
        )
        for path, file in state.files.items()
        if path not in listed_paths
    ]
    properties = transaction.CommitProperties(
        app_transactions=[transaction.Transaction(APPLICATION, state.number)]
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
                f"column {column.name!r} cannot be in a Delta table because its name contains"
                f" {min(bad)!r}; archive as Parquet, or publish the attribute under another name"
            )
    fields = [pa.field(name, form) for name, form in OWN.items()]
    fields += [pa.field(each.name, ARROW[each.kind]) for each in state.columns]
    fields += [pa.field("date", pa.date32()), pa.field("stream", pa.string())]
    return pa.schema(fields)


def _partition(file: File) -> dict[str, str | None]:
    return {"date": day_of(file.first_ns).isoformat(), "stream": file.stream}


def _statistics(file: File) -> str:
    """Statistics that Delta uses for pruning."""
    found = {
        "numRecords": file.rows,
        "minValues": {"tick": file.first},
        "maxValues": {"tick": file.last},
        "nullCount": {"tick": 0},
    }
    return msgspec.json.encode(found).decode()
