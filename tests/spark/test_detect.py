"""Patterns on Spark, in batch and as events come: what the reference finds, each match once."""

import json
import os
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from typer.testing import CliRunner, Result

import anabranch
from anabranch.check.reference import reference_matches
from anabranch.cli.main import app
from anabranch.model.errors import LocalError, PatternError
from anabranch.model.event import Value
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.pattern.match import PlacedEvent
from anabranch.model.pattern.pattern import Pattern
from anabranch.spark.detect import detect
from tests.spark_parts import network_of

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BEGIN_NS = int(BEGIN.timestamp()) * 10**9
SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("tick", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("loggedAt", pa.timestamp("us", tz="UTC")),
        ("x", pa.int64()),
        ("s", pa.string()),
        ("s_integer", pa.int64()),
        ("s_float", pa.float64()),
        ("t", pa.string()),
    ]
)
#: The attribute `s` has had several kinds.
ATTRIBUTES = {"s_integer": "s", "s_float": "s"}
KINDS: dict[type, str] = {str: "s", int: "s_integer", float: "s_float"}
VALUES: list[Value | None] = ["p", "q", 1, 1.0, 0.0, -0.0, float("nan"), None]
#: One key, two attributes as the key with events that serve both parts, an absence, no key at all;
#: repetition, alternatives, a window inside, an absence between, and all policies.
PATTERNS = [
    "a:{x = 1} THEN b:{x = 2} WHERE a.s = b.s WITHIN 1 s LATENESS 2 s",
    "a:{x > 0} THEN b:{x < 2} WHERE a.s = b.t WITHIN 1 s LATENESS 2 s",
    "a:{x > 0} THEN NOT b:{x < 2} WHERE a.t = b.s WITHIN 1 s LATENESS 2 s",
    "a:{x = 1} AND b:{x <> 1} WITHIN 500 ms LATENESS 2 s LAST",
    "3 TIMES a:{x = 2} WHERE a.t = a.t WITHIN 3 s LATENESS 2 s FIRST",
    (
        "(a:{x = 0} THEN b:{x = 1} WITHIN 500 ms) AND (c:{x = 2} OR d:{t = 'r'}) WHERE a.t = c.t"
        " AND a.t = d.t AND a.t = b.t WITHIN 2 s LATENESS 2 s LAST"
    ),
    (
        "a:{x = 0} THEN NOT b:{x = 1} THEN c:{x = 2} WHERE a.t = b.t AND b.t = c.t"
        " WITHIN 2 s LATENESS 2 s FIRST"
    ),
]
IN_SOAK = os.environ.get("ANABRANCH_HYPOTHESIS_PROFILE") == "soak"
#: Wanted, logged with the first ones, and of a publisher whose clock is ahead by fifty years.
WILD = PlacedEvent("w", 1, BEGIN_NS + 50 * 365 * 86_400 * 10**9, {"x": 2, "t": "p"})


def history(rng: Random, count: int) -> list[PlacedEvent]:
    """Events of half a second each, so that many are at one time."""
    made = []
    for tick in range(1, count + 1):
        attributes: dict[str, Value] = {"x": rng.randrange(3), "t": rng.choice("pqr")}
        value = rng.choice(VALUES)
        if value is not None:
            attributes["s"] = value
        time_ns = BEGIN_NS + rng.randrange(60) * 500_000_000
        made.append(PlacedEvent(rng.choice("ab"), tick, time_ns, attributes))
    return made


def table(events: Iterable[PlacedEvent]) -> pa.Table:
    rows = []
    for each in events:
        moment = BEGIN + timedelta(microseconds=(each.time_ns - BEGIN_NS) // 1_000)
        row: dict[str, object] = {"stream": each.stream, "tick": each.tick, "timestamp": moment}
        if each == WILD:
            row["loggedAt"] = BEGIN
        for name, value in each.attributes.items():
            row[KINDS[type(value)] if name == "s" else name] = value
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def expected(
    text: str,
    events: Iterable[PlacedEvent],
    matches_max: int = DEFAULT_LIMITS.pattern_matches_max,
) -> list[str]:
    matches = reference_matches(Pattern.parse(text), events, text, matches_max)
    return sorted(msgspec.json.encode(match.identity).decode() for match in matches)


def detected(
    frame: DataFrame, text: str, matches_max: int = DEFAULT_LIMITS.pattern_matches_max
) -> DataFrame:
    return detect(
        frame,
        text,
        pattern_id=text,
        attributes=ATTRIBUTES,
        buckets=3,
        matches_max=matches_max,
    )


def left_out(rows: Iterable[Row], text: str) -> list[tuple[str, int]]:
    """The events of which is told that more matches end with them."""
    told = [row.events[0] for row in rows if (row.pattern, row.finding) == (text, "left-out")]
    return sorted((each.stream, each.tick) for each in told)


def cut(text: str, events: Iterable[PlacedEvent], matches_max: int) -> list[tuple[str, int]]:
    """The same by the reference."""
    matches = reference_matches(Pattern.parse(text), events, text, matches_max)
    return sorted({(each.last.stream, each.last.tick) for each in matches if each.is_cut})


def identities(rows: Iterable[Row], text: str) -> list[str]:
    return sorted(row.identity for row in rows if (row.pattern, row.finding) == (text, "match"))


# -- batch


def test_batch_finds_what_the_reference_finds(spark: SparkSession) -> None:
    events = history(Random(3), 120)
    frame = spark.createDataFrame(table(events))
    findings = [detected(frame, text) for text in PATTERNS]
    rows = reduce(DataFrame.unionAll, findings).collect()
    for text in PATTERNS:
        found = expected(text, events)
        assert len(found) > 5
        assert identities(rows, text) == found
    assert {row.finding for row in rows} == {"match"}


#: Those that keep all matches; in the last one an event may stand for both parts, by two keys.
MANY = [
    "a:{x > 0} THEN b:{x < 2} WHERE a.s = b.t WITHIN 3 s LATENESS 2 s",
    "a:{x > 0} AND b:{x < 2} WHERE a.t = b.t WITHIN 3 s",
    "a:{x = 0} THEN NOT b:{x = 1} THEN c:{x = 2} WITHIN 3 s",
    "a:{x > 0} AND b:{x < 2} WHERE a.s = b.t WITHIN 3 s",
]


def test_batch_keeps_the_first_matches_that_the_reference_keeps(spark: SparkSession) -> None:
    events = history(Random(3), 120)
    frame = spark.createDataFrame(table(events))
    cases = {text: 1 + place % 2 for place, text in enumerate(MANY)}
    findings = [detected(frame, text, matches_max) for text, matches_max in cases.items()]
    rows = reduce(DataFrame.unionAll, findings).collect()
    for text, matches_max in cases.items():
        assert identities(rows, text) == expected(text, events, matches_max)
        assert left_out(rows, text) == cut(text, events, matches_max) != []
        assert len(expected(text, events, matches_max)) < len(expected(text, events, 1_000))
    assert {row.finding for row in rows} == {"match", "left-out"}


def test_a_match_has_its_events_with_their_attributes_and_what_has_no_time_is_told(
    spark: SparkSession,
) -> None:
    second = 1_000_000_000
    events = [
        PlacedEvent("a", 1, BEGIN_NS, {"x": 1, "s": 1, "t": "p"}),
        PlacedEvent("b", 2, BEGIN_NS + second, {"x": 2, "s": 1.0}),
    ]
    rows = table(events).to_pylist()
    rows.append({"stream": "b", "tick": 9, "x": 1, "s": "p"})
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=SCHEMA))
    found = detect(
        frame, PATTERNS[0], pattern_id="mine", attributes=ATTRIBUTES, carry=["t"], buckets=2
    )
    match, timeless = found.orderBy("finding").collect()
    assert (match.pattern, match.finding, match.identity) == (
        "mine",
        "match",
        '[["a","a",1],["b","b",2]]',
    )
    assert [(each.part, each.stream, each.tick) for each in match.events] == [
        ("a", "a", 1),
        ("b", "b", 2),
    ]
    assert match.events[0].attributes.asDict() == {
        "s": None,
        "s_integer": 1,
        "s_float": None,
        "t": "p",
    }
    assert match.time - match.events[0].time == timedelta(seconds=1)
    assert (timeless.finding, timeless.identity, timeless.events[0].tick) == ("no-time", None, 9)


def test_times_are_attributes_of_conditions_and_joins(spark: SparkSession) -> None:
    events = [
        PlacedEvent("a", tick, BEGIN_NS + tick * 1_000_000, {"x": x, "t": "p"})
        for tick, x in enumerate((1, 1, 2, 2))
    ]
    frame = spark.createDataFrame(table(events)).selectExpr(
        "*", "timestamp_micros(if(tick in (1, 2), 5, -5)) as at"
    )
    begin = "TIMESTAMP '1970-01-01T00:00:00Z'"
    text = f"a:{{x = 1 AND at > {begin}}} THEN b:{{x = 2}} WHERE a.at = b.at WITHIN 1 s"
    (match,) = detect(frame, text, attributes=ATTRIBUTES).collect()
    assert match.identity == '[["a","a",1],["b","a",2]]'
    assert [each.attributes["at"] for each in match.events] == [5_000, 5_000]
    rest = f"a:{{x = 1 AND at < {begin}}} THEN b:{{x = 2 AND at < {begin}}} WITHIN 1 s"
    (match,) = detect(frame, rest, attributes=ATTRIBUTES).collect()
    assert match.identity == '[["a","a",0],["b","a",3]]'
    assert "at" not in match.events[0].attributes


# -- as events come


def put(folder: Path, number: int, events: Iterable[PlacedEvent]) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"{number:03}.parquet"
    pq.write_table(table(events), path)
    # Spark takes the oldest first.
    os.utime(path, (1_800_000_000 + number, 1_800_000_000 + number))


def followed(
    spark: SparkSession,
    folder: Path,
    text: str,
    buckets: int = 3,
    matches_max: int = DEFAULT_LIMITS.pattern_matches_max,
) -> StreamingQuery:
    """All files that are there, each as a batch, from where the checkpoint is."""
    source = spark.readStream.schema(spark.read.parquet(str(folder / "in")).schema)
    frame = source.option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    query = (
        detect(
            frame,
            text,
            pattern_id=text,
            attributes=ATTRIBUTES,
            buckets=buckets,
            matches_max=matches_max,
        )
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination()
    return query


def told_apart(
    text: str, batches: Sequence[Sequence[PlacedEvent]]
) -> tuple[list[PlacedEvent], list[PlacedEvent]]:
    """The events that are in time, and those that come when their time is over."""
    lateness_ns = Pattern.parse(text).lateness_ns
    taken: list[PlacedEvent] = []
    late: list[PlacedEvent] = []
    newest_ns = 0
    for batch in batches:
        for each in batch:
            (late if each.time_ns < newest_ns - lateness_ns else taken).append(each)
        newest_ns = max([newest_ns, *(each.time_ns for each in batch)])
    return taken, late


def is_wanted(text: str, event: PlacedEvent) -> bool:
    return any(part.filter.matches(event.attributes) for part in Pattern.parse(text).parts)


@pytest.mark.parametrize("text", PATTERNS if IN_SOAK else PATTERNS[2:3])
def test_what_comes_in_any_order_and_through_a_restart_gives_each_match_once(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    rng = Random(2)
    events = history(rng, 200)
    coming = sorted(events, key=lambda each: each.time_ns + rng.randrange(9_000_000_000))
    # The last one is so young that everything else is over.
    end = PlacedEvent("z", 1, BEGIN_NS + 3_600 * 10**9, {})
    batches = [coming[:100], coming[100:], [end]]
    put(tmp_path / "in", 0, [*batches[0], WILD])
    followed(spark, tmp_path, text)
    # As if it had been killed before it could say that the last batch is done.
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink()
    for place, batch in enumerate(batches[1:], 1):
        put(tmp_path / "in", place, batch)
    followed(spark, tmp_path, text)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    taken, late = told_apart(text, batches)
    wanted = sorted((each.stream, each.tick) for each in late if is_wanted(text, each))
    assert len(wanted) > 3
    told = [row.events[0] for row in rows if row.finding == "late"]
    assert sorted((each.stream, each.tick) for each in told) == wanted
    found = expected(text, taken)
    assert len(found) > 5
    assert found != expected(text, events)
    assert identities(rows, text) == found


def test_what_comes_in_order_and_through_a_restart_keeps_the_first_matches(
    spark: SparkSession, tmp_path: Path
) -> None:
    text, events = MANY[0], history(Random(5), 120)
    coming = sorted(events, key=lambda each: each.key)
    end = PlacedEvent("z", 1, BEGIN_NS + 3_600 * 10**9, {})
    # What ends with the last events of the first batch is decided in the second query.
    for place, batch in enumerate([coming[:61], [*coming[61:], end], []]):
        put(tmp_path / "in", place, batch)
        followed(spark, tmp_path, text, matches_max=1)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert identities(rows, text) == expected(text, events, 1)
    assert left_out(rows, text) == cut(text, events, 1) != []
    put(tmp_path / "in", 9, [PlacedEvent("z", 2, end.time_ns + 1, {"x": 1, "t": "p"})])
    with pytest.raises(StreamingQueryException, match="pattern_matches_max"):
        followed(spark, tmp_path, text, matches_max=2)


# -- what is refused


def test_bad_frames_and_patterns_are_refused_with_what_is_wrong(spark: SparkSession) -> None:
    frame = spark.createDataFrame(table(history(Random(1), 1))).drop("loggedAt")
    with pytest.raises(LocalError, match="no column 'loggedAt'"):
        detect(frame, PATTERNS[0], time="loggedAt")
    with pytest.raises(LocalError, match="column 'x' is bigint, not timestamp"):
        detect(frame, PATTERNS[0], time="x")
    with pytest.raises(LocalError, match="buckets must be at least 1"):
        detect(frame, PATTERNS[0], buckets=0)
    with pytest.raises(PatternError, match="position"):
        detect(frame, "a:{x = 1} THEN")


# -- the command


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["pipeline", "detect", *map(str, words), "--master", "local[2]"])


def test_the_command_prints_what_it_finds_or_a_report(spark: SparkSession, tmp_path: Path) -> None:
    events = history(Random(5), 60)
    put(tmp_path / "in", 0, events)
    text = "a:{x = 1} THEN b:{x = 2} WHERE a.t = b.t WITHIN 5 s"
    found = expected(text, events)
    assert found
    done = run(tmp_path / "in", text, "--id", "mine")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(row["identity"] for row in rows) == found
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    first = rows[0]["events"][0]
    assert (rows[0]["pattern"], rows[0]["finding"], first["part"]) == ("mine", "match", "a")
    assert first["attributes"]["x"] == 1
    done = run(tmp_path / "in", text, "--json", "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["events"], report["matches"], report["others"]) == (60, len(found), 0)
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(found)


def test_the_command_refuses_what_it_cannot_do_before_spark_is_asked(tmp_path: Path) -> None:
    put(tmp_path, 0, history(Random(1), 1))
    text = "a:{x = 1} WITHIN 1 s"
    for words, said in [
        ((tmp_path, "a:{x = 1} THEN b:{x =} WITHIN 1 s"), "position"),
        ((text,), "give the events"),
        ((tmp_path / "nowhere", text), "does not exist"),
        ((tmp_path, text, "--follow", "--json"), "--json and --follow are mutually exclusive"),
        ((tmp_path, text, "--to", tmp_path), "is not empty"),
    ]:
        done = run(*words)
        assert done.exit_code == 2
        assert said in done.stderr


def test_a_network_is_followed_and_time_passes_while_nothing_matches(
    spark: SparkSession, tmp_path: Path
) -> None:
    to = tmp_path / "found.jsonl"
    over = threading.Event()

    def publish_until_there_is_a_line(address: str) -> None:
        with anabranch.connect_blocking(address, name="feed") as client:
            client.publish_many([{"n": 1}, {"m": 2}])
            for _ in range(600):
                if over.wait(0.1) or (to.exists() and to.read_text()):
                    break
                client.publish_many([{"n": 5}])
        for query in spark.streams.active:
            query.stop()

    with network_of(tmp_path) as network:
        address = network.addresses[0]
        feed = threading.Thread(target=publish_until_there_is_a_line, args=(address,))
        feed.start()
        # Rows of silence have no attributes; if they were events, they would be witnesses.
        text = "a:{n = 1} THEN NOT b:{n IS NULL AND m IS NULL} WITHIN 1 ms"
        words = ("--follow", "--time", "loggedAt", "--columns", "n BIGINT, m BIGINT", "--to", to)
        done = run(address, text, *words)
        over.set()
        feed.join()
    assert done.exit_code == 0, done.output
    (line,) = to.read_text().splitlines()
    row = json.loads(line)
    assert (row["finding"], row["events"][0]["attributes"]) == ("match", {"n": 1})
