"""Comparing interest with advertisements: a bounded amount at a time, and exact in the end."""

import random
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from anabranch.core.routing.mesh import advertisements
from anabranch.core.routing.mesh.advertisements import (
    OVERRUN_MAX,
    RESIDUE_COMPARISONS,
    AdvertisedConjunction,
    AdvertisementComparison,
    ComparisonBudget,
)
from anabranch.core.routing.mesh.bindings import REVIEW_AFTER_S, REVIEW_MAX
from anabranch.model.filter import Filter
from anabranch.model.normal.conjunction import Conjunction, any_intersects, intersects
from tests.mesh_parts import QUICK, Mesh, pairs

PAIR = pairs("ab")


def ranges(count: int) -> dict[str, str]:
    """Subscriptions that do not meet each other, and none that asks for one value."""
    return {f"s{n}": f"price > {10 * n} AND price < {10 * n + 5}" for n in range(count)}


def conjunctions(*texts: str) -> list[Conjunction]:
    return [conjunction for text in texts for conjunction in Filter.parse(text).conjunctions]


class Tries:
    """Counts comparisons that are really made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(advertisements, "intersects", self)

    def __call__(self, ours: Conjunction, other: Conjunction) -> bool:
        self.count += 1
        return intersects(ours, other)

    def taken(self) -> int:
        count, self.count = self.count, 0
        return count


def test_what_there_was_no_time_to_compare_is_wanted_first_and_taken_back_later() -> None:
    mesh = Mesh(PAIR, replace(QUICK, comparisons_max=100))
    mesh.advertise("a", "price < 100")
    mesh.run()
    mesh.subscribe("b", **ranges(1_000))
    mesh.run(REVIEW_AFTER_S / 2)
    assert len(mesh.bound("a", "b")) > 900
    mesh.run()
    assert len(mesh.bound("a", "b")) == 10
    assert mesh.routers["b"].counters.comparisons_put_off > 900
    bindings = mesh.routers["b"].bindings
    assert bindings is not None
    assert bindings.is_settled()


def test_what_is_told_again_is_the_same_and_what_is_too_much_of_it_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The repetition is due just when all is compared, and not yet taken back."""
    options = replace(QUICK, comparisons_max=100, lag_after_s=REVIEW_AFTER_S)
    mesh = Mesh(PAIR, replace(options, interest_after_s=0.01))
    mesh.advertise("a", "price < 100")
    mesh.run()
    bindings = mesh.routers["b"].bindings
    assert bindings is not None
    with monkeypatch.context() as lost:
        lost.setattr(bindings, "acknowledged", lambda *_: None)
        mesh.subscribe("b", **ranges(1_000))
        mesh.run(3 * REVIEW_AFTER_S)
    mesh.run()
    assert len(mesh.bound("a", "b")) == 10


def test_an_edition_that_leaves_too_much_to_compare_is_answered_at_once_and_exact_later() -> None:
    mesh = Mesh(PAIR, replace(QUICK, comparisons_max=100))
    mesh.subscribe("b", **ranges(1_000))
    mesh.run()
    mesh.advertise("a", "price < 100")
    mesh.run(REVIEW_AFTER_S / 2)
    router = mesh.routers["a"]
    assert router.origin_interest.known("b")[1] == router.advertisements.edition
    assert len(mesh.bound("a", "b")) > 900
    mesh.run()
    assert len(mesh.bound("a", "b")) == 10


def test_a_step_of_its_own_compares_a_bounded_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh(PAIR, replace(QUICK, comparisons_max=0))
    mesh.advertise("a", "price < 100")
    mesh.subscribe("b", **ranges(3_000))
    mesh.run(0.0)
    tries = Tries(monkeypatch)
    mesh.now += REVIEW_AFTER_S
    mesh.do("b", mesh.routers["b"].time_passed(mesh.now))
    assert 0 < tries.taken() <= REVIEW_MAX


def test_a_subscription_more_is_not_compared_with_those_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mesh = Mesh(PAIR)
    mesh.advertise("a", *(f"price > {n} AND size > {n}" for n in range(20)))
    mesh.subscribe("b", **ranges(500))
    mesh.run(2.0)
    tries = Tries(monkeypatch)
    mesh.subscribe("b", more="price < -1")
    mesh.unsubscribe("b", "s7")
    mesh.run(2.0)
    assert tries.taken() == 20


def test_an_advertisement_more_is_compared_alone_and_one_less_with_those_that_met_its_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mesh = Mesh(PAIR)
    mesh.advertise("a", *(f"price > {n} AND price < {n + 40}" for n in (0, 1_000, 2_000)))
    mesh.subscribe("b", **ranges(300))
    mesh.run(2.0)
    tries = Tries(monkeypatch)
    mesh.advertise("a", "price > 100 AND price < 120")
    mesh.run(2.0)
    assert tries.taken() <= 300
    mesh.advertise("a", removed=["price > 100 AND price < 120"])
    mesh.run(2.0)
    assert tries.taken() <= 2 * 3
    assert len(mesh.bound("a", "b")) == 12


def test_what_asks_for_one_value_is_compared_with_what_asks_for_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = Tries(monkeypatch)
    mesh = Mesh(PAIR)
    mesh.advertise("a", *(f"symbol = 's{n}' AND price > 1" for n in range(100)))
    mesh.subscribe("b", **{f"s{n}": f"symbol = 's{n}'" for n in range(90, 2_000)})
    mesh.run(2.0)
    assert tries.taken() <= 20
    assert len(mesh.bound("a", "b")) == 10
    assert mesh.routers["b"].counters.comparisons_put_off == 0


def test_what_promises_everything_is_compared_with_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(monkeypatch)
    mesh = Mesh(PAIR)
    mesh.advertise("a", "TRUE")
    mesh.subscribe("b", **ranges(200))
    mesh.run(2.0)
    assert tries.taken() == 0
    assert len(mesh.bound("a", "b")) == 200


def naive(conjunction: Conjunction, promises: Iterable[AdvertisedConjunction]) -> int:
    met = {1 << p.tree for p in promises if intersects(conjunction, p.conjunction)}
    return sum(met)


def draw_text(rng: random.Random) -> str:
    kinds = (
        f"a = {rng.randrange(4)}",
        f"a > {rng.randrange(4)}",
        f"b = '{rng.choice('xyz')}'",
        f"a = {rng.randrange(4)} AND b = '{rng.choice('xyz')}'",
        f"b LIKE '%{rng.choice('xyz')}' AND a < {rng.randrange(4)}",
        f"a = {rng.randrange(4)} OR b IS NULL",
        "TRUE",
    )
    return rng.choices(kinds, (4, 4, 4, 4, 2, 2, 1))[0]


@pytest.mark.parametrize("seed", range(50))
def test_a_comparison_finds_the_trees_that_trying_all_finds(seed: int) -> None:
    rng = random.Random(seed)
    promises = [
        AdvertisedConjunction(number, rng.randrange(5), conjunction)
        for number in range(1, rng.randrange(2, 12))
        for conjunction in conjunctions(draw_text(rng))
    ]
    comparison = AdvertisementComparison(promises)
    for conjunction in conjunctions(*(draw_text(rng) for _ in range(8))):
        budget = ComparisonBudget(1_000)
        every = comparison.trees_met(conjunction, budget)
        assert every == naive(conjunction, promises)
        assert 1_000 - budget.left <= 1 + RESIDUE_COMPARISONS * len(promises)
        since = rng.randrange(12)
        known = naive(conjunction, [p for p in promises if p.number < since])
        assert comparison.trees_met(conjunction, ComparisonBudget(1_000), since, known) == every


def test_one_conjunction_that_needs_too_many_comparisons_meets_every_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = Tries(monkeypatch)
    texts = [f"a{n} LIKE '%x_{n}' AND b < {n}" for n in range(OVERRUN_MAX)]
    promises = [
        AdvertisedConjunction(n, n % 3, each) for n, each in enumerate(conjunctions(*texts), 1)
    ]
    comparison = AdvertisementComparison(promises)
    (wanted,) = conjunctions(f"b > {OVERRUN_MAX}")
    assert comparison.trees_met(wanted, ComparisonBudget(0)) == comparison.trees == 0b111
    assert tries.taken() <= OVERRUN_MAX // RESIDUE_COMPARISONS
    assert comparison.trees_met(wanted, ComparisonBudget(10 * OVERRUN_MAX)) == 0


@pytest.mark.parametrize("seed", range(40))
def test_whatever_changes_and_however_little_is_compared_at_once_all_is_exact_in_the_end(
    seed: int,
) -> None:
    rng = random.Random(seed)
    few = rng.choice((0, 1, 5, 16_384))
    mesh = Mesh(pairs("ab bc ca"), replace(QUICK, comparisons_max=few), seed=seed)
    interest: dict[str, str] = {}
    advertised: dict[str, None] = {}
    for number in range(40):
        kind = rng.random()
        if kind < 0.4:
            interest[f"s{number}"] = text = draw_text(rng)
            mesh.subscribe("b", **{f"s{number}": text})
        elif kind < 0.6 and interest:
            name = rng.choice(list(interest))
            del interest[name]
            mesh.unsubscribe("b", name)
        elif kind < 0.8:
            text = draw_text(rng)
            advertised[text] = None
            mesh.advertise("a", text)
        elif kind < 0.95 and advertised:
            text = rng.choice(list(advertised))
            del advertised[text]
            mesh.advertise("a", removed=[text])
        elif kind > 0.97:
            mesh.restart("a")
            mesh.advertise("a", *advertised)
        mesh.run(rng.choice((0.0, 0.01, 0.2)))
    mesh.run(10.0)
    router = mesh.routers["b"]
    assert router.clock is not None
    roots = [root.conjunction for root in router.clock.roots()]
    promised = conjunctions(*advertised)
    assert mesh.bound("a", "b") == {str(c) for c in roots if any_intersects([c], promised)}
    entries = router.advertisements.tables["a"].entries.values()
    met = {e.advertised.tree for e in entries if any_intersects(roots, e.conjunctions)}
    joined = {tree for tree in router.branches.joined() if tree.origin == "a"}
    assert joined == {mesh.root("a", number) for number in met | {0}}
