"""From what an application says to `publish` to an event.

    client.publish({"symbol": "IBM", "price": 12.5}, payload=b"…", priority=7, time_limit=3.0)

The keywords are those of `How`; attributes are one mapping, as in `Event`. An event that was made
before is taken as it is, and then the keywords have no place.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypedDict, Unpack

from anabranch.model.errors import EventError
from anabranch.model.event import Control, Event
from anabranch.model.header import DEFAULT_CONTROL, Persistence
from anabranch.model.limits import Limits
from anabranch.model.values import Value

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_S = 1_000_000_000


class How(TypedDict, total=False):
    """How an event is to be published. All of it may be left out."""

    #: Bytes that only the application reads, and what they are.
    payload: bytes
    content_type: str
    #: When it happened: with a time zone, or in nanoseconds since 1970. Left out: now.
    timestamp: datetime | int
    #: `persistent` is kept until every subscription has it, `transient` is sent once.
    persistence: Persistence
    #: For how long it is worth delivering, from when its origin took it: a timedelta, or seconds.
    time_limit: timedelta | float
    #: How many hops between brokers it may take.
    hop_limit: int
    #: Level of the unit it may not leave.
    level_limit: int
    #: 0 to 9; decides between streams what a subscriber reads first.
    priority: int
    #: Names of the clients that shall get it, if their filters match.
    destinations: Iterable[str]
    #: What it belongs to or answers.
    correlation_id: str


def compose(attributes: Event | Mapping[str, Value], limits: Limits, **how: Unpack[How]) -> Event:
    """The event that is meant, or an `EventError`."""
    if isinstance(attributes, Event):
        if how:
            raise EventError(
                f"the event is made already; {', '.join(sorted(how))} must be said when making it"
            )
        return attributes
    if not how:
        return Event(attributes, limits=limits)
    return Event(
        attributes,
        payload=how.get("payload", b""),
        content_type=how.get("content_type", ""),
        timestamp_ns=_timestamp_ns(how.get("timestamp", 0)),
        control=_control(how),
        limits=limits,
    )


def _control(how: How) -> Control:
    destinations = how.get("destinations", ())
    if isinstance(destinations, str):
        raise EventError(
            f"destinations is a text; give a list of names, such as [{destinations!r}]"
        )
    time_limit = how.get("time_limit")
    control = Control(
        persistence=how.get("persistence", "persistent"),
        time_limit_ns=None if time_limit is None else _duration_ns(time_limit),
        hop_limit=how.get("hop_limit"),
        level_limit=how.get("level_limit"),
        priority=how.get("priority", DEFAULT_CONTROL.priority),
        correlation_id=how.get("correlation_id", ""),
        destinations=tuple(destinations),
    )
    return DEFAULT_CONTROL if control == DEFAULT_CONTROL else control


def _timestamp_ns(timestamp: datetime | int) -> int:
    if not isinstance(timestamp, datetime):
        return timestamp
    if timestamp.tzinfo is None:
        raise EventError(f"timestamp {timestamp.isoformat()} has no time zone; give it one")
    return (timestamp - _EPOCH) // timedelta(microseconds=1) * 1_000


def _duration_ns(duration: timedelta | float) -> int:
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1) * 1_000
    if type(duration) not in (int, float) or duration != duration:
        raise EventError(f"time_limit is {duration!r}; give seconds, or a timedelta")
    return int(duration * _NS_PER_S)
