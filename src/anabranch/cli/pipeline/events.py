"""Where a command finds its events: an archive, a network, both of them, or plain Parquet files.

    DIR of an archive     what it holds, every kind of an attribute in a column of its own
    ADDRESS, --network    what the logs of a network hold; with an archive, what is behind it
    other DIR or FILE     Parquet, in which columns are attributes

What is opened is a data frame, and which of its columns hold attributes.
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

#: What an archive has in its directory.
_OF_ARCHIVES = "_archive"
#: Where the error of a task stands in what Spark says about it.
_OURS = "Error: "
#: How Spark names the kinds of its own errors.
_CLASS = re.compile(r"\[[A-Z_.]{4,}\] ")


class Events(NamedTuple):
    """Events, and the columns that hold their attributes; none: whatever can."""

    frame: "DataFrame"
    columns: "Sequence[AttributeColumn]"
    #: Whose events they are; "" if nobody knows.
    network: str = ""


class Places(NamedTuple):
    """Where events are, as it was said on the command line."""

    archive: Path | None
    files: tuple[Path, ...]
    way: connect_options.Way | None


def places_of(
    words: Sequence[str], network: Path | None, ca: Path | None, plaintext: bool
) -> Places:
    """What the words mean; an error if they mean nothing, or too much at once."""
    is_address = connect_options.is_address
    addresses = [word for word in words if is_address(word) and not Path(word).exists()]
    paths = [Path(word) for word in words if word not in addresses]
    for path in paths:
        if not path.exists():
            raise CommandError(f"{path} does not exist; events are in an archive, or in Parquet")
    archives = [path for path in paths if (path / _OF_ARCHIVES).is_dir()]
    files = tuple(path for path in paths if path not in archives)
    way = None
    if addresses or network is not None:
        checked = connect_options.checked_addresses(addresses)
        way = connect_options.Way(addresses=checked, file=network, ca=ca, plaintext=plaintext)
    if len(archives) > 1:
        raise CommandError(f"{archives[0]} and {archives[1]} are two archives; give one")
    if files and (archives or way is not None):
        raise CommandError(f"{files[0]} is no archive, so it cannot be read together with others")
    if not (files or archives or way is not None):
        raise CommandError("say where the events are: a directory, an address, or --network")
    return Places(archives[0] if archives else None, files, way)


def opened(spark: "SparkSession", places: Places, filter: str = "TRUE") -> Events:
    """The events that are there; those of archives and networks that match a filter."""
    if places.files:
        paths = [str(path.absolute()) for path in places.files]
        return Events(spark.read.option("mergeSchema", "true").parquet(*paths), ())
    from anabranch.spark.attribute_columns import archived_columns  # noqa: PLC0415 - needs Spark
    from anabranch.spark.history import look_into  # noqa: PLC0415 - needs Spark

    options = None if places.way is None else options_of(places.way)
    # An archive may say itself that it lacks some ticks; the rest of it is good.
    found = look_into(spark, places.archive, filter, brokers=options, on_missing="report")
    say_missing(found.past)
    return Events(found.frame, archived_columns(found.columns), found.past.network)


@contextmanager
def told_plainly() -> Iterator[None]:
    """What Spark reports of a failed task, in one line: our own error if there is one in it."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - needs Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - needs Spark

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise CommandError(_gist(str(error))) from error


def _gist(told: str) -> str:
    """The line that says what was wrong: one of ours, or the first with a kind of Spark's own."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("anabranch.") and _OURS in line]
    if own:
        return own[-1].partition(_OURS)[2]
    found = next(filter(None, map(_CLASS.search, lines)), None)
    return lines[0] if found is None else found.string[found.start() :]
