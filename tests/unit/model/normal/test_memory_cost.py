"""What a filter costs in memory: an estimate that grows with all that a broker holds of it."""

import pytest

from anabranch.model.filter import Filter
from anabranch.model.normal.memory_cost import FilterCost

#: A filter, and the kilobytes that each of many of its kind took of a broker's resident memory,
#: attributes that it shares with the others aside.
MEASURED = {
    "n = 7": 3.9,
    "symbol = 'S7' AND price > 7.5": 5.5,
    "a LIKE '%b7%c' AND d > 7": 12.7,
    "x * 7 > y": 9.2,
    "x > " + " + ".join(f"y{number % 5}" for number in range(80)): 86.6,
    f"x = '{'a' * 20_000}7'": 144.6,
    "x IN (" + ",".join(f"'7v{number}'" for number in range(1_000)) + ")": 1_366.7,
    "x IN (" + ",".join(f"{70_000 + 2 * number}" for number in range(1_000)) + ")": 325.1,
    " OR ".join(f"(x{n % 7} = {n} AND y > {n}.5 AND z <> '7q{n}')" for n in range(1_000)): 4_278.8,
    " OR ".join(f"(x + {number} > y * {number})" for number in range(500)): 2_837.0,
    "(" + " OR ".join(f"(a{n} = {n} AND a{n + 1} = 7)" for n in range(20)) + ") AND ("
    + " OR ".join(f"(b{n} = {n} AND b{n + 1} = 7)" for n in range(20)) + ") AND x <> 3": 775.4,
}  # fmt: skip


def cost(text: str) -> FilterCost:
    return Filter.parse(text).cost(text)


@pytest.mark.parametrize("text", MEASURED, ids=lambda text: text[:30])
def test_the_estimate_is_within_a_factor_of_two_of_what_was_measured(text: str) -> None:
    measured = MEASURED[text] * 1_024
    assert measured / 2 <= cost(text).bytes <= 2 * measured


def test_names_are_told_once_each() -> None:
    found = cost("a > 1 AND b > 2 OR b > 3 AND c = 4 OR a + d > 5")
    assert sorted(found.names) == ["a", "b", "c", "d"]


def test_a_residue_that_many_conjunctions_share_is_counted_once() -> None:
    shared = "x > " + " + ".join(f"y{number % 5}" for number in range(80))
    alone, many = cost(shared), cost(f"({shared}) AND (u = 1 OR v = 2 OR w = 3)")
    assert many.bytes < 2 * alone.bytes


def test_text_that_vanishes_from_the_normal_form_counts() -> None:
    assert cost(" OR ".join(["x = 1"] * 1_000)).bytes > 50 * 1_024
