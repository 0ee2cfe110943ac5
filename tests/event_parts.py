"""Parts of events for tests: good ones, any bad ones, and what is said about the bad ones."""

from types import MappingProxyType

import msgspec
import pytest

from anabranch.model.encoding import decode_event
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.event import Control, Event, EventId, Value
from anabranch.model.limits import Limits

pack = msgspec.msgpack.encode

ID = ["feed-1", 3, 17]
CONTROL: list[object] = ["persistent", None, None, None, 4, "", []]
HEADER = [ID, "quotes", 1_700_000_000_000_000_000, CONTROL, "text/plain"]
ATTRIBUTES: dict[str, Value] = {"symbol": "IBM", "price": 12.5, "volume": 100, "halted": False}
EVENT = Event(
    ATTRIBUTES,
    payload=b"\0\1\2",
    content_type="text/plain",
    id=EventId("feed-1", 3, 17),
    stream="quotes",
    timestamp_ns=1_700_000_000_000_000_000,
)
EVERYTHING = Event(
    {"text": "é\0", "integer": -(2**63), "float": 0.1, "truth": True, "名": 2**40},
    payload=bytes(range(20)),
    content_type="text/plain",
    id=EventId("feed-1", 3, 2**62),
    stream="quotes",
    timestamp_ns=1_700_000_000_000_000_000,
    control=Control(
        persistence="transient",
        time_limit_ns=10**9,
        hop_limit=0,
        level_limit=2,
        priority=9,
        correlation_id="order 12",
        destinations=("desk-1", "desk-2"),
    ),
)


def refused(attributes: object = MappingProxyType({}), **parts: object) -> str:
    """What building an event of these parts says; it must be refused."""
    with pytest.raises(EventError) as caught:
        Event(attributes, **parts)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300
    return str(caught.value)


def undecodable(data: bytes, limits: Limits | None = None) -> str:
    """What decoding says; it must raise the remote error and say it briefly."""
    with pytest.raises(RemoteError) as caught:
        decode_event(data, limits or Limits())
    assert len(str(caught.value)) < 400
    return str(caught.value)


class Bytes(msgspec.Struct, frozen=True):
    """MessagePack to be put in as it is."""

    value: bytes


def packed(item: object) -> bytes:
    return item.value if isinstance(item, Bytes) else pack(item)


def frame(
    header: object = HEADER, attributes: object = ATTRIBUTES, payload: object = b"\0\1\2"
) -> bytes:
    """An encoded event of any items, right or wrong."""
    return b"\x94\x01" + packed(header) + packed(attributes) + packed(payload)


def with_header(place: int, item: object) -> bytes:
    items = [*map(packed, HEADER)]
    items[place] = packed(item)
    return frame(header=Bytes(b"\x95" + b"".join(items)))


def with_control(place: int, item: object) -> bytes:
    items = [*map(packed, CONTROL)]
    items[place] = packed(item)
    return with_header(3, Bytes(b"\x97" + b"".join(items)))


def with_id(place: int, item: object) -> bytes:
    items = [*map(packed, ID)]
    items[place] = packed(item)
    return with_header(0, Bytes(b"\x93" + b"".join(items)))


def with_value(value: object) -> bytes:
    return frame(attributes=Bytes(b"\x81\xa1a" + packed(value)))
