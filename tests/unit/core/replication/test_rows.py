"""Rows of the catalog that go into the stream: which, when, and how many in one record."""

import msgspec

from anabranch.core.contract import Put
from anabranch.core.replication.rows import LOCAL_TABLES, RECORD_BYTES_MAX, WaitingRows


def done(edge: str, tick: int) -> Put:
    return Put("done", edge, msgspec.msgpack.encode((tick, 1)))


def test_rows_about_this_disk_and_this_process_are_not_carried() -> None:
    waiting = WaitingRows()
    for table in LOCAL_TABLES:
        waiting.add(Put(table, "key", b"1"))
    waiting.note_activity()
    assert not list(waiting.take())


def test_the_newest_value_counts_in_the_order_of_the_newest_puts() -> None:
    waiting = WaitingRows()
    for put in (Put("sinks", "a", b"1"), Put("sinks", "b", b"2"), Put("sinks", "a", None)):
        waiting.add(put)
    assert list(waiting.take()) == [[("sinks", "b", b"2"), ("sinks", "a", None)]]
    assert not list(waiting.take())


def test_positions_wait_until_something_else_happens() -> None:
    waiting = WaitingRows()
    waiting.add(Put("cursors", "a", b"1"))
    assert not list(waiting.take())
    waiting.add(Put("sinks", "b", b"2"))
    assert list(waiting.take()) == [[("cursors", "a", b"1"), ("sinks", "b", b"2")]]
    waiting.add(Put("cursors", "a", b"3"))
    waiting.note_activity()
    assert list(waiting.take()) == [[("cursors", "a", b"3")]]


def test_a_done_position_is_carried_if_it_is_new_or_lower() -> None:
    waiting = WaitingRows()
    carried = []
    for put in (done("e", 5), done("e", 9), done("e", 7), done("f", 1), Put("done", "e", None)):
        waiting.add(put)
        carried.append(sum(map(len, waiting.take())))
    assert carried == [1, 0, 1, 1, 1]


def test_records_are_bounded_but_for_a_single_large_row() -> None:
    waiting = WaitingRows()
    large = bytes(RECORD_BYTES_MAX // 2 + 1)
    for number in range(3):
        waiting.add(Put("sinks", str(number), large))
    waiting.add(Put("sinks", "huge", 4 * large))
    records = list(waiting.take())
    assert [len(rows) for rows in records] == [1, 1, 1, 1]
    for number in range(1_000):
        waiting.add(Put("sinks", str(number), b"1"))
    assert len(list(waiting.take())) == 1
