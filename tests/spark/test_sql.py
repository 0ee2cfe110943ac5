"""Spark SQL: tables and views over a network, reads with pushdown, inserts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import anabranch
from tests.spark_parts import events_of, network_of, scanned

QUOTES = [{"symbol": symbol, "price": price} for symbol in ("IBM", "HPQ") for price in (1.0, 2.0)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a few quotes in its stream."""
    with network_of(tmp_path_factory.mktemp("sql")) as running:
        address = running.addresses[0]
        with anabranch.connect_blocking(address, name="feed") as client:
            client.publish_many(QUOTES)
        yield address


@pytest.fixture
def sql(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """A session without tables and views, before the test and after it: a view of another test
    would hide a table of the same name."""
    _drop_all(spark)
    yield spark
    _drop_all(spark)


def _drop_all(spark: SparkSession) -> None:
    for view in spark.catalog.listTables():
        if view.isTemporary:
            spark.catalog.dropTempView(view.name)
    for table in spark.catalog.listTables():
        spark.sql(f"DROP TABLE {table.name}")


def rows(session: SparkSession, query: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in session.sql(query).collect())


def inserted(address: str, sink: str) -> list[dict[str, object]]:
    return [dict(event.attributes) for event in events_of(address, publisher=f"sink/{sink}")]


@pytest.mark.parametrize("kind", ["TABLE", "TEMPORARY VIEW"])
def test_a_table_has_the_columns_of_the_stream_and_keeps_its_options(
    sql: SparkSession, place: str, kind: str
) -> None:
    sql.sql(f"CREATE {kind} quotes USING anabranch OPTIONS (brokers '{place}', filter 'price > 1')")
    assert {"stream", "tick", "symbol", "price"} <= set(sql.table("quotes").columns)
    query = "SELECT symbol, price FROM quotes WHERE symbol IN ('IBM', 'HPQ')"
    assert rows(sql, query) == [("HPQ", 2.0), ("IBM", 2.0)]


def test_a_query_of_a_table_adds_options_and_replaces_them(sql: SparkSession, place: str) -> None:
    sql.sql(f"CREATE TABLE quotes USING anabranch OPTIONS (brokers '{place}', filter 'price > 1')")
    query = "SELECT symbol, price FROM quotes WITH ({}) WHERE symbol = 'IBM'"
    assert rows(sql, query.format("subscription = 'price < 2'")) == [("IBM", 1.0)]
    assert rows(sql, query.format(f"brokers = '{place}'")) == [("IBM", 1.0), ("IBM", 2.0)]
    with pytest.raises(AnalysisException, match="option 'sinkId': not applicable to batch reads"):
        rows(sql, query.format("sinkId = 'x'"))


@pytest.mark.parametrize("kind", ["TABLE", "TEMPORARY VIEW"])
def test_conditions_are_pushed_down_to_the_brokers(
    sql: SparkSession, place: str, kind: str
) -> None:
    for name, pushdown, count in (("pushed", "true", 2), ("kept", "false", 4)):
        options = f"OPTIONS (brokers '{place}', streams 'a', filter 'symbol IN (''IBM'', ''HPQ'')',"
        sql.sql(f"CREATE {kind} {name} USING anabranch {options} pushdown {pushdown})")
        query = f"SELECT symbol, price FROM {name} WHERE symbol = 'IBM'"
        assert rows(sql, query) == [("IBM", 1.0), ("IBM", 2.0)]
        assert scanned(sql.sql(query)) == count


def test_inserts_into_a_table_are_written_once_per_transaction(
    sql: SparkSession, place: str
) -> None:
    sql.sql(f"CREATE TABLE quotes USING anabranch OPTIONS (brokers '{place}', filter 'price > 0')")
    insert = "INSERT INTO quotes WITH (transactionId = '{}') (symbol, price) {}"
    for _ in range(2):
        sql.sql(insert.format("table-1", "VALUES ('SUN', 7.0), ('SUN', 8.0)"))
    sql.sql(insert.format("table-2", "SELECT 'DEC', price FROM quotes WHERE symbol = 'IBM'"))
    assert inserted(place, "table-1") == [{"symbol": "SUN", "price": p} for p in (7.0, 8.0)]
    assert inserted(place, "table-2") == [{"symbol": "DEC", "price": p} for p in (1.0, 2.0)]
    with pytest.raises(AnalysisException, match="INSERT INTO t WITH"):
        sql.sql("INSERT INTO quotes (symbol) VALUES ('SUN')")


def test_the_options_of_the_written_table_count_not_those_of_the_one_it_reads(
    sql: SparkSession, place: str
) -> None:
    sql.sql(f"CREATE TABLE sink USING anabranch OPTIONS (brokers '{place}', streams 'a')")
    sql.sql(
        "CREATE TABLE source USING anabranch"
        f" OPTIONS (brokers '{place}', client 'reader', filter 'symbol = ''HPQ''')"
    )
    sql.sql("INSERT INTO sink WITH (transactionId = 'copied') BY NAME SELECT * FROM source")
    assert inserted(place, "copied") == [{"symbol": "HPQ", "price": p} for p in (1.0, 2.0)]


def test_inserts_into_a_view_with_columns(sql: SparkSession, place: str) -> None:
    options = f"OPTIONS (brokers '{place}', transactionId 'view')"
    sql.sql(f"CREATE TEMPORARY VIEW sink (symbol STRING, n BIGINT) USING anabranch {options}")
    sql.sql("INSERT INTO sink VALUES ('SUN', 1), ('DEC', 2)")
    assert inserted(place, "view") == [{"symbol": "SUN", "n": 1}, {"symbol": "DEC", "n": 2}]


def test_a_table_with_a_list_of_columns_needs_its_brokers_in_the_query(
    sql: SparkSession, place: str
) -> None:
    options = f"OPTIONS (brokers '{place}')"
    sql.sql(f"CREATE TABLE quotes (symbol STRING, price DOUBLE) USING anabranch {options}")
    with pytest.raises(AnalysisException, match=r"option 'brokers': missing; .* t WITH \(brokers"):
        rows(sql, "SELECT * FROM quotes")
    found = rows(sql, f"SELECT * FROM quotes WITH (brokers = '{place}') WHERE symbol = 'IBM'")
    assert found == [("IBM", 1.0), ("IBM", 2.0)]


def test_times_are_written_and_read_as_the_same_times(sql: SparkSession, place: str) -> None:
    options = f"OPTIONS (brokers '{place}', transactionId 'times')"
    sql.sql(f"CREATE TEMPORARY VIEW sink (n BIGINT, at TIMESTAMP) USING anabranch {options}")
    times = ("1969-12-31 23:59:59.999999Z", "2026-01-31 12:00:00.123456Z")
    listed = ", ".join(f"({n}, TIMESTAMP '{each}')" for n, each in enumerate(times))
    sql.sql(f"INSERT INTO sink VALUES {listed}, (2, NULL)")
    nanoseconds = (-1_000, 1_769_860_800_123_456_000)
    expected = [{"n": n, "at": each} for n, each in enumerate(nanoseconds)]
    assert inserted(place, "times") == [*expected, {"n": 2}]
    filter = "filter 'at > TIMESTAMP ''2026-01-31T12:00:00Z'' OR n < 1'"
    reading = f"OPTIONS (brokers '{place}', streams 'a', {filter})"
    sql.sql(f"CREATE TEMPORARY VIEW read (n BIGINT, at TIMESTAMP) USING anabranch {reading}")
    assert rows(sql, "SELECT n, unix_micros(at) * 1000 FROM read WHERE at IS NOT NULL") == [
        (0, nanoseconds[0]),
        (1, nanoseconds[1]),
    ]
    sql.sql("CREATE TABLE declared (n BIGINT, at TIMESTAMP) USING anabranch")
    query = f"SELECT n FROM declared WITH (brokers = '{place}', pushdown = 'true')"
    assert rows(sql, f"{query} WHERE at = TIMESTAMP '{times[1]}'") == [(1,)]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("brokers '{}', subscriptoin 'x = 1'", "did you mean subscription?"),
        ("brokers '{}', filter 'x ='", "option 'subscription': "),
        ("streams 'a'", "option 'brokers': missing"),
        ("brokers '{}', filter 'x = 1', subscription 'x = 2'", "option 'filter': differs from"),
    ],
)
def test_a_table_with_wrong_options_is_refused(
    sql: SparkSession, place: str, options: str, problem: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        sql.sql(f"CREATE TABLE wrong USING anabranch OPTIONS ({options.format(place)})")
    assert problem in str(caught.value)
