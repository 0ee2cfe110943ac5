"""The anomaly `publisher-reordered`: histories that have it, and twins that have none."""

from collections.abc import Sequence

from anabranch.check import history as saw
from anabranch.check.checker import check

#: One event at origin o, the next one at origin m.
FIRST = saw.Published(1.0, "p", 1, 1, {"a": 1}, "o", ordered_from=1)
SECOND = saw.Published(3.0, "p", 2, 1, {"a": 2}, "m", ordered_from=1)
CONFIRMED = saw.Confirmed(2.0, "p", 1, 1)
LOGGED = [saw.Logged("o", 5, "p", 1, 1), saw.Logged("m", 7, "p", 2, 1)]
SUBSCRIBED = saw.Subscribed(0.0, "s", ((),), "reliable")
STARTED = [saw.Started(0.0, "s", "o", 1), saw.Started(0.0, "s", "m", 1)]
HAD_FIRST = saw.Delivered(4.0, "s", "o", 5, "p", 1, 1)
HAD_SECOND = saw.Delivered(4.0, "s", "m", 7, "p", 2, 1)
TOLD = saw.OrderNotKept(4.0, "s", "m", 7, "p", 2)


def names(*records: saw.Record, subscribed: saw.Subscribed = SUBSCRIBED) -> list[str]:
    history: Sequence[saw.Record] = [subscribed, *STARTED, *LOGGED, *records]
    return [anomaly.name for anomaly in check(history)]


def test_the_order_of_publication_is_right() -> None:
    assert names(FIRST, CONFIRMED, SECOND, HAD_FIRST, HAD_SECOND) == []


def test_another_order_is_an_anomaly() -> None:
    assert names(FIRST, CONFIRMED, SECOND, HAD_SECOND, HAD_FIRST) == ["publisher-reordered"]


def test_a_publisher_that_did_not_wait_is_one_too() -> None:
    assert names(FIRST, SECOND, CONFIRMED, HAD_SECOND, HAD_FIRST) == ["publisher-reordered"]


def test_it_is_none_if_the_publisher_did_not_ask() -> None:
    second = saw.Published(3.0, "p", 2, 1, {"a": 2}, "m")
    assert names(FIRST, CONFIRMED, second, HAD_SECOND, HAD_FIRST) == []


def test_it_is_none_if_the_later_event_follows_only_later_incarnations() -> None:
    second = saw.Published(3.0, "p", 2, 1, {"a": 2}, "m", ordered_from=2)
    assert names(FIRST, CONFIRMED, second, HAD_SECOND, HAD_FIRST) == []


def test_it_is_none_if_the_publisher_had_given_up() -> None:
    given_up = saw.Abandoned(2.0, "p", 1)
    assert names(FIRST, given_up, SECOND, HAD_SECOND, HAD_FIRST) == []
    late = ["publisher-reordered"]
    assert names(FIRST, CONFIRMED, given_up, SECOND, HAD_SECOND, HAD_FIRST) == late


def test_it_is_none_if_the_subscription_was_told_in_time() -> None:
    assert names(FIRST, CONFIRMED, SECOND, TOLD, HAD_SECOND, HAD_FIRST) == []
    late = ["publisher-reordered"]
    assert names(FIRST, CONFIRMED, SECOND, HAD_SECOND, HAD_FIRST, TOLD) == late


def test_best_effort_subscriptions_are_not_judged() -> None:
    subscribed = saw.Subscribed(0.0, "s", ((),), "best-effort")
    assert names(FIRST, CONFIRMED, SECOND, HAD_SECOND, HAD_FIRST, subscribed=subscribed) == []
