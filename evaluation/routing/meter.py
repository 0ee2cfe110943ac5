"""Counting what goes over links, and what routers do, in a simulated network.

A `Meter` hears of every frame that a broker sends and adds it to the link and the purpose it
serves. Nothing is timed: what is counted is the same on every machine.

    events     ticks with an event, and what else their frames hold
    silence    ticks without one
    vectors    which interest the ticks were filtered by: vectors of marks, and questions for them
    idle       vectors of marks of streams in which nobody publishes
    interest   changes, states and questions of interest
    carried    messages from broker to broker: gaps, replays, releases
    upkeep     greetings and heartbeats

*Control information* is vectors, idle ones included, and interest: what routing by content costs
beside the events.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from anabranch.core.routing.tree.tree import TreeRouter
from anabranch.model.frames import (
    AskInterest,
    AskMark,
    Carry,
    InterestChange,
    InterestState,
    Knowledge,
    LinkFrame,
    MarkIs,
)
from anabranch.sim.world import World

_PURPOSES: dict[type[LinkFrame], str] = {
    MarkIs: "vector_bytes",
    AskMark: "vector_bytes",
    InterestChange: "interest_bytes",
    InterestState: "interest_bytes",
    AskInterest: "interest_bytes",
    Carry: "carried_bytes",
}


class LinkTally(msgspec.Struct, kw_only=True):
    """What went over a link in one direction, or over several together."""

    #: Events, and frames of any kind.
    events: int = 0
    frames: int = 0
    event_bytes: int = 0
    silence_bytes: int = 0
    vector_bytes: int = 0
    idle_bytes: int = 0
    interest_bytes: int = 0
    carried_bytes: int = 0
    upkeep_bytes: int = 0
    #: Of the events' and silence's bytes, those that name a mark in place of its vector.
    digest_bytes: int = 0

    @property
    def control_bytes(self) -> int:
        """What routing by content costs beside the events."""
        return self.vector_bytes + self.idle_bytes + self.interest_bytes

    @property
    def all_bytes(self) -> int:
        """Everything."""
        control = self.control_bytes + self.carried_bytes + self.upkeep_bytes
        return self.event_bytes + self.silence_bytes + control


class RouterTally(msgspec.Struct, kw_only=True):
    """What the router of one broker did."""

    #: Events looked up in an index.
    matches: int = 0
    #: Questions whether ticks may be filtered, and elements of vectors compared to answer them.
    sufficiency_asked: int = 0
    sufficiency_elements: int = 0
    conjunctions_sent: int = 0


Tally = TypeVar("Tally", LinkTally, RouterTally)


class Counts(msgspec.Struct, frozen=True):
    """Everything that was counted up to a moment, or between two."""

    #: (from, to) → what went there.
    links: dict[tuple[str, str], LinkTally]
    routers: dict[str, RouterTally]

    def since(self, earlier: "Counts") -> "Counts":
        """What came after an earlier moment."""
        links = {
            key: _less(tally, earlier.links.get(key, LinkTally()))
            for key, tally in self.links.items()
        }
        routers = {
            name: _less(tally, earlier.routers.get(name, RouterTally()))
            for name, tally in self.routers.items()
        }
        return Counts(links, routers)

    def into(self, *brokers: str) -> LinkTally:
        """All that came to these brokers over links."""
        return added(tally for (_, to), tally in self.links.items() if to in brokers)

    def out_of(self, *brokers: str) -> LinkTally:
        """All that left these brokers over links."""
        return added(tally for (source, _), tally in self.links.items() if source in brokers)

    def everywhere(self) -> LinkTally:
        """All links together."""
        return added(self.links.values())


class Meter:
    """Counts frames; `World.meter` calls it."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Streams in which somebody publishes.
        self.busy: dict[str, None] = {}
        self._links: dict[tuple[str, str], LinkTally] = {}
        world.meter = self._count

    def _count(self, source: str, target: str, frame: LinkFrame, data: bytes) -> None:
        tally = self._links.get((source, target))
        if tally is None:
            tally = self._links[source, target] = LinkTally()
        tally.frames += 1
        if isinstance(frame, Knowledge):
            tally.digest_bytes += _integer_bytes(frame.mark)
            if frame.data:
                tally.events += len(frame.data)
                tally.event_bytes += len(data)
            else:
                tally.silence_bytes += len(data)
        else:
            purpose = _PURPOSES.get(type(frame), "upkeep_bytes")
            if isinstance(frame, MarkIs | AskMark) and frame.stream not in self.busy:
                purpose = "idle_bytes"
            setattr(tally, purpose, getattr(tally, purpose) + len(data))

    def counts(self) -> Counts:
        """Everything so far. What a broker counted in an earlier life is gone with it."""
        links = {key: msgspec.structs.replace(tally) for key, tally in self._links.items()}
        routers: dict[str, RouterTally] = {}
        for name, host in self._world.hosts.items():
            router = None if host.broker is None else host.broker.router
            routers[name] = RouterTally()
            if isinstance(router, TreeRouter):
                every = router.counters.as_dict()
                fields = RouterTally.__struct_fields__
                routers[name] = RouterTally(**{field: every[field] for field in fields})
        return Counts(links, routers)


def _integer_bytes(number: int) -> int:
    """What an integer takes in a frame."""
    return len(msgspec.msgpack.encode(number))


def added(tallies: Iterable[LinkTally]) -> LinkTally:
    """Several links as one."""
    total = LinkTally()
    for tally in tallies:
        for name, value in _numbers(tally).items():
            setattr(total, name, getattr(total, name) + value)
    return total


def _less(later: Tally, earlier: Tally) -> Tally:
    before = _numbers(earlier)
    return type(later)(**{name: value - before[name] for name, value in _numbers(later).items()})


def _numbers(tally: LinkTally | RouterTally) -> Mapping[str, int]:
    return {name: getattr(tally, name) for name in tally.__struct_fields__}
