"""Placement cost: the events in flight because a pattern is detected at a given broker.

    cost = Σ rate × delay of incoming events  +  matches × Σ delay to interested edges
           +  additional load of the broker itself

All three terms are in events: one event in flight for a second costs as much as ten for a tenth of
a second. By Little's law the sum is the number of events in flight or queued at any moment because
the pattern is there. So traffic and delay are one number, and the additional delay of other events
is part of it. Rules:

1. A *delay* counts `LINK_S` for every link, plus the times of the brokers that handle the event
   because of the pattern, as far as known (`core.routing.mesh.placement_facts`): those between its
   ends, and the one that receives a match.
2. The broker is a queue with one server and random arrivals and service times (M/M/1): at a
   utilization ρ it holds ρ / (1 − ρ) events. The additional load is the difference that the pattern
   makes: relative to the present load where it would arrive, relative to the load without it where
   it is. Events published at the broker arrive anyway. So the same place costs the same seen from
   inside and outside, and the total over all patterns decreases with every move to a cheaper place:
   patterns cannot chase each other.
3. Beyond `BUSY_MAX` the queue length is extrapolated linearly: ever more expensive, never infinite.

Rates and matches are estimated from statistics:

4. *A part* receives rate × selectivity of its filter, over all statistics. Events are assumed to
   arrive at random, the parts independently of each other.
5. *OR* adds rates.
6. *AND, THEN, TIMES* combine the events within one window w. For n parts with rates r₁ … rₙ in a
   fixed order there are r₁ ⋯ rₙ wⁿ⁻¹ / (n − 1)! combinations per second, in any order n! times as
   many.
7. *A join* keeps one in d of these, where d is the number of distinct values of the attribute on
   the side that has more of them; one in `JOINED` if that is unknown. A join of the n events of a
   repeated part keeps one in dⁿ⁻¹.
8. *NOT* keeps those without an event: e^−rw.
9. *FIRST, LAST* report at most one match per end event: with r end events per second and m
   combinations, r (1 − e^−m/r).

Composites in the literature take the minimum rate for AND, and have neither windows nor joins.
These are estimates to choose a place by; a join point that has run for a while counts instead.

These are functions; they keep no state.

Prior art: the cost model of DCSR and the cardinalities of atomic and composite subscriptions (spec
PADRES section 4), where TRC is the same sum with the neighbours' queues one by one, those of
origins too, and without the additional delay of other events; joins as in System R.
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

#: Delay of a link besides the times of brokers, in seconds.
LINK_S: Final = 0.001
#: Utilization beyond which the queue length is extrapolated.
BUSY_MAX: Final = 0.95
#: Upper bound of the time that a broker may report for an event, in seconds.
TIME_S_MAX: Final = 10.0


class PathDelays(Protocol):
    """Delays between a broker and edges, in seconds; None if there is no route."""

    def come_s(self, edge: str) -> float | None:
        """Delay of an event from an edge."""

    def go_s(self, edge: str) -> float | None:
        """Delay of a match to an edge, including processing there."""


class BrokerBusyness(msgspec.Struct, frozen=True, gc=False):
    """The load of a broker."""

    #: Incoming events per second.
    rate_per_s: float = 0.0
    #: Seconds that an event waits, and that it takes.
    queue_s: float = 0.0
    match_s: float = 0.0

    @property
    def hop_s(self) -> float:
        """Seconds that an event needs to pass this broker."""
        return min(self.queue_s + self.match_s, TIME_S_MAX)


class PatternTraffic(msgspec.Struct, frozen=True):
    """The traffic of a pattern, independent of where it is detected."""

    #: Origin → events per second that the pattern needs.
    incoming: Mapping[str, float]
    matches_per_s: float = 0.0
    #: Edges that want the matches.
    destinations: tuple[str, ...] = ()

    def handled_at(self, broker: str) -> float:
        """Events per second that the pattern adds to a broker (rule 2)."""
        own = self.incoming.get(broker, 0.0)
        return sum(self.incoming.values()) - own + self.matches_per_s


def waiting(rate_per_s: float, match_s: float) -> float:
    """Mean number of events in a broker (rules 2 and 3)."""
    busy = rate_per_s * match_s
    if busy <= BUSY_MAX:
        return busy / (1 - busy)
    return BUSY_MAX / (1 - BUSY_MAX) + (busy - BUSY_MAX) / (1 - BUSY_MAX) ** 2


def added_load(load: BrokerBusyness, events_per_s: float, *, is_here: bool) -> float:
    """Mean number of events that these add to a broker; they are part of its load already if the
    pattern is there."""
    less = max(load.rate_per_s - events_per_s, 0.0) if is_here else load.rate_per_s
    more = less + events_per_s
    return waiting(more, load.match_s) - waiting(less, load.match_s)


def cost_of(
    traffic: PatternTraffic, broker: str, delays: PathDelays, load: BrokerBusyness, *, is_here: bool
) -> float | None:
    """The cost of a pattern at a broker; None if there is no route to an edge that it needs."""
    cost = added_load(load, traffic.handled_at(broker), is_here=is_here)
    parts = [(rate, delays.come_s(edge)) for edge, rate in traffic.incoming.items()]
    parts += [(traffic.matches_per_s, delays.go_s(edge)) for edge in traffic.destinations]
    for per_s, delay_s in parts:
        if delay_s is None:
            return None
        cost += per_s * delay_s
    return cost


def least_cost(traffic: PatternTraffic, hops: Callable[[str], int]) -> float:
    """The lowest possible cost of a pattern at a broker, by its number of links to edges. Lower
    offers are not credible."""
    incoming = sum(rate * hops(edge) for edge, rate in traffic.incoming.items())
    return LINK_S * (incoming + traffic.matches_per_s * sum(map(hops, traffic.destinations)))


#: One in this many combinations has equal values, if nothing is known about them.
JOINED: Final = 10.0
#: Upper bound of estimates, so that none is infinite.
RATE_MAX: Final = 1e12
#: Conjunctions whose overlaps are computed. An estimate blocks the broker, and is repeated for
#: every origin and at every review of every pattern.
OVERLAPS_MAX: Final = 3


def rate_of(known: Iterable[StreamStatistics], filter: Filter) -> float | None:
    """Quick estimate of the events per second that match a filter; None if no rate is known."""
    rate = events_per_s(known, filter, OVERLAPS_MAX)
    return None if rate is None else min(rate, RATE_MAX)


def part_rates(pattern: Pattern, known: Sequence[StreamStatistics]) -> dict[str, float]:
    """Part → events per second."""
    return {part.name: rate_of(known, part.filter) or 0.0 for part in pattern.parts}


def matches_per_s(
    pattern: Pattern, rates: Mapping[str, float], known: Sequence[StreamStatistics] = ()
) -> float:
    window_s = pattern.window_ns / 1e9
    found = _matches(pattern.root, rates, window_s)
    for join in pattern.joins:
        values = max(_distinct(join.left, known), _distinct(join.right, known))
        ties = _repetitions(pattern.root, join.left.part) - 1 if join.left == join.right else 1
        for _ in range(max(ties, 1)):
            # One by one, since a power of many values may overflow a float.
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
    present = [_matches(each, rates, window_s) for each in items if not isinstance(each, Absent)]
    found = _in_order(present, window_s)
    for each in items:
        if isinstance(each, Absent):
            found *= exp(-min(rates.get(each.part.name, 0.0) * window_s, 700.0))
    return found


def _in_order(rates: Sequence[float], window_s: float) -> float:
    """Combinations per second of one event of each, in this order (rule 6)."""
    # Step by step, so that neither the product nor the factorial overflows.
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
    """Number of events of a match that belong to a part."""
    if isinstance(node, Times):
        return node.count * _repetitions(node.item, part)
    if isinstance(node, Part):
        return int(node.name == part)
    return max((_repetitions(each, part) for each in children_of(node)), default=0)


def _distinct(term: Term, known: Sequence[StreamStatistics]) -> float:
    """Number of distinct values of an attribute."""
    counts = []
    for stream in known:
        attribute = stream.attributes.get(term.attribute)
        if attribute is not None:
            kinds = (attribute.numbers, attribute.texts)
            counts.append(sum(kind.distinct for kind in kinds if kind is not None))
    return max([1.0, *counts]) if counts else JOINED
