"""What tests of archives share: networks that forget, archives made in this process, and what a
subscriber got."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pyarrow as pa
from pyspark.sql import SparkSession

import anabranch
from anabranch.model.encoding import decode_event, rows_in
from anabranch.model.event import Event
from anabranch.spark.archive.reader import ArchiveReader
from anabranch.spark.archive.writer import Archiver, Missing, Report
from anabranch.spark.options import Options, read_options
from tests.spark_parts import network_of

#: Stream, tick, time and the event itself.
Got = tuple[str, int, int, Event]
#: A log of 1,000 ticks, which forgets an eighth when it is full.
LOSSY = """
[network]
name = "lossy"
[tree]
a = []
[options]
retention = "lossy"
keep_s = 86_400.0
log_ticks_max = 1_000
"""
BOUND_S = 180.0


class Here:
    """Runs what would be tasks in this process, one after the other: for tests of everything but
    Spark, which take the real one elsewhere."""

    class _Frame:
        def __init__(self, count: int) -> None:
            self._batches = [pa.RecordBatch.from_pydict({"id": [n]}) for n in range(count)]

        def mapInArrow(
            self, task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str
        ) -> "Here._Frame":
            self._batches = [made for each in self._batches for made in task([each])]
            return self

        def collect(self) -> list[tuple[object, ...]]:
            return [tuple(row.values()) for each in self._batches for row in each.to_pylist()]

    class _Context:
        defaultParallelism = 2  # noqa: N815 - Spark's name

    sparkContext = _Context()  # noqa: N815 - Spark's name

    def range(self, _first: int, count: int, _step: int, _partitions: int) -> _Frame:
        return Here._Frame(count)


HERE = cast("SparkSession", Here())


def options_for(network: anabranch.Embedded, **more: str) -> Options:
    return read_options({"brokers": ",".join(network.addresses), **more})


def archived(
    network: anabranch.Embedded, directory: Path, missing: Missing = "fail", **more: str
) -> Report:
    """Archive what there is, in this process."""
    with Archiver(HERE, directory, options_for(network, **more), missing=missing) as archiver:
        return archiver.run()


class Follower:
    """A durable subscriber, and all that it got."""

    def __init__(self, network: anabranch.Embedded, filter: str = "TRUE") -> None:
        self._client = network.connect_blocking(name=f"follower of {filter}")
        self._subscription = self._client.subscribe(filter, durable="all", new=True)
        self._subscription.wait_started(*_streams(network), timeout=BOUND_S)
        self.got: list[Got] = []

    def until(self, count: int) -> list[Got]:
        """Everything so far, when there are so many; by streams and ticks."""
        while len(self.got) < count:
            received = self._subscription.get(BOUND_S)
            assert received is not None
            self.got.append((received.stream, received.tick, received.time_ns, received.event))
        return sorted(self.got, key=lambda each: each[:2])

    def close(self) -> None:
        self._client.close()


def _streams(network: anabranch.Embedded) -> list[str]:
    with anabranch.Fetcher(*network.addresses) as fetcher:
        return list(fetcher.describe().origins)


@contextmanager
def followed(
    folder: Path, text: str, filter: str = "TRUE"
) -> Iterator[tuple[anabranch.Embedded, Follower]]:
    """A network, and a durable subscriber that was there from the beginning."""
    with network_of(folder, text) as network:
        follower = Follower(network, filter)
        try:
            yield network, follower
        finally:
            follower.close()


def served(directory: Path, filter: str = "") -> list[Got]:
    """All that an archive gives out, by streams and ticks."""
    reader = ArchiveReader(directory)
    found: list[Got] = []
    for stream, (first, last) in sorted(reader.state.ranges.items()):
        through = first - 1
        for piece in reader.pieces(stream, first, last, filter):
            assert piece.first == through + 1
            through = piece.through
            rows = [*rows_in(piece.data)]
            assert len(rows) == piece.count
            found += [(stream, tick, time_ns, decode_event(body)) for tick, time_ns, body in rows]
        assert through == last
    return found
