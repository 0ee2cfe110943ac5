"""Backfill from an archive: print archived events, then subscribe live after the last of them.

`sub --since … --archive DIR` subscribes at the brokers first. If a log no longer retains the start,
the command reads the archive (with Arrow; Spark is not needed) and starts the subscription after
it, stream by stream, without a gap or a duplicate.

Rules

1. Archived events are printed in order of time, and within a stream in order of ticks.
2. If a log drops more ticks while the archive is printed, the archive is read again from there.
3. Ticks that are neither in the archive nor in a log are an error; with `--missing report`, a note.
4. The archive has no events that are addressed to single clients, so none are printed from it.

State: the position reached in each stream.
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
from anabranch.client.subscribe_request import Since
from anabranch.client.subscription import Subscription
from anabranch.model.encoding import decode_event
from anabranch.model.limits import STORED_LIMITS
from anabranch.spark.options import Options, read_options

if TYPE_CHECKING:
    from anabranch.spark.archive.reader import Backlog, HistoricalRead

OnMissing = Literal["fail", "report"]
Subscribe = Callable[[Since], Awaitable[Subscription]]


class Missing(StrEnum):
    """The reaction to ticks that are neither in the archive nor in a log."""

    fail = "fail"
    report = "report"


ArchiveOption = Annotated[
    Path | None,
    typer.Option("--archive", help="With --since: archive of events that logs no longer retain."),
]
MissingOption = Annotated[
    Missing,
    typer.Option(
        "--missing", help="If events are in neither archive nor log: fail, or report and go on."
    ),
]


def on_missing(chosen: Missing) -> OnMissing:
    return "report" if chosen is Missing.report else "fail"


def options_of(way: Way, streams: str = "", cursor: str = "") -> Options:
    place = way.place()
    texts = {"brokers": ",".join(place.addresses), "streams": streams}
    texts["durableSubscription"] = cursor
    if place.ca is not None:
        texts["ca"] = str(place.ca)
    elif place.plaintext:
        texts["plaintext"] = "true"
    return read_options(texts)


def backlog_of(archive: Path, filter: str, way: Way, missing: OnMissing) -> "Backlog":
    try:
        from anabranch.spark.archive.reader import Backlog  # noqa: PLC0415 - needs Arrow
    except ImportError as error:
        raise CommandError(
            f"--archive requires `pip install 'anabranch[spark]'`: {error}"
        ) from error
    return Backlog(archive, filter, options_of(way), missing)


async def subscribed_behind(
    backlog: "Backlog", printer: Printer, since: Since, subscribe: Subscribe
) -> Subscription | None:
    """Print the archived events, then subscribe; None if the count was reached."""
    while True:
        past = await asyncio.to_thread(backlog.look, since)
        say_missing(past)
        for time_ns, stream, tick, body in backlog.rows(past):
            printer.show(decode_event(body, STORED_LIMITS), stream, tick, time_ns)
            if printer.is_enough:
                return None
            # Let a signal cancel the command.
            await asyncio.sleep(0)
        since = past.handover
        try:
            return await subscribe(since)
        except SubscriptionRefusedError:
            if not await asyncio.to_thread(backlog.has_moved, since):
                raise


def say_missing(past: "HistoricalRead") -> None:
    for span in past.missing:
        typer.echo(f"missing: {span} are neither in the archive nor in the log", err=True)
