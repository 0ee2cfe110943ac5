"""`anabranch log`: look at the log of a broker, verify it, repair it when nothing else helps, and
renew it when it is an old copy.

The directory is a broker's state directory, or a plain directory of segments, such as a copy. All
but `repair` and `renew` only read, and work while the broker runs. Of a corrupt log, what is good
before the damage is shown, and then the damage is told.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from msgspec import structs
from rich import box
from rich.table import Table

from anabranch.cli.errors import EXIT_USAGE, PROGRAM, CommandError
from anabranch.cli.event_lines import RecordLines
from anabranch.cli.output import console, counted, print_json, steps_on_stderr
from anabranch.cli.values import moment_ns
from anabranch.core.origin.renewal import LOST_TICKS_MAX, SPARE_TICKS, LogRenewal
from anabranch.model.filter import Filter
from anabranch.store import log_view
from anabranch.store.log import Piece, record_time_ns, records_after, tick_at_time
from anabranch.store.log_repair import HeldForRenewal, Repair, RepairPlan, Verified
from anabranch.store.log_repair import verify as verify_log
from anabranch.store.segment import CorruptError

#: No stream gets this far.
TICK_MAX = 1 << 61

app = typer.Typer(
    name="log",
    help="List, print, verify and repair the log of a broker.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document per line.")]


@app.command("ls")
def list_segments(directory: Directory, *, as_json: Json = False) -> None:
    """List the segments of a log: ticks, times, sizes."""
    place = log_view.locate(directory)
    with steps_on_stderr() as steps:
        steps.begin("reading", _size(place))
        segments, damage = _readable(place, steps.advance)
    found = [segment for segment, _ in segments]
    if as_json:
        for segment in found:
            print_json(segment)
    else:
        console().print(_segments_table(place, found))
    if damage is not None:
        raise damage


@app.command()
def cat(
    directory: Directory,
    *,
    start: Annotated[
        int | None, typer.Option("--from", metavar="TICK", min=1, help="Begin with this tick.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Begin at this time: 2026-01-31T12:00, or 90s, 10m, 2h, 3d ago."
        ),
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", metavar="TICK", min=1, help="End with this tick.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="FILTER", help="Only events that match.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also ticks without an event that is kept.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the events of a log, one per line.

    A line is tick, time, id and attributes; with --json it is one document with all of the event,
    the payload in base64.
    """
    if start is not None and since is not None:
        raise CommandError("give --from or --since, one of the two")
    lines = RecordLines(None if where is None else Filter.parse(where), everything, as_json)
    since_ns = None if since is None else moment_ns(since, datetime.now(UTC))
    place = log_view.locate(directory)
    segments, damage = _readable(place)
    for tick, record in _records([piece for _, piece in segments], start, since_ns):
        if end is not None and tick > end:
            break
        line = lines.line(tick, record)
        if line is not None:
            typer.echo(line)
    if damage is not None and (end is None or damage.tick <= end):
        raise damage


@app.command()
def verify(directory: Directory, *, as_json: Json = False) -> None:
    """Check every record of a log, and its indexes; exit code 1 if it is corrupt."""
    place = log_view.locate(directory)
    try:
        with steps_on_stderr() as steps:
            steps.begin("verifying", _size(place))
            verified = verify_log(place, record_time_ns, steps.advance)
    except CorruptError as error:
        if as_json:
            print_json(_corrupt_document(error))
        typer.echo(f"{PROGRAM}: error: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json(verified)
    else:
        for line in _verified_lines(verified):
            typer.echo(line)


@app.command()
def aside(directory: Directory, *, as_json: Json = False) -> None:
    """List records of the catalog that a start could not read and has set aside.

    With --json a document has the bytes too, in base64.
    """
    found = log_view.read_aside(log_view.locate(directory))
    for row in found:
        if as_json:
            print_json(structs.asdict(row))
        else:
            what = f"{row.table} {row.key!r}, {counted(row.size, 'byte')}"
            typer.echo(f"{_time_text(row.time_ns)}  {what}: {row.reason}")
    if not found and not as_json:
        typer.echo("nothing is set aside")


@app.command()
def repair(
    path: Annotated[Path, typer.Argument(metavar="PATH", show_default=False)],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Give up what a corrupt log cannot be trusted with: the bad tick and all later ones.

    PATH is what the error named. The broker must not run. A good copy of the file in its place is
    better; what is cut off is kept in a file that ends with .damaged.
    """
    if not path.exists() and not path.parent.is_dir():
        raise CommandError(f"{path} does not exist; give the path that the error named")
    work = Repair(path)
    try:
        with steps_on_stderr() as steps:
            steps.begin("reading", _size(log_view.locate(work.directory)))
            plan = work.plan(steps.advance)
        if plan is None:
            typer.echo(f"nothing to repair: the log in {work.directory} is not corrupt")
            return
        for line in _plan_lines(plan):
            typer.echo(line)
        if not yes and not typer.confirm("Give this up?"):
            typer.echo("nothing was changed")
            raise typer.Exit(EXIT_USAGE)
        for kept in work.perform(plan):
            typer.echo(f"kept what was taken out in {kept}")
        typer.echo("repaired; the broker can be started")
    finally:
        work.close()


@app.command()
def renew(
    path: Annotated[Path, typer.Argument(metavar="DIR", show_default=False)],
    *,
    above: Annotated[
        int,
        typer.Option(
            metavar="TICK",
            min=0,
            max=TICK_MAX,
            help="A tick that the stream is known to have had, if the broker does not know.",
            show_default=False,
        ),
    ] = 0,
    spare: Annotated[
        int,
        typer.Option(
            metavar="TICKS",
            min=0,
            max=LOST_TICKS_MAX,
            help="How many ticks to leave out above all that are known.",
        ),
    ] = SPARE_TICKS,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Go on with a log that is an old copy, with ticks that its stream never had.

    DIR is the state directory of a broker that refuses events because other brokers know more of
    its stream. The broker must not run. The newest copy of the log in its place is better.
    """
    if not path.exists():
        raise CommandError(f"{path} does not exist; give the state directory of the broker")
    work = HeldForRenewal(path)
    try:
        plan = work.plan(above, spare)
        if plan is None:
            typer.echo(
                f"nothing to renew: no broker has objected to the log in {work.directory}; if you"
                " know of a tick that it lost, give --above"
            )
            return
        for line in _renewal_lines(plan.what):
            typer.echo(line)
        if not yes and not typer.confirm("Renew the log?"):
            typer.echo("nothing was changed")
            raise typer.Exit(EXIT_USAGE)
        with steps_on_stderr() as steps:
            steps.begin("writing", max(plan.what.base - plan.what.last, 1))
            kept = work.perform(plan, steps.advance)
        if kept is not None:
            typer.echo(f"kept the segments that were written again in {kept}")
        typer.echo(f"renewed; the stream goes on after tick {plan.what.base:,}, start the broker")
    finally:
        work.close()


# -- reading ------------------------------------------------------------------------------------


def _size(place: log_view.LogPlace) -> int:
    """Bytes of all segments; about, if the broker runs."""
    return sum(path.stat().st_size for path in place.directory.glob("*.segment")) or 1


def _readable(
    place: log_view.LogPlace, progress: Callable[[int], None] = lambda _bytes: None
) -> tuple[list[tuple[log_view.SegmentView, Piece]], CorruptError | None]:
    """The segments up to the first damage, with what is good of the damaged one; the damage."""
    found: list[tuple[log_view.SegmentView, Piece]] = []
    try:
        for each in log_view.segments(place, record_time_ns, progress):
            found.append(each)  # noqa: PERF402 - what came before the damage has to stay
    except CorruptError as error:
        return found, error
    return found, None


def _records(
    pieces: list[Piece], start: int | None, since_ns: int | None
) -> Iterator[tuple[int, bytes]]:
    if not pieces:
        return iter(())
    first_tick = pieces[0].first_tick
    if since_ns is not None:
        start = tick_at_time(pieces, since_ns, record_time_ns)
    elif start is not None and start < first_tick:
        raise CommandError(f"tick {start} is not kept any more, the oldest one is {first_tick}")
    return records_after(pieces, first_tick if start is None else start)


# -- what is printed ----------------------------------------------------------------------------


def _segments_table(place: log_view.LogPlace, found: list[log_view.SegmentView]) -> Table:
    title = str(place.directory)
    if place.state_directory is not None:
        title = f"broker {place.broker} of network {place.network}: {place.directory}"
    columns = ("first tick", "last tick", "from (UTC)", "to (UTC)", "bytes")
    table = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number in (0, 1, 4):
        table.columns[number].justify = "right"
    for segment in found:
        table.add_row(
            str(segment.first_tick),
            str(segment.last_tick) if segment.last_tick >= segment.first_tick else "–",
            _time_text(segment.first_time_ns),
            _time_text(segment.last_time_ns),
            f"{segment.used_bytes:,}",
        )
    return table


def _time_text(time_ns: int) -> str:
    if not time_ns:
        return ""
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _corrupt_document(error: CorruptError) -> dict[str, object]:
    return {
        "corrupt": error.path,
        "offset": error.offset,
        "tick": error.tick,
        "reason": error.reason,
    }


def _verified_lines(verified: Verified) -> Iterator[str]:
    for finding in verified.findings:
        yield f"note: {finding}; the next start mends it"
    ticks = f"ticks {verified.first_tick:,}–{verified.last_tick:,}"
    if not verified.records:
        ticks = "no tick"
    yield (
        f"good: {counted(verified.segments, 'segment')}, {counted(verified.records, 'record')},"
        f" {ticks}, {counted(verified.bytes, 'byte')}"
    )


def _renewal_lines(plan: LogRenewal) -> Iterator[str]:
    yield (
        f"lost: ticks {plan.last + 1:,}–{plan.base:,}; subscribers that have not got them are told"
        " that they are withheld"
    )
    if plan.disputed:
        yield (
            f"again: the events of ticks {plan.disputed_first:,}–{plan.disputed_last:,}, which"
            f" stand for other events elsewhere, are published again after tick {plan.base:,}"
        )
    yield "publishers that are connected open new incarnations"


def _plan_lines(plan: RepairPlan) -> Iterator[str]:
    yield f"damage: {plan.path}, byte {plan.offset}, tick {plan.tick}: {plan.reason}"
    if plan.lost_ticks:
        yield (
            f"lost: the records of ticks {plan.tick:,}–{plan.last_tick:,}, {plan.lost_ticks:,} in"
            " all; subscribers that have not got them are told that they are withheld"
        )
    else:
        yield "lost: no record that is known of"
    yield f"taken out: {plan.cut_bytes:,} bytes of {plan.path.name}"
    for path in plan.later:
        yield f"taken out: {path.name}"
