"""When a publisher may move, and what it states then."""

from anabranch.core.session.effects import EventsConfirmed
from anabranch.core.session.publisher_order import PublisherOrder
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import Confirmed
from anabranch.model.event import AFTER_MAX, Event


def publisher(order: str = "publisher") -> PublisherOrder:
    made = PublisherOrder("stream" if order == "stream" else "publisher", 5.0, 60.0)
    made.opened(0.0, "a", 7)
    return made


def test_a_publisher_moves_when_everything_is_resolved() -> None:
    order = publisher()
    assert order.decide(0.0, is_resolved=False) == "stay"
    assert order.gives_up_at == 5.0
    assert order.decide(1.0, is_resolved=True) == "move"


def test_it_gives_up_after_its_time() -> None:
    order = publisher()
    order.decide(1.0, is_resolved=False)
    assert order.decide(5.9, is_resolved=False) == "stay"
    assert order.decide(6.0, is_resolved=False) == "give-up"


def test_the_time_begins_again_after_it_stayed() -> None:
    order = publisher()
    order.decide(0.0, is_resolved=False)
    order.stays()
    assert order.gives_up_at is None
    assert order.decide(9.0, is_resolved=False) == "stay"


def test_with_order_of_streams_it_waits_forever_and_states_nothing() -> None:
    order = publisher("stream")
    assert order.decide(0.0, is_resolved=False) == "stay"
    assert order.decide(1e9, is_resolved=False) == "stay"
    assert order.gives_up_at is None
    order.confirmed(3)
    order.opened(1.0, "b", 8)
    assert (order.after(1.0), order.ordered_from()) == ((), 0)


def test_events_at_the_first_origin_follow_nothing() -> None:
    order = publisher()
    order.confirmed(3)
    assert order.after(0.0) == ()


def test_events_state_the_last_tick_of_every_other_origin_newest_first() -> None:
    order = publisher()
    order.confirmed(3)
    order.confirmed(9)
    order.opened(1.0, "b", 8)
    assert order.after(1.0) == (("a", 9),)
    order.confirmed(20)
    order.opened(2.0, "c", 9)
    assert order.after(2.0) == (("b", 20), ("a", 9))
    order.opened(3.0, "a", 10)
    assert order.after(3.0) == (("b", 20),)
    assert order.ordered_from() == 7


def test_an_origin_is_stated_for_a_while_after_it_was_left() -> None:
    order = publisher()
    order.confirmed(3)
    order.opened(1.0, "b", 8)
    assert order.after(61.0) == (("a", 3),)
    assert order.after(61.1) == ()
    assert order.ordered_from() == 8


def test_an_origin_that_confirmed_nothing_is_not_stated() -> None:
    order = publisher()
    order.opened(1.0, "b", 8)
    assert order.after(1.0) == ()


def test_the_newest_origins_are_stated() -> None:
    order = publisher()
    for number in range(AFTER_MAX + 3):
        order.opened(number, f"o{number}", 10 + number)
        order.confirmed(number + 1)
    after = order.after(20.0)
    assert len(after) == AFTER_MAX
    assert after[0] == (f"o{AFTER_MAX + 1}", AFTER_MAX + 2)
    assert order.ordered_from() == 12


def test_a_session_gives_its_events_up_and_ignores_late_confirmations() -> None:
    session = ClientSession("p", incarnation=7)
    session.connected(0.0)
    session.publish(0.0, Event({"a": 1}), Event({"a": 2}))
    assert session.frame(0.1, Confirmed("p", 7, 1, 40))[0] == EventsConfirmed(7, 1, 40)
    assert session.has_unresolved_events()
    session.give_up_events()
    assert not session.has_unresolved_events()
    assert session.frame(0.2, Confirmed("p", 7, 2, 41)) == []
    session.open_incarnation(8)
    ids, _ = session.publish(0.3, Event({"a": 3}))
    assert (ids[0].incarnation, ids[0].sequence) == (8, 1)
