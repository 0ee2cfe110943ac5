"""Workloads: the same everywhere, drawn as promised, valid filters, and right about themselves."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from anabranch import Filter
from evaluation.workloads import (
    ATTRIBUTES,
    CATEGORIES,
    CHUNK_FILTERS,
    DOMAIN,
    LEVELS,
    SYMBOLS,
    WIDE,
    WIDE_PRESENT,
    WORKLOAD_NAMES,
    interval_workload,
    workload,
    zipf_shares,
)

every_workload = pytest.mark.parametrize("name", WORKLOAD_NAMES)


def texts_of(name: str, count: int, seed: int = 1) -> list[str]:
    return list(workload(name, seed).filter_texts(0, count))


def predicate_counts(name: str) -> Counter[int]:
    columns = interval_workload(name, 1).columns(0)
    return Counter(np.diff(columns.conjunctions).tolist())


def interval_shares(name: str) -> npt.NDArray[np.float64]:
    chosen = interval_workload(name, 1)
    columns = chosen.columns(0)
    categories = np.array([attribute.categories for attribute in chosen.schema.attributes])
    numeric = categories[columns.attribute] == 0
    shares: npt.NDArray[np.float64] = (columns.high - columns.low + 1)[numeric] / DOMAIN
    return shares


@every_workload
def test_same_seed_gives_the_same_filters_and_events(name: str) -> None:
    assert texts_of(name, 300) == texts_of(name, 300)
    assert workload(name, 1).events(20) == workload(name, 1).events(20)


@pytest.mark.slow
@every_workload
def test_another_seed_gives_other_filters_and_events(name: str) -> None:
    assert texts_of(name, 300, seed=1) != texts_of(name, 300, seed=2)
    assert workload(name, 1).events(20) != workload(name, 2).events(20)


@pytest.mark.slow
@every_workload
def test_a_window_is_a_part_of_the_whole(name: str) -> None:
    chosen = workload(name, 1)
    whole = list(chosen.filter_texts(0, CHUNK_FILTERS + 50))
    assert len(whole) == CHUNK_FILTERS + 50
    start, stop = CHUNK_FILTERS - 5, CHUNK_FILTERS + 5
    assert list(chosen.filter_texts(start, stop)) == whole[start:stop]


@every_workload
def test_answers_about_a_window_are_those_about_the_whole_that_lie_in_it(name: str) -> None:
    chosen = workload(name, 1)
    events = chosen.events(10)
    whole = chosen.matching(events, 0, CHUNK_FILTERS + 50)
    start, stop = 100, CHUNK_FILTERS + 20
    assert chosen.matching(events, start, stop) == [
        [number for number in answer if start <= number < stop] for answer in whole
    ]
    assert any(whole)


@pytest.mark.parametrize("name", [name for name in WORKLOAD_NAMES if name != "nested"])
def test_nearly_all_texts_are_distinct(name: str) -> None:
    texts = texts_of(name, 5_000)
    assert len(set(texts)) > 0.98 * len(texts)


@every_workload
def test_canonical_text_of_every_filter_parses_back_to_it(name: str) -> None:
    for text in texts_of(name, 200):
        parsed = Filter.parse(text)
        assert Filter.parse(str(parsed)) == parsed


@pytest.mark.slow
@every_workload
def test_workload_and_filter_agree_about_what_matches(name: str) -> None:
    chosen = workload(name, 1)
    events = chosen.events(300)
    filters = [Filter.parse(text) for text in chosen.filter_texts(0, 300)]
    found = [
        [number for number, each in enumerate(filters) if each.matches(event)] for event in events
    ]
    assert found == chosen.matching(events, 0, 300)
    assert any(found)


def test_stock_symbols_are_as_popular_as_their_rank_says() -> None:
    texts = texts_of("stock", CHUNK_FILTERS)
    first = sum(text.startswith("symbol = 'S0000'") for text in texts) / len(texts)
    assert first == pytest.approx(zipf_shares(SYMBOLS)[0], rel=0.15)
    events = workload("stock", 1).events(5_000)
    published = sum(event["symbol"] == "S0000" for event in events) / len(events)
    assert published == pytest.approx(zipf_shares(SYMBOLS)[0], rel=0.2)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("stock", {2, 3, 4, 5}),
        ("mixed", {2, 3, 4, 5, 6}),
        ("ranges", {3, 4, 5}),
        ("nested", {1, 2, 3, 4}),
        ("dnf", {2, 3, 4, 5, 6}),
        ("wide", {2, 3, 4, 5, 6}),
    ],
)
def test_conjunctions_have_the_promised_sizes(name: str, sizes: set[int]) -> None:
    assert set(predicate_counts(name)) == sizes


@pytest.mark.parametrize("name", ["stock", "mixed", "ranges", "dnf", "wide"])
def test_sizes_are_equally_likely(name: str) -> None:
    counts = predicate_counts(name)
    even = sum(counts.values()) / len(counts)
    assert all(count == pytest.approx(even, rel=0.1) for count in counts.values())


@pytest.mark.parametrize(
    ("name", "narrowest", "widest"),
    [("stock", 0.02, 0.4), ("mixed", 0.02, 0.18), ("ranges", 0.05, 0.35), ("wide", 0.02, 0.18)],
)
def test_intervals_hold_the_promised_share(name: str, narrowest: float, widest: float) -> None:
    shares = interval_shares(name)
    assert shares.min() >= narrowest - 1e-6
    assert shares.max() <= widest + 1e-6
    assert shares.mean() == pytest.approx((narrowest + widest) / 2, rel=0.02)


def test_nested_widths_are_even_on_a_logarithmic_scale() -> None:
    exponents = np.log10(interval_shares("nested"))
    assert exponents.mean() == pytest.approx(-1.25, abs=0.03)
    assert exponents.std() == pytest.approx(2.5 / 12**0.5, rel=0.03)


@pytest.mark.parametrize("name", ["stock", "mixed", "wide"])
def test_a_third_of_the_intervals_is_of_each_kind(name: str) -> None:
    words = Counter(re.findall(r"<=|>=|BETWEEN", " ".join(texts_of(name, CHUNK_FILTERS))))
    third = words.total() / 3
    assert set(words) == {"<=", ">=", "BETWEEN"}
    assert all(count == pytest.approx(third, rel=0.1) for count in words.values())


@pytest.mark.parametrize("name", ["stock", "mixed", "ranges", "nested", "dnf", "wide"])
def test_no_conjunction_asks_twice_about_an_attribute(name: str) -> None:
    columns = interval_workload(name, 1).columns(0)
    for start, end in pairwise(columns.conjunctions.tolist()):
        assert len(set(columns.attribute[start:end].tolist())) == end - start


def test_mixed_uses_its_attributes_evenly() -> None:
    columns = interval_workload("mixed", 1).columns(0)
    counts = np.bincount(columns.attribute, minlength=20)
    assert counts.min() > 0.9 * counts.mean()
    categorical = columns.attribute < 10
    assert columns.low[categorical].max() == CATEGORIES - 1


def test_dnf_has_two_to_six_disjuncts() -> None:
    texts = texts_of("dnf", 500)
    assert {text.count(" OR ") + 1 for text in texts} == {2, 3, 4, 5, 6}


def test_wide_events_carry_twenty_attributes_the_popular_ones_most() -> None:
    events = workload("wide", 1).events(500)
    assert {len(event) for event in events} == {WIDE_PRESENT}
    carried = Counter(name for event in events for name in event)
    assert carried[WIDE.attributes[0].name] > 4 * carried[WIDE.attributes[100].name] > 0


def test_wide_filters_ask_for_popular_attributes_most() -> None:
    columns = interval_workload("wide", 1).columns(0)
    counts = np.bincount(columns.attribute, minlength=200)
    assert counts[0] > 10 * counts[100] > 0


def test_text_asks_in_every_way() -> None:
    texts = " ".join(texts_of("text", 500))
    patterns = [r"LIKE '[^%']+%'", r"LIKE '%[^%']+'", r"LIKE '%[^%']+%'", r"IN \(", "<> '", "= '"]
    assert all(len(re.findall(pattern, texts)) > 20 for pattern in patterns)


def test_text_events_carry_every_attribute_as_a_string() -> None:
    for event in workload("text", 1).events(50):
        assert set(event) == set(ATTRIBUTES)
        assert event["level"] in LEVELS
        assert all(isinstance(value, str) for value in event.values())


@pytest.mark.parametrize("name", ["text", "dnf"])
def test_share_of_matches_is_of_the_order_of_mixed(name: str) -> None:
    def share(which: str) -> float:
        chosen = workload(which, 1)
        return float(
            np.mean([len(found) for found in chosen.matching(chosen.events(15), 0, 8_000)])
        )

    assert 0.3 < share(name) / share("mixed") < 6
