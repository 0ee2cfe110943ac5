"""Timestamps: what a datetime and a text become, and what is refused, with its place."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest

from anabranch.model.event import INT_MAX, INT_MIN
from anabranch.model.timestamps import (
    TimestampError,
    datetime_of,
    nanoseconds_of,
    parse_timestamp,
    timestamp_of,
)

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_NS = 1_769_860_800 * 10**9


@pytest.mark.parametrize(
    ("text", "timestamp"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-01-31T12:00:00Z", NOON_NS),
        ("2026-01-31t12:00:00z", NOON_NS),
        ("2026-01-31 12:00Z", NOON_NS),
        ("2026-01-31T12:00:00+00:00", NOON_NS),
        ("2026-01-31T12:00:00-00:00", NOON_NS),
        ("2026-01-31 13:00:00+01:00", NOON_NS),
        ("2026-01-31 06:30:00-05:30", NOON_NS),
        ("2026-02-01T11:59:00+23:59", NOON_NS),
        ("2026-01-31T12:00:00.5Z", NOON_NS + 500_000_000),
        ("2026-01-31 12:00:00.123456789+00:00", NOON_NS + 123_456_789),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("1677-09-21T00:12:43.145224192Z", INT_MIN),
        ("2262-04-11T23:47:16.854775807Z", INT_MAX),
        ("2024-02-29T00:00:00Z", 1_709_164_800 * 10**9),
    ],
)
def test_a_text_of_rfc_3339_is_a_timestamp(text: str, timestamp: int) -> None:
    assert parse_timestamp(text) == timestamp


@pytest.mark.parametrize(
    ("text", "position", "message", "expected"),
    [
        ("", 0, "not a time", "2026-01-31T12:00:00Z"),
        ("yesterday", 0, "not a time", "2026-01-31T12:00:00Z"),
        ("20260131T120000Z", 0, "not a time", "2026-01-31T12:00:00Z"),
        ("2026-01-31", 10, "without a time of day", "2026-01-31T12:00:00Z"),
        ("2026-01-31  12:00Z", 10, "without a time of day", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00", 19, "without a time zone", "Z for UTC"),
        ("2026-01-31T12:00", 16, "without a time zone", "+01:00"),
        ("2026-01-31T12:00:00.", 19, "not a time", "and then the end"),
        ("2026-01-31T12:00:00+1", 19, "not a time", "Z for UTC"),
        ("2026-01-31T12:00:00 UTC", 19, "not a time", "Z for UTC"),
        ("2026-01-31T12:00:00Z ", 20, "not a time", "and then the end"),
        ("2026-01-31T12:00:00.1234567890Z", 29, "nine decimal places", "nanoseconds"),
        ("2026-13-31T12:00:00Z", 0, "impossible time (month must be", "2026-01-31"),
        ("2026-02-29T12:00:00Z", 0, "impossible time (day", "2026-01-31"),
        ("2026-01-31T24:00:00Z", 0, "impossible time (hour", "2026-01-31"),
        ("2026-01-31T12:00:60Z", 0, "impossible time (second", "2026-01-31"),
        ("2026-01-31T12:00:00+24:00", 0, "impossible time (an offset", "2026-01-31"),
        ("0000-01-31T12:00:00Z", 0, "impossible time (year", "2026-01-31"),
        ("1677-09-21T00:12:43.145224191Z", 0, "outside of 64-bit", "1677"),
        ("2262-04-11T23:47:16.854775808Z", 0, "outside of 64-bit", "2262"),
        ("0001-01-01T00:00:00+23:00", 0, "outside of 64-bit", "1677"),
        ("9999-12-31T23:59:59-23:00", 0, "outside of 64-bit", "2262"),
        ("\u0662026-01-31T12:00:00Z", 0, "not a time", "2026-01-31T12:00:00Z"),
    ],
)
def test_another_text_is_refused_with_the_place_of_the_mistake(
    text: str, position: int, message: str, expected: str
) -> None:
    with pytest.raises(TimestampError) as caught:
        parse_timestamp(text)
    assert caught.value.position == position
    assert message in caught.value.message
    assert expected in caught.value.expected


def test_a_datetime_of_any_zone_is_its_instant() -> None:
    assert timestamp_of(NOON) == NOON_NS
    assert timestamp_of(NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))) == NOON_NS
    assert timestamp_of(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1_000
    assert nanoseconds_of(datetime(1, 1, 1, tzinfo=UTC)) == -62_135_596_800 * 10**9


class _Nowhere(tzinfo):
    def utcoffset(self, moment: datetime | None) -> None:
        return None

    def dst(self, moment: datetime | None) -> None:
        return None

    def tzname(self, moment: datetime | None) -> None:
        return None


class _Sooner(datetime):
    pass


@pytest.mark.parametrize(
    ("moment", "message"),
    [
        (NOON.replace(tzinfo=None), "without a time zone"),
        (NOON.replace(tzinfo=_Nowhere()), "without a time zone"),
        (_Sooner(2026, 1, 31, tzinfo=UTC), "a _Sooner, which may hold more"),
        (NOON.replace(year=1677), "outside of 64-bit nanoseconds"),
        (NOON.replace(year=2263), "outside of 64-bit nanoseconds"),
    ],
)
def test_a_datetime_that_is_no_timestamp_is_refused(moment: datetime, message: str) -> None:
    if message.startswith("outside"):
        assert timestamp_of(NOON.replace(year=1678))
        assert timestamp_of(NOON.replace(year=2261))
    with pytest.raises(TimestampError, match=message):
        timestamp_of(moment)


def test_the_rest_of_a_microsecond_is_dropped_towards_the_past() -> None:
    microsecond = timedelta(microseconds=1)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    expected = [(0, 0), (999, 0), (1_000, 1), (-1, -1), (-1_000, -1), (-1_001, -2)]
    for timestamp, microseconds in expected:
        assert datetime_of(timestamp) == epoch + microseconds * microsecond
    assert datetime_of(INT_MIN) == datetime(1677, 9, 21, 0, 12, 43, 145_224, tzinfo=UTC)
    assert datetime_of(INT_MAX) == datetime(2262, 4, 11, 23, 47, 16, 854_775, tzinfo=UTC)
