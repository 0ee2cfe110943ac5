"""Events as columns: kernels give what decoding one by one gives, whatever the bytes are."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from anabranch.model.encoding import encode_event, encode_row
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.event import Event, EventId, Value
from anabranch.spark import columns
from anabranch.spark.column_types import ENVELOPE, ColumnKind, Wanted, as_kind, check_wanted
from anabranch.spark.columns import Columns
from tests.bulk_parts import odd_bodies, usual_events
from tests.event_parts import Bytes, frame
from tests.matching_parts import NAMES

KINDS: tuple[ColumnKind, ...] = ("text", "integer", "float", "truth", "timestamp")
LONG = "a name of more than eight bytes"
EVERYTHING = [
    *map(Wanted, ENVELOPE),
    *(Wanted(name, kind) for name, kind in zip(NAMES, KINDS * 9, strict=False)),
    Wanted("attributes", "map"),
]
names = st.sampled_from([*NAMES, "é", "名前", LONG, LONG[:-1] + "z", "eight888"])
values = st.one_of(
    st.text(max_size=80),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.sampled_from([0, -1, 127, 128, -32, -33, 255, 65_536, 2**31, -(2**31) - 1, -0.0, "x" * 300]),
)
attributes = st.dictionaries(names, values, max_size=20)
events = usual_events | st.builds(
    Event, attributes, payload=st.binary(max_size=9), id=st.just(EventId("feed", 1, 2))
)
wanted = st.lists(
    st.builds(Wanted, st.sampled_from([*ENVELOPE]))
    | st.builds(Wanted, names, st.sampled_from(KINDS))
    | st.builds(Wanted, names.map("attributes.{}".format), st.sampled_from(KINDS))
    | st.just(Wanted("attributes", "map")),
    unique_by=lambda each: each.name,
)


def rows_of(bodies: Sequence[bytes]) -> bytes:
    return b"".join(encode_row(n, 1_000 * n + 7, body) for n, body in enumerate(bodies, 1))


class _Slow(Columns):
    """The same, one by one."""

    def _is_plain(self, data: bytes, count: int) -> bool:
        return False


def same(found: pa.RecordBatch, expected: pa.RecordBatch) -> None:
    found.validate(full=True)
    assert found.schema == expected.schema
    for one, other in zip(found.columns, expected.columns, strict=True):
        # NaN is not equal to itself, but its bits are.
        if pa.types.is_floating(one.type):
            assert one.is_valid().equals(other.is_valid())
            bits = [np.array(each.fill_null(0.0)).view(np.int64) for each in (one, other)]
            assert bits[0].tolist() == bits[1].tolist()
        else:
            assert one.to_pylist() == other.to_pylist()


def check(bodies: Sequence[bytes], columns: Sequence[Wanted]) -> None:
    data = rows_of(bodies)
    expected = _Slow(columns).batch(data, len(bodies), "edge-1")
    same(Columns(columns).batch(data, len(bodies), "edge-1"), expected)


@given(st.lists(events.map(encode_event), min_size=1, max_size=9), wanted)
@example([encode_event(Event({"a": 1}, id=EventId("p", 1, 1)))], EVERYTHING)
def test_kernels_give_what_decoding_one_by_one_gives(
    bodies: list[bytes], columns: list[Wanted]
) -> None:
    check(bodies, columns)


@given(st.lists(events.map(encode_event) | odd_bodies, min_size=1, max_size=5))
def test_unusual_forms_among_the_rows_make_no_difference(bodies: list[bytes]) -> None:
    check(bodies, EVERYTHING)


@given(st.data(), st.lists(events.map(encode_event), min_size=1, max_size=3))
def test_broken_bytes_are_an_error_or_rows_and_never_anything_else(
    data: st.DataObject, bodies: list[bytes]
) -> None:
    whole_rows = bytearray(rows_of(bodies))
    for _ in range(data.draw(st.integers(1, 4))):
        whole_rows[data.draw(st.integers(0, len(whole_rows) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole_rows[: data.draw(st.integers(0, len(whole_rows)))])
    try:
        found = Columns(EVERYTHING).batch(cut, len(bodies), "edge-1")
    except RemoteError:
        return
    assert found.num_rows == len(bodies)


def test_tables_are_used_again_for_larger_and_smaller_batches() -> None:
    columns = Columns(EVERYTHING)
    body = encode_event(Event({"a": "x", "b": 2}, id=EventId("p", 1, 1)))
    for count in (1, 40, 3, 41):
        data = rows_of([body] * count)
        expected = _Slow(EVERYTHING).batch(data, count, "s")
        same(columns.batch(data, count, "s"), expected)


def test_an_attribute_may_have_a_column_for_each_of_its_types() -> None:
    bodies = [encode_event(Event({"size": each}, id=EventId("p", 1, 1))) for each in (1, "XL", 2.5)]
    columns = [Wanted("attributes.size", "text"), Wanted("size", "float")]
    check(bodies, columns)
    found = Columns(columns).batch(rows_of(bodies), 3, "s")
    assert [each.to_pylist() for each in found.columns] == [[None, "XL", None], [1.0, None, 2.5]]


def test_rows_that_are_not_as_many_as_announced_are_an_error() -> None:
    body = encode_event(Event({"a": 1}, id=EventId("p", 1, 1)))
    for count in (1, 3):
        with pytest.raises(RemoteError, match="'s' announced"):
            Columns(EVERYTHING).batch(rows_of([body, body]), count, "s")


def test_a_name_that_comes_twice_is_an_error() -> None:
    body = frame(attributes=Bytes(b"\x82\xa1a\x01\xa1a\x02"))
    with pytest.raises(RemoteError, match="duplicate attribute names"):
        Columns([Wanted("a", "integer")]).batch(rows_of([body]), 1, "s")


def test_sixty_four_attributes_none_of_which_is_wanted_are_stepped_over() -> None:
    event = Event({f"a{n}": n for n in range(64)}, id=EventId("p", 1, 1))
    columns = [Wanted("tick"), Wanted("price", "float"), Wanted("a9x", "integer")]
    found = Columns(columns).batch(rows_of([encode_event(event)] * 2), 2, "s")
    assert found.to_pylist() == [{"tick": tick, "price": None, "a9x": None} for tick in (1, 2)]


def test_a_timestamp_column_floors_nanoseconds_also_before_1970() -> None:
    nanoseconds: list[Value] = [0, 999, 1_000, -1, -1_000, -1_001, 2**63 - 1, -(2**63)]
    others: list[Value] = ["1970-01-01T00:00:00Z", 1.0, True]
    bodies = [
        encode_event(Event({"at": value}, id=EventId("p", 1, 1))) for value in nanoseconds + others
    ]
    for kind in (Columns, _Slow):
        found = kind([Wanted("at", "timestamp")]).batch(rows_of(bodies), len(bodies), "s")
        assert found.schema.field("at").type == pa.timestamp("us", tz="UTC")
        whole = [0, 0, 1, -1, -1, -2, 9223372036854775, -9223372036854776]
        assert found["at"].cast(pa.int64()).to_pylist() == [*whole, None, None, None]


def test_a_value_of_another_type_is_null_and_an_integer_is_a_float() -> None:
    plain = [kind for kind in KINDS if kind != "timestamp"]
    values: list[Value] = ["12", 12, 12.5, True]
    bodies = [encode_event(Event({"a": value}, id=EventId("p", 1, 1))) for value in values]
    found = {
        kind: Columns([Wanted("a", kind)]).batch(rows_of(bodies), 4, "s")["a"].to_pylist()
        for kind in plain
    }
    assert found == {
        "text": ["12", None, None, None],
        "integer": [None, 12, None, None],
        "float": [None, 12.0, 12.5, None],
        "truth": [None, None, None, True],
    }
    for kind in plain:
        assert [as_kind(kind, value) for value in values] == found[kind]


def test_an_attribute_called_like_a_part_of_the_envelope_is_reached_by_its_prefix() -> None:
    event = Event({"tick": "tock"}, id=EventId("p", 1, 1))
    columns = Columns([Wanted("tick"), Wanted("attributes.tick", "text")])
    found = columns.batch(rows_of([encode_event(event)]), 1, "s")
    assert found.to_pylist() == [{"tick": 1, "attributes.tick": "tock"}]


def test_without_a_timestamp_the_time_of_the_log_stands_in() -> None:
    stamped = Event({}, id=EventId("p", 1, 1), timestamp_ns=-1)
    plain = Event({}, id=EventId("p", 1, 1))
    data = rows_of([encode_event(plain), encode_event(stamped)])
    for make in (Columns, _Slow):
        found = make([Wanted("timestamp"), Wanted("loggedAt")]).batch(data, 2, "s")
        assert found["timestamp"].cast(pa.int64()).to_pylist() == [1, -1]
        assert found["loggedAt"].cast(pa.int64()).to_pylist() == [1, 2]


def test_a_column_that_is_asked_for_twice_is_an_error() -> None:
    with pytest.raises(LocalError, match="'a' is requested twice"):
        check_wanted([Wanted("a", "text"), Wanted("a", "float")])


# -- all attributes in one column


@given(st.lists(attributes, min_size=1, max_size=4))
def test_a_variant_holds_every_attribute_with_its_type(many: list[dict[str, Value]]) -> None:
    bodies = [encode_event(Event(each, id=EventId("p", 1, 1))) for each in many]
    found = Columns([Wanted("attributes", "variant")]).batch(rows_of(bodies), len(many), "s")
    found.validate(full=True)
    for given_attributes, variant in zip(many, found["attributes"].to_pylist(), strict=True):
        assert variant == columns.variant_of(given_attributes)
        read = VariantVal(variant["value"], variant["metadata"]).toPython()
        assert read.keys() == given_attributes.keys()
        for name, value in given_attributes.items():
            assert type(read[name]) is type(value)
            if isinstance(value, float) and math.isnan(value):
                assert math.isnan(read[name])
            else:
                assert read[name] == value


@pytest.mark.parametrize("count", [0, 1, 32, 255, 256])
def test_a_variant_takes_as_many_attributes_as_an_event_may_have(count: int) -> None:
    many: dict[str, Value] = {f"name {n} {'y' * 200}": "z" * (n % 90) for n in range(count)}
    body = encode_event(Event(many, id=EventId("p", 1, 1)))
    found = Columns([Wanted("attributes", "variant")]).batch(rows_of([body]), 1, "s")
    variant = found["attributes"][0].as_py()
    assert variant == columns.variant_of(many)
    assert VariantVal(variant["value"], variant["metadata"]).toPython() == many


def test_names_of_a_variant_are_in_the_order_of_utf_16() -> None:
    odd = {"\U0001f600": 1, "\uffee": 2, "a": 3, "\ue000x": 4}
    body = encode_event(Event(odd, id=EventId("p", 1, 1)))
    found = Columns([Wanted("attributes", "variant")]).batch(rows_of([body]), 1, "s")
    assert found["attributes"][0].as_py() == columns.variant_of(odd)


def test_a_map_has_every_value_as_text() -> None:
    event = Event({"t": "x", "i": -7, "f": 0.5, "w": 2.0, "b": False}, id=EventId("p", 1, 1))
    found = Columns([Wanted("attributes", "map")]).batch(rows_of([encode_event(event)]), 1, "s")
    expected = [("t", "x"), ("i", "-7"), ("f", "0.5"), ("w", "2"), ("b", "false")]
    assert found["attributes"][0].as_py() == expected


def test_wanted_columns_travel_to_tasks() -> None:
    for each in EVERYTHING:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(each), type=Wanted) == each
