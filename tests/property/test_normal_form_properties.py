"""The contract of the normal form, tried on every event over two attributes."""

from itertools import permutations

from hypothesis import given

from anabranch.model.event import Value
from anabranch.model.language.evaluate import compile_condition, evaluate
from anabranch.model.language.expression import And, Expression, Or, negation_of
from anabranch.model.language.tokens import expression_text
from anabranch.model.normal.conjunction import EVERY_EVENT, Conjunction, covers
from anabranch.model.normal.normal_form import normalise
from tests.filter_parts import events, meeting_conditions
from tests.normal_parts import ALL_EVENTS, atom_trees, mixed_trees, plain_trees


def is_matched(conjunctions: tuple[Conjunction, ...], event: dict[str, Value]) -> bool:
    return any(conjunction.matches(event) for conjunction in conjunctions)


def assert_same_matches(expression: Expression) -> None:
    conjunctions = normalise(expression)
    condition = compile_condition(expression)
    for event in ALL_EVENTS:
        assert is_matched(conjunctions, event) is (condition(event) is True), event


@given(atom_trees)
def test_normal_form_of_atoms_matches_where_the_filter_is_true(expression: Expression) -> None:
    assert_same_matches(expression)


@given(mixed_trees)
def test_normal_form_with_residues_matches_where_the_filter_is_true(
    expression: Expression,
) -> None:
    assert_same_matches(expression)


@given(meeting_conditions, events)
def test_normal_form_agrees_with_the_definition(
    expression: Expression, event: dict[str, Value]
) -> None:
    assert is_matched(normalise(expression), event) is (evaluate(expression, event) is True)


@given(plain_trees)
def test_short_cut_gives_what_the_long_way_gives(expression: Expression) -> None:
    items = expression.items if isinstance(expression, And) else (expression, expression)
    the_long_way = negation_of(Or(tuple(negation_of(item) for item in items)))
    assert normalise(expression) == normalise(the_long_way)


@given(mixed_trees)
def test_normal_form_keeps_its_invariants(expression: Expression) -> None:
    conjunctions = normalise(expression)
    for conjunction in conjunctions:
        names = [name for name, _ in conjunction.constraints]
        assert names == sorted(set(names))
        assert not any(values.is_empty() for _, values in conjunction.constraints)
        assert not any(values.is_everything() for _, values in conjunction.constraints)
        residue_texts = [expression_text(part) for part in conjunction.residue]
        assert residue_texts == sorted(set(residue_texts))
    if EVERY_EVENT in conjunctions:
        assert len(conjunctions) == 1


@given(atom_trees)
def test_no_conjunction_covers_another_of_the_same_filter(expression: Expression) -> None:
    boxes = [conjunction for conjunction in normalise(expression) if not conjunction.residue]
    for one, other in permutations(boxes, 2):
        assert not covers(one, other)
