"""`anabranch trace verify`: run the simulator's checker over traces and logs of real processes.

Client traces record what clients received, broker logs record what brokers stored; the checker
compares the two. Publishers without a trace are reconstructed from the logs
(`devnet.untraced_publishers`), and the verdict notes it.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from anabranch.check import history as saw
from anabranch.check.tally import Tally, tallies
from anabranch.cli.errors import CommandError, CommandGroup
from anabranch.cli.output import counted, print_json
from anabranch.cli.screen import console
from anabranch.devnet.broker_logs import read_logs, state_directories
from anabranch.devnet.traces import merge, read_trace, without_forgotten
from anabranch.devnet.untraced_publishers import Life, untraced_lives, with_untraced
from anabranch.devnet.verdict import RunVerdict, SubscriptionAccount, concluded, judge
from anabranch.store.files import read_identity

#: Publishers named in a note.
_NAMES_MAX = 5

app = typer.Typer(
    name="trace", cls=CommandGroup, help="Verify client traces.", no_args_is_help=True
)


@app.callback()
def trace() -> None:
    """Verify client traces."""


@app.command()
def verify(
    traces: Annotated[list[Path], typer.Argument(help="Trace files written by clients.")],
    *,
    state: Annotated[
        list[Path],
        typer.Option(help="State directory of a broker, or a directory of state directories."),
    ],
    complete: Annotated[
        bool,
        typer.Option(
            "--complete", help="The run is over: report events missing at its end as lost."
        ),
    ] = False,
    bound_s: Annotated[
        float, typer.Option("--bound", min=0.0, help="Deadline for delivery in seconds.")
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check traces and logs of a run for lost, duplicate and reordered events.

    Give the traces of all clients (--trace of `pub` and `sub`, trace= in a program). For a
    publisher without a trace, deliveries are checked against the logs and confirmations are not
    checked; a note reports it.

    Exit code 1 if a guarantee was broken."""
    found = verdict_on(traces, state, complete=complete, bound_s=bound_s)
    if as_json:
        document = {"subscribers": found.tallies, "notes": found.notes}
        print_json(msgspec.to_builtins(found.verdict) | document)
    else:
        print_verdict(found.verdict, found.tallies)
        for note in found.notes:
            console().print(f"note: {note}", soft_wrap=True)
    if not found.verdict.clean:
        raise typer.Exit(1)


class Found(msgspec.Struct, frozen=True):
    """The verdict on a run, with counts per subscriber and notes on its limits."""

    verdict: RunVerdict
    tallies: list[Tally]
    notes: list[str]


def verdict_on(
    traces: list[Path], states: list[Path], *, complete: bool = False, bound_s: float = 10.0
) -> Found:
    """Read traces and logs, and check them."""
    _check_states(states)
    logged, first_ticks = read_logs(states)
    traced = merge([read_trace(path) for path in traces])
    history = without_forgotten(traced, logged, first_ticks)
    lives = untraced_lives(history)
    notes = _notes_on_untraced(lives)
    if lives:
        history = with_untraced(history, states, lives)
    is_finished = any(isinstance(record, saw.Finished) for record in history)
    if complete and not is_finished:
        history = concluded(history, bound_s)
    notes += [
        f"the log of {stream} begins with tick {first}; earlier events are checked only against"
        " deliveries"
        for stream, first in first_ticks.items()
        if first > 1
    ]
    if not complete and not is_finished:
        notes.append("events missing when the traces ended were not checked; use --complete")
    return Found(judge(history, bound_s), tallies(history), notes)


def _check_states(states: list[Path]) -> None:
    """Check that all state directories belong to one network, and none to the same broker."""
    found: dict[tuple[str, str], Path] = {}
    for directory in states:
        below = state_directories(directory)
        if not below:
            raise CommandError(
                f"{directory} contains no state of a broker; give the --state of `anabranch up`"
            )
        for state in below:
            network, broker = owner = read_identity(state)
            other = found.setdefault(owner, state)
            if other.resolve() != state.resolve():
                raise CommandError(
                    f"{other} and {state} are both states of broker {broker!r} of network"
                    f" {network!r}; give only the one of this run"
                )
    networks = sorted({network for network, _ in found})
    if len(networks) > 1:
        raise CommandError(
            f"--state has brokers of {len(networks)} networks ({', '.join(networks)}); give the"
            " states and traces of one network"
        )


def _notes_on_untraced(lives: Counter[Life]) -> list[str]:
    names = sorted({publisher for publisher, _ in lives})
    if not names:
        return []
    more = f" and {len(names) - _NAMES_MAX:,} more" if len(names) > _NAMES_MAX else ""
    count = lives.total()
    note = (
        f"{counted(count, 'event')} in the logs {'is' if count == 1 else 'are'} from publishers"
        f" without a trace ({', '.join(names[:_NAMES_MAX])}{more}): deliveries are checked against"
        " the logs, confirmations are not checked; run publishers with --trace to check both"
    )
    return [note]


def _tallies_of(verdict: RunVerdict) -> list[Tally]:
    """Tallies of a run in one process, where an episode continues where the last one ended."""
    found: dict[str, list[SubscriptionAccount]] = {}
    for account in verdict.accounts:
        found.setdefault(_subscriber(account), []).append(account)
    return [
        Tally(
            subscriber=subscriber,
            quality=accounts[0].quality,
            episodes=len(accounts),
            matching=accounts[0].matching,
            delivered=sum(account.delivered for account in accounts),
            again=0,
        )
        for subscriber, accounts in found.items()
    ]


def _subscriber(account: SubscriptionAccount) -> str:
    """The subscriber of an episode: its name up to the `#`."""
    return account.subscription.partition("#")[0]


def _anomalies_of(subscriber: str, verdict: RunVerdict) -> str:
    found: Counter[str] = Counter()
    for account in verdict.accounts:
        if _subscriber(account) == subscriber:
            found.update(account.anomalies)
    return ", ".join(f"{which} {count}" for which, count in found.items()) or "none"


def print_verdict(verdict: RunVerdict, counts: Sequence[Tally] | None = None) -> None:
    out = console()
    out.print(
        f"published {verdict.published:,}, confirmed {verdict.confirmed:,},"
        f" logged {verdict.logged:,}, delivered {verdict.delivered:,}",
        soft_wrap=True,
    )
    numbers = ("episodes", "matching", "delivered", "again")
    table = Table("subscriber", "quality", *numbers, "anomalies")
    for column in table.columns[2:6]:
        column.justify = "right"
    for tally in _tallies_of(verdict) if counts is None else counts:
        cells = (tally.episodes, tally.matching, tally.delivered, tally.again)
        anomalies = _anomalies_of(tally.subscriber, verdict)
        table.add_row(tally.subscriber, tally.quality, *(f"{n:,}" for n in cells), anomalies)
    out.print(table)
    for example in verdict.examples:
        where = ", ".join(filter(None, (example.subscription, example.stream)))
        place = f"{where}, tick {example.tick}" if example.tick else where
        out.print(f"{example.name}: {place}: {example.text}", soft_wrap=True)
    named = ", ".join(f"{name} {count}" for name, count in verdict.anomalies.items())
    outcome = "every guarantee kept" if verdict.clean else "GUARANTEES BROKEN"
    out.print(f"{outcome}: {named}", soft_wrap=True)
