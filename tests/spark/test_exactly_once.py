"""Every row once, in order, although driver and broker are killed at the worst of moments."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

import anabranch
from tests.broker_parts import Brokers
from tests.spark.copying import Copy, start
from tests.spark_parts import Driver, Findings, compared, events_of, publish_numbered

pytestmark = pytest.mark.slow

ROWS = 6_000
NETWORK = """
[network]
name = "copying"
[tree]
a = ["c"]
[options]
keep_s = 86_400.0
"""


def head(brokers: Brokers, stream: str) -> int:
    """The newest tick of a stream."""
    with anabranch.Fetcher(brokers.address(stream), stream=stream) as fetcher:
        return fetcher.describe().head


def wait_until(is_so: Callable[[], bool], what: str, bound_s: float = 120.0) -> None:
    deadline = time.monotonic() + bound_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {bound_s:.0f} s: {what}"
        time.sleep(0.02)


def test_a_driver_killed_between_both_commits_and_a_killed_broker_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Brokers(tmp_path, NETWORK) as brokers:
        brokers.start("a", "c")
        publish_numbered(brokers.address("a"), "a", ROWS)
        copy = Copy(
            brokers=brokers.address("a"),
            sources="a",
            target="c",
            sink="copy",
            checkpoint=str(tmp_path / "checkpoint"),
            batch_ticks=ROWS // 4,
        )
        dying = msgspec.structs.replace(copy, dies_after=1)
        text = msgspec.json.encode(dying).decode()
        with Driver(tmp_path / "driver.log", "tests.spark.copying", text) as driver:
            assert driver.wait() != 0, driver.said()
        # Batch 1 is in the stream, and Spark does not know.
        assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
        assert (tmp_path / "checkpoint" / "offsets" / "1").exists()
        before = compared(events_of(brokers.address("c")), {"a": ROWS})
        assert before.rows > ROWS // 4
        assert before.duplicate == 0

        query = start(spark, copy)
        try:
            reached = head(brokers, "c")
            wait_until(lambda: head(brokers, "c") > reached, "the query goes on")
            brokers["c"].end(signal.SIGKILL)
            brokers.start("c")
            assert query.awaitTermination(120)
            assert query.exception() is None
        finally:
            query.stop()
        found = compared(events_of(brokers.address("c")), {"a": ROWS})
    assert found == Findings(rows=ROWS, missing=0, duplicate=0, reordered=0)
