"""Which of the distinct filters each published event matches, by the broker's own index.

A task builds the index of all filters once in a process and asks it about whole batches: events
with a column for each attribute are searched where they lie (`matcher`), events in JSON are decoded
together first. The numbers of filters are those of `promises`.

State: the index of the last audit that this process had a task of. Safe to lose.
"""

import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.matching.index import MatchIndex
from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.audit.chunks import Match, Matched
from anabranch.spark.event_batches import ColumnEvents
from anabranch.spark.task_matcher import Matcher

_decoder = msgspec.json.Decoder(list[dict[str, Value]])


def json_matcher(filters: tuple[str, ...]) -> Match:
    """Matches batches whose events stand in a column `json`."""
    index = _index_of(filters)
    return lambda batch: _match_json(index, batch["json"])


def column_matcher(filters: tuple[str, ...], columns: Sequence[AttributeColumn]) -> Match:
    """Matches batches with a column for each attribute."""
    matcher = _mapped(filters)

    def match(batch: pa.RecordBatch) -> Matched:
        owners, ends = matcher.match(ColumnEvents(batch, columns, matcher.attributes))
        return ends, matcher.named(owners).to_numpy().astype(np.int32)

    return match


@lru_cache(maxsize=1)
def _index_of(filters: tuple[str, ...]) -> MatchIndex:
    index = MatchIndex()
    index.add_many(enumerate(filters))
    return index


@lru_cache(maxsize=1)
def _mapped(filters: tuple[str, ...]) -> Matcher:
    """The index in the form in which it is searched by columns."""
    with tempfile.TemporaryDirectory(prefix="anabranch-audit-") as directory:
        path = Path(directory) / "filters"
        _index_of(filters).save(path)
        # What is mapped stays, though its files have no name any more.
        return Matcher(path)


def _match_json(index: MatchIndex, texts: pa.Array) -> Matched:
    is_there = texts.is_valid().to_numpy(zero_copy_only=False)
    found = index.match_batch(_decoded(texts.drop_null().to_pylist()))
    counts = np.zeros(len(texts), np.int64)
    counts[is_there] = np.diff(found.offsets)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    numbers: NDArray[np.int32] = np.asarray(found.ids, np.int64).astype(np.int32)
    return offsets, numbers


def _decoded(texts: list[str]) -> list[dict[str, Value]]:
    try:
        return _decoder.decode(f"[{','.join(texts)}]")
    except msgspec.DecodeError:
        for text in texts:
            _check(text)
        raise


def _check(text: str) -> None:
    try:
        msgspec.json.decode(text, type=dict[str, Value])
    except msgspec.DecodeError as error:
        raise LocalError(f"{text[:80]!r} are no attributes in JSON: {error}") from error
