from datetime import UTC, datetime, timedelta

import pytest

from anabranch.client.publish import compose
from anabranch.client.subscribe_request import read_since
from anabranch.model.errors import EventError, LocalError
from anabranch.model.event import DEFAULT_CONTROL, Event
from anabranch.model.limits import DEFAULT_LIMITS

MOMENT = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
MOMENT_NS = 1_769_860_800_250_000_000


def test_every_keyword_gets_to_its_place() -> None:
    event = compose(
        {"a": 1},
        DEFAULT_LIMITS,
        payload=b"x",
        content_type="text/plain",
        timestamp=MOMENT,
        persistence="transient",
        time_limit=1.5,
        hop_limit=2,
        level_limit=3,
        priority=9,
        destinations=["b", "c"],
        correlation_id="q",
    )
    assert event == Event(
        {"a": 1},
        payload=b"x",
        content_type="text/plain",
        timestamp_ns=MOMENT_NS,
        control=type(DEFAULT_CONTROL)(
            persistence="transient",
            time_limit_ns=1_500_000_000,
            hop_limit=2,
            level_limit=3,
            priority=9,
            correlation_id="q",
            destinations=("b", "c"),
        ),
    )


def test_nothing_said_is_an_ordinary_event() -> None:
    assert compose({"a": 1}, DEFAULT_LIMITS) == Event({"a": 1})
    assert compose({"a": 1}, DEFAULT_LIMITS, payload=b"").control is DEFAULT_CONTROL


def test_a_time_limit_may_be_a_timedelta() -> None:
    event = compose({}, DEFAULT_LIMITS, time_limit=timedelta(milliseconds=3))
    assert event.control.time_limit_ns == 3_000_000


def test_an_event_is_taken_as_it_is() -> None:
    event = Event({"a": 1})
    assert compose(event, DEFAULT_LIMITS) is event
    with pytest.raises(EventError, match="set priority when creating it"):
        compose(event, DEFAULT_LIMITS, priority=1)


def test_a_single_name_as_destinations_is_refused() -> None:
    with pytest.raises(EventError, match=r"such as \['till'\]"):
        compose({}, DEFAULT_LIMITS, destinations="till")


def test_a_moment_needs_a_time_zone() -> None:
    naive = MOMENT.replace(tzinfo=None)
    with pytest.raises(EventError, match="no time zone"):
        compose({}, DEFAULT_LIMITS, timestamp=naive)
    with pytest.raises(LocalError, match="no time zone"):
        read_since(naive)


def test_a_time_limit_that_is_no_number_is_refused() -> None:
    with pytest.raises(EventError, match="give seconds"):
        compose({}, DEFAULT_LIMITS, time_limit=float("nan"))


def test_since_takes_words_ticks_and_times() -> None:
    assert read_since("now") == ("now", 0, {})
    assert read_since("beginning") == ("beginning", 0, {})
    assert read_since({"a": 4}) == ("tick", 0, {"a": 4})
    assert read_since(MOMENT) == ("time", MOMENT_NS, {})
    assert read_since(MOMENT_NS) == ("time", MOMENT_NS, {})


@pytest.mark.parametrize("bad", ["yesterday", None, 1.5, True, -1, {"a": -1}, {"a": "4"}])
def test_any_other_since_is_refused(bad: object) -> None:
    with pytest.raises(LocalError, match="since"):
        read_since(bad)  # type: ignore[arg-type]
