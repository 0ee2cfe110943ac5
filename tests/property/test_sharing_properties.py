"""A history that is divided by a shared key gives what the whole one gives."""

from hypothesis import assume, given, settings
from hypothesis import event as note
from hypothesis import strategies as st

from anabranch.core.patterns.detector import Detector
from anabranch.core.patterns.plan import KeyValue, key_of
from anabranch.core.patterns.scheme import PatternScheme, shared_key
from anabranch.model.event import INT_MAX
from anabranch.model.pattern.match import Identity, PlacedEvent
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.tree import Join, Or, Term, absent_names, nodes_of, parts_of
from tests.pattern_parts import expected, histories, named, patterns


def shares_of(
    scheme: PatternScheme, key: tuple[str, ...], history: list[PlacedEvent]
) -> list[list[tuple[PlacedEvent, int]]]:
    """For each key its events, each with the parts for which it has that key."""
    shares: dict[KeyValue | None, dict[int, int]] = {}
    for place, event in enumerate(history):
        for number, part in enumerate(scheme.pattern.parts):
            if part.filter.matches(event.attributes):
                own = shares.setdefault(key_of(event.attributes.get(key[number])), {})
                own[place] = own.get(place, 0) | 1 << number
    return [[(history[place], parts) for place, parts in own.items()] for own in shares.values()]


def found_in(scheme: PatternScheme, share: list[tuple[PlacedEvent, int]]) -> list[Identity]:
    detector = Detector(scheme)
    found = [detector.take_known(event, parts) for event, parts in share]
    found.append(detector.advance(INT_MAX))
    return [match.identity for each in found for match in each.matches]


@st.composite
def tied(draw: st.DrawFn) -> Pattern:
    """A pattern all of whose parts are joined with one that must be there."""
    pattern = draw(patterns())
    root = named(pattern.root, "abcdefghijklmnopqrstuvwxyz")
    words = [part.name for part in parts_of(root)]
    first = next(name for name in words if name not in absent_names(root))
    same: bool = draw(st.booleans())
    attributes = st.just("s") if same else st.sampled_from("st")
    own = Term(first, draw(attributes))
    joins = tuple(
        Join(own, own if name == first else Term(name, draw(attributes))) for name in words
    )
    return Pattern(root, joins, pattern.window_ns, pattern.lateness_ns, pattern.policy)


@given(tied() | patterns(), histories())
def test_shares_of_a_key_have_all_matches_and_each_once(
    pattern: Pattern, history: list[PlacedEvent]
) -> None:
    scheme = PatternScheme(pattern, "p")
    key = shared_key(scheme)
    note("none" if key is None else f"{len(set(key))} attributes, {pattern.policy}")
    if key is not None:
        shares = shares_of(scheme, key, history)
        found = sorted(each for share in shares for each in found_in(scheme, share))
        assert found == expected(pattern, history)


@settings(max_examples=30)
@given(tied().filter(lambda pattern: pattern.policy == "ALL"))
def test_what_one_attribute_ties_together_has_it_as_its_key(pattern: Pattern) -> None:
    terms = {term.attribute for join in pattern.joins for term in (join.left, join.right)}
    assume(len(terms) == 1)
    assume(not any(isinstance(node, Or) for node in nodes_of(pattern.root)))
    assert shared_key(PatternScheme(pattern)) == (*terms,) * len(pattern.parts)
