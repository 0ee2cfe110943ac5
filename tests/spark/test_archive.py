"""An archive holds each event once, exactly as it was published."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import deltalake
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import anabranch
from anabranch.model.errors import LocalError
from anabranch.model.event import INT_MAX, Event, Value
from anabranch.spark.archive import manifest
from anabranch.spark.archive.compaction import compact
from anabranch.spark.archive.manifest import ArchiveConflictError, read_state
from anabranch.spark.archive.reader import ArchiveReader
from anabranch.spark.archive.verification import verify
from anabranch.spark.archive.writer import (
    TASK_TICKS_MIN,
    Answer,
    Archiver,
    TrimmedTicksError,
    archive,
    rounds,
)
from anabranch.spark.survey import SurveyResult
from tests.archive_parts import (
    BOUND_S,
    HERE,
    LOSSY,
    Follower,
    archived,
    followed,
    options_for,
    served,
)
from tests.spark_parts import PAIR, network_of


def same(one: Event, other: Event) -> bool:
    """Equal, and of the same kinds and signs."""
    return one == other and all(repr(one[name]) == repr(other[name]) for name in one)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[anabranch.Embedded, Follower]]:
    with followed(tmp_path_factory.mktemp("pair"), PAIR) as found:
        yield found


STRANGE: list[dict[str, Value]] = [
    {},
    {"price": 12.5, "symbol": "IBM"},
    {"price": 12, "Symbol": "HPQ", "a b": True, "a.b": "x`y", "größe": -0.0},
    {"price": "free", "tick": 7, "stream": "mine", "date": "today"},
    {"price": math.nan, "n": INT_MAX, "nan": -math.inf},
    {"price": True, "n": 2**53 + 1, "text": "\0\n\U0001f600"},
    {f"many {n}": n for n in range(64)},
]


def publish_strange(network: anabranch.Embedded) -> int:
    """Events of all kinds into two streams, and some that are for others only."""
    count = 0
    for place, address in enumerate(network.addresses):
        with anabranch.connect_blocking(address, name=f"feed-{place}") as client:
            for attributes in STRANGE[place:]:
                client.publish(
                    attributes, payload=b"p" * place, content_type="t/x", priority=place,
                    correlation_id=f"c{place}", hop_limit=7, timestamp=1_500_000_000,
                )  # fmt: skip
                client.publish(attributes, time_limit=3_600)
                client.publish({"secret": 1}, destinations=["somebody"])
                count += 2
    return count


def test_an_archive_is_to_the_last_bit_what_a_durable_subscriber_got(
    spark: SparkSession, pair: tuple[anabranch.Embedded, Follower], tmp_path: Path
) -> None:
    network, follower = pair
    count = publish_strange(network)
    ticks: list[tuple[int, int]] = []
    first = archive(
        spark, tmp_path, options_for(network), progress=lambda done, of: ticks.append((done, of))
    )
    assert first.rows == count
    assert ticks[-1] == (first.ticks, first.ticks)
    # A stream with a hundred times the others' volume, and one that stays as it is.
    with anabranch.connect_blocking(network.addresses[0], name="busy") as client:
        client.publish_many({"n": n, "price": n / 4, "late": n} for n in range(3_000))
    second = archived(network, tmp_path)
    assert (second.rows, second.commits) == (3_000, 1)
    assert archived(network, tmp_path).commits == 0
    expected = follower.until(count + 3_000)
    found = served(tmp_path)
    assert [each[:3] for each in found] == [each[:3] for each in expected]
    assert all(same(one[3], other[3]) for one, other in zip(found, expected, strict=True))
    assert verify(tmp_path).problems == []
    # Anybody's reader: the kinds of an attribute are columns of their own.
    table = ds.dataset(tmp_path, partitioning="hive", format="parquet").to_table()
    assert len(table) == count + 3_000
    frame = spark.read.option("mergeSchema", "true").parquet(str(tmp_path))
    assert frame.where("price > 700 and stream = 'a'").count() == 199
    assert frame.where("price__text = 'free'").count() == 4
    assert {"price__integer", "price__truth", "attributes.tick", "many 63"} < {*frame.columns}


def test_two_kinds_that_are_new_at_once_in_two_streams_agree_on_the_names(tmp_path: Path) -> None:
    with network_of(tmp_path, PAIR) as network:
        prices: list[list[Value]] = [["free"] * 3, [2.5] * 9]
        for address, some in zip(network.addresses, prices, strict=True):
            with anabranch.connect_blocking(address, name=f"feed {address}") as client:
                client.publish_many({"price": price, "N": 1} for price in some)
        directory = tmp_path / "archive"
        assert archived(network, directory).rows == 12
        names = {each.pair: each.name for each in read_state(directory).columns}
        assert names[("price", "float")] == "price"
        assert names[("price", "text")] == "price__text"
        assert verify(directory).problems == []
        assert [each[3]["price"] for each in served(directory)] == ["free"] * 3 + [2.5] * 9


def test_a_compacted_archive_holds_the_same_in_fewer_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    with network_of(tmp_path, PAIR) as network:
        directory = tmp_path / "archive"
        with network.connect_blocking(name="feed") as client:
            for part in range(4):
                client.publish_many({"n": n, f"only {part}": n} for n in range(50))
                archived(network, directory)
        before = served(directory)
        done = compact(spark, directory)
        assert (done.before, done.after, done.rows) == (4, 1, 200)
        assert served(directory) == before
        chosen = anabranch.Filter.parse("[only 2] > 40")
        assert served(directory, str(chosen)) == [
            each for each in before if chosen.matches(each[3])
        ]
        assert verify(directory).problems == []
        assert len(ds.dataset(directory, partitioning="hive", format="parquet").to_table()) == 200
        # What was replaced stays for readers, and goes when its time has come.
        assert len(verify(directory).unnamed) == 4
        assert len(manifest.settle(directory, read_state(directory).files, old_kept_s=0.0)) == 4
        assert verify(directory).unnamed == []
        archived(network, directory)


def test_watching_goes_on_with_what_comes_and_joins_small_files(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    with network_of(tmp_path, PAIR) as network, network.connect_blocking(name="feed") as client:
        rounds_done: list[int] = []

        def pause() -> bool:
            first = 20 * len(rounds_done)
            client.publish_many({"n": n} for n in range(first, first + 20))
            return len(rounds_done) < 6

        with Archiver(HERE, directory, options_for(network)) as archiver:
            archiver.watch(pause, lambda done: rounds_done.append(done.rows), compact_every=4)
        assert rounds_done == [0, 20, 20, 20, 20, 20]
        assert len(read_state(directory).files) < 5
        assert [each[3]["n"] for each in served(directory)] == [*range(100 + 20)][20:]


def test_a_cursor_keeps_the_log_from_forgetting_what_is_not_archived(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    forgetful = PAIR.replace("keep_s = 86_400.0", "done_every_s = 0.05")
    with (
        network_of(tmp_path, forgetful) as network,
        anabranch.connect_blocking(network.addresses[0], name="feed") as client,
    ):
        archived(network, directory, durableSubscription="archive")
        client.publish_many({"n": n} for n in range(2_000))
        assert archived(network, directory, durableSubscription="archive").rows == 2_000
        # Once archived, it may go.
        with anabranch.Fetcher(network.addresses[0]) as fetcher:
            deadline = time.monotonic() + BOUND_S
            while fetcher.describe().oldest < 2_000:
                assert time.monotonic() < deadline


def test_the_newest_commits_are_read_with_and_without_their_snapshot(tmp_path: Path) -> None:
    with network_of(tmp_path, PAIR) as network:
        directory = tmp_path / "archive"
        archived(network, directory)
    state = read_state(directory)
    for number in range(state.number + 1, 70):
        state = manifest.append_commit(
            directory, state, manifest.Commit(number=number, kind="append")
        )
    assert read_state(directory) == state
    (snapshot,) = manifest.commits_directory(directory).glob("*.snapshot.json")
    snapshot.write_text("{")
    assert read_state(directory) == state


# -- what goes wrong


def test_ticks_that_the_log_forgot_are_an_error_with_their_range_or_are_recorded(
    tmp_path: Path,
) -> None:
    with network_of(tmp_path, LOSSY) as network, network.connect_blocking(name="feed") as client:
        directory = tmp_path / "archive"
        client.publish_many({"n": n} for n in range(200))
        archived(network, directory)
        last = read_state(directory).ranges["a"][1]
        client.publish_many({"n": n} for n in range(200, 3_000))
        with anabranch.Fetcher(*network.addresses) as fetcher:
            oldest = fetcher.describe().oldest
        assert oldest > last + 1
        with pytest.raises(TrimmedTicksError) as caught:
            archived(network, directory)
        assert caught.value.span == manifest.Span("a", last + 1, oldest - 1)
        assert f"ticks {last + 1} to {oldest - 1} of stream 'a'" in str(caught.value)
        report = archived(network, directory, missing="record")
        assert report.missing == [caught.value.span]
        assert ArchiveReader(directory).missing(manifest.Span("a", 1, 10**6)) == report.missing
        assert verify(directory).problems == []
        assert [each[3]["n"] for each in served(directory)][-1] == 2_999


def test_of_two_archivers_one_works_and_the_other_is_told_who_does(tmp_path: Path) -> None:
    with network_of(tmp_path, PAIR) as network:
        directory = tmp_path / "archive"
        with Archiver(HERE, directory, options_for(network)) as first:
            with pytest.raises(LocalError, match="is being written by process"):
                archived(network, directory)
            first.run()


def test_where_locks_do_not_work_the_second_commit_of_a_number_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    with network_of(tmp_path, PAIR) as network, ExitStack() as stack:
        directory = tmp_path / "archive"
        client = stack.enter_context(network.connect_blocking(name="feed"))
        first = stack.enter_context(Archiver(HERE, directory, options_for(network)))
        second = stack.enter_context(Archiver(HERE, directory, options_for(network)))
        client.publish_many({"n": n} for n in range(50))
        assert first.run().rows == 50
        with pytest.raises(ArchiveConflictError, match="commit 1 of the archive"):
            second.run()
        assert [each[3]["n"] for each in served(directory)] == [*range(50)]


def test_files_that_tasks_wrote_where_nobody_else_sees_them_are_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Archiver._answers

    def written_elsewhere(
        self: Archiver, parts: list[manifest.Span], seen: SurveyResult
    ) -> list[Answer]:
        answers = real(self, parts, seen)
        for path in self.directory.glob("date=*/stream=*/_*.part"):
            path.unlink()
        return answers

    directory = tmp_path / "archive"
    with network_of(tmp_path, PAIR) as network, network.connect_blocking(name="feed") as client:
        client.publish_many({"n": n} for n in range(50))
        with monkeypatch.context() as patched:
            patched.setattr(Archiver, "_answers", written_elsewhere)
            with pytest.raises(LocalError, match="on a shared file system"):
                archived(network, directory)
        assert read_state(directory).number == 0
        assert archived(network, directory).rows == 50


def test_a_commit_that_repeats_a_range_changes_nothing_and_one_that_overlaps_is_refused() -> None:
    span = manifest.Span
    state = manifest.State(ranges={"a": (5, 20)})
    assert not manifest.unseen(state, [span("a", 5, 20)])
    assert not manifest.unseen(state, [span("a", 11, 12)])
    assert manifest.unseen(state, [span("a", 21, 21), span("b", 3, 9)])
    with pytest.raises(LocalError, match="from tick 21 on"):
        manifest.unseen(state, [span("a", 20, 25)])
    with pytest.raises(LocalError, match="from tick 21 on"):
        manifest.unseen(state, [span("a", 23, 25)])


def test_a_damaged_file_is_named_by_verify_and_by_whoever_reads_it(tmp_path: Path) -> None:
    with network_of(tmp_path, PAIR) as network:
        directory = tmp_path / "archive"
        with network.connect_blocking(name="feed") as client:
            client.publish_many({"n": n, "text": f"text {n}"} for n in range(500))
        archived(network, directory)
    (file,) = read_state(directory).files.values()
    path = directory / file.path
    good = path.read_bytes()
    for place in (10, len(good) // 2, len(good) - 30):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x40]) + good[place + 1 :])
        (problem,) = verify(directory).problems
        assert path.name in problem
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(LocalError, match=f"{path.name} is damaged"):
        served(directory)
    path.unlink()
    with pytest.raises(LocalError, match=f"{path.name} is missing"):
        served(directory)
    assert f"{path.name} is missing" in verify(directory).problems[0]


def test_what_is_no_archive_or_another_ones_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="is not an archive"):
        ArchiveReader(tmp_path)
    with network_of(tmp_path, PAIR) as network:
        archived(network, tmp_path / "archive")
        with pytest.raises(LocalError, match="no stream 'c'"):
            archived(network, tmp_path / "archive", streams="c")
    told = pytest.raises(LocalError, match="an archive of network 'pair'")
    with network_of(tmp_path, LOSSY) as other, told:
        archived(other, tmp_path / "archive")
    commit = manifest.commits_directory(tmp_path / "archive") / f"{1:020}.json"
    commit.write_text('{"number": 1')
    with pytest.raises(LocalError, match="modified or damaged"):
        read_state(tmp_path / "archive")


def test_every_round_lets_every_stream_get_on_and_a_busy_one_has_more_tasks() -> None:
    spans = [manifest.Span("busy", 1, 100 * TASK_TICKS_MIN), manifest.Span("calm", 1, 1_000)]
    all_rounds = [*rounds(spans, cores=1)]
    assert len(all_rounds) > 1
    busy = [part for each in all_rounds for part in each if part.stream == "busy"]
    ticks = [tick for part in busy for tick in (part.first, part.last)]
    assert "calm" in [part.stream for part in all_rounds[0]]
    assert len(busy) > 4
    assert ticks == sorted(ticks)
    assert ticks[-1] == 100 * TASK_TICKS_MIN


def test_without_its_library_delta_is_an_error_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    directory = tmp_path / "archive"
    with network_of(tmp_path, PAIR) as network, network.connect_blocking(name="feed") as client:
        for _ in range(2):
            client.publish({"n": 1})
            archived(network, directory)
        told = pytest.raises(LocalError, match="needs delta-rs: `pip install")
        with told, Archiver(HERE, directory, options_for(network), is_delta=True):
            pass
    with pytest.raises(LocalError, match="needs delta-rs"):
        compact(HERE, directory, is_delta=True)
    assert len(read_state(directory).files) == 2


def test_a_delta_table_follows_the_archive(tmp_path: Path) -> None:
    with network_of(tmp_path, PAIR) as network, network.connect_blocking(name="feed") as client:
        directory = tmp_path / "archive"
        for part in range(3):
            client.publish_many({"n": n, f"only{part}": n} for n in range(50))
            with Archiver(HERE, directory, options_for(network), is_delta=True) as archiver:
                archiver.run()
        # One commit that the table was not told of.
        client.publish_many({"n": n} for n in range(50))
        archived(network, directory)
        compact(HERE, directory, is_delta=True)
    table = deltalake.DeltaTable(str(directory))
    assert table.transaction_version("anabranch") == read_state(directory).number
    assert len(table.to_pyarrow_table()) == 200
    assert len(table.file_uris()) == 1
