"""The detector, call by call: when it reports, what it refuses, and what it keeps."""

import pytest

from anabranch.core.patterns.detector import NOTHING, Detector, Overflow
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.errors import PatternLimitError
from anabranch.model.event import INT_MAX, INT_MIN
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.pattern.match import PlacedEvent
from anabranch.model.pattern.pattern import Pattern
from tests.pattern_examples import (
    EXAMPLES,
    SECOND_NS,
    Example,
    history_of,
    pattern_of,
    written,
)


def detector_of(text: str, **limits: int) -> Detector:
    return Detector(PatternScheme(pattern_of(text), "p", Limits(**limits)))


def take(detector: Detector, event: PlacedEvent) -> list[str]:
    return [written(match) for match in detector.take(event).matches]


def advance(detector: Detector, time_s: float) -> list[str]:
    return [written(match) for match in detector.advance(int(time_s * SECOND_NS)).matches]


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.claim for example in EXAMPLES])
@pytest.mark.parametrize("turn", [1, -1])
def test_detector_finds_what_was_worked_out_by_hand(example: Example, turn: int) -> None:
    detector = Detector(PatternScheme(pattern_of(example.pattern)))
    found = [detector.take(event) for event in history_of(example.history)[::turn]]
    found.append(detector.advance(INT_MAX))
    matches = [written(match) for each in found for match in each.matches]
    assert sorted(matches) == sorted(example.matches)


# -- when


def test_match_of_all_is_reported_with_the_event_that_completes_it() -> None:
    first, second = history_of("A0 B1")
    detector = detector_of("A THEN B WITHIN 5 s LATENESS 2 s")
    assert take(detector, second) == []
    assert take(detector, first) == ["a0 b1"]
    assert advance(detector, 100) == []


def test_choice_waits_until_nothing_earlier_can_come() -> None:
    early, late, last = history_of("A0 A1 B2")
    detector = detector_of("A THEN B WITHIN 5 s LATENESS 1 s FIRST")
    assert take(detector, last) == take(detector, late) == []
    assert advance(detector, 3) == []
    detector = detector_of("A THEN B WITHIN 5 s LATENESS 1 s FIRST")
    for event in (last, late, early):
        assert take(detector, event) == []
    assert advance(detector, 3) == []
    assert advance(detector, 3.1) == ["a0 b2"]


def test_absence_is_reported_when_its_window_has_passed() -> None:
    (only,) = history_of("A1")
    detector = detector_of("A THEN NOT B WITHIN 5 s")
    assert take(detector, only) == []
    assert advance(detector, 6) == []
    assert advance(detector, 6.001) == ["a0"]
    assert advance(detector, 100) == []


def test_each_absence_of_all_is_reported_when_its_own_window_has_passed() -> None:
    detector = detector_of("A THEN C THEN NOT B WITHIN 5 s")
    for event in history_of("A0 A2 C3"):
        take(detector, event)
    assert advance(detector, 5.1) == ["a0 c2"]
    assert advance(detector, 7.1) == ["a1 c2"]


def test_time_does_not_go_back() -> None:
    detector = detector_of("A THEN B WITHIN 5 s")
    detector.advance(10 * SECOND_NS)
    assert detector.advance(5 * SECOND_NS) is NOTHING
    assert detector.horizon_ns == 10 * SECOND_NS


# -- what is not taken


def test_late_event_is_told_and_counted() -> None:
    on_time, late = history_of("A5 A4")
    detector = detector_of("A WITHIN 5 s LATENESS 2 s")
    detector.advance(7 * SECOND_NS)
    assert take(detector, on_time) == ["a0"]
    findings = detector.take(late)
    assert (findings.matches, findings.late) == ((), (late,))
    assert detector.tally.late == 1


def test_event_that_no_part_wants_is_not_kept_and_never_late() -> None:
    detector = detector_of("A WITHIN 5 s")
    detector.advance(7 * SECOND_NS)
    (event,) = history_of("C1")
    assert detector.take(event) is NOTHING
    assert detector.kept == []


def test_event_that_comes_again_is_not_taken_again() -> None:
    (event,) = history_of("A1")
    detector = detector_of("A WITHIN 5 s")
    assert take(detector, event) == ["a0"]
    assert take(detector, event) == []
    detector.advance(2 * SECOND_NS)
    assert detector.take(event) is NOTHING
    assert (detector.tally.repeated, detector.tally.late) == (2, 0)


# -- bounds


def test_event_without_room_is_refused_by_name() -> None:
    detector = detector_of("A AND B WITHIN 5 s", pattern_events_max=2)
    one, two, three = history_of("A0 A1 B2")
    assert take(detector, one) == take(detector, two) == []
    findings = detector.take(three)
    assert findings.overflows == (Overflow("no-room", "stream", 2),)
    assert findings.matches == ()
    assert detector.tally.overflows == 1


def test_absence_is_not_claimed_if_its_witness_was_refused() -> None:
    detector = detector_of("A THEN NOT B WITHIN 5 s", pattern_events_max=1)
    first, witness = history_of("A0 B1")
    take(detector, first)
    detector.take(witness)
    findings = detector.advance(10 * SECOND_NS)
    assert findings.matches == ()
    assert findings.overflows == (Overflow("undecided", "stream", 0),)
    later = PlacedEvent("stream", 7, 20 * SECOND_NS, {"k": "A"})
    take(detector, later)
    assert advance(detector, 30) == ["a7"]


def test_choice_is_not_made_if_a_witness_was_refused() -> None:
    detector = detector_of("A THEN NOT B THEN C WITHIN 5 s LAST", pattern_events_max=2)
    first, last, witness = history_of("A0 C2 B1")
    for event in (first, last, witness):
        take(detector, event)
    findings = detector.advance(10 * SECOND_NS)
    assert findings.matches == ()
    assert findings.overflows == (Overflow("undecided", "stream", 1),)


def test_match_that_cannot_wait_is_told() -> None:
    detector = detector_of("A THEN NOT B WITHIN 5 s", pattern_pending_max=1)
    for event in history_of("A0 A1"):
        take(detector, event)
    findings = detector.advance(2 * SECOND_NS)
    assert findings.overflows == (Overflow("too-many-pending", "stream", 1),)
    assert advance(detector, 10) == ["a0"]


def test_events_that_nothing_ends_with_do_not_wait() -> None:
    detector = detector_of("A THEN NOT B WITHIN 5 s LAST", pattern_pending_max=1)
    for event in history_of("B0 A1 B9"):
        take(detector, event)
    assert advance(detector, 6.1) == ["a1"]
    assert advance(detector, 99) == []
    assert detector.tally.overflows == 0


@pytest.mark.parametrize("policy", ["ALL", "LAST"])
def test_search_that_takes_too_long_is_told(policy: str) -> None:
    text = f"x:{{k = 'A'}} THEN A THEN NOT B THEN C WITHIN 9 s {policy}"
    detector = detector_of(text, pattern_tries_max=50)
    found = [detector.take(event) for event in history_of("A0 " * 12 + "B1 C2")]
    found.append(detector.advance(INT_MAX))
    assert {each.reason for one in found for each in one.overflows} == {"too-many-tries"}


def test_pattern_beyond_the_limits_of_the_detector_is_refused() -> None:
    pattern = Pattern.parse("{x = 1} AND {x = 2} WITHIN 5 s")
    with pytest.raises(PatternLimitError, match="pattern_parts_max"):
        PatternScheme(pattern, limits=Limits(pattern_parts_max=1))


def test_times_at_the_ends_of_the_range_are_fine() -> None:
    detector = Detector(PatternScheme(pattern_of("A THEN NOT B WITHIN 5 s"), limits=DEFAULT_LIMITS))
    detector.take(PlacedEvent("s", 1, INT_MIN, {"k": "A"}))
    detector.take(PlacedEvent("s", 2, INT_MAX - 6 * SECOND_NS, {"k": "A"}))
    detector.advance(INT_MIN)
    assert len(detector.advance(INT_MAX).matches) == 2


# -- cost


def test_other_keys_are_not_looked_at() -> None:
    detector = detector_of("A THEN B WHERE a.s = b.s WITHIN 5 s", pattern_tries_max=20)
    for tick in range(1_000):
        detector.take(PlacedEvent("s", tick, 0, {"k": "A", "s": f"symbol-{tick}"}))
    findings = detector.take(PlacedEvent("s", 1_000, 1, {"k": "B", "s": "symbol-7"}))
    assert [written(match) for match in findings.matches] == ["a7 b1000"]
    assert findings.overflows == ()


def test_last_of_a_hundred_looks_at_each_only_a_few_times() -> None:
    detector = detector_of("100 TIMES A WITHIN 9 s LAST", pattern_tries_max=900)
    found = []
    for tick in range(500):
        detector.take(PlacedEvent("s", tick, tick, {"k": "A"}))
        found.append(detector.advance(tick + 1))
    assert [len(each.matches) for each in found] == [0] * 99 + [1] * 401
    assert not any(each.overflows for each in found)


def test_what_is_kept_depends_on_the_window_and_not_on_the_past() -> None:
    detector = detector_of("A THEN B WITHIN 5 s")
    for tick in range(1_000):
        detector.take(PlacedEvent("s", tick, tick * SECOND_NS, {"k": "A"}))
        detector.advance(tick * SECOND_NS)
    assert [entry[2] for entry in detector.kept] == list(range(994, 1_000))


def test_two_joins_between_two_parts_must_both_hold() -> None:
    text = "A THEN B WHERE a.s = b.s AND a.t = b.t WITHIN 5 s"
    detector = detector_of(text)
    pairs = [("p", "x"), ("p", "y"), ("q", "x")]
    for tick, (symbol, venue) in enumerate(pairs):
        detector.take(PlacedEvent("s", tick, 0, {"k": "A", "s": symbol, "t": venue}))
    last = PlacedEvent("s", 9, 1, {"k": "B", "s": "p", "t": "x"})
    assert take(detector, last) == ["a0 b9"]
