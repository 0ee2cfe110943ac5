"""Ids and destinations may be anything hashable; integers are kept as such while all ids are."""

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from anabranch.matching.engine import make_engine
from anabranch.matching.identities import Identities
from anabranch.matching.index import MatchIndex
from anabranch.model.errors import DuplicateIdError, UnknownIdError


@dataclass(frozen=True)
class Subscriber:
    name: str


KINDS: list[Hashable] = [
    0,
    -1,
    2**63 - 1,
    -(2**63),
    2**63,
    10**30,
    "text",
    "",
    b"bytes",
    None,
    1.5,
    float("inf"),
    True,
    False,
    (),
    (1, 2),
    ("nested", ("tuple", 3)),
    frozenset({1, 2}),
    range(3),
    Fraction(1, 3),
    Subscriber("anna"),
    Subscriber,
    np.int64(7),
    np.float64(0.25),
]


@pytest.mark.parametrize("identity", KINDS, ids=repr)
def test_id_of_any_kind_comes_back_as_it_was_given(index: MatchIndex, identity: Hashable) -> None:
    index.add(identity, "x = 1")
    for found in (index.match({"x": 1}), index.match_batch([{"x": 1}])[0]):
        assert found == [identity]
        assert type(found[0]) is type(identity)
    assert identity in index
    index.remove(identity)
    assert identity not in index
    assert index.match({"x": 1}) == []


@pytest.mark.parametrize("name", [kind for kind in KINDS if kind is not None], ids=repr)
def test_destination_of_any_kind_comes_back_as_it_was_given(
    index: MatchIndex, name: Hashable
) -> None:
    index.add(1, "x = 1", destination=name)
    (found,) = index.destinations({"x": 1})
    assert found == name
    assert type(found) is type(name)


def test_all_kinds_of_ids_live_together(index: MatchIndex) -> None:
    distinct = [kind for kind in KINDS if not isinstance(kind, bool)]
    for identity in distinct:
        index.add(identity, "x > 0")
    assert set(index.match({"x": 1})) == set(distinct)
    assert set(index.match_batch([{"x": 1}])[0]) == set(distinct)


def test_integer_ids_are_answered_as_an_array_of_integers(index: MatchIndex) -> None:
    index.add_many((number, "x = 1") for number in (3, -5, 2**63 - 1))
    matches = index.match_batch([{"x": 1}])
    assert matches.ids.dtype == np.int64
    assert all(type(identity) is int for identity in index.match({"x": 1}))


def test_first_other_id_turns_the_answers_into_objects(index: MatchIndex) -> None:
    for number in range(2_000):
        index.add(number, "x = 1")
    before = index.match_batch([{"x": 1}])
    index.add("text", "x = 1")
    after = index.match_batch([{"x": 1}])
    assert before.ids.dtype == np.int64
    assert after.ids.dtype == object
    assert set(after[0]) == {*range(2_000), "text"}
    assert all(type(identity) is int for identity in after[0] if identity != "text")
    index.remove("text")
    assert set(index.match({"x": 1})) == set(range(2_000))


def test_integer_beyond_64_bits_is_an_id_too(index: MatchIndex) -> None:
    index.add(1, "x = 1")
    index.add(2**64, "x = 1")
    assert set(index.match({"x": 1})) == {1, 2**64}


def test_truth_as_an_id_stays_a_truth(index: MatchIndex) -> None:
    index.add(5, "x = 1")
    index.add(True, "x = 2")
    (found,) = index.match({"x": 2})
    assert found is True
    assert type(index.match({"x": 1})[0]) is int


def test_equal_ids_are_one_id(index: MatchIndex) -> None:
    index.add(1, "x = 1")
    for same in (True, 1.0):
        with pytest.raises(DuplicateIdError):
            index.add(same, "x = 2")
    index.remove(1.0)
    assert len(index) == 0


def test_id_behind_a_filter_of_many_conjunctions_is_found(index: MatchIndex) -> None:
    index.add_many((number, "x = -1") for number in range(1_023))
    index.add("many", " OR ".join(f"x = {number} AND y > {number}" for number in range(1_024)))
    index.add("behind", "x = 5")
    assert set(index.match({"x": 5, "y": 6})) == {"many", "behind"}


# -- the map of ids itself


def test_entries_and_ids_are_mapped_both_ways() -> None:
    moves: list[object] = []
    identities = Identities(moves.append)
    identities.put("a", 3)
    identities.put("b", 5_000)
    identities.put("never", -1)
    found = identities.of(np.array([5_000, 3], np.int32), make_engine("auto").named)
    assert found.tolist() == ["b", "a"]
    assert identities.drop("b") == 5_000
    assert identities.drop("never") == -1
    assert list(identities.entries) == ["a"]
    assert identities.nbytes > 0
    assert moves[0] is not None
    assert moves[-1] is None


def test_unknown_id_is_not_dropped() -> None:
    with pytest.raises(KeyError):
        Identities(lambda ids: None).drop("a")


def test_unknown_id_is_both_our_error_and_a_key_error(index: MatchIndex) -> None:
    with pytest.raises(KeyError) as caught:
        index.remove(("a", 1))
    assert isinstance(caught.value, UnknownIdError)
    assert str(caught.value) == "subscription ('a', 1) is not in the index"
