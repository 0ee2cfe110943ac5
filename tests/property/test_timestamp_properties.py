"""Timestamps against numpy's arithmetic of times, which shares no code with theirs."""

from datetime import UTC, datetime, timedelta, timezone

import numpy
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.event import INT_MAX, INT_MIN
from anabranch.model.filter import Filter
from anabranch.model.language.builder import attr
from anabranch.model.language.parser import parse_expression
from anabranch.model.timestamps import (
    TimestampError,
    datetime_of,
    parse_timestamp,
    timestamp_of,
)

minutes = st.integers(-23 * 60 - 59, 23 * 60 + 59)
zones = st.builds(lambda n: timezone(timedelta(minutes=n)), minutes)
#: A day less than the range at either end, so that no zone leaves it.
moments = st.datetimes(
    datetime(1677, 9, 22, 1),  # noqa: DTZ001 - the strategy adds the zone
    datetime(2262, 4, 10),  # noqa: DTZ001
    timezones=zones,
)
#: Also at hours that a place has twice a year, or never.
placed_moments = moments | st.datetimes(
    datetime(1677, 9, 22, 1),  # noqa: DTZ001
    datetime(2262, 4, 10),  # noqa: DTZ001
    timezones=st.timezones(),
)
#: numpy has no lowest integer, and wraps around near it.
timestamps = st.integers(INT_MIN + 2_000, INT_MAX) | st.integers(-5_000, 5_000)
fractions = st.text("0123456789", max_size=9)


def numpy_ns(text: str) -> int:
    """Nanoseconds since 1970 of a text without a zone."""
    return int(numpy.datetime64(text, "ns").astype(numpy.int64))


@given(placed_moments)
def test_a_datetime_comes_back_as_the_same_instant(moment: datetime) -> None:
    timestamp = timestamp_of(moment)
    assert datetime_of(timestamp) == moment.astimezone(UTC)
    assert timestamp == numpy_ns(moment.astimezone(UTC).replace(tzinfo=None).isoformat())


@given(timestamps)
def test_a_timestamp_comes_back_without_what_is_below_a_microsecond(timestamp: int) -> None:
    moment = datetime_of(timestamp)
    whole = numpy.datetime64(timestamp, "ns").astype("datetime64[us]")
    assert moment == whole.item().replace(tzinfo=UTC)
    assert 0 <= timestamp - timestamp_of(moment) < 1_000


@given(placed_moments, placed_moments)
def test_timestamps_have_the_order_of_instants(one: datetime, other: datetime) -> None:
    is_before = one.astimezone(UTC) < other.astimezone(UTC)
    assert (timestamp_of(one) < timestamp_of(other)) == is_before


@given(moments, fractions, st.sampled_from("T "), minutes)
def test_a_text_is_what_numpy_makes_of_it(
    moment: datetime, fraction: str, joint: str, minutes: int
) -> None:
    local = moment.replace(tzinfo=None, microsecond=0).isoformat()
    text = f"{local}.{fraction}" if fraction else local
    sign, (hours, rest) = "-" if minutes < 0 else "+", divmod(abs(minutes), 60)
    expected = numpy_ns(text) - minutes * 60 * 10**9
    offset = f"{sign}{hours:02}:{rest:02}"
    assert parse_timestamp(text.replace("T", joint) + offset) == expected
    assert parse_timestamp(text.replace("T", joint) + "Z") == numpy_ns(text)


@given(moments, timestamps)
def test_a_literal_and_the_datetime_are_one_filter(moment: datetime, timestamp: int) -> None:
    literal = f"at > TIMESTAMP '{moment.isoformat()}'"
    built = attr("at") > moment
    assert built.expression == parse_expression(literal)
    filter = Filter.parse(literal)
    assert filter == Filter.parse(str(filter))
    assert filter.matches({"at": timestamp}) == (timestamp > timestamp_of(moment))


@given(st.text("0123456789-+:.TZ 'é", max_size=30) | st.text(max_size=30))
def test_any_text_is_a_timestamp_or_refused_within_itself(text: str) -> None:
    try:
        position = 0 * parse_timestamp(text)
    except TimestampError as error:
        position = error.position
    assert 0 <= position <= len(text)
