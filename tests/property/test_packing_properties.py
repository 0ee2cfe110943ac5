"""Rows as drafts: the kernel writes what the plain encoder does, and refuses what that refuses."""

from collections.abc import Mapping
from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.matching.engine import numba_is_here
from anabranch.model.encoding import check_draft, encode_draft
from anabranch.model.errors import EventError
from anabranch.model.event import INT_MAX, INT_MIN, Control, Event, Value
from anabranch.model.limits import Limits

if not numba_is_here():
    pytest.skip("there are no kernels without numba", allow_module_level=True)

from anabranch.spark.column_types import Kind
from anabranch.spark.drafts import Drafting, Part, Role, RowError

NOW_NS = 1_700_000_000_000_000_123
SMALL = Limits(
    attributes_max=3,
    name_bytes_max=4,
    value_bytes_max=6,
    payload_bytes_max=20,
    event_bytes_max=100,
)
WIDE = Limits()

#: In the order of columns.
Row = list[object]

texts = st.text(max_size=9) | st.sampled_from(["", "é" * 40, "x" * 31, "x" * 32, "y" * 300])
names = st.text(
    st.characters(min_codepoint=0x20, exclude_categories=["Cc", "Cs"]), min_size=1, max_size=3
).filter(lambda name: len(name.encode()) <= SMALL.name_bytes_max)
integers = st.integers(INT_MIN, INT_MAX) | st.sampled_from(
    [
        each * sign + more
        for each in (2**5, 2**7, 2**8, 2**15, 2**16, 2**31, 2**32)
        for sign in (1, -1)
        for more in (-1, 0, 1)
    ]
)
VALUES: dict[Kind, st.SearchStrategy[Value]] = {
    "text": texts,
    "integer": integers,
    "float": st.floats(),
    "truth": st.booleans(),
}
ARROW: dict[Kind, pa.DataType] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "truth": pa.bool_(),
}
ENVELOPE: dict[Role, tuple[pa.DataType, st.SearchStrategy[object]]] = {
    "timestamp": (
        pa.timestamp("us", tz="UTC"),
        st.integers(-(2**55), 2**55) | st.sampled_from([0, INT_MAX // 1_000, 2**60]),
    ),
    "correlationId": (pa.string(), st.text(max_size=6)),
    "contentType": (pa.string(), st.text(max_size=6)),
    "payload": (pa.binary(), st.binary(max_size=30) | st.sampled_from([b"p" * 256, b"q" * 70_000])),
}
Form = tuple[Part, pa.DataType]


@st.composite
def forms(draw: st.DrawFn) -> list[tuple[Form, st.SearchStrategy[object]]]:
    """Columns, and what may be in each."""
    kinds = st.sampled_from([*VALUES])
    found: list[tuple[Form, st.SearchStrategy[object]]] = []
    for name in draw(st.lists(names, max_size=5, unique=True)):
        kind: Kind = draw(kinds)
        part = Part(name, len(found), "attribute", name, kind)
        found.append(((part, ARROW[kind]), VALUES[kind]))
    for role in draw(st.lists(st.sampled_from([*ENVELOPE]), unique=True)):
        form, values = ENVELOPE[role]
        found.append(((Part(role, len(found), role), form), values))
    if draw(st.booleans()):
        kind = draw(kinds)
        part = Part("attributes", len(found), "attributes", kind=kind)
        entries = st.lists(
            st.tuples(names | st.text(max_size=5), st.none() | VALUES[kind]), max_size=4
        )
        found.append(((part, pa.map_(pa.string(), ARROW[kind])), entries))
    return found


@st.composite
def frames(draw: st.DrawFn) -> tuple[list[Part], pa.RecordBatch, list[Row]]:
    """Columns, a batch of them, which may be a part of a larger one, and its rows."""
    columns = draw(forms())
    count = draw(st.integers(0, 12))
    cells = [
        draw(st.lists(st.none() | values, min_size=count, max_size=count)) for _, values in columns
    ]
    parts = [part for (part, _), _ in columns]
    fields = [pa.field(part.column, form) for (part, form), _ in columns]
    arrays = [pa.array(c, f.type) for c, f in zip(cells, fields, strict=True)]
    if not columns:
        return parts, pa.record_batch([pa.array([1])], names=["-"]), [[]]
    whole = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    first = draw(st.integers(0, count))
    last = draw(st.integers(first, count))
    rows = [list(row) for row in zip(*cells, strict=True)][first:last]
    return parts, whole.slice(first, last - first), rows


class _RefusedError(Exception):
    """This row is no event."""


def expected(parts: list[Part], row: Row, limits: Limits) -> bytes:
    """What the plain encoder makes of a row."""
    attributes: dict[str, Value] = {}
    told: dict[Role, object] = {}
    for part, cell in zip(parts, row, strict=True):
        pairs = {"attribute": [(part.attribute, cell)], "attributes": cell or []}.get(part.role)
        if pairs is None:
            told[part.role] = cell
            continue
        for name, value in pairs:  # type: ignore[attr-defined]
            if value is None:
                continue
            if name in attributes:
                raise _RefusedError
            attributes[name] = value
    try:
        return encode_draft(_event(attributes, told, limits), NOW_NS, limits)
    except EventError as error:
        raise _RefusedError from error


def _event(attributes: Mapping[str, Value], told: Mapping[Role, object], limits: Limits) -> Event:
    stamp, payload = told.get("timestamp"), told.get("payload")
    return Event(
        attributes,
        payload=payload if isinstance(payload, bytes) else b"",
        content_type=str(told.get("contentType") or ""),
        timestamp_ns=stamp * 1_000 if isinstance(stamp, int) else 0,
        control=Control(correlation_id=str(told.get("correlationId") or "")),
        limits=limits,
    )


@given(
    frames(),
    st.sampled_from([SMALL, WIDE]),
    st.sampled_from([1, 2, 256]),
    st.sampled_from([1, 90, 1_000_000]),
)
def test_the_kernel_writes_and_refuses_what_the_plain_encoder_does(
    frame: tuple[list[Part], pa.RecordBatch, list[Row]],
    limits: Limits,
    events_max: int,
    bytes_max: int,
) -> None:
    parts, batch, rows = frame
    drafting = Drafting(
        parts, limits, chunk_events=events_max, chunk_bytes=bytes_max, clock=lambda: NOW_NS
    )
    wanted, bad = _expected_of(parts, rows, limits)
    found: list[bytes] = []
    problem = ""
    try:
        for chunk in drafting.chunks([batch]):
            assert 0 < len(chunk) <= events_max
            assert len(chunk) == 1 or sum(map(len, chunk)) <= bytes_max
            found += chunk
    except RowError as error:
        problem = str(error)
    assert problem.partition(":")[0] == bad
    assert found == wanted[: len(found)]
    assert bad or len(found) == len(rows)
    for draft in found:
        check_draft(draft, limits)


def _expected_of(parts: list[Part], rows: list[Row], limits: Limits) -> tuple[list[bytes], str]:
    """The drafts before the first row that is refused, and how an error calls that."""
    wanted: list[bytes] = []
    for place, row in enumerate(rows):
        try:
            wanted.append(expected(parts, row, limits))
        except _RefusedError:
            return wanted, f"row {place}"
    return wanted, ""


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (pa.int8(), "integer"),
        (pa.int16(), "integer"),
        (pa.int32(), "integer"),
        (pa.float32(), "float"),
        (pa.large_string(), "text"),
    ],
)
def test_narrower_types_are_written_as_the_wide_ones(
    form: pa.DataType, kind: Literal["integer", "float", "text"]
) -> None:
    every: dict[str, list[Value]] = {"integer": [1, -7], "float": [0.5, -2.25], "text": ["a", "é"]}
    cells = [None, *every[kind]]
    drafting = Drafting([Part("x", 0, "attribute", "x", kind)], clock=lambda: NOW_NS)
    batch = pa.record_batch([pa.array(cells, form)], names=["x"])
    wanted = [encode_draft(Event({} if cell is None else {"x": cell}), NOW_NS) for cell in cells]
    assert [*drafting.chunks([batch])] == [wanted]


def test_rows_are_counted_over_batches_and_bad_utf8_is_told_with_its_column() -> None:
    form = pa.string()
    fine = pa.record_batch([pa.array(["a", "b"])], names=["x"])
    bytes_ = pa.array([b"c", b"\xff\xfe"], pa.binary())
    torn = pa.Array.from_buffers(form, 2, bytes_.buffers())
    drafting = Drafting([Part("x", 0, "attribute", "x", "text")])
    with pytest.raises(RowError, match="row 3: column 'x' is not valid UTF-8"):
        list(drafting.chunks([fine, pa.record_batch([torn], names=["x"])]))
