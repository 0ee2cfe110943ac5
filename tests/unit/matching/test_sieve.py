"""A sieve answers as the filter does, or says that it cannot."""

from random import Random

import msgspec
import numpy as np
import pytest

from anabranch.matching.engine import numba_is_here
from anabranch.model.event import Value
from anabranch.model.filter import Filter

pytestmark = pytest.mark.skipif(not numba_is_here(), reason="a sieve needs numba")

pack = msgspec.msgpack.encode


def sifted(text: str, maps: list[bytes]) -> list[int]:
    from anabranch.matching.sieve import Sieve

    messages = np.frombuffer(bytearray(b"".join(maps)), np.uint8)
    stops = np.cumsum([len(each) for each in maps])
    verdicts: list[int] = Sieve(Filter.parse(text)).sift(messages, stops).tolist()
    return verdicts


def events(count: int) -> list[dict[str, Value]]:
    draw = Random(3)
    names = ["price", "symbol", "halted", "名"]
    values: list[Value] = [1, -5, 2.5, True, "IBM", "é", "x" * 900, 2**62]
    return [
        {name: draw.choice(values) for name in draw.sample(names, draw.randrange(5))}
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "TRUE",
        "FALSE",
        "price > 2",
        "symbol = 'IBM' OR symbol LIKE 'x%'",
        "NOT halted AND price <> 1",
        "[名] IS NULL AND (price > 0 OR symbol = 'é')",
    ],
)
def test_verdicts_are_those_of_the_filter(text: str) -> None:
    given = events(3_000)
    expected = [Filter.parse(text).matches(each) for each in given]
    assert sifted(text, [pack(each) for each in given]) == expected


def test_conditions_of_a_rare_form_are_left_to_the_filter() -> None:
    given: list[dict[str, Value]] = [{"a": 1, "b": 5}, {"a": 1}, {"c": 1}]
    verdicts = sifted("a + b > 3 OR c = 1", [pack(each) for each in given])
    assert verdicts[0] == -1
    assert verdicts[2] == 1


def test_values_that_cannot_be_read_leave_the_others_as_they_are() -> None:
    odd = b"\x81\xa1a\xca\x3f\x80\0\0"
    twice = b"\x82\xa1a\1\xa1a\1"
    given = [pack({"a": 1}), odd, pack({"a": 0}), twice, odd, pack({"a": 1}), odd]
    assert sifted("a = 1", given) == [1, -1, 0, -1, -1, 1, -1]


def test_a_text_longer_than_any_before_is_read() -> None:
    given = [pack({"a": "x" * size}) for size in (10, 100_000, 10)]
    assert sifted("a LIKE '%x' AND a LIKE 'x%'", given) == [1, 1, 1]
