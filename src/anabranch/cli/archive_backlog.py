"""Where the log does not reach: events from an archive, and then a live subscription behind them.

`sub --since … --archive DIR` asks the brokers first. If a log has forgotten what was asked for,
what is archived is read from the archive (with Arrow; Spark is not needed for that), and the
subscription begins behind it, stream by stream: no gap, no event twice. Rules:

1. From the archive events come in the order of time, and within a stream of ticks.
2. If a log forgets more while the archive is being printed, it is looked at again from there.
3. What neither has is an error that says which ticks; with `--missing report` it is a note.
4. The archive has no events that are addressed to single clients; so from it none comes.

State: how far it has got.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anabranch.cli.connect_options import Way
from anabranch.cli.errors import CommandError
from anabranch.cli.event_lines import Printer
from anabranch.client.errors import SubscriptionRefusedError
from anabranch.client.subscription import Since, Subscription
from anabranch.model.encoding import decode_event
from anabranch.model.limits import STORED_LIMITS
from anabranch.spark.options import Options, read_options

if TYPE_CHECKING:
    from anabranch.spark.archive.backlog import Backlog
    from anabranch.spark.archive.past import HistoricalRead

OnMissing = Literal["fail", "report"]
Subscribe = Callable[[Since], Awaitable[Subscription]]


class Missing(StrEnum):
    """What becomes of a question about ticks that nobody has."""

    fail = "fail"
    report = "report"


ArchiveOption = Annotated[
    Path | None,
    typer.Option("--archive", help="With --since: an archive, for what logs no longer have."),
]
MissingOption = Annotated[
    Missing,
    typer.Option("--missing", help="What neither archive nor log has any more: fail, or go on."),
]


def on_missing(chosen: Missing) -> OnMissing:
    """What `--missing` says."""
    return "report" if chosen is Missing.report else "fail"


def options_of(way: Way, streams: str = "", cursor: str = "") -> Options:
    """How the pipeline reaches the network that a command was told."""
    place = way.place()
    texts = {"brokers": ",".join(place.addresses), "streams": streams}
    texts["durableSubscription"] = cursor
    if place.ca is not None:
        texts["ca"] = str(place.ca)
    elif place.plaintext:
        texts["plaintext"] = "true"
    return read_options(texts)


def backlog_of(archive: Path, filter: str, way: Way, missing: OnMissing) -> "Backlog":
    """The past that an archive has."""
    try:
        from anabranch.spark.archive.backlog import Backlog  # noqa: PLC0415 - needs Arrow
    except ImportError as error:
        raise CommandError(f"--archive needs `pip install 'anabranch[spark]'`: {error}") from error
    return Backlog(archive, filter, options_of(way), missing)


async def subscribed_behind(
    backlog: "Backlog", printer: Printer, since: Since, subscribe: Subscribe
) -> Subscription | None:
    """Print what the archive has, and then subscribe; None if what was printed is enough."""
    while True:
        past = await asyncio.to_thread(backlog.look, since)
        say_missing(past)
        for time_ns, stream, tick, body in backlog.rows(past):
            printer.show(decode_event(body, STORED_LIMITS), stream, tick, time_ns)
            if printer.is_enough:
                return None
            # Whoever wants to end the command has to get a word in.
            await asyncio.sleep(0)
        since = past.handover
        try:
            return await subscribe(since)
        except SubscriptionRefusedError:
            if not await asyncio.to_thread(backlog.has_moved, since):
                raise


def say_missing(past: "HistoricalRead") -> None:
    """Tell which ticks nobody has."""
    for span in past.missing:
        typer.echo(f"missing: {span} are neither in the archive nor in the log", err=True)
