"""Disks that fail and disks that are full: the first error is the last, and no room is no error."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.model.errors import LocalError
from anabranch.store.catalog import Catalog, CatalogFullError, CopyRows, LogFacts, PutRow
from anabranch.store.files import DiskFile
from anabranch.store.log import LogOptions
from anabranch.store.store import StoreOptions, WriterOptions
from tests.store_parts import (
    Bench,
    body_of,
    quick_directory,
    reopened,
    segments_of,
    wait_until,
)


@pytest.fixture
def place() -> Iterator[Path]:
    with quick_directory() as path:
        yield path


ONE_SEGMENT = StoreOptions(
    log=LogOptions(segment_bytes=10**6, reserve_bytes=400), writer=WriterOptions(retry_s=0.01)
)


def bodies(last: int) -> list[bytes]:
    return [body_of(tick) for tick in range(1, last + 1)]


class Disk:
    """Opens files that fail when the test says so, and have as much room as it says."""

    def __init__(self) -> None:
        self.failing = ""
        self.room_bytes = 10**12
        #: What was done to files after an error.
        self.after: list[str] = []
        self.has_failed = False

    def __call__(self, path: Path, *, fresh: bool = False) -> DiskFile:
        return _DiskFile(path, fresh=fresh, disk=self)

    def check(self, what: str) -> None:
        if self.has_failed:
            self.after.append(what)
        if self.failing == what:
            self.has_failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class _DiskFile(DiskFile):
    __slots__ = ("_disk",)

    def __init__(self, path: Path, *, fresh: bool, disk: Disk) -> None:
        self._disk = disk
        super().__init__(path, fresh=fresh)

    def write(self, data: bytes, offset: int) -> None:
        self._disk.check("write")
        super().write(data, offset)

    def sync(self) -> None:
        self._disk.check("sync")
        super().sync()

    def reserve(self, start: int, end: int) -> bool:
        self._disk.check("reserve")
        return end <= self._disk.room_bytes and super().reserve(start, end)


# -- errors


@pytest.mark.parametrize("what", ["write", "sync", "reserve"])
def test_the_first_error_is_told_and_nothing_is_written_after_it(place: Path, what: str) -> None:
    disk = Disk()
    bench = Bench(place / "s", open_file=disk)
    bench.write(5)
    confirmed = [*bench.ears.numbers]
    disk.failing = what
    # More than what is reserved, so that each of the three is needed.
    bench.append(10)
    bench.sync()
    error = bench.ears.wait_failed()
    assert isinstance(error, OSError)
    assert error.errno == errno.EIO
    disk.failing = ""
    bench.append(2)
    bench.sync()
    bench.store.close()
    assert disk.after == []
    assert bench.ears.numbers == confirmed
    assert len(bench.ears.errors) == 1
    records, _ = reopened(place / "s")
    assert records[:5] == bodies(5)
    assert records == bodies(len(records))


def test_a_failing_store_lets_its_directory_go(place: Path) -> None:
    disk = Disk()
    bench = Bench(place / "s", open_file=disk)
    disk.failing = "sync"
    bench.append()
    bench.sync()
    bench.ears.wait_failed()
    bench.store.close()
    Bench(place / "s").store.close()


def test_what_is_damaged_after_the_start_is_told_by_the_reader(place: Path) -> None:
    bench = Bench(place / "s")
    bench.write(6)
    path = segments_of(place / "s")[0]
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    bench.store.read(1, 1, 6, 1_000)
    assert str(path) in str(bench.ears.wait_failed())
    bench.store.close()


def test_a_tick_out_of_order_is_refused_and_is_not_written(place: Path) -> None:
    bench = Bench(place / "s")
    bench.write(3)
    for tick in (3, 5):
        with pytest.raises(LocalError, match=f"tick {tick} of 4 bytes .* the next tick is 4"):
            bench.store.append(tick, b"some")
    bench.store.close()
    assert reopened(place / "s")[0] == bodies(3)


# -- no room


def test_a_full_disk_is_told_before_there_is_no_room_at_all(place: Path) -> None:
    disk = Disk()
    bench = Bench(place / "s", open_file=disk, options=ONE_SEGMENT)
    bench.write(1)
    disk.room_bytes = segments_of(place / "s")[0].stat().st_size
    while not bench.ears.fulls:
        bench.write(1)
    # What was under way when the news came still finds room, and what is confirmed can be read.
    bench.write(1)
    assert bench.ears.fulls == [True]
    assert [*bench.read(1, 99)] == bodies(bench.tick)
    disk.room_bytes = 10**12
    bench.ears.wait_for(lambda: bench.ears.fulls == [True, False])
    bench.write(9)
    bench.store.close()
    assert reopened(place / "s")[0] == bodies(bench.tick)


def test_what_does_not_fit_waits_and_is_synced_when_there_is_room(place: Path) -> None:
    disk = Disk()
    bench = Bench(place / "s", open_file=disk)
    bench.write(1)
    disk.room_bytes = 0
    bench.append(30)
    number = bench.sync()
    bench.ears.wait_for(lambda: bench.ears.fulls == [True])
    assert number not in bench.ears.numbers
    assert bench.read(2, 9) == ()
    disk.room_bytes = 10**12
    bench.ears.wait_synced(number)
    assert bench.ears.fulls == [True, False]
    bench.store.close()
    assert reopened(place / "s")[0] == bodies(31)


def test_deletion_does_not_wait_behind_what_does_not_fit(place: Path) -> None:
    disk = Disk()
    bench = Bench(place / "s", open_file=disk)
    for _ in range(4):
        bench.write(2)
    oldest = segments_of(place / "s")[0]
    disk.room_bytes = 0
    bench.append(30)
    number = bench.sync()
    bench.ears.wait_for(lambda: bench.ears.fulls == [True])
    bench.store.forget(2)
    wait_until(lambda: not oldest.exists())
    assert not bench.ears.errors
    disk.room_bytes = 10**12
    bench.ears.wait_synced(number)
    bench.store.close()


def test_a_store_that_is_closed_while_full_keeps_what_was_confirmed(place: Path) -> None:
    disk = Disk()
    bench = Bench(place / "s", open_file=disk)
    bench.write(3)
    disk.room_bytes = 0
    bench.append(30)
    bench.sync()
    bench.append(1)
    bench.sync()
    bench.ears.wait_for(lambda: bench.ears.fulls == [True])
    bench.store.close()
    assert not bench.ears.errors
    assert reopened(place / "s")[0] == bodies(3)


def test_a_catalog_without_room_waits_too_and_the_log_gives_some_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(place / "s")
    bench.write(1)
    before = segments_of(place / "s")[0].stat().st_size
    tries: list[LogFacts] = []
    commit = Catalog.commit

    def crowded(
        self: Catalog, puts: list[PutRow], facts: LogFacts, copies: CopyRows, reset: int
    ) -> None:
        if len(tries) < 3:
            tries.append(facts)
            raise CatalogFullError("no room")
        commit(self, puts, facts, copies, reset)

    monkeypatch.setattr(Catalog, "commit", crowded)
    bench.store.put("t", "k", b"v")
    bench.ears.wait_synced(bench.sync())
    assert bench.ears.fulls[0] is True
    assert len(tries) == 3
    bench.ears.wait_for(lambda: bench.ears.fulls[-1] is False)
    bench.store.close()
    assert before > segments_of(place / "s")[0].stat().st_size
    bench = Bench(place / "s")
    assert bench.store.recovered.catalog == {"t": {"k": b"v"}}
    bench.store.close()


def test_a_deletion_handed_over_with_records_makes_room_for_them(place: Path) -> None:
    disk = Disk()
    bench = Bench(place / "s", open_file=disk)
    for _ in range(20):
        bench.write()
    first = len(segments_of(place / "s"))
    disk.room_bytes = 0
    bench.append(10)
    # Both are one batch, which waits for room.
    bench.store.forget(15)
    wait_until(lambda: len(segments_of(place / "s")) < first)
    disk.room_bytes = 10**12
    bench.ears.wait_synced(bench.sync())
    bench.store.close()
    records, _ = reopened(place / "s")
    assert records[-1] == body_of(30)
