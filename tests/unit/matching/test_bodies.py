"""Encoded events, many at once: matched like one by one, and never by bytes that are no event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.matching.engine import EngineName
from anabranch.matching.index import MatchIndex
from anabranch.model.encoding import decode_envelope, encode_event
from anabranch.model.errors import RemoteError
from anabranch.model.event import Control, Event, EventId, Value
from anabranch.model.limits import DEFAULT_LIMITS, Limits

FILTERS = ("a = 1", "a > 1", "b = 'x'", "b LIKE 'x%'", "c", "a IS NULL", "long = 'a longer text'")
ID = EventId("publisher", 1, 1)


def index_of(engine: EngineName = "numba") -> MatchIndex:
    index = MatchIndex(engine=engine)
    for number, text in enumerate(FILTERS):
        index.add(f"s{number}", text, destination=("east", "west", "north")[number % 3])
    return index


LASTING = index_of()


def body(
    attributes: dict[str, Value],
    *,
    control: Control | None = None,
    stream: str = "",
    payload: bytes = b"",
    event_id: EventId = ID,
    timestamp_ns: int = 0,
) -> bytes:
    return encode_event(
        Event(
            attributes,
            id=event_id,
            control=control or Control(),
            stream=stream,
            payload=payload,
            timestamp_ns=timestamp_ns,
        )
    )


def agrees(index: MatchIndex, data: bytes, limits: Limits = DEFAULT_LIMITS) -> bool:
    """Whether all at once say what one by one would, if they say anything; then True."""
    (ids,) = index.match_bodies([data], limits)
    (destinations,) = index.destinations_of([data], limits)
    if ids is None and destinations is None:
        return False
    envelope = decode_envelope(data, limits)
    assert ids is None or list(ids) == index.match(envelope)
    assert destinations is None or destinations == index.destinations(envelope)
    return True


values = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from((0, 1, 2)),
    st.floats(),
    st.booleans(),
    st.sampled_from(("x", "xy", "", "é", "a longer text", "n" * 300)),
)
names = st.one_of(st.sampled_from(("a", "b", "c", "long")), st.text("abz", min_size=1, max_size=9))
ids = st.builds(
    EventId,
    st.sampled_from(("p", "publisher", "é", "n" * 255)),
    st.sampled_from((0, 1, 127, 128, 255, 256, 65_536, 2**32, 2**63 - 1)),
    st.integers(0, 2**63 - 1),
)
limits_of_an_event = st.one_of(st.none(), st.integers(0, 2**63 - 1))
controls = st.builds(
    Control,
    persistence=st.sampled_from(("persistent", "transient")),
    time_limit_ns=limits_of_an_event,
    hop_limit=limits_of_an_event,
    level_limit=limits_of_an_event,
    priority=st.integers(0, 9),
    correlation_id=st.sampled_from(("", "q", "é")),
    destinations=st.sampled_from(((), ("till-1",), ("till-1", "till-2"))),
)


@given(
    st.dictionaries(names, values, max_size=20),
    controls,
    ids,
    st.tuples(st.sampled_from(("", "quotes", "é")), st.integers(-(2**63), 2**63 - 1)),
    st.sampled_from((0, 1, 255, 256, 70_000)),
)
def test_whatever_can_be_published_is_answered_alike(
    attributes: dict[str, Value],
    control: Control,
    event_id: EventId,
    header: tuple[str, int],
    payload_bytes: int,
) -> None:
    stream, timestamp_ns = header
    data = body(
        attributes,
        control=control,
        event_id=event_id,
        stream=stream,
        timestamp_ns=timestamp_ns,
        payload=bytes(payload_bytes),
    )
    agrees(LASTING, data)


ORDINARY = (
    body({"a": 1, "b": "xyz", "c": True, "d": 1.5}, payload=b"x" * 300, timestamp_ns=10**18),
    body({"a": 7}, control=Control(persistence="transient", priority=9, correlation_id="q")),
    body({}, stream="quotes"),
)


def test_ordinary_events_are_answered_without_decoding_them() -> None:
    assert all(agrees(LASTING, data) for data in ORDINARY)
    assert None not in LASTING.match_bodies(ORDINARY, DEFAULT_LIMITS)
    assert None not in LASTING.destinations_of(ORDINARY, DEFAULT_LIMITS)


@pytest.mark.parametrize("data", ORDINARY)
def test_no_truncation_is_taken_for_an_event(data: bytes) -> None:
    cuts = [data[:end] for end in range(len(data))] + [data + b"\0"]
    assert LASTING.match_bodies(cuts, DEFAULT_LIMITS) == [None] * len(cuts)
    assert LASTING.destinations_of(cuts, DEFAULT_LIMITS) == [None] * len(cuts)


@given(st.sampled_from(ORDINARY), st.data())
def test_changed_bytes_are_answered_as_if_decoded_or_not_at_all(
    data: bytes, draw: st.DataObject
) -> None:
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        changed[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        decode_envelope(bytes(changed)).attributes()
    except RemoteError:
        assert not agrees_at_all(bytes(changed))
    else:
        agrees(LASTING, bytes(changed))


def agrees_at_all(data: bytes) -> bool:
    answers = (
        *LASTING.match_bodies([data], DEFAULT_LIMITS),
        *LASTING.destinations_of([data], DEFAULT_LIMITS),
    )
    return answers != (None, None)


def test_every_byte_of_a_header_counts() -> None:
    data = body({"a": 1})
    end = data.index(b"\x81\xa1a")
    for place in range(end):
        for value in range(256):
            changed = data[:place] + bytes([value]) + data[place + 1 :]
            try:
                decode_envelope(changed)
            except RemoteError:
                assert not agrees_at_all(changed), changed
            else:
                agrees(LASTING, changed)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(event_bytes_max=20),
        Limits(payload_bytes_max=99),
        Limits(name_bytes_max=3),
        Limits(attributes_max=0),
        Limits(value_bytes_max=3),
    ],
)
def test_an_event_beyond_the_limits_is_left_to_whoever_decodes_it(limits: Limits) -> None:
    data = body({"a": 1, "b": "xyz"}, payload=b"x" * 100)
    assert LASTING.match_bodies([data], limits) == [None]
    assert LASTING.destinations_of([data], limits) == [None]


def test_an_event_that_limits_its_life_or_way_is_for_its_header_to_decide() -> None:
    bounded = [
        body({"a": 1}, control=control)
        for control in (
            Control(time_limit_ns=1),
            Control(hop_limit=0),
            Control(destinations=("x",)),
        )
    ]
    assert LASTING.match_bodies(bounded, DEFAULT_LIMITS) == [None] * 3
    assert LASTING.destinations_of(bounded, DEFAULT_LIMITS) == [{"east"}, {"east"}, None]


def test_doubts_are_left_to_whoever_decodes_the_event() -> None:
    index = MatchIndex(engine="numba")
    index.add("sum", "a + 1 = 2", destination="east")
    index.add("plain", "b = 1", destination="west")
    doubtful, clear = body({"a": 1}), body({"b": 1})
    assert index.match_bodies([doubtful, clear, doubtful], DEFAULT_LIMITS) == [
        None,
        ["plain"],
        None,
    ]
    assert index.destinations_of([doubtful, clear], DEFAULT_LIMITS) == [None, {"west"}]


def test_more_matches_than_there_is_room_for_are_found_in_turns() -> None:
    index = MatchIndex(engine="numba")
    for number in range(20_000):
        index.add(number, "a > 0")
    index.add("one", "b = 1")
    events = [body({"a": 1}), body({"b": 1}), b"none"] * 3 + [body({"a": 1})] * 6
    found = index.match_bodies(events, DEFAULT_LIMITS)
    everybody = set(range(20_000))
    assert [None if each is None else set(each) for each in found] == [
        everybody,
        {"one"},
        None,
    ] * 3 + [everybody] * 6


def test_too_many_destinations_are_left_to_be_asked_about_alone() -> None:
    index = MatchIndex(engine="numba")
    for number in range(62):
        index.add(number, "a = 1", destination=number)
    assert index.destinations_of([body({"a": 1})], DEFAULT_LIMITS) == [frozenset(range(62))]
    index.add(62, "a = 1", destination=62)
    assert index.destinations_of([body({"a": 1})], DEFAULT_LIMITS) == [None]


def test_destinations_that_come_and_go_are_answered_as_they_are() -> None:
    index = MatchIndex(engine="numba")
    event = [body({"a": 1})]
    index.add(1, "a = 1", destination="east")
    assert index.destinations_of(event, DEFAULT_LIMITS) == [frozenset({"east"})]
    index.remove(1)
    index.add(2, "a = 1", destination="west")
    assert index.destinations_of(event, DEFAULT_LIMITS) == [frozenset({"west"})]


def test_without_kernels_every_event_has_to_be_decoded() -> None:
    index = index_of("numpy")
    assert index.match_bodies(ORDINARY, DEFAULT_LIMITS) == [None] * 3
    assert index.destinations_of(ORDINARY, DEFAULT_LIMITS) == [None] * 3
