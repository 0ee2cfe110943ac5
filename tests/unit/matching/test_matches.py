"""The answer to a batch: a sequence of lists over two arrays, which later changes leave alone."""

from collections.abc import Sequence

import numpy as np
import pytest

from anabranch.matching.identities import Matches
from anabranch.matching.index import MatchIndex
from anabranch.model.event import Value


def three() -> Matches:
    return Matches(np.array([7, 8, 9], np.int64), np.array([0, 2, 2, 3], np.int64))


def test_matches_are_a_sequence_of_lists() -> None:
    matches = three()
    assert isinstance(matches, Sequence)
    assert len(matches) == 3
    assert list(matches) == [[7, 8], [], [9]]
    assert list(reversed(matches)) == [[9], [], [7, 8]]
    assert [9] in matches
    assert [8] not in matches
    assert matches.index([9]) == 2
    assert matches.count([]) == 1


def test_places_count_from_both_ends() -> None:
    matches = three()
    assert matches[0] == matches[-3] == [7, 8]
    assert matches[2] == matches[-1] == [9]
    assert matches[np.int64(2)] == [9]  # type: ignore[call-overload]


@pytest.mark.parametrize("place", [3, -4, 100])
def test_place_beyond_the_batch_is_refused(place: int) -> None:
    with pytest.raises(IndexError, match=f"event {place} of 3"):
        three()[place]


def test_slices_are_lists() -> None:
    assert three()[1:] == [[], [9]]
    assert three()[::-1] == [[9], [], [7, 8]]
    assert three()[5:] == []


def test_matches_equal_sequences_of_the_same_lists() -> None:
    assert three() == three()
    assert three() == [[7, 8], [], [9]]
    assert three() != [[7, 8], []]
    assert three() != [[7, 8], [], [1]]
    assert three() != "abc"
    assert three() != 3


def test_matches_have_no_hash() -> None:
    with pytest.raises(TypeError):
        hash(three())


def test_matches_say_how_many_they_are() -> None:
    assert repr(three()) == "<Matches of 3 events, 3 ids>"


def test_ids_in_lists_are_plain_python_values() -> None:
    assert {type(identity) for ids in three() for identity in ids} == {int}


def test_arrays_hold_the_same_as_the_lists(index: MatchIndex) -> None:
    index.add_many((number, f"x >= {number}") for number in range(50))
    events: list[dict[str, Value]] = [{"x": value} for value in (3, -1, 60, 0)]
    matches = index.match_batch(events)
    assert matches.offsets.tolist() == [0, 4, 4, 54, 55]
    for place, ids in enumerate(matches):
        start, end = matches.offsets[place : place + 2]
        assert matches.ids[start:end].tolist() == ids
        assert sorted(ids) == sorted(index.match(events[place]))  # type: ignore[type-var]


def test_empty_batch_has_an_empty_answer(index: MatchIndex) -> None:
    index.add(1, "TRUE")
    matches = index.match_batch([])
    assert len(matches) == 0
    assert list(matches) == []
    assert matches.ids.tolist() == []
    assert list(index.match_batch(index.encode([]))) == []


def test_answer_does_not_change_with_the_index(index: MatchIndex) -> None:
    index.add_many((number, "x > 1") for number in range(300))
    index.add("residue", "x + y > 3")
    events: list[dict[str, Value]] = [{"x": 2, "y": 2}, {"x": 1}]
    single = index.match(events[0])
    matches = index.match_batch(events)
    kept = [list(ids) for ids in matches]
    for number in range(300):
        index.remove(number)
    index.add_many((-1 - number, "x > 1") for number in range(400))
    index.match({"x": 5, "y": 9})
    index.match_batch([{"x": 7}])
    assert list(matches) == kept
    assert set(single) == {*range(300), "residue"}


def test_batch_larger_than_the_output_buffer_is_answered_whole() -> None:
    index = MatchIndex(engine="numba")
    index.add_many((number, "x > 1") for number in range(900))
    index.add_many((f"r{number}", "x > y") for number in range(60))
    events: list[dict[str, Value]] = [{"x": value % 3, "y": 1} for value in range(450)]
    matches = index.match_batch(events)
    assert [len(ids) for ids in matches] == [960 if value % 3 == 2 else 0 for value in range(450)]
    assert set(matches[2]) == set(index.match(events[2]))
