"""The model of a disk that loses power: what is synced stays, and what is not may go in any way."""

from collections.abc import Sequence

from tests.power.lossy_disk import (
    AS_WRITTEN,
    SECTOR_BYTES,
    Chance,
    Choice,
    Disk,
    Image,
    NamesOnly,
    Nothing,
    Seen,
)
from tests.power.write_stream import Call

FILE = 7
OLD, NEW = b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES


def created(*calls: Call) -> Disk:
    """A disk with a file `f` whose name is synced, after these calls."""
    disk = Disk({"f": b""}, {"f": FILE})
    for call in calls:
        disk.take(call)
    return disk


def write(offset: int, data: bytes) -> Call:
    return Call("W", FILE, offset, data=data)


def sync(number: int = 1) -> tuple[Call, Call]:
    return Call("B", FILE, number), Call("S", FILE, number)


class Sectors(Choice):
    """Some sectors have seen everything, and the others nothing."""

    def __init__(self, *kept: int) -> None:
        self._kept = kept

    def data(self, path: str, calls: int) -> tuple[int, Seen]:
        return calls, lambda sector: calls if sector in self._kept else 0


class Names(Choice):
    """Some changes of a directory are kept."""

    def __init__(self, *kept: bool) -> None:
        self._kept = kept

    def names(self, path: str, changes: int) -> Sequence[bool]:
        return self._kept


def images(disk: Disk, count: int = 300) -> list[Image]:
    return [disk.image(Chance(seed)) for seed in range(count)]


def test_synced_data_is_in_every_image() -> None:
    disk = created(write(0, OLD + OLD), *sync())
    assert all(image == {"f": OLD + OLD} for image in images(disk))


def test_a_sync_that_has_not_returned_keeps_nothing() -> None:
    begin, _ = sync()
    disk = created(write(0, OLD), begin)
    assert disk.image(Nothing()) == {"f": b""}


def test_a_sync_covers_what_was_written_before_it_began() -> None:
    begin, end = sync()
    disk = created(write(0, OLD), begin, write(0, NEW), end)
    assert disk.image(Nothing()) == {"f": OLD}
    assert disk.image(AS_WRITTEN) == {"f": NEW}


def test_sectors_are_lost_each_by_itself() -> None:
    disk = created(write(0, OLD * 3), *sync(), write(0, NEW * 3))
    assert disk.image(Sectors(1)) == {"f": OLD + NEW + OLD}
    found = {image["f"] for image in images(disk)}
    assert found == {a + b + c for a in (OLD, NEW) for b in (OLD, NEW) for c in (OLD, NEW)}


def test_a_sector_is_never_a_mix_out_of_order() -> None:
    disk = created(write(0, OLD), *sync(), write(0, b"1"), write(1, b"2"))
    found = {(image["f"] or b"")[:2] for image in images(disk)}
    assert found == {b"oo", b"1o", b"12"}


def test_a_length_may_be_kept_without_its_data() -> None:
    disk = created(write(0, NEW))
    assert disk.image(NamesOnly(names=True)) == {"f": bytes(SECTOR_BYTES)}


def test_stale_data_does_not_come_back_behind_a_truncation() -> None:
    cut, allocated = Call("T", FILE, 0), Call("A", FILE, 0, SECTOR_BYTES)
    disk = created(write(0, OLD), *sync(), cut, allocated, write(0, NEW))
    found = {image["f"] for image in images(disk)}
    assert found == {OLD, b"", bytes(SECTOR_BYTES), NEW}


def test_a_name_is_lost_unless_its_directory_is_synced() -> None:
    disk = Disk({}, {})
    for call in (Call("C", 1, text="f"), Call("W", 1, data=NEW), Call("B", 1, 1), Call("S", 1, 1)):
        disk.take(call)
    assert disk.image(Nothing()) == {}
    disk.take(Call("B", 99, 2))
    disk.take(Call("S", 99, 2))
    assert disk.image(Nothing()) == {"f": NEW}


def test_a_rename_happens_as_a_whole() -> None:
    disk = Disk({"f": OLD, "g": NEW}, {"f": 1, "g": 2})
    disk.take(Call("R", 2, text="g", data=b"f"))
    assert disk.image(Names(False)) == {"f": OLD, "g": NEW}
    assert disk.image(Names(True)) == {"f": NEW}


def test_changes_of_one_name_are_in_order_and_of_others_are_not() -> None:
    disk = Disk({}, {})
    calls = (Call("C", 1, text="f"), Call("C", 2, text="g"), Call("U", text="f"))
    for call in calls:
        disk.take(call)
    assert disk.image(Names(False, True, True)) == {"g": b""}
    assert disk.image(Names(True, False, False)) == {"f": b""}


def test_shared_memory_of_sqlite_is_missing_or_nonsense() -> None:
    disk = Disk({}, {})
    disk.take(Call("C", 1, text="c-shm"))
    disk.take(Call("W", 1, data=NEW))
    assert disk.image(AS_WRITTEN) == {}
    found = [image["c-shm"] for image in images(disk) if "c-shm" in image]
    assert found
    assert NEW not in found
