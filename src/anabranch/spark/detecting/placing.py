"""Rows of Arrow as placed events, in the order of events.

A table of routed rows (`routing`) is sorted by time, stream and tick; an event without a time has
no place, and is told apart. Only attributes that are asked for are made into values of Python: the
filters were evaluated before, so detection needs those that joins name, and no other. Of several
columns of one attribute the first that is not null counts.

This module keeps no state.
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.model.event import Value
from anabranch.model.pattern.match import PlacedEvent
from anabranch.spark.attribute_column import AttributeColumn

_ORDER = [("time_ns", "ascending"), ("stream", "ascending"), ("tick", "ascending")]


def in_order(table: pa.Table) -> pa.Table:
    """The rows in the order of events."""
    return table.take(pc.sort_indices(table, sort_keys=_ORDER))


def timed(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows with a time, and the events without, each once."""
    if not table["time_ns"].null_count:
        return table, table.slice(0, 0)
    has_time = pc.is_valid(table["time_ns"])
    is_first = pc.equal(table["copy"], 0)
    return table.filter(has_time), table.filter(pc.and_(pc.invert(has_time), is_first))


def placed(table: pa.Table, columns: Sequence[AttributeColumn]) -> list[PlacedEvent]:
    """The events of a table, with the attributes of these columns."""
    keys = [table[name].to_pylist() for name in ("stream", "tick", "time_ns")]
    return list(map(PlacedEvent, *keys, _attributes(table, columns)))


def _attributes(table: pa.Table, columns: Sequence[AttributeColumn]) -> Iterable[dict[str, Value]]:
    found: list[dict[str, Value]] = [{} for _ in range(len(table))]
    # From behind, so that the first column has the last word.
    for each in reversed(columns):
        name, column = each.attribute, table[each.column]
        if column.null_count == len(table):
            continue
        for attributes, value in zip(found, column.to_pylist(), strict=True):
            if value is not None:
                attributes[name] = value
    return found
