"""Merging brokers: hulls, what they save, and when they are given up."""

import msgspec
import pytest

from anabranch.core.routing.tree.coarsening import WINDOW_EVENTS, groups_of, hull_of
from anabranch.core.routing.tree.tree import TreeRouter
from anabranch.model.errors import RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frames import AskInterest, InterestState
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.normal.conjunction import Conjunction, covers
from anabranch.model.version import Version
from tests.routing_parts import QUICK, World
from tests.routing_turmoil import Turmoil, star, two_levels

COARSE = msgspec.structs.replace(QUICK, coarsen=True, coarsen_above=2)


def of(*texts: str) -> list[Conjunction]:
    return [each for text in texts for each in Filter.parse(text).conjunctions]


def hull(*texts: str) -> str:
    """The hull of the one group that holds all of them."""
    members = of(*texts)
    [key] = [key for key, group in groups_of(members).items() if group == members]
    made = hull_of(key, members, DEFAULT_LIMITS)
    assert all(covers(made.conjunctions[0], member) for member in members)
    return str(made)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a = 1", "a = 7"], "a >= 1 AND a <= 7"),
        (["a = 1 AND b = 'x'", "a = 3 AND b = 'x'"], "b = 'x' AND a >= 1 AND a <= 3"),
        (["a >= 1", "a = 0"], "a >= 0"),
        (["a <= 1", "a = 5"], "a <= 5"),
        (["a <= 1", "a >= 5"], "a IS NOT NULL"),
        (["s = 'b'", "s = 'm'"], "s >= 'b' AND s <= 'm'"),
        (["s LIKE 'b%'", "s = 'a'"], "s >= 'a' AND s < 'c'"),
        (["s >= 'b'", "s = 'a'"], "s >= 'a'"),
        (["a = 1 AND b > 2", "a = 2 AND b > 2"], "b >= 2.0000000000000004 AND a >= 1 AND a <= 2"),
    ],
)
def test_hull_reaches_from_the_lowest_to_the_highest(texts: list[str], expected: str) -> None:
    assert hull(*texts) == expected


def test_hull_says_the_same_when_it_is_read_again() -> None:
    for texts in (["a = 1.5", "a = 7"], ["s = 'b'", "s = 'm'"], ["a > 1", "a > 2.5"]):
        text = hull(*texts)
        assert Filter.parse(text).conjunctions == Filter.parse(str(Filter.parse(text))).conjunctions


def test_conjunctions_that_differ_in_two_attributes_are_no_group() -> None:
    assert all(
        len(group) == 1 for group in groups_of(of("a = 1 AND b = 1", "a = 2 AND b = 2")).values()
    )


def test_numbers_and_texts_are_no_group() -> None:
    assert all(len(group) == 1 for group in groups_of(of("a = 1", "a = 'x'")).values())


def test_what_is_no_single_range_stays_alone() -> None:
    assert groups_of(of("a <> 1", "a IS NULL", "a < b", "a", "a IN (1, 5)")) == {}


def world_of(count: int, gap: int = 1) -> World:
    """Two relay sites; p at one end, and s1 with many narrow subscriptions at the other."""
    world = World(two_levels(), 1, COARSE)
    world.settle(20)
    for number in range(count):
        world.subscribe("s1", f"n{number}", f"a = {number * gap}")
    world.settle(20)
    world.hosts["p"].publish({"a": 0})
    world.settle(40)
    return world


def known_at_origin(world: World) -> int:
    [view] = [v for v in world.hosts["p"].router.presences() if v.site == "p"]
    return len(view.wanted["n1"])


def test_many_narrow_conjunctions_become_few_behind_a_relay() -> None:
    world = world_of(10)
    assert known_at_origin(world) == 1
    world.check_interest(exactly=False)
    world.check_converged()


def test_nothing_is_coarsened_where_no_events_pass() -> None:
    world = World(two_levels(), 1, COARSE)
    for number in range(10):
        world.subscribe("s1", f"n{number}", f"a = {number}")
    world.settle(40)
    assert known_at_origin(world) == 10


def test_few_conjunctions_are_left_alone() -> None:
    assert known_at_origin(world_of(2)) == 2


def test_hull_is_given_up_when_its_members_are_gone() -> None:
    world = world_of(10)
    for each in world.subscriptions[2:]:
        world.unsubscribe(each)
    world.settle(40)
    assert known_at_origin(world) == 2
    world.check_interest(exactly=True)


def test_hull_grows_with_its_members() -> None:
    world = world_of(10)
    world.subscribe("s2", "far", "a = 40")
    world.settle(40)
    assert known_at_origin(world) == 1
    world.check_interest(exactly=False)


def test_hull_that_draws_what_nobody_wants_is_given_up() -> None:
    world = world_of(6, gap=100)
    assert known_at_origin(world) == 1
    for _ in range(2):  # one relay site after the other
        for _ in range(WINDOW_EVENTS):
            world.hosts["p"].publish({"a": 55})
        world.settle(20)
    assert known_at_origin(world) == 6
    world.check_interest(exactly=True)


def test_hull_that_draws_little_is_kept() -> None:
    world = world_of(10)
    for _ in range(2 * WINDOW_EVENTS):
        world.hosts["p"].publish({"a": 5})
    world.settle(40)
    assert known_at_origin(world) == 1


def test_restarted_relay_takes_its_hulls_back() -> None:
    world = world_of(10)
    for name in ("m1", "m2", "k1", "k2"):
        world.crash(name)
    for each in world.subscriptions:
        world.unsubscribe(each)
    world.connect_all()
    world.settle(80)
    assert known_at_origin(world) == 0


def test_promises_hold_in_turmoil_while_brokers_coarsen() -> None:
    for seed in range(4):
        turmoil = Turmoil(seed, COARSE, events=3)
        turmoil.steps[2] = (0.2, turmoil.subscribe)
        turmoil.run(250, check_every=5, exactly=False)


def test_leaf_answers_questions_only() -> None:
    router = TreeRouter("m1", star(), COARSE, DEFAULT_LIMITS, 4)
    router.link_up(0, "m2")
    router.time_passed(9)
    [answer] = router.frame(9, "m2", AskInterest("m1~n1", "n1"))
    state = InterestState("n1", "m1~n1", {"m1~n1": Version(4, 1)}, [])
    assert getattr(answer, "frame", None) == state
    for frame in (
        InterestState("m1~n1", "n1", {}, []),
        AskInterest("m1~n1", "p"),
        AskInterest("m1~n1", "n1", {"m1~n1": Version(9, 9)}),
    ):
        with pytest.raises(RemoteError):
            router.frame(9, "m2", frame)
    with pytest.raises(RemoteError):
        router.frame(9, "p", AskInterest("m1~n1", "n1"))
