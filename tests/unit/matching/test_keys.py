"""Keys: 64-bit integers that sort as the numbers and texts they stand for."""

from itertools import pairwise

import pytest
from hypothesis import given

from anabranch.matching.keys import (
    TEXT_EXACT_BYTES,
    is_float,
    key_and_rest,
    key_of_float,
    key_of_text,
)
from anabranch.model.event import INFINITY, INT_MAX, INT_MIN, Number, number_after
from tests.filter_parts import any_text, finite_floats, integers

numbers = integers | finite_floats


@given(numbers, numbers)
def test_keys_and_rests_sort_as_their_numbers(left: Number, right: Number) -> None:
    assert (key_and_rest(left) < key_and_rest(right)) is (left < right)
    assert (key_and_rest(left) == key_and_rest(right)) is (left == right)


@given(numbers)
def test_neighbours_have_neighbouring_places(number: Number) -> None:
    assert key_and_rest(number) < key_and_rest(number_after(number))


@given(numbers)
def test_rest_is_nothing_exactly_for_floats(number: Number) -> None:
    key, rest = key_and_rest(number)
    assert INT_MIN <= key <= INT_MAX
    assert rest >= 0
    assert is_float(number) is (rest == 0)
    assert is_float(number) is (float(number) == number)


def test_infinities_are_the_outermost_keys() -> None:
    ends = [-INFINITY, -1.7976931348623157e308, INT_MIN, -1, 0, 1, INT_MAX, 2.0**63, INFINITY]
    assert all(key_and_rest(low) < key_and_rest(high) for low, high in pairwise(ends))


def test_zero_has_one_key() -> None:
    assert key_of_float(-0.0) == key_of_float(0.0) == 0


@pytest.mark.parametrize(
    ("number", "exact"),
    [(2**53, True), (2**53 + 1, False), (2**53 + 2, True), (-(2**53) - 1, False), (2**62, True),
     (INT_MAX, False), (INT_MIN, True), (0.1, True)],
)  # fmt: skip
def test_integers_beyond_the_floats_are_told_apart(number: Number, exact: bool) -> None:
    assert is_float(number) is exact


@given(any_text, any_text)
def test_keys_sort_as_their_texts(left: str, right: str) -> None:
    if left < right:
        assert key_of_text(left) <= key_of_text(right)


@given(any_text, any_text)
def test_short_texts_share_no_key(left: str, right: str) -> None:
    if left != right and len(left.encode()) <= TEXT_EXACT_BYTES:
        assert key_of_text(left) != key_of_text(right)


@given(any_text)
def test_keys_of_texts_have_64_bits(text: str) -> None:
    assert INT_MIN <= key_of_text(text) <= INT_MAX


def test_texts_with_zeros_are_told_from_shorter_ones() -> None:
    texts = ["", "\0", "\0\0", "a", "a\0", "a\0\0", "ab"]
    assert sorted(texts, key=key_of_text) == texts
    assert len({key_of_text(text) for text in texts}) == len(texts)
