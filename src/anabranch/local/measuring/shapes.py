"""The networks that are measured.

    chain(hops)     origin ── relay-1 ── … ── edge; a hop is a link between two brokers
    twins()         origin ── a site of two relays ── edge

The publisher is at `ORIGIN`, subscribers are at `EDGE`. This module keeps no state.
"""

from collections.abc import Mapping
from pathlib import Path

from anabranch.config.network_file import NetworkFile, loads
from anabranch.core.broker import RoutingName

ORIGIN, EDGE = "origin", "edge"
RELAY = "relay-1"
TWINS = ("relay-1", "relay-2")


def chain(hops: int, routing: RoutingName) -> NetworkFile:
    """A line of brokers, so many links long."""
    relays = {f"site-{number}": (f"relay-{number}",) for number in range(1, hops)}
    return _network(relays, routing)


def twins(routing: RoutingName) -> NetworkFile:
    """Two relays, either of which will do."""
    return _network({"relays": TWINS}, routing)


def _network(relays: Mapping[str, tuple[str, ...]], routing: RoutingName) -> NetworkFile:
    """Sites in a row, from the origin to the edge, with relays in between."""
    row = {ORIGIN: (ORIGIN,), **relays, EDGE: (EDGE,)}
    lines = ["[network]", 'name = "measured"', f'routing = "{routing}"']
    for (site, members), following in zip(row.items(), [*[*row][1:], ""], strict=True):
        brokers = ", ".join(f'"{name}"' for name in members)
        joins = f'"{following}"' if following else ""
        lines += [f"[sites.{site}]", f"brokers = [{brokers}]", f"joins = [{joins}]"]
    return loads("\n".join(lines), Path("measured.toml"))
