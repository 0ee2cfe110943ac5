"""Attributes that were read as variants are written as they were, and no bytes are read amiss."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from anabranch.matching.engine import numba_is_here
from anabranch.model.encoding import decode_event, identified
from anabranch.model.event import INT_MAX, INT_MIN, EventId, Value

if not numba_is_here():
    pytest.skip("there are no kernels without numba", allow_module_level=True)

from anabranch.spark.columns import variant_of
from anabranch.spark.drafts import Drafting, Part, RowError

#: As Spark exchanges it.
VARIANT = pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")])
PART = Part("attributes", 0, "attributes", is_variant=True)
names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8)
edges: list[Value] = ["t" * 63, "t" * 64, "é" * 300, 2**7, -(2**15), 2**31]
values: st.SearchStrategy[Value] = (
    st.sampled_from(edges)
    | st.text(max_size=80)
    | st.integers(INT_MIN, INT_MAX)
    | st.floats()
    | st.booleans()
)


def drafts_of(cells: list[object]) -> list[bytes]:
    batch = pa.record_batch([pa.array(cells, VARIANT)], names=["attributes"])
    # A part of a larger one, as it may be.
    whole = pa.concat_batches([batch, batch, batch]).slice(len(cells), len(cells))
    return [draft for chunk in Drafting([PART]).chunks([whole]) for draft in chunk]


def shown(attributes: dict[str, Value]) -> list[tuple[str, str]]:
    return sorted((name, repr(value)) for name, value in attributes.items())


@given(st.lists(st.none() | st.dictionaries(names, values, max_size=6), max_size=5))
def test_attributes_survive_the_way_through_a_variant(rows: list[dict[str, Value] | None]) -> None:
    cells: list[object] = [None if row is None else variant_of(row) for row in rows]
    found = [decode_event(identified(draft, EventId("p", 1, 1))) for draft in drafts_of(cells)]
    assert [shown(dict(event)) for event in found] == [shown(row or {}) for row in rows]


def test_many_attributes_with_long_names_survive_too() -> None:
    row: dict[str, Value] = {f"{n}" * 60: n * 10**15 for n in range(1, 250)}
    (draft,) = drafts_of([variant_of(row)])
    assert shown(dict(decode_event(identified(draft, EventId("p", 1, 1))))) == shown(row)


def test_what_spark_makes_of_json_is_written() -> None:
    variant = VariantVal.parseJson('{"z": 1, "a": "x", "t": true, "n": null, "f": 1e3}')
    (draft,) = drafts_of([{"value": variant.value, "metadata": variant.metadata}])
    event = decode_event(identified(draft, EventId("p", 1, 1)))
    assert shown(dict(event)) == shown({"z": 1, "a": "x", "t": True, "f": 1000.0})


@pytest.mark.parametrize(
    ("json", "problem"),
    [
        ('{"a": 1, "b": 1.5}', "row 1: column 'attributes', key 'b' is not a text, integer, float"),
        ('{"a": [1]}', "row 1: column 'attributes', key 'a' is not a text"),
        ('{"a": {"b": 1}}', "row 1: column 'attributes', key 'a' is not a text"),
        ("[1, 2]", "row 1: column 'attributes' is a variant but not an object"),
        ("7", "row 1: column 'attributes' is a variant but not an object"),
    ],
)
def test_what_no_attribute_can_be_is_told_with_its_row_and_key(json: str, problem: str) -> None:
    variant = VariantVal.parseJson(json)
    bad = {"value": variant.value, "metadata": variant.metadata}
    with pytest.raises(RowError, match=problem):
        drafts_of([variant_of({"fine": 1}), bad])


@given(
    st.dictionaries(names, values, max_size=4).map(variant_of),
    st.sampled_from(["value", "metadata"]),
    st.data(),
)
def test_torn_variants_are_refused_or_read_within_their_bytes(
    variant: dict[str, bytes], where: str, data: st.DataObject
) -> None:
    torn = bytearray(variant[where])
    for _ in range(data.draw(st.integers(1, 3))):
        if torn:
            place = data.draw(st.integers(0, len(torn) - 1))
            torn[place] = data.draw(st.integers(0, 255))
    cut = bytes(torn[: data.draw(st.integers(0, len(torn)))])
    try:
        found = drafts_of([variant | {where: cut}])
    except RowError:
        return
    assert len(found) == 1
