"""The algebra of value sets against membership, value by value."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.event import INFINITY, Value, number_after
from anabranch.model.normal import number_ranges, text_ranges
from anabranch.model.normal.value_set import (
    EVERYTHING,
    NOTHING,
    ValueSet,
    intersection_of,
    point,
    union_of,
)
from tests.normal_parts import DOMAIN, pieces, probes_of, value_sets

values = st.sampled_from(DOMAIN)


def is_canonical(subject: ValueSet) -> bool:
    numbers, texts = subject.numbers, subject.texts
    return (
        all(start <= end for start, end in numbers)
        and all(end is None or start < end for start, end in texts)
        and all(left[1] < INFINITY and number_after(left[1]) < right[0]
                for left, right in pairwise(numbers))
        and all(left[1] is not None and left[1] < right[0]
                for left, right in pairwise(texts))
        and not any(repr(end) == "-0.0" for ends in numbers for end in ends)
    )  # fmt: skip


@given(value_sets, value_sets)
def test_operations_agree_with_membership(left: ValueSet, right: ValueSet) -> None:
    union, both, rest = left.union(right), left.intersection(right), left.complement()
    for value in probes_of([left, right]):
        in_left, in_right = left.contains(value), right.contains(value)
        assert union.contains(value) is (in_left or in_right)
        assert both.contains(value) is (in_left and in_right)
        assert rest.contains(value) is not in_left


@given(value_sets, value_sets)
def test_results_are_canonical(left: ValueSet, right: ValueSet) -> None:
    for result in (left, left.union(right), left.intersection(right), left.complement()):
        assert is_canonical(result)


@given(value_sets, value_sets)
def test_subset_and_intersects_are_exact(left: ValueSet, right: ValueSet) -> None:
    probes = probes_of([left, right])
    inside = all(right.contains(value) for value in probes if left.contains(value))
    meeting = any(right.contains(value) for value in probes if left.contains(value))
    assert left.is_subset(right) is inside
    assert left.intersects(right) is meeting


@given(value_sets, value_sets)
def test_equal_membership_is_equality(left: ValueSet, right: ValueSet) -> None:
    probes = probes_of([left, right])
    alike = all(left.contains(value) is right.contains(value) for value in probes)
    assert (left == right) is alike
    if alike:
        assert hash(left) == hash(right)


@given(st.lists(pieces, max_size=5), st.data())
def test_union_does_not_depend_on_order(members: list[ValueSet], data: st.DataObject) -> None:
    chained = NOTHING
    for member in data.draw(st.permutations(members)):
        chained = chained.union(member)
    assert union_of(members) == chained


@given(st.lists(value_sets, min_size=1, max_size=12))
def test_intersection_of_many_is_what_a_chain_gives(members: list[ValueSet]) -> None:
    chained = members[0]
    for member in members:
        chained = chained.intersection(member)
    assert intersection_of(members) == chained


@given(value_sets)
def test_complement_undoes_itself(subject: ValueSet) -> None:
    assert subject.complement().complement() == subject
    assert subject.union(subject.complement()) == EVERYTHING
    assert subject.intersection(subject.complement()).is_empty()
    assert subject.is_everything() is subject.complement().is_empty()


@given(values, values)
def test_point_contains_its_equals_only(value: Value | None, other: Value | None) -> None:
    if type(value) is bool or type(other) is bool:
        same = value is other
    else:
        same = value == other or (value != value and other != other)
    assert point(value).contains(other) is same


@given(value_sets, value_sets)
def test_parts_have_the_same_algebra_as_the_whole(left: ValueSet, right: ValueSet) -> None:
    assert number_ranges.is_subset(left.numbers, right.numbers) is (
        number_ranges.intersection(left.numbers, right.numbers) == left.numbers
    )
    assert text_ranges.is_subset(left.texts, right.texts) is (
        text_ranges.intersection(left.texts, right.texts) == left.texts
    )
