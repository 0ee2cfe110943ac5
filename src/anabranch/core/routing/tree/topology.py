"""The tree as one site sees it: directions, and what lies behind each.

Seen from a site, every adjacent site is a *direction*. Versions are kept per *edge name*: the
brokers that clients attach to, and, where brokers coarsen, the merging brokers too. A merging
broker (`broker~site`) is a leaf of its own behind a relay site, hosted by a broker of that site; it
has interest like an edge, but neither clients nor ticks. So two questions about a direction have
different answers: which edge names are behind it (vectors), and whether anybody is who publishes
or subscribes (where interest and ticks are to go).

Immutable; computed once per broker.

Prior art: Zhao 2006, §3.1.1 (redundant routing tree), §3.5.1 (merging brokers), §6.1.2 (slices).
"""

from anabranch.model.network import Network


def merging_name(broker: str, site: str) -> str:
    """The name of a broker's merging broker in a site, and of the leaf it is in."""
    return f"{broker}~{site}"


class Topology:
    """A network's sites and, if brokers coarsen, the leaves of their merging brokers."""

    def __init__(self, network: Network, coarsen: bool) -> None:
        self.network = network
        self._coarsen = coarsen

    def merging_of(self, site: str) -> dict[str, str]:
        """The leaves of a site's merging brokers, each with its broker; none at client sites."""
        network = self.network
        if not self._coarsen or len(network.neighbours(site)) < 2:
            return {}
        return {merging_name(broker, site): broker for broker in network.members(site)}


class Outlook:
    """What one site sees of the tree."""

    def __init__(self, topology: Topology, site: str) -> None:
        network = topology.network
        self.site = site
        self.is_client_site = site in network.edges
        merging = topology.merging_of(site)
        #: All adjacent sites, leaves of merging brokers included.
        self.directions = (*network.neighbours(site), *merging)
        #: Direction → the edge names behind it.
        self.behind: dict[str, tuple[str, ...]] = {name: (name,) for name in merging}
        #: Direction → all other edge names: what a receiver there knows through this site.
        self.before: dict[str, tuple[str, ...]] = {}
        for direction in network.neighbours(site):
            beyond = [s for s in network.sites if s != site]
            beyond = [s for s in beyond if network.next_site(site, s) == direction]
            names = [s for s in beyond if s in network.edges]
            self.behind[direction] = (*names, *(n for s in beyond for n in topology.merging_of(s)))
        everything = [name for names in self.behind.values() for name in names]
        if self.is_client_site:
            everything.append(site)
        for direction, there in self.behind.items():
            self.before[direction] = tuple(n for n in everything if n not in there)
        #: Direction → the brokers behind it that clients attach to.
        self.edges_behind = {d: network.edges_behind(site, d) for d in network.neighbours(site)}
        #: Directions where somebody publishes and subscribes.
        self.listening: tuple[str, ...] = tuple(
            d for d in network.neighbours(site) if self.edges_behind[d]
        )
        #: Directions that interest comes from.
        self.sources = (*self.listening, *merging)
        #: Edge name → the direction it is in.
        self.toward = {name: d for d, names in self.behind.items() for name in names}
        self._downstream: dict[str, tuple[str, ...]] = {}

    def downstream(self, stream: str) -> tuple[str, ...]:
        """The directions that ticks of a stream take from here."""
        known = self._downstream.get(stream)
        if known is None:
            back = self.toward.get(stream)
            known = tuple(d for d in self.listening if d != back)
            self._downstream[stream] = known
        return known
