"""How many matches a pattern will have: against counts over random histories, and at the ends."""

from math import inf
from random import Random

import pytest

from anabranch.check.reference import reference_matches
from anabranch.core.patterns.join_points.placement_cost import matches_per_s, part_rates, rate_of
from anabranch.model.filter import Filter
from anabranch.model.pattern.match import PlacedEvent
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.statistics import (
    AttributeStatistics,
    NumberStatistics,
    Pair,
    StreamStatistics,
    TextStatistics,
    text_key,
)

RATES = {"a": 2.0, "b": 3.0, "c": 1.0}
SYMBOLS = TextStatistics(
    count=1000,
    distinct=4,
    rank_error=0.0,
    bounds=(text_key("A"), text_key("D")),
    top=(("A", 250), ("B", 250), ("C", 250), ("D", 250)),
)
PRICES = NumberStatistics(count=1000, distinct=100, rank_error=0.0, bounds=(0.0, 50.0, 100.0))
STREAM = StreamStatistics(
    stream="e1",
    events=1000,
    rate_per_s=40.0,
    attributes={
        "symbol": AttributeStatistics(texts=SYMBOLS),
        "price": AttributeStatistics(numbers=PRICES),
    },
    pairs=(Pair("price", "symbol", 1000),),
    paired=("price", "symbol"),
)


def guess(text: str) -> float:
    return matches_per_s(Pattern.parse(text), RATES)


def test_a_part_gets_its_share_of_the_rate() -> None:
    filter = Filter.parse("symbol = 'A' AND price < 50")
    assert rate_of([STREAM], filter) == pytest.approx(5.0, rel=0.1)
    unrated = StreamStatistics(stream="e2", events=5)
    assert rate_of([unrated], filter) is None
    assert rate_of([], filter) is None
    pattern = Pattern.parse("p:{symbol = 'A'} AND q:{price < 25} WITHIN 1 s")
    assert part_rates(pattern, [STREAM]) == pytest.approx({"p": 10.0, "q": 10.0}, rel=0.1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:{x = 1} WITHIN 1 s", 2.0),
        ("a:{x = 1} OR b:{x = 2} WITHIN 1 s", 5.0),
        ("a:{x = 1} AND b:{x = 2} WITHIN 1 s", 12.0),
        ("a:{x = 1} THEN b:{x = 2} WITHIN 2 s", 12.0),
        ("a:{x = 1} THEN b:{x = 2} THEN c:{x = 3} WITHIN 2 s", 12.0),
        ("3 TIMES a:{x = 1} WITHIN 1 s", 4.0),
        ("a:{x = 1} AND b:{x = 2} WHERE a.s = b.s WITHIN 1 s", 1.2),
        ("3 TIMES a:{x = 1} WHERE a.s = a.s WITHIN 1 s", 0.04),
    ],
)
def test_matches_are_what_combinations_there_are(text: str, expected: float) -> None:
    assert guess(text) == pytest.approx(expected)


def test_one_match_at_most_is_reported_for_an_event_that_ends_some() -> None:
    many = "a:{x = 1} THEN b:{x = 2} WITHIN 1 h"
    assert guess(many) > 10_000
    assert guess(f"{many} FIRST") == pytest.approx(3.0)
    assert guess("a:{x = 1} AND b:{x = 2} WITHIN 1 ms LAST") == pytest.approx(0.012, rel=0.01)


def test_joins_are_as_selective_as_statistics_say() -> None:
    pattern = Pattern.parse("a:{x = 1} AND b:{x = 2} WHERE a.symbol = b.symbol WITHIN 1 s")
    assert matches_per_s(pattern, RATES, [STREAM]) == pytest.approx(12.0 / 4)


def test_overlaps_are_worked_out_for_few_conjunctions_only() -> None:
    # Each has a quarter of all events, and they have none in common.
    few = Filter.parse("symbol = 'A' AND price >= 0 OR symbol = 'B' AND price >= 1")
    assert rate_of([STREAM], few) == pytest.approx(20.0, rel=0.02)
    many = Filter.parse(
        " OR ".join(f"symbol = '{s}' AND price >= {n}" for n, s in enumerate("ABCD"))
    )
    assert rate_of([STREAM], many) == pytest.approx(40 * (1 - 0.75**4), rel=0.05)


def test_no_guess_is_infinite() -> None:
    huge = Pattern.parse("64 TIMES a:{x = 1} WITHIN 24 h")
    assert 0 < matches_per_s(huge, {"a": 1e6}) < inf
    silent = Pattern.parse("a:{x = 1} THEN NOT b:{x = 2} WITHIN 24 h")
    assert matches_per_s(silent, {"a": 1.0, "b": 1e9}) == pytest.approx(0.0)


def test_a_repeated_part_that_is_tied_by_many_values_is_guessed_to_be_rare() -> None:
    users = TextStatistics(count=10**7, distinct=10**6, rank_error=0.0, bounds=(0, 1))
    known = StreamStatistics(
        stream="e1", events=10**7, attributes={"user": AttributeStatistics(texts=users)}
    )
    pattern = Pattern.parse("128 TIMES a:{x = 1} WHERE a.user = a.user WITHIN 1 h LAST")
    assert matches_per_s(pattern, {"a": 100.0}, [known]) == pytest.approx(0.0)


@pytest.mark.parametrize(
    "text",
    [
        "a:{x = 1} AND b:{x = 2} WITHIN 500 ms",
        "a:{x = 1} THEN b:{x = 2} WITHIN 500 ms LAST",
        "a:{x = 1} THEN NOT b:{x = 2} WITHIN 300 ms",
        "2 TIMES a:{x = 1} WITHIN 500 ms",
    ],
)
def test_guesses_are_near_what_random_histories_have(text: str) -> None:
    rng, seconds = Random(1), 40
    values = [1] * 2 * seconds + [2] * 3 * seconds
    events = [(rng.randrange(seconds * 10**9), value) for value in values]
    placed = [
        PlacedEvent("e1", tick, at, {"x": value})
        for tick, (at, value) in enumerate(sorted(events), 1)
    ]
    pattern = Pattern.parse(text)
    counted = len(reference_matches(pattern, placed)) / seconds
    assert guess(text) == pytest.approx(counted, rel=0.35)
