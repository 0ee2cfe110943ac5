"""Every cut and every changed bit of a small log of several segments, through the store's own door.

The log is as a crash left it: some segments are full, the last one ends with what was synced and
sealed, and behind it is room that was reserved. A torn end is cut off with a note; every other
damage is refused with the exact place and the command that repairs it, and nothing is changed.
"""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from anabranch.model.errors import LocalError
from anabranch.store.log import Examination
from anabranch.store.segment import HEADER_BYTES, CorruptError, Scan, scan
from tests.store_parts import (
    Bench,
    body_of,
    crash_image,
    quick_directory,
    reopened,
    segments_of,
)

TICKS = 7


class Specimen:
    """A log that is damaged again and again, and mended in between."""

    def __init__(self, place: Path) -> None:
        bench = Bench(place / "original")
        for count in (2, 2, 2, 1):
            bench.write(count)
        self.image = crash_image(place / "original", place / "image")
        bench.store.close()
        self.place = place
        self.state = place / "state"
        self.mend()

    def mend(self) -> None:
        shutil.rmtree(self.state, ignore_errors=True)
        shutil.copytree(self.image, self.state)

    def segments(self) -> list[Path]:
        return segments_of(self.state)

    def scan(self, path: Path) -> Scan:
        return scan(path.read_bytes(), int(path.stem))

    def content(self) -> dict[str, bytes]:
        files = (path for path in (self.state / "log").iterdir())
        return {path.name: path.read_bytes() for path in files}

    def refused(self) -> CorruptError:
        """The error that opening it ends with, having changed nothing."""
        before = self.content()
        with pytest.raises(CorruptError) as caught:
            Bench(self.state)
        assert self.content() == before
        assert f"`anabranch log repair {caught.value.path}`" in str(caught.value)
        return caught.value


@pytest.fixture(scope="module")
def module_specimen() -> Iterator[Specimen]:
    with quick_directory() as place:
        yield Specimen(place)


@pytest.fixture
def specimen(module_specimen: Specimen) -> Specimen:
    module_specimen.mend()
    return module_specimen


def bodies(last: int) -> list[bytes]:
    return [body_of(tick) for tick in range(1, last + 1)]


def flips(data: bytes, end: int) -> Iterator[tuple[int, bytes]]:
    for place in range(end):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            yield place, bytes(changed)


def entry_starts(found: Scan, data: bytes) -> list[int]:
    """Where entries begin, seals included, and the header."""
    starts = [0, HEADER_BYTES, *found.offsets]
    # What stands between and behind records is seals of 22 bytes.
    ends = [
        offset + 22 + len(record)
        for offset, record in zip(found.offsets, found.records, strict=True)
    ]
    for end, following in zip(ends, [*found.offsets[1:], found.end_offset], strict=True):
        starts += range(end, following + 1, 22)
    return sorted(set(starts))


def test_the_specimen_has_full_segments_with_indexes_and_an_open_one(specimen: Specimen) -> None:
    names = [int(path.stem) for path in specimen.segments()]
    assert names == [1, 3, 5, 7]
    assert len([*(specimen.state / "log").glob("*.index")]) == 3
    assert reopened(specimen.state) == (bodies(TICKS), [])


def test_every_cut_of_a_full_segment_is_refused_with_its_place(specimen: Specimen) -> None:
    for path in specimen.segments()[:-1]:
        data, found = path.read_bytes(), specimen.scan(path)
        starts = entry_starts(found, data)
        for cut in range(found.end_offset):
            path.write_bytes(data[:cut])
            error = specimen.refused()
            assert error.path == str(path)
            reached = [start for start in starts if start <= cut]
            assert error.offset == (reached[-1] if cut >= HEADER_BYTES else 0)
            kept = sum(offset + 22 + len(body_of(1)) <= cut for offset in found.offsets)
            assert error.tick == found.first_tick + kept
        path.write_bytes(data)


def test_every_cut_of_the_last_segment_is_torn_or_refused(specimen: Specimen) -> None:
    path = specimen.segments()[-1]
    data, found = path.read_bytes(), specimen.scan(path)
    boundaries = entry_starts(found, data)
    for cut in range(found.end_offset + 1):
        specimen.mend()
        path.write_bytes(data[:cut])
        if cut < HEADER_BYTES:
            # The catalog knows that the segment was begun.
            error = specimen.refused()
            assert (error.path, error.offset, error.tick) == (str(path), 0, found.first_tick)
            continue
        end = max(start for start in boundaries if start <= cut)
        records, notes = reopened(specimen.state)
        kept = sum(offset < end for offset in found.offsets)
        assert records == bodies(found.first_tick - 1 + kept)
        size = len(data[end:cut].rstrip(b"\0"))
        torn = f"interrupted write of {size} bytes at the end of the log: {path}, byte {end}"
        assert [torn in note for note in notes] == ([True] if cut > end else [])
        # It is cut off for good.
        assert reopened(specimen.state) == (records, [])


def test_ticks_that_the_catalog_knows_make_a_cut_of_the_last_segment_corrupt(
    specimen: Specimen,
) -> None:
    # An orderly end remembers how far the log was.
    reopened(specimen.state)
    path = specimen.segments()[-1]
    data, found = path.read_bytes(), specimen.scan(path)
    for cut in range(found.offsets[-1] + 22 + len(body_of(1))):
        path.write_bytes(data[:cut])
        error = specimen.refused()
        assert (error.path, error.tick) == (str(path), TICKS)
    assert "ticks up to 7 were confirmed" in error.reason


@pytest.mark.slow
def test_every_changed_bit_of_a_segment_is_refused_with_its_place(specimen: Specimen) -> None:
    for path in specimen.segments():
        data, found = path.read_bytes(), specimen.scan(path)
        starts = entry_starts(found, data)
        for place, changed in flips(data, found.end_offset):
            path.write_bytes(changed)
            error = specimen.refused()
            assert error.path == str(path)
            assert error.offset == max(start for start in starts if start <= place)
        path.write_bytes(data)


def test_a_changed_bit_in_reserved_room_costs_no_record(specimen: Specimen) -> None:
    path = specimen.segments()[-1]
    data, found = path.read_bytes(), specimen.scan(path)
    assert len(data) > found.end_offset
    for place in range(found.end_offset, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 0x10
        specimen.mend()
        path.write_bytes(changed)
        with suppress(CorruptError):
            assert reopened(specimen.state)[0] == bodies(TICKS)


@pytest.mark.slow
def test_every_cut_and_changed_bit_of_an_index_is_harmless(specimen: Specimen) -> None:
    path = sorted((specimen.state / "log").glob("*.index"))[1]
    data = path.read_bytes()
    damaged = [changed for _, changed in flips(data, len(data))]
    damaged += [data[:cut] for cut in range(len(data))]
    for changed in damaged:
        path.write_bytes(changed)
        records, notes = reopened(specimen.state)
        assert records == bodies(TICKS)
        assert [f"rebuilt the index of {path.stem}.segment" in note for note in notes] == [True]
        assert path.read_bytes() == data


def test_a_missing_index_is_made_again_and_one_without_segment_is_removed(
    specimen: Specimen,
) -> None:
    indexes = sorted((specimen.state / "log").glob("*.index"))
    contents = [path.read_bytes() for path in indexes]
    for path in indexes:
        path.unlink()
    stray = specimen.state / "log" / "00000000000000000099.index"
    stray.write_bytes(contents[0])
    assert len(reopened(specimen.state)[1]) == 3
    assert [path.read_bytes() for path in indexes] == contents
    assert not stray.exists()


def test_an_index_of_another_segment_does_not_fit(specimen: Specimen) -> None:
    first, second, _ = sorted((specimen.state / "log").glob("*.index"))
    second.write_bytes(first.read_bytes())
    records, notes = reopened(specimen.state)
    assert records == bodies(TICKS)
    assert len(notes) == 1


@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_segment_that_is_missing_is_corrupt(specimen: Specimen, which: int) -> None:
    path = specimen.segments()[which]
    path.unlink()
    error = specimen.refused()
    assert error.tick == int(path.stem)


def test_a_segment_that_was_begun_and_not_yet_known_may_be_torn(specimen: Specimen) -> None:
    (specimen.state / "log" / "00000000000000000008.segment").write_bytes(bytes(128))
    # The one before is full then, and its index not written yet.
    records, notes = reopened(specimen.state)
    assert records == bodies(TICKS)
    assert len(notes) == 2
    bench = Bench(specimen.state)
    assert bench.store.notes == []
    bench.write(2)
    bench.store.close()
    assert reopened(specimen.state)[0] == bodies(TICKS + 2)


def test_a_file_that_is_no_segment_is_refused(specimen: Specimen) -> None:
    (specimen.state / "log" / "5.segment").write_bytes(b"")
    with pytest.raises(LocalError, match=r"5\.segment is not the name of a segment"):
        Bench(specimen.state)


def test_every_cut_and_changed_bit_of_the_identity_is_refused_in_words(specimen: Specimen) -> None:
    path = specimen.state / "identity.toml"
    data = path.read_bytes()
    damaged = [changed for _, changed in flips(data, len(data))]
    damaged += [data[:cut] for cut in range(len(data))]
    for changed in damaged:
        path.write_bytes(changed)
        with pytest.raises(LocalError, match=r"identity.toml was changed or damaged"):
            Bench(specimen.state)


def test_what_the_lock_file_holds_does_not_matter(specimen: Specimen) -> None:
    path = specimen.state / "lock"
    for content in (b"", b"\xff\xfe", b"process 1, somebody\n" * 100):
        path.write_bytes(content)
        assert reopened(specimen.state)[0] == bodies(TICKS)


def test_a_log_of_format_1_is_read_and_written_on(specimen: Specimen) -> None:
    from tests.old_logs import rewrite_in_format_1

    for path in specimen.segments():
        rewrite_in_format_1(path)
    for path in (specimen.state / "log").glob("*.index"):
        path.unlink()
    bench = Bench(specimen.state)
    assert [*bench.store.recovered.records] == bodies(TICKS)
    bench.write(5)
    bench.store.close()
    assert reopened(specimen.state) == (bodies(TICKS + 5), [])
    versions = [specimen.scan(path).version for path in specimen.segments()]
    assert (versions[0], versions[-1]) == (1, 2)


def test_opening_tells_how_much_it_has_looked_at(specimen: Specimen) -> None:
    from anabranch.store.catalog import LogFacts
    from tests.store_parts import time_of

    seen: list[int] = []
    look = Examination(
        specimen.state / "log", owner=0, stride_bytes=30, time_of=time_of, progress=seen.append
    )
    look.result(LogFacts())
    assert sum(seen) == sum(path.stat().st_size for path in specimen.segments())
