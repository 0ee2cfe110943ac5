"""Cutting off copies, beginning the own log anew, and the rows of copies."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from anabranch.core.contract import Recovered, RecoveredCopy
from anabranch.model.errors import LocalError
from anabranch.store import log, store
from anabranch.store.catalog import Catalog, CatalogFullError
from anabranch.store.copies import CopyWork, Refusal
from anabranch.store.files import DiskFile
from anabranch.store.log import delete_log, records_after
from tests.store_parts import SMALL, Bench, body_of, crash_image, quick_directory, segments_of


@pytest.fixture
def place() -> Iterator[Path]:
    with quick_directory() as path:
        yield path


def bodies(first: int, last: int) -> tuple[bytes, ...]:
    return tuple(body_of(tick) for tick in range(first, last + 1))


def found(directory: Path) -> Recovered:
    """What a store finds in a directory, without a complaint."""
    bench = Bench(directory)
    bench.store.close()
    assert not bench.ears.errors
    assert not bench.store.notes
    return bench.store.recovered


def copies_in(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "copies").iterdir())


def with_copy(bench: Bench, *, first: int = 7, last: int = 16) -> None:
    """A copy of `x` with several segments."""
    bench.store.open_copy("x", first)
    for tick in range(first, last + 1, 3):
        bench.write_copy("x", tick, min(tick + 2, last))


# -- cuts


@pytest.mark.parametrize("tick", range(6, 17))
def test_a_copy_is_cut_after_any_tick_and_goes_on_with_other_records(
    place: Path, tick: int
) -> None:
    bench = Bench(place / "s")
    with_copy(bench)
    bench.store.cut_copy("x", tick)
    assert bench.read(7, 99, stream="x") == bodies(7, tick)
    bench.settle()
    assert len(copies_in(place / "s")) == (tick > 6)
    image = crash_image(place / "s", place / "image")
    for number in range(tick + 1, tick + 5):
        bench.store.append(number, b"else" + number.to_bytes(4), "x")
        bench.settle()
    again = tuple(b"else" + number.to_bytes(4) for number in range(tick + 1, tick + 5))
    assert bench.read(7, 99, stream="x") == bodies(7, tick) + again
    bench.store.close()
    assert found(image).copies == {"x": RecoveredCopy(7, tick)}
    for _ in range(2):
        assert found(place / "s").copies == {"x": RecoveredCopy(7, tick + 4)}
    bench = Bench(place / "s")
    assert bench.read(7, 99, stream="x") == bodies(7, tick) + again
    bench.store.close()


def test_a_copy_that_begins_after_a_deletion_is_cut(place: Path) -> None:
    bench = Bench(place / "s")
    with_copy(bench, last=30)
    bench.store.forget(18, "x")
    bench.settle()
    first = bench.store.pieces("x")[0].first_tick
    assert 7 < first <= 19
    bench.store.cut_copy("x", 25)
    bench.settle()
    bench.store.cut_copy("x", 22)
    bench.settle()
    assert bench.read(first, 99, stream="x") == bodies(first, 22)
    bench.store.close()
    assert found(place / "s").copies == {"x": RecoveredCopy(first, 22)}
    assert len(copies_in(place / "s")) == 1


def test_full_segments_of_a_copy_that_is_cut_are_not_written_again(place: Path) -> None:
    bench = Bench(place / "s")
    with_copy(bench, last=40)
    before = {piece.path.name: piece.path.stat().st_ino for piece in bench.store.pieces("x")}
    bench.store.cut_copy("x", 35)
    bench.settle()
    after = {piece.path.name: piece.path.stat().st_ino for piece in bench.store.pieces("x")}
    *same, last = sorted(after)
    assert len(same) > 5
    assert all(after[name] == before[name] for name in same)
    assert after[last] != before[last]
    bench.store.close()


def test_a_file_system_without_second_names_copies_the_segments(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_old: Path, _new: Path) -> None:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "link", refuse)
    bench = Bench(place / "s")
    with_copy(bench)
    bench.store.cut_copy("x", 14)
    bench.settle()
    assert bench.read(7, 99, stream="x") == bodies(7, 14)
    bench.store.close()
    assert found(place / "s").copies == {"x": RecoveredCopy(7, 14)}


def test_a_reader_of_a_copy_that_is_cut_gets_fewer_records(place: Path) -> None:
    bench = Bench(place / "s")
    with_copy(bench, last=30)
    pieces = bench.store.pieces("x")
    reading = records_after(pieces, 7)
    assert next(reading) == (7, body_of(7))
    bench.store.cut_copy("x", 10)
    bench.settle()
    # It has the first segment open, and does not find the next one.
    rest = list(reading)
    assert rest == list(enumerate(bodies(8, 7 + len(rest)), 8))
    assert len(rest) < 10
    assert not list(records_after(pieces, 7))
    bench.store.close()


def test_a_cut_and_the_puts_around_it_survive_together(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(place / "s")
    with_copy(bench)
    images: list[Path] = []
    commit = Catalog.commit

    def pictured(self: Catalog, *arguments: object) -> None:
        images.append(crash_image(place / "s", place / f"image-{len(images)}"))
        commit(self, *arguments)  # type: ignore[arg-type]
        images.append(crash_image(place / "s", place / f"image-{len(images)}"))

    monkeypatch.setattr(Catalog, "commit", pictured)
    bench.store.put("t", "k", b"before")
    bench.store.cut_copy("x", 11)
    bench.store.put("t", "k", b"after")
    bench.settle()
    bench.store.close()
    monkeypatch.undo()
    seen = []
    for image in images:
        recovered = found(image)
        end = recovered.copies["x"].last_tick
        seen.append((end, recovered.catalog.get("t", {}).get("k")))
        assert len(copies_in(image)) == 1
    assert set(seen) == {(16, None), (11, b"after")}
    assert seen[0] == (16, None)


def test_a_cut_waits_for_space(place: Path) -> None:
    class Disk(DiskFile):
        fails = 0

        def write(self, data: bytes, offset: int) -> None:
            if Disk.fails and "copies" in self.path.parts:
                Disk.fails -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            super().write(data, offset)

    bench = Bench(place / "s", open_file=Disk)
    with_copy(bench)
    Disk.fails = 3
    bench.store.cut_copy("x", 11)
    bench.append(2)
    bench.settle()
    assert Disk.fails == 0
    assert bench.ears.fulls == [True, False]
    assert len(copies_in(place / "s")) == 1
    bench.store.close()
    recovered = found(place / "s")
    assert recovered.copies == {"x": RecoveredCopy(7, 11)}
    assert recovered.records == bodies(1, 2)


def test_a_refusal_before_a_cut_concerns_nothing_after_it(place: Path) -> None:
    space = [10**9]
    bench = Bench(place / "s", look=lambda _path: space[0])
    with_copy(bench)
    space[0] = 0
    bench.write_copy("x", 17, 40)
    assert bench.ears.refusals == [Refusal("x", 1, 16)]
    bench.store.cut_copy("x", 10)
    assert not bench.store.learn(bench.ears.refusals[0])
    bench.settle()
    space[0] = 10**9
    bench.write_copy("x", 11, 12)
    assert len(bench.ears.refusals) == 1
    # The other way round: the cut is of what was refused.
    space[0] = 0
    bench.append_copy("x", 13, 40)
    bench.store.cut_copy("x", 20)
    bench.settle()
    assert bench.ears.refusals[1:] == [Refusal("x", 1, 12)]
    assert bench.store.learn(bench.ears.refusals[1])
    space[0] = 10**9
    bench.write_copy("x", 13, 14)
    bench.store.close()
    assert found(place / "s").copies == {"x": RecoveredCopy(7, 14)}


def test_misuse_is_refused(place: Path) -> None:
    bench = Bench(place / "s")
    with_copy(bench)
    for stream, tick in (("x", 17), ("y", 3), ("", 0)):
        with pytest.raises(LocalError):
            bench.store.cut_copy(stream, tick)
    with pytest.raises(LocalError):
        bench.store.reset(0)
    bench.store.close()


def work(*parts: tuple[str, int, int]) -> CopyWork:
    """Batches merged into one."""
    merged = CopyWork()
    for what, first, last in parts:
        part = CopyWork()
        if what == "cut":
            part.cut(first, last)
        elif what == "drop":
            part.is_dropped = True
        elif what == "open":
            part.open_first, part.number = first, last
        else:
            part.append(first, bodies(first, last))
        merged.take_in(part)
    return merged


def test_batches_with_cuts_merge_to_what_they_do_one_after_the_other() -> None:
    merged = work(("append", 11, 20), ("cut", 15, 3), ("append", 16, 17))
    assert (merged.cut_tick, merged.cut_number, merged.first_tick) == (15, 3, 11)
    assert tuple(merged.records) == bodies(11, 17)
    merged = work(("append", 11, 20), ("cut", 8, 3), ("append", 9, 12), ("cut", 10, 4))
    assert (merged.cut_tick, merged.cut_number, merged.first_tick) == (8, 4, 9)
    assert tuple(merged.records) == bodies(9, 10)
    merged = work(("cut", 8, 3), ("drop", 0, 0), ("open", 5, 6), ("append", 5, 9), ("cut", 6, 7))
    assert (merged.cut_number, merged.is_dropped, merged.open_first) == (0, True, 5)
    assert tuple(merged.records) == bodies(5, 6)


# -- the own log


def test_the_log_begins_anew_with_any_tick(place: Path) -> None:
    bench = Bench(place / "s")
    bench.write(10)
    for first in (5001, 1, 3):
        bench.append(3)
        bench.store.put("t", "k", b"%d" % first)
        bench.reset(first)
        bench.settle()
        image = crash_image(place / "s", place / f"image-{first}")
        recovered = found(image)
        assert (recovered.first_tick, recovered.last_tick) == (first, first - 1)
        assert [*recovered.records] == []
        assert recovered.catalog == {"t": {"k": b"%d" % first}}
        assert bench.read(1, 10**4) == ()
        bench.append(5)
        bench.ears.wait_synced(bench.sync())
        assert bench.read(first, 10**4) == bodies(first, first + 4)
    bench.store.close()
    recovered = found(place / "s")
    assert (recovered.first_tick, recovered.last_tick) == (3, 7)
    bench = Bench(place / "s")
    bench.write(10)
    bench.store.close()
    assert [*found(place / "s").records] == [*bodies(3, 17)]


def test_a_new_log_in_one_batch_with_records_copies_and_puts(place: Path) -> None:
    bench = Bench(place / "s")
    with_copy(bench)
    bench.append(4)
    bench.store.put("t", "k", b"before")
    bench.store.cut_copy("x", 9)
    bench.reset(20)
    bench.store.put("t", "k", b"after")
    bench.append(3)
    bench.store.open_copy("y", 3)
    bench.append_copy("y", 3, 4)
    bench.settle()
    image = crash_image(place / "s", place / "image")
    bench.store.close()
    for directory in (image, place / "s"):
        recovered = found(directory)
        assert recovered.records == bodies(20, 22)
        assert recovered.first_tick == 20
        assert recovered.catalog == {"t": {"k": b"after"}}
        assert recovered.copies == {"x": RecoveredCopy(7, 9), "y": RecoveredCopy(3, 4)}


def test_a_crash_leaves_the_old_log_or_the_new_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images: list[Path] = []

    def picture() -> None:
        images.append(crash_image(place / "s", place / f"image-{len(images)}"))

    commit, begin_first = Catalog.commit, log.SegmentedLog._begin_first

    def pictured_commit(self: Catalog, *arguments: object) -> None:
        picture()
        commit(self, *arguments)  # type: ignore[arg-type]
        picture()

    def pictured_deletion(directory: Path) -> None:
        paths = sorted(directory.iterdir())
        for path in (paths[0], paths[-1], *paths[1:-1]):
            path.unlink()
            picture()
        delete_log(directory)

    def pictured_begin(self: log.SegmentedLog, first_tick: int) -> None:
        begin_first(self, first_tick)
        picture()

    bench = Bench(place / "s")
    bench.write(3)
    bench.write(3)
    bench.write(3)
    bench.settle()
    monkeypatch.setattr(Catalog, "commit", pictured_commit)
    monkeypatch.setattr(log, "delete_log", pictured_deletion)
    monkeypatch.setattr(log.SegmentedLog, "_begin_first", pictured_begin)
    bench.store.put("t", "k", b"before")
    bench.reset(4)
    bench.store.put("t", "k", b"after")
    bench.settle()
    monkeypatch.undo()
    bench.write(2)
    bench.store.close()
    seen = []
    for image in images:
        # A torn header too: it is not synced before the file has its name.
        recovered = found(image)
        seen.append((recovered.first_tick, recovered.last_tick))
        put = recovered.catalog.get("t", {}).get("k")
        assert put == (None if recovered.first_tick == 1 else b"after")
        again = found(image)
        assert (again.first_tick, again.last_tick) == seen[-1]
    assert set(seen) == {(1, 9), (4, 3)}
    assert len(seen) > 8
    assert found(place / "s").records == bodies(4, 5)


def test_a_new_log_waits_for_space_in_the_catalog(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(place / "s")
    bench.write(9)
    commit = Catalog.commit
    tries = [0]

    def crowded(self: Catalog, *arguments: object) -> None:
        tries[0] += 1
        if tries[0] not in {3, 6}:
            raise CatalogFullError("no room")
        commit(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Catalog, "commit", crowded)
    bench.reset(4)
    bench.append(2)
    bench.ears.wait_synced(bench.sync())
    monkeypatch.undo()
    assert tries[0] >= 6
    bench.store.close()
    assert found(place / "s").records == bodies(4, 5)


def test_a_reader_of_a_log_that_begins_anew_gets_fewer_records(place: Path) -> None:
    bench = Bench(place / "s")
    bench.write(3)
    bench.write(3)
    pieces = bench.store.pieces()
    bench.reset(1)
    # A segment with the same name, and as long.
    bench.write(3)
    bench.write(3)
    assert pieces[0].path == bench.store.pieces()[0].path
    assert list(records_after(pieces, 1)) == []
    assert bench.read(1, 9) == bodies(1, 6)
    bench.store.close()


def test_a_new_log_is_as_strict_as_any(place: Path) -> None:
    bench = Bench(place / "s")
    bench.write(9)
    bench.reset(5001)
    bench.write(9)
    bench.store.close()
    segments_of(place / "s")[0].unlink()
    bench = Bench(place / "s")
    # What is deleted from the beginning is for the ledger to notice.
    assert bench.store.recovered.first_tick > 5001
    bench.store.close()
    for segment in segments_of(place / "s"):
        segment.unlink()
    with pytest.raises(LocalError, match="missing"):
        Bench(place / "s")


def test_a_damaged_word_about_a_new_log_is_an_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(place / "s")
    bench.write(9)

    def stop(_self: log.SegmentedLog, _tick: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(log.SegmentedLog, "reset", stop)
    bench.reset(5)
    bench.sync()
    bench.ears.wait_failed()
    bench.store.close()
    connection = sqlite3.connect(place / "s" / "catalog.sqlite")
    with connection:
        connection.execute("UPDATE reset SET first = 6")
    connection.close()
    with pytest.raises(LocalError, match="'reset' was changed"):
        Bench(place / "s")


# -- rows


def with_rows(directory: Path) -> Bench:
    bench = Bench(directory)
    for stream in ("w", "x", "y"):
        bench.store.open_copy(stream, 1)
        for key in ("1", "2", "3"):
            bench.store.put("copy_rows", f"{stream}\x1f{key}", key.encode())
    bench.store.put("copy_rowss", "k", b"another table")
    bench.settle()
    return bench


def test_rows_of_copies_are_not_loaded_and_are_read_in_parts(place: Path) -> None:
    with_rows(place / "s").store.close()
    bench = Bench(place / "s")
    assert bench.store.recovered.catalog == {"copy_rowss": {"k": b"another table"}}
    first = bench.read_rows("x\x1f", bytes_max=1)
    assert (first.rows, first.is_last) == ((("x\x1f1", b"1"),), False)
    rest = bench.read_rows("x\x1f", "x\x1f1")
    assert (rest.rows, rest.is_last) == ((("x\x1f2", b"2"), ("x\x1f3", b"3")), True)
    assert bench.read_rows("x\x1f", "x\x1f3").rows == ()
    assert bench.read_rows("z\x1f").rows == ()
    assert len(bench.read_rows("").rows) == 9
    assert bench.read_rows("").is_last
    bench.store.close()


def test_rows_go_with_their_copy_and_no_other_rows(place: Path) -> None:
    bench = with_rows(place / "s")
    bench.store.drop_copy("x")
    bench.store.open_copy("x", 5)
    bench.store.put("copy_rows", "x\x1f9", b"9")
    bench.settle()
    assert bench.read_rows("x\x1f").rows == (("x\x1f9", b"9"),)
    assert len(bench.read_rows("").rows) == 7
    bench.store.drop_copy("y")
    bench.settle()
    assert len(bench.read_rows("").rows) == 4
    bench.store.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entry SET value = x'00' WHERE key = 'x\x1f2'",
        "UPDATE entry SET crc = 7 WHERE key = 'x\x1f2'",
    ],
)
def test_a_damaged_row_stops_no_start_and_is_told_when_it_is_read(place: Path, change: str) -> None:
    with_rows(place / "s").store.close()
    connection = sqlite3.connect(place / "s" / "catalog.sqlite")
    with connection:
        assert connection.execute(change).rowcount == 1
    connection.close()
    bench = Bench(place / "s")
    assert bench.store.recovered.damaged == ()
    assert not bench.read_rows("w\x1f").is_damaged
    found = bench.read_rows("x\x1f")
    assert (found.rows, found.is_damaged) == ((), True)
    # It goes with its copy.
    bench.store.drop_copy("x")
    bench.settle()
    assert not bench.read_rows("").is_damaged
    bench.store.close()


@pytest.mark.parametrize("letter", "\x00vwyz~")
@pytest.mark.parametrize("key", ["1", "2", "3"])
def test_a_row_whose_key_was_changed_in_the_file_is_told(
    place: Path, key: str, letter: str
) -> None:
    """Such a row is in the wrong place of its table, where it could hide others."""
    with_rows(place / "s").store.close()
    path = place / "s" / "catalog.sqlite"
    data = path.read_bytes()
    old = f"copy_rowsx\x1f{key}".encode()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, f"copy_rows{letter}\x1f{key}".encode()))
    bench = Bench(place / "s")
    assert bench.read_rows("x\x1f").is_damaged
    bench.store.close()


def test_a_small_store_has_no_word_about_new_logs(place: Path) -> None:
    bench = Bench(place / "s", options=replace(SMALL))
    bench.write(1)
    bench.store.close()
    connection = sqlite3.connect(place / "s" / "catalog.sqlite")
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert "reset" not in names
    assert store.Batch().reset_tick == 0
