"""A data pipeline on a network of brokers: read it from top to bottom, it takes five minutes.

Quotes are published into a network. Spark reads them as a data frame, of which the brokers send
only what matches; a streaming query averages them and publishes the averages back, exactly once;
everything is archived as Parquet; and an audit shows that a subscriber was given what it was
promised. Here the network is inside this program; with real brokers only the address is another.

    python examples/quotes_pipeline.py [DIRECTORY]

Needs `pip install 'anabranch[spark]'` and Java 17 (docs/how-to/read-with-spark.md).
"""

import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import avg, bround, col, count, window

import anabranch
from anabranch.spark import session
from anabranch.spark.archive.writer import archive
from anabranch.spark.audit.inputs import read_history
from anabranch.spark.audit.page import audit_page
from anabranch.spark.audit.runner import audit_traces
from anabranch.spark.options import read_options

# One broker. Its log keeps a day; by itself it would forget what every subscriber has got.
NETWORK = """
[network]
name = "quotes"
[tree]
exchange = []
[options]
keep_s = 86_400.0
"""
OPENING = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def quotes() -> Iterator[tuple[datetime, str, float, int]]:
    """Ten minutes of quotes, one each second, of three shares in turn."""
    for second in range(600):
        symbol, price = (("IBM", 180.0), ("HPQ", 30.0), ("DEC", 17.0))[second % 3]
        moment = OPENING + timedelta(seconds=second)
        yield moment, symbol, price + second / 100, 10 * (second % 7 + 1)


def publish_and_subscribe(network: anabranch.Embedded, traces: Path) -> None:
    """What applications do: one publishes, one wants some of it. Both write down what happens."""
    traces.mkdir()
    with (
        network.connect_blocking(name="feed", trace=traces / "feed.jsonl") as feed,
        network.connect_blocking(name="desk", trace=traces / "desk.jsonl") as desk,
    ):
        wanted = desk.subscribe("symbol = 'IBM' AND volume > 50")
        wanted.wait_started(timeout=30)
        for moment, symbol, price, volume in quotes():
            feed.publish_soon(
                {"symbol": symbol, "price": price, "volume": volume}, timestamp=moment
            )
        feed.flush(timeout=30)
        expected = sum(symbol == "IBM" and volume > 50 for _, symbol, _, volume in quotes())
        for _ in range(expected):
            wanted.get(timeout=30)
    print("the desk has its", expected, "quotes")


def look(spark: SparkSession, brokers: str) -> None:
    """A batch: the log as a data frame. The filter is evaluated by the broker."""
    expensive = (
        spark.read.format("anabranch")
        .option("brokers", brokers)
        .option("subscription", "price > 100")
        .load()
    )
    expensive.groupBy("symbol").agg(count("*"), avg("price")).show()


def average(spark: SparkSession, brokers: str, directory: Path) -> None:
    """A streaming query: averages of every minute, written back into the network exactly once."""
    trades = (
        spark.readStream.format("anabranch")
        .option("brokers", brokers)
        .option("subscription", "volume IS NOT NULL")  # quotes, and not our own averages
        .option("startingOffsets", "earliest")
        .schema("symbol STRING, price DOUBLE, timestamp TIMESTAMP")
        .load()
    )
    minutes = (
        trades.withWatermark("timestamp", "30 seconds")
        .groupBy(window("timestamp", "1 minute"), "symbol")
        .agg(bround(avg("price"), 1).alias("average"), count("*").alias("quotes"))
    )
    query = (
        minutes.select("symbol", "average", "quotes", col("window.end").alias("timestamp"))
        .writeStream.format("anabranch")
        .option("brokers", brokers)
        .option("sinkId", "averages")  # who publishes; a batch that comes again is known by it
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)  # all there is, then end; without it, until it is stopped
        .start()
    )
    query.awaitTermination()


def show_averages(network: anabranch.Embedded) -> None:
    """The averages are events like any others: whoever subscribes gets them."""
    with network.connect_blocking(name="reader") as reader:
        averages = reader.subscribe("symbol = 'DEC' AND average IS NOT NULL", since="beginning")
        # Nine minutes are over by the watermark; the tenth is not.
        found = [averages.get(timeout=30) for _ in range(9)]
    print("DEC, minute by minute:", *sorted(str(each["average"]) for each in found))


def archive_and_audit(spark: SparkSession, brokers: str, directory: Path) -> None:
    """Keep everything as Parquet, and have the promises checked from that and from the traces."""
    report = archive(spark, directory / "archive", read_options({"brokers": brokers}))
    print("archived:", report.rows, "events")
    found, _ = audit_traces(
        spark,
        sorted((directory / "traces").glob("*.jsonl")),
        lambda: read_history(spark, directory / "archive", None),
        complete=True,
    )
    with found:
        told = found.report()
    (directory / "audit.html").write_text(audit_page(told), encoding="utf-8")
    print("audit:", told.counts)


def main(directory: Path) -> None:
    """From the first event to the audit."""
    (directory / "network.toml").write_text(NETWORK)
    spark = session()
    with anabranch.embedded(directory / "network.toml") as network:
        brokers = ",".join(network.addresses)
        publish_and_subscribe(network, directory / "traces")
        look(spark, brokers)
        average(spark, brokers, directory)
        show_averages(network)
        archive_and_audit(spark, brokers, directory)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
