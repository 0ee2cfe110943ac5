"""`anabranch top`: live event rates, links, queues and lag of brokers.

Queries all brokers periodically (`status`) and shows rates per second, with as many columns as fit.
`--once` shows one interval and exits, for scripts.
"""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from anabranch.cli.output import print_json
from anabranch.cli.screen import Column, console, fitted, room, show
from anabranch.cli.status import TokenFile, ask_all, brokers_of
from anabranch.cli.status_view import Asked, lag, links_up, queued_bytes, size
from anabranch.core.patterns.join_points.join_points import PatternsReport
from anabranch.core.routing.contract import MeshReport
from anabranch.node.status import Status

#: Column → the counter whose rate it shows.
_RATES = {
    "taken/s": "events_taken",
    "safe/s": "events_confirmed",
    "forw/s": "events_forwarded",
    "deliv/s": "events_delivered",
}
_COLUMNS = (
    Column("broker"),
    Column("state", rank=3),
    Column("taken/s", is_number=True),
    Column("safe/s", rank=4, is_number=True),
    Column("forw/s", rank=1, is_number=True),
    Column("deliv/s", is_number=True),
    Column("in/s", rank=6, is_number=True),
    Column("out/s", rank=6, is_number=True),
    Column("cpu", rank=1, is_number=True),
    Column("links", rank=2, is_number=True),
    Column("clients", rank=5, is_number=True),
    Column("lag", is_number=True),
    Column("queued", rank=5, is_number=True),
    Column("memory", rank=4, is_number=True),
)


#: Additional columns of mesh networks → their counters.
_MESH_RATES = {
    "moved/s": "targets_moved",
    "drop/s": "targets_dropped",
    "unfilt/s": "data_unfiltered",
}
_MESH_COLUMNS = (
    Column("trees", rank=3, is_number=True),
    Column("moved/s", rank=2, is_number=True),
    Column("drop/s", rank=2, is_number=True),
    Column("unfilt/s", rank=3, is_number=True),
)


#: Additional columns of networks with patterns.
_PATTERN_COLUMNS = (
    Column("patterns", rank=3, is_number=True),
    Column("match/s", rank=1, is_number=True),
)


class Sample:
    """The answers of all brokers at one time."""

    def __init__(self, asked: list[Asked]) -> None:
        self.at_s = monotonic()
        self.asked = asked

    def of(self, name: str) -> Status | None:
        return next((each.status for each in self.asked if each.name == name), None)


def top(
    addresses: Annotated[
        list[str] | None, typer.Argument(help="Observe ports, HOST:PORT.", show_default=False)
    ] = None,
    network: Annotated[
        Path | None, typer.Option("--network", "-n", help="Watch all brokers of this network file.")
    ] = None,
    every_s: Annotated[
        float, typer.Option("--every", min=0.1, max=3_600, help="Seconds between updates.")
    ] = 1.0,
    *,
    token_file: TokenFile = None,
    once: Annotated[bool, typer.Option("--once", help="Show one interval and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --once: print one JSON document per broker.")
    ] = False,
) -> None:
    """Watch event rates, links, queues and lag of brokers."""
    brokers = brokers_of(network, addresses or [], token_file)
    if once:
        before, after = asyncio.run(_two_samples(brokers, every_s))
        if as_json:
            for each in after.asked:
                print_json({"broker": each.name, **rates(before, after, each.name)})
        else:
            screen = console()
            show(screen, picture(before, after, room(screen)))
        return
    with Live(Text("querying …"), console=console(), auto_refresh=False, screen=True) as live:
        asyncio.run(_watch(brokers, every_s, live))


async def _two_samples(brokers: list[Asked], every_s: float) -> tuple[Sample, Sample]:
    before = Sample(await ask_all(brokers))
    await asyncio.sleep(every_s)
    # The first answers replaced addresses with broker names.
    return before, Sample(await ask_all(before.asked))


async def _watch(brokers: list[Asked], every_s: float, live: Live) -> None:
    before = Sample(await ask_all(brokers))
    while True:
        await asyncio.sleep(every_s)
        after = Sample(await ask_all(before.asked))
        live.update(picture(before, after, room(live.console)), refresh=True)
        before = after


def rates(before: Sample, after: Sample, name: str) -> dict[str, float]:
    """Rates of a broker between two samples; empty if it is down or has restarted."""
    one, other = before.of(name), after.of(name)
    if one is None or other is None or one.life != other.life:
        return {}
    seconds = max(after.at_s - before.at_s, 1e-9)
    found = {
        column: (other.counters[counter] - one.counters[counter]) / seconds
        for column, counter in _RATES.items()
    }
    found["in/s"] = (_bytes(other, "received_bytes") - _bytes(one, "received_bytes")) / seconds
    found["out/s"] = (_bytes(other, "sent_bytes") - _bytes(one, "sent_bytes")) / seconds
    found["cpu"] = (other.cpu_s - one.cpu_s) / seconds
    if one.patterns is not None and other.patterns is not None and other.patterns.patterns:
        found["match/s"] = (other.patterns.reported - one.patterns.reported) / seconds
    if other.mesh is not None:
        found |= {
            column: (other.routing_counters[counter] - one.routing_counters[counter]) / seconds
            for column, counter in _MESH_RATES.items()
        }
    return found


def _bytes(status: Status, field: str) -> int:
    return sum(getattr(link, field) for link in status.links)


def picture(before: Sample, after: Sample, width: int) -> Table:
    """One row per broker, and a row of totals."""
    statuses = [each.status for each in after.asked if each.status is not None]
    is_mesh = any(status.mesh is not None for status in statuses)
    is_detecting = any(each.patterns is not None and each.patterns.patterns for each in statuses)
    rows: list[list[str]] = []
    sums: dict[str, float] = {}
    for each in after.asked:
        found = rates(before, after, each.name)
        for column, value in found.items():
            sums[column] = sums.get(column, 0.0) + value
        cells = _cells(each.status, found)
        if each.status is not None:
            cells += _pattern_cells(each.status.patterns, found) if is_detecting else []
            cells += _mesh_cells(each.status.mesh, found)
        rows.append([each.name, *cells])
    up = sum(each.status is not None for each in after.asked)
    last = ["all", f"{up}/{len(after.asked)} up", *_rate_cells(sums)]
    last += [""] * (len(_COLUMNS) - len(last))
    last += _pattern_cells(None, sums) if is_detecting else []
    last += _mesh_cells(None, sums) if is_mesh else []
    more = (_PATTERN_COLUMNS if is_detecting else ()) + (_MESH_COLUMNS if is_mesh else ())
    return fitted((*_COLUMNS, *more), [*rows, last], width)


def _cells(status: Status | None, found: dict[str, float]) -> list[str]:
    if status is None:
        return ["down"]
    return [
        status.state,
        *_rate_cells(found),
        links_up(status),
        str(status.sessions) if status.is_edge else "",
        str(lag(status)) if status.is_edge else "",
        size(queued_bytes(status)),
        size(status.resident_bytes),
    ]


def _pattern_cells(patterns: PatternsReport | None, found: dict[str, float]) -> list[str]:
    """Active patterns of all patterns, and the rate of matches."""
    detected = "" if patterns is None else f"{patterns.active}/{patterns.patterns}"
    return [detected, f"{found['match/s']:,.0f}" if "match/s" in found else ""]


def _mesh_cells(mesh: MeshReport | None, found: dict[str, float]) -> list[str]:
    """Trees with a path to their root of all trees, and rates."""
    trees = "" if mesh is None else f"{mesh.trees - mesh.trees_lost}/{mesh.trees}"
    return [trees, *(f"{found[each]:,.0f}" if each in found else "" for each in _MESH_RATES)]


def _rate_cells(found: dict[str, float]) -> list[str]:
    if not found:
        return [""] * (len(_RATES) + 3)
    counts = [f"{found[column]:,.0f}" for column in _RATES]
    return [*counts, size(found["in/s"]), size(found["out/s"]), f"{found['cpu']:.0%}"]
