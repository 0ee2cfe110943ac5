"""Ranges and offsets: everything once, nothing twice, and no stream left behind."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.errors import LocalError
from anabranch.spark.options import OptionError
from anabranch.spark.survey import Extent
from anabranch.spark.tick_ranges import (
    RANGE_TICKS_MAX,
    Position,
    Range,
    Ticks,
    check_position,
    divided,
    end_ticks,
    first_ticks,
    next_ticks,
    read_position,
)

THERE = {"a": Extent(5, 20), "b": Extent(1, 1)}
streams = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 5_000), max_size=5)


def covered(ranges: list[Range]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in ranges:
        found.setdefault(each.stream, []).extend(range(each.first, each.end))
    return found


@given(streams, streams, st.integers(0, 40))
def test_ranges_cover_every_tick_once_and_are_as_many_as_asked_for(
    start: Ticks, spans: Ticks, partitions_min: int
) -> None:
    end = {stream: start.get(stream, 1) + span for stream, span in spans.items()}
    ranges = divided(start, end, partitions_min)
    wanted = {s: [*range(start[s], end[s])] for s in end if s in start}
    assert covered(ranges) == wanted
    total = sum(map(len, wanted.values()))
    assert len(ranges) >= min(partitions_min, total)
    assert all(each.first < each.end for each in ranges)


def test_a_busy_stream_has_many_tasks_and_a_quiet_one_has_one() -> None:
    ranges = divided({"busy": 1, "quiet": 1}, {"busy": 10_001, "quiet": 101}, 8)
    sizes: dict[str, list[int]] = {"busy": [], "quiet": []}
    for each in ranges:
        sizes[each.stream].append(each.end - each.first)
    assert len(sizes["quiet"]) == 1
    assert len(sizes["busy"]) == 8
    assert max(sizes["busy"]) - min(sizes["busy"]) <= 1


def test_no_range_is_larger_than_a_task_should_be() -> None:
    ranges = divided({"a": 1}, {"a": 10 * RANGE_TICKS_MAX}, 0)
    assert max(each.end - each.first for each in ranges) <= RANGE_TICKS_MAX
    assert len(ranges) == 10


def test_nothing_new_is_no_range() -> None:
    assert divided({"a": 7}, {"a": 7}, 3) == []
    assert divided({}, {"a": 7}, 3) == []


def test_ranges_travel_to_tasks() -> None:
    again = pickle.loads(pickle.dumps(Range("a", 1, 9, "net", ("host:1",))))
    assert (again.stream, again.first, again.end) == ("a", 1, 9)
    assert (again.network, again.addresses) == ("net", ("host:1",))


def test_a_query_begins_where_it_is_told() -> None:
    assert first_ticks("earliest", THERE) == {"a": 5, "b": 1}
    assert first_ticks("latest", THERE) == {"a": 20, "b": 1}
    assert first_ticks({"a": 7}, THERE) == {"a": 7, "b": 1}
    assert first_ticks({"a": 0}, THERE) == {"a": 1, "b": 1}
    assert end_ticks("latest", THERE) == {"a": 20, "b": 1}
    assert end_ticks({"a": 9}, THERE) == {"a": 9, "b": 1}


def test_ticks_beyond_the_end_and_streams_that_are_not_read_are_errors() -> None:
    with pytest.raises(OptionError, match=r"startingOffsets.*before tick 20, and 21 is requested"):
        first_ticks({"a": 21}, THERE)
    with pytest.raises(
        OptionError, match=r"startingOffsets.*'c' is not read; the streams are a, b"
    ):
        first_ticks({"c": 1}, THERE)
    with pytest.raises(OptionError, match=r"endingOffsets.*before tick 20, and 99 is requested"):
        end_ticks({"a": 99}, THERE)


# -- batches of a stream


@given(streams, streams, st.integers(0, 300))
def test_a_limit_is_kept_and_every_stream_goes_on(
    start: Ticks, spans: Ticks, ticks_max: int
) -> None:
    there = {s: Extent(1, start.get(s, 1) + span) for s, span in spans.items()}
    end = next_ticks(start, there, ticks_max)
    moved = {s: end[s] - start[s] for s in start}
    open_ticks = {s: there[s].end - start[s] for s in start if s in there}
    assert all(moved[s] <= open_ticks.get(s, 0) for s in start)
    if ticks_max:
        assert sum(moved.values()) <= ticks_max + len(open_ticks)
        assert all(moved[s] > 0 for s in open_ticks)
    else:
        assert moved == {s: open_ticks.get(s, 0) for s in start}
    assert {s: end[s] for s in there if s not in start} == {s: 1 for s in there if s not in start}


def test_offsets_are_reached_after_enough_batches_whatever_the_volumes() -> None:
    there = {"busy": Extent(1, 10_001), "quiet": Extent(1, 101)}
    now, batches = {"busy": 1, "quiet": 1}, 0
    while now != {"busy": 10_001, "quiet": 101}:
        now, batches = next_ticks(now, there, 1_000), batches + 1
    assert batches == 11


def test_a_stream_that_appears_begins_at_its_oldest_tick_with_the_batch_after() -> None:
    there = {"a": Extent(1, 9), "new": Extent(40, 60)}
    first = next_ticks({"a": 5}, there, 0)
    assert first == {"a": 9, "new": 40}
    assert covered(divided({"a": 5}, first, 0)) == {"a": [5, 6, 7, 8]}
    second = next_ticks(first, there, 0)
    assert covered(divided(first, second, 0)) == {"new": [*range(40, 60)]}


def test_a_stream_that_comes_back_goes_on_where_it_was() -> None:
    there = {"a": Extent(1, 9), "back": Extent(1, 60)}
    first = next_ticks({"a": 9}, there, 0, {"back": 50})
    assert first == {"a": 9, "back": 50}
    assert covered(divided(first, next_ticks(first, there, 0), 0)) == {"back": [*range(50, 60)]}
    with pytest.raises(LocalError, match="tick 61 of 'back', but the stream ends before"):
        check_position(Position("net", {}, {"back": 61}), "net", there)


def test_a_stream_without_an_answer_stays_where_it_is() -> None:
    assert next_ticks({"a": 5, "gone": 3}, {"a": Extent(1, 9)}, 0) == {"a": 9, "gone": 3}


# -- checkpoints


def test_a_position_is_what_spark_keeps() -> None:
    position = Position("net", {"a": 3})
    assert position.offset() == {"network": "net", "streams": {"a": 3}}
    for each in (position, Position("net", {"a": 3}, {"gone": 4})):
        assert read_position(each.offset()) == each


@pytest.mark.parametrize("offset", [{}, {"a": 3}, {"network": "net", "streams": {"a": "b"}}])
def test_an_offset_of_another_source_is_an_error(offset: dict[str, object]) -> None:
    with pytest.raises(LocalError, match="does not belong to this"):
        read_position(offset)


def test_a_checkpoint_of_another_network_is_an_error() -> None:
    with pytest.raises(LocalError, match="network 'other', but the brokers belong to 'net'"):
        check_position(Position("other", {}), "net", {})


def test_a_checkpoint_beyond_the_end_of_a_stream_is_an_error() -> None:
    check_position(Position("net", {"a": 20, "gone": 4}), "net", THERE)
    with pytest.raises(LocalError, match=r"tick 21 of 'a'.*ends before tick 20"):
        check_position(Position("net", {"a": 21}), "net", THERE)
