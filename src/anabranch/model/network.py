"""The topology of a network: sites, their brokers, and the joins between sites.

A *site* is a set of interchangeable brokers. Every broker of a site has a link to every other
broker of its own site and of adjacent sites. Rules of every network:

1. A site with the name of a broker is the *client site* of that broker and contains only it.
   Clients attach only there, so every client site is the edge and the origin of one broker.
2. The sites are connected. One site alone is a network too.

A *tree* has redundant sites and one path between any two of them:

3. Joins form no cycle, and a client site is a leaf.
4. A broker may be in several adjacent sites; the hop between its own presences is not a link.

A *mesh* (`cyclic=True`) joins brokers in any way, with many paths between them:

5. Every site has one broker, and every broker one site; a client site need not be a leaf. A broker
   without clients, a *relay*, has a site with another name.

Paths are shortest paths; among equals, the join that was given first wins.

Immutable, except for paths that are computed on first use; the same on every broker of the network.
"""

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from anabranch.model.errors import LocalError


class _Paths(msgspec.Struct, frozen=True, gc=False):
    """Paths from one site: the next site towards each other one, and the number of hops."""

    towards: dict[str, str]
    hops: dict[str, int]


class Network:
    """Sites and their brokers. See the rules at the top of this module."""

    __slots__ = ("_is_mesh", "_is_tree", "_members", "_neighbours", "_paths", "_sites")

    def __init__(
        self,
        sites: Mapping[str, Iterable[str]],
        joins: Iterable[tuple[str, str]] = (),
        *,
        cyclic: bool = False,
    ) -> None:
        self._members: dict[str, tuple[str, ...]] = {s: tuple(b) for s, b in sites.items()}
        self._neighbours: dict[str, tuple[str, ...]] = dict.fromkeys(self._members, ())
        for one, other in joins:
            self._join(one, other)
        self._sites: dict[str, tuple[str, ...]] = {}
        for site, brokers in self._members.items():
            for broker in brokers:
                self._sites[broker] = (*self._sites.get(broker, ()), site)
        self._paths: dict[str, _Paths] = {}
        self._check_sites()
        self._is_mesh = cyclic
        self._is_tree = self._has_no_cycle() and all(map(self._is_leaf, self.edges))
        if cyclic:
            self._check_mesh()
        else:
            self._check_tree()

    def _join(self, one: str, other: str) -> None:
        for site in (one, other):
            if site not in self._members:
                raise LocalError(f"there is no site {site!r} to join")
        if one == other or other in self._neighbours[one]:
            raise LocalError(f"sites {one!r} and {other!r} cannot be joined again")
        self._neighbours[one] += (other,)
        self._neighbours[other] += (one,)

    def _from(self, start: str) -> _Paths:
        """Compute the paths from a site, breadth first."""
        cached = self._paths.get(start)
        if cached is not None:
            return cached
        towards: dict[str, str] = {}
        hops = {start: 0}
        pending = deque([start])
        while pending:
            site = pending.popleft()
            for beyond in self._neighbours[site]:
                if beyond not in hops:
                    towards[beyond] = towards.get(site, beyond)
                    hops[beyond] = hops[site] + 1
                    pending.append(beyond)
        self._paths[start] = _Paths(towards, hops)
        return self._paths[start]

    # -- checks ----------------------------------------------------------------------------------

    def _is_leaf(self, site: str) -> bool:
        return len(self._neighbours[site]) <= 1

    def _is_whole(self) -> bool:
        return len(self._from(next(iter(self._members))).hops) == len(self._members)

    def _has_no_cycle(self) -> bool:
        joins = sum(map(len, self._neighbours.values())) // 2
        return self._is_whole() and joins == len(self._members) - 1

    def _check_sites(self) -> None:
        if not self._members:
            raise LocalError("a network needs at least one site")
        for site, brokers in self._members.items():
            if not brokers or len(set(brokers)) < len(brokers):
                raise LocalError(f"site {site!r} needs brokers, each of them once")

    def _check_tree(self) -> None:
        if not self._has_no_cycle():
            raise LocalError("the sites of a network must be joined to one tree, without a cycle")
        for site, brokers in self._members.items():
            if site in self._sites and not (self._is_leaf(site) and brokers == (site,)):
                raise LocalError(
                    f"site {site!r} is named like a broker; it must be a leaf with that broker only"
                )
        for broker, sites in self._sites.items():
            for site in sites[1:]:
                if not any(site in self._neighbours[other] for other in sites):
                    raise LocalError(
                        f"broker {broker!r} is in {site!r}, apart from its other sites"
                    )

    def _check_mesh(self) -> None:
        if not self._is_whole():
            first, *others = self._members
            apart = next(site for site in others if site not in self._from(first).hops)
            raise LocalError(
                f"the sites of a mesh must be connected; there is no path from {first!r} to"
                f" {apart!r}"
            )
        for site, brokers in self._members.items():
            if len(brokers) > 1 or (site in self._sites and brokers != (site,)):
                raise LocalError(f"site {site!r} of a mesh must have one broker, its own")
        for broker, sites in self._sites.items():
            if len(sites) > 1:
                raise LocalError(f"broker {broker!r} of a mesh is in {sites[0]!r} and {sites[1]!r}")

    @property
    def is_mesh(self) -> bool:
        """Whether it was created as a mesh, so that links may be added."""
        return self._is_mesh

    @property
    def is_tree(self) -> bool:
        """Whether rule 3 holds, as routing protocols with one path to every edge require."""
        return self._is_tree

    # -- brokers and sites ----------------------------------------------------------------------

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self._members)

    @property
    def brokers(self) -> tuple[str, ...]:
        return tuple(self._sites)

    @property
    def edges(self) -> tuple[str, ...]:
        """The brokers to which clients attach: those with a client site."""
        return tuple(broker for broker in self._sites if broker in self._members)

    def members(self, site: str) -> tuple[str, ...]:
        return self._members[site]

    def sites_of(self, broker: str) -> tuple[str, ...]:
        return self._sites[broker]

    def links_of(self, broker: str) -> tuple[str, ...]:
        """Return the brokers that it has links to: those of its own and of adjacent sites."""
        near: dict[str, None] = {}
        for site in self._sites[broker]:
            for adjacent in (site, *self._neighbours[site]):
                near.update(dict.fromkeys(self._members[adjacent]))
        near.pop(broker, None)
        return tuple(near)

    # -- paths -----------------------------------------------------------------------------------

    def neighbours(self, site: str) -> tuple[str, ...]:
        return self._neighbours[site]

    def next_site(self, site: str, target: str) -> str:
        """Return the adjacent site on the path from one site to another."""
        return self._from(site).towards[target]

    def distance(self, site: str, target: str) -> int:
        return self._from(site).hops[target]

    def edges_behind(self, site: str, neighbour: str) -> tuple[str, ...]:
        """Return the edges that are reached from a site through this neighbour."""
        towards = self._from(site).towards
        return tuple(e for e in self.edges if towards.get(e) == neighbour)


def tree_of_brokers(links: Mapping[str, Iterable[str]], relays: Iterable[str] = ()) -> Network:
    """Build a tree in which all brokers except relays host clients: {broker: brokers below it}.

    A broker with neighbours gets a routing site, named `broker*`, besides its client site; so does
    every broker below or above another one.
    """
    names = list(dict.fromkeys([*links, *(child for below in links.values() for child in below)]))
    if len(names) == 1:
        return Network({names[0]: names})
    without_clients = set(relays)
    edges = [name for name in names if name not in without_clients]
    sites = {name: (name,) for name in edges} | {f"{name}*": (name,) for name in names}
    joins = [(name, f"{name}*") for name in edges]
    joins += [(f"{name}*", f"{child}*") for name, below in links.items() for child in below]
    return Network(sites, joins)


def graph_of_brokers(links: Iterable[tuple[str, str]], relays: Iterable[str] = ()) -> Network:
    """Build a mesh in which all brokers except relays host clients, from pairs of linked brokers.

    A relay's site is named `relay*`. Brokers are in the order in which links name them.
    """
    pairs = list(links)
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    without_clients = set(relays)
    if unknown := sorted(without_clients - set(names)):
        raise LocalError(f"there is no broker {unknown[0]!r} that could be a relay")
    site_of = {name: f"{name}*" if name in without_clients else name for name in names}
    sites = {site: (name,) for name, site in site_of.items()}
    return Network(sites, [(site_of[a], site_of[b]) for a, b in pairs], cyclic=True)
