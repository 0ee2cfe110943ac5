"""`anabranch pipeline archive`: archive streams as Parquet files, each event exactly once.

    anabranch pipeline archive 127.0.0.1:4100 --to DIR [--watch]
    anabranch pipeline archive compact DIR
    anabranch pipeline archive verify DIR
    anabranch pipeline archive show DIR

The word after `archive` is a command or the first argument of `write`, the default command. Ctrl-C
or SIGTERM stops `--watch` after the current round is committed. If the command is killed at any
point, the archive holds what its commits describe, and the next run continues from there.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from anabranch.cli import connect_options
from anabranch.cli.archive_backlog import options_of
from anabranch.cli.errors import CommandError
from anabranch.cli.output import counted, iso_time, print_json
from anabranch.cli.pipeline.spark_io import JsonOption, MasterOption, spark_session
from anabranch.cli.screen import Steps, steps_on_stderr

if TYPE_CHECKING:
    from anabranch.spark.archive.compaction import Compacted
    from anabranch.spark.archive.manifest import State
    from anabranch.spark.archive.verification import Verified
    from anabranch.spark.archive.writer import Report

_MEBI = 2**20


class Missing(StrEnum):
    """The reaction to ticks that the log dropped before they were archived."""

    fail = "fail"
    record = "record"


class Form(StrEnum):
    """The table format of an archive."""

    parquet = "parquet"
    delta = "delta"


class _WriteByDefault(TyperGroup):
    """A group with the default command `write`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["write", *args]
        return list(super().parse_args(ctx, args))


app = typer.Typer(
    name="archive",
    cls=_WriteByDefault,
    help="Archive streams as Parquet files, to keep events longer than the retention of logs.\n\n"
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
    streams: Annotated[str, typer.Option(help="Only these streams, separated by commas.")] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Continue until interrupted.")] = False,
    every: Annotated[float, typer.Option(min=0.0, help="Seconds between rounds.")] = 30.0,
    compact_at: Annotated[
        int,
        typer.Option(min=0, help="With --watch: compact after this number of commits; 0: never."),
    ] = 64,
    missing: Annotated[
        Missing,
        typer.Option(
            help="If the log dropped ticks before they were archived: fail, or record them as"
            " missing and go on."
        ),
    ] = Missing.fail,
    hold: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Cursor at the brokers that makes logs retain unarchived events."
        ),
    ] = "",
    form: FormatOption = Form.parquet,
    network: connect_options.NetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Archive the events in the logs of a network; with --watch, new events too.

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
    ):
        from anabranch.spark.archive.writer import Archiver  # noqa: PLC0415 - needs Spark

        with Archiver(
            spark,
            to,
            options,
            missing="record" if missing is Missing.record else "fail",
            is_delta=form is Form.delta,
        ) as archiver:
            output = _Output(as_json)
            if not watch:
                output.report(archiver.run(_progress(steps, "ticks")))
                return
            with _until_signalled() as pause:
                archiver.watch(lambda: pause(every), output.round, compact_every=compact_at)
            if output.total is not None:
                output.report(output.total)


@app.command("compact")
def compact(
    directory: Directory,
    *,
    megabytes: Annotated[int, typer.Option(min=1, help="Target size of files in MiB.")] = 64,
    form: FormatOption = Form.parquet,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Merge small files of an archive into larger ones.

    anabranch pipeline archive compact DIR
    """
    with (
        spark_session(master, "compact", draws=False) as spark,
        steps_on_stderr() as steps,
    ):
        from anabranch.spark.archive.compaction import compact as join  # noqa: PLC0415

        done = join(
            spark,
            directory,
            file_bytes=megabytes * _MEBI,
            is_delta=form is Form.delta,
            progress=_progress(steps, "groups of files"),
        )
    if as_json:
        print_json(done)
    else:
        typer.echo(_compacted(done))


@app.command("verify")
def verify(directory: Directory, *, as_json: JsonOption = False) -> None:
    """Verify every commit, file and tick of an archive; exit code 1 if it is damaged.

    anabranch pipeline archive verify DIR
    """
    _check_arrow()
    from anabranch.spark.archive.verification import verify as look  # noqa: PLC0415 - needs Arrow

    with steps_on_stderr() as steps:
        found = look(directory, _progress(steps, "files"))
    if as_json:
        print_json(found)
    else:
        for line in _verified(found):
            typer.echo(line)
    if found.problems:
        raise typer.Exit(1)


@app.command("show")
def show(directory: Directory, *, as_json: JsonOption = False) -> None:
    """Show the streams, ticks, times and columns of an archive; with --json, the files too.

    anabranch pipeline archive show DIR
    """
    _check_arrow()
    from anabranch.spark.archive.reader import ArchiveReader  # noqa: PLC0415 - needs Arrow

    reader = ArchiveReader(directory)
    if as_json:
        print_json({"network": reader.network, "state": _document(reader.state)})
        return
    state = reader.state
    typer.echo(
        f"network {reader.network}: {counted(state.rows, 'event')} in"
        f" {counted(len(state.files), 'file')}, {counted(state.number, 'commit')}"
    )
    for stream, (first, last) in sorted(state.ranges.items()):
        files = [file for file in state.files.values() if file.stream == stream]
        times = ""
        if files:
            first_time, last_time = iso_time(files[0].first_ns, 0), iso_time(files[-1].last_ns, 0)
            times = f", {first_time} to {last_time}"
        events = counted(sum(file.rows for file in files), "event")
        typer.echo(f"  {stream}: ticks {first} to {last}, {events}{times}")
    for span in state.missing:
        typer.echo(f"  missing: {span}")
    for column in sorted(state.columns, key=lambda each: each.name):
        typer.echo(f"  column {column.name}: {column.kind} of {column.attribute}")


def _document(state: "State") -> dict[str, object]:
    """The state, with ISO times of files: their `first` and `last` are ticks."""
    files = {
        path: {
            **msgspec.structs.asdict(file),
            "first_time": iso_time(file.first_ns),
            "last_time": iso_time(file.last_ns),
        }
        for path, file in state.files.items()
    }
    return {**msgspec.structs.asdict(state), "files": files}


# -- output ----------------------------------------------------------------------------------------


class _Output:
    """Prints a report after each round and at the end."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        #: The sum of all rounds; None before the first.
        self.total: Report | None = None

    def round(self, report: "Report") -> None:
        self.total = report if self.total is None else self.total.with_more(report)
        if report.commits:
            self.report(report)

    def report(self, report: "Report") -> None:
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
        f" ({counted(done.rows, 'event')} rewritten,"
        f" {done.bytes_before / _MEBI:.1f} → {done.bytes_after / _MEBI:.1f} MiB)"
    )


def _verified(found: "Verified") -> Iterator[str]:
    yield from (f"problem: {problem}" for problem in found.problems)
    yield from (f"missing: {span}" for span in found.missing)
    yield from (
        f"orphan: {path} is in no commit; the next writer removes it" for path in found.unnamed
    )
    word = "damaged" if found.problems else "good"
    yield (
        f"{word}: {counted(found.rows, 'event')} in {counted(found.files, 'file')},"
        f" {counted(found.commits, 'commit')}, network {found.network}"
    )


def _progress(steps: Steps, what: str) -> Callable[[int, int], None]:
    """A callback that draws the progress of a step."""
    before = 0

    def draw(done: int, total: int) -> None:
        nonlocal before
        if before == 0:
            steps.begin(what, total)
        steps.advance(done - before)
        before = done if done < total else 0

    return draw


@contextmanager
def _until_signalled() -> "Iterator[Callable[[float], bool]]":
    """A sleep function that returns False, early, once SIGINT or SIGTERM has arrived."""
    signalled = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: signalled.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda seconds: not signalled.wait(seconds)
    finally:
        for number, handle in before.items():
            signal.signal(number, handle)


def _check_arrow() -> None:
    if find_spec("pyarrow") is None:
        raise CommandError("Arrow is not installed: `pip install 'anabranch[spark]'`")
