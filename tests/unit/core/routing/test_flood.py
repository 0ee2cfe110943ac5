"""Flooding: every tick reaches every edge once, filtered by nobody."""

from collections.abc import Callable

import pytest

from anabranch.core.contract import Note, Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import (
    Arrival,
    Emission,
    Outcome,
    VectorAdvance,
    interest_at_once,
)
from anabranch.core.routing.flood import FloodRouter
from anabranch.model.errors import RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import AskMark, Knowledge, LinkFrame
from anabranch.model.network import Network
from anabranch.model.version import NOTHING, Version
from tests.routing_turmoil import SHAPES, two_levels

TICK = Datum(1, 5, b"event")


def reached(network: Network, origin: str, target: str = "") -> dict[str, list[Arrival]]:
    """What arrives where when an origin publishes."""
    routers = {name: FloodRouter(name, network, Options()) for name in network.brokers}
    for name, router in routers.items():
        for peer in network.links_of(name):
            router.link_up(0, peer)
    found: dict[str, list[Arrival]] = {}
    pending: list[tuple[str, list[Outcome]]] = [
        (origin, routers[origin].publish(0, Emission(0, [TICK], head=1, target=target)))
    ]
    while pending:
        at, outcomes = pending.pop(0)
        for outcome in outcomes:
            if isinstance(outcome, Send):
                pending.append((outcome.peer, routers[outcome.peer].frame(0, at, outcome.frame)))
            else:
                assert isinstance(outcome, Arrival)
                found.setdefault(at, []).append(outcome)
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_every_edge_gets_every_tick_once(shape: Callable[[], Network]) -> None:
    network = shape()
    for origin in network.edges:
        found = reached(network, origin)
        assert sorted(found) == sorted(network.edges)
        assert all(len(each) == 1 for each in found.values())
        assert all(each[0].data == [TICK] for each in found.values())


def test_tick_for_one_edge_reaches_only_that_one() -> None:
    assert list(reached(two_levels(), "p", "s2")) == ["s2"]


def test_every_subscription_is_contained_at_once() -> None:
    router = FloodRouter("p", two_levels(), Options())
    versions, outcomes = interest_at_once(router, 0, {"s": Filter.everything()}, [])
    assert versions == {"s": NOTHING}
    assert outcomes == []


def test_ticks_that_nobody_takes_are_noted() -> None:
    router = FloodRouter("p", two_levels(), Options())
    outcomes = router.publish(0, Emission(0, [TICK]))
    assert [type(each) for each in outcomes] == [Arrival, Note]


def test_link_that_is_full_gets_nothing() -> None:
    router = FloodRouter("s1", two_levels(), Options())
    router.link_up(0, "k1")
    router.link_full(0, "k1", True)
    assert not any(isinstance(each, Send) for each in router.publish(0, Emission(0, [TICK])))


@pytest.mark.parametrize(
    "frame",
    [
        Knowledge("nobody", "n2", "", 0, []),
        Knowledge("m1", "n2", "", 0, []),
        Knowledge("p", "n1", "", 0, []),
        Knowledge("p", "nowhere", "", 0, []),
        Knowledge("s1", "n2", "", 0, []),
        Knowledge("p", "n2", "m1", 0, []),
        Knowledge("p", "n2", "s3", 0, []),
        Knowledge("p", "n2", "", 9, [TICK]),
        Knowledge("p", "n2", "", 0, [], [(5, 4)]),
        Knowledge("p", "n2", "", 6, [], [(5, 7)]),
        Knowledge("p", "n2", "", 0, [], [], [Hole(5, 4, "retention")]),
        AskMark("p", 1),
    ],
)
def test_frame_that_cannot_be_is_refused(frame: LinkFrame) -> None:
    router = FloodRouter("k1", two_levels(), Options())
    with pytest.raises(RemoteError):
        router.frame(0, "m1", frame)


def test_a_stream_that_has_no_mark_is_asked_to_begin_with_one() -> None:
    router = FloodRouter("e1", Network({"e1": ["e1"]}), Options())
    assert router.marked(0.0, 0, {}) == [VectorAdvance({"e1": Version(1, 1)})]
    assert router.marked(0.0, 1, {"e1": Version(1, 1)}) == []
