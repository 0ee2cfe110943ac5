"""Λ at one site: roots per direction, minimal wishes, and what counts as aggregated."""

import random

import pytest

from anabranch.core.routing.interest_clock import Conjunct, conjuncts_of, pack, unpack
from anabranch.core.routing.tree.interest import DirectionChange, Interest
from anabranch.model.errors import RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Conjuncts
from anabranch.model.limits import DEFAULT_LIMITS
from tests.routing_parts import DOMAIN
from tests.routing_turmoil import FILTERS

WAYS = ("east", "north", "west")


def interest(covering: bool = True) -> Interest:
    return Interest(WAYS, DEFAULT_LIMITS, covering)


def of(*texts: str) -> list[Conjunct]:
    return [each for text in texts for each in conjuncts_of(Filter.parse(text), DEFAULT_LIMITS)]


def said(change: DirectionChange) -> tuple[list[str], list[str], bool]:
    return [str(e) for e in change.plus], [str(e) for e in change.minus], change.aggregated


def wanted(at: Interest, way: str) -> list[str]:
    return [str(each) for each in at.conjuncts(way)]


def test_new_wish_is_told_to_every_other_direction_as_it_is() -> None:
    changes = interest().change("east", of("a = 1"), [])
    assert list(changes) == ["north", "west"]
    assert said(changes["north"]) == (["a = 1"], [], False)


def test_wish_that_is_covered_here_is_aggregated() -> None:
    at = interest()
    at.change("north", of("a >= 1"), [])
    changes = at.change("east", of("a = 1"), [])
    assert said(changes["west"]) == ([], [], True)
    assert said(changes["north"]) == (["a = 1"], [], False)


def test_equal_wish_of_another_direction_is_aggregated() -> None:
    at = interest()
    at.change("north", of("a = 1"), [])
    assert said(at.change("east", of("a = 1"), [])["west"]) == ([], [], True)


def test_wish_that_covers_others_is_told_without_taking_them_back() -> None:
    at = interest()
    at.change("north", of("a = 1"), [])
    assert said(at.change("east", of("a >= 1"), [])["west"]) == (["a >= 1"], [], False)
    assert [str(each) for each in at.roots("west")] == ["a >= 1"]


def test_removed_root_uncovers_what_others_want() -> None:
    at = interest()
    at.change("north", of("a = 1"), [])
    at.change("east", of("a >= 1"), [])
    assert said(at.change("east", [], of("a >= 1"))["west"]) == (["a = 1"], ["a >= 1"], True)


def test_removal_that_another_direction_hides_is_aggregated() -> None:
    at = interest()
    at.change("north", of("a = 1"), [])
    at.change("east", of("a = 1"), [])
    changes = at.change("east", [], of("a = 1"))
    assert said(changes["west"]) == ([], [], True)
    assert said(changes["north"]) == ([], ["a = 1"], True)


def test_direction_keeps_no_wish_that_its_own_wishes_cover() -> None:
    at = interest()
    at.change("east", of("a = 1", "b = 2"), [])
    at.change("east", of("a >= 1"), [])
    assert wanted(at, "east") == ["b = 2", "a >= 1"]
    at.change("east", of("a = 3"), [])
    assert wanted(at, "east") == ["b = 2", "a >= 1"]


def test_wish_survives_when_its_coverer_leaves_in_the_same_change() -> None:
    at = interest()
    at.change("east", of("a >= 1"), [])
    assert said(at.change("east", of("a = 2"), of("a >= 1"))["west"]) == (
        ["a = 2"],
        ["a >= 1"],
        True,
    )
    assert wanted(at, "east") == ["a = 2"]


def test_removal_of_what_is_not_there_changes_nothing() -> None:
    at = interest()
    assert said(at.change("east", [], of("a = 1"))["west"]) == ([], [], True)
    at.change("east", of("a = 2"), [])
    at.change("east", [], of("a = 1"))
    assert wanted(at, "east") == ["a = 2"]


def test_conjunctions_that_mean_the_same_are_one() -> None:
    at = interest()
    at.change("east", of("a >= 1 AND a <= 1"), [])
    at.change("east", [], of("a = 1"))
    assert not at


def test_replacement_drops_all_that_it_does_not_name() -> None:
    at = interest()
    at.change("east", of("a = 1", "a = 2"), [])
    change = at.replace("east", of("a = 2", "a = 3"))["west"]
    assert said(change) == (["a = 3"], ["a = 1"], True)
    assert wanted(at, "east") == ["a = 2", "a = 3"]


def test_replacement_that_only_adds_passes_through() -> None:
    at = interest()
    at.change("east", of("a = 1"), [])
    assert said(at.replace("east", of("a = 1", "a = 3"))["west"]) == (["a = 3"], [], False)


def test_replacement_keeps_what_was_covered_by_what_it_drops() -> None:
    at = interest()
    at.change("east", of("a >= 1"), [])
    at.replace("east", of("a = 2"))
    assert wanted(at, "east") == ["a = 2"]


def test_without_covering_equal_wishes_are_still_one() -> None:
    at = interest(covering=False)
    at.change("north", of("a >= 1"), [])
    assert said(at.change("east", of("a = 1"), [])["west"]) == (["a = 1"], [], False)
    assert said(at.change("east", of("a >= 1"), [])["west"]) == ([], [], True)


def test_destinations_are_the_directions_that_want_an_event() -> None:
    at = interest()
    assert at.destinations({"a": 1}) == set()
    at.change("east", of("a = 1"), [])
    at.change("north", of("a >= 1 OR b = 1"), [])
    assert at.destinations({"a": 1}) == {"east", "north"}
    assert at.destinations({"b": 1}) == {"north"}
    assert at.destinations({"a": 0}) == set()


def test_many_wishes_are_answered_like_few() -> None:
    at = interest()
    at.change("east", [each for i in range(300) for each in of(f"a = {i}")], [])
    at.change("west", of("a = 7"), [])
    assert at.destinations({"a": 7}) == {"east", "west"}
    assert at.destinations({"a": 8}) == {"east"}


def test_receiver_that_follows_all_changes_wants_what_is_wished_for() -> None:
    chance = random.Random(3)
    at = interest()
    wishes: dict[str, dict[str, Conjunct]] = {way: {} for way in WAYS}
    receivers = {way: interest() for way in WAYS}
    for _ in range(300):
        way = chance.choice(WAYS)
        text = chance.choice(FILTERS).format(x=chance.randrange(4), y=chance.randrange(4))
        if wishes[way] and chance.random() < 0.5:
            del wishes[way][chance.choice(list(wishes[way]))]
        if chance.random() < 0.7:
            wishes[way] |= {str(each): each for each in of(text)}
        for other, change in at.replace(way, list(wishes[way].values())).items():
            receivers[other].change("here", change.plus, change.minus)
            elsewhere = [each for w in WAYS if w != other for each in wishes[w].values()]
            assert _events(receivers[other].conjuncts("here")) == _events(elsewhere)
            assert len(receivers[other].conjuncts("here")) == len(at.roots(other))


def _events(conjuncts: list[Conjunct]) -> list[dict[str, int]]:
    conjunctions = [each.conjunction for each in conjuncts]
    return [event for event in DOMAIN if any(c.matches(event) for c in conjunctions)]


def test_conjunctions_of_one_filter_travel_together() -> None:
    packed = pack(of("a = 1 OR b = 2", "c = 3"))
    assert packed == [Conjuncts("a = 1 OR b = 2", (0, 1)), Conjuncts("c = 3", (0,))]
    assert unpack(packed, DEFAULT_LIMITS) == of("a = 1 OR b = 2", "c = 3")


@pytest.mark.parametrize(
    "bad", [Conjuncts("a = ", (0,)), Conjuncts("a = 1", (1,)), Conjuncts("", (0,))]
)
def test_interest_that_is_no_filter_is_refused(bad: Conjuncts) -> None:
    with pytest.raises(RemoteError, match=r"received .*interest"):
        unpack([bad], DEFAULT_LIMITS)
