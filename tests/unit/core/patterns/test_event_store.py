"""All detectors of a broker keep no more bytes than they may, and none starves for another."""

from anabranch.core.patterns.detector import Detector, StepResult
from anabranch.core.patterns.detector_state import packed, restored
from anabranch.core.patterns.event_store import ByteBudget, size_of
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.pattern.match import PlacedEvent
from anabranch.model.pattern.pattern import Pattern

SCHEME = PatternScheme(Pattern.parse("a:{k = 'A'} THEN b:{k = 'B'} WITHIN 10 s"), "p")
SECOND = 10**9


def event(tick: int, time_s: int = 0, payload: int = 10_000) -> PlacedEvent:
    return PlacedEvent("s", tick, time_s * SECOND, {"k": "A"}, bytes(payload))


def refused(findings: StepResult) -> bool:
    return [each.reason for each in findings.overflows] == ["no-room"]


def test_what_a_detector_keeps_is_counted_and_given_back_with_time() -> None:
    room = ByteBudget(1_000_000)
    detector = Detector(SCHEME, room=room)
    for tick in range(1, 11):
        detector.take(event(tick, tick))
    assert room.used == 10 * size_of(event(1)) > 100_000
    detector.advance(1_000 * SECOND)
    assert room.used == 0


def test_large_events_are_refused_long_before_they_are_many() -> None:
    room = ByteBudget(1_000_000)
    detector = Detector(SCHEME, room=room)
    found = [detector.take(event(tick)) for tick in range(1, 200)]
    assert not refused(found[0])
    assert refused(found[-1])
    assert room.used <= 1_000_000 + size_of(event(1))
    assert detector.tally.overflows == sum(map(refused, found))


def test_a_detector_that_keeps_little_goes_on_when_another_keeps_much() -> None:
    room = ByteBudget(1_000_000)
    greedy, modest = Detector(SCHEME, room=room), Detector(SCHEME, room=room)
    for tick in range(1, 200):
        greedy.take(event(tick))
    assert not any(refused(modest.take(event(tick))) for tick in range(1, 11))
    assert refused(greedy.take(event(500)))
    assert room.used <= 1_000_000 + size_of(event(1))


def test_a_detector_that_is_closed_gives_everything_back() -> None:
    room = ByteBudget(1_000_000)
    detector, other = Detector(SCHEME, room=room), Detector(SCHEME, room=room)
    for tick in range(1, 200):
        detector.take(event(tick))
    other.take(event(1))
    detector.close()
    assert room.used == size_of(event(1))
    detector.close()
    assert room.used == size_of(event(1))


def test_without_a_room_only_their_number_is_bounded() -> None:
    detector = Detector(SCHEME)
    assert not any(refused(detector.take(event(tick))) for tick in range(1, 200))
    again = restored(SCHEME, packed(detector))
    assert len(again.kept) + len(again.waiting) == 199
