"""The store: what it said is synced is there again, and everything else is in order."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from anabranch.core.contract import DamagedRecord
from anabranch.model.errors import LocalError
from anabranch.store.segment import CorruptError
from tests.store_parts import (
    Bench,
    body_of,
    crash_image,
    quick_directory,
    reopened,
    segments_of,
)


@pytest.fixture
def place() -> Iterator[Path]:
    with quick_directory() as path:
        yield path


def bodies(first: int, last: int) -> list[bytes]:
    return [body_of(tick) for tick in range(first, last + 1)]


# -- records


def test_a_new_store_is_empty_and_begins_with_tick_1(place: Path) -> None:
    bench = Bench(place / "s")
    assert bench.store.recovered.records == ()
    assert (bench.store.recovered.first_tick, bench.store.notes) == (1, [])
    bench.store.close()


def test_what_was_synced_is_there_after_a_crash_and_after_an_orderly_end(place: Path) -> None:
    bench = Bench(place / "s")
    for count in (1, 4, 2, 7):
        bench.write(count)
    image = crash_image(place / "s", place / "image")
    bench.store.close()
    assert len(segments_of(place / "s")) > 3
    assert reopened(image)[0] == bodies(1, 14)
    assert reopened(place / "s") == (bodies(1, 14), [])


def test_a_store_goes_on_where_it_ended(place: Path) -> None:
    for _ in range(4):
        bench = Bench(place / "s")
        bench.write(3)
        bench.store.close()
    assert reopened(place / "s") == (bodies(1, 12), [])


def test_appends_without_a_sync_are_written_when_the_store_is_closed(place: Path) -> None:
    bench = Bench(place / "s")
    bench.append(3)
    bench.store.close()
    assert reopened(place / "s")[0] == bodies(1, 3)


def test_numbers_are_told_in_order_and_the_last_one_always(place: Path) -> None:
    bench = Bench(place / "s")
    for _ in range(200):
        bench.append()
        last = bench.sync()
    bench.ears.wait_synced(last)
    assert bench.ears.numbers == sorted(bench.ears.numbers)
    bench.store.close()


def test_only_the_records_that_are_needed_are_recovered(place: Path) -> None:
    bench = Bench(place / "s")
    bench.store.put("t", "k", b"v")
    bench.write(9)
    bench.store.close()
    asked = []

    def needed_from(catalog: Mapping[str, Mapping[str, bytes]]) -> int:
        asked.append(catalog["t"]["k"])
        return 6

    bench = Bench(place / "s", needed_from=needed_from)
    recovered = bench.store.recovered
    assert asked == [b"v"]
    assert (recovered.first_tick, recovered.records_first) == (1, 6)
    assert [*recovered.records] == bodies(6, 9)
    bench.store.close()


@pytest.mark.parametrize(("wanted", "first"), [(-5, 1), (10, 10), (99, 10)])
def test_needs_outside_the_log_are_brought_into_it(place: Path, wanted: int, first: int) -> None:
    bench = Bench(place / "s")
    bench.write(9)
    bench.store.close()
    bench = Bench(place / "s", needed_from=lambda _catalog: wanted)
    assert bench.store.recovered.records_first == first
    assert len(bench.store.recovered.records) == 10 - first
    bench.store.close()


# -- reading


def test_records_are_read_by_tick_across_segments(place: Path) -> None:
    bench = Bench(place / "s")
    bench.write(20)
    for first in range(1, 21):
        for last in (first, first + 3, 20, 99):
            assert [*bench.read(first, last)] == bodies(first, min(last, 20))
    assert bench.read(21, 30) == bench.read(0, 5) == ()
    bench.store.close()


def test_a_read_is_bounded_in_bytes_but_brings_one_record_at_least(place: Path) -> None:
    bench = Bench(place / "s")
    bench.write(10)
    assert [*bench.read(3, 9, bytes_max=1)] == bodies(3, 3)
    assert [*bench.read(3, 9, bytes_max=16)] == bodies(3, 4)
    assert [*bench.read(3, 9, bytes_max=23)] == bodies(3, 4)
    bench.store.close()


def test_records_larger_than_what_is_read_at_once_come_back(place: Path) -> None:
    bench = Bench(place / "s")
    large = [os.urandom(size) for size in (300_000, 5, 700_000, 262_144)]
    for tick, record in enumerate(large, 1):
        bench.store.append(tick, record)
    bench.ears.wait_synced(bench.sync())
    assert [*bench.read(1, 4)] == large
    assert [*bench.read(3, 3)] == large[2:3]
    bench.store.close()
    assert reopened(place / "s")[0] == large


# -- deletion


def test_forgetting_deletes_whole_segments_and_never_the_last(place: Path) -> None:
    bench = Bench(place / "s")
    for _ in range(6):
        bench.write(2)
    bench.settle()
    names = [int(path.stem) for path in segments_of(place / "s")]
    assert len(names) > 3
    bench.forget(names[2] - 2)
    assert [int(path.stem) for path in segments_of(place / "s")] == names[1:]
    assert bench.read(1, 99) == ()
    assert [*bench.read(names[1], 99)] == bodies(names[1], 12)
    bench.forget(99)
    assert [int(path.stem) for path in segments_of(place / "s")] == names[-1:]
    bench.store.close()
    bench = Bench(place / "s")
    assert bench.store.recovered.first_tick == names[-1]
    assert bench.tick == 12
    assert len([*(place / "s" / "log").iterdir()]) == 1
    bench.store.close()


# -- the catalog


def test_puts_are_kept_and_none_forgets(place: Path) -> None:
    bench = Bench(place / "s")
    bench.store.put("cursors", "x", b"1")
    bench.store.put("cursors", "y", b"2")
    bench.store.put("stream", "é", b"\0")
    bench.ears.wait_synced(bench.sync())
    bench.store.put("cursors", "x", b"3")
    bench.store.put("cursors", "y", None)
    bench.ears.wait_synced(bench.sync())
    image = crash_image(place / "s", place / "image")
    bench.store.close()
    for path in (place / "s", image):
        bench = Bench(path)
        assert bench.store.recovered.catalog == {"cursors": {"x": b"3"}, "stream": {"é": b"\0"}}
        bench.store.close()


def test_a_row_whose_bytes_were_changed_is_told_apart_and_the_log_is_read_as_a_whole(
    place: Path,
) -> None:
    bench = Bench(place / "s")
    bench.store.put("cursors", "key", b"precious-value")
    bench.write(3)
    bench.store.close()
    path = place / "s" / "catalog.sqlite"
    path.write_bytes(path.read_bytes().replace(b"precious-value", b"precious-valuf"))
    again = Bench(place / "s", needed_from=lambda _: 1 << 40)
    (damaged,) = again.store.recovered.damaged
    assert damaged == DamagedRecord(
        "cursors", "key", b"precious-valuf", "it was changed after it was written"
    )
    assert again.store.recovered.catalog == {}
    assert len(again.store.recovered.records) == 3
    again.store.put("cursors", "key", None)
    again.ears.wait_synced(again.sync())
    again.store.close()
    third = Bench(place / "s")
    assert third.store.recovered.damaged == ()
    third.store.close()


def test_a_catalog_that_is_no_database_is_refused(place: Path) -> None:
    Bench(place / "s").store.close()
    (place / "s" / "catalog.sqlite").write_bytes(b"garbage" * 1_000)
    with pytest.raises(LocalError, match=r"catalog.sqlite cannot be read"):
        Bench(place / "s")


# -- whose directory


def test_a_directory_in_use_is_refused_and_says_by_whom(place: Path) -> None:
    bench = Bench(place / "s")
    with pytest.raises(LocalError, match=f"in use by process {os.getpid()}, broker b of network n"):
        Bench(place / "s")
    bench.store.close()
    Bench(place / "s").store.close()


@pytest.mark.parametrize(("network", "broker"), [("other", "b"), ("n", "other")])
def test_a_directory_of_another_network_or_broker_is_refused(
    place: Path, network: str, broker: str
) -> None:
    Bench(place / "s").store.close()
    with pytest.raises(LocalError, match="belongs to broker 'b' of network 'n'"):
        Bench(place / "s", network=network, broker=broker)


def test_a_segment_of_another_broker_is_corrupt(place: Path) -> None:
    for name in ("b", "c"):
        bench = Bench(place / name, broker=name)
        bench.write(2)
        bench.store.close()
    segments_of(place / "b")[0].write_bytes(segments_of(place / "c")[0].read_bytes())
    with pytest.raises(CorruptError, match="log of another broker"):
        Bench(place / "b")


def test_a_path_that_cannot_be_a_directory_is_refused_in_words(place: Path) -> None:
    (place / "file").write_text("x")
    with pytest.raises(LocalError, match=r"file cannot be used: (File exists|Not a directory)"):
        Bench(place / "file")
    with pytest.raises(LocalError, match="cannot be used: Not a directory"):
        Bench(place / "file" / "below")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_an_unreadable_directory_is_refused_in_words(tmp_path: Path) -> None:
    Bench(tmp_path / "s").store.close()
    (tmp_path / "s").chmod(0)
    with pytest.raises(LocalError, match="cannot be used: Permission denied"):
        Bench(tmp_path / "s")
    (tmp_path / "s").chmod(0o700)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("identity.toml", "identity.toml, which names its owner, is missing"),
        ("catalog.sqlite", "catalog.sqlite is missing"),
    ],
)
def test_a_directory_from_which_something_was_taken_is_refused(
    place: Path, name: str, complaint: str
) -> None:
    bench = Bench(place / "s")
    bench.write(3)
    bench.store.close()
    (place / "s" / name).unlink()
    with pytest.raises(LocalError, match=complaint):
        Bench(place / "s")


def test_names_that_need_quoting_are_kept(place: Path) -> None:
    for _ in range(2):
        Bench(place / "s", network='a "b" \\ c', broker="é\\").store.close()


def test_a_broker_that_cannot_use_what_is_recovered_leaves_the_directory_free(place: Path) -> None:
    def refuse(_catalog: Mapping[str, Mapping[str, bytes]]) -> int:
        raise LocalError("not mine")

    with pytest.raises(LocalError, match="not mine"):
        Bench(place / "s", needed_from=refuse)
    Bench(place / "s").store.close()


# -- long logs


def test_a_log_that_does_not_fit_in_memory_is_read_piece_by_piece(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(place / "s")
    bench.write(200)
    bench.store.close()
    whole = Bench(place / "s")
    expected = tuple(whole.store.recovered.records)
    whole.store.close()
    monkeypatch.setattr("anabranch.store.store._EAGER_BYTES", 100)
    again = Bench(place / "s")
    records = again.store.recovered.records
    assert not isinstance(records, tuple)
    assert (len(records), again.tick) == (200, 200)
    assert tuple(records) == tuple(records) == expected
    assert (records[0], records[-1], records[5:7]) == (expected[0], expected[-1], expected[5:7])
    again.store.close()
