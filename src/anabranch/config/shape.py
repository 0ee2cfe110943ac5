"""The shape of a network as a file states it: a tree of brokers, sites and their joins, or a graph.

    [tree]                [sites.core]                 [mesh]
    a = ["b", "c"]        brokers = ["r1", "r2"]       links = [["a", "b"], ["b", "c"], ["c", "a"]]
                          joins = ["west", "east"]

The short form is for trees in which every broker serves clients and none is redundant; the long
form says everything about trees that `model.network` can; `mesh_shape` reads the third. One of
them, never two. Rules, beside those of `model.network`, which all are checked here first because
here it is known where they were broken:

1. A join is written at one of its two sites.
2. A network has at least one client site; otherwise nobody could attach to it.
3. At most `SITES_MAX` sites: every broker keeps the way from every site to every other one.
"""

import re
from collections.abc import Mapping

import msgspec

from anabranch.config.errors import ConfigError
from anabranch.config.survey import Link, Near, near_over, part_of
from anabranch.config.toml_reader import KeyPath, Table, listed, nearest
from anabranch.core.routing.registry import RoutingName
from anabranch.model.errors import LocalError
from anabranch.model.network import Network, graph_of_brokers, tree_of_brokers

# What networks, sites and brokers may be called in a network file.
#
# A broker's name becomes a directory, a name in a certificate and a word on the command line, so it
# is plainer than a name in an event: 1 to 63 ASCII letters, digits, `-`, `_` and `.`, beginning
# with a letter or a digit. A site may also have `*`, as the sites do that a tree of brokers makes.


_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.*-]{0,63}")
_RULE = "1 to 63 of a–z, A–Z, 0–9, '-', '_' and '.', beginning with a letter or digit"


def name_problem(name: str) -> str:
    """Why this cannot name a network or a broker, or ""."""
    return "" if _PLAIN.fullmatch(name) else f"{name[:80]!r} cannot be a name; use {_RULE}"


def site_name_problem(name: str) -> str:
    """Why this cannot name a site, or ""."""
    return "" if _SITE.fullmatch(name) else f"{name[:80]!r} cannot be a name; use {_RULE}"


# The shape of a network as a graph: `[mesh]` of a network file.
#
#
# A pair is a link between two brokers, whichever is written first; brokers are those that links
# name. Rules:
#
# 1. Every link is written once, and leads from one broker to another one.
# 2. All brokers hang together, and at least one of them serves clients.
# 3. At most `SITES_MAX` brokers and `LINKS_MAX` links.
# 4. Cycles are welcome where the routing is `mesh`. The others know one way only to every edge: for
#    them the links must form a tree, and the network is the one that `[tree]` would be.


#: Sites of one network. A mesh has one for each broker, a tree of brokers has two.
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
        """The network of this shape."""
        return graph_of_brokers(self.links, self.relays)

    def tree(self) -> Network:
        """The network of this shape for routings that need a tree."""
        below: dict[str, list[str]] = {name: [] for name in self.brokers}
        for one, other in self.links:
            below[one].append(other)
        return tree_of_brokers(below, self.relays)


def read_mesh(table: Table) -> MeshShape:
    """The shape, or an error that says where it is none."""
    table.only(("links", "relays"))
    links = table.pairs("links")
    if not links:
        raise table.error(
            "links",
            'names no broker; write links = [["a", "b"]], or a single one in [tree]: a = []',
        )
    _check_counts(table, links)
    _check_links(table, links)
    shape = MeshShape(tuple(links), tuple(table.texts("relays")))
    _check_whole(table, shape)
    _check_relays(table, shape)
    return shape


def check_no_cycle(table: Table, shape: MeshShape, routing: str) -> None:
    """Links form a tree, as this routing needs it."""
    near: dict[str, dict[str, None]] = {}
    for number, (one, other) in enumerate(shape.links):
        if one in near and (way := _way(near, one, other)):
            cycle = " – ".join([*way, one])
            raise table.error(
                ("links", number),
                f"closes a cycle: {cycle}; {routing} routing needs a tree: leave one of these links"
                ' out, or write routing = "mesh" in [network]',
            )
        near.setdefault(one, {})[other] = None
        near.setdefault(other, {})[one] = None


# -- inside ---------------------------------------------------------------------------------------


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
                f"{one!r} and {other!r} are linked already, by links[{seen[frozenset(link)]}];"
                " a link goes both ways: remove one",
            )
        seen[frozenset(link)] = number


def _check_whole(table: Table, shape: MeshShape) -> None:
    near = near_over(shape.links)
    first = shape.brokers[0]
    reached = part_of(near, first)
    for number, (one, _) in enumerate(shape.links):
        if one not in reached:
            there = part_of(near, one)
            names = listed(name for name in shape.brokers if name in there)
            raise table.error(
                ("links", number),
                f"{names} cannot be reached from {first!r}; add a link between the two parts",
            )


def _check_relays(table: Table, shape: MeshShape) -> None:
    brokers = shape.brokers
    for number, name in enumerate(shape.relays):
        if name not in brokers:
            raise table.error(
                ("relays", number), f"no link leads to a broker {name!r}; {nearest(name, brokers)}"
            )
        if name in shape.relays[:number]:
            raise table.error(("relays", number), f"relay {name!r} is here twice; remove one")
    if len(shape.relays) == len(brokers):
        raise table.error(
            "relays",
            "every broker is a relay, so nobody could attach; leave out those that serve clients",
        )


def _way(near: Near, start: str, end: str) -> list[str]:
    """From one broker to another along links, or nothing."""
    before = {start: start}
    pending = [start]
    while pending and end not in before:
        name = pending.pop()
        fresh = [each for each in near[name] if each not in before]
        before |= dict.fromkeys(fresh, name)
        pending += fresh
    if end not in before:
        return []
    way = [end]
    while way[-1] != start:
        way.append(before[way[-1]])
    return way[::-1]


#: The tables that say what shape a network has.
SHAPES = ("tree", "sites", "mesh")


class TreeShape(msgspec.Struct, frozen=True, tag="tree"):
    """The short form: each broker, and the brokers below it."""

    below: dict[str, tuple[str, ...]]

    def network(self) -> Network:
        """The network of this shape."""
        return tree_of_brokers(self.below)


class Site(msgspec.Struct, frozen=True):
    """A site, and the sites that are joined to it here."""

    brokers: tuple[str, ...]
    joins: tuple[str, ...] = ()


class SitesShape(msgspec.Struct, frozen=True, tag="sites"):
    """The long form."""

    sites: dict[str, Site]

    def network(self) -> Network:
        """The network of this shape."""
        members = {name: site.brokers for name, site in self.sites.items()}
        return Network(members, [(n, o) for n, site in self.sites.items() for o in site.joins])


Shape = TreeShape | SitesShape | MeshShape


def default_routing(root: Table) -> RoutingName:
    """The routing of a file that does not say one."""
    return "mesh" if root.has("mesh") else "tree"


def read_shape(root: Table, routing: RoutingName) -> tuple[Shape, Network]:
    """The shape of a file's network, or an error that says where it is none."""
    given = [name for name in SHAPES if root.has(name)]
    if len(given) > 1:
        raise root.error(
            given[0], f"there is [{given[1]}] too; describe the network in one way only"
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
        raise table.error((), "names no broker; a single one is written a = []")
    joined = _Joined(table, "a tree", "broker")
    for name, children in below.items():
        _check_name(table, (name,), name_problem(name))
        joined.add(name)
        for number, child in enumerate(children):
            _check_name(table, (name, number), name_problem(child))
            joined.join(name, child, (name, number))
    _check_count(table, 2 * len(joined.groups))
    joined.check_whole()
    return TreeShape(below)


# -- the long form -------------------------------------------------------------------------------


def _read_sites(table: Table) -> SitesShape:
    sites = {name: _read_site(table, name, each) for name, each in table.tables()}
    if not sites:
        raise table.error((), "there is no site; write [sites.NAME] with brokers = [...]")
    _check_count(table, len(sites))
    joined = _Joined(table, "a network's sites form a tree", "site")
    for name in sites:
        joined.add(name)
    for name, site in sites.items():
        for number, other in enumerate(site.joins):
            if other not in sites:
                raise table.error(
                    (name, "joins", number), f"there is no site {other!r}; {nearest(other, sites)}"
                )
            joined.join(name, other, (name, "joins", number))
    joined.check_whole()
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
            raise table.error(("brokers", number), f"broker {broker!r} is here twice; remove one")
    return Site(tuple(brokers), tuple(table.texts("joins")))


def _check_client_sites(
    table: Table, sites: Mapping[str, Site], neighbours: Mapping[str, set[str]]
) -> None:
    brokers = {broker for site in sites.values() for broker in site.brokers}
    if not brokers & set(sites):
        raise table.error(
            (),
            "there is no client site, so nobody could attach; name a site with one broker and at"
            " most one join like that broker",
        )
    for name, site in sites.items():
        if name not in brokers:
            continue
        if site.brokers != (name,):
            raise table.error(
                (name, "brokers"),
                f"{name!r} is also the name of a broker, so this is its client site and holds that"
                f" broker alone; rename the site, or write brokers = [{name!r}]",
            )
        if len(neighbours[name]) > 1:
            others = ", ".join(sorted(neighbours[name]))
            raise table.error(
                (name,),
                f"the client site of broker {name!r} must be a leaf, but it is joined to {others};"
                " join it to one of them",
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
                    " may only be in sites that are joined to each other",
                )


# -- both ----------------------------------------------------------------------------------------


class _Joined:
    """Names joined one by one, which notices the join that closes a cycle."""

    def __init__(self, table: Table, what: str, word: str) -> None:
        self._table = table
        self._what = what
        self._word = word
        self.neighbours: dict[str, set[str]] = {}
        #: Name → all names that can be reached from it; shared by all of these.
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
                key, f"{one!r} and {other!r} are joined already; write it at one of them only"
            )
        if self.groups[one] is self.groups[other]:
            cycle = " – ".join([*self._way(one, other), one])
            raise self._error(
                key, f"closes a cycle: {cycle}; {self._what} has none: leave one of these joins out"
            )
        self.neighbours[one].add(other)
        self.neighbours[other].add(one)
        small, large = sorted((self.groups[one], self.groups[other]), key=len)
        large |= small
        self.groups.update(dict.fromkeys(small, large))

    def check_whole(self) -> None:
        """All of it hangs together."""
        first = next(iter(self.groups))
        apart = [name for name in self.groups if name not in self.groups[first]]
        if apart:
            group = self.groups[apart[0]]
            names = ", ".join(name for name in self.groups if name in group)
            raise self._error(
                (apart[0],), f"{names} is not joined to {first!r} in any way; join it to one tree"
            )

    def _way(self, start: str, end: str) -> list[str]:
        """From one name to another along the joins; there is exactly one way."""
        before = {start: start}
        pending = [start]
        while end not in before:
            name = pending.pop()
            for each in self.neighbours[name] - before.keys():
                before[each] = name
                pending.append(each)
        way = [end]
        while way[-1] != start:
            way.append(before[way[-1]])
        return way[::-1]

    def _error(self, key: KeyPath, message: str) -> ConfigError:
        return self._table.error(key, message)


def _check_name(table: Table, key: KeyPath, problem: str) -> None:
    if problem:
        raise table.error(key, problem)


def _check_count(table: Table, count: int) -> None:
    if count > SITES_MAX:
        raise table.error((), f"{count} sites; a network has at most {SITES_MAX}")


def mention(root: Table, broker: str) -> KeyPath:
    """Where a broker of the network is named first."""
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
