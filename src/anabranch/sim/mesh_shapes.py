"""Meshes for simulations: rings, full meshes and random graphs, and changes of them.

`draw_mesh` returns the network of a seed. The other functions return the network after an operator
adds or removes a link or a broker; None if there is nothing to add or remove.

Rules

1. Every graph is connected and stays so: a link whose loss would split it is not removed, and when
   such a broker is removed, its neighbours get links in its place.
2. At least two brokers have clients. Edges are called `e1`, `e2`, … and relays `m1`, `m2`, …
3. A random graph of degree d contains a random tree, and further links until every broker has d
   links or a link to every other; a few have more.
"""

from collections.abc import Iterable
from itertools import combinations, pairwise
from random import Random
from typing import Literal

from anabranch.config.survey import Link, cuts, near_of, ordered, parts_without
from anabranch.model.network import Network, graph_of_brokers

MeshKind = Literal["any", "ring", "full", "random", "large"]
MESH_KINDS: tuple[MeshKind, ...] = ("any", "ring", "full", "random", "large")
#: Chance that a broker is a relay.
_RELAY = 0.2
#: Links that a new broker has at most.
_NEW_LINKS_MAX = 3
DEGREES = (2, 6)


def draw_mesh(rng: Random, kind: MeshKind = "any", brokers: int | None = None) -> Network:
    """A mesh of this kind, with a given or a random number of brokers."""
    if kind == "any":
        kinds: tuple[MeshKind, ...] = ("ring", "full", "random", "large")
        kind = rng.choices(kinds, (25, 15, 57, 3))[0]
    if kind == "ring":
        size = brokers or rng.randint(3, 8)
        return ring(*draw_names(rng, size))
    if kind == "full":
        size = brokers or rng.randint(3, 6)
        return full_mesh(*draw_names(rng, size))
    size = brokers or (rng.randint(4, 12) if kind == "random" else rng.randint(20, 40))
    return random_mesh(rng, *draw_names(rng, size), rng.randint(*DEGREES))


def draw_names(rng: Random, size: int) -> tuple[list[str], list[str]]:
    """(all brokers, the relays among them)."""
    is_relay = [rng.random() < _RELAY for _ in range(size)]
    is_relay[:2] = [False, False]
    rng.shuffle(is_relay)
    names = [f"{'m' if each else 'e'}{number}" for number, each in enumerate(is_relay, 1)]
    return names, [name for name, each in zip(names, is_relay, strict=True) if each]


def ring(names: list[str], relays: list[str]) -> Network:
    """Every broker has a link to the next, and the last to the first."""
    links = list(pairwise(names))
    closing = [(names[-1], names[0])] if len(names) > 2 else []
    return graph_of_brokers(links + closing, relays)


def full_mesh(names: list[str], relays: list[str]) -> Network:
    """Every broker has a link to every other one."""
    return graph_of_brokers(combinations(names, 2), relays)


def random_mesh(rng: Random, names: list[str], relays: list[str], degree: int) -> Network:
    """A connected graph whose brokers have a given number of links each, or a few more."""
    near: dict[str, set[str]] = {name: set() for name in names}
    links: list[Link] = []

    def join(one: str, other: str) -> None:
        near[one].add(other)
        near[other].add(one)
        links.append((one, other))

    for number in range(1, len(names)):
        join(names[rng.randrange(number)], names[number])
    for name in names:
        while len(near[name]) < min(degree, len(names) - 1):
            others = [each for each in names if each != name and each not in near[name]]
            poor = [each for each in others if len(near[each]) < degree]
            join(name, rng.choice(poor or others))
    return graph_of_brokers(links, relays)


# -- what a mesh becomes --------------------------------------------------------------------------


def with_link(network: Network, rng: Random) -> Network | None:
    """With a link more."""
    links = _links(network)
    missing = [pair for pair in combinations(network.brokers, 2) if ordered(*pair) not in links]
    return _mesh(network, [*links, rng.choice(missing)]) if missing else None


def without_link(network: Network, rng: Random) -> Network | None:
    """Without a link that can be missed."""
    links = _links(network)
    needed = set(cuts(near_of(network))[1])
    spare = [link for link in links if link not in needed]
    if not spare:
        return None
    gone = rng.choice(spare)
    return _mesh(network, [link for link in links if link != gone])


def with_broker(network: Network, rng: Random, name: str, *, is_relay: bool) -> Network:
    """With a broker that has links to some others."""
    count = rng.randint(1, min(_NEW_LINKS_MAX, len(network.brokers)))
    links = [*_links(network), *((name, each) for each in rng.sample(network.brokers, count))]
    return _mesh(network, links, [name] if is_relay else [])


def without_relay(network: Network, rng: Random) -> Network | None:
    """Without one of its relays."""
    relays = _relays(network)
    return without_broker(network, rng, rng.choice(relays)) if relays else None


def without_broker(network: Network, rng: Random, name: str) -> Network:
    """Without a broker of three at least; what it held together gets other links."""
    parts = parts_without(near_of(network), broker=name)
    links = [link for link in _links(network) if name not in link]
    links += [(rng.choice(part), rng.choice(other)) for part, other in pairwise(parts)]
    return _mesh(network, links, without=name)


def _links(network: Network) -> list[Link]:
    pairs = {ordered(a, b): None for a in network.brokers for b in network.links_of(a)}
    return list(pairs)


def _relays(network: Network) -> list[str]:
    return [broker for broker in network.brokers if broker not in network.edges]


def _mesh(
    before: Network, links: list[Link], relays: Iterable[str] = (), without: str = ""
) -> Network:
    kept = [relay for relay in _relays(before) if relay != without]
    return graph_of_brokers(links, [*kept, *relays])
