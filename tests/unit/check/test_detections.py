"""Reports of patterns against what should have been reported."""

import pytest

from anabranch.check.detections import Detection, LoggedEvent, check_detection
from anabranch.model.encoding import decode_envelope, encode_event
from anabranch.model.event import Control, Event, EventId
from anabranch.model.pattern.match import Contribution, Match, PlacedEvent, Start, notification_of

SECOND = 10**9
RISE = Detection("rise", "low:{p < 20} THEN high:{p > 30} WITHIN 2 s", {"e": Start(2, SECOND)})


def logged(tick: int, event: Event, at_s: float, stream: str = "e") -> LoggedEvent:
    time_ns = int(at_s * SECOND)
    named = event.stamped(EventId("p", 1, tick), time_ns)
    return LoggedEvent(stream, tick, time_ns, decode_envelope(encode_event(named)))


def price(tick: int, at_s: float, p: int, control: Control | None = None) -> LoggedEvent:
    return logged(tick, Event({"p": p}, control=control or Control()), at_s)


def placed(event: LoggedEvent) -> PlacedEvent:
    envelope = event.envelope
    place = event.stream, event.tick, event.time_ns
    return PlacedEvent(*place, envelope.attributes(), envelope.encoded)


def report(tick: int, low: LoggedEvent, high: LoggedEvent) -> LoggedEvent:
    """A notification that these two match."""
    parts = tuple(Contribution(part, placed(e)) for part, e in (("low", low), ("high", high)))
    event = notification_of(Match("rise", parts), high.time_ns)
    return logged(tick, event, 9.0)


def found(*events: LoggedEvent) -> list[tuple[str, int]]:
    return [(each.name, each.tick) for each in check_detection(RISE, events)]


def test_what_was_reported_once_and_is_a_match_is_right() -> None:
    low, high = price(2, 2.0, 10), price(3, 3.0, 40)
    assert found(low, high, report(9, low, high)) == []


def test_a_match_that_nobody_reported_is_missed() -> None:
    assert found(price(2, 2.0, 10), price(3, 3.0, 40)) == [("missed-pattern", 3)]


def test_a_match_that_was_reported_twice_is_a_duplicate() -> None:
    low, high = price(2, 2.0, 10), price(3, 3.0, 40)
    reports = report(8, low, high), report(9, low, high)
    assert found(low, high, *reports) == [("duplicate-pattern", 9)]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        pytest.param(price(2, 2.0, 10), price(3, 4.5, 40), id="beyond the window"),
        pytest.param(price(3, 3.0, 10), price(2, 2.0, 40), id="in another order"),
        pytest.param(price(2, 2.0, 25), price(3, 3.0, 40), id="a part that is not satisfied"),
        pytest.param(price(1, 2.0, 10), price(3, 3.0, 40), id="before the first tick"),
        pytest.param(price(2, 1.0, 10), price(3, 1.5, 40), id="of a former life"),
        pytest.param(
            price(2, 2.0, 10, Control(time_limit_ns=10**12)),
            price(3, 3.0, 40),
            id="an event that nobody has to keep",
        ),
    ],
)
def test_what_is_reported_and_is_no_match_is_false(low: LoggedEvent, high: LoggedEvent) -> None:
    assert found(low, high, report(9, low, high)) == [("false-pattern", 9)]


# -- at most one match ends with an event


def bounded(text: str, *events: LoggedEvent) -> list[tuple[str, int]]:
    starts = {"e": Start(2, SECOND), "f": Start(2, SECOND)}
    detection = Detection("rise", text, starts, matches_max=1)
    return [(each.name, each.tick) for each in check_detection(detection, events)]


def test_the_first_match_that_ends_with_an_event_is_wanted_and_no_other() -> None:
    first, second, high = price(2, 2.0, 10), price(3, 2.1, 11), price(4, 3.0, 40)
    assert bounded(RISE.text, first, second, high, report(9, first, high)) == []
    reports = report(8, first, high), report(9, second, high)
    assert bounded(RISE.text, first, second, high, *reports) == [("excess-pattern", 9)]
    found = bounded(RISE.text, first, second, high, report(9, second, high))
    assert found == [("excess-pattern", 9), ("missed-pattern", 4)]


def test_another_may_be_reported_before_the_first_came_from_another_stream() -> None:
    first = logged(2, Event({"p": 10}), 2.0, "f")
    second, high = price(3, 2.1, 11), price(4, 3.0, 40)
    reports = report(8, second, high), report(9, first, high)
    assert bounded(RISE.text, first, second, high, *reports) == []
    assert bounded(RISE.text, first, second, high, reports[0]) == [("missed-pattern", 4)]


def test_what_waits_for_its_turn_reports_the_first_and_nothing_else() -> None:
    text = "low:{p < 20} THEN NOT {p = 25} THEN high:{p > 30} WITHIN 2 s"
    first = logged(2, Event({"p": 10}), 2.0, "f")
    second, high = price(3, 2.1, 11), price(4, 3.0, 40)
    reports = report(8, second, high), report(9, first, high)
    assert bounded(text, first, second, high, *reports) == [("excess-pattern", 8)]
