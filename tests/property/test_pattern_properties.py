"""The language of patterns against its own text, and the detector against the reference."""

from dataclasses import dataclass

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import event as note
from hypothesis import strategies as st
from msgspec.structs import replace

from anabranch.check.reference import reference_matches
from anabranch.core.patterns.detector import Detector
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.errors import PatternError, RemoteError
from anabranch.model.limits import Limits
from anabranch.model.pattern.match import Identity, PlacedEvent
from anabranch.model.pattern.pattern import Pattern
from anabranch.sim.mutants.catalog import MUTANTS, planted
from tests.filter_parts import any_text
from tests.pattern_parts import (
    Call,
    Outcome,
    calls,
    detected,
    events_of_calls,
    expected,
    has_absence,
    histories,
    patterns,
    timely_calls,
)


@dataclass(frozen=True)
class Case:
    """A pattern, and what comes."""

    pattern: Pattern
    calls: list[Call]


cases = st.builds(Case, patterns(), calls())


@st.composite
def timely_cases(draw: st.DrawFn) -> Case:
    pattern = draw(patterns())
    return Case(pattern, draw(timely_calls(pattern.lateness_ns)))


# -- the language


@given(patterns())
def test_a_pattern_is_read_back_from_its_text(pattern: Pattern) -> None:
    assert Pattern.parse(str(pattern)) == pattern


WORDS = [
    "{x > 1}",
    "a:{y = 'it''s }'}",
    "{[}] = 1}",
    "(",
    ")",
    "AND",
    "or",
    "THEN",
    "NOT",
    "3 TIMES",
    "WHERE",
    "WITHIN 5 s",
    "WITHIN",
    "min",
    "LATENESS 1 ms",
    "FIRST",
    "a.x = a.x",
    "b.c",
    "=",
    ":",
    ".",
    "[q]",
    "{",
    "}",
]


@given(st.lists(st.sampled_from(WORDS) | any_text, max_size=12).map(" ".join))
def test_any_text_is_a_pattern_or_an_error_with_a_place(text: str) -> None:
    try:
        pattern = Pattern.parse(text)
    except PatternError as error:
        place = error.position
    else:
        place = 0
        assert Pattern.parse(str(pattern)) == pattern
    assert 0 <= place <= len(text)


# -- the detector


def is_right(case: Case, outcome: Outcome) -> bool:
    """Whether a detector found what the reference finds in all that was not late."""
    accepted = events_of_calls(case.calls, outcome.late)
    return outcome.identities == expected(case.pattern, accepted)


@given(timely_cases())
def test_out_of_order_within_the_lateness_nothing_is_late_and_all_matches_are_found(
    case: Case,
) -> None:
    outcome = detected(case.pattern, case.calls)
    note(f"{case.pattern.policy}, {min(len(outcome.matches), 3)} matches")
    assert outcome.late == []
    assert is_right(case, outcome)


@given(st.builds(Case, patterns(events_max=3), calls(14)))
def test_in_longer_histories_all_matches_are_found(case: Case) -> None:
    outcome = detected(case.pattern, case.calls)
    assert is_right(case, outcome)
    assert outcome.overflows == []


@given(cases)
def test_late_events_are_told_and_the_others_give_what_the_reference_gives(case: Case) -> None:
    outcome = detected(case.pattern, case.calls)
    assert is_right(case, outcome)
    assert outcome.overflows == []


@given(
    st.builds(Case, patterns(("ALL",)), calls()).filter(lambda case: not has_absence(case.pattern))
)
def test_match_without_absence_is_reported_with_the_event_that_completes_it(case: Case) -> None:
    detector = Detector(PatternScheme(case.pattern, "p"))
    found: list[Identity] = []
    taken: list[PlacedEvent] = []
    for call in case.calls:
        if call.event is None:
            assert detector.advance(call.watermark_ns).matches == ()
            continue
        findings = detector.take(call.event)
        found.extend(match.identity for match in findings.matches)
        if not findings.late:
            taken.append(call.event)
        assert sorted(found) == expected(case.pattern, taken)


@given(patterns(), histories(), st.integers(0, 5))
def test_who_begins_a_window_earlier_finds_what_all_find(
    pattern: Pattern, history: list[PlacedEvent], begin_ns: int
) -> None:
    def found_since(events: list[PlacedEvent]) -> list[Identity]:
        matches = reference_matches(pattern, events)
        since_ns = begin_ns + pattern.window_ns
        return sorted(match.identity for match in matches if match.last.time_ns >= since_ns)

    assert found_since(history) == found_since([e for e in history if e.time_ns >= begin_ns])


@given(cases)
def test_nothing_is_kept_when_everything_is_over(case: Case) -> None:
    detector = detected(case.pattern, case.calls).detector
    assert (detector.kept, detector.waiting, detector.pending) == ([], [], [])


@given(cases)
def test_moving_the_state_changes_nothing(case: Case) -> None:
    unmoved = [call._replace(is_moved=False) for call in case.calls]
    moved = [call._replace(is_moved=True) for call in case.calls]
    one, other = detected(case.pattern, unmoved), detected(case.pattern, moved)
    # In order; as text, since NaN is not itself once it was written down.
    assert repr((one.matches, one.late)) == repr((other.matches, other.late))
    assert one.detector.tally == other.detector.tally


# -- at the bounds


@given(timely_cases(), st.integers(1, 4), st.integers(1, 4))
def test_beyond_a_bound_nothing_false_is_claimed_and_all_that_is_missing_is_told(
    case: Case, events_max: int, pending_max: int
) -> None:
    limits = Limits(pattern_events_max=events_max, pattern_pending_max=pending_max)
    outcome = detected(case.pattern, case.calls, limits=limits)
    refused = {(each.stream, each.tick) for each in outcome.overflows if each.reason == "no-room"}
    withheld = {(each.stream, each.tick) for each in outcome.overflows} - refused
    everything = events_of_calls(case.calls)
    accepted = [each for each in everything if (each.stream, each.tick) not in refused]
    wanted = set(expected(case.pattern, accepted))
    found = set(outcome.identities)
    assert found <= wanted
    if not has_absence(case.pattern):
        assert found == wanted
    # No refused event would have witnessed an absence that is claimed.
    assert found <= set(expected(replace(case.pattern, policy="ALL"), everything))
    for missing in wanted - found:
        assert any((stream, tick) in withheld for _, stream, tick in missing)


# -- mutants

MUTANTS_HERE = [
    name
    for name, mutant in MUTANTS.items()
    if mutant.found_by == "tests/property/test_pattern_properties.py"
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS_HERE)
def test_mutant_is_found(name: str) -> None:
    def shows(case: Case) -> bool:
        try:
            outcome = detected(case.pattern, case.calls)
        except (KeyError, TypeError, RemoteError):
            # It came to grief. That is found too, but wrong matches have to be.
            return False
        return not is_right(case, outcome)

    once = settings(max_examples=20_000, phases=[Phase.generate], derandomize=True)
    with planted(name):
        assert shows(find(st.one_of(cases, timely_cases()), shows, settings=once))
