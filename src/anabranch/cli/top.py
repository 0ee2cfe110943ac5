"""`anabranch top`: live event rates, links, queues and lag of brokers.

Queries all brokers periodically (`status`) and shows rates per second, with as many columns as fit.
On a terminal the table is redrawn in place; into a file or pipe, one table per interval is printed.
`--once` shows one interval and exits, for scripts.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, time_ns
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from anabranch.cli.output import iso_time, print_json
from anabranch.cli.screen import Column, console, fitted, room, show
from anabranch.cli.status import (
    Asked,
    ObservePorts,
    TokenFile,
    ask_all,
    brokers_of,
    lag,
    links_up,
    queued_bytes,
    size,
)
from anabranch.cli.until_stopped import key_presses, until_stopped
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


#: The additional column of networks with copies of streams.
_COPIES_COLUMNS = (Column("copies", rank=2, is_number=True),)
#: Additional columns of networks with patterns.
_PATTERN_COLUMNS = (
    Column("patterns", rank=3, is_number=True),
    Column("match/s", rank=1, is_number=True),
)


class Sample:
    """The answers of all brokers at one time."""

    def __init__(self, asked: list[Asked]) -> None:
        self.at_s, self.time_ns = monotonic(), time_ns()
        self.asked = asked

    def of(self, name: str) -> Status | None:
        return next((each.status for each in self.asked if each.name == name), None)


def top(
    addresses: ObservePorts = None,
    network: Annotated[
        Path | None,
        typer.Option(
            "--network",
            "-n",
            help="Watch all brokers of this network file. Default, without addresses:"
            " $ANABRANCH_NETWORK.",
        ),
    ] = None,
    every_s: Annotated[
        float, typer.Option("--every", min=0.1, max=3_600, help="Seconds between updates.")
    ] = 1.0,
    *,
    token_file: TokenFile = None,
    once: Annotated[bool, typer.Option("--once", help="Show one interval and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per broker and interval.")
    ] = False,
) -> None:
    """Watch event rates, links, queues and lag of brokers.

    Runs until q is pressed or until interrupted; both are success. Into a file or a pipe it prints
    one table per interval.
    """
    brokers = brokers_of(network, addresses or [], token_file)
    screen = console()
    if as_json:
        asyncio.run(until_stopped(_watch(brokers, every_s, _print_documents, once=once)))
    elif once or not screen.is_terminal:
        asyncio.run(until_stopped(_watch(brokers, every_s, _print_table(screen, once), once=once)))
    else:
        asyncio.run(until_stopped(_watch_live(brokers, every_s, screen)))


#: Shows the interval between two samples.
Show = Callable[[Sample, Sample], None]


async def _watch(brokers: list[Asked], every_s: float, show: Show, *, once: bool) -> None:
    before = Sample(await ask_all(brokers))
    while True:
        await asyncio.sleep(every_s)
        # The first answers replaced addresses with broker names.
        after = Sample(await ask_all(before.asked))
        show(before, after)
        if once:
            return
        before = after


async def _watch_live(brokers: list[Asked], every_s: float, screen: Console) -> None:
    task = asyncio.current_task()
    assert task is not None

    def draw(before: Sample, after: Sample) -> None:
        table = picture(before, after, room(screen))
        table.caption, table.caption_justify = "q quits", "left"
        live.update(table, refresh=True)

    def quit_on_q(key: str) -> None:
        if key in "qQ":
            task.cancel()

    with (
        key_presses(quit_on_q),
        Live(Text("querying …"), console=screen, auto_refresh=False, screen=True) as live,
    ):
        await _watch(brokers, every_s, draw, once=False)


def _print_documents(before: Sample, after: Sample) -> None:
    for each in after.asked:
        print_json(
            {
                "broker": each.name,
                "state": "down" if each.status is None else each.status.state,
                "time": iso_time(after.time_ns),
                "time_ns": after.time_ns,
                **rates(before, after, each.name),
            }
        )


def _print_table(screen: Console, once: bool) -> Show:
    def print_table(before: Sample, after: Sample) -> None:
        if not once:
            show(screen, iso_time(after.time_ns, 3))
        show(screen, picture(before, after, room(screen)))
        if not once:
            show(screen, "")
        sys.stdout.flush()

    return print_table


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
    is_copied = any(map(_copies, statuses))
    rows: list[list[str]] = []
    sums: dict[str, float] = {}
    for each in after.asked:
        found = rates(before, after, each.name)
        for column, value in found.items():
            sums[column] = sums.get(column, 0.0) + value
        cells = _cells(each.status, found)
        if each.status is not None:
            cells += [_copies(each.status)] if is_copied else []
            cells += _pattern_cells(each.status.patterns, found) if is_detecting else []
            cells += _mesh_cells(each.status.mesh, found)
        rows.append([each.name, *cells])
    up = sum(each.status is not None for each in after.asked)
    last = ["all", f"{up}/{len(after.asked)} up", *_rate_cells(sums)]
    last += [""] * (len(_COLUMNS) - len(last))
    last += [""] if is_copied else []
    last += _pattern_cells(None, sums) if is_detecting else []
    last += _mesh_cells(None, sums) if is_mesh else []
    more = (*(_COPIES_COLUMNS if is_copied else ()), *(_PATTERN_COLUMNS if is_detecting else ()))
    more += _MESH_COLUMNS if is_mesh else ()
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


def _copies(status: Status) -> str:
    """Copies of the stream that are present, of all; "" if it is not replicated."""
    own = None if status.replication is None else status.replication.own
    return "" if own is None else f"{own.present}/{own.configured}"


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
