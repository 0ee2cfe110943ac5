"""At most so many matches end with one event: the detector against the reference, with few."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import event as note
from hypothesis import strategies as st

from anabranch.check.reference import reference_matches
from anabranch.core.patterns.detector import Detector
from anabranch.core.patterns.detector_state import packed, restored
from anabranch.core.patterns.plan import StepAllowance
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.errors import RemoteError
from anabranch.model.event import INT_MAX
from anabranch.model.limits import Limits
from anabranch.model.pattern.match import Identity, Match, PlacedEvent
from anabranch.model.pattern.pattern import Pattern
from anabranch.sim.mutants.catalog import MUTANTS, planted
from tests.pattern_parts import (
    Call,
    Outcome,
    calls,
    detected,
    events_of_calls,
    expected,
    has_absence,
    patterns,
    timely_calls,
)

#: More matches than any history here has.
EVERY = 10**6


@dataclass(frozen=True)
class Case:
    """A pattern, what comes, and how many matches may end with one event."""

    pattern: Pattern
    calls: list[Call]
    matches_max: int

    @property
    def limits(self) -> Limits:
        return Limits(pattern_matches_max=self.matches_max)


few = st.integers(1, 3)
cases = st.builds(Case, patterns(), calls(), few)


@st.composite
def timely_cases(draw: st.DrawFn) -> Case:
    pattern = draw(patterns())
    return Case(pattern, draw(timely_calls(pattern.lateness_ns)), draw(few))


@st.composite
def ordered_cases(draw: st.DrawFn) -> Case:
    """Everything comes in the order of events."""
    pattern = draw(patterns())
    made = sorted(draw(calls()), key=lambda call: call.event.key if call.event else (99,))
    return Case(pattern, [call for call in made if call.event is not None], draw(few))


def outcome_of(case: Case) -> Outcome:
    return detected(case.pattern, case.calls, limits=case.limits)


def is_eager(pattern: Pattern) -> bool:
    return pattern.policy == "ALL" and not has_absence(pattern)


def few_were_known(case: Case, accepted: list[PlacedEvent]) -> set[Identity]:
    """Matches that were complete when no more were known that end with the same event than are
    reported."""
    found: set[Identity] = set()
    for end in range(1, len(accepted) + 1):
        every = reference_matches(case.pattern, accepted[:end], "p", EVERY)
        sizes = Counter(match.last.key for match in every)
        found |= {each.identity for each in every if sizes[each.last.key] <= case.matches_max}
    return found


def is_right(case: Case, outcome: Outcome) -> bool:
    """Whether the first matches were found, each once; and others only while they were few."""
    accepted = events_of_calls(case.calls, outcome.late)
    first = expected(case.pattern, accepted, case.matches_max)
    found = outcome.identities
    if not is_eager(case.pattern):
        return found == first
    others = set(found) - set(first)
    is_once = len(set(found)) == len(found)
    return is_once and set(first) <= set(found) and others <= few_were_known(case, accepted)


def crowded(case: Case, accepted: list[PlacedEvent]) -> set[tuple[str, int]]:
    """The events that more matches end with than are reported; by another way than the
    reference's: one more match makes a difference."""
    if case.pattern.policy != "ALL":
        return set()
    matches = reference_matches(case.pattern, accepted, "p", case.matches_max)
    return {(match.last.stream, match.last.tick) for match in matches if match.is_cut}


@given(timely_cases())
def test_first_matches_are_found_in_any_order_and_others_only_while_they_are_few(
    case: Case,
) -> None:
    outcome = outcome_of(case)
    note(f"left out: {any(each.reason == 'left-out' for each in outcome.overflows)}")
    assert outcome.late == []
    assert is_right(case, outcome)


@given(cases)
def test_late_events_aside_the_first_matches_are_found(case: Case) -> None:
    assert is_right(case, outcome_of(case))


@given(ordered_cases())
def test_where_events_come_in_order_the_first_matches_are_found_and_no_others(case: Case) -> None:
    accepted = events_of_calls(case.calls)
    assert outcome_of(case).identities == expected(case.pattern, accepted, case.matches_max)


@given(timely_cases())
def test_what_is_left_out_is_told_with_the_event_that_it_ends_with(case: Case) -> None:
    outcome = outcome_of(case)
    told = [(each.stream, each.tick) for each in outcome.overflows if each.reason == "left-out"]
    assert len(set(told)) == len(told)
    assert {each.reason for each in outcome.overflows} <= {"left-out"}
    # Where absences at the end undo all that is kept, nothing shows it but what is told.
    cut = crowded(case, events_of_calls(case.calls))
    assert cut <= set(told)
    if is_eager(case.pattern):
        assert cut == set(told)
    for match in outcome.matches:
        if match.is_cut:
            assert (match.last.stream, match.last.tick) in told


@given(st.one_of(cases, timely_cases()))
def test_moving_the_state_changes_nothing(case: Case) -> None:
    unmoved = [call._replace(is_moved=False) for call in case.calls]
    moved = [call._replace(is_moved=True) for call in case.calls]
    one = detected(case.pattern, unmoved, limits=case.limits)
    other = detected(case.pattern, moved, limits=case.limits)
    assert repr((one.matches, one.late)) == repr((other.matches, other.late))
    assert one.overflows == other.overflows
    detector = other.detector
    assert (detector.kept, detector.endings.reported, detector.endings.crowded) == ([], [], [])


def in_steps(case: Case, allowance: StepAllowance | None, is_moved: bool) -> list[Match]:
    """What is found where a step is over as soon as anything was tried."""
    scheme = PatternScheme(case.pattern, "p", case.limits)
    detector = Detector(scheme, allowance)
    found: list[Match] = []

    def advance(watermark_ns: int) -> None:
        nonlocal detector
        while True:
            found.extend(detector.advance(watermark_ns).matches)
            if not detector.has_pending_decisions:
                return
            assert allowance is not None
            allowance.renew()
            if is_moved:
                detector = restored(scheme, packed(detector), allowance)

    for call in case.calls:
        if call.event is not None:
            found.extend(detector.take(call.event).matches)
        else:
            advance(call.watermark_ns)
    advance(INT_MAX)
    return found


@given(st.one_of(cases, timely_cases()), st.booleans())
def test_steps_that_end_early_change_neither_what_is_found_nor_its_order(
    case: Case, is_moved: bool
) -> None:
    assert repr(in_steps(case, StepAllowance(1), is_moved)) == repr(in_steps(case, None, False))


@given(timely_cases())
def test_more_matches_end_with_an_event_the_greater_the_bound(case: Case) -> None:
    events = events_of_calls(case.calls)
    bounds = (case.matches_max, case.matches_max + 1, EVERY)
    for less, more in pairwise(set(expected(case.pattern, events, each)) for each in bounds):
        assert less <= more


MUTANTS_HERE = [
    name
    for name, mutant in MUTANTS.items()
    if mutant.found_by == "tests/property/test_match_bounds.py"
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS_HERE)
def test_mutant_is_found(name: str) -> None:
    def shows(case: Case) -> bool:
        try:
            return not is_right(case, outcome_of(case))
        except (KeyError, TypeError, RemoteError):
            return False

    once = settings(max_examples=20_000, phases=[Phase.generate], derandomize=True)
    with planted(name):
        assert shows(find(st.one_of(cases, timely_cases()), shows, settings=once))
