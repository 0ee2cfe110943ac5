"""Timestamps: points in time as 64-bit integers, nanoseconds since 1970 in UTC.

An attribute has no type for time. By convention, a time is an integer: `timestamp_of` converts a
datetime of a program, `parse_timestamp` the text of a `TIMESTAMP '…'` literal, and `datetime_of`
converts back. On the way through brokers, indexes, logs and archives a timestamp is an integer like
any other (ADR 0029). Rules:

1. The same instant is the same integer, whatever its time zone was. The zone is not kept.
2. A datetime without a time zone is refused: it names an instant only together with a place.
3. A subclass of datetime is refused, because it may hold more than `timestamp_of` reads: pandas has
   nanoseconds.
4. Nothing is rounded on the way to an integer. On the way back, `datetime_of` drops what is below a
   microsecond, towards the past, also before 1970.
5. The range of 64 bits is 1677-09-21T00:12:43.145224192Z to 2262-04-11T23:47:16.854775807Z. A time
   outside is refused, never clamped.
6. Text is that of RFC 3339, with `T` or a space before the time of day, up to nine decimal places
   of seconds, and an offset, which is required. Seconds may be left out. Leap seconds do not exist.

Stateless.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

from anabranch.model.errors import LocalError

NS_PER_MICROSECOND: Final = 1_000
_NS_PER_S: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)
_LEAST_NS: Final = -(2**63)
_GREATEST_NS: Final = 2**63 - 1

_RANGE: Final = "a time from 1677-09-21T00:12:44Z to 2262-04-11T23:47:16Z"
_ZONE_EXPECTED: Final = "a time zone: Z for UTC, or an offset such as +01:00"
_FORM_EXPECTED: Final = "a time such as 2026-01-31T12:00:00Z"
_DECIMAL_PLACES_MAX: Final = 9

_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile(r"[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]++))?+)?+")
_ZONE: Final = re.compile(r"[Zz]|([+-])([0-9]{2}):([0-9]{2})")


class TimestampError(LocalError, ValueError):
    """A datetime or a text is not a timestamp."""

    def __init__(self, message: str, expected: str, position: int = 0) -> None:
        super().__init__(f"{message}; expected {expected}")
        self.message = message
        #: What would be correct.
        self.expected = expected
        #: Index of the mistake in a text.
        self.position = position


def nanoseconds_of(moment: datetime) -> int:
    """Return the nanoseconds since 1970 of a datetime with a time zone, of any magnitude."""
    return (moment - _EPOCH) // _MICROSECOND * NS_PER_MICROSECOND


def timestamp_of(moment: datetime) -> int:
    """Return the timestamp of a datetime; raise `TimestampError` if it has none."""
    if moment != moment:
        raise TimestampError("a missing time (NaT)", "no attribute if there is no value")
    if type(moment) is not datetime:
        raise TimestampError(
            f"a {type(moment).__qualname__}, which may hold more than a datetime",
            "a datetime (.to_pydatetime() of pandas, rounded to microseconds), or an integer of"
            " nanoseconds since 1970 (.value of pandas)",
        )
    if moment.utcoffset() is None:
        raise TimestampError(
            "a datetime without a time zone",
            "one with a time zone, such as datetime.now(UTC) or moment.replace(tzinfo=UTC)",
        )
    nanoseconds = nanoseconds_of(moment)
    if not _LEAST_NS <= nanoseconds <= _GREATEST_NS:
        raise TimestampError("a datetime outside of 64-bit nanoseconds", _RANGE)
    return nanoseconds


def datetime_of(timestamp: int) -> datetime:
    """Return a timestamp as a datetime in UTC (rule 4)."""
    assert _LEAST_NS <= timestamp <= _GREATEST_NS, timestamp
    return _EPOCH + timedelta(microseconds=timestamp // NS_PER_MICROSECOND)


def parse_timestamp(text: str) -> int:
    """Return the timestamp that a text spells; raise `TimestampError` with the position."""
    date = _DATE.match(text)
    if date is None:
        raise TimestampError("not a time", _FORM_EXPECTED)
    time = _TIME.match(text, date.end())
    if time is None:
        raise TimestampError("a time without a time of day", _FORM_EXPECTED, date.end())
    fraction = time[4] or ""
    if len(fraction) > _DECIMAL_PLACES_MAX:
        raise TimestampError(
            "a time with more than nine decimal places",
            "nanoseconds at most",
            time.start(4) + _DECIMAL_PLACES_MAX,
        )
    zone = _ZONE.match(text, time.end())
    if zone is None or zone.end() < len(text):
        _refuse_rest(text, time.end() if zone is None else zone.end())
    year, month, day = map(int, date.groups())
    hour, minute, second = (int(part or 0) for part in time.groups()[:3])
    try:
        local = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        offset = _offset_of(zone)
    except ValueError as error:
        raise TimestampError(f"an impossible time ({error})", _FORM_EXPECTED) from None
    # Differences, because a datetime of the years 1 and 9999 cannot be moved to another zone.
    seconds = (local - _EPOCH - offset) // _SECOND
    nanoseconds = seconds * _NS_PER_S + int(fraction.ljust(_DECIMAL_PLACES_MAX, "0"))
    if not _LEAST_NS <= nanoseconds <= _GREATEST_NS:
        raise TimestampError("a time outside of 64-bit nanoseconds", _RANGE)
    return nanoseconds


def _refuse_rest(text: str, position: int) -> NoReturn:
    if position == len(text):
        raise TimestampError("a time without a time zone", _ZONE_EXPECTED, position)
    raise TimestampError("not a time", f"{_ZONE_EXPECTED}, and then the end", position)


def _offset_of(zone: re.Match[str]) -> timedelta:
    if zone[1] is None:
        return timedelta()
    hours, minutes = int(zone[2]), int(zone[3])
    if hours > 23 or minutes > 59:
        raise ValueError("an offset is at most 23:59")
    offset = timedelta(hours=hours, minutes=minutes)
    return -offset if zone[1] == "-" else offset
