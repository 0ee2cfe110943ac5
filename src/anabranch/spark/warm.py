"""Compile the kernels of the data pipeline ahead of time and fill the cache on disk.

Without this, the first task on a machine compiles them, which takes about ten seconds; later tasks
load them from the cache next to the package. `anabranch warm` runs this module. It does not start
Java.
"""

import tempfile
import time
from pathlib import Path

import pyarrow as pa

from anabranch.matching.index import MatchIndex
from anabranch.model.encoding import encode_event, encode_row
from anabranch.model.event import Event, EventId, Value
from anabranch.model.filter import Filter
from anabranch.spark.archive.columns import OWN, ColumnName, Restoring, Tabling, pair_of
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.audit.blocks import delivery_chunks, event_chunks
from anabranch.spark.audit.promises import read_promises
from anabranch.spark.audit.runner import json_matcher
from anabranch.spark.audit.verdicts import judged
from anabranch.spark.column_types import ATTRIBUTES, ENVELOPE, Wanted
from anabranch.spark.columns import Columns
from anabranch.spark.drafts import Drafting, Part
from anabranch.spark.task_matcher import ColumnEvents, EncodedEvents, Matcher


def warm() -> float:
    """Run every kernel once. Returns the elapsed seconds."""
    begin = time.perf_counter()
    attributes: dict[str, Value] = {"text": "x", "number": 1, "part": 0.5, "is_true": True}
    body = encode_event(Event(attributes, payload=b"p", id=EventId("warm", 1, 1)))
    single = [
        Wanted("text", "text"),
        Wanted("number", "integer"),
        Wanted("part", "float"),
        Wanted("is_true", "truth"),
    ]
    for kind in ("map", "variant"):
        columns = Columns([*map(Wanted, ENVELOPE), *single, Wanted(ATTRIBUTES, kind)])
        batch = columns.batch(encode_row(1, 1, body), 1, "warm")
        part = Part(ATTRIBUTES, batch.num_columns - 1, "attributes", is_variant=kind == "variant")
        assert len(next(Drafting([part]).chunks([batch]))) == 1
    _use_matching(attributes, body)
    _use_archive(body)
    _use_audit()
    return time.perf_counter() - begin


def _use_matching(attributes: dict[str, Value], body: bytes) -> None:
    """Match columns and encoded events in bulk. Counting has one code path per filter type."""
    columns = [AttributeColumn(name, name, "text") for name in attributes]
    batch = pa.RecordBatch.from_pylist([dict.fromkeys(attributes, "x")])
    for text in ("text = 'x'", "text = 'x' OR number + part > 1"):
        index = MatchIndex(engine="numba")
        index.add(1, text)
        with tempfile.TemporaryDirectory() as directory:
            index.save(Path(directory) / "snapshot")
            matcher = Matcher(Path(directory) / "snapshot")
            events = ColumnEvents(batch, columns, matcher.attributes)
            for each in (events, EncodedEvents(pa.array([body]))):
                assert len(matcher.named(matcher.match(each)[0])) == 1
                assert matcher.count(each).tolist() == [1]


def _use_archive(body: bytes) -> None:
    """Convert a row to an archive table and back."""
    table = Tabling().batch(encode_row(1, 1, body), 1)
    found = [ColumnName(name, *pair_of(name)) for name in table.schema.names if name not in OWN]
    assert Restoring(found, Filter.parse("number > 0")).rows(table)[1] == 1


def _use_audit() -> None:
    """Check two events against two deliveries."""
    wanted = {"subscription": "s", "filter": "a = 1", "quality": "reliable", "stream": "o"}
    bounds = dict.fromkeys(("end", "due", "startOrder", "endOrder"))
    fields = [(name, pa.string()) for name in wanted]
    schema = pa.schema([*fields, *((name, pa.int64()) for name in ("start", *bounds))])
    table = pa.Table.from_pylist([wanted | bounds | {"start": 1}], schema=schema)
    promises = read_promises(table, None, {})
    common: dict[str, object] = {"stream": "o", "tick": 1, "time": 1, "name": 1}
    more = {"line": 1, "seq": 1, "optional": False, "unknown": False, "json": '{"a": 1}'}
    events = pa.RecordBatch.from_pylist([common | more, common | more | {"tick": 2}])
    delivered = {"subscription": "s", "order": 1}
    deliveries = pa.RecordBatch.from_pylist([common | delivered, common | delivered | {"order": 2}])
    chunks = [*event_chunks(iter([events]), json_matcher(promises.filters))]
    chunks += delivery_chunks(iter([deliveries]), promises.names)
    findings = judged(iter(chunks), promises, has_names=True)
    assert {"lost", "duplicate"} <= {kind for each in findings for kind in each["kind"].to_pylist()}
