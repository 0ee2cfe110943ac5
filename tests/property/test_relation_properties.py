"""Covering and intersection against every event that could decide them."""

from hypothesis import given

from anabranch.model.filter import Filter
from anabranch.model.language.evaluate import compile_condition
from anabranch.model.language.expression import Expression
from anabranch.model.normal.conjunction import Conjunction, any_intersects, covers, intersects
from anabranch.model.normal.normal_form import normalise
from tests.normal_parts import (
    ALL_EVENTS,
    atom_trees,
    boxes,
    deciding_events,
    mixed_trees,
    plain_trees,
)


@given(boxes, boxes)
def test_boxes_cover_exactly_if_no_event_says_otherwise(
    ours: Conjunction, other: Conjunction
) -> None:
    events = deciding_events((ours, other))
    inside = all(ours.matches(event) for event in events if other.matches(event))
    assert covers(ours, other) is inside


@given(boxes, boxes)
def test_boxes_intersect_exactly_if_an_event_says_so(ours: Conjunction, other: Conjunction) -> None:
    events = deciding_events((ours, other))
    meeting = any(ours.matches(event) and other.matches(event) for event in events)
    assert intersects(ours, other) is meeting
    assert intersects(other, ours) is meeting


@given(boxes)
def test_box_covers_and_intersects_itself(box: Conjunction) -> None:
    assert covers(box, box)
    assert intersects(box, box)


@given(atom_trees, atom_trees)
def test_filters_without_residue_intersect_exactly_if_an_event_says_so(
    ours: Expression, other: Expression
) -> None:
    left, right = normalise(ours), normalise(other)
    if any(conjunction.residue for conjunction in left + right):
        return
    matches_ours, matches_other = compile_condition(ours), compile_condition(other)
    events = deciding_events(left + right)
    meeting = any(matches_ours(event) and matches_other(event) for event in events)
    assert any_intersects(left, right) is meeting


@given(mixed_trees, mixed_trees)
def test_relations_of_filters_are_safe(ours: Expression, other: Expression) -> None:
    ours_filter, other_filter = Filter.of(ours), Filter.of(other)
    is_covered = ours_filter.covers(other_filter)
    may_meet = ours_filter.intersects(other_filter)
    matches_ours, matches_other = compile_condition(ours), compile_condition(other)
    for event in ALL_EVENTS:
        if matches_other(event):
            assert matches_ours(event) or not is_covered, event
            assert may_meet or not matches_ours(event), event


@given(plain_trees, mixed_trees)
def test_disjunction_covers_its_plain_parts(ours: Expression, other: Expression) -> None:
    one, two = Filter.of(ours), Filter.of(other)
    assert (one | two).covers(one)
    assert one.covers(one & two)


@given(mixed_trees)
def test_filter_and_its_negation_contradict_each_other(expression: Expression) -> None:
    one = Filter.of(expression)
    assert one.covers(one)
    assert (one & ~one).conjunctions == ()
