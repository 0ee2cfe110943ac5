"""What holds a graph of brokers together: brokers and links without which it falls apart.

A broker is a *cut* if its neighbours reach each other only through it, and a link if its two ends
do so only over it. One search in depth finds all of both: a broker is left for good only when
everything behind it has been seen, so the earliest broker that can be reached from behind it
without going back tells whether there is a way around.

This module keeps no state. Prior art: R. Tarjan, Depth-first search and linear graph algorithms,
1972.
"""

from collections.abc import Iterable, Iterator, Mapping

from anabranch.model.network import Network

Near = Mapping[str, Iterable[str]]
Link = tuple[str, str]
NO_LINK = ("", "")


def near_of(network: Network) -> dict[str, tuple[str, ...]]:
    """Broker → the brokers it has links to."""
    return {broker: network.links_of(broker) for broker in network.brokers}


def near_over(links: Iterable[Link]) -> dict[str, dict[str, None]]:
    """Broker → the brokers it has links to, of some links."""
    near: dict[str, dict[str, None]] = {}
    for one, other in links:
        near.setdefault(one, {})[other] = None
        near.setdefault(other, {})[one] = None
    return near


def ordered(one: str, other: str) -> Link:
    """A link, with its ends in the order of their names."""
    return (one, other) if one < other else (other, one)


def cuts(near: Near) -> tuple[list[str], list[Link]]:
    """The brokers, and the links, without which this connected graph falls apart."""
    search = _Search(near)
    search.run(next(iter(near)))
    brokers = [name for name in near if name in search.cut_brokers]
    return brokers, [ordered(*link) for link in search.cut_links]


def parts_without(near: Near, *, broker: str = "", link: Link = NO_LINK) -> list[list[str]]:
    """The parts that are left without a broker, or without a link; the largest first."""
    parts: list[list[str]] = []
    seen = {broker}
    for name in near:
        if name not in seen:
            part = part_of(near, name, broker=broker, link=link)
            seen |= part
            parts.append([each for each in near if each in part])
    return sorted(parts, key=len, reverse=True)


def part_of(near: Near, first: str, *, broker: str = "", link: Link = NO_LINK) -> set[str]:
    """All that hang together with this one without a broker, or without a link."""
    gone = ordered(*link)
    part = {first}
    pending = [first]
    while pending:
        name = pending.pop()
        for each in near[name]:
            if each not in part and each != broker and ordered(name, each) != gone:
                part.add(each)
                pending.append(each)
    return part


class _Search:
    """A search in depth over a graph, without recursion: networks may be a thousand long."""

    def __init__(self, near: Near) -> None:
        self._near = near
        #: Broker → when it was found.
        self._found: dict[str, int] = {}
        #: Broker → the earliest one that it, or one behind it, has a link to.
        self._earliest: dict[str, int] = {}
        self.cut_brokers: set[str] = set()
        self.cut_links: list[Link] = []

    def run(self, start: str) -> None:
        """Look at all that hang together with this one."""
        self._find(start)
        branches = 0
        #: (broker, the one it was found from, its neighbours that were not looked at)
        way: list[tuple[str, str, Iterator[str]]] = [(start, "", iter(self._near[start]))]
        while way:
            name, before, rest = way[-1]
            fresh = self._next(name, before, rest)
            if fresh:
                self._find(fresh)
                way.append((fresh, name, iter(self._near[fresh])))
                continue
            way.pop()
            if before == start:
                branches += 1
            if before:
                self._leave(name, before, before == start)
        if branches > 1:
            self.cut_brokers.add(start)

    def _find(self, name: str) -> None:
        self._found[name] = self._earliest[name] = len(self._found)

    def _next(self, name: str, before: str, rest: Iterator[str]) -> str:
        """The next neighbour that was not found yet, or nothing."""
        for each in rest:
            if each not in self._found:
                return each
            if each != before:
                self._earliest[name] = min(self._earliest[name], self._found[each])
        return ""

    def _leave(self, name: str, before: str, is_start: bool) -> None:
        """Everything behind a broker has been seen; go back to the one before it."""
        earliest = self._earliest[name]
        self._earliest[before] = min(self._earliest[before], earliest)
        if earliest >= self._found[before] and not is_start:
            self.cut_brokers.add(before)
        if earliest > self._found[before]:
            self.cut_links.append((before, name))
