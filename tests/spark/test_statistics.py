"""Statistics on Spark: counts are exact, sketches within their error, and parts add up.

What is expected is counted in plain Python from the same events.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner, Result

from anabranch.cli.main import app
from anabranch.cli.output import iso_time
from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.model.filter import Filter
from anabranch.model.selectivity import selectivity
from anabranch.model.statistics import (
    Statistics,
    StreamStatistics,
    read_statistics,
    text_key,
    write_statistics,
)
from anabranch.spark.archive.manifest import read_state
from anabranch.spark.attribute_columns import attribute_columns
from anabranch.spark.statistics import State, StateError, stats
from tests.archive_parts import LOSSY, archived
from tests.spark_parts import network_of

Attributes = dict[str, Value]
SCHEMA = (
    "stream string, tick bigint, timestamp timestamp, symbol string, price double, size bigint,"
    " halted boolean, size_text string, never string"
)
BEGIN = datetime(2026, 1, 31, 22, 30, tzinfo=UTC)
NAMES = {"size_text": "size"}


def quotes(count: int, seed: int = 3) -> list[Attributes]:
    draw = Random(seed)
    symbols, weights = [f"S{n:04d}" for n in range(3_000)], [1 / (n + 1) for n in range(3_000)]
    events: list[Attributes] = []
    for symbol in draw.choices(symbols, weights, k=count):
        event: Attributes = {"symbol": symbol, "price": draw.lognormvariate(3, 1)}
        if draw.random() < 0.5:
            event |= {"size": draw.randrange(10), "halted": draw.random() < 0.1}
        elif draw.random() < 0.1:
            event |= {"size": draw.choice(["small", "large"]), "price": math.nan}
        events.append(event)
    return events


def frame_of(spark: SparkSession, events: list[Attributes]) -> DataFrame:
    rows = []
    for place, event in enumerate(events):
        size = event.get("size")
        stream, tick = ("east", "west")[place % 2], place // 2
        when = BEGIN + timedelta(seconds=place)
        number, text = (size, None) if isinstance(size, int) else (None, size)
        parts = (event["symbol"], event["price"], number, event.get("halted"), text, None)
        rows.append((stream, tick, when, *parts))
    names = [part.split()[0] for part in SCHEMA.split(", ")]
    columns = zip(*rows, strict=True)
    types = [pa.string(), pa.int64(), pa.timestamp("us", "UTC"), pa.string(), pa.float64()]
    types += [pa.int64(), pa.bool_(), pa.string(), pa.string()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return spark.createDataFrame(pa.table(arrays, names))


@pytest.fixture(scope="module")
def events() -> list[Attributes]:
    return quotes(8_000)


@pytest.fixture(scope="module")
def frame(spark: SparkSession, events: list[Attributes]) -> Iterator[DataFrame]:
    made = frame_of(spark, events).cache()
    yield made
    made.unpersist()


@pytest.fixture(scope="module")
def known(frame: DataFrame) -> dict[str, StreamStatistics]:
    return {each.stream: each for each in stats(frame, attributes=NAMES)}


@pytest.fixture(scope="module")
def east(events: list[Attributes]) -> list[Attributes]:
    return events[::2]


def test_events_kinds_and_hours_are_counted_exactly(
    known: dict[str, StreamStatistics], east: list[Attributes]
) -> None:
    found = known["east"]
    assert list(known) == ["east", "west"]
    assert found.events == len(east)
    sizes = [event["size"] for event in east if "size" in event]
    numbers, texts = found.attributes["size"].numbers, found.attributes["size"].texts
    assert numbers is not None
    assert texts is not None
    assert numbers.count == sum(isinstance(size, int) for size in sizes)
    assert texts.count == sum(isinstance(size, str) for size in sizes)
    assert found.attributes["price"].nan == sum(math.isnan(float(e["price"])) for e in east)
    halted = found.attributes["halted"]
    assert halted.true == sum(event.get("halted") is True for event in east)
    assert halted.false == sum(event.get("halted") is False for event in east)
    assert "never" not in found.attributes
    hours = Counter((1_800 + 2 * n) // 3_600 for n in range(len(east)))
    start = int(BEGIN.timestamp()) - 1_800
    assert [(p.start_s, p.events) for p in found.periods] == [
        (start + 3_600 * hour, count) for hour, count in sorted(hours.items())
    ]
    assert found.rate_per_s == pytest.approx(0.5, rel=0.01)


def test_quantiles_and_distinct_values_are_within_their_error(
    known: dict[str, StreamStatistics], east: list[Attributes]
) -> None:
    numbers = known["east"].attributes["price"].numbers
    assert numbers is not None
    prices = sorted(p for p in (float(event["price"]) for event in east) if not math.isnan(p))
    assert numbers.bounds[0] == prices[0]
    assert numbers.bounds[-1] == prices[-1]
    for place, bound in enumerate(numbers.bounds):
        rank = sum(price <= bound for price in prices) / len(prices)
        assert abs(rank - place / (len(numbers.bounds) - 1)) <= numbers.rank_error + 1 / len(prices)
    assert numbers.distinct == pytest.approx(len(set(prices)), rel=0.06)
    texts = known["east"].attributes["symbol"].texts
    assert texts is not None
    symbols = [str(event["symbol"]) for event in east]
    assert texts.bounds[0] == min(map(text_key, symbols))
    assert texts.distinct == pytest.approx(len(set(symbols)), rel=0.06)


def test_most_frequent_values_are_within_their_error(
    known: dict[str, StreamStatistics], east: list[Attributes]
) -> None:
    texts = known["east"].attributes["symbol"].texts
    assert texts is not None
    counts = Counter(str(event["symbol"]) for event in east)
    for symbol, count in texts.top:
        assert count - texts.top_error <= counts[symbol] <= count
    told = {symbol for symbol, _ in texts.top}
    assert max(count for symbol, count in counts.items() if symbol not in told) <= texts.rest_max
    assert texts.top[0][0] == "S0000"
    sizes = known["east"].attributes["size"].numbers
    assert sizes is not None
    assert dict(sizes.top) == Counter(
        float(event["size"]) for event in east if isinstance(event.get("size"), int)
    )
    assert sizes.rest_max == 0


def test_attributes_that_occur_together_are_counted_exactly(
    known: dict[str, StreamStatistics], east: list[Attributes]
) -> None:
    wanted = Counter(frozenset(pair) for event in east for pair in combinations(event, 2))
    found = {frozenset((p.one, p.other)): p.events for p in known["east"].pairs}
    assert found == wanted


@pytest.mark.parametrize(
    "text",
    [
        "symbol = 'S0000'",
        "symbol = 'S2000' OR symbol = 'S0005'",
        "price < 20 AND size > 4",
        "price BETWEEN 5 AND 50 AND symbol LIKE 'S00%'",
        "size = 'small' OR size = 3 OR halted",
        "size IS NULL AND price > 10",
        "symbol LIKE '%0' AND NOT halted",
        "price > size",
    ],
)
def test_selectivity_is_within_its_interval(
    known: dict[str, StreamStatistics], east: list[Attributes], text: str
) -> None:
    filter = Filter.parse(text)
    estimate = selectivity(known["east"], filter)
    exact = sum(map(filter.matches, east)) / len(east)
    assert estimate.low - 1e-9 <= exact <= estimate.high + 1e-9
    assert text == "price > size" or abs(estimate.share - exact) < 0.03


def test_export_is_read_as_it_was_written(known: dict[str, StreamStatistics]) -> None:
    document = Statistics(made_ns=1, streams=tuple(known.values()))
    assert read_statistics(write_statistics(document)) == document


# -- with a state


def shape(found: StreamStatistics) -> dict[str, object]:
    """What does not depend on chance: where a sketch rounds, it draws lots."""
    known: dict[str, object] = {}
    for name, attribute in found.attributes.items():
        for values in (attribute.numbers, attribute.texts):
            if values is not None:
                ends = values.bounds[0], values.bounds[-1]
                top = sorted(count for _, count in values.top)
                known[f"{name} {type(values).__name__}"] = values.count, values.distinct, ends, top
        known[name] = attribute.true, attribute.false, attribute.nan
    return known


def test_parts_add_up_and_what_was_counted_is_not_read_again(
    frame: DataFrame,
    events: list[Attributes],
    known: dict[str, StreamStatistics],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anabranch.spark.statistics.GENERATIONS_MAX", 2)
    state = tmp_path / "state"
    # What a run that was killed may leave.
    (state / "00000001" / "sketches").mkdir(parents=True)
    stats(frame.where("tick < 1500"), attributes=NAMES, state=state)
    assert State(state).known.through == {"east": 1_499, "west": 1_499}
    assert State(state).fresh(frame).count() == len(events) - 3_000
    found = {each.stream: each for each in stats(frame, attributes=NAMES, state=state)}
    for stream, whole in known.items():
        assert found[stream].events == whole.events
        assert found[stream].periods == whole.periods
        assert set(found[stream].pairs) == set(whole.pairs)
        assert shape(found[stream]) == shape(whole)
    # The second generation was one too many, so there is one that has all of both.
    before = State(state).known
    there = sorted(path.name for path in state.iterdir())
    assert there == [*before.generations, "lock", "state.json"]
    again = {each.stream: each for each in stats(frame, attributes=NAMES, state=state)}
    assert {s: shape(each) for s, each in again.items()} == {
        s: shape(each) for s, each in found.items()
    }
    assert State(state).known == before


def test_directory_of_something_else_is_left_alone(tmp_path: Path, frame: DataFrame) -> None:
    (tmp_path / "precious").write_text("precious")
    with pytest.raises(StateError, match="contains something other than statistics"):
        stats(frame, state=tmp_path)
    with pytest.raises(StateError, match="have no tick column"):
        stats(frame.drop("tick"), state=tmp_path / "new")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "state.json").write_text('{"format": 9}')
    with pytest.raises(StateError, match="has format 9; this version reads 1"):
        stats(frame, state=tmp_path / "old")


def test_second_run_at_the_same_time_is_refused(tmp_path: Path, frame: DataFrame) -> None:
    state = State(tmp_path / "state")
    with state.locked(), pytest.raises(StateError, match="another run is using"):
        stats(frame, state=tmp_path / "state")


def test_a_state_is_of_one_network(tmp_path: Path, frame: DataFrame) -> None:
    few = frame.where("tick < 3")
    stats(few, state=tmp_path / "state", attributes=NAMES, network="one")
    with pytest.raises(StateError, match="network 'one', but the events belong to 'other'"):
        stats(few, state=tmp_path / "state", attributes=NAMES, network="other")
    assert State(tmp_path / "state").known.network == "one"


# -- odd frames


def test_events_without_time_stream_or_values_are_counted(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1,), (None,), (3,)], "x bigint")
    (found,) = stats(frame)
    assert (found.stream, found.events, found.rate_per_s) == ("", 3, None)
    assert found.attributes["x"].present == 2
    assert stats(frame.where("x > 5")) == []
    with pytest.raises(LocalError, match="no attribute column"):
        stats(spark.range(3).selectExpr("id AS tick"))
    with pytest.raises(LocalError, match="no column 'when'; the columns are x"):
        stats(frame, time="when")


def test_times_are_counted_as_integers_if_they_are_named(spark: SparkSession) -> None:
    frame = spark.sql("SELECT id AS x, timestamp_micros(id * 5) AS at FROM range(4)")
    (found,) = stats(frame)
    assert {*found.attributes} == {"x"}
    for named in ({"at": "at"}, attribute_columns(frame.schema)):
        (found,) = stats(frame, attributes=named)
        assert {*found.attributes} == {"x", "at"}
        numbers = found.attributes["at"].numbers
        assert numbers is not None
        assert sorted(numbers.top) == [(0.0, 1), (5_000.0, 1), (10_000.0, 1), (15_000.0, 1)]


def test_streams_that_are_empty_or_have_payloads_only_are_counted(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1), ("a", 2)], "stream string, tick bigint")
    (found,) = stats(frame)
    assert (found.stream, found.events, found.attributes, found.pairs) == ("a", 2, {}, ())
    assert stats(frame.where("tick < 0")) == []


# -- the command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(
        app, ["pipeline", "stats", *map(str, arguments), "--master", "local[2]"]
    )


def test_command_prints_tables_of_80_columns_and_exports(
    spark: SparkSession, frame: DataFrame, tmp_path: Path
) -> None:
    frame.limit(2_000).coalesce(1).write.parquet(str(tmp_path / "events"))
    done = run(
        tmp_path / "events", "--filter", "price > 50 AND symbol = 'S0000'", "--export",
        tmp_path / "s.json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert any(line.startswith("east: 1,000 events") for line in lines)
    assert any("price > 50 AND symbol" in line for line in lines)
    exported = read_statistics((tmp_path / "s.json").read_bytes())
    assert [each.stream for each in exported.streams] == ["east", "west"]


@pytest.mark.slow
def test_command_counts_what_an_archive_has_and_tells_what_it_lacks(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    with network_of(tmp_path, LOSSY) as network, network.connect_blocking(name="feed") as client:
        archived(network, directory)
        empty = run(network.addresses[0], "--json")
        assert empty.exit_code == 0, empty.output
        client.publish_many({"n": n} for n in range(100))
        archived(network, directory)
        client.publish_many({"n": n} for n in range(2_000))
        lacking = archived(network, directory, missing="record").missing
        found = run(directory, "--state", tmp_path / "state", "--filter", "n < 50", "--json")
    assert found.exit_code == 0, found.output
    assert f"missing: {lacking[0]}" in found.stderr
    report = json.loads(found.stdout)
    for stream in report["statistics"]["streams"]:
        assert iso_time(stream["first_ns"]) == stream["first"] <= stream["last"]
    assert report["statistics"]["streams"][0]["events"] == read_state(directory).rows
    assert State(tmp_path / "state").known.network == "lossy"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the events: a directory"),
        (["nowhere"], "nowhere does not exist"),
        (["here", "--filter", "price =>"], "position"),
        (["here", "--export", "nowhere/x.json"], "nowhere is not a directory"),
        (["here", "127.0.0.1:1"], "is not an archive and cannot be combined"),
    ],
)
def test_command_says_in_one_line_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    # The text of a wrong filter follows, with a caret.
    assert len(done.stderr.splitlines()) == (3 if said == "position" else 1)
