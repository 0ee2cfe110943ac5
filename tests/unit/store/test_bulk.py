"""Reading a log in bulk: damage, deletion, bounds, and bytes that were made to do harm."""

import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from anabranch.core.origin.log_tail import EventRecord, encode_record
from anabranch.matching.engine import numba_is_here
from anabranch.model.encoding import encode_event
from anabranch.model.errors import FilterError, LocalError
from anabranch.model.event import Event, EventId
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.store.bulk.slices import Effort, NotKeptError, Slice, Slicer, Wanted, read_plainly
from anabranch.store.log import Piece, SegmentedLog
from anabranch.store.segment import CorruptError
from tests.bulk_parts import Read, Said, all_slices, event_said, log_of, rows_of
from tests.old_logs import segment_1

ROOT = Path(__file__).parents[3]
needs_numba = pytest.mark.skipif(not numba_is_here(), reason="there are no kernels without numba")
WANTED = Wanted(first=1, last=10, client="c", now_ns=0, bytes_max=2**20)


def compiled(scan_bytes_max: int = 2**30) -> Read:
    from anabranch.store.bulk.compiled import BulkReader

    reader = BulkReader(scan_bytes_max=scan_bytes_max)
    return lambda pieces, wanted: reader.read(pieces, wanted, None)


def plain(scan_bytes_max: int = 2**30) -> Read:
    return partial(read_plainly, filter=None, scan_bytes_max=scan_bytes_max)


READERS = [plain, pytest.param(compiled, marks=needs_numba)]
both = pytest.mark.parametrize("reader", READERS)


def ticks_of(count: int) -> list[Said]:
    events = [Event({"n": n}, id=EventId("p", 1, n)) for n in range(1, count + 1)]
    return [event_said(n, encode_event(event)) for n, event in enumerate(events, 1)]


@both
def test_a_slice_ends_where_enough_was_looked_at(reader: Callable[[int], Read]) -> None:
    with log_of(ticks_of(60)) as log:
        slices = all_slices(reader(1), log.pieces, replace(WANTED, last=60))
        assert len(slices) >= len(log.pieces) - 1 > 5
        assert [row[0] for row in rows_of(slices)] == [*range(1, 61)]


@both
def test_a_slice_ends_where_python_has_judged_enough(reader: Callable[[], Read]) -> None:
    # No kernel decides it, and the plain reader judges everything.
    filter = Filter.parse("n * 2 > 90")
    with log_of(ticks_of(60)) as log:
        if reader is plain:
            read: Read = partial(read_plainly, filter=filter, judged_max=7)
        else:
            from anabranch.matching.sieve import Sieve
            from anabranch.store.bulk.compiled import BulkReader

            read = partial(BulkReader(judged_max=7).read, sieve=Sieve(filter))
        slices = all_slices(read, log.pieces, replace(WANTED, last=60))
        assert [each.through for each in slices] == [7, 14, 21, 28, 35, 42, 49, 56, 60]
        assert [row[0] for row in rows_of(slices)] == [*range(46, 61)]


def test_others_get_their_turn_while_python_judges() -> None:
    breaths: list[int] = []
    effort = Effort(100, lambda: breaths.append(effort.left))
    for _ in range(100):
        effort.spend()
    assert breaths == [64, 0]


@both
def test_a_slice_of_few_rows_holds_little_memory(reader: Callable[[], Read]) -> None:
    read = reader()
    with log_of(ticks_of(40)) as log:
        # The same reader goes on with the memory that the first slice did not take.
        for first in (1, 1, 21):
            found = read(log.pieces, replace(WANTED, first=first, last=40))
            assert memoryview(found.buffer.obj).nbytes == len(found.buffer) < 10_000
            assert [row[0] for row in rows_of([found])] == [*range(first, 41)]


@both
def test_a_log_of_format_1_is_read(reader: Callable[[], Read], tmp_path: Path) -> None:
    ticks = ticks_of(10)
    for first in (1, 6):
        records = [each.record for each in ticks[first - 1 : first + 4]]
        (tmp_path / f"{first:020}.segment").write_bytes(segment_1(first, records))
    log = SegmentedLog(tmp_path)
    slices = all_slices(reader(), log.pieces, WANTED)
    log.close()
    assert [row[2] for row in rows_of(slices)] == [each.body for each in ticks]


@both
def test_ticks_that_were_deleted_are_not_kept(reader: Callable[[], Read]) -> None:
    with log_of(ticks_of(40)) as log:
        before = log.pieces
        log.forget(20)
        oldest = log.first_tick
        assert oldest > 1
        with pytest.raises(NotKeptError) as caught:
            reader()(log.pieces, WANTED)
        assert caught.value.oldest == oldest
        with pytest.raises(NotKeptError):
            reader()(before, WANTED)
        rest = replace(WANTED, first=oldest, last=40)
        found = rows_of(all_slices(reader(), log.pieces, rest))
        assert [row[0] for row in found] == [*range(oldest, 41)]


@both
def test_what_is_deleted_meanwhile_ends_the_slice(reader: Callable[[], Read]) -> None:
    with log_of(ticks_of(40)) as log:
        pieces = log.pieces
        assert len(pieces) > 2
        pieces[1].path.unlink()
        assert reader()(pieces, replace(WANTED, last=40)).through == pieces[0].last_tick


@both
def test_one_changed_bit_is_corrupt_and_names_its_place(
    reader: Callable[[], Read], tmp_path: Path
) -> None:
    with log_of(ticks_of(4), segment_bytes=10**6, batch=4) as log:
        (piece,) = log.pieces
        copy = Piece(tmp_path / "copy", 1, piece.salt, piece.points)
        copy.last_tick, copy.end_offset = piece.last_tick, piece.end_offset
        good = piece.path.read_bytes()[: piece.end_offset]
    first = piece.points[0].offset
    for place in range(first, piece.end_offset - 22):
        copy.path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(CorruptError) as caught:
            all_slices(reader(), [copy], replace(WANTED, last=4))
        assert first <= caught.value.offset <= place
        assert caught.value.path == str(copy.path)


@both
def test_a_file_that_ends_early_is_corrupt(reader: Callable[[], Read], tmp_path: Path) -> None:
    with log_of(ticks_of(4), segment_bytes=10**6, batch=4) as log:
        (piece,) = log.pieces
        good = piece.path.read_bytes()
    piece.path = tmp_path / "copy"
    for size in range(piece.end_offset - 22):
        piece.path.write_bytes(good[:size])
        with pytest.raises(CorruptError):
            reader()([piece], replace(WANTED, last=4))


@both
def test_what_stands_behind_the_last_tick_is_not_looked_at(reader: Callable[[], Read]) -> None:
    with log_of(ticks_of(4), segment_bytes=10**6, batch=4) as log:
        (piece,) = log.pieces
        with piece.path.open("r+b") as file:
            file.seek(piece.end_offset)
            file.write(b"half written" * 9)
        piece.end_offset += 90
        assert reader()([piece], replace(WANTED, last=4)).through == 4


@both
def test_an_event_larger_than_the_bound_comes_alone(reader: Callable[[], Read]) -> None:
    large = Event({}, payload=b"x" * 3_000_000, id=EventId("p", 1, 1))
    ticks = [*ticks_of(2), event_said(3, encode_event(large)), *ticks_of(1)]
    with log_of(ticks) as log:
        slices = all_slices(reader(), log.pieces, replace(WANTED, last=4, bytes_max=100))
        assert [each.through for each in slices] == [1, 2, 3, 4]
        assert [row[2] for row in rows_of(slices)] == [each.body for each in ticks]


@needs_numba
def test_buffers_that_grew_for_one_event_do_for_others_of_any_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from anabranch.store.bulk.compiled import BulkReader

    monkeypatch.setattr("anabranch.store.bulk.compiled._KEPT_BYTES_MAX", 1_000)
    draw = Random(4)
    sizes = [draw.choice([0, 10, 300, 900, 1_500, 9_000]) for _ in range(200)]
    events = [Event({}, payload=b"x" * size, id=EventId("p", 1, 1)) for size in sizes]
    ticks = [event_said(tick, encode_event(event)) for tick, event in enumerate(events, 1)]
    reader = BulkReader(chunk_bytes=500)
    with log_of(ticks, segment_bytes=20_000) as log:
        wanted = replace(WANTED, last=200, bytes_max=2_000)
        slices = all_slices(partial(reader.read, sieve=None), log.pieces, wanted)
        assert [row[2] for row in rows_of(slices)] == [each.body for each in ticks]


@both
def test_what_no_version_can_read_is_an_error_with_its_tick(reader: Callable[[], Read]) -> None:
    for record in (b"\x93\x09\0\xc0", b"\xc1", encode_record(EventRecord(1, b"\x94\x02 later"))):
        with (
            log_of([*ticks_of(1), Said(record)]) as log,
            pytest.raises(LocalError, match=r"tick 2 .*start the version that wrote the log"),
        ):
            reader()(log.pieces, replace(WANTED, last=2))


# -- the slicer


def sliced(slicer: Slicer, pieces: Sequence[Piece], session: int, text: str) -> Slice:
    return slicer.read(pieces, WANTED, session, text)


@pytest.mark.parametrize("has_numba", [pytest.param(True, marks=needs_numba), False])
def test_filters_are_kept_for_their_session_up_to_a_bound(
    has_numba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.store.bulk.slices.numba_is_here", lambda: has_numba)
    slicer = Slicer(DEFAULT_LIMITS, filters_max=3)
    with log_of(ticks_of(10)) as log:
        for number in range(1, 8):
            assert sliced(slicer, log.pieces, number % 2, f"n <= {number}").count == number
        assert len(slicer) == 3
        assert sliced(slicer, log.pieces, 5, "TRUE").count == 10
        assert sliced(slicer, log.pieces, 5, "").count == 10
        assert len(slicer) == 3
        slicer.forget(0)
        slicer.forget(1)
        assert len(slicer) == 0
        with pytest.raises(FilterError, match="at position 3"):
            sliced(slicer, log.pieces, 1, "n >")


def test_few_filters_are_kept_if_they_are_long() -> None:
    slicer = Slicer(DEFAULT_LIMITS, text_characters_max=100)
    with log_of(ticks_of(10)) as log:
        for number in range(1, 8):
            text = f"n <= {number} AND text <> '{'x' * 20}'"
            assert sliced(slicer, log.pieces, 1, text).count == 0
        assert len(slicer) == 2
        assert sliced(slicer, log.pieces, 1, f"n > 1 AND NOT n IN ({', '.join(['3'] * 50)})").count
        assert len(slicer) == 0


# -- kernels


@needs_numba
def test_the_checksum_is_that_of_zlib() -> None:
    from numba import njit

    from anabranch.store.bulk.kernels import crc32

    @njit
    def checksum(data, first, stop, start):  # type: ignore[no-untyped-def]
        return crc32(data, first, stop, start)

    draw = Random(1)
    data = draw.randbytes(300)
    array = np.frombuffer(data, np.uint8)
    for size in range(120):
        first, start = draw.randrange(100), draw.randrange(2**32)
        expected = zlib.crc32(data[first : first + size], start)
        assert checksum(array, first, first + size, start) == expected


def guarded(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(__file__).parent / "guarded_child.py"
    command = [sys.executable, str(program), *arguments]
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": ""}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@needs_numba
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_crafted_bytes_never_lead_outside_of_the_arrays(seed: int) -> None:
    done = guarded(str(seed), "3000")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1_000


@needs_numba
def test_the_forbidden_pages_would_show_it() -> None:
    assert guarded("bite", "0").returncode == -signal.SIGSEGV
