"""The reference means what was worked out by hand."""

import pytest

from anabranch.check.reference import reference_matches
from tests.pattern_examples import EXAMPLES, Example, history_of, pattern_of, written


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.claim for example in EXAMPLES])
def test_reference_finds_what_was_worked_out_by_hand(example: Example) -> None:
    found = reference_matches(pattern_of(example.pattern), history_of(example.history))
    assert sorted(map(written, found)) == sorted(example.matches)


def test_the_order_of_the_history_does_not_matter_to_the_reference() -> None:
    pattern, history = pattern_of("A THEN B WITHIN 9 s FIRST"), history_of("A0 A1 B2 B3")
    found = [written(match) for match in reference_matches(pattern, history[::-1])]
    assert sorted(found) == ["a0 b2", "a0 b3"]


def test_a_match_names_its_pattern_and_has_its_events_in_order() -> None:
    pattern, history = pattern_of("A AND B WITHIN 9 s"), history_of("B0 A1")
    (match,) = reference_matches(pattern, history, "mine")
    assert match.pattern == "mine"
    assert [each.event for each in match.contributions] == history
    assert match.by_part == {"a": (history[1],), "b": (history[0],)}
    assert match.last == history[1]
