"""`anabranch trace verify`: the checker of the simulator, over what real processes wrote down."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from anabranch.check import history as saw
from anabranch.cli.errors import CommandError, CommandGroup
from anabranch.cli.output import console, print_json
from anabranch.local.logs import read_logs, state_directories
from anabranch.local.traces import merge, read_trace, without_forgotten
from anabranch.local.verdict import Account, Verdict, concluded, judge

app = typer.Typer(
    name="trace", cls=CommandGroup, help="What clients wrote down of a run.", no_args_is_help=True
)


@app.callback()
def trace() -> None:
    """What clients wrote down of a run."""


@app.command()
def verify(
    traces: Annotated[list[Path], typer.Argument(help="Traces, as clients write them.")],
    *,
    state: Annotated[
        list[Path], typer.Option(help="State of a broker, or a directory of such states.")
    ],
    complete: Annotated[
        bool,
        typer.Option(
            "--complete", help="The run is over: what has not come by the end never comes."
        ),
    ] = False,
    bound_s: Annotated[
        float, typer.Option("--bound", min=0.0, help="Seconds after which things are due.")
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check traces and logs of a run: nothing lost, repeated or out of order.

    Exit code 1 if a promise was broken."""
    verdict, notes = verdict_on(traces, state, complete=complete, bound_s=bound_s)
    if as_json:
        print_json(verdict)
    else:
        print_verdict(verdict)
        for note in notes:
            console().print(f"note: {note}", soft_wrap=True)
    if not verdict.clean:
        raise typer.Exit(1)


def verdict_on(
    traces: list[Path], states: list[Path], *, complete: bool = False, bound_s: float = 10.0
) -> tuple[Verdict, list[str]]:
    """The verdict on a run, and what one should know about it."""
    for directory in states:
        if not state_directories(directory):
            raise CommandError(f"{directory} holds no state of a broker; name what `up` was given")
    logged, first_ticks = read_logs(states)
    told = merge([read_trace(path) for path in traces])
    history = without_forgotten(told, logged, first_ticks)
    is_finished = any(isinstance(record, saw.Finished) for record in history)
    if complete and not is_finished:
        history = concluded(history, bound_s)
    notes = [
        f"the log of {stream} begins with tick {first}; what came before is judged only by what"
        " was delivered"
        for stream, first in first_ticks.items()
        if first > 1
    ]
    if not complete and not is_finished:
        notes.append("what had not come when the traces ended was not judged; --complete does that")
    return judge(history, bound_s), notes


def _by_subscriber(verdict: Verdict) -> dict[str, list[Account]]:
    """The episodes of each subscription, which are named like it up to a `#`."""
    found: dict[str, list[Account]] = {}
    for account in verdict.accounts:
        found.setdefault(account.subscription.partition("#")[0], []).append(account)
    return found


def print_verdict(verdict: Verdict) -> None:
    """The verdict for people."""
    out = console()
    out.print(
        f"published {verdict.published:,}, confirmed {verdict.confirmed:,},"
        f" logged {verdict.logged:,}, delivered {verdict.delivered:,}"
    )
    table = Table("subscriber", "quality", "episodes", "matching", "delivered", "anomalies")
    for column in table.columns[2:5]:
        column.justify = "right"
    for name, accounts in _by_subscriber(verdict).items():
        found: Counter[str] = Counter()
        for account in accounts:
            found.update(account.anomalies)
        numbers = (len(accounts), accounts[0].matching, sum(each.delivered for each in accounts))
        anomalies = ", ".join(f"{which} {count}" for which, count in found.items())
        table.add_row(
            name, accounts[0].quality, *(f"{number:,}" for number in numbers), anomalies or "none"
        )
    out.print(table)
    for example in verdict.examples:
        where = ", ".join(filter(None, (example.subscription, example.stream)))
        place = f"{where}, tick {example.tick}" if example.tick else where
        out.print(f"{example.name}: {place}: {example.text}", soft_wrap=True)
    counts = ", ".join(f"{name} {count}" for name, count in verdict.anomalies.items())
    out.print(f"{'every promise kept' if verdict.clean else 'PROMISES BROKEN'}: {counts}")
