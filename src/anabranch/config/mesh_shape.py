"""The shape of a network as a graph: `[mesh]` of a network file.

    [mesh]
    links = [["a", "b"], ["b", "c"], ["c", "a"]]
    relays = ["c"]              # brokers without clients

A pair is a link between two brokers, whichever is written first; brokers are those that links name.
Rules:

1. Every link is written once, and leads from one broker to another one.
2. All brokers hang together, and at least one of them serves clients.
3. At most `SITES_MAX` brokers and `LINKS_MAX` links.
4. Cycles are welcome where the routing is `mesh`. The others know one way only to every edge: for
   them the links must form a tree, and the network is the one that `[tree]` would be.
"""

import msgspec

from anabranch.config.cutting import Link, Near, near_over, part_of
from anabranch.config.names import name_problem
from anabranch.config.reading import Table, listed, nearest
from anabranch.model.network import Network, graph_of_brokers, tree_of_brokers

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
