"""Logs of brokers are read as they stand, while they grow and after they were released."""

from pathlib import Path

import pytest

from anabranch.check import history as saw
from anabranch.devnet.broker_logs import LogFollower, read_logs
from anabranch.store.segment import CorruptError, encode_entry
from tests.log_parts import blank_record, event_record, make_state, mark_record, write_segment


def logged(tick: int, sequence: int) -> saw.Logged:
    return saw.Logged("o", tick, "p", 1, sequence)


def test_events_are_told_with_their_ticks_and_marks_are_not(tmp_path: Path) -> None:
    records = [mark_record(), event_record(1), blank_record(2), event_record(3)]
    write_segment(make_state(tmp_path), 1, records)
    assert read_logs([tmp_path]) == ([logged(2, 1), logged(3, 2), logged(4, 3)], {"o": 1})


def test_a_growing_log_is_told_once(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    follower = LogFollower(state)
    assert follower.read() == []
    torn = encode_entry(2, event_record(2))[:-3]
    write_segment(state, 1, [event_record(1)], torn)
    assert follower.read() == [logged(1, 1)]
    write_segment(state, 1, [event_record(1), event_record(2)])
    assert follower.read() == [logged(2, 2)]
    write_segment(state, 3, [event_record(3)])
    assert follower.read() == [logged(3, 3)]
    assert follower.read() == []


def test_what_was_released_stays_told_and_is_not_missed(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    follower = LogFollower(state)
    first = write_segment(state, 1, [event_record(1)])
    write_segment(state, 2, [event_record(2)])
    assert len(follower.read()) == 2
    first.unlink()
    write_segment(state, 3, [event_record(3)])
    assert follower.read() == [logged(3, 3)]
    assert follower.first_tick == 1
    assert read_logs([state])[1] == {"o": 2}


def test_a_damaged_segment_that_is_not_the_last_is_an_error(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    path = write_segment(state, 1, [event_record(1), event_record(2)])
    spoilt = bytearray(path.read_bytes())
    spoilt[60] ^= 1
    path.write_bytes(bytes(spoilt))
    write_segment(state, 3, [event_record(3)])
    with pytest.raises(CorruptError, match="tick 1"):
        LogFollower(state).read()
