"""The shape of a network: sites, the brokers in them, and how sites are joined.

A *site* is a set of interchangeable brokers; sites form a tree, and every broker of a site has a
link to every broker of the adjacent sites and of its own. Rules:

1. Clients attach only at a *client site*: a leaf of the tree with exactly one broker, named like
   that broker. So every client site is the edge and the origin of one broker.
2. A broker may be in several adjacent sites; the hop between its own presences is no link.
3. Sites are joined to one tree. One site alone is a tree too.

Immutable; the same on every broker of the network.
"""

from collections.abc import Iterable, Mapping

from anabranch.model.errors import LocalError


class Network:
    """Sites and their brokers. See the rules at the top of this module."""

    __slots__ = ("_distance", "_members", "_neighbours", "_next", "_sites")

    def __init__(
        self, sites: Mapping[str, Iterable[str]], joins: Iterable[tuple[str, str]] = ()
    ) -> None:
        self._members: dict[str, tuple[str, ...]] = {s: tuple(b) for s, b in sites.items()}
        self._neighbours: dict[str, tuple[str, ...]] = dict.fromkeys(self._members, ())
        for one, other in joins:
            self._join(one, other)
        self._sites: dict[str, tuple[str, ...]] = {}
        for site, brokers in self._members.items():
            for broker in brokers:
                self._sites[broker] = (*self._sites.get(broker, ()), site)
        #: (from site, to site) → the adjacent site on the way.
        self._next: dict[tuple[str, str], str] = {}
        self._distance: dict[tuple[str, str], int] = {}
        for site in self._members:
            self._explore(site)
        self._check()

    def _join(self, one: str, other: str) -> None:
        for site in (one, other):
            if site not in self._members:
                raise LocalError(f"there is no site {site!r} to join")
        if one == other or other in self._neighbours[one]:
            raise LocalError(f"sites {one!r} and {other!r} cannot be joined again")
        self._neighbours[one] += (other,)
        self._neighbours[other] += (one,)

    def _explore(self, start: str) -> None:
        """Note the way to every other site."""
        self._distance[start, start] = 0
        pending = [(start, start)]
        while pending:
            site, first = pending.pop()
            for beyond in self._neighbours[site]:
                if (start, beyond) in self._distance:
                    continue
                way = beyond if site == start else first
                self._next[start, beyond] = way
                self._distance[start, beyond] = self._distance[start, site] + 1
                pending.append((beyond, way))

    def _check(self) -> None:
        if not self._members:
            raise LocalError("a network needs at least one site")
        joins = sum(map(len, self._neighbours.values())) // 2
        reached = len(self._distance) == len(self._members) ** 2
        if not reached or joins != len(self._members) - 1:
            raise LocalError("the sites of a network must be joined to one tree, without a cycle")
        for site, brokers in self._members.items():
            if not brokers or len(set(brokers)) < len(brokers):
                raise LocalError(f"site {site!r} needs brokers, each of them once")
            leaf = len(self._neighbours[site]) <= 1
            if site in self._sites and not (leaf and brokers == (site,)):
                raise LocalError(
                    f"site {site!r} is named like a broker; it must be a leaf with that broker only"
                )
        for broker, sites in self._sites.items():
            for site in sites[1:]:
                if not any(site in self._neighbours[other] for other in sites):
                    raise LocalError(
                        f"broker {broker!r} is in {site!r}, apart from its other sites"
                    )

    # -- brokers and sites ----------------------------------------------------------------------

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites."""
        return tuple(self._members)

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names of all brokers."""
        return tuple(self._sites)

    @property
    def edges(self) -> tuple[str, ...]:
        """The brokers that clients attach to: those with a client site."""
        return tuple(broker for broker in self._sites if broker in self._members)

    def members(self, site: str) -> tuple[str, ...]:
        """The brokers of a site."""
        return self._members[site]

    def sites_of(self, broker: str) -> tuple[str, ...]:
        """The sites a broker is in."""
        return self._sites[broker]

    def links_of(self, broker: str) -> tuple[str, ...]:
        """The brokers it has links to: those of its own and of adjacent sites."""
        near: dict[str, None] = {}
        for site in self._sites[broker]:
            for around in (site, *self._neighbours[site]):
                near.update(dict.fromkeys(self._members[around]))
        near.pop(broker, None)
        return tuple(near)

    # -- the tree -------------------------------------------------------------------------------

    def neighbours(self, site: str) -> tuple[str, ...]:
        """The adjacent sites."""
        return self._neighbours[site]

    def next_site(self, site: str, target: str) -> str:
        """The adjacent site on the way from one site to another."""
        return self._next[site, target]

    def distance(self, site: str, target: str) -> int:
        """Hops between two sites."""
        return self._distance[site, target]

    def edges_behind(self, site: str, neighbour: str) -> tuple[str, ...]:
        """The edges that are reached from a site through this neighbour."""
        return tuple(e for e in self.edges if e != site and self._next[site, e] == neighbour)


def tree_of_brokers(links: Mapping[str, Iterable[str]]) -> Network:
    """A tree in which every broker hosts clients: {broker: the brokers below it}.

    A broker with neighbours gets a site of its own for routing, named `broker*`, beside its client
    site; so does every broker below or above another one.
    """
    names = list(dict.fromkeys([*links, *(child for below in links.values() for child in below)]))
    if len(names) == 1:
        return Network({names[0]: names})
    sites = {name: (name,) for name in names} | {f"{name}*": (name,) for name in names}
    joins = [(name, f"{name}*") for name in names]
    joins += [(f"{name}*", f"{child}*") for name, below in links.items() for child in below]
    return Network(sites, joins)
