"""A log on a disk that persists sectors in any order: crashes cost nothing that was confirmed."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.store.segment import (
    HEADER_BYTES,
    SECTOR_BYTES,
    CorruptError,
    encode_entry,
    encode_seal,
    scan,
    segment_header,
)

FIRST = 3
SALT = 77
BODIES = st.binary(max_size=40) | st.builds(
    lambda byte, size: bytes([byte]) * size, st.sampled_from([0, 1]), st.integers(0, 2_000)
)


@dataclass
class Disk:
    """A file whose unsynced writes are known one by one."""

    synced: bytes
    unsynced: list[bytes] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.unsynced.append(data)

    def sync(self) -> None:
        self.synced += b"".join(self.unsynced)
        self.unsynced.clear()

    def crash(self, data: st.DataObject) -> bytes:
        """What is left: of each sector one of its versions since the sync, and any length."""
        versions = [self.synced]
        for write in self.unsynced:
            versions.append(versions[-1] + write)
        length = data.draw(st.integers(len(self.synced), len(versions[-1])))
        padded = [version.ljust(length, b"\0") for version in versions]
        choices = st.integers(0, len(versions) - 1)
        left = b"".join(
            padded[data.draw(choices)][start : start + SECTOR_BYTES]
            for start in range(0, length, SECTOR_BYTES)
        )
        room = data.draw(st.sampled_from([0, 0, 100, 3 * SECTOR_BYTES]))
        return left[:length] + bytes(room)


@dataclass
class Writer:
    """Follows the writer's duties."""

    disk: Disk = field(default_factory=lambda: Disk(segment_header(FIRST, SALT)))
    bodies: list[bytes] = field(default_factory=list)
    confirmed: int = FIRST - 1

    @property
    def last_tick(self) -> int:
        return FIRST + len(self.bodies) - 1

    def append(self, batch: list[bytes]) -> None:
        entries = []
        for body in batch:
            self.bodies.append(body)
            entries.append(encode_entry(self.last_tick, body, SALT))
        self.disk.write(b"".join(entries))

    def sync(self) -> None:
        self.disk.sync()
        self.disk.write(encode_seal(self.last_tick, SALT))
        self.confirmed = self.last_tick


def write_some(writer: Writer, data: st.DataObject) -> None:
    for batch in data.draw(st.lists(st.lists(BODIES, max_size=4), max_size=6)):
        writer.append(batch)
        if data.draw(st.booleans()):
            writer.sync()


@given(st.data())
def test_no_crash_is_called_corrupt_and_none_costs_what_was_confirmed(data: st.DataObject) -> None:
    writer = Writer()
    for _ in range(3):
        write_some(writer, data)
        left = writer.disk.crash(data)
        found = scan(left, FIRST, confirmed_tick=writer.confirmed)
        assert found.records == writer.bodies[: len(found.records)]
        assert found.last_tick >= writer.confirmed >= found.sealed_tick
        # The next life goes on with what there is.
        writer = Writer(Disk(left[: found.end_offset]), found.records)
        writer.sync()


@given(st.data())
def test_damage_of_a_confirmed_record_is_corrupt_whatever_it_is(data: st.DataObject) -> None:
    writer = Writer()
    write_some(writer, data)
    writer.sync()
    whole = writer.disk.synced
    start = data.draw(st.integers(HEADER_BYTES, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    kinds = st.binary(max_size=30) | st.just(bytes(end - start))
    damaged = whole[:start] + data.draw(kinds) + whole[end:] + encode_seal(writer.last_tick, SALT)
    try:
        found = scan(damaged, FIRST)
    except CorruptError:
        return
    # Only seals can go without being missed.
    assert found.records == writer.bodies


@given(st.binary(max_size=200), st.integers(1, 9))
def test_random_bytes_are_no_log(data: bytes, first_tick: int) -> None:
    try:
        found = scan(data, first_tick)
    except CorruptError:
        return
    assert (found.records, found.end_offset, found.state) == ([], 0, "torn")
    assert b"anabrlog".startswith(data.rstrip(b"\0")[:8])


@given(st.lists(BODIES, min_size=1, max_size=5), st.binary(min_size=1, max_size=100))
def test_random_bytes_after_a_log_make_no_record(bodies: list[bytes], garbage: bytes) -> None:
    writer = Writer()
    writer.append(bodies)
    writer.disk.sync()
    try:
        found = scan(writer.disk.synced + garbage, FIRST)
    except CorruptError:
        return
    assert found.records == bodies


def test_a_disk_can_lose_an_unsynced_write() -> None:
    disk = Disk(b"a")
    disk.write(b"b")
    assert disk.synced == b"a"
    disk.sync()
    assert disk.synced == b"ab"
    with pytest.raises(CorruptError):
        scan(disk.synced, FIRST)
