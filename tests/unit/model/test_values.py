"""The neighbours on the number line and the ends of prefixes."""

import itertools
import math

import pytest

from anabranch.model.event import (
    INFINITY,
    INT_MAX,
    INT_MIN,
    number_after,
    number_before,
    prefix_end,
    text_after,
)

LARGEST = 1.7976931348623157e308
TINY = 5e-324

#: Neighbours on the line of all 64-bit integers and floats, ascending in each row.
NEIGHBOURS = [
    (-INFINITY, -LARGEST),
    (-(2.0**63) - 2048, INT_MIN, INT_MIN + 1),
    (-(2.0**63) - 2048, -(2.0**63), INT_MIN + 1),
    (-(2**53) - 2, -(2**53) - 1, -(2**53), -(2**53) + 1, -(2**53) + 2),
    (-(2**53) + 1, -(2.0**53) + 2),
    (-(2**52) - 1, -(2**52), -(2**52) + 0.5),
    (-1.0000000000000002, -1, -0.9999999999999999),
    (-2 * TINY, -TINY, 0, TINY, 2 * TINY),
    (-TINY, -0.0, TINY),
    (0.9999999999999999, 1, 1.0000000000000002),
    (0.9999999999999999, 1.0, 1.0000000000000002),
    (2**52 - 0.5, 2**52, 2**52 + 1),
    (2**53 - 2, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2),
    (2.0**53, 2**53 + 1, 2.0**53 + 2, 2**53 + 3),
    (2**62 - 1, 2.0**62, 2**62 + 1),
    (INT_MAX - 1, INT_MAX, 2.0**63, 2.0**63 + 2048),
    (1e308, math.nextafter(1e308, INFINITY)),
    (LARGEST, INFINITY),
]
PAIRS = [pair for row in NEIGHBOURS for pair in itertools.pairwise(row)]


@pytest.mark.parametrize(("low", "high"), PAIRS)
def test_number_after_is_the_next_integer_or_float(low: float, high: float) -> None:
    assert number_after(low) == high


@pytest.mark.parametrize(("low", "high"), PAIRS)
def test_number_before_is_the_previous_integer_or_float(low: float, high: float) -> None:
    assert number_before(high) == low


def test_an_integer_and_the_float_of_its_value_have_the_same_neighbours() -> None:
    for exponent in range(64):
        power = 2**exponent
        for number in (power, -power):
            if INT_MIN <= number <= INT_MAX:
                assert number_after(number) == number_after(float(number))
                assert number_before(number) == number_before(float(number))


def test_a_neighbour_is_itself_on_the_line() -> None:
    for number in (2**53, INT_MAX, INT_MIN, -(2**53), 2.0**63, -(2.0**63)):
        for neighbour in (number_after(number), number_before(number)):
            assert isinstance(neighbour, float) or INT_MIN <= neighbour <= INT_MAX


def test_neighbours_never_are_minus_zero() -> None:
    assert math.copysign(1, number_after(-TINY)) == 1
    assert math.copysign(1, number_before(TINY)) == 1


def test_the_infinities_have_no_outer_neighbour() -> None:
    with pytest.raises(AssertionError):
        number_after(INFINITY)
    with pytest.raises(AssertionError):
        number_before(-INFINITY)


def test_nothing_lies_between_a_text_and_the_text_after_it() -> None:
    assert text_after("") == "\0"
    for text in ("", "ab", "é", "ab\0", "\U0010ffff"):
        # Whatever is greater starts with `text` and one more character, or is greater before that.
        assert text_after(text) == min(text + chr(point) for point in range(0x80))


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        ("a", "b"),
        ("ab", "ac"),
        ("az", "a{"),
        ("\0", "\1"),
        ("a\x7f", "a\x80"),
        ("ÿ", "Ā"),
        ("x\uffff", "x\U00010000"),
        ("x\ud7ff", "x\ue000"),
        ("a\U0010ffff", "b"),
        ("a\U0010ffff\U0010ffff", "b"),
        ("\ud7ff\U0010ffff", "\ue000"),
    ],
)
def test_prefix_end_is_the_next_text_that_does_not_start_so(prefix: str, end: str) -> None:
    assert prefix_end(prefix) == end
    assert prefix <= prefix + "\U0010ffff" * 3 < end
    assert not end.startswith(prefix)


@pytest.mark.parametrize("prefix", ["", "\U0010ffff", "\U0010ffff\U0010ffff"])
def test_a_prefix_of_last_characters_has_no_end(prefix: str) -> None:
    assert prefix_end(prefix) is None


def test_prefix_end_is_valid_text_in_every_place() -> None:
    for point in (0, 0x7F, 0xD7FE, 0xD7FF, 0xE000, 0xFFFF, 0x10FFFE):
        end = prefix_end(chr(point))
        assert end is not None
        assert end.encode().decode() == end
        assert chr(point).encode() < end.encode()
