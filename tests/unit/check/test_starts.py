"""Starts and refusals: histories that have an anomaly, and their twins without."""

from collections.abc import Sequence

from anabranch.check import history as saw
from anabranch.check.checker import check
from tests.history_parts import (
    END,
    HEALED,
    LATE,
    delivered,
    published,
    started,
    stream_of,
    subscribed,
)

ABOVE_TWO: saw.PlainFilter = ((("a", ">", 2),),)
CUT = saw.Cut(97.0, "s")


def names(history: Sequence[saw.Record]) -> list[str]:
    return [anomaly.name for anomaly in check(history)]


def test_a_subscription_that_never_starts_is_stuck() -> None:
    assert names([subscribed(), *END]) == ["stuck"]
    assert names([subscribed(), started(1), *END]) == []
    assert names([subscribed(), CUT, *END]) == []
    assert names([subscribed(time=195.0), *END]) == []
    assert names([subscribed(), saw.Healed(HEALED)]) == []


def test_a_subscription_that_starts_after_it_had_to_is_late() -> None:
    assert names([*LATE, subscribed(), started(3), *END]) == ["late-start"]
    assert names([*LATE, subscribed(), started(2), delivered(2), *END]) == []
    assert names([*LATE, subscribed(time=145.0), started(3), *END]) == []


def test_a_subscription_that_starts_after_the_tick_it_asked_for_is_late() -> None:
    asked = subscribed(latest_start={"o": 2})
    assert names([*stream_of(1, 2, 3), asked, started(3), delivered(3)]) == ["late-start"]
    assert names([*stream_of(1, 2, 3), asked, started(2), *map(delivered, (2, 3))]) == []


def test_a_start_that_was_asked_for_beyond_the_log_is_not_late() -> None:
    asked = subscribed(latest_start={"o": 9})
    assert names([*LATE, asked, started(9), *END]) == []


def test_a_start_at_the_beginning_is_where_the_log_begins() -> None:
    history: list[saw.Record] = [*stream_of(1, 2, 3), saw.Forgotten("o", 1, "released")]
    asked = subscribed(start="beginning")
    assert names([*history, asked, started(3), delivered(3)]) == ["late-start"]
    assert names([*history, asked, started(2), delivered(2), delivered(3)]) == []


def test_a_start_at_a_time_is_at_its_first_tick_or_before_but_brings_nothing_older() -> None:
    events: list[saw.Record] = [published(n) for n in (1, 2, 3)]
    ticks = [saw.Logged("o", n, "p", 1, n, time=float(10 * n)) for n in (1, 2, 3)]
    asked = subscribed(start="time", start_time=15.0, time=50.0)
    history = [*events, *ticks, asked]
    assert names([*history, started(3), delivered(3)]) == ["late-start"]
    assert names([*history, started(2), delivered(2), delivered(3)]) == []
    assert names([*history, started(1), *map(delivered, (1, 2, 3))]) == ["unmatched"]


def test_nothing_comes_before_the_tick_that_was_asked_for() -> None:
    asked = subscribed(start="tick", latest_start={"o": 2})
    assert names([*stream_of(1, 2), asked, started(1), *map(delivered, (1, 2))]) == ["unmatched"]
    assert names([*stream_of(1, 2), asked, started(2), delivered(2)]) == []


def test_a_start_may_be_refused_only_if_the_log_does_not_have_it() -> None:
    refused: list[saw.Record] = [saw.Refused(5.0, "s"), CUT]
    gone = saw.Forgotten("o", 2, "released", time=4.0)
    at_two = subscribed(start="tick", latest_start={"o": 2})
    beyond = subscribed(start="tick", latest_start={"o": 9})
    assert names([*stream_of(1, 2, 3), at_two, *refused]) == ["wrongly-refused"]
    assert names([*stream_of(1, 2, 3), at_two, *refused, gone]) == ["wrongly-refused"]
    assert names([*stream_of(1, 2, 3), at_two, gone, *refused]) == []
    assert names([*stream_of(1, 2, 3), beyond, *refused]) == []
    assert names([*stream_of(1, 2, 3), subscribed(), gone, *refused]) == ["wrongly-refused"]


def test_a_time_may_be_refused_only_if_something_was_forgotten_since() -> None:
    refused: list[saw.Record] = [saw.Refused(5.0, "s"), CUT]
    gone = saw.Forgotten("o", 2, "released", time=4.0)
    early, late = (subscribed(start="time", start_time=at) for at in (3.0, 4.5))
    history = [published(1), saw.Logged("o", 1, "p", 1, 1, time=2.0)]
    assert names([*history, early, gone, *refused]) == []
    assert names([*history, late, gone, *refused]) == ["wrongly-refused"]
    assert names([*stream_of(1), late, gone, *refused]) == []


def test_a_start_that_was_deleted_before_may_not_be_granted() -> None:
    deleted = saw.Forgotten("o", 2, "deleted")
    asked = subscribed(ABOVE_TWO, start="tick", latest_start={"o": 2})
    assert names([*stream_of(1, 2), deleted, asked, started(2)]) == ["wrongly-granted"]
    elsewhere = subscribed(ABOVE_TWO, start="tick", latest_start={"other": 2})
    assert names([*stream_of(1, 2), deleted, elsewhere, started(2)]) == []
    assert names([*stream_of(1, 2), asked, deleted, started(2)]) == []


def test_a_lost_log_may_bring_back_what_was_deleted() -> None:
    deleted, restored = saw.Forgotten("o", 2, "deleted"), saw.Restored("o")
    asked = subscribed(ABOVE_TWO, start="tick", latest_start={"o": 2})
    stream = stream_of(1, 2)
    assert names([*stream, deleted, restored, asked, started(2)]) == []
    assert names([*stream, deleted, asked, restored, started(2)]) == []
    assert names([*stream, deleted, restored, deleted, asked, started(2)]) == ["wrongly-granted"]
    assert names([*stream, deleted, asked, started(2), restored]) == ["wrongly-granted"]
    other = saw.Restored("other")
    assert names([*stream, deleted, other, asked, started(2)]) == ["wrongly-granted"]
