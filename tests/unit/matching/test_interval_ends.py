"""Exactness at the ends of intervals: the value beside a bound is decided rightly, on both sides.

The engines compare 64-bit keys made from floats; integers beyond 2**53 have a rest beside their
key, texts beyond seven bytes share theirs. Each bound is tried with itself and its neighbours, in
a small index (runs) and in the middle of a crowd (blocks, where cells decide).
"""

import math
from itertools import product

import pytest

from anabranch.matching.engine import EngineName
from anabranch.model.event import INT_MAX, INT_MIN, Number, Value, number_after, number_before
from tests.matching_parts import Attributes, Watched, literal_text

NUMBERS: list[Number] = [
    0,
    -0.0,
    5e-324,
    -5e-324,
    1,
    0.1,
    -1.5,
    1e300,
    -1e300,
    1.7976931348623157e308,
    2**53 - 1,
    2**53,
    2**53 + 1,
    2.0**53 + 2,
    -(2**53),
    -(2**53) - 1,
    2**62 + 1,
    2.0**62,
    INT_MAX,
    INT_MAX - 1,
    INT_MAX - 1023,
    2.0**63,
    INT_MIN,
    INT_MIN + 1,
    -(2.0**63),
    -(2.0**63) * 1.5,
]
TEXTS = [
    "", "\0", "a", "a\0", "b", "abcdef", "abcdefg", "abcdefg\0", "abcdefgh", "abcdefghi",
    "abcdefgi", "é", "ééé", "éééa", "ééééé", "日本語", "\U0010ffff", "\ud7ff", "\ue000",
]  # fmt: skip
ORDERS = ["=", "<>", "<", "<=", ">", ">="]


def beside(number: Number) -> list[Number]:
    """A number, its neighbours, and the same in the other type where there is one."""
    found = [number, number_after(number), number_before(number)]
    for each in list(found):
        if isinstance(each, int):
            found.append(float(each))
        elif INT_MIN <= each <= INT_MAX and each == int(each):
            found.append(int(each))
    return found


def all_numbers() -> list[Value]:
    near = [value for number in NUMBERS for value in beside(number)]
    distinct = {(type(value), repr(value)): value for value in near}
    return [*distinct.values(), math.inf, -math.inf, math.nan, True, False, "1", ""]


def events_of(values: list[Value]) -> list[Attributes]:
    return [*({"x": value} for value in values), {}, {"y": 1}]


def crowded(watched: Watched) -> None:
    """Enough other filters on the attribute that its entries stand in blocks."""
    for number in range(700):
        watched.add(("crowd", number), f"x BETWEEN {number - 350} AND {2 * number}")
        watched.add(("texts", number), f"x >= 'k{number % 90}' AND x < 'l{number}'")


@pytest.mark.parametrize("is_crowded", [False, True])
def test_numbers_beside_a_bound_are_decided_rightly(engine: EngineName, is_crowded: bool) -> None:
    watched = Watched([engine])
    if is_crowded:
        crowded(watched)
    for number in NUMBERS:
        for order in ORDERS:
            watched.add((repr(number), order), f"x {order} {literal_text(number)}")
    assert watched.check(events_of(all_numbers()))


def test_numbers_beside_both_bounds_are_decided_rightly(engine: EngineName) -> None:
    watched = Watched([engine])
    ordered = sorted(NUMBERS)
    for i, low in enumerate(ordered):
        for high in ordered[i : i + 6]:
            text = f"x BETWEEN {literal_text(low)} AND {literal_text(high)}"
            watched.add((repr(low), repr(high)), text)
            watched.add((repr(low), repr(high), "not"), f"NOT ({text})")
    assert watched.check(events_of(all_numbers()))


def test_numbers_in_lists_are_decided_rightly(engine: EngineName) -> None:
    watched = Watched([engine])
    for i in range(len(NUMBERS) - 3):
        items = ", ".join(map(literal_text, NUMBERS[i : i + 4]))
        watched.add(i, f"x IN ({items})")
        watched.add(-1 - i, f"x NOT IN ({items})")
    assert watched.check(events_of(all_numbers()))


def test_lists_longer_than_a_record_takes_are_decided_rightly(engine: EngineName) -> None:
    watched = Watched([engine])
    watched.add("numbers", f"x IN ({', '.join(str(3 * n) for n in range(60))})")
    watched.add("all but", f"x NOT IN ({', '.join(str(3 * n) for n in range(60))})")
    ranges = " OR ".join(f"x BETWEEN 'k{n:02}' AND 'k{n:02}zz'" for n in range(0, 99, 2))
    watched.add("texts", f"({ranges}) AND y IS NULL")
    watched.add("words", f"x IN ({', '.join(repr(f'w{n}') for n in range(500))})")
    values: list[Value] = [*range(-1, 182), *(f"k{n:02}z" for n in range(99)), "w7", "w500"]
    assert watched.check(events_of(values))


@pytest.mark.parametrize("is_crowded", [False, True])
def test_texts_beside_a_bound_are_decided_rightly(engine: EngineName, is_crowded: bool) -> None:
    watched = Watched([engine])
    if is_crowded:
        crowded(watched)
    for text in TEXTS:
        for order in ORDERS:
            watched.add((text, order), f"x {order} {literal_text(text)}")
        watched.add((text, "prefix"), f"x LIKE {literal_text(text)[:-1]}%'")
        watched.add((text, "suffix"), f"x LIKE '%{literal_text(text)[1:]}")
        watched.add((text, "inside"), f"x LIKE '%{literal_text(text)[1:-1]}%'")
    near = [text + more for text in TEXTS for more in ("", "\0", "a", "zz", "\U0010ffff")]
    longer = ["z" + text for text in TEXTS]
    assert watched.check(events_of([*near, *longer, 1, True, math.nan]))


def test_zero_has_one_place_whatever_its_sign(engine: EngineName) -> None:
    watched = Watched([engine])
    for zero in ("0", "0.0", "-0.0"):
        for order in ORDERS:
            watched.add((zero, order), f"x {order} {zero}")
    assert watched.check([{"x": 0}, {"x": 0.0}, {"x": -0.0}, {"x": 5e-324}, {"x": -5e-324}])


def test_infinity_is_beyond_every_bound(engine: EngineName) -> None:
    watched = Watched([engine])
    watched.add("up", "x > 1.7976931348623157e308")
    watched.add("down", "x < -1.7976931348623157e308")
    watched.add("integers", f"x > {INT_MAX} OR x < {INT_MIN}")
    assert watched.check([{"x": math.inf}, {"x": -math.inf}, {"x": 2.0**63}, {"x": INT_MAX}]) == 5


def test_numbers_meet_integers_and_floats_on_several_attributes(engine: EngineName) -> None:
    watched = Watched([engine])
    edges = [2**53, 2**53 + 1, 2.0**53, INT_MAX, 2.0**63, INT_MIN]
    for left in edges:
        for right in edges:
            text = f"x >= {literal_text(left)} AND y <= {literal_text(right)} AND s = 'k'"
            watched.add((repr(left), repr(right)), text)
    values = [value for edge in edges for value in beside(edge)]
    pairs = product(values[::2], values[::3])
    assert watched.check([{"x": left, "y": right, "s": "k"} for left, right in pairs])
