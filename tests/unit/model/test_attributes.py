"""Names and values: which attributes an event may have."""

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum

import numpy
import pandas
import pytest

from anabranch.model.errors import EventError
from anabranch.model.event import Event, EventId
from anabranch.model.filter import Filter
from tests.event_parts import refused

NAIVE = datetime(2026, 1, 31, tzinfo=UTC).replace(tzinfo=None)


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


# -- names


@pytest.mark.parametrize(
    "name",
    ["a", " ", "price in €", "名前", "é", "e\u0301", "\u200b", "\u2028", "\U0010ffff", "AND"],
)
def test_any_unicode_text_is_a_name(name: str) -> None:
    event = Event({name: 1}, stream=name, content_type=name, id=EventId(name, 0, 0))
    assert event[name] == 1


def test_names_are_not_normalised() -> None:
    event = Event({"é": 1, "e\u0301": 2, "E": 3, "e": 4})
    assert list(event.attributes.values()) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "empty"),
        ("a\0b", "control character '\\x00' at position 1"),
        ("tab\t", "control character '\\t' at position 3"),
        ("\x7f", "control character"),
        ("é\x85", "control character '\\x85' at position 1"),
        ("a\ud800", "lone surrogate at position 1"),
        ("a" * 256, "256 bytes; at most 255"),
        ("é" * 128, "256 bytes; at most 255"),
        (1, "of type int"),
        (None, "of type NoneType"),
        (b"a", "of type bytes"),
        (Colour.RED, "of type Colour"),
        (numpy.str_("a"), "of type str_"),
    ],
)
def test_a_bad_attribute_name_is_refused(name: object, complaint: str) -> None:
    assert complaint in refused({name: 1})
    assert complaint in refused({"good": 1, name: 1})


def test_a_name_may_have_exactly_as_many_bytes_as_allowed() -> None:
    for names in (["a" * 255], ["é" * 127 + "a"], ["a" * 200, "b" * 200]):
        assert list(Event(dict.fromkeys(names, 1))) == names


@pytest.mark.parametrize("part", ["stream", "content_type"])
def test_a_bad_stream_or_content_type_is_refused(part: str) -> None:
    words = part.replace("_", " ")
    assert f"{part} is of type int" in refused(**{part: 1})
    assert f"{part} is of type NoneType" in refused(**{part: None})
    assert f"{part} is of type ndarray" in refused(**{part: numpy.array(["a"])})
    assert f"{words} 'a\\nb' has the control character" in refused(**{part: "a\nb"})
    assert "lone surrogate" in refused(**{part: "\udfff"})
    assert "256 bytes" in refused(**{part: "a" * 256})


# -- values


@pytest.mark.parametrize(
    "value",
    [
        *("", "a\0b\n", "é", "e\u0301", "\U0010ffff"),
        *(0, -1, 2**63 - 1, -(2**63)),
        *(0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf),
        *(True, False),
    ],
)
def test_every_value_of_the_four_types_is_kept(value: str | int | float | bool) -> None:
    assert Event({"a": value})["a"] == value
    assert type(Event({"a": value})["a"]) is type(value)


def test_nan_and_minus_zero_are_kept() -> None:
    event = Event({"nan": math.nan, "zero": -0.0})
    assert repr(event["nan"]) == "nan"
    assert repr(event["zero"]) == "-0.0"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (None, "leave out"),
        (b"a", "payload"),
        (bytearray(b"a"), "payload"),
        ([1], "attributes hold no lists: give each member a boolean attribute ({'tag.red': True})"),
        (("red", "blue"), "or one delimited text (',red,blue,'), which LIKE '%,red,%' searches"),
        ({"red"}, "attributes hold no lists"),
        ({"b": 1}, "attributes are flat: give each member an attribute of its own"),
        (Decimal("1.10"), "float(x), an integer of the smallest unit such as cents, or str(x)"),
        (date(2026, 1, 31), "a datetime with a time zone, or the text of .isoformat()"),
        (time(12), "a number such as seconds since midnight"),
        (timedelta(hours=1), "give a number, such as .total_seconds()"),
        (NAIVE, "is a datetime without a time zone; give one with a time zone"),
        (datetime(1600, 1, 1, tzinfo=UTC), "outside of 64-bit nanoseconds; give a time from 1677"),
        (datetime(2300, 1, 1, tzinfo=UTC), "outside of 64-bit nanoseconds; give a time from 1677"),
        (pandas.Timestamp(1, tz="UTC"), "(.to_pydatetime() of pandas, rounded to microseconds)"),
        (pandas.NaT, "is a missing time (NaT); give no attribute if there is no value"),
        (numpy.datetime64(1, "ns"), "if it is UTC, .astype('datetime64[ns]').item()"),
        (numpy.timedelta64(1, "s"), ".astype('timedelta64[ns]').item() in nanoseconds"),
        (1j, "must be a str, int, float, bool or datetime with a time zone"),
        (Event(), "must be a str, int, float, bool or datetime with a time zone"),
        (2**63, "outside"),
        (-(2**63) - 1, "outside"),
        pytest.param(10**100_000, "outside", id="integer of 100,001 digits"),
        ("\ud800", "lone surrogate"),
        (Colour.RED, "convert it with str()"),
        (Level.LOW, "convert it with str(), int()"),
        (numpy.int64(1), ".item()"),
        (numpy.float64(1), ".item()"),
        (numpy.float32(1), ".item()"),
        (numpy.bool_(True), ".item()"),
        (numpy.str_("a"), ".item()"),
        (numpy.array(1), ".item()"),
        (numpy.array([1]), "attributes hold no lists"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_a_hint(value: object, hint: str) -> None:
    complaint = refused({"good": 1, "bad": value})
    assert "'bad'" in complaint
    assert hint in complaint


# -- datetimes

NOON = datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC)
NOON_NS = 1_769_860_800_123_456_000


def test_a_datetime_becomes_nanoseconds_since_1970_whatever_its_zone() -> None:
    given: dict[str, int | datetime] = {
        "n": 1,
        "at": NOON,
        "there": NOON.astimezone(timezone(timedelta(hours=-5))),
    }
    event = Event(given)
    assert dict(event) == {"n": 1, "at": NOON_NS, "there": NOON_NS}
    assert [type(value) for value in event.attributes.values()] == [int, int, int]
    assert event == Event({"n": 1, "at": NOON_NS, "there": NOON_NS})
    assert given["at"] is NOON


def test_a_datetime_does_not_hide_what_else_is_wrong() -> None:
    assert "'b' is a decimal.Decimal" in refused({"a": NOON, "b": Decimal(1)})
    assert "'b' is a decimal.Decimal" in refused({"b": Decimal(1), "a": NOON})
    assert "attribute name is empty" in refused({"a": NOON, "": 1})


def test_the_values_that_the_hints_propose_are_taken() -> None:
    moment = pandas.Timestamp("2026-01-31T12:00:00.123456789Z")
    day = numpy.datetime64("2026-01-31T12:00:00.123456789")
    event = Event({"a": moment.value, "b": day.astype("datetime64[ns]").item()})
    assert dict(event) == {"a": NOON_NS + 789, "b": NOON_NS + 789}
    assert Event({"a": moment.to_pydatetime(warn=False)})["a"] == NOON_NS


def test_attributes_to_match_are_converted_like_those_of_an_event() -> None:
    filter = Filter.parse("at >= TIMESTAMP '2026-01-31T12:00:00Z' AND n = 1")
    assert filter.matches({"at": NOON, "n": 1})
    assert not filter.matches({"at": NOON - timedelta(seconds=1), "n": 1})
    with pytest.raises(EventError, match="'at' is a datetime without a time zone"):
        filter.matches({"at": NAIVE, "n": 1})
    with pytest.raises(EventError, match="'n' is a list; attributes hold no lists"):
        filter.matches({"at": NOON, "n": [1]})  # type: ignore[dict-item]  # the subject
