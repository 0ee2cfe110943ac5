"""`anabranch top`: what the brokers of a network are doing, live.

Asks all brokers again and again (`status`) and shows what changed per second. `--once` shows one
interval and ends, for scripts.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from anabranch.cli.output import console, print_json
from anabranch.cli.status import Asked, ask_all, brokers_of, lag, show, size, table_of
from anabranch.node.status import Status

#: Column → the counter whose growth it shows.
_RATES = {
    "taken/s": "events_taken",
    "safe/s": "events_confirmed",
    "forw/s": "events_forwarded",
    "deliv/s": "events_delivered",
}


class Sample:
    """All brokers at one moment."""

    def __init__(self, asked: list[Asked]) -> None:
        self.at_s = monotonic()
        self.asked = asked

    def of(self, name: str) -> Status | None:
        """What a broker said then."""
        return next((each.status for each in self.asked if each.name == name), None)


def top(
    addresses: Annotated[
        list[str] | None, typer.Argument(help="Observe ports, HOST:PORT.", show_default=False)
    ] = None,
    network: Annotated[
        Path | None, typer.Option("--network", "-n", help="Watch all brokers of this file.")
    ] = None,
    every_s: Annotated[
        float, typer.Option("--every", min=0.1, max=3_600, help="Seconds between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval, then end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --once: one JSON document per broker.")
    ] = False,
) -> None:
    """Watch brokers at work: events per second, links, queues, lag. Ctrl-C ends it."""
    brokers = brokers_of(network, addresses or [])
    if once:
        before, after = asyncio.run(_two_looks(brokers, every_s))
        if as_json:
            for each in after.asked:
                print_json({"broker": each.name, **rates(before, after, each.name)})
        else:
            show(picture(before, after))
        return
    with Live(Text("asking …"), console=console(), auto_refresh=False, screen=True) as live:
        asyncio.run(_watch(brokers, every_s, live.update))


async def _two_looks(brokers: list[Asked], every_s: float) -> tuple[Sample, Sample]:
    before = Sample(await ask_all(brokers))
    await asyncio.sleep(every_s)
    # Names are known now, where only addresses were given.
    return before, Sample(await ask_all(before.asked))


async def _watch(brokers: list[Asked], every_s: float, show: Callable[..., None]) -> None:
    before = Sample(await ask_all(brokers))
    while True:
        await asyncio.sleep(every_s)
        after = Sample(await ask_all(before.asked))
        show(picture(before, after), refresh=True)
        before = after


def rates(before: Sample, after: Sample, name: str) -> dict[str, float]:
    """What a broker did per second between two looks; nothing if it is down, or began anew."""
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
    return found


def _bytes(status: Status, field: str) -> int:
    return sum(getattr(link, field) for link in status.links)


def picture(before: Sample, after: Sample) -> Group:
    """One row for each broker, and a row for all."""
    numbers = (*_RATES, "in/s", "out/s", "cpu", "links", "clients", "lag", "queued", "memory")
    table = table_of(("broker", "state"), numbers)
    sums: dict[str, float] = {}
    for each in after.asked:
        found = rates(before, after, each.name)
        for column, value in found.items():
            sums[column] = sums.get(column, 0.0) + value
        table.add_row(each.name, *_cells(each.status, found))
    up = sum(each.status is not None for each in after.asked)
    table.add_section()
    table.add_row("all", f"{up}/{len(after.asked)} up", *_rate_cells(sums))
    return Group(table)


def _cells(status: Status | None, found: dict[str, float]) -> list[str]:
    if status is None:
        return ["down"]
    up = sum(link.is_up for link in status.links)
    queued = status.client_waiting_bytes + sum(link.waiting_bytes for link in status.links)
    return [
        status.state,
        *_rate_cells(found),
        f"{up}/{len(status.links)}",
        str(status.sessions) if status.is_edge else "",
        str(lag(status)) if status.is_edge else "",
        size(queued),
        size(status.resident_bytes),
    ]


def _rate_cells(found: dict[str, float]) -> list[str]:
    if not found:
        return [""] * (len(_RATES) + 3)
    counts = [f"{found[column]:,.0f}" for column in _RATES]
    return [*counts, size(found["in/s"]), size(found["out/s"]), f"{found['cpu']:.0%}"]
