"""Drafts: events without an id, which get one without being decoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.encoding import (
    check_draft,
    decode_event,
    encode_draft,
    encode_event,
    identified,
)
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.event import INT_MAX, Control, Event, EventId
from anabranch.model.limits import DEFAULT_LIMITS, Limits

ID = EventId("sink", 3, 4)


def test_a_draft_has_the_time_it_is_given_unless_it_has_its_own() -> None:
    undated, own = Event({"n": 1}), Event({"n": 1}, timestamp_ns=5)
    assert decode_event(identified(encode_draft(undated, 9), ID)).timestamp_ns == 9
    assert decode_event(identified(encode_draft(own, 9), ID)).timestamp_ns == 5


def test_an_event_that_has_an_id_is_no_draft() -> None:
    with pytest.raises(EventError, match="already has the id sink:3:4"):
        encode_draft(Event({}, id=ID))
    with pytest.raises(RemoteError, match="not an event without an id"):
        check_draft(encode_event(Event({}, id=ID)), DEFAULT_LIMITS)


def test_a_draft_has_room_for_the_longest_id() -> None:
    limits = Limits(event_bytes_max=600)
    longest = EventId("x" * limits.name_bytes_max, INT_MAX, INT_MAX)
    size = 250
    while True:
        event = Event({}, payload=bytes(size))
        try:
            draft = encode_draft(event, limits=limits)
        except EventError:
            break
        check_draft(draft, limits)
        assert len(identified(draft, longest)) <= limits.event_bytes_max
        size += 1
    assert size > 250
    with pytest.raises(RemoteError, match="at most 600"):
        check_draft(encode_draft(event), limits)


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"\x94\x01\x95\xc0" + data))
def test_any_bytes_are_a_draft_or_refused(data: bytes) -> None:
    try:
        check_draft(data, DEFAULT_LIMITS)
    except RemoteError:
        return
    assert decode_event(identified(data, ID)).id == ID


@pytest.mark.parametrize("place", range(4, 40))
def test_a_draft_that_was_changed_is_checked_as_an_event_is(place: int) -> None:
    draft = encode_draft(Event({"a": 1, "b": "x"}, control=Control(priority=9), payload=b"p" * 20))
    for value in range(256):
        bad = draft[:place] + bytes([value]) + draft[place + 1 :]
        event: Event | None
        try:
            event = decode_event(identified(bad, ID))
        except RemoteError:
            event = None
        try:
            check_draft(bad, DEFAULT_LIMITS)
        except RemoteError:
            assert event is None
        else:
            assert event is not None
