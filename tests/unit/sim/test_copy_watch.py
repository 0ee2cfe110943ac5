"""The watch over paths, in small worlds."""

from msgspec.structs import replace

from anabranch.core import contract
from anabranch.model.network import graph_of_brokers
from anabranch.sim.copy_watch import PathWatch
from anabranch.sim.mutants.catalog import planted
from tests.mesh_parts import pairs
from tests.point_parts import OPTIONS, Stage

#: A line, from whose one end copies take four hops to the other.
LINE = graph_of_brokers(pairs("ab bc cd de"))


def watched() -> tuple[Stage, PathWatch]:
    """A line with a subscriber at its end, and an event on the way to it."""
    world = Stage(LINE, "mesh", replace(OPTIONS, paths="fixed"))
    watch = PathWatch(world.world, is_fixed=True)
    world.world.watcher = watch.step
    reader, writer = world.user("reader", "e"), world.user("writer", "a")
    writer.advertise("n > 0")
    reader.perform(reader.session.subscribe(world.world.now, "all", "n > 0"))
    world.run(2.0)
    writer.publish(n=1)
    world.run(0.5)
    return world, watch


def test_a_line_is_clean_and_copies_were_passed_on() -> None:
    _, watch = watched()
    assert watch.anomalies == []
    assert watch.passed_on >= 3
    assert watch.splits == watch.moves == 0


@planted("hops-halved")
def test_the_bound_on_hops_is_seen_though_all_who_counted_it_are_dead() -> None:
    world, watch = watched()
    for name in LINE.brokers:
        world.world.kill(name)
    assert {each.name for each in watch.anomalies} == {"hop-bound"}


def test_an_origin_that_sends_a_tick_once_more_is_seen() -> None:
    world, watch = watched()
    sent: list[contract.Send] = []

    def remember(_now: float, name: str, what: object) -> None:
        if name == "a" and isinstance(what, contract.Send):
            sent.append(what)

    world.world.listener = remember
    world.user("another", "a").publish(n=2)
    world.run(0.5)
    assert watch.anomalies == []
    watch.step("a", contract.TimePassed(), list(sent))
    assert {each.name for each in watch.anomalies} == {"second-path"}
    watch.anomalies.clear()
    watch.step("a", contract.LogRead(1, 1, ()), list(sent))
    assert watch.anomalies == []
