"""Matching of published events against the distinct filters, with the brokers' index.

A process builds the index of all filters once and searches whole batches: attribute columns are
searched in place (`task_matcher`), JSON events are decoded in bulk first. Filter numbers are those
of `promises`.

State: the index of the last audit in this process. Safe to lose.
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
    """Matcher for batches with events in a column `json`."""
    index = _index_of(filters)
    return lambda batch: _match_json(index, batch["json"])


def column_matcher(filters: tuple[str, ...], columns: Sequence[AttributeColumn]) -> Match:
    """Matcher for batches with one column per attribute."""
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
    """The index in its memory-mapped form, which supports columns."""
    with tempfile.TemporaryDirectory(prefix="anabranch-audit-") as directory:
        path = Path(directory) / "filters"
        _index_of(filters).save(path)
        # The mapping stays valid after the files are deleted.
        return Matcher(path)


def _match_json(index: MatchIndex, texts: pa.Array) -> Matched:
    is_valid = texts.is_valid().to_numpy(zero_copy_only=False)
    found = index.match_batch(_decoded(texts.drop_null().to_pylist()))
    counts = np.zeros(len(texts), np.int64)
    counts[is_valid] = np.diff(found.offsets)
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
        raise LocalError(f"{text[:80]!r} is not a JSON object of attributes: {error}") from error
