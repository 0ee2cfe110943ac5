"""Thousands of subscriptions of one style come, go and come again; every answer stays exact.

Blocks appear beyond 64 entries of a cluster, split at 512, and the cells of an axis are drawn anew
at 64, 512 and 4,096 of its keys. A crowd goes up through all of these and down again.
"""

import pytest

from anabranch.matching.engine import EngineName
from tests.crowd_parts import STYLES, Crowd
from tests.matching_parts import Attributes, Watched

#: Styles that evaluate filters by hand take longer to check.
SIZES = {"alternatives": 3_000, "residues": 3_000, "wide": 4_000}


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_crowd_is_matched_exactly_while_it_grows_and_shrinks(style: str) -> None:
    crowd = Crowd(style, seed=1, watched=Watched(["numba"]))
    size = SIZES.get(style, 5_000)
    crowd.grow(60)
    assert crowd.check()
    crowd.grow(600)
    assert crowd.check()
    crowd.grow(size - 660)
    assert crowd.check()
    crowd.shrink(size * 4 // 5)
    assert crowd.check()
    crowd.grow(size // 3)
    assert crowd.check()
    crowd.shrink(len(crowd.watched.ids))
    assert crowd.check() == 0
    crowd.grow(200)
    assert crowd.check()


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_crowd_without_kernels_is_matched_exactly(style: str) -> None:
    crowd = Crowd(style, seed=2, watched=Watched(["numpy"]))
    crowd.grow(1_500)
    assert crowd.check(12)
    crowd.shrink(1_400)
    assert crowd.check(12)
    crowd.grow(300)
    assert crowd.check(12)


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", [3])
def test_crowd_that_turns_over_is_matched_exactly(style: str, seed: int) -> None:
    crowd = Crowd(style, seed, Watched(["numba"]))
    crowd.grow(2_000)
    for turn in range(5):
        crowd.shrink(700 + 150 * turn)
        crowd.grow(1_000)
        assert crowd.check(10)


@pytest.mark.slow
def test_large_crowd_is_matched_exactly_after_most_have_left() -> None:
    crowd = Crowd("ranges", seed=7, watched=Watched(["numba"]))
    crowd.grow(20_000)
    assert crowd.check(12)
    crowd.shrink(19_500)
    assert crowd.check(12)
    crowd.grow(4_000)
    assert crowd.check(12)


def test_identical_filters_all_match_and_leave_one_by_one(engine: EngineName) -> None:
    watched = Watched([engine])
    for number in range(2_000):
        watched.add(number, "k = 'x' AND n BETWEEN 3 AND 7")
    events: list[Attributes] = [{"k": "x", "n": 5}, {"k": "x", "n": 8}, {"k": "y", "n": 5}]
    events += [{"n": 5}, {"k": "x"}]
    assert watched.check(events) == 2_000
    for number in range(0, 2_000, 2):
        watched.remove(number)
    assert watched.check(events) == 1_000
    for number in range(1, 2_000, 2):
        watched.remove(number)
    assert watched.check(events) == 0


def test_filter_of_hundreds_of_alternatives_is_found_once(engine: EngineName) -> None:
    watched = Watched([engine])
    parts = [f"x = {number} AND y > {number % 9} AND z <> 'a'" for number in range(400)]
    watched.add("many", " OR ".join(parts), destination="link")
    watched.add("overlapping", " OR ".join(f"x > {n} AND y < {n}" for n in range(300)))
    for number in range(300):
        watched.add(number, parts[number])
    events: list[Attributes] = [{"x": n, "y": n % 13, "z": "b"} for n in range(-1, 410, 10)]
    assert watched.check(events)
    watched.remove("many")
    watched.remove("overlapping")
    assert watched.check(events)
