import pytest

from anabranch.core.session.effects import (
    EventsConfirmed,
    EventsRefused,
    SendFrame,
    SessionEffects,
    SessionOptions,
)
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import FORGOTTEN, Confirmed, Publish, PublishRefused
from anabranch.model.encoding import decode_event
from anabranch.model.errors import EventError, LocalError, RemoteError
from anabranch.model.event import Event, EventId
from anabranch.sim.mutants.catalog import planted

EVENT = Event({"a": 1})
FULL = "the log is full"
DEFAULT = SessionOptions()


def publisher(
    options: SessionOptions = DEFAULT, *, connected: bool = True, incarnation: int = 7
) -> ClientSession:
    made = ClientSession("p", incarnation=incarnation, options=options)
    if connected:
        made.connected(0.0)
    return made


def sequences(effects: SessionEffects) -> list[list[int]]:
    """The sequences in each frame that is published."""
    sent: list[list[int]] = []
    for effect in effects:
        if isinstance(effect, SendFrame) and isinstance(effect.frame, Publish):
            ids = [decode_event(body).id for body in effect.frame.bodies]
            sent.append([each.sequence for each in ids if each is not None])
    return sent


def confirm(sequence: int, incarnation: int = 7, name: str = "p") -> Confirmed:
    return Confirmed(name, incarnation, sequence)


def refuse(sequence: int, reason: str = FULL, *, is_final: bool = False) -> PublishRefused:
    return PublishRefused("p", 7, sequence, reason, is_final)


# -- identity


def test_sequences_begin_at_one_and_have_no_gap() -> None:
    session = publisher()
    ids, effects = session.publish(0.0, EVENT, EVENT)
    more, _ = session.publish(0.0, EVENT)
    assert [*ids, *more] == [EventId("p", 7, n) for n in (1, 2, 3)]
    assert sequences(effects) == [[1, 2]]


def test_an_event_without_a_timestamp_gets_the_one_given() -> None:
    _, effects = publisher().publish(0.0, EVENT, Event(timestamp_ns=5), time_ns=9)
    (frame,) = [effect.frame for effect in effects if isinstance(effect, SendFrame)]
    assert isinstance(frame, Publish)
    assert [decode_event(body).timestamp_ns for body in frame.bodies] == [9, 5]


def test_a_batch_with_a_bad_event_takes_none_of_it() -> None:
    session = publisher()
    published = EVENT.stamped(EventId("x", 1, 1), 0)
    with pytest.raises(EventError):
        session.publish(0.0, EVENT, published)
    assert session.unconfirmed() == []
    assert session.publish(0.0, EVENT)[0] == [EventId("p", 7, 1)]


def test_a_session_without_an_incarnation_does_not_publish() -> None:
    with pytest.raises(LocalError, match="incarnation"):
        publisher(incarnation=0).publish(0.0, EVENT)


# -- confirmation


def test_a_confirmation_is_cumulative_and_told_once() -> None:
    session = publisher()
    session.publish(0.0, EVENT, EVENT, EVENT)
    assert session.frame(1.0, confirm(2)) == [EventsConfirmed(7, 2)]
    assert session.frame(1.0, confirm(2)) == []
    assert session.frame(1.0, confirm(1)) == []
    assert len(session.unconfirmed()) == 1


def test_confirmations_for_others_are_ignored() -> None:
    session = publisher()
    session.publish(0.0, EVENT)
    assert session.frame(1.0, confirm(1, incarnation=6)) == []
    assert session.frame(1.0, confirm(1, name="q")) == []
    assert len(session.unconfirmed()) == 1


def test_confirming_what_was_never_sent_breaks_the_protocol() -> None:
    session = publisher(SessionOptions(in_flight_max=1))
    session.publish(0.0, EVENT, EVENT)
    with pytest.raises(RemoteError, match="confirmed"):
        session.frame(1.0, confirm(2))
    assert len(session.unconfirmed()) == 2


# -- connections


def test_what_is_published_without_a_connection_goes_out_with_the_next() -> None:
    session = publisher(connected=False)
    _, effects = session.publish(0.0, EVENT, EVENT)
    assert effects == []
    assert sequences(session.connected(1.0)) == [[1, 2]]


def test_a_new_connection_begins_after_the_last_confirmed_event() -> None:
    session = publisher()
    session.publish(0.0, EVENT, EVENT, EVENT)
    session.frame(1.0, confirm(1))
    session.disconnected(2.0)
    assert sequences(session.connected(3.0)) == [[2, 3]]


def test_a_repeated_event_is_the_same_bytes() -> None:
    session = publisher()
    _, first = session.publish(0.0, EVENT, time_ns=3)
    session.disconnected(2.0)
    assert session.connected(3.0)[1:] == first


def test_the_broker_may_confirm_more_than_was_sent_on_this_connection() -> None:
    session = publisher(SessionOptions(in_flight_max=2))
    session.publish(0.0, EVENT, EVENT, EVENT)
    session.frame(0.0, confirm(1))
    session.disconnected(1.0)
    session.connected(2.0)
    assert session.frame(3.0, confirm(3)) == [EventsConfirmed(7, 3)]
    assert session.may_move_publisher()


# -- bounds


def test_only_so_many_events_are_in_flight() -> None:
    session = publisher(SessionOptions(in_flight_max=2))
    _, effects = session.publish(0.0, *[EVENT] * 5)
    assert sequences(effects) == [[1, 2]]
    assert sequences(session.frame(1.0, confirm(1))) == [[3]]


def test_a_frame_holds_only_so_many_events_and_bytes() -> None:
    _, effects = publisher(SessionOptions(frame_events_max=2)).publish(0.0, *[EVENT] * 5)
    assert sequences(effects) == [[1, 2], [3, 4], [5]]
    large = Event(payload=bytes(600))
    _, effects = publisher(SessionOptions(frame_bytes_max=1_000)).publish(0.0, large, large, EVENT)
    assert sequences(effects) == [[1], [2, 3]]
    _, effects = publisher(SessionOptions(frame_bytes_max=100)).publish(0.0, large, EVENT)
    assert sequences(effects) == [[1], [2]]


def test_the_queue_of_unconfirmed_events_is_bounded() -> None:
    session = publisher(SessionOptions(unconfirmed_max=2))
    session.publish(0.0, EVENT)
    assert session.has_room()
    with pytest.raises(LocalError, match="unconfirmed"):
        session.publish(0.0, EVENT, EVENT)
    session.publish(0.0, EVENT)
    assert not session.has_room()
    session.frame(1.0, confirm(1))
    assert session.has_room()


def test_the_bytes_of_unconfirmed_events_are_bounded() -> None:
    session = publisher(SessionOptions(unconfirmed_bytes_max=1_000))
    session.publish(0.0, Event(payload=bytes(800)))
    with pytest.raises(LocalError, match="bytes"):
        session.publish(0.0, Event(payload=bytes(800)))
    session.frame(1.0, confirm(1))
    session.publish(0.0, Event(payload=bytes(800)))


# -- silence and refusals


def test_what_is_not_confirmed_for_long_is_sent_again_with_growing_patience() -> None:
    session = publisher(SessionOptions(resend_after_s=1.0))
    session.publish(0.0, EVENT)
    assert session.next_deadline() == 1.0
    assert session.time_passed(0.9) == []
    assert sequences(session.time_passed(1.0)) == [[1]]
    assert session.next_deadline() == 3.0
    for deadline in (3.0, 7.0, 15.0, 23.0):
        assert session.next_deadline() == deadline
        assert sequences(session.time_passed(deadline)) == [[1]]
    session.frame(24.0, confirm(1))
    assert session.next_deadline() is None


def test_without_a_connection_nothing_is_due() -> None:
    session = publisher()
    session.publish(0.0, EVENT)
    session.disconnected(1.0)
    assert session.next_deadline() is None
    assert session.time_passed(100.0) == []


def test_a_refused_event_and_its_followers_are_sent_again_after_a_pause() -> None:
    session = publisher(SessionOptions(retry_refused_after_s=1.0))
    session.publish(0.0, EVENT, EVENT, EVENT)
    assert session.frame(1.0, refuse(2)) == [EventsRefused(7, 2, FULL, False)]
    assert session.frame(1.0, refuse(3, "expected 2")) == []
    assert session.publish(1.5, EVENT)[1] == []
    assert session.next_deadline() == 2.0
    assert sequences(session.time_passed(2.0)) == [[2, 3, 4]]


def test_the_pause_doubles_with_every_refusal_until_something_is_confirmed() -> None:
    session = publisher(SessionOptions(retry_refused_after_s=1.0, resend_after_s=100.0))
    session.publish(0.0, EVENT, EVENT)
    now = 0.0
    for pause in (1.0, 2.0, 4.0, 8.0, 8.0):
        session.frame(now, refuse(1))
        assert session.next_deadline() == now + pause
        now += pause
        assert sequences(session.time_passed(now)) == [[1, 2]]
    session.frame(now, confirm(1))
    session.frame(now, refuse(2))
    assert session.next_deadline() == now + 1.0


def test_a_final_refusal_closes_the_incarnation() -> None:
    session = publisher()
    session.publish(0.0, EVENT, EVENT, EVENT)
    never = "not allowed to publish this"
    told = session.frame(1.0, refuse(2, never, is_final=True))
    assert told == [EventsRefused(7, 2, never, True)]
    assert len(session.unconfirmed()) == 1
    with pytest.raises(LocalError, match="incarnation"):
        session.publish(1.0, EVENT)
    with pytest.raises(RemoteError):
        session.frame(1.0, confirm(2))
    assert session.frame(1.0, confirm(1)) == [EventsConfirmed(7, 1)]
    session.open_incarnation(8)
    assert session.publish(1.0, EVENT)[0] == [EventId("p", 8, 1)]


def test_a_refusal_says_what_was_sent_over_an_earlier_connection_too() -> None:
    session = publisher(SessionOptions(in_flight_max=3, resend_after_s=1.0))
    session.publish(0.0, EVENT, EVENT)
    # Sent twice over one connection: its answers are in order, so they tell.
    session.time_passed(2.0)
    forgotten = PublishRefused("p", 7, 1, "gone", is_final=True, begun=9, code=FORGOTTEN)
    told = session.frame(2.0, forgotten)
    assert told == [EventsRefused(7, 1, "gone", True, 9, FORGOTTEN, sent_before=0)]
    session.open_incarnation(10)
    session.publish(3.0, EVENT, EVENT)
    session.disconnected(4.0)
    session.publish(4.0, EVENT, EVENT)
    session.connected(5.0)
    again = PublishRefused("p", 10, 1, "gone", is_final=True, begun=11, code=FORGOTTEN)
    (refused,) = session.frame(6.0, again)
    assert isinstance(refused, EventsRefused)
    assert refused.sent_before == 2


# -- moving


def test_a_publisher_is_bound_while_anything_is_unconfirmed() -> None:
    session = publisher()
    assert session.may_move_publisher()
    session.publish(0.0, EVENT)
    session.disconnected(1.0)
    assert not session.may_move_publisher()
    with pytest.raises(LocalError, match="unconfirmed"):
        session.open_incarnation(8)
    session.connected(2.0)
    session.frame(3.0, confirm(1))
    assert session.may_move_publisher()


def test_incarnations_grow() -> None:
    session = publisher()
    with pytest.raises(LocalError, match="higher"):
        session.open_incarnation(7)


def test_a_new_incarnation_begins_at_one_again() -> None:
    session = publisher()
    session.publish(0.0, EVENT)
    session.frame(1.0, confirm(1))
    session.open_incarnation(8)
    ids, effects = session.publish(2.0, EVENT)
    assert ids == [EventId("p", 8, 1)]
    assert sequences(effects) == [[1]]
    assert session.frame(3.0, confirm(1, incarnation=7)) == []


@planted("publisher-moves-unconfirmed")
def test_the_mutant_lets_a_publisher_go_too_early() -> None:
    session = publisher()
    session.publish(0.0, EVENT)
    assert session.may_move_publisher()
