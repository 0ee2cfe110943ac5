"""Copies of other streams: kept like the log, lost without harm, and never in its way."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from anabranch.core.contract import Recovered, RecoveredCopy
from anabranch.model.errors import LocalError
from anabranch.model.names import check_name
from anabranch.store.copies import CopyOptions, CopyWork, Refusal, directory_name, stream_of
from anabranch.store.files import DiskFile, free_bytes
from anabranch.store.store import StoreOptions
from tests.store_parts import (
    SMALL,
    Bench,
    body_of,
    crash_image,
    quick_directory,
    segments_of,
)


@pytest.fixture
def place() -> Iterator[Path]:
    with quick_directory() as path:
        yield path


def bodies(first: int, last: int) -> tuple[bytes, ...]:
    return tuple(body_of(tick) for tick in range(first, last + 1))


def found(directory: Path) -> tuple[Recovered, list[str]]:
    """What a store finds in a directory, and what it notes."""
    bench = Bench(directory)
    bench.store.close()
    assert not bench.ears.errors
    return bench.store.recovered, bench.store.notes


def copies_in(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "copies").iterdir())


def files_of(directory: Path, stream: str) -> list[Path]:
    (copy,) = [path for path in (directory / "copies").iterdir() if stream_of(path.name) == stream]
    return sorted(copy.glob("*.segment"))


def with_copy(directory: Path, *, first: int = 7, last: int = 16) -> None:
    """A store with ten records of its own and a copy of `x`, closed in order."""
    bench = Bench(directory)
    bench.append(10)
    bench.store.open_copy("x", first)
    # Some at a time, so that there are several segments.
    for tick in range(first, last + 1, 3):
        bench.write_copy("x", tick, min(tick + 2, last))
    bench.store.close()
    assert not bench.ears.errors


# -- names

names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60)


@given(names, names)
def test_a_directory_has_a_short_safe_name_that_gives_the_stream_back(one: str, other: str) -> None:
    check_name(one, "a broker", 255)
    name = directory_name(one, 3)
    assert len(name) < 200
    assert name == name.lower()
    assert not set(name) & set("/\\: \0")
    assert not name.startswith(".")
    assert stream_of(name) in {one, ""}
    assert (name == directory_name(other, 3)) == (one == other)


def test_the_longest_name_fits_into_a_file_name() -> None:
    longest = [directory_name(letter * 85, 10**18) for letter in "€日"]
    assert max(map(len, longest)) + len(".damaged") <= 255
    assert longest[0] != longest[1]
    assert stream_of(directory_name("plain-name_1", 2)) == "plain-name_1"
    assert directory_name("Büro 2", 1) == "%42%c3%bcro%202.1"


# -- keeping


def test_a_store_without_copies_is_as_it_was(place: Path) -> None:
    bench = Bench(place / "s")
    bench.write(5)
    bench.store.close()
    assert not (place / "s" / "copies").exists()
    catalog = sqlite3.connect(place / "s" / "catalog.sqlite")
    assert {name for (name,) in catalog.execute("SELECT name FROM sqlite_master")} <= {
        "entry",
        "log",
        "sqlite_autoindex_entry_1",
    }
    catalog.close()
    assert (bench.store.recovered.copies, bench.store.recovered.lost_copies) == ({}, ())


def test_what_was_synced_of_a_copy_is_there_after_a_crash_and_after_an_orderly_end(
    place: Path,
) -> None:
    bench = Bench(place / "s")
    bench.store.open_copy("x", 7)
    bench.store.open_copy("y", 1)
    bench.store.open_copy("empty", 100)
    bench.append(3)
    for first in (7, 9, 12):
        bench.write_copy("x", first, first + 2 if first > 7 else 8)
    bench.write_copy("y", 1, 1)
    image = crash_image(place / "s", place / "image")
    bench.store.close()
    expected = {
        "x": RecoveredCopy(7, 14),
        "y": RecoveredCopy(1, 1),
        "empty": RecoveredCopy(100, 99),
    }
    for directory in (image, place / "s", place / "s"):
        recovered, notes = found(directory)
        assert (recovered.copies, recovered.lost_copies) == (expected, ())
        assert recovered.records == bodies(1, 3)
        assert not notes
    assert len(files_of(place / "s", "x")) > 2


def test_a_copy_goes_on_where_it_ended(place: Path) -> None:
    with_copy(place / "s", last=9)
    for first in (10, 13):
        bench = Bench(place / "s")
        bench.write_copy("x", first, first + 2)
        bench.store.close()
    bench = Bench(place / "s")
    assert bench.read(7, 99, stream="x") == bodies(7, 15)
    assert bench.read(11, 12, stream="x") == bodies(11, 12)
    assert bench.read(6, 9, stream="x") == ()
    assert bench.read(16, 20, stream="x") == ()
    assert bench.read(1, 1, stream="nobody") == ()
    assert next(piece.first_tick for piece in bench.store.pieces("x")) == 7
    assert bench.read(1, 2) == bodies(1, 2)
    bench.store.close()


def test_records_of_a_copy_have_the_owner_of_its_stream(place: Path) -> None:
    with_copy(place / "s")
    bench = Bench(place / "s")
    bench.store.open_copy("z", 7)
    bench.write_copy("z", 7, 16)
    bench.store.close()
    shutil.copy(files_of(place / "s", "x")[0], files_of(place / "s", "z")[0])
    assert found(place / "s")[0].lost_copies == ("z",)


def test_misuse_is_refused(place: Path) -> None:
    bench = Bench(place / "s")
    bench.store.open_copy("x", 7)
    misuses: list[Callable[[], object]] = [
        lambda: bench.store.open_copy("x", 7),
        lambda: bench.store.open_copy("y", 0),
        lambda: bench.store.open_copy("", 1),
        lambda: bench.store.drop_copy("y"),
        lambda: bench.store.append(8, b"", "x"),
        lambda: bench.store.append(1, b"", "y"),
    ]
    for misuse in misuses:
        with pytest.raises(LocalError):
            misuse()
    bench.store.close()


# -- opening and dropping


def test_a_dropped_copy_is_gone_and_can_begin_elsewhere(place: Path) -> None:
    with_copy(place / "s")
    bench = Bench(place / "s")
    bench.store.drop_copy("x")
    bench.settle()
    assert copies_in(place / "s") == []
    assert bench.read(7, 8, stream="x") == ()
    bench.store.open_copy("x", 100)
    bench.write_copy("x", 100, 102)
    bench.store.drop_copy("x")
    bench.store.open_copy("x", 2)
    bench.write_copy("x", 2, 5)
    image = crash_image(place / "s", place / "image")
    assert bench.read(2, 9, stream="x") == bodies(2, 5)
    bench.store.close()
    for directory in (image, place / "s"):
        assert found(directory)[0].copies == {"x": RecoveredCopy(2, 5)}
    bench = Bench(place / "s")
    bench.store.drop_copy("x")
    bench.settle()
    bench.store.close()
    assert found(place / "s")[0].copies == {}


def test_a_drop_and_an_opening_in_one_batch_replace_the_copy(place: Path) -> None:
    with_copy(place / "s")
    bench = Bench(place / "s")
    bench.append_copy("x", 17, 18)
    bench.store.drop_copy("x")
    bench.store.open_copy("x", 50)
    bench.append_copy("x", 50, 51)
    bench.store.drop_copy("x")
    bench.store.open_copy("x", 30)
    bench.write_copy("x", 30, 32)
    bench.store.open_copy("y", 1)
    bench.append_copy("y", 1, 2)
    bench.store.drop_copy("y")
    bench.ears.wait_synced(bench.sync())
    bench.settle()
    assert len(copies_in(place / "s")) == 1
    bench.store.close()
    assert found(place / "s")[0].copies == {"x": RecoveredCopy(30, 32)}


def test_an_opening_without_a_commit_leaves_nothing(place: Path) -> None:
    """What a crash leaves between the first record of a new copy and its row."""
    with_copy(place / "s")
    shutil.copytree(place / "s" / "copies" / "x.1", place / "s" / "copies" / "y.2")
    recovered, notes = found(place / "s")
    assert ([*recovered.copies], recovered.lost_copies, notes) == (["x"], (), [])
    assert copies_in(place / "s") == ["x.1"]


def test_an_interrupted_replacement_leaves_the_old_copy(place: Path) -> None:
    with_copy(place / "s")
    shutil.copytree(place / "s" / "copies" / "x.1", place / "s" / "copies" / "x.2")
    recovered, _ = found(place / "s")
    assert recovered.copies == {"x": RecoveredCopy(7, 16)}
    assert copies_in(place / "s") == ["x.1"]


def test_a_new_copy_never_takes_the_directory_of_another(place: Path) -> None:
    with_copy(place / "s")
    (place / "s" / "copies" / "x.8.damaged").mkdir()
    bench = Bench(place / "s")
    bench.store.drop_copy("x")
    bench.store.open_copy("x", 7)
    bench.write_copy("x", 7, 8)
    bench.store.close()
    assert copies_in(place / "s") == ["x.8.damaged", "x.9"]


# -- deletion


def test_whole_segments_of_a_copy_are_deleted(place: Path) -> None:
    with_copy(place / "s", first=7, last=26)
    bench = Bench(place / "s")
    before = len(files_of(place / "s", "x"))
    bench.store.forget(15, "x")
    bench.settle()
    after = files_of(place / "s", "x")
    assert 0 < len(after) < before
    first = int(after[0].stem)
    assert 7 < first <= 16
    assert bench.read(7, 7, stream="x") == ()
    assert bench.read(16, 26, stream="x") == bodies(16, 26)
    bench.store.close()
    assert found(place / "s")[0].copies == {"x": RecoveredCopy(first, 26)}


def test_an_interrupted_deletion_is_finished_by_the_next_start(place: Path) -> None:
    with_copy(place / "s", first=7, last=26)
    older = {path: path.read_bytes() for path in files_of(place / "s", "x")}
    bench = Bench(place / "s")
    bench.store.forget(15, "x")
    bench.settle()
    bench.store.close()
    gone = [path for path in older if not path.exists()]
    gone[-1].write_bytes(older[gone[-1]])
    left = {"x": bench.store.recovered.copies["x"]}
    assert left == {"x": RecoveredCopy(7, 26)}
    recovered, _ = found(place / "s")
    assert recovered.copies["x"].first_tick == int(files_of(place / "s", "x")[0].stem) > 7
    assert not gone[-1].exists()


# -- damage


def damage_record(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)


def test_a_torn_end_of_a_copy_is_truncated(place: Path) -> None:
    with_copy(place / "s")
    with files_of(place / "s", "x")[-1].open("ab") as file:
        file.write(b"\xa6\0\0")
    recovered, notes = found(place / "s")
    assert recovered.copies == {"x": RecoveredCopy(7, 16)}
    assert len(notes) == 1
    assert "interrupted write" in notes[0]
    assert found(place / "s")[1] == []


@pytest.mark.parametrize("what", ["record", "head", "middle", "end", "tail", "all"])
def test_a_damaged_copy_is_lost_and_the_broker_starts(place: Path, what: str) -> None:
    with_copy(place / "s")
    files = files_of(place / "s", "x")
    assert len(files) > 3
    if what == "record":
        damage_record(files[1])
    elif what == "tail":
        # The last segment ends before what the catalog knows to be synced.
        os.truncate(files[-1], 31)
    elif what == "all":
        shutil.rmtree(files[0].parent)
    else:
        files[{"head": 0, "middle": 1, "end": -1}[what]].unlink()
    recovered, notes = found(place / "s")
    assert (recovered.copies, recovered.lost_copies) == ({}, ("x",))
    assert recovered.records == bodies(1, 10)
    assert any("lost the copy of stream 'x'" in note for note in notes)
    # It stays lost, without further noise, until the core does something about it.
    assert copies_in(place / "s") == ([] if what == "all" else ["x.1.damaged"])
    recovered, notes = found(place / "s")
    assert (recovered.copies, recovered.lost_copies, notes) == ({}, ("x",), [])


@pytest.mark.parametrize("drops", [True, False])
def test_a_lost_copy_is_dropped_or_opened_again_and_its_remains_stay(
    place: Path, *, drops: bool
) -> None:
    with_copy(place / "s")
    damage_record(files_of(place / "s", "x")[0])
    bench = Bench(place / "s")
    assert bench.store.recovered.lost_copies == ("x",)
    with pytest.raises(LocalError):
        bench.store.append(7, b"", "x")
    if drops:
        bench.store.drop_copy("x")
        bench.settle()
        bench.store.close()
        assert found(place / "s")[0].lost_copies == ()
        bench = Bench(place / "s")
    bench.store.open_copy("x", 5)
    bench.write_copy("x", 5, 9)
    bench.store.close()
    recovered, _ = found(place / "s")
    assert (recovered.copies, recovered.lost_copies) == ({"x": RecoveredCopy(5, 9)}, ())
    assert "x.1.damaged" in copies_in(place / "s")


def test_only_the_newest_damaged_copy_of_a_stream_is_kept(place: Path) -> None:
    with_copy(place / "s")
    for _ in range(3):
        damage_record(files_of_current(place / "s")[0])
        bench = Bench(place / "s")
        bench.store.open_copy("x", 7)
        bench.write_copy("x", 7, 9)
        bench.store.close()
    assert copies_in(place / "s") == ["x.3.damaged", "x.4"]


def files_of_current(directory: Path) -> list[Path]:
    paths = (directory / "copies").glob("x.*")
    (current,) = [path for path in paths if not path.name.endswith(".damaged")]
    return sorted(current.glob("*.segment"))


def test_an_interrupted_setting_aside_is_repeated(place: Path) -> None:
    with_copy(place / "s")
    damage_record(files_of(place / "s", "x")[0])
    found(place / "s")
    (place / "s" / "copies" / "x.1.damaged").rename(place / "s" / "copies" / "x.1")
    assert found(place / "s")[0].lost_copies == ("x",)
    assert copies_in(place / "s") == ["x.1.damaged"]


def test_a_damaged_row_loses_its_copy_and_no_other(place: Path) -> None:
    with_copy(place / "s")
    bench = Bench(place / "s")
    bench.store.open_copy("y", 3)
    bench.write_copy("y", 3, 5)
    bench.store.close()
    change_row(place / "s", "UPDATE copy SET synced = 3 WHERE stream = 'x'")
    for _ in range(2):
        recovered, _ = found(place / "s")
        assert recovered.copies == {"y": RecoveredCopy(3, 5)}
        assert recovered.lost_copies == ("x",)
    assert copies_in(place / "s") == ["x.1.damaged", "y.2"]


def test_a_row_with_a_changed_name_loses_the_copy_in_its_directory(place: Path) -> None:
    with_copy(place / "s")
    change_row(place / "s", "UPDATE copy SET stream = 'q'")
    assert found(place / "s")[0].lost_copies == ("q", "x")
    assert copies_in(place / "s") == ["x.1.damaged"]


def change_row(directory: Path, change: str) -> None:
    catalog = sqlite3.connect(directory / "catalog.sqlite")
    with catalog:
        catalog.execute(change)
    catalog.close()


def test_the_own_log_keeps_its_strict_rule(place: Path) -> None:
    with_copy(place / "s")
    damage_record(segments_of(place / "s")[0])
    with pytest.raises(LocalError):
        Bench(place / "s")
    assert copies_in(place / "s") == ["x.1"]


# -- no space


class Space:
    """As much free space as a test says."""

    def __init__(self, free: int) -> None:
        self.free = free

    def look(self, path: Path) -> int:
        assert free_bytes(path) > 0
        return self.free


def test_a_copy_without_space_refuses_and_the_own_stream_goes_on(place: Path) -> None:
    space = Space(10**9)
    bench = Bench(place / "s", look=space.look)
    bench.store.open_copy("x", 7)
    bench.write_copy("x", 7, 8)
    space.free = 0
    bench.append(5)
    # More than its reserve holds.
    bench.write_copy("x", 9, 18)
    assert bench.ears.refusals == [Refusal("x", 1, 8)]
    # The core does not know yet.
    bench.append(5)
    bench.write_copy("x", 19, 20)
    assert bench.ears.refusals == [Refusal("x", 1, 8)]
    assert not bench.ears.fulls
    assert bench.read(9, 9, stream="x") == ()
    # It tries again, in vain.
    assert bench.store.learn(bench.ears.refusals[0])
    bench.write_copy("x", 9, 18)
    assert bench.ears.refusals[1:] == [Refusal("x", 1, 8)]
    assert bench.store.learn(bench.ears.refusals[1])
    space.free = 10**9
    bench.write_copy("x", 9, 12)
    assert len(bench.ears.refusals) == 2
    image = crash_image(place / "s", place / "image")
    bench.store.close()
    for directory in (image, place / "s"):
        recovered, _ = found(directory)
        assert recovered.copies == {"x": RecoveredCopy(7, 12)}
        assert recovered.records == bodies(1, 10)


def test_a_refusal_is_reported_before_the_sync_that_would_have_covered_it(place: Path) -> None:
    bench = Bench(place / "s", look=Space(0).look)
    bench.store.open_copy("x", 7)
    bench.write_copy("x", 7, 8)
    assert bench.ears.heard == [Refusal("x", 1, 6), 1]
    bench.store.close()
    # The copy is open nevertheless, and has no files.
    assert found(place / "s")[0].copies == {"x": RecoveredCopy(7, 6)}
    assert not (place / "s" / "copies").exists()


def test_a_refusal_of_a_dropped_copy_is_not_reported_to_the_core(place: Path) -> None:
    space = Space(0)
    bench = Bench(place / "s", look=space.look)
    bench.store.open_copy("x", 7)
    bench.write_copy("x", 7, 8)
    bench.store.drop_copy("x")
    bench.store.open_copy("x", 100)
    assert not bench.store.learn(bench.ears.refusals[0])
    space.free = 10**9
    bench.write_copy("x", 100, 101)
    bench.store.close()
    assert found(place / "s")[0].copies == {"x": RecoveredCopy(100, 101)}


class Crowded(DiskFile):
    """A file of a copy for which the file system has no space."""

    has_space = True

    def reserve(self, start: int, end: int) -> bool:
        is_copy = "copies" in self.path.parts
        return (not is_copy or Crowded.has_space) and super().reserve(start, end)


def test_a_file_system_that_refuses_to_reserve_makes_a_copy_refuse(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(place / "s", open_file=Crowded)
    bench.store.open_copy("x", 7)
    monkeypatch.setattr(Crowded, "has_space", False)
    bench.write_copy("x", 7, 8)
    assert bench.ears.refusals == [Refusal("x", 1, 6)]
    assert copies_in(place / "s") == []
    assert bench.store.learn(bench.ears.refusals[0])
    monkeypatch.setattr(Crowded, "has_space", True)
    bench.write_copy("x", 7, 10)
    monkeypatch.setattr(Crowded, "has_space", False)
    bench.write_copy("x", 11, 30)
    bench.append(3)
    bench.settle()
    assert bench.ears.refusals[1:] == [Refusal("x", 1, 10)]
    bench.store.close()
    assert found(place / "s")[0].copies == {"x": RecoveredCopy(7, 10)}


def test_copies_take_no_space_while_the_own_log_is_full(place: Path) -> None:
    class Disk(DiskFile):
        is_full = False

        def reserve(self, start: int, end: int) -> bool:
            return not (Disk.is_full and "log" in self.path.parts) and super().reserve(start, end)

    bench = Bench(place / "s", open_file=Disk)
    bench.store.open_copy("x", 7)
    bench.append()
    bench.write_copy("x", 7, 8)
    Disk.is_full = True
    bench.append(2)
    bench.sync()
    bench.ears.wait_for(lambda: bench.ears.fulls == [True])
    bench.write_copy("x", 9, 30)
    assert bench.ears.refusals == [Refusal("x", 1, 8)]
    Disk.is_full = False
    bench.store.close()


# -- batches


def works(*parts: tuple[str, int, int]) -> CopyWork:
    found = CopyWork()
    for what, first, last in parts:
        part = CopyWork()
        if what == "drop":
            part.is_dropped = True
        elif what == "open":
            part.open_first, part.number = first, last
        else:
            part.append(first, bodies(first, last))
        found.take_in(part)
    return found


def test_batches_merge_to_what_they_do_one_after_the_other() -> None:
    merged = works(("append", 5, 6), ("append", 7, 7))
    assert (merged.first_tick, tuple(merged.records)) == (5, bodies(5, 7))
    # A restart after a refusal: everything before it was refused.
    merged = works(("append", 9, 12), ("append", 5, 6))
    assert (merged.first_tick, tuple(merged.records)) == (5, bodies(5, 6))
    merged = works(("append", 9, 12), ("drop", 0, 0), ("open", 3, 8), ("append", 3, 4))
    assert (merged.is_dropped, merged.open_first, merged.number) == (True, 3, 8)
    assert (merged.first_tick, tuple(merged.records)) == (3, bodies(3, 4))
    merged = works(("open", 3, 8), ("append", 3, 4), ("drop", 0, 0))
    assert (merged.is_dropped, merged.open_first, merged.records) == (True, 0, [])


# -- many


def test_a_thousand_copies_take_few_descriptors_and_little_space(place: Path) -> None:
    options = StoreOptions(copies=CopyOptions(margin_bytes=0))
    count = 1_000
    bench = Bench(place / "s", options=options)
    for number in range(count):
        bench.store.open_copy(f"broker-{number}", 7)
        bench.append_copy(f"broker-{number}", 7, 8)
    bench.ears.wait_synced(bench.sync())
    for number in range(0, count, 7):
        bench.append_copy(f"broker-{number}", 9, 9)
    bench.ears.wait_synced(bench.sync())
    assert not bench.ears.refusals
    assert descriptors(place / "s") <= 3 * options.copies.open_max
    taken = sum(path.stat().st_blocks * 512 for path in (place / "s" / "copies").rglob("*.segment"))
    assert taken <= count * 2 * options.copies.log.reserve_bytes
    image = crash_image(place / "s", place / "image")
    bench.store.close()
    for directory in (image, place / "s"):
        bench = Bench(directory, options=replace(SMALL, copies=options.copies))
        copies = bench.store.recovered.copies
        assert len(copies) == count
        assert copies["broker-7"] == RecoveredCopy(7, 9)
        assert copies["broker-8"] == RecoveredCopy(7, 8)
        assert descriptors(directory) < 10
        bench.store.close()


def descriptors(directory: Path) -> int:
    """The descriptors of this process for files in a directory."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += str(directory) in str(descriptor.readlink())
        except FileNotFoundError:
            continue
    return found
