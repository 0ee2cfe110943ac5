"""Frames on a connection: found however the bytes are cut, and refused before they are held."""

import tracemalloc

import pytest

from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.limits import Limits
from anabranch.wire.framing import FrameReader, framed

FRAMES = [b"a", b"bc" * 200, b"\0\0\0\0", b"d"]
SENT = b"".join(map(framed, FRAMES))


def test_a_frame_has_its_length_in_front() -> None:
    assert framed(b"abc") == b"\0\0\0\3abc"


def test_an_empty_frame_cannot_be_sent() -> None:
    with pytest.raises(LocalError, match="cannot send a frame of 0 bytes"):
        framed(b"")


def test_all_frames_of_one_chunk_come_at_once() -> None:
    assert FrameReader().feed(SENT) == FRAMES


def test_frames_are_found_byte_by_byte() -> None:
    reader = FrameReader()
    found = [frame for place in range(len(SENT)) for frame in reader.feed(SENT[place : place + 1])]
    assert found == FRAMES


def test_frames_are_found_across_any_cut() -> None:
    for cut in range(len(SENT) + 1):
        reader = FrameReader()
        assert reader.feed(SENT[:cut]) + reader.feed(SENT[cut:]) == FRAMES


def test_a_frame_comes_with_its_last_byte_and_no_earlier() -> None:
    reader = FrameReader()
    assert reader.feed(b"\0\0\0\2") == []
    assert reader.feed(b"") == []
    assert reader.feed(b"a") == []
    assert reader.feed(memoryview(b"b\0")) == [b"ab"]


def test_a_frame_outlives_the_buffer_it_came_in() -> None:
    chunk = bytearray(framed(b"abc"))
    (frame,) = FrameReader().feed(chunk)
    chunk[:] = bytes(len(chunk))
    assert frame == b"abc"


@pytest.mark.parametrize("length", [0, 5, 2**31, 2**32 - 1])
def test_a_length_out_of_bounds_is_refused_before_the_frame_comes(length: int) -> None:
    reader = FrameReader(Limits(frame_bytes_max=4))
    head = length.to_bytes(4)
    assert reader.feed(framed(b"four") + head[:3]) == [b"four"]
    with pytest.raises(RemoteError, match=f"a frame of {length} bytes; 1 to 4"):
        reader.feed(head[3:])


def test_a_broken_reader_stays_broken() -> None:
    reader = FrameReader()
    with pytest.raises(RemoteError):
        reader.feed(framed(b"good") + bytes(4))
    for chunk in (b"", framed(b"good")):
        with pytest.raises(RemoteError, match="a frame of 0 bytes; 1 to"):
            reader.feed(chunk)


def test_a_giant_length_costs_no_memory() -> None:
    tracemalloc.start()
    try:
        reader = FrameReader(Limits(frame_bytes_max=2**31))
        assert reader.feed((2**31).to_bytes(4)) == []
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


def test_a_reader_holds_no_frame_that_it_gave_away() -> None:
    reader = FrameReader()
    chunk = framed(bytes(1_000_000))
    tracemalloc.start()
    try:
        for _ in range(5):
            reader.feed(chunk[:700_000])
            reader.feed(chunk[700_000:])
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_a_reader_holds_what_has_arrived_of_a_frame_and_nothing_between_two() -> None:
    reader = FrameReader()
    reader.feed(framed(bytes(1_000))[:300])
    assert reader.pending_bytes == 300
    assert reader.feed(framed(bytes(1_000))[300:] + b"\0") == [bytes(1_000)]
    assert reader.pending_bytes == 1
    assert reader.feed(b"\0\0\1a") == [b"a"]
    assert reader.pending_bytes == 0
    assert reader.frames == 2


def test_the_buffer_of_a_large_frame_is_freed_with_the_frame() -> None:
    reader = FrameReader()
    large = framed(bytes(4_000_000))
    tracemalloc.start()
    try:
        for place in range(0, len(large), 65_536):
            reader.feed(large[place : place + 65_536])
        # Small frames go on without an end, each cut by the end of a chunk.
        reader.feed(framed(b"small")[:2])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.frames == 1
    assert held < 100_000


def test_a_released_reader_holds_nothing_and_takes_nothing() -> None:
    reader = FrameReader()
    reader.feed(framed(bytes(1_000))[:500])
    reader.release()
    assert reader.pending_bytes == 0
    with pytest.raises(RemoteError, match="the connection is over"):
        reader.feed(b"more")
