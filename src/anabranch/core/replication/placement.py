"""Placement: which brokers keep copies of a stream.

    keepers_of(network, "a", 3)  # ('r2', 'r1')

A stream with n copies has n - 1 *keepers* besides its origin. They are the brokers that the options
of the origin name, or else are chosen by the shape of the network, so that every broker that knows
the network computes the same ones.

Rules

1. The nearest brokers, by links: a tick is confirmed after a round trip to keepers.
2. Among equally near brokers of a tree, relays come first: they lie on the path of the events, and
   have no stream of their own.
3. Otherwise rendezvous hashing decides, with the origin as the key: different origins have
   different keepers, and a broker that joins or leaves changes the keepers of few streams.
4. Keepers that the options name are taken as they are, in their order.

State: none.
"""

from collections.abc import Callable, Iterator, Sequence

from anabranch.core.options import COPIES_MAX, Options
from anabranch.core.rendezvous import ranked
from anabranch.model.errors import LocalError
from anabranch.model.network import Network


def keepers_of(
    network: Network, broker: str, copies: int, keepers: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The keepers of a broker's stream, nearest first: as given, or chosen by the rules above."""
    if problem := copies_problem(network, copies):
        raise LocalError(problem)
    if keepers:
        if problem := keepers_problem(broker, copies, keepers):
            raise LocalError(problem)
        for number in range(len(keepers)):
            if problem := keeper_problem(network, broker, keepers, number):
                raise LocalError(problem)
        return keepers
    chosen: list[str] = []
    if copies > 1:
        for near in _by_distance(network, broker):
            chosen += _ranked(network, broker, near)
            if len(chosen) >= copies - 1:
                break
    assert len(chosen) >= copies - 1, "a network is connected"
    return tuple(chosen[: copies - 1])


def all_keepers(
    network: Network, options_of: Callable[[str], Options]
) -> dict[str, tuple[str, ...]]:
    """Stream → its keepers, for streams that have copies; from the options of their origins."""
    found: dict[str, tuple[str, ...]] = {}
    for edge in network.edges:
        options = options_of(edge)
        if options.copies > 1:
            found[edge] = keepers_of(network, edge, options.copies, options.keepers)
    return found


def copies_problem(network: Network, copies: int) -> str:
    """Why streams of this network cannot have so many copies; "" if they can."""
    brokers = len(network.brokers)
    if copies <= brokers:
        return ""
    return (
        f"a stream has {copies} copies, each at another broker, but the network has"
        f" {_counted(brokers, 'broker')}; give at most copies = {min(brokers, COPIES_MAX)}, or add"
        " brokers"
    )


def keepers_problem(broker: str, copies: int, keepers: Sequence[str]) -> str:
    """Why these are not the right number of keepers; "" if they are."""
    given, needed = len(keepers), copies - 1
    if given == needed:
        return ""
    if not needed:
        return "copies = 1 has no keepers; remove them, or increase copies"
    return (
        f"{_counted(given, 'keeper')} for copies = {copies}; name {_counted(needed, 'keeper')},"
        f" because {broker!r} has one copy itself, or change copies"
    )


def keeper_problem(network: Network, broker: str, keepers: Sequence[str], number: int) -> str:
    """Why this one of the keepers cannot keep the broker's stream; "" if it can."""
    name = keepers[number]
    if name == broker:
        return f"broker {broker!r} always has a copy of its own stream; name another broker"
    if name in keepers[:number]:
        return f"duplicate keeper {name!r}; each copy must be at another broker"
    if name not in network.brokers:
        return f"unknown broker {name!r}; name brokers of the network"
    return ""


def _ranked(network: Network, origin: str, near: Sequence[str]) -> list[str]:
    """Equally near brokers, best keepers first (rules 2 and 3)."""
    ranking = ranked(origin, near)
    if network.is_mesh:
        return list(ranking)
    edges = frozenset(network.edges)
    return sorted(ranking, key=edges.__contains__)


def _by_distance(network: Network, broker: str) -> Iterator[list[str]]:
    """The other brokers: those one link away, those two links away, and so on."""
    seen = {broker}
    near = [broker]
    while near:
        linked = dict.fromkeys(peer for name in near for peer in network.links_of(name))
        near = [name for name in linked if name not in seen]
        seen.update(near)
        if near:
            yield near


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
