"""Output of rows: Parquet files in a directory, a JSON lines file, or stdout.

A batch query writes once, to a new directory. A streaming query runs until it is interrupted.
Parquet files then contain every row exactly once, with a checkpoint beside them; JSON lines may
repeat the last batch after a crash.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from anabranch.cli.errors import CommandError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_CHECKPOINT = "_checkpoint"


def is_lines(to: Path | None) -> bool:
    """Whether rows are written as JSON lines."""
    return to is None or to.suffix in {".jsonl", ".ndjson", ".json"}


def check_output(to: Path | None) -> None:
    """Reject a directory that is not empty."""
    if to is not None and not is_lines(to) and to.exists() and any(to.iterdir()):
        raise CommandError(f"{to} is not empty; give a new directory")


def write_lines(frame: "DataFrame", to: Path | None) -> int:
    """Write one line per row; returns their number."""
    count = 0
    with _output(to, "w") as out:
        for row in _lines(frame).toLocalIterator(prefetchPartitions=True):
            out.write(f"{row['value']}\n")
            count += 1
    return count


def follow(
    frame: "DataFrame",
    to: Path | None,
    checkpoint: Path | None,
    *,
    ordered: Sequence[str],
    look_every_s: float | None = None,
) -> None:
    """Run a streaming query until it is interrupted. Lines of a batch are ordered by `ordered`.

    Spark starts a batch as soon as it can, or every `look_every_s`."""
    writer = frame.writeStream.outputMode("append")
    if look_every_s is not None:
        writer = writer.trigger(processingTime=f"{look_every_s} seconds")
    query = _begin(writer, to, checkpoint, ordered)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()


def _begin(
    writer: "DataStreamWriter", to: Path | None, checkpoint: Path | None, ordered: Sequence[str]
) -> "StreamingQuery":
    if to is not None and not is_lines(to):
        place = checkpoint or to / _CHECKPOINT
        return writer.option("checkpointLocation", str(place)).format("parquet").start(str(to))
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.foreachBatch(_printing(to, ordered)).start()


def _printing(to: Path | None, ordered: Sequence[str]) -> "Callable[[DataFrame, int], None]":
    def show(frame: "DataFrame", _batch: int) -> None:
        lines = _lines(frame.orderBy(*ordered)).toLocalIterator()
        with _output(to, "a") as out:
            out.writelines(f"{row['value']}\n" for row in lines)

    return show


def _lines(frame: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import col, struct, to_json  # noqa: PLC0415 - needs Spark

    columns = [col(f"`{name}`") for name in frame.columns]
    return frame.select(to_json(struct(*columns)).alias("value"))


@contextmanager
def _output(to: Path | None, mode: str) -> Iterator[IO[str]]:
    if to is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    with to.open(mode, encoding="utf-8") as file:
        yield file
