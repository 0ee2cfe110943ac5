"""What it costs to detect a pattern at one broker: the events that are under way because of it.

    cost = Σ rate × way of the events that come  +  matches × Σ way to those who want them
           +  what the broker itself has more to do

All three are in events: an event that is under way for a second costs as much as ten that are so
for a tenth. By Little's law the sum is how many events are under way, or wait, at any moment
because the pattern is there. So traffic and delay are one number, and what others have to wait
longer is part of it. Rules:

1. A *way* counts `LINK_S` for every link, and the times of the brokers that have to do with the
   event because of it, as far as they are known (`core.routing.mesh.link_costs`): those between its
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

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, factorial
from typing import Final, Protocol

import msgspec

from anabranch.model.filter import Filter
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.tree import (
    Absent,
    And,
    Node,
    Or,
    Part,
    Term,
    Then,
    Times,
    Within,
    children_of,
)
from anabranch.model.selectivity import events_per_s
from anabranch.model.statistics import StreamStatistics

#: What a link counts for, beside the times of brokers, in seconds.
LINK_S: Final = 0.001
#: Beyond this share of its time a broker is overloaded, whatever the formula says.
BUSY_MAX: Final = 0.95
#: No broker is believed to take longer for an event, in seconds.
TIME_S_MAX: Final = 10.0


class PathDelays(Protocol):
    """The ways between a broker and edges, in seconds; None where there is none."""

    def come_s(self, edge: str) -> float | None:
        """Of an event that comes from an edge."""

    def go_s(self, edge: str) -> float | None:
        """Of a match that goes to an edge, until it is dealt with there."""


class BrokerBusyness(msgspec.Struct, frozen=True, gc=False):
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


class PatternTraffic(msgspec.Struct, frozen=True):
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


def burden(load: BrokerBusyness, events_per_s: float, *, is_here: bool) -> float:
    """How many events more are in a broker with these, which are in its load already if
    the pattern is there."""
    less = max(load.rate_per_s - events_per_s, 0.0) if is_here else load.rate_per_s
    more = less + events_per_s
    return waiting(more, load.match_s) - waiting(less, load.match_s)


def cost_of(
    traffic: PatternTraffic, broker: str, ways: PathDelays, load: BrokerBusyness, *, is_here: bool
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


def least_cost(traffic: PatternTraffic, hops: Callable[[str], int]) -> float:
    """What a pattern costs at least, at a broker that is so many links from edges: nobody who says
    less is believed."""
    came = sum(rate * hops(edge) for edge, rate in traffic.incoming.items())
    return LINK_S * (came + traffic.matches_per_s * sum(map(hops, traffic.destinations)))


# How many events a pattern needs, and how many matches it will have, from statistics.
#
#
# Rules:
#
# 1. *A part* gets what its filter lets through: rate × selectivity, over all statistics. What comes
#    is guessed to come at random, the parts independently of each other.
# 2. *OR* adds up.
# 3. *AND, THEN, TIMES* combine what lies in one window w. Of n parts with rates r₁ … rₙ in a fixed
#    order there are r₁ ⋯ rₙ wⁿ⁻¹ / (n − 1)! combinations per second, in any order n! times as many.
# 4. *A join* leaves one in d of these, with d the number of different values of the attribute, at
#    the side that has more of them; one in `JOINED` where that is not known. One that ties the n
#    events of a repeated part leaves one in dⁿ⁻¹.
# 5. *NOT* leaves those in which nothing came: e^−rw.
# 6. *FIRST, LAST* report one match at most for an event that ends some: of r ends per second and m
#    combinations, r (1 − e^−m/r).
#
# A composite of the literature takes the least rate for AND, and has neither windows nor joins.
# These are guesses to choose a place by; a join point that has been there for a while counts
# instead.
#
# These are functions; they keep no state.
#
# Prior art: cardinalities of atomic and composite subscriptions, spec PADRES section 4; joins as in
# System R.


#: One in so many combinations has equal values, where nothing is known of them.
JOINED: Final = 10.0
#: No guess is higher, so that none is infinite.
RATE_MAX: Final = 1e12
#: Conjunctions whose overlaps are worked out. A broker that guesses does nothing else meanwhile,
#: and it does so for every origin, and for every pattern again and again.
OVERLAPS_MAX: Final = 3


def rate_of(known: Iterable[StreamStatistics], filter: Filter) -> float | None:
    """How many events per second match a filter, guessed quickly; None if no rate is known."""
    rate = events_per_s(known, filter, OVERLAPS_MAX)
    return None if rate is None else min(rate, RATE_MAX)


def part_rates(pattern: Pattern, known: Sequence[StreamStatistics]) -> dict[str, float]:
    """Part → how many events it gets per second."""
    return {part.name: rate_of(known, part.filter) or 0.0 for part in pattern.parts}


def matches_per_s(
    pattern: Pattern, rates: Mapping[str, float], known: Sequence[StreamStatistics] = ()
) -> float:
    """How many matches there will be, in the mean."""
    window_s = pattern.window_ns / 1e9
    found = _matches(pattern.root, rates, window_s)
    for join in pattern.joins:
        values = max(_distinct(join.left, known), _distinct(join.right, known))
        ties = _repetitions(pattern.root, join.left.part) - 1 if join.left == join.right else 1
        for _ in range(max(ties, 1)):
            # One by one, since the power of many values is more than a float holds.
            found /= values
    if pattern.policy != "ALL" and found > 0:
        ends = _ends(pattern.root, rates)
        found = ends * (1 - exp(-found / ends)) if ends > 0 else 0.0
    return min(found, RATE_MAX)


def _matches(node: Node, rates: Mapping[str, float], window_s: float) -> float:
    match node:
        case Part(name):
            return rates.get(name, 0.0)
        case Or(items):
            return min(sum(_matches(each, rates, window_s) for each in items), RATE_MAX)
        case And(items):
            found = [_matches(each, rates, window_s) for each in items]
            return min(_in_order(found, window_s) * factorial(len(found)), RATE_MAX)
        case Then(items):
            return _sequence(items, rates, window_s)
        case Times(count, item):
            return _in_order([_matches(item, rates, window_s)] * count, window_s)
        case Within(item, window_ns):
            return _matches(item, rates, min(window_s, window_ns / 1e9))


def _sequence(items: Sequence[Node | Absent], rates: Mapping[str, float], window_s: float) -> float:
    there = [_matches(each, rates, window_s) for each in items if not isinstance(each, Absent)]
    found = _in_order(there, window_s)
    for each in items:
        if isinstance(each, Absent):
            found *= exp(-min(rates.get(each.part.name, 0.0) * window_s, 700.0))
    return found


def _in_order(rates: Sequence[float], window_s: float) -> float:
    """Combinations per second of one event of each, in this order (rule 3)."""
    # Step by step, so that neither the product nor the factorial overflows before the quotient.
    found = rates[0]
    for number, rate in enumerate(rates[1:], 1):
        found = min(found * rate * window_s / number, RATE_MAX)
    return found


def _ends(node: Node, rates: Mapping[str, float]) -> float:
    """Events per second that can be the last one of a match."""
    match node:
        case Part(name):
            return rates.get(name, 0.0)
        case Or(items) | And(items):
            return sum(_ends(each, rates) for each in items)
        case Then(items):
            last = [each for each in items if not isinstance(each, Absent)][-1]
            return _ends(last, rates)
        case Times(_, item) | Within(item, _):
            return _ends(item, rates)


def _repetitions(node: Node | Absent, part: str) -> int:
    """How many events of a match stand for a part."""
    if isinstance(node, Times):
        return node.count * _repetitions(node.item, part)
    if isinstance(node, Part):
        return int(node.name == part)
    return max((_repetitions(each, part) for each in children_of(node)), default=0)


def _distinct(term: Term, known: Sequence[StreamStatistics]) -> float:
    """How many values an attribute has, or may have."""
    counts = []
    for stream in known:
        attribute = stream.attributes.get(term.attribute)
        if attribute is not None:
            kinds = (attribute.numbers, attribute.texts)
            counts.append(sum(kind.distinct for kind in kinds if kind is not None))
    return max([1.0, *counts]) if counts else JOINED
