"""Events as columns of Arrow: one for each attribute and each kind of value it has."""

from collections.abc import Sequence

import pyarrow as pa

from anabranch.model.event import Value
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.column_types import Kind

_KINDS: dict[type, tuple[Kind, pa.DataType]] = {
    str: ("text", pa.string()),
    int: ("integer", pa.int64()),
    float: ("float", pa.float64()),
    bool: ("truth", pa.bool_()),
}


def columns_of(
    events: Sequence[dict[str, Value]],
) -> tuple[list[AttributeColumn], pa.RecordBatch]:
    """The columns, and a batch of them."""
    pairs = dict.fromkeys((name, type(value)) for each in events for name, value in each.items())
    columns, arrays = [], []
    for name, own in pairs:
        kind, arrow = _KINDS[own]
        values = [each[name] if type(each.get(name)) is own else None for each in events]
        columns.append(AttributeColumn(f"{name} {kind}", name, kind))
        arrays.append(pa.array(values, arrow))
    if not arrays:
        return [], pa.RecordBatch.from_arrays([pa.nulls(len(events))], ["nothing"])
    return columns, pa.RecordBatch.from_arrays(arrays, [each.column for each in columns])
