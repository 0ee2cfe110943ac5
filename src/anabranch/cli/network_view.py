"""Renders a network as text: a picture and a summary of its properties.

A tree is drawn with the site in the centre as its root. A client site whose broker is also a member
of the site above it is not drawn as a line; the label of the site above mentions its clients.

A mesh cannot be drawn as a tree, so each broker gets one line with its neighbours. Lines are folded
at `COLUMNS`. Of many findings only the most severe are printed; `--json` has all of them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap

from anabranch.cli.output import counted
from anabranch.config.addresses import BrokerSettings, PortName, ports_needed
from anabranch.config.network_file import NetworkFile
from anabranch.config.shape import MeshShape, SitesShape
from anabranch.config.survey import Parts, Survey
from anabranch.model.network import Network


def picture(file: NetworkFile) -> Iterator[str]:
    is_mesh = isinstance(file.shape, MeshShape)
    return _mesh_neighbours(file.network) if is_mesh else _tree_drawing(file.network)


def summary(file: NetworkFile, survey: Survey) -> Iterator[str]:
    """Size, paths, protection and single points of failure."""
    is_mesh = isinstance(file.shape, MeshShape)
    return _mesh_summary(file, survey) if is_mesh else _tree_summary(file, survey)


# -- trees -----------------------------------------------------------------------------------------


def _tree_drawing(network: Network) -> Iterator[str]:
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


def _tree_summary(file: NetworkFile, survey: Survey) -> Iterator[str]:
    network = file.network
    yield from _heading(file, survey)
    links = counted(len(survey.links), "link")
    # The sites of a tree of brokers are implicit; do not count them.
    long_form = isinstance(file.shape, SitesShape)
    yield f"{counted(len(network.sites), 'site')}, {links}" if long_form else links
    if survey.hops:
        yield f"longest path: {counted(survey.hops, 'hop')}: {' – '.join(survey.longest_path)}"
    yield _protection(file)
    yield from _copies(file)
    yield from _broker_losses(survey)
    for site in survey.idle_sites:
        yield (
            f"note: site {site} is a leaf without clients and carries no events; to let clients"
            " connect to a site with one broker, give it the name of that broker"
        )


def _heading(file: NetworkFile, survey: Survey) -> Iterator[str]:
    """Name, revision and number of brokers."""
    yield f"network {file.name}, revision {file.revision}, {file.routing} routing"
    relays = f"; {counted(len(survey.relays), 'relay')}" if survey.relays else ""
    edges = f"{counted(len(survey.edges), 'edge')} with clients"
    yield f"{counted(len(file.network.brokers), 'broker')}: {edges}{relays}"


def _protection(file: NetworkFile) -> str:
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


def _copies(file: NetworkFile) -> Iterator[str]:
    """The copies of streams, if any has more than one, and what they protect from."""
    edges: dict[tuple[int, int], list[str]] = {}
    for edge in file.network.edges:
        options = file.options_of(edge)
        edges.setdefault((options.copies, options.confirm), []).append(edge)
    if set(edges) == {(1, 1)}:
        return
    for (copies, confirm), names in edges.items():
        whose = f" of {_named(names)}" if len(edges) > 1 else ""
        yield f"streams{whose}: {counted(copies, 'copy', 'copies')}, {confirm} to confirm an event"
        if confirm == 1:
            yield "  a lost disk can lose confirmed events; publishing waits for no keeper"
        else:
            yield (
                f"  confirmed events survive {counted(confirm - 1, 'lost disk')}; publishing waits"
                f" while {counted(copies - confirm + 1, 'keeper')}"
                f" {'is' if copies == confirm else 'are'} away"
            )


def _broker_losses(survey: Survey) -> Iterator[str]:
    yield "if one broker dies:"
    safe = [relay for relay in survey.relays if relay not in survey.cuts]
    if safe:
        yield f"  {_named(safe)}: no broker is cut off"
    for broker, parts in survey.cuts.items():
        yield f"  {broker}: splits the network: {' | '.join(map(_named, parts))}"
    if len(survey.edges) > 1:
        yield "  an edge: its clients roam to another edge, if they have its address"
    else:
        yield f"  {_named(survey.edges)}: its clients wait until it restarts"


def _named(names: Sequence[str]) -> str:
    """The first twelve names, and the number of the others."""
    shown = " ".join(names[:12])
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} more"


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


COLUMNS = 80
#: Brokers, and links, whose loss is explained.
_SHOWN_MAX = 8
_DIGITS = re.compile("([0-9]+)")


def _mesh_summary(file: NetworkFile, survey: Survey) -> Iterator[str]:
    network = file.network
    yield from _heading(file, survey)
    degrees = [len(network.links_of(broker)) for broker in network.brokers]
    yield f"{counted(len(survey.links), 'link')}; {_span(degrees)} at each broker"
    if survey.hops:
        path = " – ".join(survey.longest_path)
        yield from _folded(f"longest path: {counted(survey.hops, 'hop')}: {path}", "  ")
    yield _protection(file)
    yield from _copies(file)
    yield "if one broker dies:"
    yield from _losses(survey.cuts)
    if len(survey.edges) > 1:
        yield "  an edge: its clients roam to another edge, if they have its address"
    else:
        yield f"  {survey.edges[0]}: its clients wait until it restarts"
    yield "if one link is lost:"
    yield from _losses({" – ".join(link): parts for link, parts in survey.link_cuts.items()})
    for site in survey.idle_sites:
        relay = _named(network.members(site))
        yield f"note: relay {relay} has only one link and carries no events; add another link"


def _mesh_neighbours(network: Network) -> Iterator[str]:
    """One line per broker with its links."""
    brokers = network.brokers
    if all(len(network.links_of(broker)) == len(brokers) - 1 for broker in brokers):
        yield f"every broker has a link to all {len(brokers) - 1} others:"
        yield from _folded(f"  {' '.join(_sorted(brokers))}", "  ")
        return
    labels = {broker: _mesh_label(network, broker) for broker in _sorted(brokers)}
    width = max(map(len, ["broker", *labels.values()]))
    yield f"{'broker':{width}}  links  to"
    for broker, label in labels.items():
        links = _sorted(network.links_of(broker))
        start = f"{label:{width}}  {len(links):5}  "
        yield from _folded(start + " ".join(links), " " * len(start))


def _losses(cuts: Mapping[str, Parts]) -> Iterator[str]:
    if not cuts:
        yield "  no broker is cut off"
        return
    gravest = sorted(cuts, key=lambda name: sum(map(len, cuts[name][1:])), reverse=True)
    for name in gravest[:_SHOWN_MAX]:
        parts = " | ".join(map(_named, cuts[name]))
        yield from _folded(f"  {name}: splits the network: {parts}", "    ")
    if len(cuts) > _SHOWN_MAX:
        yield f"  and {len(cuts) - _SHOWN_MAX} more that split the network; --json lists all"


def _mesh_label(network: Network, broker: str) -> str:
    return broker if broker in network.edges else f"{broker} (relay)"


def _sorted(names: Iterable[str]) -> list[str]:
    """Natural order: b2 before b10."""
    parts = {name: _DIGITS.split(name) for name in names}
    keys = {n: [(int(p), "") if p.isdecimal() else (-1, p) for p in ps] for n, ps in parts.items()}
    return sorted(keys, key=lambda name: (keys[name], name))


def _span(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def _folded(line: str, indent: str) -> list[str]:
    """Wrap a line with a hanging indent."""
    return wrap(
        line, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
