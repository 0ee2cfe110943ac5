import pytest

from anabranch.core.session.effects import (
    ResumePoint,
    SubscriptionAccepted,
    SubscriptionCut,
    SubscriptionEnded,
    SubscriptionStarted,
)
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import (
    Connect,
    Cut,
    Deliver,
    Matches,
    Refused,
    StartsAt,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    Withheld,
)
from anabranch.model.errors import (
    LocalError,
)
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import PROTOCOL_VERSION
from tests.session_parts import (
    FILTER,
    deliver,
    frames,
    given,
    reconnect,
    subscriber,
    the_subscribe,
)

# -- coming back


def test_a_durable_subscription_resumes_with_a_higher_number_after_what_is_dealt_with() -> None:
    session = subscriber(manual=True)
    session.frame(1.0, deliver(2, 3, 4))
    session.ack(1.0, {"s": {"o": 3}})
    asked = reconnect(session)
    assert asked == Subscribe(2, "s", FILTER, "durable", "resume", 0, {"o": 3}, 2)
    session.frame(11.0, Subscribed(2, "s", 2, {"o": 3}))
    assert given(session.frame(11.0, deliver(4, 5))) == [5]


def test_every_attachment_has_a_higher_number_even_if_nobody_answered() -> None:
    session = subscriber()
    assert [reconnect(session).number for _ in range(3)] == [2, 3, 4]


def test_a_durable_subscription_that_was_never_confirmed_is_asked_for_anew() -> None:
    session = ClientSession("c")
    session.connected(0.0)
    session.subscribe(0.0, "s", FILTER, quality="durable", start="beginning")
    again = reconnect(session)
    assert (again.start, again.number) == ("beginning", 2)


def test_a_start_is_where_a_subscription_without_deliveries_resumes() -> None:
    session = subscriber()
    session.frame(1.0, StartsAt("s", "other", 8))
    assert reconnect(session).ticks == {"o": 0, "other": 7}


def test_a_start_that_was_told_only_to_the_lost_connection_is_told_with_the_next() -> None:
    session = subscriber()
    asked = reconnect(session)
    effects = session.frame(11.0, Subscribed(asked.request, "s", 2, {"o": 0, "other": 4}))
    assert effects == [SubscriptionAccepted("s", 2), SubscriptionStarted("s", "other", 5)]


def test_a_reliable_subscription_ends_with_its_connection() -> None:
    session = subscriber("reliable")
    assert session.disconnected(5.0) == [SubscriptionCut("s", "the connection was lost")]
    assert frames(session.connected(6.0)) == [Connect(PROTOCOL_VERSION, "c")]


def test_a_reliable_subscription_that_did_not_stand_yet_is_asked_for_again() -> None:
    session = ClientSession("c")
    session.connected(0.0)
    session.subscribe(0.0, "s", FILTER)
    assert session.disconnected(1.0) == []
    assert the_subscribe(session.connected(2.0)).subscription == "s"


def test_a_best_effort_subscription_goes_on_over_the_gap_and_never_repeats() -> None:
    session = subscriber("best-effort")
    session.frame(1.0, deliver(3))
    asked = reconnect(session)
    assert (asked.start, asked.ticks) == ("now", {})
    session.frame(11.0, Subscribed(asked.request, "s", 0, {}))
    assert given(session.frame(11.0, deliver(3, 9))) == [9]


def test_frames_without_a_connection_are_ignored() -> None:
    session = subscriber()
    session.disconnected(1.0)
    assert session.frame(1.0, deliver(2)) == []
    assert session.disconnected(2.0) == []


def test_a_session_has_one_connection_at_a_time() -> None:
    with pytest.raises(LocalError, match="already connected"):
        subscriber().connected(1.0)


# -- roaming


def test_a_subscription_roams_without_repetition_or_gap() -> None:
    old = subscriber(manual=True)
    old.frame(1.0, deliver(2, 3))
    old.ack(1.0, {"s": {"o": 2}})
    new = ClientSession("c")
    new.connected(2.0)
    asked = the_subscribe(new.resume(2.0, old.release("s")))
    assert (asked.start, asked.number, asked.ticks) == ("resume", 2, {"o": 2})
    new.frame(3.0, Subscribed(asked.request, "s", 2, {"o": 2}))
    assert given(new.frame(3.0, deliver(3, 4))) == [4]
    assert old.frame(3.0, deliver(4)) == []
    assert old.frame(3.0, Cut("s", "claimed")) == []


def test_an_answer_that_comes_after_the_subscription_left_is_ignored() -> None:
    session = ClientSession("c")
    session.connected(0.0)
    session.subscribe(0.0, "s", FILTER, quality="durable")
    session.release("s")
    assert session.frame(1.0, Subscribed(1, "s", 1, {})) == []


def test_only_durable_subscriptions_that_go_on_roam() -> None:
    with pytest.raises(LocalError, match="durable"):
        subscriber("reliable").release("s")
    ending = subscriber()
    ending.unsubscribe(1.0, "s")
    with pytest.raises(LocalError, match="ending"):
        ending.release("s")


def test_a_new_process_gets_again_what_it_had_not_dealt_with() -> None:
    old = subscriber(manual=True)
    old.frame(1.0, deliver(2, 3))
    old.ack(1.0, {"s": {"o": 2}})
    (kept,) = old.resume_points()
    new = ClientSession("c")
    new.connected(2.0)
    remembered = ResumePoint(name="s", filter=FILTER, number=kept.number, acked=kept.acked)
    asked = the_subscribe(new.resume(2.0, remembered))
    assert (asked.number, asked.ticks) == (2, {"o": 2})
    assert given(new.frame(3.0, deliver(3))) == [3]


def test_a_client_that_lost_everything_asks_with_number_zero_and_learns_where_it_stands() -> None:
    session = ClientSession("c")
    session.connected(0.0)
    asked = the_subscribe(session.subscribe(0.0, "s", FILTER, quality="durable", start="resume"))
    assert (asked.start, asked.number, asked.ticks) == ("resume", 0, {})
    again = reconnect(session)
    assert again.number == 0
    effects = session.frame(11.0, Subscribed(again.request, "s", 6, {"o": 4}))
    assert effects == [SubscriptionAccepted("s", 6), SubscriptionStarted("s", "o", 5)]
    assert reconnect(session, 20.0).number == 7
    assert session.resume_points()[0].acked == {"o": 4}


# -- ending


def test_an_unsubscribed_subscription_ends_where_the_broker_says() -> None:
    session = subscriber()
    session.frame(1.0, deliver(2))
    assert frames(session.unsubscribe(1.0, "s")) == [Unsubscribe(2, "s")]
    assert session.unsubscribe(1.0, "s") == []
    assert given(session.frame(2.0, deliver(3))) == [3]
    assert session.frame(3.0, Unsubscribed(2, "s", {"o": 4})) == [SubscriptionEnded("s", {"o": 4})]
    assert session.frame(3.0, deliver(5)) == []


def test_the_end_is_never_before_what_was_received() -> None:
    session = subscriber(manual=True)
    session.frame(1.0, deliver(2, 3))
    asked = reconnect(session)
    session.frame(11.0, Subscribed(asked.request, "s", 2, {"o": 0}))
    session.unsubscribe(12.0, "s")
    assert session.frame(13.0, Unsubscribed(3, "s", {"o": 1})) == [SubscriptionEnded("s", {"o": 3})]


def test_a_subscription_that_does_not_stand_yet_is_ended_when_it_does() -> None:
    session = ClientSession("c")
    session.connected(0.0)
    session.subscribe(0.0, "s", FILTER)
    assert session.unsubscribe(0.0, "s") == []
    effects = session.frame(1.0, Subscribed(1, "s", 0, {}))
    assert frames(effects) == [Unsubscribe(2, "s")]


def test_a_subscription_nobody_knows_of_ends_at_once() -> None:
    session = ClientSession("c")
    session.subscribe(0.0, "s", FILTER, quality="durable")
    assert session.unsubscribe(0.0, "s") == [SubscriptionEnded("s", {})]
    assert frames(session.connected(1.0)) == [Connect(PROTOCOL_VERSION, "c")]


def test_a_durable_subscription_is_ended_at_the_next_connection_if_need_be() -> None:
    session = subscriber()
    session.unsubscribe(1.0, "s")
    asked = reconnect(session)
    assert asked.start == "resume"
    effects = session.frame(11.0, Subscribed(asked.request, "s", 2, {"o": 0}))
    assert frames(effects) == [Unsubscribe(asked.request + 1, "s")]


def test_other_subscriptions_that_are_ending_end_with_the_connection() -> None:
    session = subscriber("reliable")
    session.frame(1.0, deliver(2, through=3))
    session.unsubscribe(1.0, "s")
    assert session.disconnected(2.0) == [SubscriptionEnded("s", {"o": 3})]


def test_an_end_that_is_refused_is_an_end() -> None:
    session = subscriber()
    session.unsubscribe(1.0, "s")
    assert session.frame(2.0, Refused(2, "unknown")) == [SubscriptionEnded("s", {"o": 0})]


# -- being cut


def test_a_cut_subscription_is_told_and_gone() -> None:
    session = subscriber("reliable")
    assert session.frame(1.0, Cut("s", "too slow")) == [SubscriptionCut("s", "too slow")]
    assert session.frame(1.0, deliver(2)) == []


def test_a_cut_durable_subscription_hands_its_standing_back() -> None:
    session = subscriber()
    session.frame(1.0, deliver(2))
    (told,) = session.frame(2.0, Cut("s", "claimed elsewhere"))
    assert isinstance(told, SubscriptionCut)
    assert told.resume_point is not None
    assert told.resume_point.received == {"o": 2}
    session.disconnected(3.0)
    assert frames(session.connected(3.0)) == [Connect(PROTOCOL_VERSION, "c")]


def test_a_cut_session_is_told_and_keeps_everything() -> None:
    session = subscriber()
    assert session.frame(1.0, Cut("", "shutting down")) == [SubscriptionCut("", "shutting down")]
    assert reconnect(session).subscription == "s"


def test_an_end_whose_answer_was_lost_is_before_the_hole_that_the_broker_speaks_of() -> None:
    session = ClientSession("client")
    session.subscribe(0.0, "s", "a > 1", quality="durable")
    session.connected(0.0)
    session.frame(0.0, Subscribed(1, "s", 1, {}))
    session.frame(0.0, StartsAt("s", "e1", 5))
    session.frame(0.0, Deliver("e1", [Matches("s", 9, [])]))
    session.unsubscribe(0.0, "s")
    session.disconnected(0.1)
    session.connected(0.2)
    session.frame(0.3, Subscribed(3, "s", 2, {"e1": 9}))
    assert session.frame(0.3, Withheld("s", "e1", [Hole(10, 20, "released")])) == []
    assert session.frame(0.3, Deliver("e1", [Matches("s", 22, [Datum(22, 0, b"")])])) == []
    told = session.frame(0.4, Unsubscribed(4, "s", {"e1": 22}))
    assert told == [SubscriptionEnded("s", {"e1": 9})]
