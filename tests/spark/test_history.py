"""A question about the past gets the answer that a subscriber got, from wherever the events are."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

import anabranch
from anabranch.cli.main import app
from anabranch.cli.pipeline.spark_io import told_plainly
from anabranch.model.encoding import decode_event
from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.spark.archive.compaction import compact
from anabranch.spark.archive.manifest import Span, read_state
from anabranch.spark.archive.reader import (
    ArchiveReader,
    HistoricalRead,
    MissingTicksError,
    look_back,
)
from anabranch.spark.history import History, history, look_into
from anabranch.spark.survey import Survey
from tests.archive_parts import HERE, LOSSY, Follower, Got, archived, followed, options_for
from tests.spark_parts import PAIR, network_of

FILTERS = (
    "TRUE",
    "price > 20 AND symbol LIKE 'S%'",
    "NOT (price < 3)",
    "late IS NOT NULL AND n % 2 = 0",
    "price = 'free' OR urgent",
    "absent IS NULL AND price - n / 8 > 0",
)


def quote(n: int) -> dict[str, Value]:
    found: dict[str, Value] = {"n": n, "price": n / 4, "symbol": f"S{n % 7}"}
    if n % 5 == 0:
        found["price"] = n
    if n % 17 == 0:
        found["price"] = "free"
    return found


@pytest.fixture(scope="module")
def there(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[anabranch.Embedded, Follower, Path]]:
    """Two streams: archived in three parts, and a tail with what no part had."""
    folder = tmp_path_factory.mktemp("history")
    with followed(folder, PAIR) as (network, follower):
        directory = folder / "archive"
        with anabranch.connect_blocking(network.addresses[0], name="feed") as client:
            for first in (0, 100, 200):
                client.publish_many(map(quote, range(first, first + 100)))
                archived(network, directory)
            client.publish({"n": 300, "urgent": True, "late": "yes"})
            client.publish({"n": 301, "expires": 1}, time_limit=3_600)
            client.publish({"n": 302, "secret": 1}, destinations=["somebody"])
        with anabranch.connect_blocking(network.addresses[1], name="other") as client:
            client.publish_many({"n": n, "late": n} for n in range(10))
        follower.until(312)
        yield network, follower, directory


def events_in(found: History) -> list[Got]:
    rows = [tuple(row) for row in found.events().collect()]
    return [(s, tick, time_ns, decode_event(bytes(body))) for s, tick, time_ns, body in rows]


@pytest.mark.parametrize("text", FILTERS)
def test_archive_and_tail_together_are_what_a_subscriber_got(
    spark: SparkSession, there: tuple[anabranch.Embedded, Follower, Path], text: str
) -> None:
    network, follower, directory = there
    found = look_into(spark, directory, text, brokers=options_for(network))
    chosen = anabranch.Filter.parse(text)
    expected = [each for each in follower.until(312) if chosen.matches(each[3])]
    got = events_in(found)
    assert sorted(got, key=lambda each: each[:2]) == expected
    assert expected
    assert [each[2] for each in got] == sorted(each[2] for each in got)
    assert found.past.missing == []


def test_only_files_and_ticks_that_are_asked_for_are_read(
    spark: SparkSession, there: tuple[anabranch.Embedded, Follower, Path]
) -> None:
    network, _, directory = there
    a = [file for file in read_state(directory).files.values() if file.stream == "a"]
    asked = {"a": a[1].first + 9}
    found = look_into(spark, directory, since=asked, until={"a": a[1].last}, brokers=None)
    assert (found.files, found.files_all) == (1, 3)
    assert sorted(row["n"] for row in found.frame.collect()) == [*range(110, 200)]
    since_ns = a[2].first_ns
    times = look_into(spark, directory, since=since_ns, brokers=options_for(network))
    assert times.files == 1
    assert min(row["tick"] for row in times.frame.where("stream = 'a'").collect()) == a[2].first
    spark.conf.set("spark.sql.maxMetadataStringLength", "10000")
    try:
        dear = history(spark, directory, "price > 70")
        plan = dear._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.unset("spark.sql.maxMetadataStringLength")
    assert "GreaterThan(price,70.0)" in plan


def test_a_compaction_between_a_question_and_its_answer_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "archive"
    with network_of(tmp_path, PAIR) as network, network.connect_blocking(name="feed") as client:
        for first in (0, 50):
            client.publish_many({"n": n} for n in range(first, first + 50))
            archived(network, directory)

    def look_and_compact(*given: object, **more: object) -> HistoricalRead:
        past = look_back(*given, **more)  # type: ignore[arg-type]
        assert compact(HERE, directory).after == 1
        return past

    monkeypatch.setattr("anabranch.spark.history.look_back", look_and_compact)
    found = look_into(spark, directory, "n >= 10")
    assert sorted(row["n"] for row in found.frame.collect()) == [*range(10, 100)]


def test_expired_events_are_left_out_as_a_fetch_leaves_them_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    with network_of(tmp_path, PAIR) as network, network.connect_blocking(name="feed") as client:
        client.publish({"n": 1}, time_limit=0.2)
        client.publish({"n": 2}, time_limit=3_600)
        archived(network, tmp_path / "archive")
        rows = read_state(tmp_path / "archive").rows
        # Waits until the first is over: the broker itself does not give it out any more.
        with anabranch.Fetcher(*network.addresses) as fetcher:
            while sum(piece.count for piece in fetcher.fetch(1)) == 2:
                pass
        frame = history(spark, tmp_path / "archive", brokers=options_for(network))
        assert [row["n"] for row in frame.collect()] == [2]
        assert rows in (1, 2)


# -- which ticks


@contextmanager
def looked(network: anabranch.Embedded, directory: Path | None, **more: str) -> Iterator["_Look"]:
    with Survey(options_for(network, **more)) as survey:
        yield _Look(None if directory is None else ArchiveReader(directory), survey)


class _Look:
    def __init__(self, reader: ArchiveReader | None, survey: Survey) -> None:
        self._reader, self._survey = reader, survey

    def __call__(self, **asked: object) -> HistoricalRead:
        return look_back(self._reader, self._survey, **asked)  # type: ignore[arg-type]


def test_what_neither_archive_nor_log_has_fails_with_its_range_or_is_reported(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "archive"
    with network_of(tmp_path, LOSSY) as network, network.connect_blocking(name="feed") as client:
        client.publish_many({"n": n} for n in range(200))
        archived(network, directory)
        end = read_state(directory).ranges["a"][1]
        client.publish_many({"n": n} for n in range(200, 2_500))
        with anabranch.Fetcher(*network.addresses) as fetcher:
            described = fetcher.describe()
        oldest, head = described.oldest, described.head
        with looked(network, directory) as look:
            gap = Span("a", end + 1, oldest - 1)
            with pytest.raises(MissingTicksError, match=f"ticks {end + 1} to {oldest - 1} of"):
                look()
            past = look(on_missing="report")
            assert past.missing == [gap]
            assert past.archived == [Span("a", 1, end)]
            assert past.logged == [Span("a", oldest, head)]
            assert (past.handover, past.positions) == ({"a": oldest - 1}, {"a": head})
            assert look(until={"a": end}).logged == []
            assert look(since={"a": head}).parts["a"].logged is None
            with pytest.raises(LocalError, match="no stream 'b'"):
                look(since={"b": 1})
            with pytest.raises(LocalError, match=f"tick {head + 1} of 'a' does not exist"):
                look(since={"a": head + 1})
        with looked(network, None) as look:
            assert look().logged == [Span("a", oldest, head)]
            with pytest.raises(MissingTicksError, match=f"ticks 4 to {oldest - 1} of"):
                look(since={"a": 3})
            with pytest.raises(MissingTicksError, match=f"ticks 1 to {oldest - 1} of"):
                look(since=10**18)


def test_a_moment_is_found_in_the_archive_and_in_the_log(
    there: tuple[anabranch.Embedded, Follower, Path],
) -> None:
    network, follower, directory = there
    got = [each for each in follower.until(312) if each[0] == "a"]
    with looked(network, directory) as look:
        for _, _, time_ns, _ in (got[0], got[37], got[150], got[300]):
            past = look(since=time_ns, on_missing="report")
            wanted = [each[1] for each in got if each[2] >= time_ns]
            spans = [span for span in (*past.archived, *past.logged) if span.stream == "a"]
            ticks = [each[1] for each in got if any(s.first <= each[1] <= s.last for s in spans)]
            assert ticks == wanted
            before = look(until=time_ns)
            spans = [span for span in (*before.archived, *before.logged) if span.stream == "a"]
            ticks = [each[1] for each in got if any(s.first <= each[1] <= s.last for s in spans)]
            assert ticks == [each[1] for each in got if each[2] < time_ns]


def test_streams_that_are_not_asked_for_are_not_taken_from_the_archive(
    spark: SparkSession, there: tuple[anabranch.Embedded, Follower, Path]
) -> None:
    network, _, directory = there
    archived(network, directory)
    with looked(network, directory, streams="b") as look:
        past = look()
    assert {*past.parts} == {*past.positions} == {"b"}
    frame = history(spark, directory, brokers=options_for(network, streams="b"))
    assert sorted(row["n"] for row in frame.collect()) == [*range(10)]


def test_a_stream_that_has_left_the_network_is_in_the_past_and_not_followed(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "archive"
    with network_of(tmp_path, PAIR) as network:
        for address in network.addresses:
            with anabranch.connect_blocking(address, name=f"feed {address}") as client:
                client.publish({"n": 1})
        archived(network, directory)
    (tmp_path / "now").mkdir()
    with network_of(tmp_path / "now", PAIR.replace('["b"]', "[]")) as network:
        told = pytest.raises(LocalError, match="another network with the same name")
        with looked(network, directory) as look, told:
            look()
        with network.connect_blocking(name="feed") as client:
            client.publish_many({"n": n} for n in range(9))
        with looked(network, directory) as look:
            past = look()
        assert {*past.parts} == {"a", "b"}
        assert {*past.positions} == {*past.handover} == {"a"}
        with network.connect_blocking(name="late") as client:
            client.subscribe("TRUE", since=past.positions).wait_started("a", timeout=60)


# -- commands


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def printed(result: Result) -> list[tuple[object, ...]]:
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return [(each["stream"], each["tick"], each["attributes"]["n"]) for each in found]


def with_session_of_tests(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command uses the one session that there is, and leaves it."""

    @contextmanager
    def session_of_tests(*_: object, **__: object) -> Iterator[SparkSession]:
        with told_plainly():
            yield spark

    command = import_module("anabranch.cli.pipeline.history")
    monkeypatch.setattr(command, "spark_session", session_of_tests)


def test_history_is_printed_and_followed_live_without_gap_or_repeat(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_session_of_tests(spark, monkeypatch)
    with followed(tmp_path, PAIR, "n >= 5") as (network, follower):
        client = network.connect_blocking(name="feed")
        client.publish_many({"n": n} for n in range(100))
        archived(network, tmp_path / "archive")
        client.publish_many({"n": n} for n in range(100, 120))
        # These come while the past is being read, or behind it.
        publishing = threading.Thread(
            target=lambda: [client.publish({"n": n}) for n in range(120, 150)]
        )
        publishing.start()
        result = invoke(
            "pipeline", "history", network.addresses[0], "n >= 5",
            "--archive", str(tmp_path / "archive"), "--follow", "--count", "145",
        )  # fmt: skip
        publishing.join()
        client.close()
        expected = [(stream, tick, event["n"]) for stream, tick, _, event in follower.until(145)]
        assert printed(result) == expected


def test_a_damaged_file_is_named_whichever_bit_of_it_is_wrong(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_session_of_tests(spark, monkeypatch)
    directory = tmp_path / "archive"
    with network_of(tmp_path, PAIR) as network, network.connect_blocking(name="feed") as client:
        client.publish_many({"n": n, "text": f"{n * n}"} for n in range(300))
        archived(network, directory)
    (path,) = directory.glob("date=*/stream=*/*.parquet")
    good = path.read_bytes()
    for place in (len(good) // 2, len(good) - 20):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        result = CliRunner().invoke(
            app, ["pipeline", "history", "n >= 0 AND text <> 'x'", "--archive", str(directory)]
        )
        assert result.exit_code == 2
        assert path.name in result.output
