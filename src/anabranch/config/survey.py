"""Analysis of a network's shape: path lengths and single points of failure.

When a broker dies, each site of which it was the last broker is lost. The remaining sites may be
partitioned; edges in different parts then exchange no events until the broker restarts. (No event
is lost: origins retain those that have not been delivered.) Clients of a dead edge roam to another
edge. The loss of a link between two live brokers may also partition the network.

A hop is a link that an event crosses. There is no hop between two sites within one broker.

A broker is a *cut* if its neighbours reach each other only through it; a link is one if its two
ends reach each other only over it. One depth-first search finds all cuts: when the search leaves a
broker, it has seen everything behind it, so the earliest broker reachable from behind it shows
whether there is another path. Prior art: R. Tarjan, Depth-first search and linear graph algorithms,
1972.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from anabranch.model.network import Network

Near = Mapping[str, Iterable[str]]
Link = tuple[str, str]
NO_LINK = ("", "")


def near_of(network: Network) -> dict[str, tuple[str, ...]]:
    return {broker: network.links_of(broker) for broker in network.brokers}


def near_over(links: Iterable[Link]) -> dict[str, dict[str, None]]:
    near: dict[str, dict[str, None]] = {}
    for one, other in links:
        near.setdefault(one, {})[other] = None
        near.setdefault(other, {})[one] = None
    return near


def ordered(one: str, other: str) -> Link:
    """A link with its ends in alphabetical order."""
    return (one, other) if one < other else (other, one)


def cuts(near: Near) -> tuple[list[str], list[Link]]:
    """The brokers and the links whose loss would partition this connected graph."""
    search = _Search(near)
    search.run(next(iter(near)))
    brokers = [name for name in near if name in search.cut_brokers]
    return brokers, [ordered(*link) for link in search.cut_links]


def parts_without(near: Near, *, broker: str = "", link: Link = NO_LINK) -> list[list[str]]:
    """The connected parts that remain without a broker or without a link, largest first."""
    parts: list[list[str]] = []
    seen = {broker}
    for name in near:
        if name not in seen:
            part = part_of(near, name, broker=broker, link=link)
            seen |= part
            parts.append([each for each in near if each in part])
    return sorted(parts, key=len, reverse=True)


def part_of(near: Near, first: str, *, broker: str = "", link: Link = NO_LINK) -> set[str]:
    """All brokers connected with this one, without a broker or without a link."""
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
    """An iterative depth-first search: a path may have a thousand brokers."""

    def __init__(self, near: Near) -> None:
        self._near = near
        #: Broker → its discovery order.
        self._found: dict[str, int] = {}
        #: Broker → the earliest broker that it, or one behind it, has a link to.
        self._earliest: dict[str, int] = {}
        self.cut_brokers: set[str] = set()
        self.cut_links: list[Link] = []

    def run(self, start: str) -> None:
        """Search everything connected with this broker."""
        self._find(start)
        branches = 0
        #: (broker, its predecessor, its neighbours not visited yet)
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
        """The next undiscovered neighbour, or ""."""
        for each in rest:
            if each not in self._found:
                return each
            if each != before:
                self._earliest[name] = min(self._earliest[name], self._found[each])
        return ""

    def _leave(self, name: str, before: str, is_start: bool) -> None:
        """Everything behind a broker has been visited; return to its predecessor."""
        earliest = self._earliest[name]
        self._earliest[before] = min(self._earliest[before], earliest)
        if earliest >= self._found[before] and not is_start:
            self.cut_brokers.add(before)
        if earliest > self._found[before]:
            self.cut_links.append((before, name))


Parts = tuple[tuple[str, ...], ...]


class Survey(msgspec.Struct, frozen=True):
    """The properties of a network's shape."""

    edges: tuple[str, ...]
    #: Brokers without clients.
    relays: tuple[str, ...]
    #: Pairs of brokers with a link, each pair once.
    links: tuple[Link, ...]
    #: Brokers along the longest of the shortest paths between two edges.
    longest_path: tuple[str, ...]
    #: Broker → the groups of other edges after its loss; only if there is more than one group.
    cuts: dict[str, Parts]
    #: Link → the groups of edges after its loss; only if there is more than one group.
    link_cuts: dict[Link, Parts]
    #: Leaf sites without clients, which carry no events.
    idle_sites: tuple[str, ...]

    @property
    def hops(self) -> int:
        return len(self.longest_path) - 1


def survey(network: Network) -> Survey:
    edges = network.edges
    near = near_of(network)
    cut_brokers, cut_links = cuts(near)
    if network.is_tree:
        groups = {broker: _groups_without(network, broker) for broker in network.brokers}
    else:
        groups = {b: _edges_of(network, parts_without(near, broker=b)) for b in cut_brokers}
    links = {link: _edges_of(network, parts_without(near, link=link)) for link in cut_links}
    return Survey(
        edges=edges,
        relays=tuple(broker for broker in network.brokers if broker not in edges),
        links=tuple({ordered(a, b): None for a, others in near.items() for b in others}),
        longest_path=_longest_path(network),
        cuts={broker: parts for broker, parts in groups.items() if len(parts) > 1},
        link_cuts={link: parts for link, parts in links.items() if len(parts) > 1},
        idle_sites=tuple(
            site
            for site in network.sites
            if len(network.neighbours(site)) <= 1 and site not in edges
        ),
    )


def _edges_of(network: Network, parts: Iterable[Iterable[str]]) -> Parts:
    """The edges in each part that has any, largest group first."""
    places = {edge: number for number, edge in enumerate(network.edges)}
    groups = [tuple(broker for broker in part if broker in places) for part in parts]
    found = (group for group in groups if group)
    return tuple(sorted(found, key=lambda group: (-len(group), places[group[0]])))


def _groups_without(network: Network, dead: str) -> Parts:
    """Groups of edges that still reach each other without a broker, largest first."""
    lost = {site for site in network.sites_of(dead) if network.members(site) == (dead,)}
    edges = [edge for edge in network.edges if edge != dead]
    if all(len(network.neighbours(site)) <= 1 for site in lost):
        # Only leaves are lost; the rest stays connected.
        return (tuple(edges),) if edges else ()
    part: dict[str, int] = {}
    for site in network.sites:
        if site not in part and site not in lost:
            part |= dict.fromkeys(_part(network, site, lost), len(part))
    groups: dict[int, tuple[str, ...]] = {}
    for edge in edges:
        groups[part[edge]] = (*groups.get(part[edge], ()), edge)
    return tuple(sorted(groups.values(), key=len, reverse=True))


def _part(network: Network, first: str, lost: set[str]) -> set[str]:
    """The sites connected with this one."""
    part = {first}
    fresh = [first]
    while fresh:
        beyond = set(network.neighbours(fresh.pop())) - part - lost
        part |= beyond
        fresh += beyond
    return part


# -- hops ----------------------------------------------------------------------------------------


def _longest_path(network: Network) -> tuple[str, ...]:
    if not network.is_tree:
        return _longest_mesh_path(network)
    hops = -1
    ends = ("", "")
    for start in network.edges:
        for end, count in _hops_from(network, start).items():
            if count > hops:
                hops, ends = count, (start, end)
    return _shortest_path(network, *ends) if hops >= 0 else ()


def _longest_mesh_path(network: Network) -> tuple[str, ...]:
    """The longest path of a mesh, in which every site is a broker and every step is a hop."""
    edges = network.edges
    pairs = ((start, end) for start in edges for end in edges)
    site, end = max(pairs, key=lambda pair: network.distance(*pair))
    way = [site]
    while site != end:
        site = network.next_site(site, end)
        way += network.members(site)
    return tuple(way)


def _hops_from(network: Network, start: str) -> dict[str, int]:
    """Edge → the minimum number of hops to it."""
    edges = set(network.edges)
    found: dict[str, int] = {}
    pending: list[tuple[str, str, dict[str, int]]] = [(start, start, {start: 0})]
    while pending:
        site, before, counts = pending.pop()
        if site in edges:
            found[site] = counts[site]
        pending += [
            (beyond, site, _next_counts(counts, network.members(beyond)))
            for beyond in network.neighbours(site)
            if beyond != before
        ]
    return found


def _next_counts(counts: dict[str, int], members: Iterable[str]) -> dict[str, int]:
    nearest = min(counts.values())
    return {m: min(counts.get(m, nearest + 1), nearest + 1) for m in members}


def _shortest_path(network: Network, start: str, end: str) -> tuple[str, ...]:
    """The brokers along one of the shortest paths."""
    ways: dict[str, tuple[str, ...]] = {start: (start,)}
    site = start
    while site != end:
        site = network.next_site(site, end)
        shortest = min(ways.values(), key=len)
        ways = {
            member: min(ways.get(member, (*shortest, member)), (*shortest, member), key=len)
            for member in network.members(site)
        }
    return ways[end]
