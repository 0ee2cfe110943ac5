from itertools import product

from anabranch.check.coverage import Domain, uncovered
from anabranch.model.filter import Filter

DOMAIN = Domain({"a": a, "b": b} for a, b in product(range(4), "xy"))


def test_a_filter_is_covered_by_its_own_conjunctions() -> None:
    wanted = Filter.parse("a = 1 OR b = 'x' AND a > 2")
    assert uncovered(wanted, wanted.conjunctions, DOMAIN) is None


def test_a_filter_may_be_covered_by_several_conjunctions_together() -> None:
    narrow = [*Filter.parse("b = 'x'").conjunctions, *Filter.parse("b = 'y'").conjunctions]
    assert uncovered(Filter.parse("a < 3"), narrow, DOMAIN) is None


def test_the_first_event_that_is_not_let_through_is_named() -> None:
    wanted = Filter.parse("a >= 1")
    assert uncovered(wanted, Filter.parse("a >= 2").conjunctions, DOMAIN) == {"a": 1, "b": "x"}
    assert uncovered(wanted, Filter.parse("b = 'x'").conjunctions, DOMAIN) == {"a": 1, "b": "y"}


def test_no_conjunction_lets_nothing_through() -> None:
    assert uncovered(Filter.parse("a = 3"), (), DOMAIN) == {"a": 3, "b": "x"}


def test_a_filter_that_matches_nothing_needs_nothing() -> None:
    assert uncovered(Filter.nothing(), (), DOMAIN) is None


def test_answers_do_not_depend_on_what_was_asked_before() -> None:
    wanted = Filter.parse("a = 3")
    wide = Filter.parse("a > 0").conjunctions
    for _ in range(2):
        assert uncovered(wanted, wide, DOMAIN) is None
        assert uncovered(wanted, (), DOMAIN) == {"a": 3, "b": "x"}
