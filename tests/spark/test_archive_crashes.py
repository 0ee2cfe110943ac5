"""Whatever an archiver is doing when it is killed, the archive holds each event once afterwards.

Killed with a Spark of its own it is in `scripts/soak`, since that takes most of a minute.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow.dataset as ds
import pytest

import anabranch
from anabranch.spark.archive.manifest import read_state
from anabranch.spark.archive.verification import verify
from tests.archive_parts import archived, followed, served
from tests.broker_parts import environment
from tests.spark.archiving import POINTS, Work
from tests.spark_parts import PAIR, ROOT, Driver

KILLED = -9
PART = 40
SOAK_ONLY = pytest.mark.skipif(
    os.environ.get("ANABRANCH_HYPOTHESIS_PROFILE") != "soak", reason="only in scripts/soak"
)


@pytest.fixture(scope="module")
def archivers() -> Iterator["subprocess.Popen[str]"]:
    """A process that starts archivers."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.spark.archiving"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def run(archivers: "subprocess.Popen[str]", work: Work) -> int:
    """The exit status of an archiver."""
    assert archivers.stdin is not None
    assert archivers.stdout is not None
    archivers.stdin.write(msgspec.json.encode(work).decode() + "\n")
    archivers.stdin.flush()
    return int(archivers.stdout.readline())


def publish(network: anabranch.Embedded, first: int) -> None:
    """As many events into each stream."""
    for address in network.addresses:
        with anabranch.connect_blocking(address, name=f"feed {address} {first}") as client:
            client.publish_many({"n": n, f"new {first}": n} for n in range(first, first + PART))


def check_consistent(directory: Path) -> None:
    """What is committed is there once, and no reader of files sees an event twice."""
    if not (directory / "_archive" / "archive.json").exists():
        return
    assert verify(directory).problems == []
    keys = [each[:2] for each in served(directory)]
    assert len(keys) == len({*keys}) == read_state(directory).rows
    if any(directory.glob("date=*/stream=*/[0-9]*.parquet")):
        table = ds.dataset(directory, partitioning="hive", format="parquet").to_table()
        seen = [*zip(table["stream"].to_pylist(), table["tick"].to_pylist(), strict=True)]
        assert len(seen) == len({*seen})
        assert {*seen} <= {*keys}


@pytest.mark.slow
def test_killed_at_any_point_an_archiver_loses_nothing_and_repeats_nothing(
    archivers: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    directory = tmp_path / "archive"
    with followed(tmp_path, PAIR) as (network, follower):
        addresses = ",".join(network.addresses)
        published = 0
        for point in POINTS:
            publish(network, published)
            published += PART
            compacts = point in ("a joined file is written", "old files are put aside")
            if compacts:
                archived(network, directory)
            work = Work(brokers=addresses, directory=str(directory), dies=point, compacts=compacts)
            assert run(archivers, work) == KILLED, point
            check_consistent(directory)
        assert run(archivers, Work(brokers=addresses, directory=str(directory))) == 0
        check_consistent(directory)
        assert served(directory) == follower.until(2 * published)
        left = [
            path.name for path in directory.glob("date=*/stream=*/_*") if path.suffix == ".part"
        ]
        assert left == []


@pytest.mark.slow
@SOAK_ONLY
def test_a_driver_killed_with_its_spark_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    with followed(tmp_path, PAIR) as (network, follower):
        publish(network, 0)
        work = Work(
            brokers=",".join(network.addresses),
            directory=str(directory),
            dies="the commit is made",
        )
        text = msgspec.json.encode(work).decode()
        with Driver(tmp_path / "driver.log", "tests.spark.archiving", text) as driver:
            assert driver.wait() == KILLED, driver.said()
        check_consistent(directory)
        assert read_state(directory).number == 1
        publish(network, PART)
        archived(network, directory)
        assert served(directory) == follower.until(4 * PART)
