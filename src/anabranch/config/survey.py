"""What the shape of a network means: how far events travel, and who depends on whom.

A broker that dies takes the sites with it of which it is the last broker. What is left of the sites
may fall apart; edges in different parts then hear nothing of each other until the broker is back.
(Nothing is lost meanwhile: origins keep what has not arrived.) Clients of an edge that dies roam to
another edge. A link that is lost, with both of its ends alive, may have the same effect.

A hop is a link that an event crosses. Between two presences of one broker there is none.
"""

from collections.abc import Iterable

import msgspec

from anabranch.config.cutting import Link, cuts, near_of, ordered, parts_without
from anabranch.model.network import Network

Parts = tuple[tuple[str, ...], ...]


class Survey(msgspec.Struct, frozen=True):
    """What there is to say about a network's shape."""

    edges: tuple[str, ...]
    #: Brokers without clients.
    relays: tuple[str, ...]
    #: Pairs of brokers with a link, each pair once.
    links: tuple[Link, ...]
    #: Brokers along the longest of the shortest ways between two edges.
    longest_path: tuple[str, ...]
    #: Broker → the groups its death leaves of the other edges; only where there is more than one.
    cuts: dict[str, Parts]
    #: Link → the same of its loss.
    link_cuts: dict[Link, Parts]
    #: Leaves at which no client can attach: they carry nothing.
    idle_sites: tuple[str, ...]

    @property
    def hops(self) -> int:
        """The length of the longest path."""
        return len(self.longest_path) - 1


def survey(network: Network) -> Survey:
    """Look at a network."""
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
    """Those who are in each part, where there is anybody; largest group first."""
    places = {edge: number for number, edge in enumerate(network.edges)}
    groups = [tuple(broker for broker in part if broker in places) for part in parts]
    found = (group for group in groups if group)
    return tuple(sorted(found, key=lambda group: (-len(group), places[group[0]])))


def _groups_without(network: Network, dead: str) -> Parts:
    """The edges that still reach each other, largest group first."""
    lost = {site for site in network.sites_of(dead) if network.members(site) == (dead,)}
    edges = [edge for edge in network.edges if edge != dead]
    if all(len(network.neighbours(site)) <= 1 for site in lost):
        # Only leaves are gone; what is left hangs together.
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
    """The sites that hang together with this one."""
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
        return _longest_way(network)
    hops = -1
    ends = ("", "")
    for start in network.edges:
        for end, count in _hops_from(network, start).items():
            if count > hops:
                hops, ends = count, (start, end)
    return _way(network, *ends) if hops >= 0 else ()


def _longest_way(network: Network) -> tuple[str, ...]:
    """The same of a mesh, in which every site is a broker and every step is a hop."""
    edges = network.edges
    pairs = ((start, end) for start in edges for end in edges)
    site, end = max(pairs, key=lambda pair: network.distance(*pair))
    way = [site]
    while site != end:
        site = network.next_site(site, end)
        way += network.members(site)
    return tuple(way)


def _hops_from(network: Network, start: str) -> dict[str, int]:
    """Edge → the fewest hops to it."""
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


def _way(network: Network, start: str, end: str) -> tuple[str, ...]:
    """The brokers along one of the shortest ways."""
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
