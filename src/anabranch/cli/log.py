"""`anabranch log`: inspect, verify, repair and renew the log of a broker.

The directory is a broker's state directory, or a plain directory of segments, such as a copy. All
commands except `repair` and `renew` are read-only and work while the broker runs. For a corrupt log
they print the records before the damage and then report the damage. `repair` truncates a corrupt
log as a last resort; `renew` continues a log that was restored from an old copy.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import structs
from rich import box
from rich.table import Table

from anabranch.cli.errors import EXIT_USAGE, PROGRAM, CommandError
from anabranch.cli.event_lines import RecordLines
from anabranch.cli.output import counted, iso_time, print_json, with_iso_times
from anabranch.cli.screen import console, steps_on_stderr
from anabranch.cli.values import moment_ns
from anabranch.core.origin.renewal import LOST_TICKS_MAX, SPARE_TICKS, LogRenewal
from anabranch.model.filter import Filter
from anabranch.store import log_view
from anabranch.store.log import Piece, record_time_ns, records_after, tick_at_time
from anabranch.store.log_repair import (
    HeldForRenewal,
    Repair,
    RepairPlan,
    Verified,
    verify_copy,
)
from anabranch.store.log_repair import verify as verify_log
from anabranch.store.segment import CorruptError

#: An upper bound that no stream reaches.
TICK_MAX = 1 << 61

app = typer.Typer(
    name="log",
    help="List, print, verify and repair the log of a broker.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
JsonResult = Annotated[
    bool, typer.Option("--json", help="With --yes: print one JSON document at the end.")
]
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
            print_json(with_iso_times(structs.asdict(segment)))
    else:
        console().print(_segments_table(place, found))
    if damage is not None:
        raise damage


@app.command()
def cat(
    directory: Directory,
    *,
    start: Annotated[
        int | None, typer.Option("--from", metavar="TICK", min=1, help="First tick to print.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Start time: 2026-01-31T12:00, or an age: 90s, 10m, 2h, 3d."
        ),
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", metavar="TICK", min=1, help="Last tick to print.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(metavar="FILTER", help="Print only events that match.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print ticks without a stored event too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the events of a log, one per line.

    A line has tick, time, id and attributes. With --json it is one document with the whole event
    and its payload in base64.
    """
    if start is not None and since is not None:
        raise CommandError("--from and --since are mutually exclusive")
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
    """Verify every record and index of a log and of the copies beside it; exit code 1 if one is
    corrupt.
    """
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
    if not _are_copies_good(place, as_json):
        raise typer.Exit(1)


def _are_copies_good(place: log_view.LogPlace, as_json: bool) -> bool:
    """Verify and report every copy."""
    is_good = True
    for facts in log_view.read_copies(place):
        if facts.is_lost:
            if not as_json:
                typer.echo(
                    f"note: the copy of stream {facts.stream!r} was damaged and is set aside"
                )
            continue
        try:
            verified = verify_copy(place, facts.stream, record_time_ns)
        except CorruptError as error:
            is_good = False
            if as_json:
                print_json({"stream": facts.stream, **_corrupt_document(error)})
            where = f"{error.path}, byte {error.offset}, tick {error.tick}: {error.reason}"
            text = f"the copy of stream {facts.stream!r} is corrupt: {where}"
            advice = "The next start sets it aside"
            typer.echo(f"{PROGRAM}: error: {text}. {advice}", err=True)
            continue
        if verified is None:
            continue
        if as_json:
            print_json({"stream": facts.stream, **structs.asdict(verified)})
        else:
            for line in _verified_lines(verified, f"copy of stream {facts.stream!r}, "):
                typer.echo(line)
    return is_good


@app.command()
def copies(directory: Directory, *, as_json: Json = False) -> None:
    """List the copies of other brokers' streams beside a log.

    `ls` and `cat` accept the directory of a copy.
    """
    place = log_view.locate(directory)
    found = [log_view.copy_view(place, facts) for facts in log_view.read_copies(place)]
    if as_json:
        for copy in found:
            print_json(copy)
    elif found:
        console().print(_copies_table(place, found))
    else:
        typer.echo("there are no copies")


@app.command()
def aside(directory: Directory, *, as_json: Json = False) -> None:
    """List catalog records that the broker could not read at start and set aside.

    With --json the output includes their bytes in base64.
    """
    found = log_view.read_aside(log_view.locate(directory))
    for row in found:
        if as_json:
            print_json(with_iso_times(structs.asdict(row)))
        else:
            what = f"{row.table} {row.key!r}, {counted(row.size, 'byte')}"
            typer.echo(f"{_time_text(row.time_ns)}  {what}: {row.reason}")
    if not found and not as_json:
        typer.echo("no records are set aside")


@app.command()
def repair(
    path: Annotated[Path, typer.Argument(metavar="PATH", show_default=False)],
    *,
    yes: Yes = False,
    as_json: JsonResult = False,
) -> None:
    """Truncate a corrupt log: remove the corrupt tick and all later ones.

    PATH is the path in the error message. The broker must not be running. Restoring a good copy of
    the file is better. The removed bytes are kept in a file that ends with .damaged.
    """
    _check_answered(as_json, yes)
    if not path.exists() and not path.parent.is_dir():
        raise CommandError(f"{path} does not exist; give the path in the error message")
    work = Repair(path)
    try:
        with steps_on_stderr() as steps:
            steps.begin("reading", _size(log_view.locate(work.directory)))
            plan = work.plan(steps.advance)
        if plan is None:
            nothing = f"nothing to repair: the log in {work.directory} is not corrupt"
            _print_result(nothing, {"repaired": False}, as_json)
            return
        if not as_json:
            _confirm(_plan_lines(plan), "Remove these records?", yes)
        kept = list(work.perform(plan))
        lines = [f"kept the removed bytes in {each}" for each in kept]
        document = {"repaired": True, "plan": structs.asdict(plan), "kept": kept}
        _print_result("\n".join([*lines, "repaired; the broker can be started"]), document, as_json)
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
            help="A tick that the stream has reached, if no broker has reported it.",
            show_default=False,
        ),
    ] = 0,
    spare: Annotated[
        int,
        typer.Option(
            metavar="TICKS",
            min=0,
            max=LOST_TICKS_MAX,
            help="Ticks to skip above the highest known tick.",
        ),
    ] = SPARE_TICKS,
    yes: Yes = False,
    as_json: JsonResult = False,
) -> None:
    """Continue a log that was restored from an old copy, at ticks its stream never used.

    DIR is the state directory of a broker that rejects events because other brokers have later
    ticks of its stream. The broker must not be running. Restoring the newest copy of the log is
    better.
    """
    _check_answered(as_json, yes)
    if not path.exists():
        raise CommandError(f"{path} does not exist; give the state directory of the broker")
    work = HeldForRenewal(path)
    try:
        plan = work.plan(above, spare)
        if plan is None:
            nothing = (
                f"nothing to renew: no broker has objected to the log in {work.directory}; if it"
                " lost a tick that you know of, give --above"
            )
            _print_result(nothing, {"renewed": False}, as_json)
            return
        if not as_json:
            _confirm(_renewal_lines(plan.what), "Renew the log?", yes)
        with steps_on_stderr() as steps:
            steps.begin("writing", max(plan.what.base - plan.what.last, 1))
            kept = work.perform(plan, steps.advance)
        lines = [] if kept is None else [f"kept the rewritten segments in {kept}"]
        lines += [f"renewed; the stream continues after tick {plan.what.base:,}; start the broker"]
        document = {"renewed": True, "plan": structs.asdict(plan.what), "kept": kept}
        _print_result("\n".join(lines), document, as_json)
    finally:
        work.close()


def _check_answered(as_json: bool, yes: bool) -> None:
    if as_json and not yes:
        raise CommandError("--json asks no question; add --yes")


def _confirm(plan: Iterable[str], question: str, yes: bool) -> None:
    for line in plan:
        typer.echo(line)
    if not yes and not typer.confirm(question):
        typer.echo("nothing was changed")
        raise typer.Exit(EXIT_USAGE)


def _print_result(text: str, document: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(document, enc_hook=str))
    else:
        typer.echo(text)


# -- reading ------------------------------------------------------------------------------------


def _size(place: log_view.LogPlace) -> int:
    """Bytes of all segments; approximate while the broker runs."""
    return sum(path.stat().st_size for path in place.directory.glob("*.segment")) or 1


def _readable(
    place: log_view.LogPlace, progress: Callable[[int], None] = lambda _bytes: None
) -> tuple[list[tuple[log_view.SegmentView, Piece]], CorruptError | None]:
    """The segments up to the first damage, with the valid part of the damaged one; the damage."""
    found: list[tuple[log_view.SegmentView, Piece]] = []
    try:
        for each in log_view.segments(place, record_time_ns, progress):
            found.append(each)  # noqa: PERF402 - keep the segments before the damage
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
        raise CommandError(f"tick {start} is no longer retained; the oldest is {first_tick}")
    return records_after(pieces, first_tick if start is None else start)


# -- printing -----------------------------------------------------------------------------------


def _segments_table(place: log_view.LogPlace, found: list[log_view.SegmentView]) -> Table:
    title = str(place.directory)
    if place.state_directory is not None:
        title = f"broker {place.broker} of network {place.network}: {place.directory}"
    columns = ("first tick", "last tick", "from", "to", "bytes")
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


def _copies_table(place: log_view.LogPlace, found: list[log_view.CopyView]) -> Table:
    title = f"copies at broker {place.broker} of network {place.network}"
    columns = ("stream", "first tick", "last tick", "bytes", "directory")
    table = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number in (1, 2, 3):
        table.columns[number].justify = "right"
    for copy in found:
        last = str(copy.last_tick) if copy.last_tick >= copy.first_tick else "–"
        ticks = ("", "") if copy.is_lost else (str(copy.first_tick), last)
        table.add_row(
            copy.stream, *ticks, f"{copy.bytes:,}", "lost" if copy.is_lost else copy.directory
        )
    return table


def _time_text(time_ns: int) -> str:
    return iso_time(time_ns, 0) if time_ns else ""


def _corrupt_document(error: CorruptError) -> dict[str, object]:
    return {
        "corrupt": error.path,
        "offset": error.offset,
        "tick": error.tick,
        "reason": error.reason,
    }


def _verified_lines(verified: Verified, what: str = "") -> Iterator[str]:
    for finding in verified.findings:
        yield f"note: {finding}; the next start repairs it"
    ticks = f"ticks {verified.first_tick:,}–{verified.last_tick:,}"
    if not verified.records:
        ticks = "no ticks"
    segments = counted(verified.segments, "segment")
    yield (
        f"good: {what}{segments}, {counted(verified.records, 'record')},"
        f" {ticks}, {counted(verified.bytes, 'byte')}"
    )


def _renewal_lines(plan: LogRenewal) -> Iterator[str]:
    yield (
        f"lost: ticks {plan.last + 1:,}–{plan.base:,}; reported as withheld to subscribers that"
        " have not received them"
    )
    if plan.disputed:
        yield (
            f"republished: the events of ticks {plan.disputed_first:,}–{plan.disputed_last:,} after"
            f" tick {plan.base:,}, because other brokers have other events at these ticks"
        )
    yield "connected publishers open new incarnations"


def _plan_lines(plan: RepairPlan) -> Iterator[str]:
    yield f"damage: {plan.path}, byte {plan.offset}, tick {plan.tick}: {plan.reason}"
    if plan.lost_ticks:
        yield (
            f"lost: the records of ticks {plan.tick:,}–{plan.last_tick:,}, {plan.lost_ticks:,} in"
            " all; reported as withheld to subscribers that have not received them"
        )
    else:
        yield "lost: no known record"
    yield f"removed: {plan.cut_bytes:,} bytes of {plan.path.name}"
    for path in plan.later:
        yield f"removed: {path.name}"
