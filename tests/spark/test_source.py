"""Reading a network at once: what is asked for, all of it once, and what is wrong said clearly."""

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

import anabranch
from anabranch.client.errors import ConnectError
from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.model.statistics import (
    AttributeStatistics,
    NumberStatistics,
    Statistics,
    StreamStatistics,
    TextStatistics,
    write_statistics,
)
from anabranch.spark import fetch_task, survey
from anabranch.spark.column_types import ENVELOPE, Wanted
from anabranch.spark.options import OptionError, read_options
from anabranch.spark.reader import batch_reader, offered_schema
from anabranch.spark.schema import schema_of
from anabranch.spark.tick_ranges import Range
from tests.broker_parts import Brokers, command
from tests.spark_parts import PAIR, network_of

COUNT = 400
LOSSY = """
[network]
name = "lossy"
[tree]
a = []
[options]
retention = "lossy"
keep_s = 3_600.0
log_ticks_max = 1_000
"""
COLUMNS = schema_of(
    [Wanted("stream"), Wanted("tick"), Wanted("n", "integer"), Wanted("symbol", "text")]
)
Row = dict[str, object]


def quote(n: int) -> dict[str, Value]:
    return {"n": n, "symbol": f"S{n % 10}", "price": n / 4, "even": n % 2 == 0}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[anabranch.Embedded]:
    """Two streams: `a` with many events, `b` with a hundredth of them."""
    with network_of(tmp_path_factory.mktemp("pair")) as network:
        for address, count in zip(network.addresses, (COUNT, COUNT // 100), strict=True):
            with anabranch.connect_blocking(address, name=f"feed {address}") as client:
                client.publish_many(map(quote, range(count)))
        yield network


def rows(*brokers: str, **given: str) -> list[Row]:
    """All that a batch query would read, in this process."""
    return rows_as(COLUMNS, *brokers, **given)


def rows_as(schema: StructType, *brokers: str, **given: str) -> list[Row]:
    """The same with other columns."""
    options = read_options({"brokers": ",".join(brokers), **given}, "batch read")
    reader = batch_reader(options, schema)
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    return [row for batch in batches for row in batch.to_pylist()]


def numbers(found: list[Row], stream: str = "a") -> list[object]:
    return [row["n"] for row in found if row["stream"] == stream]


# -- what is read


def test_every_stream_is_read_whichever_broker_was_named(pair: anabranch.Embedded) -> None:
    for address in pair.addresses:
        found = rows(address)
        assert numbers(found) == [*range(COUNT)]
        assert numbers(found, "b") == [*range(COUNT // 100)]


def test_a_subscription_is_evaluated_by_the_brokers(pair: anabranch.Embedded) -> None:
    found = rows(*pair.addresses, subscription="symbol = 'S7' AND n >= 100")
    assert numbers(found) == [n for n in range(100, COUNT) if n % 10 == 7]
    assert numbers(found, "b") == []


def test_streams_can_be_chosen(pair: anabranch.Embedded) -> None:
    assert {row["stream"] for row in rows(pair.addresses[0], streams="b")} == {"b"}
    with pytest.raises(OptionError, match=r"option 'streams': no stream 'c'; the streams are a, b"):
        rows(pair.addresses[0], streams="a,c")


def test_offsets_are_the_first_tick_and_the_first_that_is_not_read(
    pair: anabranch.Embedded,
) -> None:
    ticks = [row["tick"] for row in rows(pair.addresses[0], streams="a")]
    first, end = ticks[10], ticks[20]
    found = rows(
        pair.addresses[0],
        streams="a",
        startingOffsets=f'{{"a": {first}}}',
        endingOffsets=f'{{"a": {end}}}',
    )
    assert numbers(found) == [*range(10, 20)]
    assert rows(pair.addresses[0], startingOffsets="latest") == []


def test_a_tick_beyond_the_end_is_an_error_that_names_the_option(pair: anabranch.Embedded) -> None:
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(OptionError, match=rf"'{option}': 'a' ends before tick \d+"):
            rows(pair.addresses[0], **{option: '{"a": 1000000}'})


def test_a_time_is_the_first_tick_logged_then_or_later(pair: anabranch.Embedded) -> None:
    schema = schema_of([Wanted("stream"), Wanted("n", "integer"), Wanted("loggedAt")])
    every = rows_as(schema, pair.addresses[0], streams="a")
    times = [row["loggedAt"] for row in every]
    for place in (0, 1, 57, COUNT - 1):
        time = times[place]
        found = rows_as(schema, pair.addresses[0], streams="a", startingTimestamp=str(time))
        assert found == every[times.index(time) :]
    assert rows(pair.addresses[0], startingTimestamp="2200-01-01") == []
    assert len(rows(pair.addresses[0], startingTimestamp="2001-01-01")) == COUNT + COUNT // 100


def test_a_busy_stream_is_divided_and_a_quiet_one_is_not(pair: anabranch.Embedded) -> None:
    options = read_options({"brokers": pair.addresses[0], "minPartitions": "8"}, "batch read")
    parts = batch_reader(options, COLUMNS).partitions()
    streams = [part.stream for part in parts if isinstance(part, Range)]
    assert streams.count("b") == 1
    assert streams.count("a") >= 7
    assert numbers(rows(pair.addresses[0], minPartitions="8")) == [*range(COUNT)]


def test_an_empty_network_has_the_envelope_and_no_rows(tmp_path: Path) -> None:
    with network_of(tmp_path) as network:
        options = read_options({"brokers": network.addresses[0]}, "batch read")
        schema = offered_schema(options)
        assert schema.names == [*ENVELOPE]
        assert rows_as(schema, *network.addresses) == []


def test_a_sample_reaches_back_to_events_that_match(pair: anabranch.Embedded) -> None:
    given = {"brokers": pair.addresses[0], "subscription": "n = 3", "streams": "a"}
    schema = offered_schema(read_options(given, "read"))
    assert schema.names[len(ENVELOPE) :] == ["even", "n", "price", "symbol"]


def test_statistics_know_attributes_that_no_event_of_now_has(tmp_path: Path) -> None:
    rare = StreamStatistics(
        stream="a",
        events=5,
        attributes={
            "size": AttributeStatistics(
                numbers=NumberStatistics(count=4, distinct=4, rank_error=0.0, bounds=(1.0, 9.0))
            ),
            "tick": AttributeStatistics(true=1),
            "both": AttributeStatistics(
                true=1,
                texts=TextStatistics(count=1, distinct=1, rank_error=0.0, bounds=(0, 1)),
            ),
        },
    )
    other = StreamStatistics(stream="b", events=1, attributes={"far": AttributeStatistics(nan=1)})
    place = tmp_path / "known.json"
    place.write_bytes(write_statistics(Statistics(made_ns=0, streams=(rare, other))))
    # Nobody is asked: there is no such broker.
    given = {"brokers": "127.0.0.1:1", "statistics": str(place)}
    every = offered_schema(read_options(given, "read"))
    found = {field.name: field.dataType.simpleString() for field in every.fields[len(ENVELOPE) :]}
    assert found == {
        "attributes.tick": "boolean",
        "both": "string",
        "far": "double",
        "size": "double",
    }
    some = offered_schema(read_options({**given, "streams": "b"}, "read"))
    assert some.names[len(ENVELOPE) :] == ["far"]
    place.write_text("{}")
    with pytest.raises(OptionError, match=r"'statistics': .*known\.json"):
        offered_schema(read_options(given, "read"))


# -- what is missing


def test_ticks_that_the_log_forgot_are_an_error_or_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin = {"startingOffsets": '{"a": 1}'}
    with network_of(tmp_path, LOSSY) as network, network.connect_blocking(name="feed") as client:
        address = network.addresses[0]
        for start in range(0, 9_000, 1_500):
            client.publish_many(map(quote, range(start, start + 1_500)))
        with pytest.raises(
            LocalError, match=r"ticks 1 to \d+ of stream 'a' are no longer in the log"
        ):
            rows(address, **begin)
        assert rows(address, startingOffsets="earliest")[-1]["n"] == 8_999
        # A task whose plan is older than what the log forgot since.
        options = read_options({"brokers": address, "failOnDataLoss": "false", **begin})
        task = batch_reader(options, COLUMNS).read(Range("a", 1, 9_001, "lossy"))
        with caplog.at_level(logging.WARNING):
            found = [row for batch in task for row in batch.to_pylist()]
            planned = rows(address, failOnDataLoss="false", **begin)
    assert planned == found
    oldest = found[0]["tick"]
    assert isinstance(oldest, int)
    assert oldest > 1
    assert [row["tick"] for row in found] == [*range(oldest, 9_001)]
    told = f"ticks 1 to {oldest - 1} of stream 'a' are no longer in the log; skipping them"
    own = [each.message for each in caplog.records if each.name == "anabranch.spark"]
    assert own == [told, told]


def test_a_log_that_has_lost_its_end_is_an_error(pair: anabranch.Embedded) -> None:
    options = read_options({"brokers": pair.addresses[0]}, "batch read")
    reader = batch_reader(options, COLUMNS)
    with pytest.raises(LocalError, match="its log has lost its end"):
        list(reader.read(Range("a", COUNT, COUNT + 10_000, "pair")))


def test_a_broker_that_is_down_at_the_start_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(survey, "START_PATIENCE_S", 0.1)
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:9: connection refused"):
        rows("127.0.0.1:9")


@pytest.mark.slow
def test_an_origin_that_nobody_can_reach_is_named_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(survey, "START_PATIENCE_S", 0.1)
    with Brokers(tmp_path, PAIR) as brokers:
        brokers.start("a", "b")
        address = brokers.address("a")
        brokers["b"].end()
        with pytest.raises(ConnectError, match="the origin of stream 'b' does not answer"):
            rows(address)
        with caplog.at_level(logging.WARNING):
            assert rows(address, failOnDataLoss="false") == []
        assert "The origin of stream 'b' does not answer" in caplog.text
        assert rows(address, streams="a") == []
        with survey.Survey(read_options({"brokers": address, "streams": "a"})) as looking:
            # Whoever does not want it does not need it, even to look at everything.
            assert [*looking.look(everything=True).extents] == ["a"]


def test_streams_that_are_not_wanted_are_not_read_when_nobody_answers_any_more(
    tmp_path: Path,
) -> None:
    with network_of(tmp_path) as network:
        looking = survey.Survey(read_options({"brokers": network.addresses[0], "streams": "b"}))
        assert [*looking.look().extents] == ["b"]
        assert sorted(looking.look(everything=True).extents) == ["a", "b"]
    assert [*looking.look().extents] == ["b"]
    looking.close()


@pytest.mark.slow
def test_a_broker_that_is_killed_in_the_middle_of_a_task_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_task, "PIECE_BYTES", 20_000)
    with Brokers(
        tmp_path, LOSSY.replace("lossy", "kept").replace('retention = "kept"', "")
    ) as all_:
        all_.start("a")
        with anabranch.connect_blocking(all_.address("a"), name="feed") as client:
            client.publish_many(map(quote, range(900)))
        given = {"brokers": all_.address("a"), "streams": "a"}
        options = read_options(given, "batch read")
        reader = batch_reader(options, COLUMNS)
        (part,) = reader.partitions()
        task = reader.read(part)
        found = next(task).to_pylist()
        all_["a"].end(signal.SIGKILL)
        all_.start("a")
        found += [row for batch in task for row in batch.to_pylist()]
        assert numbers(found) == [*range(900)]
        # And one that does not come back is an error.
        options = read_options({**given, "patienceSeconds": "1"}, "batch read")
        task = batch_reader(options, COLUMNS).read(part)
        all_["a"].end(signal.SIGKILL)
        with pytest.raises(ConnectError, match="the stream was not readable for"):
            next(task)


@pytest.mark.slow
def test_tls_is_what_the_options_say(tmp_path: Path) -> None:
    tls = '[tls]\nca = "c/ca.pem"\ncertificate = "c/{broker}.pem"\nkey = "c/{broker}.key"\n'
    with Brokers(tmp_path, PAIR + tls) as brokers:
        made = command("network", "certificates", str(brokers.path))
        assert made.returncode == 0, made.stderr
        brokers.start("a", "b")
        authority = str(tmp_path / "c" / "ca.pem")
        with anabranch.connect_blocking(brokers.address("a"), name="feed", tls=authority) as client:
            client.publish_many(map(quote, range(5)))
        own = {"certificate": str(tmp_path / "c" / "a.pem"), "key": str(tmp_path / "c" / "a.key")}
        for more in ({}, own):
            assert numbers(rows(brokers.address("b"), ca=authority, **more)) == [*range(5)]
    with pytest.raises(OptionError, match=r"option 'ca': .*nowhere\.pem"):
        rows("127.0.0.1:1", ca="nowhere.pem")
    with pytest.raises(OptionError, match=r"option 'key': .*nowhere\.key"):
        rows("127.0.0.1:1", ca=authority, certificate=own["certificate"], key="nowhere.key")


def test_plaintext_to_another_machine_has_to_be_asked_for() -> None:
    with pytest.raises(LocalError, match="is not on this machine, and tls is not set"):
        rows("broker.example.org:4100")


# -- through Spark


def load(spark: SparkSession, network: anabranch.Embedded, **given: str) -> DataFrame:
    frame = spark.read.format("anabranch").option("brokers", network.addresses[0])
    return frame.options(**given).load()


def test_spark_reads_a_network_without_any_call_to_register_it(
    spark: SparkSession, pair: anabranch.Embedded
) -> None:
    frame = load(spark, pair)
    assert frame.columns == [*ENVELOPE, "even", "n", "price", "symbol"]
    frame.createOrReplaceTempView("quotes")
    found = spark.sql(
        "SELECT stream, count(*) AS events, sum(n) AS n, sum(price) AS price, min(tick) > 0 AS ok,"
        " count_if(even) AS even, count(DISTINCT symbol) AS symbols, count(publisher) AS publishers"
        " FROM quotes GROUP BY stream ORDER BY stream"
    ).collect()
    sums = [sum(range(count)) for count in (COUNT, COUNT // 100)]
    assert [tuple(row) for row in found] == [
        ("a", COUNT, sums[0], sums[0] / 4, True, COUNT // 2, 10, COUNT),
        ("b", COUNT // 100, sums[1], sums[1] / 4, True, COUNT // 200, COUNT // 100, COUNT // 100),
    ]


def test_a_declared_schema_is_a_projection_and_one_column_can_have_all_attributes(
    spark: SparkSession, pair: anabranch.Embedded
) -> None:
    reader = spark.read.format("anabranch").option("brokers", pair.addresses[0])
    reader = reader.option("subscription", "n = 5").schema(
        "tick BIGINT NOT NULL, price DOUBLE, gone STRING, attributes VARIANT"
    )
    (found,) = (
        reader.load()
        .selectExpr(
            "price", "gone", "attributes:symbol::string", "attributes:price::double", "attributes"
        )
        .collect()
    )
    assert [*found][:4] == [1.25, None, "S5", 1.25]
    assert found["attributes"].toPython() == quote(5)
    (mapped,) = load(spark, pair, subscription="n = 5", attributes="map").collect()
    assert mapped["attributes"] == {"n": "5", "symbol": "S5", "price": "1.25", "even": "false"}


def test_an_attribute_that_changes_its_type_is_text_and_null_elsewhere(
    spark: SparkSession, tmp_path: Path
) -> None:
    with network_of(tmp_path) as network, network.connect_blocking(name="feed") as client:
        client.publish_many([{"size": 1}, {"size": "XL"}, {"size": 2.5}, {"size": True}])
        frame = load(spark, network)
        assert frame.schema["size"].dataType == StringType()
        assert [row["size"] for row in frame.collect()] == [None, "XL", None, None]
        whole = load(spark, network, attributes="variant").selectExpr("to_json(attributes) AS a")
        expected = ['{"size":1}', '{"size":"XL"}', '{"size":2.5}', '{"size":true}']
        assert [row["a"] for row in whole.collect()] == expected


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"subscription": "price >"}, "option 'subscription'"),
        ({"startingOfsets": "earliest"}, "did you mean startingOffsets?"),
        ({"sinkId": "mine"}, "option 'sinkId': not applicable to reads"),
    ],
)
def test_mistakes_are_errors_of_load(
    spark: SparkSession, pair: anabranch.Embedded, given: dict[str, str], problem: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        load(spark, pair, **given)
    assert problem in str(caught.value)
