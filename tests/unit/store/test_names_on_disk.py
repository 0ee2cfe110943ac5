"""Names are synced where a power cut would matter, and a segment without room costs nothing."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.model.durable_files import sync_names
from anabranch.store.files import DiskFile
from anabranch.store.log import LogOptions, SegmentedLog
from anabranch.store.segment import ENTRY_OVERHEAD_BYTES
from tests.store_parts import Bench, body_of, quick_directory, time_of

OPTIONS = LogOptions(segment_bytes=90, reserve_bytes=128, stride_bytes=30)


@pytest.fixture
def place() -> Iterator[Path]:
    with quick_directory() as path:
        yield path


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What was unlinked, written and synced, with inode numbers, in order."""
    found: list[tuple[str, int]] = []
    fsync, unlink, pwrite = os.fsync, os.unlink, os.pwrite

    def recorded_fsync(descriptor: int) -> None:
        fsync(descriptor)
        found.append(("sync", os.fstat(descriptor).st_ino))

    def recorded_unlink(path: Path) -> None:
        unlink(path)
        found.append(("unlink", 0))

    def recorded_pwrite(descriptor: int, data: bytes, offset: int) -> int:
        found.append(("write", os.fstat(descriptor).st_ino))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "unlink", recorded_unlink)
    monkeypatch.setattr(os, "pwrite", recorded_pwrite)
    return found


def test_all_names_that_lead_to_a_new_state_directory_are_synced(
    place: Path, synced: list[tuple[str, int]]
) -> None:
    Bench(place / "x" / "y" / "state").store.close()
    for directory in (place, place / "x", place / "x" / "y"):
        assert ("sync", directory.stat().st_ino) in synced


def test_names_above_that_may_not_be_read_are_left_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = place / "x" / "state"
    state.mkdir(parents=True)
    opened, refused = os.open, place.stat().st_ino

    def forbidding(path: Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).stat().st_ino == refused:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", forbidding)
    sync_names(state)
    refused = state.parent.stat().st_ino
    with pytest.raises(PermissionError):
        sync_names(state)


class NoRoom:
    """Opens files; new segments but the first find no room for a while."""

    def __init__(self) -> None:
        self.is_full = False

    def __call__(self, path: Path, *, fresh: bool = False) -> DiskFile:
        return _NoRoomFile(path, fresh=fresh, disk=self)


class _NoRoomFile(DiskFile):
    __slots__ = ("_disk",)

    def __init__(self, path: Path, *, fresh: bool, disk: NoRoom) -> None:
        self._disk = disk
        super().__init__(path, fresh=fresh)

    def reserve(self, start: int, end: int) -> bool:
        return not (self._disk.is_full and start == 0) and super().reserve(start, end)


def full_log(place: Path) -> tuple[SegmentedLog, NoRoom]:
    """A log that has just found no room for its next segment."""
    disk = NoRoom()
    log = SegmentedLog(place, options=OPTIONS, time_of=time_of, open_file=disk)
    records = [body_of(tick) for tick in range(1, 5)]
    # Exactly what is appended, with the seal: so all that is wanted beyond is reserved.
    size = sum(map(len, records)) + (len(records) + 1) * ENTRY_OVERHEAD_BYTES
    assert log.reserve(size)
    log.append(records)
    log.sync()
    disk.is_full = True
    assert not log.rotate()
    assert log.is_full
    return log, disk


def test_a_segment_that_found_no_room_is_gone_for_good_before_the_old_one_grows(
    place: Path, synced: list[tuple[str, int]]
) -> None:
    log, _ = full_log(place)
    (gone,) = [number for number, (what, _) in enumerate(synced) if what == "unlink"]
    assert synced[gone + 1] == ("sync", place.stat().st_ino)
    log.close()


def test_a_log_with_all_of_its_reserve_goes_on_when_a_segment_found_no_room(place: Path) -> None:
    log, disk = full_log(place)
    # Reserving nothing is an error for the operating system; it ended the broker.
    assert log.reserve(0)
    assert not log.is_full
    disk.is_full = False
    assert log.rotate()
    log.close()
