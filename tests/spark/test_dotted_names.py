"""Attributes with a dot in their name, such as `tag.red` and those of matches, everywhere on Spark.

Spark reads a dot in a column name as the field of a column, unless the name is quoted.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.model.encoding import decode_event
from anabranch.spark.audit import audit
from anabranch.spark.bulk_matching import match_counts
from anabranch.spark.detect import detect
from anabranch.spark.history import look_into
from anabranch.spark.interleave import interleave
from anabranch.spark.statistics import stats
from tests.spark_parts import network_of, writing

ROWS = [
    ("a", tick, f"2026-01-31 12:00:{tick:02}", "p", 1, tick, tick % 2 == 0, float(tick))
    for tick in range(1, 7)
]
SCHEMA = (
    "stream string, tick bigint, loggedAt string, publisher string, incarnation bigint, seq bigint,"
    " `tag.red` boolean, `size.width` double"
)


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> str:
    path = str(tmp_path / "files")
    frame = spark.createDataFrame(ROWS, SCHEMA)
    frame.selectExpr(
        "* except (loggedAt)",
        "timestamp(loggedAt) as loggedAt",
        "timestamp(loggedAt) as timestamp",
    ).coalesce(1).write.parquet(path)
    return path


def test_they_are_written_read_and_restored(spark: SparkSession, tmp_path: Path) -> None:
    with network_of(tmp_path) as network:
        place = network.addresses[0]
        frame = spark.createDataFrame([(True, 1.5)], "`tag.red` boolean, `size.width` double")
        writing(frame, {"brokers": place, "transactionId": "t"}).save()
        options = {"brokers": place, "subscription": "tag.red = TRUE"}
        reading = spark.read.format("anabranch").options(**options)
        found = reading.schema("tick bigint, `tag.red` boolean, `size.width` double").load()
        assert found.select("`tag.red`", "`size.width`").collect() == [(True, 1.5)]
        assert found.where("`size.width` > 2").count() == 0
        past = look_into(spark, None, "tag.red = TRUE", brokers=place)
        (row,) = past.events().collect()
        assert dict(decode_event(bytes(row["event"]))) == {"tag.red": True, "size.width": 1.5}


def test_they_are_matched_detected_and_counted(spark: SparkSession, files: str) -> None:
    events = spark.read.parquet(files)
    subscriptions = {"red": "tag.red = TRUE", "wide": "size.width > 4"}
    counts = match_counts(events, subscriptions).collect()
    assert {row["subscription"]: row["matches"] for row in counts} == {"red": 3, "wide": 2}
    pattern = "a:{tag.red = TRUE} THEN b:{size.width > 5} WITHIN 1 min"
    assert detect(events, pattern).count() > 0
    (stream,) = stats(events)
    assert stream.attributes["tag.red"].present == len(ROWS)


def test_they_are_interleaved_as_they_come(spark: SparkSession, files: str, tmp_path: Path) -> None:
    source = spark.readStream.schema(spark.read.parquet(files).schema).parquet(files)
    query = (
        interleave([source], lateness_s=0.0)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    widths = spark.read.parquet(str(tmp_path / "out")).select("`size.width`")
    assert {row[0] for row in widths.collect()} >= {1.0, 2.0, 3.0, 4.0, 5.0}


def test_they_are_audited(spark: SparkSession, files: str) -> None:
    subscriptions = spark.createDataFrame(
        [("s#1", "tag.red = TRUE", "a", 1, 6)],
        "subscription string, filter string, stream string, start bigint, end bigint",
    )
    deliveries = spark.createDataFrame(
        [("s#1", "a", 2, 1, "p", 1, 2), ("s#1", "a", 4, 2, "p", 1, 4)],
        "subscription string, stream string, tick bigint, order bigint, publisher string,"
        " incarnation bigint, seq bigint",
    )
    with audit(spark, spark.read.parquet(files), subscriptions, deliveries) as found:
        assert [(row["kind"], row["tick"]) for row in found.findings.collect()] == [("lost", 6)]
