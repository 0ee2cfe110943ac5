"""Arrow batches in the form that the matching kernels search: attribute columns or encoded events.

A `Reader` selects the columns of a batch that an index needs and creates `Events` from it. Only
attributes that filters name are read. Rules:

1. A column is searched in place. Only narrower types and dictionary-encoded columns are converted
   first.
2. The arrays of a batch are kept alive as long as its events.
3. An encoded event has the encoding of `model.encoding`; an invalid one is an error that names its
   row.

State: none beyond the arrays.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from anabranch.model.encoding import decode_event
from anabranch.model.errors import RemoteError
from anabranch.model.event import Attributes, Value
from anabranch.model.limits import STORED_LIMITS
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.column_types import Kind
from anabranch.spark.kernels import row_search as kernels
from anabranch.spark.task_matcher import Events, Words

Reader = Callable[[pa.RecordBatch], Events]

#: Kind → Arrow type that is searched, and its number in the kernels.
_PLAIN: dict[Kind, tuple[pa.DataType, int]] = {
    "text": (pa.string(), kernels.TEXT),
    "integer": (pa.int64(), kernels.INTEGER),
    "float": (pa.float64(), kernels.FLOAT),
    "truth": (pa.bool_(), kernels.TRUTH),
}


class ColumnEvents:
    """Events with one column per attribute."""

    is_encoded = False

    def __init__(
        self, batch: pa.RecordBatch, columns: Sequence[AttributeColumn], numbers: Mapping[str, int]
    ) -> None:
        self.rows: int = batch.num_rows
        self._batch = batch
        self._columns = [each for each in columns if each.attribute in numbers]
        self._arrays = [_plain(batch.column(each.column), each.kind) for each in self._columns]
        words = [
            _words(array, _PLAIN[each.kind][1], numbers[each.attribute])
            for array, each in zip(self._arrays, self._columns, strict=True)
        ]
        self.plan: Words = np.array(words, np.int64).reshape(-1)

    def attributes(self, rows: Words) -> list[Attributes]:
        """See `task_matcher.Events`."""
        found: list[dict[str, Value]] = [{} for _ in range(len(rows))]
        chosen = pa.array(rows)
        for each, array in zip(self._columns, self._arrays, strict=True):
            for attributes, value in zip(found, array.take(chosen).to_pylist(), strict=True):
                if value is not None:
                    attributes.setdefault(each.attribute, value)
        return list(found)


def _plain(array: pa.Array, kind: Kind) -> pa.Array:
    wanted = _PLAIN[kind][0]
    if array.type == wanted or (kind == "text" and array.type == pa.large_string()):
        return array
    return array.cast(wanted)


def _words(array: pa.Array, kind: int, attribute: int) -> list[int]:
    """The plan entry of one column."""
    buffers = array.buffers()
    validity = buffers[0] if array.null_count else None
    letters = buffers[2] if kind in (kernels.TEXT, kernels.ENCODED) else None
    if array.type in (pa.large_string(), pa.large_binary()):
        kind += 1
    words = [0] * kernels.PLAN_WORDS
    words[kernels.ATTRIBUTE] = attribute
    words[kernels.KIND] = kind
    words[kernels.VALUES] = buffers[1].address
    words[kernels.VALID] = 0 if validity is None else validity.address
    words[kernels.LETTERS] = 0 if letters is None else letters.address
    words[kernels.SKIP] = array.offset
    return words


class EncodedEvents:
    """Events in their published encoding, as a binary column."""

    is_encoded = True

    def __init__(self, bodies: pa.Array) -> None:
        self.rows: int = len(bodies)
        self._bodies = bodies
        self.plan: Words = np.array(_words(bodies, kernels.ENCODED, 0), np.int64)

    def attributes(self, rows: Words) -> list[Attributes]:
        """See `task_matcher.Events`."""
        return [self._decoded(row) for row in rows.tolist()]

    def _decoded(self, row: int) -> Attributes:
        body = self._bodies[row].as_py()
        try:
            return decode_event(body or b"", STORED_LIMITS).attributes
        except RemoteError as error:
            raise RemoteError(f"row {row} of a batch is not a valid event: {error}") from error


def column_reader(columns: Sequence[AttributeColumn], numbers: Mapping[str, int]) -> Reader:
    """Reader for attribute columns; `numbers` maps the attributes of the index to their numbers."""
    return lambda batch: ColumnEvents(batch, columns, numbers)


def encoded_reader(column: str) -> Reader:
    """Reader for encoded events in one column."""
    return lambda batch: EncodedEvents(batch.column(column))
