"""Bulk matching on Spark: the same answers as the live index, to the event."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner, Result

import anabranch
from anabranch.cli.main import app
from anabranch.matching.index import MatchIndex
from anabranch.model.encoding import encode_event
from anabranch.model.errors import LocalError
from anabranch.model.event import Event, EventId, Value
from anabranch.model.filter import Filter
from anabranch.spark.bulk_matching import (
    match,
    match_counts,
    match_lists,
    match_sizes,
    missing_attributes,
)
from anabranch.spark.subscriptions import prepared
from anabranch.spark.task_matcher import ColumnEvents, Matcher
from tests.columnar_parts import columns_of
from tests.crowd_parts import STYLES
from tests.spark_parts import network_of

Attributes = dict[str, Value]
#: Ranges, codes, patterns, kinds, residues, several conjunctions, and one that matches nothing.
STYLES_HERE = ("equality", "ranges", "membership", "patterns", "alternatives", "residues")
SCHEMA = (
    "stream string, tick bigint, symbol string, price double, volume bigint, x double, y bigint,"
    " z double, colour string, size bigint, ready boolean, path string, host string"
)
NAMES_ALL = [part.split()[0] for part in SCHEMA.split(", ")]
NAMES = NAMES_ALL[2:]


def subscriptions_of(seed: int) -> dict[int, str]:
    draw = Random(seed)
    texts = [STYLES[style].write(draw) for style in STYLES_HERE for _ in range(150)]
    texts += ["TRUE", "FALSE", "price IS NULL", "volume = 9007199254740993", "NOT ready"]
    return dict(enumerate(texts))


def events_of(seed: int, count: int) -> list[Attributes]:
    draw = Random(seed)
    events = []
    for _ in range(count):
        attributes: Attributes = {}
        for style in draw.sample(STYLES_HERE, 2):
            attributes |= STYLES[style].publish(draw)
        events.append({name: each for name, each in attributes.items() if fits(name, each)})
    events += [{}, {"volume": 2**53 + 1}, {"price": float("nan")}, {"path": "é" * 2_000}]
    return events


def fits(name: str, value: Value) -> bool:
    """Whether a column has room for the value: an attribute has one type there."""
    kinds: dict[str, type] = {"price": float, "x": float, "z": float, "ready": bool}
    kinds |= {"volume": int, "y": int, "size": int}
    return type(value) is kinds.get(name, str)


def frame_of(spark: SparkSession, events: list[Attributes]) -> DataFrame:
    types = {"string": pa.string(), "bigint": pa.int64(), "double": pa.float64()}
    kinds = [types.get(part.split()[1], pa.bool_()) for part in SCHEMA.split(", ")[2:]]
    columns = [
        pa.array([each.get(n) for each in events], k) for n, k in zip(NAMES, kinds, strict=True)
    ]
    count = len(events)
    table = pa.table([pa.array(["s"] * count), pa.array(range(count)), *columns], NAMES_ALL)
    return spark.createDataFrame(table).repartition(2)


@pytest.fixture(scope="module")
def events() -> list[Attributes]:
    return events_of(seed=5, count=600)


@pytest.fixture(scope="module")
def frame(spark: SparkSession, events: list[Attributes]) -> Iterator[DataFrame]:
    made = frame_of(spark, events).cache()
    yield made
    made.unpersist()


@pytest.fixture(scope="module")
def live() -> MatchIndex:
    index = MatchIndex()
    index.add_many(subscriptions_of(7).items())
    return index


def test_every_match_of_the_live_index_is_found_and_no_other(
    frame: DataFrame, live: MatchIndex, events: list[Attributes]
) -> None:
    found = {(row.tick, row.subscription) for row in match(frame, live).collect()}
    wanted = {(tick, each) for tick, event in enumerate(events) for each in live.match(event)}
    assert found == wanted
    assert len(wanted) > 10_000


def test_counts_and_sizes_are_those_of_the_matches(
    frame: DataFrame, live: MatchIndex, events: list[Attributes]
) -> None:
    answers = [live.match(event) for event in events]
    counts = {row.subscription: row for row in match_counts(frame, live).collect()}
    assert len(counts) == len(live)
    for number in range(len(live)):
        matches = sum(number in answer for answer in answers)
        assert counts[number].matches == matches
        assert counts[number].share == matches / len(events)
    sizes = {row.tick: row.matches for row in match_sizes(frame, live).collect()}
    assert sizes == {tick: len(answer) for tick, answer in enumerate(answers)}


def test_lists_have_the_subscriptions_of_an_event(
    frame: DataFrame, live: MatchIndex, events: list[Attributes]
) -> None:
    rows = match_lists(frame.where("tick < 50"), live, keys=["tick"]).collect()
    assert {row.tick: sorted(row.subscriptions) for row in rows} == {
        tick: sorted(map(int, map(str, live.match(events[tick])))) for tick in range(50)
    }


def test_encoded_events_match_whatever_types_their_attributes_have(
    spark: SparkSession, live: MatchIndex
) -> None:
    strange: list[Attributes] = [{"price": "ten", "size": 3.5}, {"ready": 1}, {"名": "é", "x": 1}]
    events = events_of(seed=9, count=60) + strange
    bodies = [encode_event(Event(each, id=EventId("é", 1, n + 1))) for n, each in enumerate(events)]
    frame = spark.createDataFrame(
        [(n, bytearray(body)) for n, body in enumerate(bodies)], "tick bigint, event binary"
    )
    found = match(frame, live, keys=["tick"], encoded="event").collect()
    wanted = {(tick, each) for tick, event in enumerate(events) for each in live.match(event)}
    assert {(row.tick, row.subscription) for row in found} == wanted
    counts = match_counts(frame, live, encoded="event").collect()
    assert sum(row.matches for row in counts) == len(wanted)


def test_bytes_that_are_no_event_are_an_error_that_says_so(
    spark: SparkSession, live: MatchIndex
) -> None:
    frame = spark.createDataFrame([(1, bytearray(b"nonsense"))], "tick bigint, event binary")
    with pytest.raises(PythonException, match="row 0 of a batch is not a valid event"):
        match_counts(frame, live, encoded="event").collect()


def test_an_attribute_of_several_types_has_several_columns(spark: SparkSession) -> None:
    rows = [(1, 5, None), (2, None, "five"), (3, None, None), (4, 6, "both")]
    frame = spark.createDataFrame(rows, "tick bigint, size bigint, size_text string")
    wanted = {"text": "size = 'five'", "number": "size > 4", "none": "size IS NULL"}
    found = match(frame, wanted, keys=["tick"], attributes={"size_text": "size"}).collect()
    answer = {(row.tick, row.subscription) for row in found}
    assert answer == {(1, "number"), (2, "text"), (3, "none"), (4, "number")}


def test_narrow_columns_are_read_as_the_attributes_they_are(spark: SparkSession) -> None:
    schema = "tick bigint, a int, b smallint, c tinyint, d float, `attributes.stream` string"
    frame = spark.createDataFrame([(1, 7, 7, 7, 0.5, "s"), (2, 8, 8, 8, 1.5, "t")], schema)
    text = "a = 7 AND b = 7 AND c = 7 AND d = 0.5 AND stream = 's'"
    assert [row.tick for row in match(frame, {1: text}, keys=["tick"]).collect()] == [1]


def test_times_are_matched_as_integers_and_remain_times_as_keys(spark: SparkSession) -> None:
    moments = ("timestamp_micros(-1)", "timestamp_micros(5)", "NULL", "timestamp_seconds(1e11D)")
    values = ", ".join(f"({tick}, {each})" for tick, each in enumerate(moments))
    frame = spark.sql(f"SELECT * FROM VALUES {values} AS t(tick, at)")
    wanted = {
        "early": "at < TIMESTAMP '1970-01-01T00:00:00Z'",
        "exact": "at = TIMESTAMP '1970-01-01T00:00:00.000005Z'",
        # The last one is outside of 64-bit nanoseconds.
        "absent": "at IS NULL",
    }
    rows = match(frame, wanted, keys=["tick", "at"]).collect()
    found = {(row.tick, row.subscription) for row in rows}
    assert found == {(0, "early"), (1, "exact"), (2, "absent"), (3, "absent")}
    assert {row.tick: row["at"] for row in rows} == {row.tick: row["at"] for row in frame.collect()}
    assert missing_attributes(frame, prepared(wanted)) == []
    renamed = frame.withColumnRenamed("at", "when").selectExpr("*", "2000 as at")
    named = match(renamed, {1: "at = 5000"}, keys=["tick"], attributes={"when": "at"}).collect()
    assert [row.tick for row in named] == [1]


def test_no_events_and_events_without_a_wanted_column_are_counted(spark: SparkSession) -> None:
    frame = spark.range(10).withColumnRenamed("id", "tick")
    counts = match_counts(frame, {"all": "TRUE", "none": "x = 1", "lacking": "x IS NULL"}).collect()
    assert {row.subscription: row.share for row in counts} == {"all": 1, "none": 0, "lacking": 1}
    empty = match_counts(frame.where("tick < 0"), {"all": "TRUE"}).collect()
    assert [(row.matches, row.share) for row in empty] == [(0, 0.0)]


def test_columns_that_are_missing_are_told(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "IBM")], "day int, symbol string")
    ready = prepared({1: "symbol = 'IBM' AND price > 5"})
    assert missing_attributes(frame, ready) == ["price"]
    with pytest.raises(LocalError, match="name the key columns"):
        match(frame, ready)
    with pytest.raises(LocalError, match="no column 'tick'; the columns are day, symbol"):
        match(frame, ready, keys=["tick"])
    with pytest.raises(
        LocalError, match="column 'symbol' is string; encoded events must be binary"
    ):
        match_counts(frame, ready, encoded="symbol")


@pytest.mark.slow
@pytest.mark.parametrize("style", ["equality", "ranges", "membership", "large", "wide"])
def test_plain_subscriptions_are_counted_block_by_block_with_the_same_result(
    tmp_path: Path, style: str
) -> None:
    draw = Random(3)
    index = MatchIndex()
    for number in range(3_000):
        text = STYLES[style].write(draw)
        if len(Filter.parse(text).conjunctions) == 1:
            index.add(number, text)
    for number in list(range(0, 3_000, 7)):
        if number in index:
            index.remove(number)
    index.save(tmp_path / "snapshot")
    events = [STYLES[style].publish(draw) for _ in range(700)]
    columns, batch = columns_of(events)
    matcher = Matcher(tmp_path / "snapshot")
    assert matcher.is_swept
    sizes = matcher.count(ColumnEvents(batch, columns, matcher.attributes))
    answers = [index.match(event) for event in events]
    assert sizes.tolist() == [len(answer) for answer in answers]
    wanted = Counter(each for answer in answers for each in answer)
    counts = matcher.counted().tolist()
    assert {matcher.ids.of_number(n): c for n, c in enumerate(counts) if c} == wanted
    assert sum(counts) > 100


def test_long_texts_are_counted_where_patterns_have_been_before(tmp_path: Path) -> None:
    index = MatchIndex()
    index.add_many([(1, "s > 'a'"), (2, "s LIKE '%b%c%'"), (3, "s IS NOT NULL AND n = 2")])
    index.remove(2)
    index.save(tmp_path / "snapshot")
    columns, batch = columns_of([{"s": "x" * 5_000, "n": 2}, {"s": "x", "n": 2}])
    matcher = Matcher(tmp_path / "snapshot")
    assert matcher.count(ColumnEvents(batch, columns, matcher.attributes)).tolist() == [2, 2]


# -- the command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(
        app, ["pipeline", "match", *map(str, arguments), "--master", "local[2]"]
    )


def test_command_reports_and_writes(
    frame: DataFrame, live: MatchIndex, spark: SparkSession, tmp_path: Path
) -> None:
    frame.where("tick < 100").coalesce(1).write.parquet(str(tmp_path / "events"))
    lines = tmp_path / "subscriptions.jsonl"
    lines.write_text(
        "\n".join(
            json.dumps({"id": number, "filter": text})
            for number, text in subscriptions_of(7).items()
        )
        + '\n{"id": "bad", "filter": "price =>"}\n'
    )
    arguments = (tmp_path / "events", lines, "--skip-invalid", "--output", tmp_path / "matches")
    done = run(*arguments, "--save-snapshot", tmp_path / "snapshot")
    assert done.exit_code == 0, done.output
    assert "100 events × 905 subscriptions" in done.stdout
    assert f"skipped: {lines}, line 906" in done.stdout
    matches = spark.read.parquet(str(tmp_path / "matches")).count()
    again = run(tmp_path / "events", tmp_path / "snapshot", "--json")
    report = json.loads(again.stdout)
    assert report["matches"] == matches
    assert report["events"] == 100
    counted = run(
        tmp_path / "events", tmp_path / "snapshot", "--counts", "--output", tmp_path / "counts"
    )
    assert counted.exit_code == 0, counted.output
    assert spark.read.parquet(str(tmp_path / "counts")).count() == 905


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["subscriptions.jsonl"], "give the events first, then"),
        (["nowhere", "subscriptions.jsonl"], "nowhere does not exist"),
        (["events", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["events", "bad.jsonl"], "bad.jsonl, line 1: "),
        (["events", "good.jsonl", "--counts"], "--counts requires --output"),
        (["events", "good.jsonl", "--output", "events"], "events already exists"),
        (["events", "good.jsonl", "--output", "o"], "name the key columns"),
        (["broken.parquet", "good.jsonl"], "broken.parquet"),
    ],
)
def test_command_says_in_one_line_what_is_wrong(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.jsonl").write_text('{"id": 1, "filter": "a = 1"}\n')
    (tmp_path / "bad.jsonl").write_text('{"id": 1, "filter": "a =! 1"}\n')
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more PAR1")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "events")
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_command_matches_what_a_network_has_logged_whatever_its_types(tmp_path: Path) -> None:
    events: list[Attributes] = [{"size": 5}, {"size": "five"}, {"size": 5.5}, {"halted": True}]
    lines = tmp_path / "subscriptions.jsonl"
    given = {
        "number": "size >= 5",
        "text": "size = 'five'",
        "truth": "halted",
        "absent": "x IS NULL",
    }
    lines.write_text("".join(json.dumps({"id": i, "filter": f}) + "\n" for i, f in given.items()))
    with network_of(tmp_path) as network:
        with anabranch.connect_blocking(network.addresses[0], name="feed") as client:
            client.publish_many(events * 3)
        done = run(network.addresses[0], lines, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["events"] == 12
    assert report["missing_attributes"] == ["x"]
    counts = {each["subscription"]: each["matches"] for each in report["most_matched"]}
    assert counts == {"number": 6, "text": 3, "truth": 3, "absent": 12}
