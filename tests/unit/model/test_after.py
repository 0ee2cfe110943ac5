"""What an event follows: stated when it is published, encoded only if there is something."""

import pytest

from anabranch.model.encoding import decode_envelope, decode_event, encode_draft, encode_event
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.event import AFTER_MAX, Control, Event, EventId, OrderedControl

ID = EventId("p", 1, 1)
EVENT = Event({"a": 1}, control=Control(priority=7))
AFTER = (("e1", 77), ("e2", 300))
#: An event as it was encoded before events could follow others.
STORED = bytes.fromhex("94019593a1700101a00597aa70657273697374656e74c0c0c004a090a081a16101c400")


def test_an_event_that_follows_nothing_is_encoded_as_before() -> None:
    assert encode_event(Event({"a": 1}).stamped(ID, 5)) == STORED
    assert decode_event(STORED).control.after == ()


def test_an_event_that_follows_others_comes_back() -> None:
    event = EVENT.stamped(ID, 5, after=AFTER)
    assert decode_event(encode_event(event)) == event
    control = decode_envelope(encode_event(event)).control
    assert (control.after, control.priority) == (AFTER, 7)


def test_publishing_replaces_what_the_application_gave() -> None:
    control = EVENT.stamped(ID, 5, after=AFTER).control
    again = Event({"a": 1}, control=control)
    assert again.stamped(ID, 5).control == Control(priority=7)
    assert b"e1" not in encode_draft(again)


@pytest.mark.parametrize(
    "after",
    [
        (("e1", 1), ("e1", 2)),
        (("", 1),),
        (("e\n", 1),),
        (("e1", -1),),
        (("e1", True),),
        (("e1",),),
        tuple((f"e{n}", 1) for n in range(AFTER_MAX + 1)),
    ],
)
def test_invalid_pairs_are_refused(after: object) -> None:
    with pytest.raises(EventError):
        Event({"a": 1}, control=OrderedControl(after=after))  # type: ignore[arg-type]


def test_invalid_bytes_are_refused() -> None:
    good = encode_event(EVENT.stamped(ID, 5, after=AFTER))
    twice = good.replace(b"\xa2e2", b"\xa2e1")
    with pytest.raises(RemoteError, match="twice"):
        decode_event(twice)
    for at in range(len(good)):
        with pytest.raises(RemoteError):
            decode_event(good[:at])
