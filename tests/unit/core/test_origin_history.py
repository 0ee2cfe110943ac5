"""Edges that lack something get it from memory or log, bounded, or are told that it is gone."""

import pytest

from anabranch.core.options import Options
from anabranch.core.origin.replay import ANSWERS_MAX, EXAMINED_MAX, FILTERS_MAX
from anabranch.model.errors import RemoteError
from anabranch.model.event import Control
from anabranch.model.frame_parts import Hole
from anabranch.model.frames import Answer, Done, Hold, Nack, NotKept, Replay
from tests.origin_parts import EDGES, Driver, body, emits_in, ticks_of

#: Only three ticks stay in memory.
SHORT = Options(recent_ticks_max=3)


def filled(options: Options | None = None, count: int = 10) -> Driver:
    """An origin with one event per second in ticks 1 … count."""
    driver = Driver(options)
    for number in range(1, count + 1):
        driver.publish_synced(body(number))
        driver.now += 1.0
    return driver


def release(driver: Driver, tick: int) -> None:
    for edge in EDGES:
        driver.carry(Done(tick), edge)
    driver.wait(1.0)
    driver.sync_all()


def replay(
    first: int = 0,
    *filters: str,
    time_ns: int = 0,
    events_max: int = 100,
    bytes_max: int = 1_000_000,
    request: int = 1,
) -> Replay:
    return Replay(request, first, time_ns, list(filters) or ["TRUE"], events_max, bytes_max)


def answered(driver: Driver, wanted: Replay, source: str = "b") -> Answer:
    """The one answer to a replay, after the reads it needs."""
    driver.carried.clear()
    driver.carry(wanted, source)
    driver.read_all()
    ((target, answer),) = driver.carried
    assert target == source
    assert isinstance(answer, Answer)
    return answer


def ticks_in(answer: Answer) -> list[int]:
    return [datum.tick for datum in answer.data]


# -- nacks --------------------------------------------------------------------------------------


def test_nack_is_answered_to_that_edge_with_original_marks() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    driver.mark(b=1)
    driver.publish_synced(body(2))
    driver.mark(c=1)
    driver.publish_synced(body(3))
    emits = emits_in(driver.carry(Nack([(1, 5)]), "c"))
    assert [(e.mark, ticks_of([e]), list(e.silent), e.target, e.head) for e in emits] == [
        (0, [1], [], "c", 5),
        (2, [3], [(2, 2)], "c", 5),
        (4, [5], [(4, 4)], "c", 5),
    ]


def test_tick_goes_to_the_same_edge_once_per_interval() -> None:
    driver = filled()
    assert ticks_of(driver.carry(Nack([(2, 4)]))) == [2, 3, 4]
    assert ticks_of(driver.carry(Nack([(1, 5)]))) == [1, 5]
    assert ticks_of(driver.carry(Nack([(2, 4)]), "c")) == [2, 3, 4]
    driver.now += driver.options.nack_again_s / 2
    assert ticks_of(driver.carry(Nack([(2, 4)]))) == [2, 3, 4]


def test_edge_that_asks_for_too_much_at_a_time_waits() -> None:
    driver = filled(count=ANSWERS_MAX + 1)
    for tick in range(1, ANSWERS_MAX + 1):
        assert ticks_of(driver.carry(Nack([(tick, tick)]))) == [tick]
    assert driver.carry(Nack([(ANSWERS_MAX + 1, ANSWERS_MAX + 1)])) == []
    driver.now += driver.options.nack_again_s
    assert len(ticks_of(driver.carry(Nack([(ANSWERS_MAX + 1, ANSWERS_MAX + 1)])))) == 1


def test_nack_for_a_billion_ticks_is_bounded() -> None:
    driver = filled(Options(nack_ticks_max=4))
    assert ticks_of(driver.carry(Nack([(3, 10**9)]))) == [3, 4, 5, 6]
    assert ticks_of(driver.carry(Nack([(3, 10**9)]))) == [7, 8, 9, 10]


def test_nack_is_bounded_in_bytes() -> None:
    driver = Driver(Options(replay_bytes_max=2_500))
    driver.publish_synced(*(body(n, payload=b"x" * 1_000) for n in range(1, 6)))
    assert ticks_of(driver.carry(Nack([(1, 5)]))) == [1, 2]
    assert ticks_of(driver.carry(Nack([(1, 5)]))) == [3, 4]


def test_ticks_beyond_the_head_are_not_there_to_be_sent() -> None:
    driver = filled()
    driver.publish(body(11))
    assert driver.carry(Nack([(11, 20)])) == []
    driver.sync_all()
    assert ticks_of(driver.carry(Nack([(11, 20)]))) == [11]


@pytest.mark.parametrize("bad", [(5, 4), (0, 3)])
def test_range_that_is_none_raises(bad: tuple[int, int]) -> None:
    driver = filled()
    with pytest.raises(RemoteError, match="not a range"):
        driver.origin.carried(driver.now, "b", Nack([(1, 1), bad]))
    assert ticks_of(driver.carry(Nack([(1, 1)]))) == [1]


def test_ticks_that_left_memory_are_read_from_the_log() -> None:
    driver = filled(SHORT)
    assert ticks_of(driver.carry(Nack([(2, 4)]))) == []
    (read,) = driver.reads
    assert (read.first, read.last) == (2, 4)
    asks = driver.read()
    assert ticks_of(asks) == [2, 3, 4]
    assert {emit.target for emit in emits_in(asks)} == {"b"}


def test_what_is_in_memory_does_not_overtake_what_has_to_be_read() -> None:
    driver = filled(SHORT)
    assert ticks_of(driver.carry(Nack([(2, 4), (9, 10)]))) == []
    assert ticks_of(driver.read()) == [2, 3, 4]
    assert ticks_of(driver.carry(Nack([(9, 10)]))) == [9, 10]


def test_ticks_below_the_log_are_withheld() -> None:
    driver = filled()
    release(driver, 4)
    (emit, rest) = emits_in(driver.carry(Nack([(2, 6)])))
    assert list(emit.withheld) == [Hole(2, 4, "retention")]
    assert ticks_of([rest]) == [5, 6]


def test_ticks_that_are_deleted_during_the_read_are_not_sent() -> None:
    driver = filled(SHORT)
    driver.carry(Nack([(2, 4)]))
    late = driver.reads.pop()
    records = tuple(driver.disk.records[1:4])
    release(driver, 3)
    driver.reads.append(late)
    driver.disk.records[:0] = records[:2]
    driver.disk.first_tick -= 2
    assert ticks_of(driver.read()) == [4]


def test_transient_event_is_withheld_when_it_left_memory() -> None:
    driver = Driver(SHORT)
    for number in range(1, 10):
        kind: Control = Control(persistence="transient") if number in (2, 3, 9) else Control()
        driver.publish_synced(body(number, control=kind))
    assert ticks_of(driver.carry(Nack([(9, 9)]))) == [9]
    driver.carry(Nack([(1, 4)]))
    (emit,) = emits_in(driver.read())
    assert list(emit.withheld) == [Hole(2, 3, "transient")]
    assert ticks_of([emit]) == [1, 4]


def test_reads_are_bounded() -> None:
    driver = filled(Options(recent_ticks_max=3, reads_max=2))
    for tick in (1, 2, 3):
        driver.carry(Nack([(tick, tick)]))
    assert len(driver.reads) == 2
    driver.read_all()
    driver.carry(Nack([(3, 3)]))
    assert ticks_of(driver.read()) == [3]


def test_answer_to_no_question_is_ignored() -> None:
    driver = filled(SHORT)
    driver.carry(Nack([(2, 2)]))
    driver.reads.append(driver.reads[0])
    assert ticks_of(driver.read()) == [2]
    assert driver.read() == []


# -- replays ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [Options(), SHORT], ids=["memory", "log"])
def test_replay_brings_what_matches(options: Options) -> None:
    driver = filled(options)
    answer = answered(driver, replay(2, "n = 3", "n > 4 AND n < 6"))
    assert (answer.first, answer.head) == (2, 10)
    assert ticks_in(answer) == [3, 5]
    following = answered(driver, replay(9, "n > 9"))
    assert (ticks_in(following), following.through) == ([10], 10)


def test_replay_from_the_beginning() -> None:
    driver = filled()
    release(driver, 3)
    answer = answered(driver, replay())
    assert (answer.first, answer.through, ticks_in(answer)) == (4, 10, [4, 5, 6, 7, 8, 9, 10])


def test_replay_without_filters_wants_nothing() -> None:
    driver = filled()
    wanted = Replay(1, 1, 0, [], 10, 1_000)
    assert (answered(driver, wanted).through, ticks_in(answered(driver, wanted))) == (10, [])


def test_replay_ends_with_the_event_that_fills_it() -> None:
    driver = filled()
    answer = answered(driver, replay(1, "n <> 2", events_max=2))
    assert (ticks_in(answer), answer.through) == ([1, 3], 3)
    size = len(body(1))
    answer = answered(driver, replay(1, bytes_max=2 * size))
    assert (ticks_in(answer), answer.through) == ([1, 2], 2)


def test_replay_brings_one_event_however_large() -> None:
    driver = filled()
    answer = answered(driver, replay(4, bytes_max=0, events_max=0))
    assert (ticks_in(answer), answer.through) == ([4], 4)


def test_replay_does_not_exceed_our_own_bounds() -> None:
    driver = filled(Options(replay_events_max=3))
    assert ticks_in(answered(driver, replay(1, events_max=10**9))) == [1, 2, 3]


def test_replay_examines_a_bounded_number_of_ticks() -> None:
    driver = Driver(Options(recent_ticks_max=2 * EXAMINED_MAX, step_work_max=10**9))
    driver.publish_synced(*(body(n) for n in range(1, EXAMINED_MAX + 11)))
    answer = answered(driver, replay(1, "FALSE"))
    assert (ticks_in(answer), answer.through) == ([], EXAMINED_MAX)


def test_replay_examines_what_one_step_has_time_for() -> None:
    driver = Driver(Options(recent_ticks_max=2 * EXAMINED_MAX, step_work_max=2_000))
    driver.publish_synced(*(body(n) for n in range(1, 1_001)))
    first = answered(driver, replay(1, "FALSE"))
    assert 50 < first.through < 500
    assert answered(driver, replay(first.through + 1, "FALSE")).through == 2 * first.through


def test_replay_beyond_the_head_is_answered_with_the_head() -> None:
    driver = filled()
    driver.publish(body(11))
    answer = answered(driver, replay(11))
    assert (answer.first, answer.through, answer.head, answer.data) == (11, 10, 10, [])
    assert answered(Driver(), replay()).through == 0


def test_replay_goes_only_up_to_what_is_synced() -> None:
    driver = filled()
    driver.publish(body(11))
    answer = answered(driver, replay(9))
    assert (ticks_in(answer), answer.through) == ([9, 10], 10)


def test_replay_from_what_is_deleted_is_refused_with_the_oldest_tick() -> None:
    driver = filled()
    release(driver, 3)
    driver.carry(replay(3, request=77))
    assert driver.carried == [("b", NotKept(77, 4))]


def test_replay_whose_ticks_are_deleted_during_the_read_is_refused() -> None:
    driver = filled(SHORT)
    driver.carry(replay(2))
    late = driver.reads.pop()
    release(driver, 3)
    driver.reads.append(late)
    driver.read()
    assert driver.carried == [("b", NotKept(1, 4))]


@pytest.mark.parametrize("options", [Options(), SHORT], ids=["memory", "log"])
@pytest.mark.parametrize(
    ("time_s", "first"),
    [(1, 1), (100, 1), (100.5, 2), (102, 3), (104.5, 6), (108, 9), (109, 10)],
)
def test_replay_from_a_time_begins_with_the_first_tick_of_it(
    options: Options, time_s: float, first: int
) -> None:
    driver = filled(options)
    answer = answered(driver, replay(time_ns=int(time_s * 1e9)))
    assert answer.first == first
    assert ticks_in(answer)[0] == first


def test_replay_from_a_time_to_come_begins_with_the_next_tick() -> None:
    driver = filled()
    driver.publish(body(11))
    answer = answered(driver, replay(time_ns=10**18))
    assert (answer.first, answer.through) == (11, 10)


@pytest.mark.parametrize(("time_s", "first"), [(105, 0), (128, 29)])
def test_replay_from_a_time_survives_deletion_during_the_search(time_s: int, first: int) -> None:
    driver = filled(SHORT, 40)
    driver.carry(replay(time_ns=time_s * 10**9))
    assert driver.reads
    late = driver.reads.pop()
    release(driver, 25)
    driver.reads.append(late)
    driver.read_all()
    ((_, answer),) = driver.carried
    if first:
        assert isinstance(answer, Answer)
        assert answer.first == first
    else:
        assert answer == NotKept(1, 26)


@pytest.mark.parametrize("options", [Options(), SHORT], ids=["memory", "log"])
def test_replay_from_a_time_of_which_ticks_are_forgotten_is_refused(options: Options) -> None:
    driver = filled(options)
    release(driver, 4)
    driver.carry(replay(time_ns=int(101e9)))
    driver.read_all()
    assert driver.carried == [("b", NotKept(1, 5))]
    answer = answered(driver, replay(time_ns=int(105e9)))
    assert answer.first == 6


def test_replay_repeated_while_it_is_read_is_read_once() -> None:
    driver = filled(SHORT)
    for _ in range(100):
        driver.carry(replay(2))
    assert len(driver.reads) == 1
    driver.carry(replay(2), "c")
    assert len(driver.reads) == 2


def test_replay_names_transient_events_that_are_gone() -> None:
    driver = Driver()
    driver.publish_synced(body(1), body(2, control=Control(persistence="transient")), body(3))
    assert ticks_in(answered(driver, replay())) == [1, 2, 3]
    driver.crash()
    answer = answered(driver, replay(1, "FALSE"))
    assert (answer.withheld, answer.through) == ([Hole(2, 2, "transient")], 3)


def test_event_with_a_hop_limit_does_not_exist_further_away() -> None:
    driver = Driver()
    near = driver.network.distance("a", "b")
    driver.publish_synced(body(1, control=Control(hop_limit=near)), body(2))
    assert ticks_in(answered(driver, replay(), "b")) == [1, 2]
    assert ticks_in(answered(driver, replay(), "c")) == [2]


def test_filter_that_is_none_raises() -> None:
    driver = filled()
    with pytest.raises(RemoteError, match="invalid filter"):
        driver.origin.carried(driver.now, "b", replay(1, "n = 1", "n ="))


def test_too_many_filters_raise() -> None:
    driver = filled()
    with pytest.raises(RemoteError, match="filters"):
        driver.origin.carried(driver.now, "b", replay(1, *["TRUE"] * (FILTERS_MAX + 1)))


@pytest.mark.parametrize("content", [Nack([(1, 1)]), Done(1), replay(1), Hold(1, 1)])
def test_whoever_is_no_edge_has_nothing_to_ask(content: Nack | Done | Replay | Hold) -> None:
    driver = filled()
    with pytest.raises(RemoteError, match="not an edge"):
        driver.origin.carried(driver.now, "x", content)
