"""Audits of traces: what is not known, and what happens meanwhile, is nobody's fault."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import anabranch
from anabranch.check import history as saw
from anabranch.cli.pipeline.broker_logs import read_states
from anabranch.devnet.traces import encode_line
from anabranch.model.errors import LocalError
from anabranch.spark.archive.manifest import Span
from anabranch.spark.archive.reader import HistoricalRead, Part
from anabranch.spark.audit import audit
from anabranch.spark.audit.inputs import Logs, first_known, published_of, read_history
from anabranch.spark.audit.runner import audit_traces
from anabranch.spark.options import read_options
from tests.spark_parts import PAIR, network_of

PUBLISHED = "stream string, tick bigint, publisher string, incarnation bigint, seq bigint, a bigint"


def anomalies(
    spark: SparkSession, paths: list[Path], read_logs: Callable[[], Logs]
) -> dict[str, int]:
    found, _ = audit_traces(spark, paths, read_logs, complete=True)
    with found:
        rows = found.findings.select("kind", "reason").collect()
    return dict(Counter(f"{row['kind']}: {row['reason']}" for row in rows))


def append(path: Path, *records: saw.Record) -> None:
    with path.open("ab") as file:
        file.writelines(map(encode_line, records))


def test_what_happens_while_logs_are_read_is_nobodys_fault(
    spark: SparkSession, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    append(
        trace,
        saw.Published(1.0, "p", 1, 1, {"a": 1}, "o"),
        saw.Confirmed(2.0, "p", 1, 1),
        saw.Subscribed(0.0, "s#1", "a > 0", "reliable", "now", "o"),
        saw.Started(0.5, "s#1", "o", 1),
        saw.Delivered(2.0, "s#1", "o", 1, "p", 1, 1),
    )

    def read_logs() -> Logs:
        # Of what is published and delivered now, a log has more than the traces that were read,
        # and then the traces have more than it.
        append(trace, saw.Published(3.0, "p", 1, 2, {"a": 2}, "o"))
        rows = [("o", 1, "p", 1, 1, 1), ("o", 2, "p", 1, 2, 0)]
        append(
            trace,
            saw.Published(4.0, "p", 1, 3, {"a": 3}, "o"),
            saw.Confirmed(5.0, "p", 1, 3),
            saw.Delivered(5.0, "s#1", "o", 3, "p", 1, 3),
        )
        return Logs(spark.createDataFrame(rows, PUBLISHED))

    assert anomalies(spark, [trace], read_logs) == {}


def test_events_that_no_log_keeps_are_not_missed_there(spark: SparkSession, tmp_path: Path) -> None:
    """A transient event, one that came and one that nobody wanted; the network is the log."""
    traces = [tmp_path / "reader.jsonl", tmp_path / "writer.jsonl"]
    with network_of(tmp_path, PAIR) as network:
        address = network.addresses[0]
        options = read_options({"brokers": address})
        reader = anabranch.connect_blocking(address, name="reader", trace=traces[0])
        writer = anabranch.connect_blocking(address, name="writer", trace=traces[1])
        with reader, writer:
            wanted = reader.subscribe("a > 0")
            wanted.wait_started("a", timeout=180.0)
            writer.publish({"a": 1}, persistence="transient")
            writer.publish({"a": -1}, persistence="transient")
            writer.publish({"a": 2})
            assert [wanted.get(timeout=180.0) is not None for _ in range(2)] == [True, True]
        found = anomalies(spark, traces, lambda: read_history(spark, None, options))
    assert found == {}


def test_a_number_that_json_cannot_say_blames_nobody(spark: SparkSession, tmp_path: Path) -> None:
    state, trace = tmp_path / "state", tmp_path / "trace.jsonl"
    with (
        anabranch.embedded(state=state) as network,
        network.connect_blocking(name="both", trace=trace) as client,
    ):
        wanted = client.subscribe("a IS NOT NULL")
        wanted.wait_started(timeout=180.0)
        client.publish({"a": float("nan")})
        client.publish({"a": 1.5})
        assert [wanted.get(timeout=180.0) is not None for _ in range(2)] == [True, True]
    assert anomalies(spark, [trace], lambda: read_states(spark, [state])) == {}
    logs = read_states(spark, [state])
    for file in state.rglob("*.segment"):
        file.unlink()
    with pytest.raises(PythonException, match="its broker has trimmed it since"):
        logs.published.count()


@pytest.mark.parametrize(
    ("part", "missing", "first"),
    [
        (Part(Span("o", 1, 9), Span("o", 10, 20)), [], 1),
        (Part(Span("o", 4, 9), Span("o", 10, 20)), [], 4),
        (Part(Span("o", 1, 9), Span("o", 15, 20)), [Span("o", 10, 14)], 15),
        (Part(Span("o", 1, 9), None), [Span("o", 3, 4), Span("p", 7, 8)], 5),
        (Part(None, None), [], 21),
    ],
)
def test_a_stream_is_known_from_behind_the_last_tick_that_nobody_has(
    part: Part, missing: list[Span], first: int
) -> None:
    assert first_known(HistoricalRead("n", {"o": part}, missing, {"o": 20}, {}), "o") == first


def test_times_of_published_events_are_integers(spark: SparkSession) -> None:
    text = "SELECT 'o' AS stream, 1L AS tick, timestamp_micros(-5) AS at, 'x' AS symbol"
    published = published_of(spark.sql(text), has_names=False)
    assert published.columns is not None
    (at, symbol) = published.columns
    assert (at.attribute, at.kind, symbol.attribute) == ("at", "integer", "symbol")
    assert published.frame.collect()[0][at.column] == -5_000


def test_what_was_sent_needs_ids(spark: SparkSession) -> None:
    published = spark.createDataFrame([("o", 1, 1)], "stream string, tick bigint, a bigint")
    wanted = "subscription string, filter string, stream string, start bigint, end bigint"
    subscriptions = spark.createDataFrame([("s", "a > 0", "o", 1, None)], wanted)
    came = "subscription string, stream string, tick bigint, order bigint"
    deliveries = spark.createDataFrame([("s", "o", 1, 1)], came)
    sent = spark.createDataFrame([("p", 1, 1, "o", True)], "publisher string, incarnation bigint,"
                                 " seq bigint, stream string, confirmed boolean")  # fmt: skip
    with pytest.raises(LocalError, match="requires publisher, incarnation, seq"):
        audit(spark, published, subscriptions, deliveries, sent=sent)
