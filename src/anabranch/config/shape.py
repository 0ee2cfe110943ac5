"""The shape of a network in a network file: a tree of brokers, a tree of sites, or a mesh.

    [tree]                [sites.core]                 [mesh]
    a = ["b", "c"]        brokers = ["r1", "r2"]       links = [["a", "b"], ["b", "c"], ["c", "a"]]
                          joins = ["west", "east"]

`[tree]` is the short form, for trees in which every broker serves clients and none is redundant.
`[sites]` can express every tree of `model.network`. `[mesh]` is a graph: a pair is a link between
two brokers, in either order, and the brokers are those that links name. A file has exactly one of
the three.

Rules of trees, beside those of `model.network`, which are checked here first because the positions
in the file are known here

1. A join is written at one of its two sites.
2. A network has at least one client site; otherwise no client could connect.
3. A network has at most `SITES_MAX` sites: every broker stores the path from every site to every
   other one.

Rules of meshes

4. Every link is written once and connects two different brokers.
5. The graph is connected, and at least one broker serves clients.
6. A mesh has at most `SITES_MAX` brokers and `LINKS_MAX` links.
7. Cycles require `mesh` routing. The other routings support only one path to every edge: for them
   the links must form a tree, and the network equals the one that `[tree]` describes.

Names. The name of a broker becomes a directory, a name in a certificate and a word on the command
line, so it is more restricted than names in events: 1 to 63 ASCII letters, digits, `-`, `_` and
`.`, starting with a letter or digit. A site name may also contain `*`, as the implicit sites of a
tree of brokers do.
"""

import re
from collections.abc import Mapping

import msgspec

from anabranch.config.errors import ConfigError
from anabranch.config.survey import Link, Near, near_over, part_of
from anabranch.config.toml_reader import KeyPath, Table, listed, nearest
from anabranch.core.options import RoutingName
from anabranch.model.errors import LocalError
from anabranch.model.network import Network, graph_of_brokers, tree_of_brokers

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.*-]{0,63}")
_RULE = "1 to 63 of a–z, A–Z, 0–9, '-', '_' and '.', starting with a letter or digit"


def name_problem(name: str) -> str:
    """Why this is not a valid name of a network or broker; "" if it is."""
    return "" if _PLAIN.fullmatch(name) else f"invalid name {name[:80]!r}; use {_RULE}"


def site_name_problem(name: str) -> str:
    """Why this is not a valid name of a site; "" if it is."""
    return "" if _SITE.fullmatch(name) else f"invalid name {name[:80]!r}; use {_RULE}"


# -- meshes ---------------------------------------------------------------------------------------

#: Sites of one network. A mesh has one per broker, a tree of brokers has two.
SITES_MAX = 1_024
#: Links of one mesh.
LINKS_MAX = 16_384


class MeshShape(msgspec.Struct, frozen=True, tag="mesh"):
    """Links between brokers, and the brokers among them that serve no clients."""

    links: tuple[Link, ...]
    relays: tuple[str, ...] = ()

    @property
    def brokers(self) -> tuple[str, ...]:
        """All brokers, in the order in which links name them."""
        return tuple(dict.fromkeys(name for link in self.links for name in link))

    def network(self) -> Network:
        return graph_of_brokers(self.links, self.relays)

    def tree(self) -> Network:
        """The network of this shape for routings that need a tree."""
        below: dict[str, list[str]] = {name: [] for name in self.brokers}
        for one, other in self.links:
            below[one].append(other)
        return tree_of_brokers(below, self.relays)


def read_mesh(table: Table) -> MeshShape:
    table.only(("links", "relays"))
    links = table.pairs("links")
    if not links:
        raise table.error(
            "links",
            'has no broker; write links = [["a", "b"]], or for a single broker [tree]: a = []',
        )
    _check_counts(table, links)
    _check_links(table, links)
    shape = MeshShape(tuple(links), tuple(table.texts("relays")))
    _check_connected(table, shape)
    _check_relays(table, shape)
    return shape


def check_no_cycle(table: Table, shape: MeshShape, routing: str) -> None:
    """Check that the links form a tree, which this routing requires."""
    near: dict[str, dict[str, None]] = {}
    for number, (one, other) in enumerate(shape.links):
        if one in near and (path := _path(near, one, other)):
            cycle = " – ".join([*path, one])
            raise table.error(
                ("links", number),
                f"closes a cycle: {cycle}; {routing} routing requires a tree: remove one of these"
                ' links, or write routing = "mesh" in [network]',
            )
        near.setdefault(one, {})[other] = None
        near.setdefault(other, {})[one] = None


def _check_counts(table: Table, links: list[Link]) -> None:
    if len(links) > LINKS_MAX:
        raise table.error("links", f"{len(links)} links; a mesh has at most {LINKS_MAX}")
    brokers = len({name for link in links for name in link})
    if brokers > SITES_MAX:
        raise table.error((), f"{brokers} brokers; a mesh has at most {SITES_MAX}")


def _check_links(table: Table, links: list[Link]) -> None:
    seen: dict[frozenset[str], int] = {}
    for number, link in enumerate(links):
        for end, name in enumerate(link):
            if problem := name_problem(name):
                raise table.error(("links", number, end), problem)
        one, other = link
        if one == other:
            raise table.error(
                ("links", number), f"broker {one!r} is linked to itself; remove this link"
            )
        if frozenset(link) in seen:
            raise table.error(
                ("links", number),
                f"{one!r} and {other!r} are already linked by links[{seen[frozenset(link)]}];"
                " links go both ways: remove one",
            )
        seen[frozenset(link)] = number


def _check_connected(table: Table, shape: MeshShape) -> None:
    near = near_over(shape.links)
    first = shape.brokers[0]
    reached = part_of(near, first)
    for number, (one, _) in enumerate(shape.links):
        if one not in reached:
            part = part_of(near, one)
            names = listed(name for name in shape.brokers if name in part)
            raise table.error(
                ("links", number),
                f"{names} cannot be reached from {first!r}; add a link between the two parts",
            )


def _check_relays(table: Table, shape: MeshShape) -> None:
    brokers = shape.brokers
    for number, name in enumerate(shape.relays):
        if name not in brokers:
            raise table.error(
                ("relays", number), f"no link names broker {name!r}; {nearest(name, brokers)}"
            )
        if name in shape.relays[:number]:
            raise table.error(("relays", number), f"duplicate relay {name!r}; remove one")
    if len(shape.relays) == len(brokers):
        raise table.error(
            "relays",
            "every broker is a relay, so no client could connect; remove those that serve clients",
        )


def _path(near: Near, start: str, end: str) -> list[str]:
    """A path from one broker to another, or []."""
    before = {start: start}
    pending = [start]
    while pending and end not in before:
        name = pending.pop()
        fresh = [each for each in near[name] if each not in before]
        before |= dict.fromkeys(fresh, name)
        pending += fresh
    if end not in before:
        return []
    path = [end]
    while path[-1] != start:
        path.append(before[path[-1]])
    return path[::-1]


# -- all shapes -----------------------------------------------------------------------------------

#: The tables that describe a shape.
SHAPES = ("tree", "sites", "mesh")


class TreeShape(msgspec.Struct, frozen=True, tag="tree"):
    """The short form: each broker, and the brokers below it."""

    below: dict[str, tuple[str, ...]]

    def network(self) -> Network:
        return tree_of_brokers(self.below)


class Site(msgspec.Struct, frozen=True):
    """A site, and the joins that are written at it."""

    brokers: tuple[str, ...]
    joins: tuple[str, ...] = ()


class SitesShape(msgspec.Struct, frozen=True, tag="sites"):
    """The long form."""

    sites: dict[str, Site]

    def network(self) -> Network:
        members = {name: site.brokers for name, site in self.sites.items()}
        return Network(members, [(n, o) for n, site in self.sites.items() for o in site.joins])


Shape = TreeShape | SitesShape | MeshShape


def default_routing(root: Table) -> RoutingName:
    """The routing of a file that does not specify one."""
    return "mesh" if root.has("mesh") else "tree"


def read_shape(root: Table, routing: RoutingName) -> tuple[Shape, Network]:
    given = [name for name in SHAPES if root.has(name)]
    if len(given) > 1:
        raise root.error(
            given[0], f"the file also has [{given[1]}]; describe the network in one form only"
        )
    if not given:
        raise root.error(
            "tree",
            'is missing; add [tree] with a line such as a = ["b", "c"], or [sites.NAME], or [mesh]',
        )
    table = root.table(given[0])
    try:
        return _read(table, given[0], routing)
    except LocalError as error:
        if isinstance(error, ConfigError):
            raise
        raise table.error((), str(error)) from None


def _read(table: Table, form: str, routing: RoutingName) -> tuple[Shape, Network]:
    if form == "mesh":
        mesh = read_mesh(table)
        if routing == "mesh":
            return mesh, mesh.network()
        check_no_cycle(table, mesh, routing)
        _check_count(table, 2 * len(mesh.brokers))
        return mesh, mesh.tree()
    shape = _read_tree(table) if form == "tree" else _read_sites(table)
    return shape, shape.network()


# -- the short form ------------------------------------------------------------------------------


def _read_tree(table: Table) -> TreeShape:
    below = {name: tuple(table.texts(name)) for name in table.values}
    if not below:
        raise table.error((), "has no broker; for a single broker write a = []")
    joined = _Joins(table, "a tree", "broker")
    for name, children in below.items():
        _check_name(table, (name,), name_problem(name))
        joined.add(name)
        for number, child in enumerate(children):
            _check_name(table, (name, number), name_problem(child))
            joined.join(name, child, (name, number))
    _check_count(table, 2 * len(joined.groups))
    joined.check_connected()
    return TreeShape(below)


# -- the long form -------------------------------------------------------------------------------


def _read_sites(table: Table) -> SitesShape:
    sites = {name: _read_site(table, name, each) for name, each in table.tables()}
    if not sites:
        raise table.error((), "has no site; write [sites.NAME] with brokers = [...]")
    _check_count(table, len(sites))
    joined = _Joins(table, "a tree of sites", "site")
    for name in sites:
        joined.add(name)
    for name, site in sites.items():
        for number, other in enumerate(site.joins):
            if other not in sites:
                raise table.error(
                    (name, "joins", number), f"unknown site {other!r}; {nearest(other, sites)}"
                )
            joined.join(name, other, (name, "joins", number))
    joined.check_connected()
    _check_client_sites(table, sites, joined.neighbours)
    _check_presences(table, sites, joined.neighbours)
    return SitesShape(sites)


def _read_site(sites: Table, name: str, table: Table) -> Site:
    _check_name(sites, (name,), site_name_problem(name))
    table.only(("brokers", "joins"))
    brokers = table.texts("brokers")
    if not brokers:
        raise table.error("brokers", 'a site needs brokers; write brokers = ["r1", "r2"]')
    for number, broker in enumerate(brokers):
        _check_name(table, ("brokers", number), name_problem(broker))
        if broker in brokers[:number]:
            raise table.error(("brokers", number), f"duplicate broker {broker!r}; remove one")
    return Site(tuple(brokers), tuple(table.texts("joins")))


def _check_client_sites(
    table: Table, sites: Mapping[str, Site], neighbours: Mapping[str, set[str]]
) -> None:
    brokers = {broker for site in sites.values() for broker in site.brokers}
    if not brokers & set(sites):
        raise table.error(
            (),
            "has no client site, so no client could connect; give a site with one broker and at"
            " most one join the name of that broker",
        )
    for name, site in sites.items():
        if name not in brokers:
            continue
        if site.brokers != (name,):
            raise table.error(
                (name, "brokers"),
                f"{name!r} is also the name of a broker, so this is its client site and must"
                f" contain only that broker; rename the site, or write brokers = [{name!r}]",
            )
        if len(neighbours[name]) > 1:
            others = ", ".join(sorted(neighbours[name]))
            raise table.error(
                (name,),
                f"the client site of broker {name!r} must be a leaf, but it is joined to {others};"
                " keep only one of these joins",
            )


def _check_presences(
    table: Table, sites: Mapping[str, Site], neighbours: Mapping[str, set[str]]
) -> None:
    present: dict[str, list[str]] = {}
    for name, site in sites.items():
        for broker in site.brokers:
            present.setdefault(broker, []).append(name)
    for broker, where in present.items():
        for name in where[1:]:
            if not any(name in neighbours[other] for other in where):
                number = sites[name].brokers.index(broker)
                raise table.error(
                    (name, "brokers", number),
                    f"broker {broker!r} is also in {where[0]!r}, which is not adjacent; a broker"
                    " may be only in sites that are joined to each other",
                )


# -- joins ---------------------------------------------------------------------------------------


class _Joins:
    """Adds joins one by one and detects the join that closes a cycle."""

    def __init__(self, table: Table, what: str, word: str) -> None:
        self._table = table
        self._what = what
        self._word = word
        self.neighbours: dict[str, set[str]] = {}
        #: Name → the set of all names connected with it, which they share.
        self.groups: dict[str, set[str]] = {}

    def add(self, name: str) -> None:
        self.neighbours.setdefault(name, set())
        self.groups.setdefault(name, {name})

    def join(self, one: str, other: str, key: KeyPath) -> None:
        self.add(one)
        self.add(other)
        if one == other:
            raise self._error(key, f"{self._word} {one!r} is joined to itself; remove it")
        if other in self.neighbours[one]:
            raise self._error(
                key, f"{one!r} and {other!r} are already joined; write a join at one of them only"
            )
        if self.groups[one] is self.groups[other]:
            cycle = " – ".join([*self._path(one, other), one])
            raise self._error(
                key,
                f"closes a cycle: {cycle}; {self._what} has no cycles: remove one of these joins",
            )
        self.neighbours[one].add(other)
        self.neighbours[other].add(one)
        small, large = sorted((self.groups[one], self.groups[other]), key=len)
        large |= small
        self.groups.update(dict.fromkeys(small, large))

    def check_connected(self) -> None:
        first = next(iter(self.groups))
        apart = [name for name in self.groups if name not in self.groups[first]]
        if apart:
            group = self.groups[apart[0]]
            names = ", ".join(name for name in self.groups if name in group)
            raise self._error(
                (apart[0],), f"{names} is not connected with {first!r}; join the parts"
            )

    def _path(self, start: str, end: str) -> list[str]:
        """The only path from one name to another along the joins."""
        before = {start: start}
        pending = [start]
        while end not in before:
            name = pending.pop()
            for each in self.neighbours[name] - before.keys():
                before[each] = name
                pending.append(each)
        path = [end]
        while path[-1] != start:
            path.append(before[path[-1]])
        return path[::-1]

    def _error(self, key: KeyPath, message: str) -> ConfigError:
        return self._table.error(key, message)


def _check_name(table: Table, key: KeyPath, problem: str) -> None:
    if problem:
        raise table.error(key, problem)


def _check_count(table: Table, count: int) -> None:
    if count > SITES_MAX:
        raise table.error((), f"{count} sites; a network has at most {SITES_MAX}")


def mention(root: Table, broker: str) -> KeyPath:
    """The position where a broker is first named."""
    for number, link in enumerate(root.table("mesh").pairs("links")):
        if broker in link:
            return ("mesh", "links", number, link.index(broker))
    for key in ("tree", "sites"):
        for name, value in root.table(key).values.items():
            inside = isinstance(value, dict)
            place: KeyPath = (key, name, "brokers") if inside else (key, name)
            members = value.get("brokers") if isinstance(value, dict) else value
            if key == "tree" and name == broker:
                return place
            if isinstance(members, list) and broker in members:
                return (*place, members.index(broker))
    return ()
