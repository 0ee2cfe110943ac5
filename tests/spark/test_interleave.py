"""Several streams as one: the order, whatever comes when, and nothing dropped."""

import json
import os
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual
from typer.testing import CliRunner

from anabranch.cli.main import app
from anabranch.model.errors import LocalError
from anabranch.spark.interleave import TimeOrderBuffer, interleave

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LATENESS_US = 2_000_000
SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("tick", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("price", pa.float64()),
    ]
)
#: Stream, tick, microseconds.
Event = tuple[str, int, int]
Row = dict[str, object]

#: Of half a second each, so that many are at one time.
times_us = st.integers(0, 30).map(lambda number: number * 500_000)
drawn = st.lists(st.tuples(st.sampled_from(["a", "b", "é"]), times_us), max_size=60)


def numbered(pairs: Sequence[tuple[str, int]]) -> list[Event]:
    return [(stream, tick, time_us) for tick, (stream, time_us) in enumerate(pairs, 1)]


def table(events: Sequence[Event], schema: pa.Schema = SCHEMA) -> pa.Table:
    rows = [
        {"stream": stream, "tick": tick, "timestamp": BEGIN + timedelta(microseconds=time_us)}
        | {"price": 2.0**60 + tick}
        for stream, tick, time_us in events
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def in_order(events: Sequence[Event]) -> list[tuple[str, int]]:
    ordered = sorted(events, key=lambda event: (event[2], event[0].encode(), event[1]))
    return [(stream, tick) for stream, tick, _ in ordered]


def places(rows: Sequence[Row]) -> list[tuple[object, object]]:
    return [(row["stream"], row["tick"]) for row in rows]


def taken(
    waiting: TimeOrderBuffer, batches: Sequence[Sequence[Event]]
) -> tuple[list[Row], list[Row]]:
    """What goes, and what is late, with everything written down between batches."""
    gone: list[Row] = []
    late: list[Row] = []
    for batch in batches:
        going, behind = waiting.take(table(batch))
        gone += going.to_pylist()
        late += behind.to_pylist()
        state = waiting.state()
        waiting.restore(state)
    rest = waiting.flush()
    return gone + ([] if rest is None else rest.to_pylist()), late


def cut(rng: Random, events: Sequence[Event]) -> list[list[Event]]:
    batches: list[list[Event]] = []
    for event in events:
        if not batches or rng.random() < 0.3:
            batches.append([])
        batches[-1].append(event)
    return batches


# -- those that wait


@given(drawn, st.integers(0, 2**32))
def test_any_order_within_the_lateness_gives_the_order_of_keys(
    pairs: list[tuple[str, int]], seed: int
) -> None:
    rng, events = Random(seed), numbered(pairs)
    coming = sorted(events, key=lambda event: (event[2] + rng.randint(0, LATENESS_US), event[1]))
    gone, late = taken(TimeOrderBuffer("timestamp", LATENESS_US), cut(rng, coming))
    assert late == []
    assert places(gone) == in_order(events)
    assert [row["position"] for row in gone] == list(range(len(events)))
    assert not any(row["late"] for row in gone)


@given(drawn, st.integers(0, 2**32))
def test_any_order_at_all_drops_nothing_and_keeps_what_goes_in_order(
    pairs: list[tuple[str, int]], seed: int
) -> None:
    rng, events = Random(seed), numbered(pairs)
    coming = rng.sample(events, len(events))
    gone, late = taken(TimeOrderBuffer("timestamp", LATENESS_US, waiting_max=7), cut(rng, coming))
    assert sorted(places(gone) + places(late)) == sorted((s, t) for s, t, _ in events)
    by_tick = {tick: event for event in events for tick in event[1:2]}
    assert places(gone) == in_order([by_tick[row["tick"]] for row in gone])  # type: ignore[index]
    assert [row["position"] for row in gone] == list(range(len(gone)))
    assert all(row["late"] and row["position"] is None for row in late)


def test_no_more_wait_than_may() -> None:
    waiting = TimeOrderBuffer("timestamp", LATENESS_US, waiting_max=3)
    going, late = waiting.take(table([("a", tick, tick) for tick in range(1, 11)]))
    assert places(going.to_pylist()) == [("a", tick) for tick in range(1, 8)]
    assert len(waiting) == 3
    assert len(late) == 0


def test_what_has_no_time_has_no_place_and_is_not_dropped() -> None:
    waiting = TimeOrderBuffer("timestamp", LATENESS_US)
    rows = [{"stream": "a", "tick": 1, "timestamp": None, "price": 1.0}]
    going, late = waiting.take(pa.Table.from_pylist(rows, schema=SCHEMA))
    assert len(going) == 0
    assert late.to_pylist()[0]["late"] is True


# -- in Spark


def written(folder: Path, batches: Sequence[Sequence[Event]]) -> None:
    folder.mkdir()
    for number, batch in enumerate(batches):
        path = folder / f"{number:03}.parquet"
        pq.write_table(table(batch), path)
        # Spark takes the oldest first.
        os.utime(path, (1_800_000_000 + number, 1_800_000_000 + number))


def streamed(spark: SparkSession, folder: Path, state: Path) -> DataFrame:
    """All files one after the other, each as a batch."""
    frame = spark.readStream.schema(spark.read.parquet(str(folder)).schema)
    source = frame.option("maxFilesPerTrigger", 1).parquet(str(folder))
    ordered = interleave([source], lateness_s=LATENESS_US / 1e6)
    out = str(state / "out")
    query = (
        ordered.writeStream.format("parquet")
        .option("checkpointLocation", str(state / "checkpoint"))
        .trigger(availableNow=True)
        .start(out)
    )
    query.awaitTermination()
    return spark.read.parquet(out)


def test_streaming_gives_what_batch_gives(spark: SparkSession, tmp_path: Path) -> None:
    rng = Random(7)
    events = [(rng.choice("ab"), tick, rng.randrange(40) * 250_000) for tick in range(1, 301)]
    coming = sorted(events, key=lambda event: event[2] + rng.randint(0, LATENESS_US))
    # The last one is so young that everything else goes.
    end: Event = ("z", 1, 60_000_000)
    written(tmp_path / "files", [coming[:100], coming[100:200], coming[200:], [end]])
    whole = spark.read.parquet(str(tmp_path / "files"))
    batch = interleave([whole.where("stream = 'a'"), whole.where("stream <> 'a'")])
    rows = [row.asDict() for row in batch.collect()]
    assert places(rows) == in_order([*events, end])
    assert [row["position"] for row in rows] == sorted(row["position"] for row in rows)
    found = streamed(spark, tmp_path / "files", tmp_path)
    assert found.where("late").isEmpty()
    # The youngest one still waits.
    assert [row["position"] for row in found.orderBy("position").collect()] == list(range(300))
    in_time = found.orderBy("position").select(batch.drop("position").columns)
    expected = batch.where("stream <> 'z'").drop("position")
    assertDataFrameEqual(in_time, expected, checkRowOrder=True)


def test_the_command_writes_lines_in_order(spark: SparkSession, tmp_path: Path) -> None:
    events: list[Event] = [("b", 1, 20), ("a", 7, 20), ("a", 3, 20), ("b", 2, 10)]
    written(tmp_path / "files", [events[:2], events[2:]])
    command = ["pipeline", "interleave", str(tmp_path / "files"), "--master", "local[2]"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert places(rows) == [("b", 2), ("a", 3), ("a", 7), ("b", 1)]
    assert not any(row["late"] for row in rows)
    done = CliRunner().invoke(app, [*command, "--to", str(tmp_path / "files")])
    assert done.exit_code == 2
    assert "is not empty" in done.stderr
    done = CliRunner().invoke(app, [*command, "127.0.0.1:4100"])
    assert done.exit_code == 2


def test_followed_lines_come_in_order_and_the_last_ones_when_nothing_comes(
    spark: SparkSession, tmp_path: Path
) -> None:
    events: list[Event] = [("b", 1, 2_000_000), ("a", 7, 3_000_000), ("a", 3, 1_000_000)]
    written(tmp_path / "files", [events[:2], events[2:]])
    to = tmp_path / "ordered.jsonl"

    def stop_when_all_are_there() -> None:
        for _ in range(1_200):
            if to.exists() and len(to.read_text().splitlines()) == len(events):
                break
            over.wait(0.05)
        for query in spark.streams.active:
            query.stop()

    over = threading.Event()
    watcher = threading.Thread(target=stop_when_all_are_there)
    watcher.start()
    words = ["--follow", "--idle", "0.2", "--lateness", "60", "--to", str(to)]
    command = ["pipeline", "interleave", str(tmp_path / "files"), "--master", "local[2]"]
    done = CliRunner().invoke(app, [*command, *words])
    watcher.join()
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in to.read_text().splitlines()]
    assert places(rows) == [("a", 3), ("b", 1), ("a", 7)]
    assert [row["position"] for row in rows] == [0, 1, 2]


def test_bad_frames_are_refused_with_what_is_wrong(spark: SparkSession) -> None:
    frame = spark.createDataFrame(table([("a", 1, 1)]))
    with pytest.raises(LocalError, match="no column 'loggedAt'"):
        interleave([frame], time="loggedAt")
    with pytest.raises(LocalError, match="column 'price' is double, not timestamp"):
        interleave([frame], time="price")
    with pytest.raises(LocalError, match="column 'late' already"):
        interleave([frame.withColumnRenamed("price", "late")])
    with pytest.raises(LocalError, match="nothing to interleave"):
        interleave([])
