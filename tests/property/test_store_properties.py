"""The log against a list: whatever is appended, synced, deleted and crashed, it holds the same."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.store.log import LogOptions, SegmentedLog, read_records, tick_at_time
from anabranch.store.segment import (
    Point,
    SparseIndex,
    decode_index,
    encode_index,
    point_before_tick,
    point_before_time,
)

OPTIONS = LogOptions(segment_bytes=400, reserve_bytes=512, stride_bytes=60)
FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
bodies = st.binary(max_size=120)
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(bodies, min_size=1, max_size=6)),
    st.tuples(st.just("sync"), st.none()),
    st.tuples(st.just("forget"), st.floats(0, 1)),
    st.tuples(st.just("reopen"), st.none()),
    st.tuples(st.just("crash"), st.floats(0, 1)),
)


def opened(directory: Path) -> SegmentedLog:
    return SegmentedLog(directory, options=OPTIONS, time_of=len)


def check(log: SegmentedLog, expected: Sequence[bytes]) -> None:
    """`expected` are all records that ever were, from tick 1 on."""
    assert log.last_tick == len(expected)
    for first in {log.first_tick, (log.first_tick + log.last_tick) // 2, log.last_tick}:
        if first >= log.first_tick:
            found = read_records(log.pieces, first, log.last_tick, 10**9)
            assert [*found] == [*expected[first - 1 :]]
    assert read_records(log.pieces, log.first_tick - 1, log.last_tick, 10**9) == ()


def crashed(directory: Path, share: float, synced_bytes: int) -> Path:
    """A copy whose unsynced end is cut somewhere."""
    image = Path(tempfile.mkdtemp(dir=directory.parent)) / "log"
    shutil.copytree(directory, image)
    last = max(image.glob("*.segment"))
    used = len(last.read_bytes().rstrip(b"\0"))
    with last.open("r+b") as file:
        file.truncate(synced_bytes + int(max(used - synced_bytes, 0) * share))
    return image


@settings(deadline=None)
@given(st.lists(steps, max_size=25))
def test_a_log_holds_what_was_appended_to_it(sequence: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        directory = Path(name) / "log"
        directory.mkdir()
        log = opened(directory)
        records: list[bytes] = []
        synced, synced_bytes = 0, log.pieces[-1].end_offset
        for step, value in sequence:
            if step == "append":
                assert isinstance(value, list)
                assert log.reserve(sum(len(body) + 22 for body in value))
                log.append(value)
                records += value
            elif step == "sync":
                log.sync()
                log.rotate()
                synced, synced_bytes = len(records), log.pieces[-1].end_offset
            elif step == "forget":
                assert isinstance(value, float)
                log.forget(int(synced * value))
                assert log.first_tick <= int(synced * value) + 1
            elif step == "reopen":
                log.close()
                log = opened(directory)
                synced, synced_bytes = len(records), log.pieces[-1].end_offset
            else:
                assert isinstance(value, float)
                directory = crashed(directory, value, synced_bytes)
                log.close()
                log = opened(directory)
                assert log.last_tick >= synced
                del records[log.last_tick :]
                synced, synced_bytes = len(records), log.pieces[-1].end_offset
            check(log, records)
        log.close()


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(-1, 32))
def test_a_time_is_found_as_by_looking_at_every_record(sizes: list[int], time_ns: int) -> None:
    # Here a record's time is its length; times never decrease.
    records = [b"x" * size for size in sorted(sizes)]
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        log = opened(Path(name))
        for record in records:
            log.append([record])
            log.sync()
            log.rotate()
        expected = next(
            (t for t, r in enumerate(records, 1) if len(r) >= time_ns), len(records) + 1
        )
        assert tick_at_time(log.pieces, time_ns, len) == expected
        log.close()


ticks = st.integers(0, 2**63 - 1)
times = st.integers(-(2**63), 2**63 - 1)
points = st.builds(Point, ticks, ticks, times)
crcs = st.integers(0, 2**32 - 1)
indexes = st.builds(
    SparseIndex, ticks, ticks, times, times, crcs, ticks, crcs, st.lists(points, max_size=20)
)


@given(indexes)
def test_an_index_comes_back_as_it_was(index: SparseIndex) -> None:
    assert decode_index(encode_index(index)) == index


@given(indexes, st.data())
def test_a_changed_index_is_none(index: SparseIndex, data: st.DataObject) -> None:
    encoded = bytearray(encode_index(index))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    assert decode_index(bytes(encoded)) is None
    assert decode_index(bytes(encoded[:place])) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_an_index_or_none(data: bytes) -> None:
    found = decode_index(data)
    assert found is None or encode_index(found) == data


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20, unique=True), st.integers(-1, 55))
def test_a_point_is_found_as_by_looking_at_every_one(places: list[int], wanted: int) -> None:
    row = [Point(place, place, place // 3) for place in sorted(places)]
    before = [point for point in row if point.tick <= wanted]
    assert point_before_tick(row, wanted) == (before[-1] if before else row[0])
    earlier = [point for point in row if point.time_ns < wanted]
    assert point_before_time(row, wanted) == (earlier[-1] if earlier else row[0])
