"""What a log no longer has is read from an archive, as one sequence with what it has."""

import logging
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql.types import StructType

from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.spark.column_types import Wanted
from anabranch.spark.options import OptionError, read_options
from anabranch.spark.reader import batch_reader
from anabranch.spark.schema import schema_of
from tests.archive_parts import LOSSY, archived
from tests.spark_parts import network_of

COLUMNS = schema_of(
    [Wanted("stream"), Wanted("tick"), Wanted("n", "integer"), Wanted("symbol", "text")]
)
Row = dict[str, object]


def quote(n: int) -> dict[str, Value]:
    return {"n": n, "symbol": f"S{n % 10}", "price": n / 4, "even": n % 2 == 0}


def rows(*brokers: str, **given: str) -> list[Row]:
    """All that a batch query would read, in this process."""
    return rows_as(COLUMNS, *brokers, **given)


def rows_as(schema: StructType, *brokers: str, **given: str) -> list[Row]:
    """The same with other columns."""
    options = read_options({"brokers": ",".join(brokers), **given}, "batch read")
    reader = batch_reader(options, schema)
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    return [row for batch in batches for row in batch.to_pylist()]


def numbers(found: list[Row]) -> list[object]:
    return [row["n"] for row in found]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A log that has forgotten most of what it had, and an archive that has it."""
    folder = tmp_path_factory.mktemp("older")
    directory = folder / "archive"
    with network_of(folder, LOSSY) as network, network.connect_blocking(name="feed") as client:
        address = network.addresses[0]
        for start in range(0, 3_000, 500):
            client.publish_many(map(quote, range(start, start + 500)))
            archived(network, directory)
        yield address, directory


def test_what_the_log_forgot_is_read_from_the_archive_without_a_gap(
    older: tuple[str, Path],
) -> None:
    address, directory = older
    assert rows(address)[0]["n"] != 0
    every = rows(address, archive=str(directory))
    assert numbers(every) == [*range(3_000)]
    matching = rows(address, archive=str(directory), subscription="symbol = 'S3'")
    assert matching == [row for row in every if row["symbol"] == "S3"]
    part = rows(address, archive=str(directory), startingOffsets='{"a": 700}', minPartitions="5")
    assert part == [row for row in every if cast("int", row["tick"]) >= 700]


def test_integers_of_both_are_times_where_they_are_declared(older: tuple[str, Path]) -> None:
    address, directory = older
    schema = schema_of([Wanted("n", "timestamp")])
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    every = rows_as(schema, address, archive=str(directory))
    assert [row["n"] for row in every] == [
        epoch + timedelta(microseconds=n // 1_000) for n in range(3_000)
    ]
    filter = "n >= TIMESTAMP '1970-01-01T00:00:00.000000999Z'"
    found = rows_as(schema, address, archive=str(directory), subscription=filter)
    assert found == every[999:]


def test_a_time_before_the_log_is_looked_for_in_the_archive(older: tuple[str, Path]) -> None:
    address, directory = older
    schema = schema_of([Wanted("stream"), Wanted("n", "integer"), Wanted("loggedAt")])
    every = rows_as(schema, address, archive=str(directory))
    times = [row["loggedAt"] for row in every]
    for place in (0, 700, 2_999):
        given = {"archive": str(directory), "startingTimestamp": str(times[place])}
        assert rows_as(schema, address, **given) == every[times.index(times[place]) :]


def test_ticks_that_neither_has_are_an_error_or_reported(
    older: tuple[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address, directory = older
    folder = tmp_path / "other"
    folder.mkdir()
    with (
        network_of(folder) as network,
        pytest.raises(OptionError, match=r"'archive': .* of network 'lossy', but the brokers"),
    ):
        rows(*network.addresses, archive=str(directory))
    with pytest.raises(OptionError, match=r"option 'archive': .* is not an archive"):
        rows(address, archive=str(tmp_path))
    # An archive that was left alone for a while: as it was after its first commits.
    short = tmp_path / "short"
    shutil.copytree(directory, short)
    for commit in sorted((short / "_archive" / "commits").iterdir())[2:]:
        commit.unlink()
    with pytest.raises(LocalError, match=r"ticks \d+ to \d+ of stream 'a' are neither in the log"):
        rows(address, archive=str(short))
    with caplog.at_level(logging.WARNING):
        found = numbers(rows(address, archive=str(short), failOnDataLoss="false"))
    assert found[0] == 0
    assert found[-1] == 2_999
    assert len(found) < 3_000
    assert "neither in the log nor in the archive; skipping them" in caplog.text
