"""Reading a network as a stream: offsets go on in silence, nothing is read twice or left out."""

import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import anabranch
from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.spark import cursor as cursors
from anabranch.spark.column_types import Wanted
from anabranch.spark.options import OptionError, read_options
from anabranch.spark.progress import Travelled, travelled
from anabranch.spark.reader import StreamReader
from anabranch.spark.schema import schema_of
from anabranch.spark.tick_ranges import Position
from tests.broker_parts import Brokers
from tests.spark_parts import PAIR, network_of

COLUMNS = schema_of([Wanted("stream"), Wanted("tick"), Wanted("n", "integer")])
ALL = ReadAllAvailable()
Offset = dict[str, object]
Row = dict[str, object]


def quote(n: int) -> dict[str, Value]:
    return {"n": n, "symbol": f"S{n % 10}", "price": n / 4}


class Feed:
    """A network, and a publisher at its first broker."""

    def __init__(self, network: anabranch.Embedded) -> None:
        self.addresses = network.addresses
        self._client = anabranch.connect_blocking(network.addresses[0], name="feed")
        self._count = 0
        self._readers: list[StreamReader] = []

    def publish(self, count: int) -> None:
        numbers = range(self._count, self._count + count)
        self._client.publish_many(map(quote, numbers))
        self._count += count

    def reader(self, schema: StructType = COLUMNS, **given: str) -> StreamReader:
        """What Spark keeps on the driver."""
        options = {"brokers": self.addresses[0], "startingOffsets": "earliest", **given}
        options = {name: text for name, text in options.items() if text}
        self._readers.append(StreamReader(read_options(options, "stream read"), schema))
        return self._readers[-1]

    def close(self) -> None:
        for reader in self._readers:
            reader.stop()
        self._client.close()


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    with network_of(tmp_path) as network:
        feed = Feed(network)
        yield feed
        feed.close()


def streams(offset: Offset) -> dict[str, int]:
    return cast("dict[str, int]", offset["streams"])


def rows(reader: StreamReader, start: Offset, end: Offset) -> list[Row]:
    """What tasks read of a batch; they have a copy of the reader."""
    task = pickle.loads(pickle.dumps(_fresh(reader)))
    batches = (batch for part in reader.partitions(start, end) for batch in task.read(part))
    return [row for batch in batches for row in batch.to_pylist()]


def _fresh(reader: StreamReader) -> StreamReader:
    return StreamReader(reader._options, reader._schema)


def numbers(found: list[Row]) -> list[object]:
    return [row["n"] for row in found]


# -- offsets


def test_batches_follow_one_another_without_gap_or_repetition(feed: Feed) -> None:
    reader = feed.reader()
    found: list[object] = []
    now = reader.initialOffset()
    for count in (7, 0, 30):
        feed.publish(count)
        then = reader.latestOffset(now, ALL)
        found += numbers(rows(reader, now, then))
        now = then
    assert found == [*range(37)]
    # Brokers write a tick of their own now and then.
    later = reader.latestOffset(now, ALL)
    assert rows(reader, now, later) == []
    assert rows(reader, later, later) == []
    assert reader.reportLatestOffset() == later


def test_a_query_begins_with_what_comes_unless_it_is_told_otherwise(feed: Feed) -> None:
    feed.publish(5)
    latest = feed.reader(startingOffsets="")
    start = latest.initialOffset()
    feed.publish(3)
    assert numbers(rows(latest, start, latest.latestOffset(start, ALL))) == [5, 6, 7]
    told = feed.reader(startingOffsets=json.dumps({"a": streams(start)["a"] - 2}))
    start = told.initialOffset()
    assert numbers(rows(told, start, told.latestOffset(start, ALL))) == [3, 4, 5, 6, 7]
    with pytest.raises(OptionError, match="'startingOffsets': 'a' ends before tick"):
        feed.reader(startingOffsets='{"a": 1000}').initialOffset()


def test_offsets_go_on_although_nothing_matches(feed: Feed) -> None:
    reader = feed.reader(subscription="n < 0")
    start = reader.initialOffset()
    feed.publish(50)
    end = reader.latestOffset(start, ALL)
    assert streams(end)["a"] >= streams(start)["a"] + 50
    assert rows(reader, start, end) == []


def test_a_batch_has_as_many_ticks_as_it_is_allowed(feed: Feed) -> None:
    feed.publish(100)
    reader = feed.reader(maxOffsetsPerTrigger="30", minPartitions="3")
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    assert feed.reader().getDefaultReadLimit() == ALL
    now, found = reader.initialOffset(), []
    while (then := reader.latestOffset(now, ReadMaxRows(30))) != now:
        assert sum(streams(then).values()) - sum(streams(now).values()) <= 32
        found.append(numbers(rows(reader, now, then)))
        now = then
    assert [n for batch in found for n in batch] == [*range(100)]
    assert len(found) >= 4
    # Spark may ask for all there is, whatever the option says.
    start = reader.initialOffset()
    assert numbers(rows(reader, start, reader.latestOffset(start, ALL))) == [*range(100)]


def test_what_comes_after_the_beginning_is_left_to_the_next_query_with_available_now(
    feed: Feed,
) -> None:
    feed.publish(10)
    reader = feed.reader()
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    feed.publish(10)
    end = reader.latestOffset(start, ALL)
    assert numbers(rows(reader, start, end)) == [*range(10)]
    assert reader.latestOffset(end, ALL) == end


def test_a_stream_that_appears_later_is_read_from_its_oldest_tick(feed: Feed) -> None:
    feed.publish(4)
    reader = feed.reader()
    # As if `a` had joined the network since.
    before = Position("pair", {"b": streams(reader.initialOffset())["b"]}).offset()
    entered = reader.latestOffset(before, ALL)
    assert streams(entered)["a"] == 1
    assert rows(reader, before, entered) == []
    assert numbers(rows(reader, entered, reader.latestOffset(entered, ALL))) == [0, 1, 2, 3]


def test_a_stream_that_has_left_is_an_error_or_passed_over(
    feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    start = Position("pair", {"a": 1, "gone": 17}).offset()
    with pytest.raises(
        LocalError, match="'gone' has left the network and was read only up to tick 16"
    ):
        feed.reader().latestOffset(start, ALL)
    with caplog.at_level(logging.WARNING):
        end = feed.reader(failOnDataLoss="false").latestOffset(start, ALL)
    assert "gone" not in streams(end)
    assert "stream 'gone' has left the network" in caplog.text
    # Nobody asks again, and it is not forgotten how far it was read.
    assert feed.reader().latestOffset(end, ALL)["left"] == {"gone": 17}


def test_a_checkpoint_of_another_network_is_an_error(feed: Feed) -> None:
    other = Position("other", {"a": 1}).offset()
    with pytest.raises(
        LocalError, match="belongs to network 'other', but the brokers belong to 'pair'"
    ):
        feed.reader().latestOffset(other, ALL)
    with pytest.raises(LocalError, match="belongs to network 'other'"):
        feed.reader().partitions(other, other)
    with pytest.raises(LocalError, match="does not belong to this data source"):
        feed.reader().latestOffset({"quotes": {"0": 17}}, ALL)
    beyond = Position("pair", {"a": 1_000}).offset()
    with pytest.raises(LocalError, match="tick 1000 of 'a', but the stream ends before"):
        feed.reader().latestOffset(beyond, ALL)


@pytest.mark.slow
def test_a_query_goes_on_with_the_others_while_a_broker_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Brokers(tmp_path, PAIR) as brokers:
        brokers.start("a", "b")
        clients = [
            anabranch.connect_blocking(brokers.address(name), name=f"feed-{name}") for name in "ab"
        ]
        given = {"brokers": f"{brokers.address('b')},{brokers.address('a')}"}
        options = read_options({**given, "startingOffsets": "earliest"}, "stream read")
        reader = StreamReader(options, COLUMNS)
        start = reader.initialOffset()
        now = reader.latestOffset(start, ALL)
        brokers["b"].end()
        clients[0].publish_many([{"n": 1}])
        with caplog.at_level(logging.WARNING):
            then = reader.latestOffset(now, ALL)
        assert "The origin of stream 'b' does not answer" in caplog.text
        assert numbers(rows(reader, now, then)) == [1]
        assert streams(then)["b"] == streams(now)["b"]
        brokers.start("b")
        clients[1].publish_many([{"n": 2}])
        last = then
        while streams(last)["b"] == streams(then)["b"]:
            last = reader.latestOffset(then, ALL)
        assert numbers(rows(reader, start, last)) == [1, 2]
        brokers["a"].end()
        brokers["b"].end()
        assert reader.latestOffset(last, ALL) == last
        assert "No broker answers" in caplog.text
        reader.stop()
        for client in clients:
            client._real._parts.abandon(anabranch.ClosedError("the test is over"))


def test_a_query_with_a_cursor_begins_where_that_stands(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "MOVE_EVERY_S", 0.0)
    first = feed.reader(startingOffsets="", durableSubscription="etl")
    start = first.initialOffset()
    feed.publish(10)
    end = first.latestOffset(start, ReadMaxRows(4))
    read = numbers(rows(first, start, end))
    first.commit(end)
    first.stop()
    # Without a checkpoint, and without a word where to begin.
    second = feed.reader(startingOffsets="", durableSubscription="etl")
    again = second.initialOffset()
    assert again == end
    assert read
    assert read + numbers(rows(second, again, second.latestOffset(again, ALL))) == [*range(10)]
    assert second.initialOffset() == again
    told = feed.reader(startingOffsets="earliest", durableSubscription="etl")
    assert streams(told.initialOffset())["a"] == 1


def test_a_range_ends_with_a_row_without_an_event_if_asked_for(feed: Feed) -> None:
    schema = schema_of(
        [*map(Wanted, ("stream", "tick", "publisher", "loggedAt")), Wanted("n", "integer")]
    )
    reader = feed.reader(schema, subscription="n = 3", silenceRows="true", streams="a")
    plain = feed.reader(schema, streams="a")
    start = reader.initialOffset()
    feed.publish(20)
    end = reader.latestOffset(start, ALL)
    every = rows(plain, plain.initialOffset(), end)
    event, silence = rows(reader, start, end)
    assert event == every[3]
    said = {"tick": streams(end)["a"] - 1, "publisher": None, "n": None}
    assert silence == {**every[-1], **said}
    assert rows(reader, end, end) == []


# -- through Spark


def stream(spark: SparkSession, feed: Feed, **given: str) -> DataFrame:
    reader = spark.readStream.format("anabranch").option("brokers", feed.addresses[0])
    reader = reader.options(**{"startingOffsets": "earliest", **given})
    return reader.schema(
        "stream STRING, tick BIGINT, publisher STRING, loggedAt TIMESTAMP, n BIGINT"
    ).load()


def run_once(frame: DataFrame, folder: Path, found: list[int]) -> StreamingQuery:
    """A query over what there is, with a checkpoint; its numbers are added to `found`."""

    def take(batch: DataFrame, _number: int) -> None:
        # Sorted here: to sort it, Spark would read the batch twice.
        found.extend(sorted(row["n"] for row in batch.select("n").collect()))

    writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    query.awaitTermination()
    return query


def test_a_query_goes_on_from_its_checkpoint_and_tells_how_much_travelled(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    found: list[int] = []
    frame = stream(spark, feed, subscription="symbol = 'S3'", streams="a")
    feed.publish(100)
    run_once(frame, tmp_path, found)
    feed.publish(200)
    query = run_once(frame, tmp_path, found)
    assert found == [*range(3, 300, 10)]
    seen = travelled(*query.recentProgress)
    # Brokers write a tick of their own now and then.
    assert seen == Travelled(20, seen.ticks)
    assert 200 <= seen.ticks < 220
    assert str(seen) == f"20 of {seen.ticks} ticks travelled ({seen.share:.1%})"
    # A batch at a time, and a condition that Spark evaluates itself.
    limited = stream(spark, feed, maxOffsetsPerTrigger="150").where("n % 2 = 0")
    parts: list[int] = []
    query = run_once(limited, tmp_path / "limited", parts)
    assert parts == [*range(0, 300, 2)]
    counts = [report.numInputRows for report in query.recentProgress]
    assert sum(counts) == 300
    assert max(counts) <= 152


def test_a_checkpoint_of_another_network_fails_the_query(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    run_once(stream(spark, feed), tmp_path, [])
    folder = tmp_path / "other"
    folder.mkdir()
    with network_of(folder, PAIR.replace('"pair"', '"twin"')) as network:
        twin = Feed(network)
        with pytest.raises(StreamingQueryException, match="belongs to network 'pair'"):
            run_once(stream(spark, twin), tmp_path, [])
        twin.close()


def test_watermarks_move_in_silence_if_silence_has_rows(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    """Nothing matches after the first events; only rows of silence can close their window."""

    def windows(**given: str) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        frame = stream(spark, feed, subscription="n < 5", streams="a", **given)
        counted = (
            frame.withWatermark("loggedAt", "0 seconds")
            .groupBy("loggedAt")
            .agg({"publisher": "count", "tick": "max"})
            .toDF("loggedAt", "events", "tick")
        )

        def take(batch: DataFrame, _number: int) -> None:
            found.extend((row["tick"], row["events"]) for row in batch.collect())

        for _ in range(2):
            writer = counted.writeStream.outputMode("append").foreachBatch(take)
            checkpoint = str(tmp_path / f"windows-{len(given)}")
            writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            writer.start().awaitTermination()
            feed.publish(5)
        return found

    feed.publish(5)
    # Events of one moment are one group; the last moment is closed by something later only.
    silent = {tick: events for tick, events in windows() if events}
    moved = {tick: events for tick, events in windows(silenceRows="true") if events}
    assert sum(moved.values()) == 5
    assert sum(silent.values()) < 5
