"""`anabranch pipeline archive`: streams into Parquet files, each event once.

    anabranch pipeline archive 127.0.0.1:4100 --to DIR [--watch]
    anabranch pipeline archive compact DIR
    anabranch pipeline archive verify DIR
    anabranch pipeline archive show DIR

What follows `archive` is a command of it, or else the network that is to be archived. Ctrl-C, or
SIGTERM, ends `--watch` when the round that is under way is committed; killed at any point, an
archive holds what its commits say, and the next run goes on from there.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from anabranch.cli import connect_options
from anabranch.cli.archive_backlog import options_of
from anabranch.cli.errors import CommandError
from anabranch.cli.output import Steps, counted, print_json, steps_on_stderr
from anabranch.cli.pipeline.events import told_plainly
from anabranch.cli.pipeline.spark_session import JsonOption, MasterOption, spark_session

if TYPE_CHECKING:
    from anabranch.spark.archive.compaction import Compacted
    from anabranch.spark.archive.verification import Verified
    from anabranch.spark.archive.writer import Report

_MEBI = 2**20


class Missing(StrEnum):
    """What becomes of ticks that the log has forgotten."""

    fail = "fail"
    record = "record"


class Form(StrEnum):
    """What an archive is beside Parquet files."""

    parquet = "parquet"
    delta = "delta"


class _WriteByDefault(TyperGroup):
    """A group whose first command need not be named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["write", *args]
        return list(super().parse_args(ctx, args))


app = typer.Typer(
    name="archive",
    cls=_WriteByDefault,
    help="Keep streams in Parquet files, each event once, for longer than logs are kept.\n\n"
    "    anabranch pipeline archive 127.0.0.1:4100 --to DIR --watch",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
Directory = Annotated[Path, typer.Argument(metavar="DIR", show_default=False)]
FormatOption = Annotated[
    Form, typer.Option("--format", help="delta: a Delta table too (pip install deltalake).")
]


@app.command("write")
def write(
    addresses: Annotated[list[str] | None, typer.Argument(metavar="[ADDRESS]...")] = None,
    *,
    to: Annotated[Path, typer.Option("--to", help="Directory of the archive.")],
    streams: Annotated[str, typer.Option(help="Only these, with commas between.")] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.0, help="Seconds between rounds.")] = 30.0,
    compact_at: Annotated[
        int, typer.Option(min=0, help="With --watch: compact after so many commits; 0: never.")
    ] = 64,
    missing: Annotated[
        Missing,
        typer.Option(
            help="Ticks that the log forgot before they were archived: fail, or record that they"
            " are missing and go on."
        ),
    ] = Missing.fail,
    hold: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="A cursor at the brokers: logs keep what is not archived yet."
        ),
    ] = "",
    form: FormatOption = Form.parquet,
    network: connect_options.NetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Archive what the streams of a network have now; with --watch, and what comes.

    anabranch pipeline archive --network network.toml --to DIR
    """
    way = connect_options.Way(
        addresses=connect_options.checked_addresses(addresses or []),
        file=network,
        ca=ca,
        plaintext=plaintext,
    )
    options = options_of(way, streams, hold)
    with (
        spark_session(master, "archive", draws=False) as spark,
        steps_on_stderr() as steps,
        told_plainly(),
    ):
        from anabranch.spark.archive.writer import Archiver  # noqa: PLC0415 - needs Spark

        with Archiver(
            spark,
            to,
            options,
            missing="record" if missing is Missing.record else "fail",
            is_delta=form is Form.delta,
        ) as archiver:
            tell = _Telling(as_json)
            if not watch:
                tell.report(archiver.run(_drawing(steps, "ticks")))
                return
            with _until_told() as pause:
                archiver.watch(lambda: pause(every), tell.round, compact_every=compact_at)
            if tell.total is not None:
                tell.report(tell.total)


@app.command("compact")
def compact(
    directory: Directory,
    *,
    megabytes: Annotated[int, typer.Option(min=1, help="What files should have.")] = 64,
    form: FormatOption = Form.parquet,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Join small files of an archive into few.

    anabranch pipeline archive compact DIR
    """
    with (
        spark_session(master, "compact", draws=False) as spark,
        steps_on_stderr() as steps,
        told_plainly(),
    ):
        from anabranch.spark.archive.compaction import compact as join  # noqa: PLC0415

        done = join(
            spark,
            directory,
            file_bytes=megabytes * _MEBI,
            is_delta=form is Form.delta,
            progress=_drawing(steps, "groups of files"),
        )
    if as_json:
        print_json(done)
    else:
        typer.echo(_compacted(done))


@app.command("verify")
def verify(directory: Directory, *, as_json: JsonOption = False) -> None:
    """Check every commit, file and tick of an archive; exit code 1 if something is wrong.

    anabranch pipeline archive verify DIR
    """
    _check_arrow()
    from anabranch.spark.archive.verification import verify as look  # noqa: PLC0415 - needs Arrow

    with steps_on_stderr() as steps:
        found = look(directory, _drawing(steps, "files"))
    if as_json:
        print_json(found)
    else:
        for line in _verified(found):
            typer.echo(line)
    if found.problems:
        raise typer.Exit(1)


@app.command("show")
def show(directory: Directory, *, as_json: JsonOption = False) -> None:
    """Show what an archive holds: streams, ticks, times, columns; with --json, the files too.

    anabranch pipeline archive show DIR
    """
    _check_arrow()
    from anabranch.spark.archive.reader import ArchiveReader  # noqa: PLC0415 - needs Arrow

    reader = ArchiveReader(directory)
    if as_json:
        print_json({"network": reader.network, "state": reader.state})
        return
    state = reader.state
    typer.echo(
        f"network {reader.network}: {counted(state.rows, 'event')} in"
        f" {counted(len(state.files), 'file')}, {counted(state.number, 'commit')}"
    )
    for stream, (first, last) in sorted(state.ranges.items()):
        files = [file for file in state.files.values() if file.stream == stream]
        times = f", {_time(files[0].first_ns)} to {_time(files[-1].last_ns)}" if files else ""
        events = counted(sum(file.rows for file in files), "event")
        typer.echo(f"  {stream}: ticks {first} to {last}, {events}{times}")
    for span in state.missing:
        typer.echo(f"  missing: {span}")
    for column in sorted(state.columns, key=lambda each: each.name):
        typer.echo(f"  column {column.name}: {column.kind} of {column.attribute}")


# -- what is said ----------------------------------------------------------------------------------


class _Telling:
    """Says what was archived, round by round and at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        #: Everything so far; None if no round has been done.
        self.total: Report | None = None

    def round(self, report: "Report") -> None:
        """One round of watching."""
        self.total = report if self.total is None else self.total.with_more(report)
        if report.commits:
            self.report(report)

    def report(self, report: "Report") -> None:
        """What was done."""
        if self._as_json:
            print_json(report)
            return
        for span in report.missing:
            typer.echo(f"missing: {span}", err=True)
        rate = report.rows / report.seconds if report.seconds else 0.0
        typer.echo(
            f"archived {counted(report.rows, 'event')} of {counted(report.ticks, 'tick')} in"
            f" {counted(report.files, 'file')} ({report.bytes / _MEBI:.1f} MiB) in"
            f" {report.seconds:.1f} s, {rate:,.0f} events/s"
        )


def _compacted(done: "Compacted") -> str:
    return (
        f"{counted(done.before, 'file')} became {done.after:,}"
        f" ({counted(done.rows, 'event')} written anew,"
        f" {done.bytes_before / _MEBI:.1f} → {done.bytes_after / _MEBI:.1f} MiB)"
    )


def _verified(found: "Verified") -> Iterator[str]:
    yield from (f"problem: {problem}" for problem in found.problems)
    yield from (f"missing: {span}" for span in found.missing)
    yield from (f"no commit names {path}; the next writer removes it" for path in found.unnamed)
    word = "damaged" if found.problems else "good"
    yield (
        f"{word}: {counted(found.rows, 'event')} in {counted(found.files, 'file')},"
        f" {counted(found.commits, 'commit')}, network {found.network}"
    )


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, UTC).isoformat(sep=" ").removesuffix("+00:00")


def _drawing(steps: Steps, what: str) -> Callable[[int, int], None]:
    """Draws how much is done."""
    before = 0

    def draw(done: int, total: int) -> None:
        nonlocal before
        if before == 0:
            steps.begin(what, total)
        steps.advance(done - before)
        before = done if done < total else 0

    return draw


@contextmanager
def _until_told() -> "Iterator[Callable[[float], bool]]":
    """A pause that ends early, and says False, when the process is told to end."""
    told = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: told.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda seconds: not told.wait(seconds)
    finally:
        for number, handle in before.items():
            signal.signal(number, handle)


def _check_arrow() -> None:
    if find_spec("pyarrow") is None:
        raise CommandError("Arrow is not installed: `pip install 'anabranch[spark]'`")
