"""A query that copies streams of a network into another one, in this process or in one that dies.

    python -m tests.spark.copying '{"brokers": …}'

As a program it is a driver: it starts a session, copies all there is, and ends. Where it is told to
(`dies_after`), the Java of the driver is killed when a batch is committed at the broker and Spark
has not written that down yet: the moment at which other sinks write twice.
"""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from anabranch.spark.session import session
from anabranch.spark.source import AnabranchDataSource
from anabranch.spark.writer import Messages, StreamWriter

_DIES_AFTER = "ANABRANCH_TEST_DIES_AFTER"


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """What is copied, from where to where."""

    brokers: str
    sources: str
    target: str
    sink: str
    checkpoint: str
    #: Ticks of one batch, and its partitions.
    batch_ticks: int = 1_000
    partitions: int = 2
    master: str = "local[2,4]"
    #: The batch after whose commit the driver dies; −1: it lives.
    dies_after: int = -1
    #: Waits for more when all is copied.
    goes_on: bool = False


def start(spark: SparkSession, copy: Copy, sink_format: str = "anabranch") -> StreamingQuery:
    """Begin to copy, or go on."""
    reading = (
        spark.readStream.format("anabranch")
        .schema("source string, n bigint")
        .option("brokers", copy.brokers)
        .option("streams", copy.sources)
        .option("startingOffsets", "earliest")
        .option("subscription", "n >= 0")
        .option("maxOffsetsPerTrigger", copy.batch_ticks)
        .option("minPartitions", copy.partitions)
    )
    writing = (
        reading.load()
        .writeStream.format(sink_format)
        .option("brokers", copy.brokers)
        .option("streams", copy.target)
        .option("sinkId", copy.sink)
        .option("checkpointLocation", copy.checkpoint)
    )
    return (writing if copy.goes_on else writing.trigger(availableNow=True)).start()


class DyingSource(AnabranchDataSource):
    """The data source, with a sink that kills its driver."""

    @classmethod
    def name(cls) -> str:
        return "anabranch-dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return _DyingWriter(self._options("stream write", schema), schema, overwrite)


class _DyingWriter(StreamWriter):
    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        if batchId >= int(os.environ[_DIES_AFTER]):
            _kill_java()


def _kill_java() -> NoReturn:
    """Kill the Java that this process works for."""
    process = os.getpid()
    while True:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")
        if fields[0].endswith("(java"):
            os.kill(process, signal.SIGKILL)
            os._exit(9)
        process = int(fields[2].split()[1])


def main() -> int:
    copy = msgspec.json.decode(sys.argv[1], type=Copy)
    os.environ[_DIES_AFTER] = str(copy.dies_after)
    settings = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    spark = session(copy.master, name="copying", **settings)
    if not copy.master.startswith("sc://"):
        spark.sparkContext.setLogLevel("ERROR")
    if copy.dies_after >= 0:
        spark.dataSource.register(DyingSource)
    query = start(spark, copy, "anabranch" if copy.dies_after < 0 else "anabranch-dying")
    query.awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
