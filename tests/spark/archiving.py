"""Archivers that die: real processes, killed at a chosen point of their work.

    python -m tests.spark.archiving           lines of JSON in, exit statuses out
    python -m tests.spark.archiving JSON      one archiver, with a Spark session of its own

In the first form one process loads everything once and starts a process of its own for every line;
those run what would be Spark's tasks by themselves. Where one dies is the name of a point below; it
kills itself there, as if by anybody, with a signal that cannot be caught.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from anabranch.spark.archive import compaction, manifest, writer
from anabranch.spark.archive.compaction import compact
from anabranch.spark.archive.writer import Archiver
from anabranch.spark.options import read_options
from anabranch.spark.session import session
from tests.archive_parts import HERE


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What one archiver does."""

    brokers: str
    directory: str
    #: A name in `POINTS`, or "": it lives.
    dies: str = ""
    #: It joins files, and does not archive.
    compacts: bool = False


def _die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it lives")


def _after(place: object, name: str) -> Callable[[], None]:
    """Dies when a function has returned for the first time."""

    def arm() -> None:
        real = getattr(place, name)

        def dying(*arguments: object, **named: object) -> object:
            real(*arguments, **named)
            _die()

        setattr(place, name, dying)

    return arm


def _before(place: object, name: str) -> Callable[[], None]:
    """Dies when a function is called."""
    return lambda: setattr(place, name, _die)


#: Where an archiver can die: in the order in which it gets there.
POINTS: dict[str, Callable[[], None]] = {
    "the directory is made": _before(manifest, "_establish"),
    "a file is written": _before(writer, "Proposed"),
    "files are written": _before(manifest.os, "link"),  # type: ignore[attr-defined]
    "the commit is made": _after(manifest.os, "link"),  # type: ignore[attr-defined]
    "a file is renamed": _after(Path, "rename"),
    "a joined file is written": _after(compaction, "join_files"),
    "old files are put aside": _after(manifest, "retire"),
}


def do(work: Work, spark: object = HERE) -> None:
    """Archive, or die."""
    if work.dies:
        POINTS[work.dies]()
    directory = Path(work.directory)
    if work.compacts:
        compact(spark, directory)  # type: ignore[arg-type]
        return
    options = read_options({"brokers": work.brokers})
    with Archiver(spark, directory, options) as archiver:  # type: ignore[arg-type]
        archiver.run()


def _serve() -> None:
    for line in sys.stdin:
        work = msgspec.json.decode(line, type=Work)
        child = os.fork()
        if child == 0:
            do(work)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        _serve()
    else:
        do(msgspec.json.decode(sys.argv[1], type=Work), session("local[2]"))
