"""Sets of ticks as ranges: every operation agrees with a plain set of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.ranges import RangeSet
from anabranch.model.errors import LocalError

Ranges = list[tuple[int, int]]
LENGTH = 24
RANGES = st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(
    lambda ends: (min(ends), max(ends))
)
CHANGES = st.lists(st.tuples(st.booleans(), RANGES), max_size=30)


def runs(ticks: set[int]) -> Ranges:
    """The maximal runs of some numbers, found the slow way."""
    firsts = [tick for tick in sorted(ticks) if tick - 1 not in ticks]
    lasts = [tick for tick in sorted(ticks) if tick + 1 not in ticks]
    return list(zip(firsts, lasts, strict=True))


def changed(changes: list[tuple[bool, tuple[int, int]]]) -> tuple[RangeSet, set[int]]:
    ours, plain = RangeSet(), set[int]()
    for add, (first, last) in changes:
        ticks = range(first, last + 1)
        if add:
            ours.add(first, last)
            plain.update(ticks)
        else:
            ours.remove(first, last)
            plain.difference_update(ticks)
        assert list(ours) == runs(plain)
    return ours, plain


@given(CHANGES, RANGES)
def test_range_set_answers_like_a_plain_set(
    changes: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    ours, plain = changed(changes)
    window = set(range(asked[0], asked[1] + 1))
    assert [tick in ours for tick in range(-1, LENGTH + 2)] == [
        tick in plain for tick in range(-1, LENGTH + 2)
    ]
    assert ours.count() == len(plain)
    assert len(ours) == len(runs(plain))
    assert bool(ours) == bool(plain)
    assert ours.overlap(*asked) == runs(plain & window)
    assert ours.missing(*asked) == runs(window - plain)
    if plain:
        assert (ours.first(), ours.last()) == (min(plain), max(plain))


@given(CHANGES, CHANGES)
def test_sets_are_equal_if_they_hold_the_same_ticks(
    one: list[tuple[bool, tuple[int, int]]], other: list[tuple[bool, tuple[int, int]]]
) -> None:
    first, first_plain = changed(one)
    second, second_plain = changed(other)
    assert (first == second) == (first_plain == second_plain)
    assert first == RangeSet(first)


def test_ranges_that_touch_become_one() -> None:
    ranges = RangeSet([(1, 3), (7, 9)])
    ranges.add(4, 6)
    assert list(ranges) == [(1, 9)]
    assert len(ranges) == 1
    assert repr(RangeSet([(5, 5), (1, 3)])) == "RangeSet(1–3, 5)"


def test_removing_from_the_middle_leaves_two_ranges() -> None:
    ranges = RangeSet([(1, 9)])
    ranges.remove(4, 6)
    assert list(ranges) == [(1, 3), (7, 9)]


def test_a_billion_ticks_are_one_range() -> None:
    ranges = RangeSet([(1, 10**9)])
    ranges.remove(5 * 10**8, 5 * 10**8)
    assert ranges.count() == 10**9 - 1
    assert ranges.missing(1, 2 * 10**9) == [(5 * 10**8, 5 * 10**8), (10**9 + 1, 2 * 10**9)]


def test_an_empty_question_has_an_empty_answer() -> None:
    ranges = RangeSet([(1, 3), (5, 9)])
    for first in range(12):
        assert ranges.overlap(first, first - 1) == []
        assert ranges.missing(first, first - 1) == []
        assert ranges.overlap(first, first - 6) == []
        assert ranges.missing(first, first - 6) == []


def test_an_empty_set_has_no_ends() -> None:
    with pytest.raises(LocalError, match="no first"):
        RangeSet().first()
    with pytest.raises(LocalError, match="no last"):
        RangeSet().last()


def test_a_copy_changes_on_its_own() -> None:
    ranges = RangeSet([(1, 9)])
    other = ranges.copy()
    other.remove(2, 8)
    ranges.add(20, 20)
    assert list(ranges) == [(1, 9), (20, 20)]
    assert list(other) == [(1, 1), (9, 9)]


def test_a_range_set_equals_nothing_else_and_has_no_hash() -> None:
    assert RangeSet([(1, 2)]) != [(1, 2)]
    with pytest.raises(TypeError):
        hash(RangeSet())
