"""What choosing paths by load costs a broker: processor time, and memory of its router.

The same market at degree 4 is played with each way to choose paths, one after the other in one
process, several times; the least processor time counts. Fixed paths need no reports of loads, so
they get none. Time is that of the brokers' steps, encoding of what they send included, and of
nothing else. Memory is the sizes of all objects that routers refer to, each counted once.

Unlike all other figures of the evaluation, these depend on the machine.

Prior art: the overhead of dynamic routing, spec PADRES section 5.
"""

import gc
import sys
from collections.abc import Iterable
from types import FunctionType, MethodType, ModuleType

import msgspec

from anabranch.model.network import Network
from anabranch.sim.evaluation.delays import Scene, market_of
from anabranch.sim.evaluation.market import LOADS_EVERY_S

#: (name, way, how often loads are reported in seconds; 0: never).
WAYS = (
    ("fixed", "fixed", 0.0),
    ("dynamic, reports every 10 ms", "dynamic", LOADS_EVERY_S),
    ("dynamic, reports every 100 ms", "dynamic", 0.1),
)
_SHARED = (type, ModuleType, FunctionType, MethodType, Network)


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """What one way costs."""

    way: str
    published: int
    #: Processor time of brokers per event published, and per event over a link.
    event_us: float
    copy_us: float
    #: Of the router of a broker, on average.
    router_bytes: float


def measure(brokers: int, seconds: float, times: int, seed: int) -> list[Overhead]:
    """All ways, so many times each."""
    found: dict[str, list[Overhead]] = {}
    for _ in range(times):
        for name, way, every_s in WAYS:
            scene = Scene(
                part="overhead", case="", way=way, brokers=brokers, seconds=seconds, seed=seed
            )
            found.setdefault(name, []).append(_one(name, scene, every_s))
    return [min(runs, key=lambda run: run.event_us) for runs in found.values()]


def _one(name: str, scene: Scene, every_s: float) -> Overhead:
    market = market_of(scene, every_s)
    gc.collect()
    before = market.world.cpu_s
    market.publish_at(scene.rate * scene.brokers)
    market.wait(scene.seconds)
    market.drain(scene.seconds)
    spent_us = 1e6 * (market.world.cpu_s - before)
    routers = [h.broker.router for h in market.world.hosts.values() if h.broker is not None]
    return Overhead(
        way=name,
        published=market.published,
        event_us=spent_us / max(1, market.published),
        copy_us=spent_us / max(1, market.copies),
        router_bytes=deep_bytes(routers) / len(routers),
    )


def deep_bytes(roots: Iterable[object]) -> int:
    """The bytes of these objects and of all they refer to, but for code and the network."""
    pending, seen, total = list(roots), set[int](), 0
    while pending:
        thing = pending.pop()
        if id(thing) in seen or isinstance(thing, _SHARED):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        pending += gc.get_referents(thing)
    return total
