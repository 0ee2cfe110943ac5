"""A small model of event routing in meshes: what is wrong with the algorithm as it was printed.

No brokers, no time: a random graph, random loads of its links, trees of advertisements, tables as
subscriptions leave them, and one event that goes from broker to broker. It is played with

- `fixed`: the event stays on the tree of its own advertisement;
- `printed`: at every broker, each subscription that matches picks the cheapest of its (tree, next
  hop) pairs; one copy goes to each next hop picked, and names the tree;
- `printed, trees only`: the same, but only the first broker looks at content; later ones take all
  subscriptions that are on the tree that the copy names;
- `targets`: ours. A copy names the subscriptions it is for, each with a distance, and goes on only
  to a next hop whose distance is smaller.

Counted are cases (one event in one graph) in which some subscriber was notified twice, in which a
copy went in a circle, and in which a subscriber was never notified. As printed, nothing keeps a
copy from going back to where it came from; here nobody sends it there, in favour of the printed
algorithm. A circle is a copy that comes to a broker from the same side and with the same tree as
one of its own ancestors; it ends there.

Prior art: Algorithm 1 of the spec PADRES, section 3.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

import msgspec

#: Brokers of a graph, their links, advertisements, subscriptions; contents an event may have.
_BROKERS = (4, 12)
_DEGREES = (2, 4)
_ADVERTISEMENTS = (2, 4)
_SUBSCRIPTIONS = (2, 6)
_CONTENTS = 8
#: Copies of one event that are looked at; only copies that go in circles reach this number.
_LINKS_MAX = 1_000
#: Where a way ends: at this broker; and where the event came from: its publisher.
_HERE = -1
_PUBLISHER = -2


class Pair(NamedTuple):
    """A way to a subscription: over which tree, to which neighbour, and how far from there."""

    tree: int
    hop: int
    distance: int


class Case(NamedTuple):
    """One graph, its tables, and the event: its content, and the tree it begins with."""

    brokers: int
    #: (from, to) → how busy the link is.
    loads: dict[tuple[int, int], float]
    #: Broker → subscription → its pairs.
    tables: list[dict[int, list[Pair]]]
    #: Subscription → the contents that it wants.
    wanted: list[set[int]]
    content: int
    tree: int
    root: int

    def matching(self) -> set[int]:
        """The subscriptions that are to be notified."""
        return {s for s, contents in enumerate(self.wanted) if self.content in contents}


class Fate(NamedTuple):
    """What became of the event of a case."""

    is_doubled: bool
    is_circling: bool
    is_lost: bool
    #: Links that its copies took.
    links: int


class Copy(NamedTuple):
    """An event on its way."""

    at: int
    came_from: int
    tree: int
    #: Subscription → distance, where the way of routing knows of targets.
    targets: dict[int, int]
    #: What it, and the copies it came of, had come to: (at, came from, tree).
    trail: frozenset[tuple[int, int, int]]


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """All cases of one way of routing."""

    routing: str
    cases: int
    doubled: int
    circling: int
    lost: int
    #: Links taken per event, over cases that ended well.
    links: float


Choose = Callable[[Case, Copy], Iterable[tuple[int, Pair]]]


# -- ways of routing ------------------------------------------------------------------------------


def _cheapest(case: Case, copy: Copy, pairs: Iterable[Pair]) -> list[Pair]:
    """The pair with the least load, if there is one that does not lead back."""
    ways = [pair for pair in pairs if pair.hop != copy.came_from]
    if not ways:
        return []
    return [min(ways, key=lambda pair: (case.loads.get((copy.at, pair.hop), 0.0), pair))]


def fixed(case: Case, copy: Copy) -> Iterable[tuple[int, Pair]]:
    """Stay on the tree."""
    for subscription in case.matching():
        for pair in case.tables[copy.at].get(subscription, ()):
            if pair.tree == copy.tree:
                yield subscription, pair


def printed(case: Case, copy: Copy) -> Iterable[tuple[int, Pair]]:
    """Match again, and pick again."""
    for subscription in sorted(case.matching()):
        for pair in _cheapest(case, copy, case.tables[copy.at].get(subscription, ())):
            yield subscription, pair


def printed_trees_only(case: Case, copy: Copy) -> Iterable[tuple[int, Pair]]:
    """Match once; then every broker on the tree counts as matching."""
    if copy.came_from == _PUBLISHER:
        yield from printed(case, copy)
        return
    for subscription, pairs in sorted(case.tables[copy.at].items()):
        if any(pair.tree == copy.tree for pair in pairs):
            for pair in _cheapest(case, copy, pairs):
                yield subscription, pair


def targets(case: Case, copy: Copy) -> Iterable[tuple[int, Pair]]:
    """Only targets, and only nearer."""
    for subscription, distance in sorted(copy.targets.items()):
        pairs = case.tables[copy.at].get(subscription, ())
        nearer = [pair for pair in pairs if pair.distance < distance]
        for pair in _cheapest(case, copy, nearer):
            yield subscription, pair


ROUTINGS: dict[str, Choose] = {
    "fixed": fixed,
    "printed": printed,
    "printed, trees only": printed_trees_only,
    "targets": targets,
}


# -- playing --------------------------------------------------------------------------------------


def play(case: Case, choose: Choose) -> Fate:
    """Let the event of a case run its course."""
    matching = case.matching()
    everybody = dict.fromkeys(matching, case.brokers + 1)
    pending = [Copy(case.root, _PUBLISHER, case.tree, everybody, frozenset())]
    notified: dict[int, int] = {}
    is_circling, links = False, 0
    while pending and links < _LINKS_MAX:
        copy = pending.pop()
        for onward in _step(case, choose, copy, notified):
            links += 1
            if (onward.at, onward.came_from, onward.tree) in onward.trail:
                is_circling = True
            else:
                pending.append(onward)
    is_doubled = any(notified.get(subscription, 0) > 1 for subscription in matching)
    is_lost = any(subscription not in notified for subscription in matching)
    return Fate(is_doubled, is_circling, is_lost, links)


def _step(case: Case, choose: Choose, copy: Copy, notified: dict[int, int]) -> list[Copy]:
    """What a broker does with a copy: notify its own subscribers, and send copies on."""
    trail = copy.trail | {(copy.at, copy.came_from, copy.tree)}
    by_hop: dict[int, Copy] = {}
    for subscription, pair in choose(case, copy):
        if pair.hop == _HERE:
            notified[subscription] = notified.get(subscription, 0) + 1
            continue
        onward = by_hop.setdefault(pair.hop, Copy(pair.hop, copy.at, pair.tree, {}, trail))
        onward.targets[subscription] = pair.distance
    return list(by_hop.values())


def survey(cases: int, seed: int = 1) -> list[Tally]:
    """Play this many cases with every way of routing."""
    drawn = [draw_case(Random(f"{seed} {number}")) for number in range(cases)]
    return [_tally(name, choose, drawn) for name, choose in ROUTINGS.items()]


def _tally(name: str, choose: Choose, cases: list[Case]) -> Tally:
    fates = [play(case, choose) for case in cases]
    good = [fate.links for fate in fates if not any(fate[:3])]
    return Tally(
        routing=name,
        cases=len(fates),
        doubled=sum(fate.is_doubled for fate in fates),
        circling=sum(fate.is_circling for fate in fates),
        lost=sum(fate.is_lost for fate in fates),
        links=sum(good) / max(1, len(good)),
    )


# -- drawing --------------------------------------------------------------------------------------


def draw_case(rng: Random) -> Case:
    """A random graph with everything in it."""
    brokers = rng.randint(*_BROKERS)
    near = _draw_graph(rng, brokers)
    loads = {(one, other): rng.random() for one, others in enumerate(near) for other in others}
    advertised = [_draw_contents(rng) for _ in range(rng.randint(*_ADVERTISEMENTS))]
    roots = [rng.randrange(brokers) for _ in advertised]
    trees = [_draw_tree(rng, near, root) for root in roots]
    wanted = [_draw_contents(rng) for _ in range(rng.randint(*_SUBSCRIPTIONS))]
    tables: list[dict[int, list[Pair]]] = [{} for _ in range(brokers)]
    for subscription, contents in enumerate(wanted):
        home = rng.randrange(brokers)
        for tree, parents in enumerate(trees):
            if contents & advertised[tree]:
                _subscribe(tables, subscription, home, tree, parents)
    tree = rng.randrange(len(trees))
    content = rng.choice(sorted(advertised[tree]))
    return Case(brokers, loads, tables, wanted, content, tree, roots[tree])


def _draw_graph(rng: Random, brokers: int) -> list[list[int]]:
    """A random tree, and more links until there are enough."""
    links = {(rng.randrange(number), number) for number in range(1, brokers)}
    enough = min(brokers * rng.randint(*_DEGREES) // 2, brokers * (brokers - 1) // 2)
    while len(links) < enough:
        one, other = sorted(rng.sample(range(brokers), 2))
        links.add((one, other))
    near: list[list[int]] = [[] for _ in range(brokers)]
    for one, other in sorted(links):
        near[one].append(other)
        near[other].append(one)
    return near


def _draw_contents(rng: Random) -> set[int]:
    """A range of contents, as a filter would let through."""
    first = rng.randrange(_CONTENTS)
    return set(range(first, min(_CONTENTS, first + rng.randint(1, _CONTENTS))))


def _draw_tree(rng: Random, near: list[list[int]], root: int) -> list[int]:
    """Broker → its parent: from where a flood with random delays came first."""
    parents = [_HERE] * len(near)
    reached: set[int] = set()
    pending = [(0.0, root, _HERE)]
    while pending:
        time, broker, parent = heappop(pending)
        if broker in reached:
            continue
        reached.add(broker)
        parents[broker] = parent
        for other in near[broker]:
            heappush(pending, (time + rng.random(), other, broker))
    return parents


def _subscribe(
    tables: list[dict[int, list[Pair]]], subscription: int, home: int, tree: int, parents: list[int]
) -> None:
    """Leave pairs along a tree, from a subscriber to the root."""
    at, hop, distance = home, _HERE, -1
    while at != _HERE:
        tables[at].setdefault(subscription, []).append(Pair(tree, hop, distance))
        at, hop, distance = parents[at], at, distance + 1
