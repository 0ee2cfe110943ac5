"""What an origin tells the network: ticks under their marks, and heads, all after the sync."""

import pytest

from anabranch.core import contract
from anabranch.core.contract import DamagedRecord, Recovered
from anabranch.core.options import Options
from anabranch.core.origin import log_tail
from anabranch.core.origin.log_tail import EMIT_BYTES_MAX, EMIT_TICKS_MAX, InterestMarks
from anabranch.core.origin.origin import Origin
from anabranch.core.part_requests import AnnounceMark
from anabranch.core.routing.contract import Emission
from anabranch.model.errors import LocalError
from anabranch.model.frames import Done
from anabranch.model.limits import Limits
from tests.origin_parts import EDGES, NETWORK, Driver, body, emits_in, ticks_of, version


def test_mark_is_told_when_synced_and_is_silent_under_itself() -> None:
    driver = Driver()
    assert driver.advance(b=3) == []
    asks = driver.wait(driver.options.mark_after_s)
    assert [ask.tick for ask in asks if isinstance(ask, contract.Append)] == [1]
    marked, emit = driver.sync()
    assert marked == AnnounceMark(1, {"b": version(3)})
    assert isinstance(emit, Emission)
    assert (emit.mark, list(emit.silent), emit.head) == (1, [(1, 1)], 1)


def test_ticks_go_out_under_the_newest_mark_before_them() -> None:
    driver = Driver()
    driver.publish(body(1))
    driver.advance(b=1)
    driver.publish(body(2))
    driver.wait(driver.options.mark_after_s)
    driver.publish(body(3))
    driver.sync()
    asks = driver.sync()
    shape = [
        (ask.mark, ticks_of([ask]), list(ask.silent)) if isinstance(ask, Emission) else ask
        for ask in asks
        if isinstance(ask, Emission | AnnounceMark)
    ]
    assert shape == [(0, [2], []), AnnounceMark(3, {"b": version(1)}), (3, [4], [(3, 3)])]


def test_versions_are_gathered_into_one_mark() -> None:
    driver = Driver()
    driver.advance(b=1)
    driver.wait(driver.options.mark_after_s / 2)
    driver.advance(b=2, c=7)
    driver.wait(driver.options.mark_after_s)
    driver.sync_all()
    assert driver.origin.head == 1
    assert driver.origin.vector == {"b": version(2), "c": version(7)}


def test_vector_that_is_no_news_makes_no_mark() -> None:
    driver = Driver()
    driver.mark(b=5, c=1)
    driver.advance(b=4, c=1)
    asks = driver.wait(10.0)
    assert driver.origin.head == 1
    assert {type(ask) for ask in asks} == {Emission}


def test_vectors_never_decrease_not_even_over_restarts() -> None:
    driver = Driver()
    driver.mark(b=5)
    driver.crash()
    assert driver.origin.vector == {"b": version(5)}
    driver.mark(b=2, c=1)
    assert driver.origin.vector == {"b": version(5), "c": version(1)}


def test_restart_tells_its_marks_and_then_its_head() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    driver.mark(b=1)
    driver.publish_synced(body(2))
    driver.mark(b=2)
    driver.publish_synced(body(3))
    asks = driver.crash()
    told = [ask for ask in asks if isinstance(ask, AnnounceMark)]
    assert [(marked.mark, dict(marked.vector)) for marked in told] == [
        (0, {}),
        (2, {"b": version(1)}),
        (4, {"b": version(2)}),
    ]
    assert emits_in(asks) == [Emission(4, head=5, time_ns=int(driver.now * 1e9))]
    assert asks.index(emits_in(asks)[0]) > asks.index(told[-1])


def test_mark_at_the_beginning_is_known_after_its_record_is_deleted() -> None:
    driver = Driver()
    driver.mark(b=1)
    driver.publish_synced(body(1))
    driver.mark(c=1)
    driver.publish_synced(body(2))
    for edge in EDGES:
        driver.carry(Done(2), edge)
    driver.wait(1.0)
    driver.sync_all()
    assert driver.disk.first_tick == 3
    asks = driver.crash()
    assert [ask.mark for ask in asks if isinstance(ask, AnnounceMark)] == [1, 3]
    assert driver.origin.vector == {"b": version(1), "c": version(1)}


def test_idle_stream_tells_its_head_and_the_time() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    asks = driver.wait(2 * driver.options.head_every_s)
    assert [(e.head, e.time_ns, e.data) for e in emits_in(asks)] == [
        (1, 100_500_000_000, []),
        (1, 101_000_000_000, []),
    ]


def test_empty_stream_has_no_head_to_tell() -> None:
    driver = Driver()
    assert driver.wait(10.0) == []
    assert driver.origin.next_deadline() is None


def test_head_tells_no_time_after_a_tick_that_waits_for_the_disk() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    driver.wait(0.2)
    driver.publish(body(2))
    asks = driver.wait(0.5)
    assert [e.time_ns for e in emits_in(asks)] == [100_200_000_000]


def test_times_do_not_go_back_when_the_clock_does() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    driver.now = 50.0
    driver.crash()
    driver.publish_synced(body(2))
    times = [datum.time_ns for emit in driver.emits for datum in emit.data]
    assert times == [100_000_000_000]


def test_times_do_not_go_back_when_the_log_was_deleted() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    for edge in EDGES:
        driver.carry(Done(1), edge)
    driver.wait(1.0)
    driver.sync_all()
    driver.now = 50.0
    driver.crash()
    driver.publish_synced(body(2))
    (datum,) = [datum for emit in driver.emits for datum in emit.data]
    assert datum.time_ns >= 100_000_000_000


def test_large_batch_goes_out_in_parts_and_its_mark_is_told_once() -> None:
    driver = Driver()
    driver.publish(body(1))
    driver.advance(b=1)
    driver.wait(driver.options.mark_after_s)
    driver.publish(*(body(n) for n in range(2, EMIT_TICKS_MAX + 10)))
    driver.sync()
    asks = driver.sync()
    assert [len(emit.data) for emit in emits_in(asks)] == [EMIT_TICKS_MAX - 1, 9]
    assert len([ask for ask in asks if isinstance(ask, AnnounceMark)]) == 1


def test_large_events_go_out_in_parts() -> None:
    driver = Driver()
    driver.publish(*(body(n, payload=b"x" * (EMIT_BYTES_MAX // 2)) for n in range(1, 4)))
    assert [ticks_of([emit]) for emit in emits_in(driver.sync())] == [[1], [2], [3]]


def test_full_disk_delays_a_mark() -> None:
    driver = Driver()
    driver.do(driver.origin.log_full(driver.now, True))
    driver.advance(b=1)
    assert driver.wait(3.0) == []
    driver.do(driver.origin.log_full(driver.now, False))
    driver.wait(1.0)
    driver.sync_all()
    assert driver.origin.vector == {"b": version(1)}


def test_full_log_still_takes_marks() -> None:
    driver = Driver(Options(log_ticks_max=1))
    driver.publish_synced(body(1))
    assert driver.mark(b=1) == 2
    driver.publish(body(2))
    assert len(driver.refusals()) == 1


def test_nothing_happens_before_the_start() -> None:
    origin = Origin("a", NETWORK, Options(), Limits(), Recovered(), 1.0)
    assert origin.vector_advance(1.0, {"b": version(1)}) == []
    assert origin.next_deadline() is None


def test_log_that_begins_after_the_beginning_is_an_error() -> None:
    with pytest.raises(LocalError, match="do not belong together"):
        Origin("a", NETWORK, Options(), Limits(), Recovered(first_tick=7), 1.0)


def test_log_that_is_fetched_from_a_copy_begins_with_its_first_tick() -> None:
    copied = Recovered({"copies": {"a": b"row"}}, first_tick=7)
    origin = Origin("a", NETWORK, Options(), Limits(), copied, 1.0)
    assert (origin.oldest, origin.head) == (7, 6)
    unreadable = (DamagedRecord("copies", "a", b"", "it was changed"),)
    copied = Recovered(first_tick=7, damaged=unreadable)
    origin = Origin("a", NETWORK, Options(), Limits(), copied, 1.0)
    assert (origin.oldest, origin.head) == (7, 6)


# -- marks --------------------------------------------------------------------------------------


def test_spans_follow_the_marks() -> None:
    marks = InterestMarks(0, {})
    marks.add(3, {})
    marks.add(5, {})
    assert marks.spans(1, 7) == [(0, 1, 2), (3, 3, 4), (5, 5, 7)]
    assert marks.spans(3, 3) == [(3, 3, 3)]
    assert marks.spans(4, 5) == [(3, 4, 4), (5, 5, 5)]
    marks.delete_through(4)
    assert [mark for mark, _ in marks] == [3, 5]
    assert marks.at(1) == 3
    assert marks.spans(4, 6) == [(3, 4, 4), (5, 5, 6)]


def test_ticks_of_a_dropped_mark_carry_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_tail, "MARKS_MAX", 3)
    marks = InterestMarks(0, {})
    for tick in (2, 4, 6):
        marks.add(tick, {"b": version(tick)})
    assert [mark for mark, _ in marks] == [0, 4, 6]
    assert marks.at(3) == 0
    assert marks.at(5) == 4
