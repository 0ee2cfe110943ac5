"""A broker that departs gives its join points to who is there, and to nobody else."""

from random import Random

import pytest

from anabranch.core import contract
from anabranch.core.routing.registry import RoutingName
from anabranch.model.limits import Limits
from tests.point_parts import Stage, User

RISE = "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 2 s"


def quotes(user: User, count: int, start: int = 0) -> None:
    """Every second one is low, the others are high."""
    for number in range(start, start + count):
        user.publish(symbol="A", price=40 if number % 2 else 10, n=number)


def test_a_broker_that_departs_gives_its_join_points_away() -> None:
    stage = Stage()
    reader, feed = stage.user("r", "e2"), stage.user("f", "e3")
    stage.user("d", "e1").define("rise", RISE)
    reader.subscribe_to("rise")
    stage.run(1.0)
    quotes(feed, 4)
    stage.run(0.1)
    stage.world.stimulate("e1", contract.Depart())
    quotes(feed, 4, 4)
    stage.run(4.0)
    assert stage.owners("rise") == ["e2"]
    assert stage.assert_detected("rise") == len(reader.notifications())


def test_a_broker_that_departs_finds_one_that_has_room() -> None:
    stage = Stage(limits=Limits(patterns_max=1))
    stage.user("f", "e1").define("full", RISE, is_new=True)
    stage.user("d", "e2").define("rise", RISE, is_new=True)
    stage.run(1.0)
    stage.world.stimulate("e2", contract.Depart())
    stage.run(3.0)
    assert stage.owners("rise") == ["e3"]


@pytest.mark.parametrize("routing", ["tree", "flood", "mesh"])
def test_a_broker_that_departs_gives_nothing_to_one_that_is_away(routing: RoutingName) -> None:
    stage = Stage(routing=routing)
    reader, feed = stage.user("r", "e3"), stage.user("f", "e3")
    stage.user("d", "e1").define("rise", RISE)
    reader.subscribe_to("rise")
    stage.run(1.0)
    stage.world.kill("e2")
    stage.run(0.5)
    stage.world.stimulate("e1", contract.Depart())
    stage.run(3.0)
    assert stage.owners("rise") == ["e3"]
    quotes(feed, 4)
    stage.run(3.0)
    assert len(reader.notifications()) == stage.assert_detected("rise") == 3


def test_a_broker_that_departs_while_all_are_away_gives_when_one_is_back() -> None:
    stage = Stage()
    stage.user("d", "e1").define("rise", RISE)
    stage.run(1.0)
    for name in ("e2", "e3"):
        stage.world.kill(name)
    stage.world.stimulate("e1", contract.Depart())
    stage.run(5.0)
    assert stage.points("e1").records["rise"].goes_to == ""
    stage.world.start("e3")
    stage.run(3.0)
    assert stage.owners("rise") == ["e3"]


def test_a_broker_that_departs_takes_nothing() -> None:
    stage = Stage()
    stage.user("d", "e1").define("rise", RISE)
    stage.run(1.0)
    stage.world.stimulate("e2", contract.Depart())
    stage.run(0.5)
    stage.move("rise", "e1", "e2")
    stage.run(3.0)
    assert stage.owners("rise") == ["e1"]


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["tree", "mesh"])
@pytest.mark.parametrize("seed", range(12))
def test_whoever_dies_while_a_broker_departs_nothing_is_lost_or_in_two_places(
    seed: int, routing: RoutingName
) -> None:
    rng = Random(seed)
    stage = Stage(routing=routing, seed=seed)
    reader, feed = stage.user("r", "e3"), stage.user("f", "e3")
    definer = stage.user("d", "e1")
    names = ("rise", "again")
    for name in names:
        definer.define(name, RISE)
        reader.subscribe_to(name)
    stage.run(1.0)
    stage.world.stimulate("e1", contract.Depart())
    for number in range(30):
        name = rng.choice(("e1", "e2", "e2", "e3"))
        if stage.world.hosts[name].broker is None:
            stage.world.start(name)
        elif rng.random() < 0.5:
            stage.world.kill(name)
        quotes(feed, 1, number)
        for _ in range(6):
            stage.run(0.05)
            up = [each for each in ("e1", "e2", "e3") if stage.world.hosts[each].broker]
            for pattern in names:
                assert sum(pattern in stage.points(each).active for each in up) <= 1
    for name in ("e1", "e2", "e3"):
        if stage.world.hosts[name].broker is None:
            stage.world.start(name)
    stage.run(1.0)
    # It may have been killed before that was on disk.
    stage.world.stimulate("e1", contract.Depart())
    stage.run(15.0)
    quotes(feed, 4, 30)
    stage.run(5.0)
    for pattern in names:
        assert stage.owners(pattern) in (["e2"], ["e3"])
        assert stage.assert_detected(pattern) > 0
    assert stage.points("e1").records == {}
