"""Events that need not come, or may not: transient ones, and those with limits of time or hops."""

from collections.abc import Sequence

import pytest

from anabranch.check import history as saw
from anabranch.check.checker import check
from tests.history_parts import (
    END,
    confirmed,
    delivered,
    logged,
    published,
    started,
    stream_of,
    subscribed,
    withheld,
)


def names(history: Sequence[saw.Record]) -> list[str]:
    return [anomaly.name for anomaly in check(history)]


def served(*records: saw.Record) -> list[saw.Record]:
    """Three events, a subscription from the first tick on, and these records."""
    return [*stream_of(1, 2, 3), subscribed(), started(1), *records]


@pytest.mark.parametrize(
    "event",
    [
        published(1, optional=True),
        published(1, transient=True),
        published(1, time_limit_s=1.0),
        published(1, reach=("x",)),
    ],
    ids=["optional", "transient", "time", "hops"],
)
def test_an_event_that_need_not_come_comes_once_and_as_it_is(event: saw.Published) -> None:
    history = [event, logged(1), subscribed(edge="x"), started(1)]
    assert names([*history, delivered(1)]) == []
    assert names([*history, delivered(1), delivered(1)]) == ["duplicate"]
    assert names([*history, delivered(1, sequence=2)]) == ["phantom"]


def test_a_transient_event_is_delivered_or_withheld_as_such() -> None:
    history = [published(1, transient=True), logged(1), confirmed(1), subscribed(), started(1)]
    assert names([*history, *END]) == ["lost"]
    assert names([*history, withheld(1, 1, "transient"), *END]) == []
    assert names(served(withheld(1, 1, "transient"), delivered(2), delivered(3))) == [
        "wrongly-withheld"
    ]


def test_an_event_may_be_missing_at_an_edge_out_of_its_reach_and_may_not_come_there() -> None:
    history = [published(1, reach=("x", "y")), logged(1), confirmed(1)]
    near, far = subscribed(edge="x"), subscribed(edge="z")
    assert names([*history, near, started(1), *END]) == ["lost"]
    assert names([*history, near, started(1), delivered(1), *END]) == []
    assert names([*history, far, started(1), *END]) == []
    assert names([*history, far, started(1), delivered(1), *END]) == ["unmatched"]


def test_what_counts_for_the_reach_is_where_a_subscription_is() -> None:
    history = [published(1, reach=("x",)), logged(1), subscribed(edge="x"), started(1)]
    before, after = saw.Moved(90.0, "s", "z"), saw.Moved(99.0, "s", "z")
    assert names([*history, before, delivered(1)]) == ["unmatched"]
    assert names([*history, delivered(1), after]) == []
    assert names([*history, before, confirmed(1), *END]) == []


def test_an_event_past_its_time_limit_may_be_missing_and_may_not_come() -> None:
    made = saw.Logged("o", 1, "p", 1, 1, time=2.0)
    history = [published(1, time_limit_s=3.0), made, confirmed(1), subscribed(), started(1)]

    def sent(at: float) -> saw.Delivered:
        return saw.Delivered(95.0, "s", "o", 1, "p", 1, 1, at)

    assert names([*history, *END]) == []
    assert names([*history, sent(4.9), *END]) == []
    assert names([*history, sent(5.1), *END]) == ["unmatched"]


def test_a_time_limit_that_is_not_reached_excuses_nothing() -> None:
    made = saw.Logged("o", 1, "p", 1, 1, time=2.0)
    history = [published(1, time_limit_s=500.0), made, confirmed(1), subscribed(), started(1)]
    assert names([*history, *END]) == ["lost"]


def test_an_addressed_event_comes_to_those_it_names_and_to_nobody_else() -> None:
    history = [published(1, destinations=("anna", "ben")), logged(1), confirmed(1)]
    anna, carl = subscribed(client="anna"), subscribed(client="carl")
    assert names([*history, anna, started(1), *END]) == ["lost"]
    assert names([*history, anna, started(1), delivered(1), *END]) == []
    assert names([*history, carl, started(1), *END]) == []
    assert names([*history, carl, started(1), delivered(1), *END]) == ["unmatched"]
