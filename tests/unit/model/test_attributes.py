"""Names and values: which attributes an event may have."""

import math
from enum import IntEnum, StrEnum

import numpy
import pytest

from anabranch.model.event import Event, EventId
from tests.event_parts import refused


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
        ([1], "must be a str, int, float or bool"),
        ({"b": 1}, "must be a str, int, float or bool"),
        (1j, "must be a str, int, float or bool"),
        (Event(), "must be a str, int, float or bool"),
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
        (numpy.array([1]), ".item()"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_a_hint(value: object, hint: str) -> None:
    complaint = refused({"good": 1, "bad": value})
    assert "'bad'" in complaint
    assert hint in complaint
