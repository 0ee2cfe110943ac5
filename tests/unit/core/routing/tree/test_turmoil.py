"""Whole networks under faults: S-Λ after every step, true silence, and convergence in peace."""

import msgspec
import pytest

from anabranch.model.version import NOTHING
from anabranch.sim.mutants.catalog import planted
from tests.routing_parts import QUICK, World
from tests.routing_turmoil import Turmoil, star, two_levels


@pytest.mark.parametrize("seed", range(12))
def test_promises_hold_in_turmoil_and_peace_converges(seed: int) -> None:
    Turmoil(seed, events=2).run(250, check_every=2)


@pytest.mark.parametrize("option", ["covering", "digests", "sufficiency_cache"])
def test_promises_hold_without(option: str) -> None:
    options = msgspec.structs.replace(QUICK, **{option: False})
    for seed in range(3):
        Turmoil(seed, options).run(200, check_every=4)


MUTANTS_HERE = (
    "constraint-at-least",
    "vst-too-low",
    "silence-without-vector",
    "no-constraint",
    "minus-ignored-aggregation",
    "state-keeps-old",
)


@pytest.mark.parametrize("name", MUTANTS_HERE)
def test_mutant_is_found_in_turmoil(name: str) -> None:
    with planted(name), pytest.raises(AssertionError, match=r"S-Λ|stale|silent"):
        _run_seeds()


def _run_seeds() -> None:
    for seed in range(30):
        Turmoil(seed, events=4).run(300, check_every=10)


def _publish_through_an_empty_relay(world: World) -> None:
    """s1 has subscribed; the only relay left has just started and knows nothing yet."""
    world.subscribe("s1", "s", "a = 1")
    world.settle(20)
    for name in ("m1", "m2", "m3"):
        world.crash(name)
    world.hosts["m2"].start()
    world.connect("p", "m2")
    world.connect("m2", "s1")
    world.hosts["p"].publish({"a": 1, "b": 0})
    for link in (("p", "m2"), ("m2", "s1")):
        world.pass_time(0.02)
        while world.links[link]:
            world.deliver(link)


def test_empty_relay_lets_everything_pass() -> None:
    _publish_through_an_empty_relay(World(star(), seed=1))


@planted("no-sufficiency")
def test_mutant_lets_an_empty_relay_filter() -> None:
    with pytest.raises(AssertionError, match="silent"):
        _publish_through_an_empty_relay(World(star(), seed=1))


def _lose_a_mark(world: World) -> None:
    """The vector of the newest mark is lost with the link it is on."""
    world.settle(20)
    world.subscribe("s1", "s", "a = 1")
    while not world.hosts["p"].wanted.get("s1", NOTHING).counter > 1:
        world.pass_time(0.02)
        while world.deliver_one():
            pass
    world.hosts["p"].make_mark()
    for name in ("m1", "m2", "m3"):
        world.disconnect("p", name)
    world.connect_all()
    world.settle()
    world.check_converged()


def test_vector_that_was_lost_is_said_again() -> None:
    _lose_a_mark(World(star(), seed=1))


@planted("digest-survives-link")
def test_mutant_loses_a_vector_for_ever() -> None:
    with pytest.raises(AssertionError, match="p"):
        _lose_a_mark(World(star(), seed=1))


def test_new_subscription_is_served_by_the_last_broker_of_a_site() -> None:
    world = World(star(), seed=1)
    world.settle(20)
    world.crash("m1")
    world.crash("m3")
    world.subscribe("s1", "late", "a = 1")
    world.settle(20)
    world.check_converged()
    router = world.hosts["m2"].router
    assert router.counters.changes_applied > 0


def test_two_senders_share_a_site_without_refusals() -> None:
    world = World(two_levels(), seed=1)
    world.settle(20)
    before = sum(host.router.counters.changes_refused for host in world.hosts.values())
    for number in range(60):
        world.subscribe(
            f"s{number % 3 + 1}", f"n{number}", f"a = {number % 4} AND b >= {number % 3}"
        )
        world.settle(1)
    after = sum(host.router.counters.changes_refused for host in world.hosts.values())
    assert after == before


def test_same_seed_same_history() -> None:
    def history() -> list[object]:
        world = Turmoil(11).run(150, check_every=50)
        return [host.router.counters.as_dict() for host in world.hosts.values()]

    assert history() == history()
