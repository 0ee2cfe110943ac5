"""Building events, reading them, and what holds for every part."""

import copy
import dataclasses
import math
import pickle
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from anabranch.model.errors import EventError
from anabranch.model.event import Control, Event, EventId
from anabranch.model.limits import Limits
from tests.event_parts import refused

ID = EventId("feed-1", 3, 17)


# -- building and reading


def test_an_event_holds_what_it_was_given() -> None:
    control = Control(priority=7, correlation_id="order 12", destinations=("desk-1",))
    event = Event(
        {"symbol": "IBM", "price": 12.5, "volume": 100, "halted": False},
        payload=b"\0\1",
        content_type="application/json",
        id=ID,
        stream="quotes",
        timestamp_ns=1_700_000_000_000_000_000,
        control=control,
    )
    assert event.attributes == {"symbol": "IBM", "price": 12.5, "volume": 100, "halted": False}
    assert (event.payload, event.content_type) == (b"\0\1", "application/json")
    assert (event.id, event.stream, event.control) == (ID, "quotes", control)
    assert event.timestamp_ns == 1_700_000_000_000_000_000


def test_an_empty_event_is_an_event() -> None:
    event = Event()
    assert event.attributes == {}
    assert (event.id, event.stream, event.payload, event.timestamp_ns) == (None, "", b"", 0)
    assert bool(event) is True


def test_attributes_are_read_as_from_a_mapping() -> None:
    event = Event({"symbol": "IBM", "price": 12.5})
    assert event["symbol"] == "IBM"
    assert event.get("price") == 12.5
    assert event.get("volume") is None
    assert event.get("volume", 7) == 7
    assert "symbol" in event
    assert "volume" not in event
    assert dict(event) == {**event} == {"symbol": "IBM", "price": 12.5}
    with pytest.raises(KeyError):
        event["volume"]


def test_attributes_keep_their_order() -> None:
    assert list(Event({"b": 1, "a": 2, "c": 3})) == ["b", "a", "c"]


def test_attributes_are_no_keywords() -> None:
    with pytest.raises(TypeError, match="symbol"):
        Event(symbol="IBM")  # type: ignore[call-arg]


def test_any_mapping_gives_attributes() -> None:
    assert Event(MappingProxyType({"a": 1})) == Event({"a": 1})


def test_one_attribute_of_every_type_keeps_its_type() -> None:
    event = Event({"text": "x", "integer": 1, "float": 1.0, "truth": True})
    assert [type(value) for value in event.attributes.values()] == [str, int, float, bool]


def test_every_buffer_becomes_a_payload_of_bytes() -> None:
    for payload in (b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a-b-c")[::2]):
        event = Event(payload=payload)
        assert event.payload == b"abc"
        assert type(event.payload) is bytes


@pytest.mark.parametrize("attributes", [None, [("a", 1)], "a", 1, {"a"}])
def test_attributes_that_are_no_mapping_are_refused(attributes: object) -> None:
    assert "must be a mapping" in refused(attributes)


@pytest.mark.parametrize("payload", ["text", None, 5, [1, 2]])
def test_a_payload_that_is_no_bytes_is_refused(payload: object) -> None:
    assert "payload is of type" in refused(payload=payload)


# -- immutability


def test_no_part_of_an_event_can_be_set_or_deleted() -> None:
    event = Event({"a": 1})
    for name in ("attributes", "payload", "header", "id", "stream", "price"):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
            setattr(event, name, None)
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        del event.payload
    with pytest.raises(TypeError):
        event.attributes["a"] = 2  # type: ignore[index]
    assert event == Event({"a": 1})


def test_an_event_does_not_follow_changes_of_what_it_was_built_from() -> None:
    attributes: dict[str, str | int | float | bool] = {"a": 1}
    payload = bytearray(b"x")
    event = Event(attributes, payload=payload)
    attributes["a"] = 2
    payload[0] = 0
    assert event == Event({"a": 1}, payload=b"x")


def test_stamping_gives_an_id_and_keeps_the_rest() -> None:
    plain = Event({"a": 1}, payload=b"x", content_type="t", stream="s", control=Control(priority=1))
    event = plain.stamped(ID, 5)
    assert (event.id, event.timestamp_ns) == (ID, 5)
    assert event.attributes == {"a": 1}
    assert (event.payload, event.content_type) == (b"x", "t")
    assert (event.stream, event.control) == ("s", Control(priority=1))
    assert plain.id is None


def test_stamping_keeps_the_timestamp_an_event_has() -> None:
    assert Event(timestamp_ns=3).stamped(ID, 5).timestamp_ns == 3


def test_an_event_is_stamped_once() -> None:
    with pytest.raises(EventError, match="feed-1:3:17"):
        Event(id=ID).stamped(EventId("feed-1", 3, 18), 5)


# -- equality, hash, copies, repr

DIFFERENT = [
    Event(),
    Event({"a": 1}),
    Event({"a": 2}),
    Event({"b": 1}),
    Event({"a": 1.0}),
    Event({"a": True}),
    Event({"a": "1"}),
    Event({"a": math.nan}),
    Event({"a": math.inf}),
    Event({"a": 1, "b": 1}),
    Event({"é": 1}),
    Event({"e\u0301": 1}),
    Event(payload=b"x"),
    Event(content_type="x"),
    Event(stream="x"),
    Event(timestamp_ns=1),
    Event(control=Control(priority=5)),
    Event(id=ID),
    Event(id=EventId("feed-1", 3, 18)),
]


def test_events_that_differ_in_any_part_are_different() -> None:
    assert len(set(DIFFERENT)) == len(DIFFERENT)
    for index, event in enumerate(DIFFERENT):
        assert [event == other for other in DIFFERENT].index(True) == index
    assert Event() != {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": math.nan}, {"a": float("nan")}),
        ({"a": 0.0}, {"a": -0.0}),
        ({"a": 2**63 - 1}, {"a": int("9223372036854775807")}),
    ],
)
def test_order_sign_of_zero_and_identity_of_nan_do_not_count(
    one: Mapping[str, float], other: Mapping[str, float]
) -> None:
    assert Event(one) == Event(other)
    assert hash(Event(one)) == hash(Event(other))


@pytest.mark.parametrize("event", DIFFERENT, ids=repr)
def test_copies_and_pickles_are_equal(event: Event) -> None:
    assert copy.copy(event) == event
    assert copy.deepcopy(event) == event
    assert pickle.loads(pickle.dumps(event)) == event


def test_repr_shows_what_an_event_is() -> None:
    event = Event({"symbol": "IBM", "price": 12.5}, payload=b"abc", stream="quotes", id=ID)
    assert repr(event) == (
        "Event({'symbol': 'IBM', 'price': 12.5}, payload of 3 bytes,"
        " stream='quotes', id='feed-1:3:17')"
    )
    assert repr(Event()) == "Event({})"


def test_repr_is_short_whatever_the_event() -> None:
    event = Event(
        {f"{index}" * 60: "v" * 60_000 for index in range(100)},
        payload=b"x" * 100_000,
        stream="s" * 255,
        id=EventId("p" * 255, 2**63 - 1, 2**63 - 1),
    )
    assert len(repr(event)) < 600
    assert "… 96 more" in repr(event)


# -- limits


@pytest.mark.parametrize(
    ("limits", "good", "bad"),
    [
        (
            Limits(attributes_max=2),
            {"attributes": {"a": 1, "b": 2}},
            {"attributes": {"a": 1, "b": 2, "c": 3}},
        ),
        (
            Limits(name_bytes_max=3),
            {"attributes": {"aé": 1, "bbb": 1}},
            {"attributes": {"éé": 1, "bbb": 1}},
        ),
        (Limits(name_bytes_max=3), {"stream": "aé"}, {"stream": "éé"}),
        (
            Limits(value_bytes_max=4),
            {"attributes": {"a": "éé", "b": "abcd"}},
            {"attributes": {"a": "éé", "b": "abcde"}},
        ),
        (
            Limits(value_bytes_max=4),
            {"attributes": {"a": "éé"}},
            {"attributes": {"a": "ééa"}},
        ),
        (Limits(payload_bytes_max=4), {"payload": b"abcd"}, {"payload": b"abcde"}),
        (
            Limits(payload_bytes_max=4),
            {"payload": b"abcd"},
            {"payload": memoryview(b"abcdefgh").cast("I")},
        ),
        (
            Limits(destinations_max=2),
            {"control": Control(destinations=("a", "b"))},
            {"control": Control(destinations=("a", "b", "c"))},
        ),
    ],
)
def test_the_limit_itself_is_allowed_and_one_more_is_not(
    limits: Limits, good: dict[str, object], bad: dict[str, object]
) -> None:
    assert isinstance(Event(**good, limits=limits), Event)  # type: ignore[arg-type]
    with pytest.raises(EventError, match="at most"):
        Event(**bad, limits=limits)  # type: ignore[arg-type]


def test_all_parts_within_their_limits_may_still_be_too_much() -> None:
    values = {f"a{index}": "v" * 65_536 for index in range(256)}
    assert "at most 8388608 are allowed" in refused(values)


def test_no_limits_allow_more_destinations_than_the_encoding_does() -> None:
    destinations = tuple(map(str, range(65_536)))
    limits = Limits(destinations_max=100_000)
    most = Control(destinations=destinations[1:])
    assert Event(control=most, limits=limits).control == most
    with pytest.raises(EventError, match="65536 destinations; at most 65535"):
        Event(control=Control(destinations=destinations), limits=limits)
