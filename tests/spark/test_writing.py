"""Data frames are written into a stream: what rows become, and what is refused before any is."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import anabranch
from anabranch.client.staging import Stager
from anabranch.model.encoding import encode_draft
from anabranch.model.errors import LocalError
from anabranch.model.event import Event, Value
from anabranch.spark.options import OptionError, Options, read_options
from anabranch.spark.writer import BatchWriter, SinkError, Staged, StreamWriter
from tests.spark_parts import events_of, network_of, writing

ONE_COLUMN = StructType([StructField("n", LongType())])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[anabranch.Embedded]:
    with network_of(tmp_path_factory.mktemp("network")) as running:
        yield running


@pytest.fixture
def place(network: anabranch.Embedded) -> str:
    return network.addresses[0]


# -- rows ------------------------------------------------------------------------------------------


def test_rows_become_events_in_the_order_of_partitions_and_rows(
    spark: SparkSession, place: str
) -> None:
    frame = spark.range(0, 3_000, 1, 3).selectExpr(
        "id as n",
        "cast(id as int) as small",
        "id / 4.0D as price",
        "if(id % 3 = 0, null, concat('s', id)) as symbol",
        "id % 2 = 0 as even",
        "cast(concat('p', id) as binary) as payload",
        "if(id % 5 = 0, null, timestamp_micros(1700000000000000 + id)) as timestamp",
        "'text/plain' as contentType",
        "concat('c', id) as correlationId",
        "'mine' as `attributes.stream`",
        "map('m1', id, 'm2', if(id % 2 = 0, null, id)) as attributes",
        "if(id % 7 = 0, null, timestamp_micros(id * 1000003 - 9999)) as at",
    )
    writing(frame, {"brokers": place, "transactionId": "rows"}).save()
    found = events_of(place, publisher="sink/rows")
    assert [each["n"] for each in found] == list(range(3_000))
    for n, event in enumerate(found):
        wanted = {
            "n": n,
            "small": n,
            "price": n / 4.0,
            "even": n % 2 == 0,
            "stream": "mine",
            "m1": n,
        }
        wanted |= {} if n % 3 == 0 else {"symbol": f"s{n}"}
        wanted |= {} if n % 7 == 0 else {"at": (n * 1_000_003 - 9_999) * 1_000}
        wanted |= {} if n % 2 == 0 else {"m2": n}
        assert dict(event) == wanted
        assert event.payload == f"p{n}".encode()
        assert event.content_type == "text/plain"
        assert event.control.correlation_id == f"c{n}"
        if n % 5:
            assert event.timestamp_ns == (1_700_000_000_000_000 + n) * 1_000
        else:
            assert event.timestamp_ns > 1_700_000_000_000_000_000
    assert {each.id.incarnation for each in found if each.id} == {1}


def test_what_was_read_from_a_stream_can_be_written_to_another_one_as_it_was(
    spark: SparkSession, network: anabranch.Embedded, place: str
) -> None:
    stamp = datetime(2026, 3, 1, 12, 30, 0, 1, tzinfo=UTC)
    values: list[Value] = ["text", 2**40, 0.1, float("nan"), -0.0, True, False, ""]
    with network.connect_blocking(name="first") as client:
        for n, value in enumerate(values):
            client.publish({"n": n, "x": value}, payload=b"p", content_type="c", timestamp=stamp)
    reading = (
        spark.read.format("anabranch").option("brokers", place).option("attributes", "variant")
    )
    frame = reading.load().where("publisher = 'first'")
    # Mistakes are told before anything is executed.
    with pytest.raises(AnalysisException, match="column 'stream' is assigned by the broker"):
        writing(frame, {"brokers": place, "transactionId": "copy"}).save()
    options = {"brokers": place, "transactionId": "copy", "ignoreEnvelope": "true", "streams": "b"}
    writing(frame, options).save()
    before, after = events_of(place, "a", "first"), events_of(place, "b", "sink/copy")
    assert [_shown(each) for each in before] == [_shown(each) for each in after]
    assert len(after) == 8


def _shown(event: Event) -> list[object]:
    parts = (event.payload, event.content_type, event.timestamp_ns)
    return [*parts, *sorted((name, repr(value)) for name, value in event.attributes.items())]


def test_a_bad_row_is_named_and_nothing_of_its_write_is_in_the_stream(
    spark: SparkSession, place: str
) -> None:
    frame = spark.range(0, 2_000, 1, 2).selectExpr(
        "id as n", "if(id = 1900, repeat('x', 70000), 'x') as word"
    )
    with pytest.raises(PySparkException, match="row 900: column 'word' has 70000 bytes"):
        writing(frame, {"brokers": place, "transactionId": "bad"}).save()
    assert events_of(place, publisher="sink/bad") == []
    # The transaction has not happened, so it may still.
    frame = frame.where("n < 10")
    writing(frame, {"brokers": place, "transactionId": "bad"}).save()
    assert len(events_of(place, publisher="sink/bad")) == 10


# -- transactions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("microseconds", [9_223_372_036_854_776, -9_223_372_036_854_776])
def test_a_time_that_no_integer_holds_is_an_error_that_names_its_row(
    spark: SparkSession, place: str, microseconds: int
) -> None:
    edge = microseconds - (1 if microseconds > 0 else -1)
    moments = f"timestamp_micros(if(id = 7, {microseconds}, {edge})) as at"
    frame = spark.range(0, 10, 1, 1).selectExpr("id as n", moments)
    writing(frame.where("n <> 7"), {"brokers": place, "transactionId": f"edge {edge}"}).save()
    found = events_of(place, publisher=f"sink/edge {edge}")
    assert {each["at"] for each in found} == {edge * 1_000}
    with pytest.raises(PySparkException, match="row 7: column 'at' is a time outside of 64-bit"):
        writing(frame, {"brokers": place, "transactionId": f"beyond {edge}"}).save()
    assert events_of(place, publisher=f"sink/beyond {edge}") == []


def test_the_same_transaction_twice_is_written_once(spark: SparkSession, place: str) -> None:
    options = {"brokers": place, "transactionId": "monday"}
    for count in 10, 20:
        writing(spark.range(count).selectExpr("id as n"), options).save()
    writing(spark.range(3).selectExpr("id as n"), options | {"transactionId": "tuesday"}).save()
    assert [each["n"] for each in events_of(place, publisher="sink/monday")] == list(range(10))
    assert [each["n"] for each in events_of(place, publisher="sink/tuesday")] == [0, 1, 2]


def test_an_empty_transaction_counts_too(spark: SparkSession, place: str) -> None:
    options = {"brokers": place, "transactionId": "empty"}
    writing(spark.range(0).selectExpr("id as n"), options).save()
    writing(spark.range(5).selectExpr("id as n"), options).save()
    assert events_of(place, publisher="sink/empty") == []


def test_transactions_of_a_sink_are_numbers_that_ascend(spark: SparkSession, place: str) -> None:
    def write(number: str, count: int) -> None:
        options = {"brokers": place, "sinkId": "daily", "transactionId": number}
        writing(spark.range(count).selectExpr("id as n", f"{number} as day"), options).save()

    for number in "3", "3", "7":
        write(number, 2)
    # Without rows it does not count, and a later one may have some.
    write("8", 0)
    write("8", 1)
    with pytest.raises(PySparkException, match="batch 3 of 'daily' is older than the newest"):
        write("3", 2)
    found = [(each["day"], each["n"]) for each in events_of(place, publisher="sink/daily")]
    assert found == [(3, 0), (3, 1), (7, 0), (7, 1), (8, 0)]


# -- what is refused before anything is written ----------------------------------------------------


def _schema(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, form) for name, form in fields])


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (_schema(("x", DecimalType(5, 2))), r"column 'x' is decimal\(5,2\); attributes are string"),
        (_schema(("x", DecimalType(5, 2))), "cast it to double, which may round, to string, or to"),
        (_schema(("x", DateType())), "column 'x' is date; .*: cast it to string or timestamp"),
        (
            _schema(("x", TimestampNTZType())),
            "'x' is timestamp_ntz; .*: cast it to timestamp, whic",
        ),
        (_schema(("x", ArrayType(LongType()))), r"is array<bigint>; .*: make it one text, such as"),
        (_schema(("x", MapType(StringType(), LongType()))), "select its entries as columns, or"),
        (
            _schema(("x", _schema(("a", LongType())))),
            "select its fields as columns, or make it one",
        ),
        (
            _schema(("attributes", MapType(StringType(), TimestampType()))),
            r"use transform_values\(attributes, \(k, v\) -> unix_micros\(v\) \* 1000\)",
        ),
        (_schema(("x", NullType())), "column 'x' is void"),
        (_schema(("payload", StringType())), "'payload' is an envelope field of type binary"),
        (_schema(("timestamp", TimestampNTZType())), "of type timestamp, not timestamp_ntz"),
        (_schema(("tick", LongType())), "column 'tick' is assigned by the broker"),
        (_schema(("loggedAt", LongType())), "column 'loggedAt' is assigned by the broker"),
        (
            _schema(("attributes", MapType(LongType(), LongType()))),
            "a map of attributes needs string",
        ),
        (_schema(("attributes", MapType(StringType(), NullType()))), "with values that are void"),
        (
            _schema(("n", LongType()), ("attributes.n", LongType())),
            "columns 'n' and 'attributes.n'",
        ),
        (_schema(("n", LongType()), ("n", LongType())), "columns 'n' and 'n' become the same part"),
        (_schema(("a\nb", LongType())), r"column 'a\\nb': its name .* has the control character"),
        (_schema(("x" * 300, LongType())), r"its name .* has 300 bytes; at most 255"),
        (_schema(("attributes.", LongType())), "column 'attributes.': its name is empty"),
    ],
)
def test_columns_that_cannot_be_written_are_refused_by_name(
    schema: StructType, problem: str
) -> None:
    options = read_options({"brokers": "127.0.0.1:9", "transactionId": "never"})
    with pytest.raises(LocalError, match=problem):
        BatchWriter(options, schema, False)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "option 'transactionId': missing; set an id"),
        ({"transactionId": "t", "sinkId": "s"}, "'t' is not a number from 0 on"),
        ({"transactionId": "t", "streams": "a,b"}, "option 'streams': a sink writes to one broker"),
        ({"transactionId": "t" * 129}, "option 'transactionId': longer than 128 bytes"),
        ({"transactionId": "t", "subscription": "TRUE"}, "option 'subscription': not applicable"),
        ({"transactionId": "t", "sinkID": "1", "snkId": "s"}, "did you mean sinkId"),
        ({"transactionId": "t", "patienceSeconds": "soon"}, "'patienceSeconds': 'soon' is not"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(
    options: dict[str, str], problem: str
) -> None:
    def make() -> BatchWriter:
        given = read_options({"brokers": "127.0.0.1:9"} | options, "batch write")
        return BatchWriter(given, ONE_COLUMN, False)

    with pytest.raises(LocalError, match=problem):
        make()


def test_a_stream_is_not_overwritten() -> None:
    options = read_options({"brokers": "127.0.0.1:9", "transactionId": "never"})
    with pytest.raises(SinkError, match=r"cannot be overwritten; use mode\('append'\)"):
        BatchWriter(options, ONE_COLUMN, True)
    with pytest.raises(SinkError, match=r"does not support outputMode\('complete'\)"):
        StreamWriter(_streaming("127.0.0.1:9"), ONE_COLUMN, True)
    with pytest.raises(OptionError, match="option 'sinkId': missing; set a name"):
        StreamWriter(read_options({"brokers": "127.0.0.1:9"}), ONE_COLUMN, False)


def test_a_broker_that_is_not_there_is_an_error_that_names_the_address(spark: SparkSession) -> None:
    options = {"brokers": "127.0.0.1:9", "transactionId": "t", "patienceSeconds": "1"}
    with pytest.raises(PySparkException, match=r"within 1 s: 127\.0\.0\.1:9: connection refused"):
        writing(spark.range(1).selectExpr("id as n"), options).save()


# -- what the driver is told -----------------------------------------------------------------------


def _streaming(place: str, sink: str = "sink") -> Options:
    return read_options({"brokers": place, "sinkId": sink, "patienceSeconds": "5"}, "stream write")


def _staged(place: str, token: str, query: str = "q", partition: int = 0, count: int = 2) -> Staged:
    """As a task does it."""
    with Stager(place) as stager:
        stager.stage(token, [[encode_draft(Event({"n": n, "t": token}), 1) for n in range(count)]])
        return Staged(partition, token, count, stager.stream, query)


def test_partitions_come_in_order(place: str) -> None:
    writer = StreamWriter(_streaming(place, "parts"), ONE_COLUMN, False)
    later, earlier = _staged(place, "p1", partition=1), _staged(place, "p0")
    writer.commit([later, Staged(2, "", 0, "", "q"), earlier], 0)
    found = [(each["t"], each["n"]) for each in events_of(place, publisher="sink/parts")]
    assert found == [("p0", 0), ("p0", 1), ("p1", 0), ("p1", 1)]


def test_a_batch_that_lacks_a_task_is_not_committed(place: str) -> None:
    writer = StreamWriter(_streaming(place, "half"), ONE_COLUMN, False)
    with pytest.raises(SinkError, match="1 of 2 tasks did not report their staged events"):
        writer.commit([_staged(place, "h0"), None], 0)
    assert events_of(place, publisher="sink/half") == []


def test_a_batch_that_is_executed_again_is_written_once(place: str) -> None:
    writer = StreamWriter(_streaming(place, "again"), ONE_COLUMN, False)
    writer.commit([_staged(place, "g0")], 4)
    writer.commit([_staged(place, "g1")], 4)
    writer.commit([_staged(place, "g2")], 5)
    assert [each["t"] for each in events_of(place, publisher="sink/again")] == [
        "g0",
        "g0",
        "g2",
        "g2",
    ]


def test_a_batch_of_an_old_checkpoint_is_not_passed_over(place: str) -> None:
    writer = StreamWriter(_streaming(place, "old"), ONE_COLUMN, False)
    writer.commit([_staged(place, "o7")], 7)
    with pytest.raises(SinkError, match="batch 6 of 'old' is older than the newest"):
        writer.commit([_staged(place, "o6")], 6)


def test_a_second_query_with_the_sink_is_refused(place: str) -> None:
    writer = StreamWriter(_streaming(place, "mine"), ONE_COLUMN, False)
    writer.commit([_staged(place, "m0", "one query")], 0)
    with pytest.raises(
        SinkError, match=r"belongs to the query 'one query'.*give each query its own"
    ):
        writer.commit([_staged(place, "m1", "another")], 1)


def test_what_a_broker_has_dropped_is_executed_anew(place: str) -> None:
    writer = StreamWriter(_streaming(place, "late"), ONE_COLUMN, False)
    message = _staged(place, "l0")
    writer.abort([message, None], 0)
    with pytest.raises(SinkError, match=r"'l0' is not staged here.*restart the query"):
        writer.commit([message], 0)
    writer.commit([_staged(place, "l1")], 0)
    assert [each["t"] for each in events_of(place, publisher="sink/late")] == ["l1", "l1"]


def test_tasks_that_wrote_to_several_brokers_are_not_committed(network: anabranch.Embedded) -> None:
    messages = [_staged(place, "x", partition=n) for n, place in enumerate(network.addresses)]
    writer = StreamWriter(_streaming(network.addresses[0], "torn"), ONE_COLUMN, False)
    with pytest.raises(SinkError, match="disagree about their broker: 'a', 'b'"):
        writer.commit(messages, 0)


def test_rows_without_a_query_are_not_committed_as_a_stream(place: str) -> None:
    writer = StreamWriter(_streaming(place, "nobody"), ONE_COLUMN, False)
    with pytest.raises(SinkError, match="Spark did not pass the query id to tasks"):
        writer.commit([_staged(place, "n0", query="")], 0)
