"""Selectivity from statistics: the truth lies in the interval, and the guess near it.

Statistics are made here from all events, exactly and in plain Python, so what is tested is the
estimate and not the sketches. The filters go over every form of the language.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from random import Random

import msgspec
import pytest

from anabranch.model.event import Value
from anabranch.model.filter import Filter
from anabranch.model.selectivity import Estimate, events_per_s, selectivity, together
from anabranch.model.statistics import (
    AttributeStatistics,
    NumberStatistics,
    Pair,
    StreamStatistics,
    TextStatistics,
    text_key,
)
from tests.crowd_parts import STYLES
from tests.matching_parts import VALUES

Attributes = dict[str, Value]
BUCKETS = 20
SLACK = 1e-9


def statistics_of(events: Sequence[Attributes], top_kept: int = 6) -> StreamStatistics:
    names = sorted({name for event in events for name in event})
    pairs = Counter(pair for event in events for pair in combinations(sorted(event), 2))
    return StreamStatistics(
        stream="s",
        events=len(events),
        rate_per_s=50.0,
        attributes={n: attribute_of([e[n] for e in events if n in e], top_kept) for n in names},
        pairs=tuple(Pair(one, other, count) for (one, other), count in pairs.items()),
        paired=tuple(names),
    )


def attribute_of(values: list[Value], top_kept: int) -> AttributeStatistics:
    truths = [value for value in values if isinstance(value, bool)]
    texts = [value for value in values if isinstance(value, str)]
    numbers = [float(v) for v in values if not isinstance(v, bool | str)]
    real = [number for number in numbers if not math.isnan(number)]
    whole, coded = shape(real, real, top_kept), shape(texts, map(text_key, texts), top_kept)
    return AttributeStatistics(
        numbers=msgspec.convert(whole, NumberStatistics) if real else None,
        texts=msgspec.convert(coded, TextStatistics) if texts else None,
        true=sum(truths),
        false=len(truths) - sum(truths),
        nan=len(numbers) - len(real),
    )


def shape(values: Sequence[object], places: Iterable[float], top_kept: int) -> dict[str, object]:
    ordered = sorted(places)
    if not ordered:
        return {}
    counts = Counter(values).most_common()
    ranks = (max(math.ceil(len(ordered) * i / BUCKETS), 1) - 1 for i in range(BUCKETS + 1))
    rest = counts[top_kept:]
    return {
        "count": len(values),
        "distinct": len(counts),
        "rank_error": 0.0,
        "bounds": tuple(ordered[rank] for rank in ranks),
        "top": tuple(counts[:top_kept]),
        "rest_max": rest[0][1] if rest else 0,
    }


def share_of(filter: Filter, events: Sequence[Attributes]) -> float:
    return sum(map(filter.matches, events)) / len(events)


def checked(text: str, events: Sequence[Attributes], known: StreamStatistics) -> Estimate:
    """The estimate, in the interval of which the truth is."""
    filter = Filter.parse(text)
    estimate, truth = selectivity(known, filter), share_of(filter, events)
    assert 0 <= estimate.low <= estimate.share <= estimate.high <= 1, text
    assert estimate.low - SLACK <= truth <= estimate.high + SLACK, (text, truth, estimate)
    return estimate


@pytest.mark.slow
@pytest.mark.parametrize("style", sorted(STYLES))
@pytest.mark.parametrize("top_kept", [0, 6, 1_000])
def test_truth_is_in_the_interval_for_every_style_of_filter(style: str, top_kept: int) -> None:
    draw = Random(4)
    events = [STYLES[style].publish(draw) for _ in range(250)]
    known = statistics_of(events, top_kept)
    widths = []
    for _ in range(60):
        estimate = checked(STYLES[style].write(draw), events, known)
        widths.append(estimate.high - estimate.low)
    assert min(widths) < 0.2


def test_truth_is_in_the_interval_for_every_value() -> None:
    draw = Random(8)
    events: list[Attributes] = [{"p": value, "q": draw.choice(VALUES)} for value in VALUES * 20]
    events += [{}] * 30
    known = statistics_of(events)
    forms = ["p = {}", "p < {}", "p >= {}", "p <> {}", "p IN ({}, 7)", "NOT p <= {} AND q = {}"]
    for value in VALUES:
        if isinstance(value, float) and not math.isfinite(value):
            continue
        literal = f"'{value}'" if isinstance(value, str) else str(value).upper()
        for form in forms:
            checked(form.format(literal, literal), events, known)
    for text in ("p IS NULL", "p IS NOT NULL", "p", "NOT p", "p = q", "TRUE", "FALSE"):
        checked(text, events, known)


@pytest.fixture(scope="module")
def quotes() -> list[Attributes]:
    draw = Random(2)
    symbols = [f"S{n}" for n in range(40)]
    events: list[Attributes] = []
    for _ in range(3_000):
        event: Attributes = {
            "symbol": draw.choices(symbols, [1 / (n + 1) for n in range(40)])[0],
            "price": draw.uniform(0, 100),
        }
        if draw.random() < 0.3:
            event |= {"bid": draw.uniform(0, 10), "ask": draw.uniform(0, 10)}
        events.append(event)
    return events


@pytest.mark.parametrize(
    ("text", "within"),
    [
        ("symbol = 'S0'", 0.0),
        ("symbol = 'S30'", 0.02),
        ("price < 25", 0.03),
        ("price BETWEEN 20 AND 40", 0.03),
        ("symbol = 'S0' AND price < 50", 0.03),
        ("symbol = 'S0' OR symbol = 'S1' OR price > 90", 0.03),
        ("bid > 5 AND ask > 5", 0.03),
        ("bid IS NULL", 0.0),
        ("symbol LIKE 'S1%'", 0.06),
        ("symbol LIKE '%0'", 0.06),
        ("symbol > 'S5'", 0.06),
    ],
)
def test_guess_is_near_the_truth_where_attributes_are_independent(
    quotes: list[Attributes], text: str, within: float
) -> None:
    estimate = checked(text, quotes, statistics_of(quotes))
    assert abs(estimate.share - share_of(Filter.parse(text), quotes)) <= within + SLACK


def test_attributes_that_occur_together_are_not_taken_as_independent(
    quotes: list[Attributes],
) -> None:
    known = statistics_of(quotes)
    filter = Filter.parse("bid >= 0 AND ask >= 0")
    assert selectivity(known, filter).share == pytest.approx(share_of(filter, quotes))
    unpaired = StreamStatistics(
        stream="s", events=known.events, attributes=known.attributes, paired=(), pairs=()
    )
    assert selectivity(unpaired, filter).share < 0.5 * share_of(filter, quotes)
    checked(str(filter), quotes, unpaired)


def test_attributes_that_exclude_each_other_never_match_together() -> None:
    events: list[Attributes] = [{"a": 1}, {"b": 1}] * 50
    assert checked("a = 1 AND b = 1", events, statistics_of(events)).high == 0.0


def test_dependent_values_are_outside_of_the_guess_but_not_of_the_interval() -> None:
    events: list[Attributes] = [{"a": n % 100, "b": n % 100} for n in range(2_000)]
    estimate = checked("a < 50 AND b < 50", events, statistics_of(events))
    assert estimate.share == pytest.approx(0.25, abs=0.05)
    assert estimate.high >= 0.5


def test_nothing_is_known_of_no_events_and_of_no_attributes() -> None:
    assert selectivity(statistics_of([]), Filter.parse("a = 1")) == (0, 0, 0)
    known = statistics_of([{"a": 1}])
    assert selectivity(known, Filter.parse("b = 1")) == (0, 0, 0)
    assert selectivity(known, Filter.parse("b IS NULL")) == (1, 1, 1)
    assert selectivity(known, Filter.parse("a = 1 AND a = 2")) == (0, 0, 0)


def test_rates_and_shares_of_streams_add_up() -> None:
    one, other = statistics_of([{"a": 1}] * 10), statistics_of([{"a": 2}] * 30)
    filter = Filter.parse("a = 1")
    assert events_per_s([one, other], filter) == 50
    unrated = msgspec.structs.replace(other, rate_per_s=None)
    assert events_per_s([one, unrated], filter) == 50
    assert events_per_s([unrated], filter) is None
    parts = [(each.events, selectivity(each, filter)) for each in (one, other)]
    assert together(parts) == pytest.approx((0.25, 0.25, 0.25))
    assert together([]) == (0, 0, 0)
