"""What a session tells its broker that it will publish."""

from anabranch.core.session.effects import SessionEffects
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import ADVERTISEMENTS_MAX, Advertises, Confirmed, Publish
from anabranch.model.event import Event
from tests.session_parts import frames

EVENT = Event({"a": 1})


def publisher() -> ClientSession:
    made = ClientSession("p", incarnation=7)
    made.connected(0.0)
    return made


def told(effects: SessionEffects) -> list[list[str]]:
    return [frame.filters for frame in frames(effects) if isinstance(frame, Advertises)]


def test_what_is_advertised_is_told_once_and_again_on_a_new_connection_before_events() -> None:
    session = publisher()
    assert told(session.advertise(["a > 1", "b = 2", "a > 1"])) == [["a > 1", "b = 2"]]
    assert told(session.advertise(["a > 1", "b = 2"])) == []
    session.publish(0.0, EVENT)
    session.disconnected(1.0)
    assert told(session.advertise(["a > 1"])) == []
    sent = frames(session.connected(2.0))
    assert [type(f) for f in sent if isinstance(f, Advertises | Publish)] == [Advertises, Publish]


def test_what_is_withdrawn_is_told_until_what_was_published_before_is_confirmed() -> None:
    session = publisher()
    session.advertise(["a = 1"])
    session.publish(0.0, EVENT, EVENT)
    assert told(session.advertise(["b = 1"])) == [["b = 1", "a = 1"]]
    session.publish(0.0, EVENT)
    assert told(session.frame(1.0, Confirmed("p", 7, 1))) == []
    # The third event was published under the other one, and needs the first no more.
    assert told(session.frame(1.0, Confirmed("p", 7, 2))) == [["b = 1"]]
    assert told(session.frame(1.0, Confirmed("p", 7, 3))) == []


def test_what_is_advertised_again_does_not_leave() -> None:
    session = publisher()
    session.advertise(["a = 1"])
    session.publish(0.0, EVENT)
    session.advertise(["b = 1"])
    assert told(session.advertise(["b = 1", "a = 1"])) == [["b = 1", "a = 1"]]
    assert told(session.frame(1.0, Confirmed("p", 7, 1))) == []


def test_events_published_before_the_first_advertisement_may_be_anything() -> None:
    session = publisher()
    session.publish(0.0, EVENT)
    assert told(session.advertise(["b = 1"])) == [["b = 1", "TRUE"]]
    assert told(session.frame(1.0, Confirmed("p", 7, 1))) == [["b = 1"]]


def test_too_many_advertisements_are_told_as_everything() -> None:
    session = publisher()
    many = [f"a = {n}" for n in range(ADVERTISEMENTS_MAX)]
    assert told(session.advertise(many)) == [many]
    assert told(session.advertise([*many, "b = 1"])) == [["TRUE"]]
    long = [f"a = '{n}{'x' * 10_000}'" for n in range(200)]
    assert told(session.advertise(long)) == [["TRUE"]]
