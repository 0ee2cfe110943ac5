"""The virtual clock of an edge: starts, batches, propagations (Zhao 2006, examples 4.1 to 4.4)."""

import random

from anabranch.core.routing.interest_clock import InterestClock, Propagation
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.version import NOTHING, Version
from anabranch.sim.mutants.catalog import planted
from tests.routing_parts import DOMAIN
from tests.routing_turmoil import FILTERS


def clock(covering: bool = True) -> InterestClock:
    return InterestClock("x", 7, DEFAULT_LIMITS, covering)


def add(at: InterestClock, name: str, text: str) -> int:
    return at.add(name, Filter.parse(text)).counter


def step(at: InterestClock) -> Propagation:
    made = at.propagate()
    assert made is not None
    return made


def texts(made: Propagation) -> tuple[list[str], list[str]]:
    return [str(each) for each in made.plus], [str(each) for each in made.minus]


def test_first_propagation_of_a_life_has_counter_one_and_follows_nothing() -> None:
    made = step(clock())
    assert (made.version, made.before) == (Version(7, 1), NOTHING)


def test_subscription_starts_with_the_version_of_the_next_propagation() -> None:
    at = clock()
    assert add(at, "s1", "a = 1") == 1
    assert step(at).version.counter == 1
    assert add(at, "s2", "a = 2") == 2
    assert step(at).version.counter == 2


def test_equal_conjunction_starts_with_the_one_that_is_known() -> None:
    at = clock()
    add(at, "s1", "a = 1 AND b = 2")
    step(at)
    assert add(at, "s2", "b = 2 AND a = 1") == 1


def test_covered_conjunction_starts_with_its_earliest_direct_coverer() -> None:
    at = clock()
    add(at, "s1", "a >= 1")
    step(at)
    add(at, "s2", "b >= 1")
    step(at)
    assert add(at, "s3", "a >= 2 AND b >= 2") == 1


def test_subscription_starts_with_the_last_of_its_conjunctions() -> None:
    at = clock()
    add(at, "s1", "stock = 'nyse/ibm'")
    step(at)
    text = "stock = 'nyse/ibm' AND p > 90 OR stock = 'nyse/t' AND p > 19 OR stock = 'nasdaq/msft'"
    assert add(at, "s2", text) == 2
    plus, minus = texts(step(at))
    assert len(plus) == 2
    assert minus == []


def test_filter_without_conjunctions_waits_for_nothing() -> None:
    assert clock().add("s", Filter.nothing()) == NOTHING


def test_covered_subscriptions_do_not_advance_the_clock() -> None:
    at = clock()
    add(at, "s1", "a >= 1")
    step(at)
    assert add(at, "s2", "a = 3") == 1
    assert at.propagate() is None
    at.remove("s2")
    assert at.propagate() is None
    assert at.current.counter == 2


def test_batch_advances_the_clock_once() -> None:
    at = clock()
    assert [add(at, f"s{i}", f"a = {i}") for i in range(3)] == [1, 1, 1]
    assert len(step(at).plus) == 3
    assert at.propagated == Version(7, 1)


def test_clock_is_settled_when_everything_is_told() -> None:
    at = clock()
    seen = [at.is_settled]
    step(at)
    seen.append(at.is_settled)
    add(at, "s1", "a = 1")
    seen.append(at.is_settled)
    step(at)
    at.remove("s1")
    seen.append(at.is_settled)
    at.propagate()
    seen.append(at.is_settled)
    assert seen == [False, True, False, False, True]


def test_what_is_added_and_removed_within_a_batch_is_not_told() -> None:
    at = clock()
    step(at)
    add(at, "s1", "a = 1")
    at.remove("s1")
    assert at.propagate() is None


def test_removed_root_uncovers_what_it_covered() -> None:
    at = clock()
    add(at, "wide", "a >= 1")
    add(at, "narrow", "a = 2")
    step(at)
    at.remove("wide")
    assert texts(step(at)) == (["a = 2"], ["a >= 1"])


def test_covered_root_is_not_taken_back() -> None:
    at = clock()
    add(at, "narrow", "a = 2")
    step(at)
    add(at, "wide", "a >= 1")
    assert texts(step(at)) == (["a >= 1"], [])
    assert [str(each) for each in at.roots()] == ["a >= 1"]


def test_what_is_removed_still_covers_until_it_is_told() -> None:
    at = clock()
    add(at, "wide", "a >= 1")
    step(at)
    at.remove("wide")
    assert add(at, "narrow", "a = 2") == 1
    assert texts(step(at)) == (["a = 2"], ["a >= 1"])


def test_same_interest_by_another_name_is_no_change() -> None:
    at = clock()
    add(at, "s1", "a = 1")
    step(at)
    at.remove("s1")
    assert add(at, "s2", "a = 1") == 1
    assert at.propagate() is None


def test_subscription_added_twice_replaces_itself() -> None:
    at = clock()
    add(at, "s", "a = 1")
    step(at)
    assert add(at, "s", "a = 2") == 2
    assert texts(step(at)) == (["a = 2"], ["a = 1"])
    assert list(at.subscriptions) == ["s"]


def test_without_covering_everything_is_told() -> None:
    at = clock(covering=False)
    add(at, "wide", "a >= 1")
    add(at, "narrow", "a = 2")
    assert len(step(at).plus) == 2
    at.remove("narrow")
    assert texts(step(at)) == ([], ["a = 2"])


@planted("vst-too-low")
def test_mutant_starts_subscriptions_a_version_early() -> None:
    at = clock()
    step(at)
    assert add(at, "s", "a = 1") == 1


def test_every_version_covers_what_it_contains_whatever_happens() -> None:
    chance = random.Random(5)
    at = clock()
    lasting: dict[str, tuple[Filter, Version]] = {}
    told: list[Conjunction] = []
    for number in range(400):
        if lasting and chance.random() < 0.45:
            name = chance.choice(list(lasting))
            at.remove(name)
            del lasting[name]
        else:
            text = chance.choice(FILTERS).format(x=chance.randrange(4), y=chance.randrange(4))
            filter = Filter.parse(text)
            lasting[f"s{number}"] = filter, at.add(f"s{number}", filter)
        if chance.random() < 0.4:
            at.propagate()
            told = [each.conjunction for each in at.roots()]
            for event in DOMAIN:
                is_wanted = any(filter.matches(event) for filter, _ in lasting.values())
                assert is_wanted == any(c.matches(event) for c in told)
        for filter, version in lasting.values():
            assert version <= at.current
            if version <= at.propagated:
                for event in (each for each in DOMAIN if filter.matches(each)):
                    assert any(c.matches(event) for c in told)


def test_subscription_that_the_dag_has_no_room_for_is_held_as_wanting_everything() -> None:
    at = InterestClock("x", 7, Limits(index_attributes_max=2), covering=True)
    at.add("s1", Filter.parse("a = 1 AND b = 2"))
    step(at)
    at.remove("s1")
    assert at.add("s2", Filter.parse("c = 1")).counter == 2
    made = step(at)
    plus, minus = texts(made)
    # Without numba the DAG knows no such limit, and there is room.
    assert (plus, minus) in ((["TRUE"], ["a = 1 AND b = 2"]), (["c = 1"], ["a = 1 AND b = 2"]))
    assert add(at, "s3", "c = 2") in (2, 3)
