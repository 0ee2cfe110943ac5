"""Counting frames: by link, by purpose, and between two moments."""

from random import Random

from anabranch.core.broker import BrokerConfig
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import InterestState, Knowledge, LinkFrame, MarkIs, Ping
from anabranch.model.network import Network
from anabranch.model.version import Version
from anabranch.sim.world import Weather, World
from evaluation.routing.meter import Counts, LinkTally, Meter, RouterTally

NETWORK = Network({"a": ["a"], "b": ["b"]}, [("a", "b")])
DATA = [Datum(5, 1, b"event"), Datum(6, 1, b"event")]


def metered() -> tuple[World, Meter]:
    configs = [BrokerConfig(name, NETWORK) for name in NETWORK.brokers]
    world = World(configs, Random(1), Weather())
    return world, Meter(world)


def test_frames_are_counted_by_link_and_purpose() -> None:
    world, meter = metered()
    meter.busy["a"] = None
    assert world.meter is not None
    frames: list[tuple[LinkFrame, int]] = [
        (Knowledge("a", "b", "", 4, DATA), 100),
        (Knowledge("a", "b", "", 4, [], [(7, 9)]), 10),
        (MarkIs("a", 4, {"b": Version(1, 1)}), 20),
        (MarkIs("c", 4, {"b": Version(1, 1)}), 30),
        (InterestState("b", "a", {}, []), 40),
        (Ping(), 3),
    ]
    for frame, size in frames:
        world.meter("a", "b", frame, bytes(size))
    tally = meter.counts().links["a", "b"]
    assert (tally.events, tally.frames) == (2, 6)
    assert (tally.event_bytes, tally.silence_bytes) == (100, 10)
    assert (tally.vector_bytes, tally.idle_bytes, tally.interest_bytes) == (20, 30, 40)
    assert tally.control_bytes == 90
    assert tally.all_bytes == 203
    assert tally.digest_bytes == 2


def test_counts_between_two_moments_are_differences() -> None:
    _, meter = metered()
    earlier = Counts({("a", "b"): LinkTally(events=3)}, {"a": RouterTally(matches=5)})
    later = Counts(
        {("a", "b"): LinkTally(events=7, frames=1), ("b", "a"): LinkTally(events=2)},
        {"a": RouterTally(matches=9)},
    )
    between = later.since(earlier)
    assert between.links["a", "b"] == LinkTally(events=4, frames=1)
    assert between.routers["a"] == RouterTally(matches=4)
    assert between.into("a") == LinkTally(events=2)
    assert between.out_of("a", "b") == between.everywhere() == LinkTally(events=6, frames=1)
    assert meter.counts().links == {}


def test_bytes_of_a_running_network_are_those_that_its_wires_carry() -> None:
    world, meter = metered()
    for name in NETWORK.brokers:
        world.start(name)
    world.run_until(2.0)
    total = meter.counts().everywhere()
    assert total.all_bytes == world.count.frame_bytes > 0
    assert total.frames == world.count.frames
