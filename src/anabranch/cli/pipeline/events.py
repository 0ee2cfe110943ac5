"""Event sources of pipeline commands: an archive, a network, both, or plain Parquet files.

    DIR of an archive     its events, with a column for every type of every attribute
    ADDRESS, --network    the events in the logs of a network; with an archive, those after it
    other DIR or FILE     Parquet files, whose columns are attributes

A source is opened as a data frame with a list of its attribute columns.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from anabranch.cli import connect_options
from anabranch.cli.archive_backlog import options_of, say_missing
from anabranch.cli.errors import CommandError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from anabranch.spark.attribute_columns import AttributeColumn

#: The subdirectory that marks an archive.
_ARCHIVE_MARKER = "_archive"
#: Precedes our own error message in Spark's report of a failed task.
_ERROR_PREFIX = "Error: "
#: The class of an error of Spark itself.
_CLASS = re.compile(r"\[[A-Z_.]{4,}\] ")


class Events(NamedTuple):
    """Events and their attribute columns; empty: all columns of a suitable type."""

    frame: "DataFrame"
    columns: "Sequence[AttributeColumn]"
    #: The network of the events; "" if unknown.
    network: str = ""


class Places(NamedTuple):
    """The event sources given on the command line."""

    archive: Path | None
    files: tuple[Path, ...]
    way: connect_options.Way | None


def places_of(
    words: Sequence[str], network: Path | None, ca: Path | None, plaintext: bool
) -> Places:
    """Classify the arguments. No source, or sources that cannot be combined, are an error."""
    is_address = connect_options.is_address
    addresses = [word for word in words if is_address(word) and not Path(word).exists()]
    paths = [Path(word) for word in words if word not in addresses]
    for path in paths:
        if not path.exists():
            raise CommandError(f"{path} does not exist; give an archive or Parquet files")
    archives = [path for path in paths if (path / _ARCHIVE_MARKER).is_dir()]
    files = tuple(path for path in paths if path not in archives)
    way = None
    if addresses or network is not None:
        checked = connect_options.checked_addresses(addresses)
        way = connect_options.Way(addresses=checked, file=network, ca=ca, plaintext=plaintext)
    if len(archives) > 1:
        raise CommandError(f"{archives[0]} and {archives[1]} are two archives; give only one")
    if files and (archives or way is not None):
        raise CommandError(
            f"{files[0]} is not an archive and cannot be combined with other sources"
        )
    if not (files or archives or way is not None):
        raise CommandError("give the events: a directory, an address, or --network")
    return Places(archives[0] if archives else None, files, way)


def opened(spark: "SparkSession", places: Places, filter: str = "TRUE") -> Events:
    """Open the sources. The filter applies to archives and networks."""
    if places.files:
        paths = [str(path.absolute()) for path in places.files]
        return Events(spark.read.option("mergeSchema", "true").parquet(*paths), ())
    from anabranch.spark.attribute_columns import archived_columns  # noqa: PLC0415 - needs Spark
    from anabranch.spark.history import look_into  # noqa: PLC0415 - needs Spark

    options = None if places.way is None else options_of(places.way)
    # An archive may lack some ticks; the rest of it is usable.
    found = look_into(spark, places.archive, filter, brokers=options, on_missing="report")
    say_missing(found.past)
    return Events(found.frame, archived_columns(found.columns), found.past.network)


@contextmanager
def told_plainly() -> Iterator[None]:
    """Reduce Spark's report of a failed task to one line: our own error if it contains one."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - needs Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - needs Spark

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise CommandError(_gist(str(error))) from error


def _gist(report: str) -> str:
    """The last line with an error of ours, or else the first with an error class of Spark."""
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("anabranch.") and _ERROR_PREFIX in line]
    if own:
        return own[-1].partition(_ERROR_PREFIX)[2]
    found = next(filter(None, map(_CLASS.search, lines)), None)
    return lines[0] if found is None else found.string[found.start() :]
