"""Bulk matching, without Spark: columns and encoded events match as every filter says by itself."""

import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from anabranch.matching.index import MatchIndex
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId
from anabranch.model.filter import Filter
from anabranch.spark.task_matcher import ColumnEvents, EncodedEvents, Events, Matcher
from tests.columnar_parts import columns_of
from tests.matching_parts import Attributes, events, filters, plain_filters

some_filters = st.lists(filters | plain_filters, max_size=12)
some_events = st.lists(events, min_size=1, max_size=12)


def matcher_of(chosen: list[Filter], folder: Path) -> Matcher:
    index = MatchIndex(engine="numba")
    index.add_many(enumerate(chosen))
    index.save(folder / "snapshot")
    return Matcher(folder / "snapshot")


def check(matcher: Matcher, asked: Events, wanted: list[set[int]]) -> None:
    """All ways of asking give the wanted answer."""
    owners, ends = matcher.match(asked)
    ids = matcher.named(owners).to_pylist()
    found = [ids[ends[row] : ends[row + 1]] for row in range(asked.rows)]
    assert [sorted(each) for each in found] == [sorted(each) for each in wanted]
    matcher.forget()
    assert matcher.count(asked).tolist() == [len(each) for each in wanted]
    counts = Counter(number for each in wanted for number in each)
    assert matcher.counted().tolist() == [counts[n] for n in range(len(matcher.ids.firsts))]


@given(some_filters, some_events, st.booleans())
def test_columns_match_as_the_filters_say(
    chosen: list[Filter], given_events: list[Attributes], doubled: bool
) -> None:
    if doubled:
        # Enough of the same for blocks, which a handful of filters never makes.
        chosen = [each for each in chosen for _ in range(40)]
    wanted = [{n for n, each in enumerate(chosen) if each.matches(e)} for e in given_events]
    columns, batch = columns_of(given_events)
    with tempfile.TemporaryDirectory() as folder:
        matcher = matcher_of(chosen, Path(folder))
        check(matcher, ColumnEvents(batch, columns, matcher.attributes), wanted)


@given(some_filters, some_events)
def test_encoded_events_match_as_the_filters_say(
    chosen: list[Filter], given_events: list[Attributes]
) -> None:
    wanted = [{n for n, each in enumerate(chosen) if each.matches(e)} for e in given_events]
    bodies = [encode_event(Event(e, id=EventId("p", 1, n))) for n, e in enumerate(given_events, 1)]
    with tempfile.TemporaryDirectory() as folder:
        matcher = matcher_of(chosen, Path(folder))
        check(matcher, EncodedEvents(pa.array(bodies, pa.binary())), wanted)


@given(some_filters, some_events, st.integers(0, 11))
def test_part_of_a_batch_matches_like_a_batch_of_its_own(
    chosen: list[Filter], given_events: list[Attributes], first: int
) -> None:
    first = min(first, len(given_events) - 1)
    columns, batch = columns_of(given_events)
    kept = given_events[first:]
    wanted = [{n for n, each in enumerate(chosen) if each.matches(e)} for e in kept]
    with tempfile.TemporaryDirectory() as folder:
        matcher = matcher_of(chosen, Path(folder))
        check(matcher, ColumnEvents(batch.slice(first), columns, matcher.attributes), wanted)
