"""What it costs to detect a pattern at one broker: the events that are under way because of it.

    cost = Σ rate × way of the events that come  +  matches × Σ way to those who want them
           +  what the broker itself has more to do

All three are in events: an event that is under way for a second costs as much as ten that are so
for a tenth. By Little's law the sum is how many events are under way, or wait, at any moment
because the pattern is there. So traffic and delay are one number, and what others have to wait
longer is part of it. Rules:

1. A *way* counts `LINK_S` for every link, and the times of the brokers that have to do with the
   event because of it, as far as they are known (`core.routing.mesh.neighbours`): those between its
   ends, and the one to which a match goes.
2. The broker is a queue with one server, arrivals and service at random (M/M/1): with a share ρ of
   its time taken there are ρ / (1 − ρ) events in it. What it has more to do is the difference that
   the pattern makes to that: against the others' load where it would come, against a load without
   it where it is. Events that are published there come anyway. So the same place costs the same
   seen from within and from without, and the sum over all patterns falls with every move to a
   cheaper place: they cannot chase each other.
3. Beyond `BUSY_MAX` the queue goes on in a straight line: dearer and dearer, and never infinite.

These are functions; they keep no state.

Prior art: the cost model of DCSR (spec PADRES section 4), where TRC is the same sum with the
neighbours' queues one by one, those of origins too, and without what others have to wait longer.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

#: What a link counts for, beside the times of brokers, in seconds.
LINK_S: Final = 0.001
#: Beyond this share of its time a broker is overloaded, whatever the formula says.
BUSY_MAX: Final = 0.95
#: No broker is believed to take longer for an event, in seconds.
TIME_S_MAX: Final = 10.0


class Ways(Protocol):
    """The ways between a broker and edges, in seconds; None where there is none."""

    def come_s(self, edge: str) -> float | None:
        """Of an event that comes from an edge."""

    def go_s(self, edge: str) -> float | None:
        """Of a match that goes to an edge, until it is dealt with there."""


class Load(msgspec.Struct, frozen=True, gc=False):
    """How busy a broker is."""

    #: Events that come per second.
    rate_per_s: float = 0.0
    #: Seconds that one of them waits, and that it takes.
    queue_s: float = 0.0
    match_s: float = 0.0

    @property
    def hop_s(self) -> float:
        """What one event needs to get past this broker."""
        return min(self.queue_s + self.match_s, TIME_S_MAX)


class Traffic(msgspec.Struct, frozen=True):
    """What a pattern brings with it, wherever it is detected."""

    #: Origin → events per second that are needed of it.
    incoming: Mapping[str, float]
    matches_per_s: float = 0.0
    #: Edges that want the matches.
    destinations: tuple[str, ...] = ()

    def handled_at(self, broker: str) -> float:
        """What a broker has to deal with, per second, beside what it has anyway (rule 2)."""
        own = self.incoming.get(broker, 0.0)
        return sum(self.incoming.values()) - own + self.matches_per_s


def waiting(rate_per_s: float, match_s: float) -> float:
    """How many events are in a broker, in the mean (rules 2 and 3)."""
    busy = rate_per_s * match_s
    if busy <= BUSY_MAX:
        return busy / (1 - busy)
    return BUSY_MAX / (1 - BUSY_MAX) + (busy - BUSY_MAX) / (1 - BUSY_MAX) ** 2


def burden(load: Load, events_per_s: float, *, is_here: bool) -> float:
    """How many events more are in a broker with these, which are in its load already if
    the pattern is there."""
    less = max(load.rate_per_s - events_per_s, 0.0) if is_here else load.rate_per_s
    more = less + events_per_s
    return waiting(more, load.match_s) - waiting(less, load.match_s)


def cost_of(
    traffic: Traffic, broker: str, ways: Ways, load: Load, *, is_here: bool
) -> float | None:
    """What a pattern costs at a broker; None if there is no way to somebody it needs."""
    cost = burden(load, traffic.handled_at(broker), is_here=is_here)
    parts = [(rate, ways.come_s(edge)) for edge, rate in traffic.incoming.items()]
    parts += [(traffic.matches_per_s, ways.go_s(edge)) for edge in traffic.destinations]
    for per_s, way_s in parts:
        if way_s is None:
            return None
        cost += per_s * way_s
    return cost


def least_cost(traffic: Traffic, hops: Callable[[str], int]) -> float:
    """What a pattern costs at least, at a broker that is so many links from edges: nobody who says
    less is believed."""
    came = sum(rate * hops(edge) for edge, rate in traffic.incoming.items())
    return LINK_S * (came + traffic.matches_per_s * sum(map(hops, traffic.destinations)))
