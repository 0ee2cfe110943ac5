"""Events become tables in the columns of an archive, and events again, with nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.encoding import decode_event, encode_event, encode_row, rows_in
from anabranch.model.errors import LocalError
from anabranch.model.event import Event, EventId
from anabranch.model.filter import Filter
from anabranch.spark.archive.columns import OWN, ColumnName, Naming, Restoring, Tabling, pair_of
from anabranch.spark.archive.writer import by_day
from tests.bulk_parts import odd_bodies, usual_events
from tests.matching_parts import filters

bodies = st.lists(usual_events.map(encode_event), min_size=1, max_size=10)


def rows_of(events: list[bytes]) -> bytes:
    return b"".join(encode_row(n, 10**18 + 7 * n, body) for n, body in enumerate(events, 1))


def restored(
    data: bytes, count: int, restoring: Restoring | None = None
) -> list[tuple[int, Event]]:
    """Events that were made a table and events again."""
    batch = Tabling().batch(data, count)
    columns = [ColumnName(x, *pair_of(x)) for x in batch.schema.names if x not in OWN]
    rows, _ = (restoring or Restoring(columns)).rows(batch)
    assert all(time_ns == 10**18 + 7 * tick for tick, time_ns, _ in rows_in(rows))
    return [(tick, decode_event(body)) for tick, _, body in rows_in(rows)]


def same(one: Event, other: Event) -> bool:
    """Equal, and of the same kinds and signs."""
    return one == other and all(repr(one[name]) == repr(other[name]) for name in one)


@given(bodies | st.lists(odd_bodies | usual_events.map(encode_event), min_size=1, max_size=6))
def test_an_event_comes_out_of_a_table_as_it_went_in(events: list[bytes]) -> None:
    found = restored(rows_of(events), len(events))
    assert [tick for tick, _ in found] == [*range(1, len(events) + 1)]
    for body, (_, event) in zip(events, found, strict=True):
        assert same(event, decode_event(body))


@given(bodies, filters)
def test_a_filter_over_a_table_finds_what_it_matches(events: list[bytes], chosen: Filter) -> None:
    batch = Tabling().batch(rows_of(events), len(events))
    columns = [ColumnName(x, *pair_of(x)) for x in batch.schema.names if x not in OWN]
    rows, count = Restoring(columns, chosen).rows(batch)
    wanted = [n for n, body in enumerate(events, 1) if chosen.matches(decode_event(body))]
    assert [tick for tick, _, _ in rows_in(rows)] == wanted
    assert count == len(wanted)


def test_events_without_end_of_new_names_are_told_that_names_are_no_data() -> None:
    many = [encode_event(Event({f"customer {n}": 1}, id=EventId("p", 1, n))) for n in range(60)]
    assert len(restored(rows_of(many), 60)) == 60
    with pytest.raises(LocalError, match="more than 20 distinct attributes"):
        Tabling(columns_max=20).batch(rows_of(many), 60)


def test_a_table_is_cut_where_a_day_ends() -> None:
    day = 86_400 * 10**9
    body = encode_event(Event({"n": 1}, id=EventId("p", 1, 1)))
    times = [day - 1, day, day + 5, 3 * day]
    data = b"".join(encode_row(n, time_ns, body) for n, time_ns in enumerate(times, 1))
    assert [part.num_rows for part in by_day(Tabling().batch(data, 4))] == [1, 2, 1]


def test_columns_are_called_like_their_attributes_where_that_is_possible() -> None:
    naming = Naming()
    naming.add({("price", "float"): 900, ("price", "text"): 2, ("tick", "integer"): 1})
    naming.add({("Price", "float"): 1, ("price__text", "text"): 5, ("stream", "text"): 1})
    names = {each.pair: each.name for each in naming.columns}
    assert names == {
        ("price", "float"): "price",
        ("price", "text"): "price__text",
        ("tick", "integer"): "attributes.tick",
        ("Price", "float"): "Price__float",
        ("price__text", "text"): "price__text__text",
        ("stream", "text"): "attributes.stream",
    }
    assert Naming(naming.columns).add({("price", "truth"): 1})[0].name == "price__truth"
