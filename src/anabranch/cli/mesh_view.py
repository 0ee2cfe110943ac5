"""Renders a mesh as text: the links of each broker and a summary of its properties.

A mesh cannot be drawn as a tree, so each broker gets one line with its neighbours. Lines are folded
at `COLUMNS`. Of many findings only the most severe are printed; `--json` has all of them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap

from anabranch.cli.network_view import counted, heading, named, protection
from anabranch.config.network_file import NetworkFile
from anabranch.config.survey import Parts, Survey
from anabranch.model.network import Network

COLUMNS = 80
#: Brokers, and links, whose loss is explained.
_SHOWN_MAX = 8
_DIGITS = re.compile("([0-9]+)")


def summary(file: NetworkFile, survey: Survey) -> Iterator[str]:
    """Size, paths, protection and single points of failure."""
    network = file.network
    yield from heading(file, survey)
    degrees = [len(network.links_of(broker)) for broker in network.brokers]
    yield f"{counted(len(survey.links), 'link')}; {_span(degrees)} at each broker"
    if survey.hops:
        path = " – ".join(survey.longest_path)
        yield from _folded(f"longest path: {counted(survey.hops, 'hop')}: {path}", "  ")
    yield protection(file)
    yield "if one broker dies:"
    yield from _losses(survey.cuts)
    if len(survey.edges) > 1:
        yield "  an edge: its clients roam to another edge, if they have its address"
    else:
        yield f"  {survey.edges[0]}: its clients wait until it restarts"
    yield "if one link is lost:"
    yield from _losses({" – ".join(link): parts for link, parts in survey.link_cuts.items()})
    for site in survey.idle_sites:
        relay = named(network.members(site))
        yield f"note: relay {relay} has only one link and carries no events; add another link"


def neighbours(network: Network) -> Iterator[str]:
    """One line per broker with its links."""
    brokers = network.brokers
    if all(len(network.links_of(broker)) == len(brokers) - 1 for broker in brokers):
        yield f"every broker has a link to all {len(brokers) - 1} others:"
        yield from _folded(f"  {' '.join(_sorted(brokers))}", "  ")
        return
    labels = {broker: _label(network, broker) for broker in _sorted(brokers)}
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
        parts = " | ".join(map(named, cuts[name]))
        yield from _folded(f"  {name}: splits the network: {parts}", "    ")
    if len(cuts) > _SHOWN_MAX:
        yield f"  and {len(cuts) - _SHOWN_MAX} more that split the network; --json lists all"


def _label(network: Network, broker: str) -> str:
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
