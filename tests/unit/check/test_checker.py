"""Every anomaly: a history that has it, and a twin, as like as can be, that has none."""

from collections.abc import Sequence

import pytest

from anabranch.check import history as saw
from anabranch.check.checker import check
from tests.history_parts import (
    END,
    HEALED,
    LATE,
    delivered,
    ended,
    logged,
    published,
    started,
    stream_of,
    subscribed,
    withheld,
)

ABOVE_TWO: saw.PlainFilter = ((("a", ">", 2),),)
CUT = saw.Cut(97.0, "s")


def names(history: Sequence[saw.Record]) -> list[str]:
    return [anomaly.name for anomaly in check(history)]


def served(*records: saw.Record) -> list[saw.Record]:
    """Three events, a subscription from the first tick on, and these records."""
    return [*stream_of(1, 2, 3), subscribed(), started(1), *records]


def test_a_clean_history_has_no_anomaly() -> None:
    assert check(served(delivered(1), delivered(2), delivered(3), *END)) == []


def test_an_empty_history_has_no_anomaly() -> None:
    assert check([]) == []


def test_an_anomaly_says_where_it_is() -> None:
    (anomaly,) = check(served(delivered(1), delivered(3), *END))
    assert (anomaly.name, anomaly.subscription, anomaly.stream, anomaly.tick) == (
        "gap",
        "s",
        "o",
        2,
    )
    assert "3" in anomaly.text


# -- logs and publishers


def test_a_confirmed_event_in_no_log_is_lost() -> None:
    kept = [published(1), saw.Confirmed(5.0, "p", 1, 1), logged(1)]
    assert names(kept) == []
    assert names(kept[:-1]) == ["lost"]


def test_confirmations_are_cumulative() -> None:
    history = [published(1), published(2), saw.Confirmed(5.0, "p", 1, 2), logged(2)]
    assert names(history) == ["lost"]


def test_an_unconfirmed_event_in_no_log_is_not_lost() -> None:
    assert names([published(1)]) == []


def test_an_event_that_is_logged_twice_is_a_duplicate() -> None:
    assert names([*stream_of(1, 2), logged(3, sequence=1)]) == ["duplicate", "reordered"]
    assert names([published(1), logged(1), logged(1, stream="other")]) == ["duplicate"]
    assert names([published(1), logged(1), logged(1)]) == []


def test_a_log_against_the_order_of_publishing_is_reordered() -> None:
    both = [published(1), published(2)]
    assert names([*both, logged(1, sequence=2), logged(2, sequence=1)]) == ["reordered"]
    assert names([*both, logged(1, sequence=1), logged(2, sequence=2)]) == []


def test_a_logged_event_that_nobody_published_is_a_phantom() -> None:
    assert names([logged(1)]) == ["phantom"]
    assert names([logged(1), published(1)]) == []


def test_a_logged_event_that_its_publisher_withdrew_is_a_phantom() -> None:
    both = [*stream_of(1, 2), published(3), saw.Abandoned(2.0, "p", 1)]
    assert names([*both, saw.Withdrawn(2.0, "p", 1, 3)]) == []
    assert names([*both, saw.Withdrawn(2.0, "p", 1, 2)]) == ["phantom"]
    assert names([*both, saw.Withdrawn(2.0, "p", 2, 1)]) == []


def test_a_tick_with_two_events_is_a_phantom() -> None:
    both = [published(1), published(2)]
    assert names([*both, logged(1, sequence=1), logged(1, sequence=2)]) == ["phantom"]


def test_an_unconfirmed_event_of_a_living_publisher_is_stuck_at_the_end() -> None:
    waiting = [published(1), *END]
    assert names(waiting) == ["stuck"]
    assert names([saw.Abandoned(2.0, "p", 1), *waiting]) == []
    assert names([published(1, time=195.0), *END]) == []
    assert names([published(1)]) == []


# -- what was delivered


def test_a_tick_delivered_twice_is_a_duplicate() -> None:
    once = served(delivered(1), delivered(2), delivered(3))
    assert names(once) == []
    assert names([*once, delivered(3)]) == ["duplicate"]
    assert names([*once, delivered(1)]) == ["duplicate"]


def test_an_event_delivered_from_two_streams_is_a_duplicate() -> None:
    history = [published(1), logged(1), logged(1, stream="other"), subscribed(quality="durable")]
    history += [saw.Started(0.0, "s", "other", 1), started(1)]
    history += [delivered(1), delivered(1, stream="other")]
    assert names(history) == ["duplicate", "duplicate"]


def test_an_earlier_tick_after_a_later_one_is_reordered() -> None:
    assert names(served(delivered(1), delivered(3), delivered(2))) == ["reordered"]
    assert names(served(delivered(1), delivered(2), delivered(3))) == []


@pytest.mark.parametrize("wrong", [delivered(3, sequence=2), delivered(9)])
def test_what_is_not_in_the_log_at_its_tick_is_a_phantom(wrong: saw.Delivered) -> None:
    history = [*stream_of(1, 2, 3), subscribed(((("a", "=", 3),),)), started(1)]
    assert "phantom" in names([*history, wrong])
    assert names([*history, delivered(3)]) == []


def test_a_delivery_to_a_subscription_that_nobody_made_is_a_phantom() -> None:
    assert names([*stream_of(1), delivered(1)]) == ["phantom"]


def test_what_the_filter_does_not_match_is_unmatched() -> None:
    history = [*stream_of(1, 2, 3), subscribed(ABOVE_TWO), started(1)]
    assert names([*history, delivered(2), delivered(3)]) == ["unmatched"]
    assert names([*history, delivered(3)]) == []


def test_what_is_before_the_start_or_after_the_end_is_unmatched() -> None:
    history = [*stream_of(1, 2, 3), subscribed()]
    both = [delivered(2), delivered(3)]
    assert names([*history, started(3), *both, ended(3)]) == ["unmatched"]
    assert names([*history, started(2), *both, ended(2)]) == ["unmatched"]
    assert names([*history, started(2), *both, ended(3)]) == []


def test_a_delivery_before_the_start_is_told_is_unmatched() -> None:
    history = [*stream_of(1), subscribed()]
    assert names([*history, delivered(1), started(1)]) == ["unmatched"]
    assert names([*history, started(1), delivered(1)]) == []


@pytest.mark.parametrize("over", [ended(3), CUT], ids=["ended", "cut"])
def test_a_delivery_after_the_end_is_told_is_unmatched(over: saw.Record) -> None:
    assert names(served(delivered(1), delivered(2), over, delivered(3))) == ["unmatched"]
    assert names(served(delivered(1), delivered(2), delivered(3), over)) == []


def test_a_delivery_without_a_start_is_unmatched() -> None:
    assert names([*stream_of(1), subscribed(), delivered(1)]) == ["unmatched"]
    assert names([*stream_of(1), subscribed(), started(1), delivered(1)]) == []


# -- what was not delivered


def test_a_tick_that_is_passed_over_is_a_gap() -> None:
    assert names(served(delivered(1), delivered(3))) == ["gap"]
    assert names([*stream_of(1, 2, 3), subscribed(), started(3), delivered(3)]) == []


def test_a_gap_counts_also_if_the_subscription_was_cut() -> None:
    assert names(served(delivered(1), delivered(3), CUT, *END)) == ["gap"]


def test_a_missing_tick_at_the_end_is_lost() -> None:
    assert names(served(delivered(1), delivered(2), *END)) == ["lost"]
    assert names(served(delivered(1), delivered(2))) == []
    assert names(served(delivered(1), delivered(2), CUT, *END)) == []


def test_an_event_published_just_before_the_end_may_still_be_on_its_way() -> None:
    late = [published(4, time=195.0), logged(4)]
    assert names(served(*map(delivered, (1, 2, 3)), *late, *END)) == []


def test_everything_up_to_the_end_tick_must_have_come() -> None:
    assert names(served(delivered(1), ended(2), *END)) == ["lost"]
    assert names(served(delivered(1), ended(1), *END)) == []


def test_an_end_that_does_not_name_a_stream_that_had_begun_loses_it() -> None:
    elsewhere = saw.Ended(96.0, "s", "other", 5)
    assert names(served(delivered(1), elsewhere, *END)) == ["lost"]
    assert names(served(delivered(1), elsewhere, ended(1), *END)) == []
    assert names([*stream_of(1, 2), subscribed(), elsewhere, *END]) == []


@pytest.mark.parametrize("at", [105.0, 120.0])
def test_an_end_below_what_was_due_is_too_low(at: float) -> None:
    end = saw.Ended(at, "s", "o", 1)
    late = [saw.Healed(HEALED), end, saw.Finished(200.0, ("o",))]
    assert names(served(delivered(1), *late)) == (["lost", "lost"] if at > 110 else [])
    assert names(served(delivered(1), saw.Healed(HEALED), saw.Cut(at, "s"))) == (
        ["lost", "lost"] if at > 110 else []
    )


def test_what_waited_for_its_tick_is_not_due_before_it_has_one() -> None:
    event = [published(1), logged(1), saw.Confirmed(115.0, "p", 1, 1)]
    over = [saw.Healed(HEALED), saw.Cut(120.0, "s"), saw.Cut(130.0, "s")]
    assert names([*event, subscribed(), started(1), *over[:2]]) == []
    assert names([*event, subscribed(), started(1), over[0], over[2]]) == ["lost"]


def test_what_is_missing_when_all_are_told_that_nothing_more_comes_is_lost() -> None:
    soon = [saw.Healed(HEALED), saw.Finished(103.0, ("o",))]
    settled = [saw.Healed(HEALED), saw.Finished(103.0, ("o",), 102.0)]
    assert names(served(delivered(1), delivered(2), *soon)) == []
    assert names(served(delivered(1), delivered(2), *settled)) == ["lost"]
    assert names(served(delivered(1), delivered(2), delivered(3), *settled)) == []


def test_an_optional_event_need_not_come_but_may() -> None:
    history = [published(1, optional=True), logged(1), saw.Confirmed(5.0, "p", 1, 1)]
    history += [subscribed(), started(1), *END]
    assert names(history) == []
    assert names([*history, delivered(1)]) == []


def test_a_tick_may_be_withheld_only_if_its_log_may_forget_it() -> None:
    told = served(delivered(1), withheld(2, 2), delivered(3), *END)
    assert names(told) == ["wrongly-withheld"]
    assert names([saw.Forgotten("o", 1), *told]) == ["wrongly-withheld"]
    assert names([saw.Forgotten("o", 2), *told]) == []


def test_optional_and_unwanted_ticks_may_be_withheld() -> None:
    history = [published(1, optional=True), published(2), logged(1), logged(2)]
    history += [saw.Forgotten("o", 2), subscribed(ABOVE_TWO), started(1), withheld(1, 2)]
    assert names(history) == []


def test_nothing_is_withheld_that_was_not_forgotten_by_then_in_that_stream() -> None:
    told = [subscribed(ABOVE_TWO), started(1), withheld(1, 2)]
    history = stream_of(1, 2)
    assert names([*history, saw.Forgotten("o", 2), *told]) == []
    assert names([*history, saw.Forgotten("o", 1), *told]) == ["wrongly-withheld"]
    assert names([*history, saw.Forgotten("other", 2), *told]) == ["wrongly-withheld"]
    assert names([*history, *told, saw.Forgotten("o", 2)]) == ["wrongly-withheld"]
    released = saw.Forgotten("o", 2, "released")
    assert names([*history, released, *told]) == ["wrongly-withheld"]


def test_what_is_withheld_before_the_start_or_after_the_end_is_wrongly_so() -> None:
    history = [*stream_of(1), saw.Forgotten("o", 1), subscribed(ABOVE_TWO)]
    assert names([*history, started(1), withheld(1, 1)]) == []
    assert names([*history, withheld(1, 1), started(1)]) == ["wrongly-withheld"]
    assert names([*history, started(1), CUT, withheld(1, 1)]) == ["wrongly-withheld"]


def test_a_tick_that_is_withheld_and_delivered_is_wrongly_withheld() -> None:
    forgotten = saw.Forgotten("o", 3)
    assert names(served(forgotten, withheld(1, 2), delivered(2), delivered(3))) == [
        "wrongly-withheld"
    ]
    assert names(served(forgotten, withheld(1, 2), delivered(3))) == []


# -- best effort


def test_best_effort_may_miss_anything() -> None:
    history = [*stream_of(1, 2, 3), *LATE[2:], subscribed(quality="best-effort"), *END]
    assert names([*history, delivered(1), delivered(3)]) == []


def test_best_effort_may_not_go_on_after_its_end() -> None:
    history = [*stream_of(1, 2), subscribed(quality="best-effort")]
    assert names([*history, delivered(1), CUT, delivered(2)]) == ["unmatched"]
    assert names([*history, delivered(1), delivered(2), CUT]) == []


def test_best_effort_may_not_repeat_reorder_invent_or_mismatch() -> None:
    history = [*stream_of(1, 2, 3, 4), subscribed(ABOVE_TWO, quality="best-effort"), *END]
    assert names([*history, delivered(3), delivered(3)]) == ["duplicate"]
    assert names([*history, delivered(4), delivered(3)]) == ["reordered"]
    assert names([*history, delivered(3, sequence=4)]) == ["phantom"]
    assert names([*history, delivered(1)]) == ["unmatched"]


# -- histories are values


def test_a_history_survives_being_written_down() -> None:
    import msgspec

    history = served(delivered(1), withheld(2, 2), ended(3), CUT, *END, saw.Forgotten("o", 2))
    written = msgspec.json.encode(history)
    read = msgspec.json.decode(written, type=list[saw.AnyRecord])
    assert read == history
    assert names(read) == names(history)
