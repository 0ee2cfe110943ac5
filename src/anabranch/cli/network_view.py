"""Renders a tree network as text: a drawing of its sites and a summary of its properties.

The root of the drawing is the site in the centre. A client site whose broker is also a member of
the site above it is not drawn as a line; the label of the site above mentions its clients.
`mesh_view` renders meshes.
"""

from collections.abc import Iterator, Sequence

from anabranch.config.addresses import BrokerSettings, PortName, ports_needed
from anabranch.config.network_file import NetworkFile
from anabranch.config.shape import SitesShape
from anabranch.config.survey import Survey
from anabranch.model.network import Network


def drawing(network: Network) -> Iterator[str]:
    """The tree of sites, one line each."""
    root = _middle(network)
    yield _label(network, root)
    yield from _below(network, root, "", "")


def _middle(network: Network) -> str:
    def awkwardness(site: str) -> tuple[bool, int, int]:
        farthest = max(network.distance(site, other) for other in network.sites)
        return (site in network.edges, farthest, -len(network.neighbours(site)))

    return min(network.sites, key=awkwardness)


def _below(network: Network, site: str, above: str, indent: str) -> Iterator[str]:
    own = _own_clients(network, site)
    children = [each for each in network.neighbours(site) if each != above and each not in own]
    for child in children:
        last = child == children[-1]
        yield f"{indent}{'└─' if last else '├─'} {_label(network, child)}"
        yield from _below(network, child, site, indent + ("   " if last else "│  "))


def _own_clients(network: Network, site: str) -> list[str]:
    """The adjacent client sites whose broker is also a member of this site."""
    members, edges = network.members(site), network.edges
    return [each for each in network.neighbours(site) if each in edges and each in members]


def _label(network: Network, site: str) -> str:
    members = network.members(site)
    if site in network.edges:
        return f"{site} (clients)"
    own = _own_clients(network, site)
    if len(members) == 1 and list(members) == own:
        return f"{members[0]} (clients)"
    at = f" (clients at {' '.join(own)})" if own else ""
    return f"{site}: {' '.join(members)}{at}"


# -- summary -------------------------------------------------------------------------------------


def summary(file: NetworkFile, survey: Survey) -> Iterator[str]:
    """Size, paths, protection and single points of failure."""
    network = file.network
    yield from heading(file, survey)
    links = counted(len(survey.links), "link")
    # The sites of a tree of brokers are implicit; do not count them.
    long_form = isinstance(file.shape, SitesShape)
    yield f"{counted(len(network.sites), 'site')}, {links}" if long_form else links
    if survey.hops:
        yield f"longest path: {counted(survey.hops, 'hop')}: {' – '.join(survey.longest_path)}"
    yield protection(file)
    yield from _broker_losses(survey)
    for site in survey.idle_sites:
        yield (
            f"note: site {site} is a leaf without clients and carries no events; to let clients"
            " connect to a site with one broker, give it the name of that broker"
        )


def heading(file: NetworkFile, survey: Survey) -> Iterator[str]:
    """Name, revision and number of brokers."""
    yield f"network {file.name}, revision {file.revision}, {file.routing} routing"
    relays = f"; {counted(len(survey.relays), 'relay')}" if survey.relays else ""
    edges = f"{counted(len(survey.edges), 'edge')} with clients"
    yield f"{counted(len(file.network.brokers), 'broker')}: {edges}{relays}"


def protection(file: NetworkFile) -> str:
    """Encryption of connections and authentication of brokers."""
    secret = ""
    if file.secret_file is not None:
        secret = f"; links use the secret in {file.secret_file.name}"
    elif file.tls is None and len(file.brokers) > 1:
        secret = "; brokers are not authenticated"
    if file.tls is not None:
        return f"connections: TLS 1.3 with broker certificates{secret}"
    if all(broker.is_local for broker in file.brokers.values()):
        return f"connections: plaintext, on this machine only{secret}"
    plain = "connections: plaintext between machines, open to anybody on the path"
    return f"{plain}{secret}"


def _broker_losses(survey: Survey) -> Iterator[str]:
    yield "if one broker dies:"
    safe = [relay for relay in survey.relays if relay not in survey.cuts]
    if safe:
        yield f"  {named(safe)}: no broker is cut off"
    for broker, parts in survey.cuts.items():
        yield f"  {broker}: splits the network: {' | '.join(map(named, parts))}"
    if len(survey.edges) > 1:
        yield "  an edge: its clients roam to another edge, if they have its address"
    else:
        yield f"  {named(survey.edges)}: its clients wait until it restarts"


def named(names: Sequence[str]) -> str:
    """The first twelve names, and the number of the others."""
    shown = " ".join(names[:12])
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} more"


def counted(number: int, word: str) -> str:
    """A count with its noun."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


# -- addresses -----------------------------------------------------------------------------------


def address(file: NetworkFile, broker: BrokerSettings, port: PortName) -> str:
    """A port as text: an address, "free" if it is chosen at start, "–" if none is needed."""
    if port not in ports_needed(file.network, broker.name):
        return "–"
    host = broker.observe_host if port == "observe" else broker.host
    number = broker.port(port)
    return f"{f'[{host}]' if ':' in host else host}:{number}" if number else "free"


def state_text(file: NetworkFile, broker: BrokerSettings) -> str:
    """A state directory, relative to the network file if it is below its directory."""
    place = file.path.parent.absolute()
    inside = broker.state.is_relative_to(place)
    return str(broker.state.relative_to(place) if inside else broker.state)
